"""Weights of real rows: how often each is to be read, or how much its loss counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.data import IGNORED, Vocabulary
from farzi_hf.summary.forms.base import (
    Inputs,
    Likeliest,
    Part,
    Position,
    Table,
    Tensors,
    TrainerRow,
)
from farzi_hf.summary.forms.common_labels import (
    BY_OUTER_STEPS,
    StoredLabels,
    refuse_label_dim,
    refuse_teacher,
)
from farzi_hf.summary.forms.rows import WEIGHT, WEIGHTS, RowInputs
from farzi_hf.summary.forms.words import InputWords, LabelWords
from farzi_hf.summary.soft_tokens import SoftTokens

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents

_TRAINING = """Train any model on it, with nothing of `farzi_hf`: the rows are text, chats or whatever the data hold, so TRL's `SFTTrainer` and the stock `Trainer` take them as they take the data. A weight says how often a row is to be read, beside a row of weight 1. So draw the rows by their weights:

```python
import numpy as np
from datasets import load_dataset

rows = load_dataset("{repo}", split="train")
shares = np.array(rows["weight"]) / np.sum(rows["weight"])
drawn = rows.select(np.random.default_rng(0).choice(len(rows), 10 * len(rows), p=shares)).remove_columns("weight")
```

With `farzi_hf`, `FarziData.from_pretrained("{repo}").as_dataset(num_rows=…, seed=0)` does the same with less noise, and its `collator()` multiplies the losses of tokenized rows with a column `weight` in place of it (with `remove_unused_columns=False`)."""  # noqa: E501


class RealLabels(StoredLabels):
    """`weights (num_rows,)`: a number from 0 on for each of the n rows of the data; μ of them are
    not 0. What a row predicts is its own next token.
    """

    name = "real"
    goes_with = (RowInputs,)
    table_names = ()
    fields = ()
    defaults: ClassVar = {**BY_OUTER_STEPS, "inputs": "rows"}
    by_teachers = False
    are_inputs = True
    row_of_start = "all rows, equal weights"
    row_without_steps = None

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        return {WEIGHTS: Part(("num_rows",), is_learnt=False, is_ids=False, begin=None)}

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        refuse_teacher(config)
        refuse_label_dim(config)

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        weights = tensors[WEIGHTS]
        kept = int((weights > 0).sum())
        if float(weights.min()) < 0 or kept != self.config.num_sequences:
            raise ValueError(
                f"weights has negative numbers, or {kept} positive ones in place of"
                f" num_sequences={self.config.num_sequences}; {remedy}"
            )
        if self.config.storage != "exact":
            raise ValueError(
                f"storage={self.config.storage!r}: weights of rows are stored as they are; set"
                " 'exact'"
            )

    # -- training ----------------------------------------------------------------------------------

    def batch(
        self, tensors: Tensors, rows: Tensor | slice, inputs: SoftTokens | Tensor
    ) -> SoftTokens:
        raise ValueError("rows of the data are no soft labels; train on as_dataset()")

    def column(self, tensors: Tensors, count: int, length: int) -> None:
        return None

    def knows(self, row: TrainerRow) -> bool:
        """Whether the row has a weight."""
        return WEIGHT in row

    def collated(self, rows: Sequence[TrainerRow], read: Tensor, shared: Tensors) -> Tensor:
        """(b, L, V): each label as a distribution, times the weight of its row; zeros where a row
        predicts nothing.
        """
        size = self.config.vocab_size
        targets = torch.full(read.shape, IGNORED)
        for i, row in enumerate(rows):
            labels = torch.as_tensor(row.get("labels", row["input_ids"]))
            targets[i, : len(labels)] = labels
        weights = torch.tensor([float(row[WEIGHT]) for row in rows])
        counted = (targets != IGNORED) * weights[:, None]
        return F.one_hot(targets.clamp(min=0), size).float() * counted[..., None]

    # -- reading -----------------------------------------------------------------------------------

    def decode(
        self,
        tensors: Tensors,
        rows: Tensor | slice,
        inputs: Inputs,
        names: Sequence[Any],
        top_k: int,
    ) -> list[list[Position]]:
        weights = tensors[WEIGHTS].detach().cpu()
        return [[{"weight": x}] for x in weights[weights != 0][rows].tolist()]

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return {"weight": position["weight"]}

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return {"weight": f"{position['weight']:.3f}"}

    def tables(self, contents: Contents) -> list[Table]:
        """None: the table of the rows has their weights."""
        return []

    def torch_code(self) -> str:
        return ""

    def commands(self, repo: str) -> list[str]:
        return [f"farzi show {repo}"]

    def words(self, inputs: InputWords, vocabulary: Vocabulary, nbytes: int) -> LabelWords:
        count = self.config.num_sequences
        all_rows = self.config.num_rows
        return LabelWords(
            tags=("data-selection",),
            title=f"{count:,} rows, with weights, of",
            description=(
                f"{count:,} of {all_rows:,} rows of a data set, chosen to train on for a target."
                f" {inputs.position}\nEach has a weight: how often it is to be read. There is no"
                " teacher, and there are no soft labels."
            ),
            browse="",
            training=_TRAINING.format(repo="path/to/this/folder"),
            origin="The weights were learnt for a target.",
            results=(
                "Each row of the table is a way to choose rows. Fresh models are trained on what it"
                " chose, all for as many steps; perplexity on the target's dev part, by which one"
                " way was taken, and on its test part, with 95 % intervals over trainings. Seconds"
                " are those of the choice."
            ),
            needs="Any model can train on them",
            reading="The weight stands beside it.",
            size="the rows and all weights",
            short_size="bytes of rows and weights",
            facts={"weights": "one for each row of the data; 0 leaves it out"},
            short={"inputs": inputs.short, "labels": "their own, with a weight for each row"},
        )
