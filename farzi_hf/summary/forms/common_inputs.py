"""What kinds of inputs have in common: rows that are stored or made, and positions that are ids."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from farzi_hf.common.text import terminal_text
from farzi_hf.data import Vocabulary
from farzi_hf.summary.endless import EndlessRows, RowsDataset
from farzi_hf.summary.forms.base import (
    Inputs,
    Labels,
    Likeliest,
    Part,
    Position,
    Table,
    Tensors,
    equal_shares,
)
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.initialization import Shares
from farzi_hf.summary.origins import ORIGINS, UNKNOWN, Origin
from farzi_hf.summary.reading import check_shares
from farzi_hf.summary.store.columns import list_column
from farzi_hf.summary.store.tensor_file import SHARES

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents

_SHOWN_POSITIONS = 2**18
"""The most of all rows that are shown, where inputs do not run out."""

ID_LEGEND = (
    "Each box shows an id that a student reads, and the likeliest entry that it should predict"
    " after it"
)
"""What a box of the page shows, where inputs are ids."""


class SequenceInputs(Inputs):
    """Inputs whose rows are sequences of ξ positions. A position says tokens, and each token has a
    probability.
    """

    def check_ready(self) -> None:
        """Nothing: the collator makes a batch of them."""

    def text(self, sequence: Sequence[Position], vocabulary: Vocabulary) -> str:
        """The likeliest tokens."""
        return vocabulary.text([position["tokens"][0] for position in sequence])

    def place(self, sequence: int, position: int) -> dict[str, str]:
        return {"sequence, position": f"{sequence}, {position}"}


class IdInputs(SequenceInputs):
    """Inputs that are ids of the vocabulary, which any model reads without soft inputs."""

    browsed = "label_"
    wanted = ""

    def knows(self, values: Tensor) -> bool:
        return values.ndim == 1

    def collated(self, values: Sequence[Tensor], shared: Tensors) -> dict[str, Tensor]:
        """Ids (b, ξ), none of them padding."""
        size = self.config.vocab_size
        ids = torch.stack([checked_ids(i, x, size, self.wanted) for i, x in enumerate(values)])
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}

    def decode(
        self, tensors: Tensors, rows: Tensor | slice, names: Sequence[Any], top_k: int
    ) -> list[list[Position]]:
        """Each id is one token with probability 1."""
        return [
            [{"tokens": [names[i]], "probabilities": [1.0], "entropy": 0.0} for i in sequence]
            for sequence in self.batch(tensors, rows).tolist()
        ]

    def browsed_ids(self, decoded: Sequence[Sequence[Position]]) -> list[list[int]]:
        return [[position["tokens"][0] for position in sequence] for sequence in decoded]

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return input_cells(position, likeliest)

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return {"input": terminal_text(position["tokens"][0], 40)}


class StoredInputs(SequenceInputs):
    """Inputs of which the summary stores μ rows."""

    is_endless = False

    @property
    def origin(self) -> Origin:
        """The one that the config names: what has set the inputs has set it, too."""
        return ORIGINS.get(self.config.origin, UNKNOWN)

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        """Nothing: every size and every label fits."""

    def endless(self, tensors: Tensors, labels: Labels, seed: int, length: int) -> None:
        return None

    def frequencies(self, tensors: Tensors) -> None:
        return None

    @abstractmethod
    def column(self, tensors: Tensors) -> Tensor:
        """The column `input_ids` of the rows for a Trainer, (μ, ξ) or (μ, ξ, d)."""

    def dataset(
        self, tensors: Tensors, labels: Labels, num_rows: int | None, seed: int | None
    ) -> Dataset:
        if num_rows is not None or seed is not None:
            raise ValueError(
                f"num_rows={num_rows!r} and seed={seed!r}: leave them out, inputs={self.name!r} are"
                " rows that are stored"
            )
        inputs = self.column(tensors)
        columns = {"input_ids": list_column(inputs)}
        its_labels = labels.column(tensors, *inputs.shape[:2])
        if its_labels is not None:
            columns["labels"] = list_column(its_labels)
        return Dataset(pa.table(columns)).with_format("torch")


class EndlessInputs(IdInputs):
    """Inputs that do not run out: ids that are made when they are read, as many rows as a training
    asks for. μ is the number of rows that are shown.
    """

    is_endless = True

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        """Raises ValueError if more rows are to be shown than anybody looks at."""
        if config.num_sequences * config.sequence_length > _SHOWN_POSITIONS:
            raise ValueError(
                f"num_sequences={config.num_sequences} rows of"
                f" sequence_length={config.sequence_length} have more than {_SHOWN_POSITIONS:,}"
                " positions; show fewer"
            )

    @abstractmethod
    def endless(self, tensors: Tensors, labels: Labels, seed: int, length: int) -> EndlessRows:
        """The rows of a training, of `length` ids."""

    def batch(self, tensors: Tensors, rows: Tensor) -> Tensor:
        """The ids (b, ξ) themselves."""
        return rows

    def looked_up(self, tensors: Tensors) -> None:
        return None

    columns_comment = ""

    def columns(self, contents: Contents) -> dict[str, pa.Array]:
        """None: rows are made."""
        return {}

    table_names = ()

    def tables(self, contents: Contents) -> list[Table]:
        """None: rows are made."""
        return []

    def torch_code(self) -> str:
        return ""

    def dataset(
        self, tensors: Tensors, labels: Labels, num_rows: int | None, seed: int | None
    ) -> RowsDataset:
        seed = self.config.seed if seed is None else seed
        length = self.config.sequence_length
        source = self.endless(tensors, labels, seed, length)
        of_labels = labels.column(tensors, 1, length)
        return RowsDataset(source, num_rows, None if of_labels is None else of_labels[0])


class FrequencyInputs(EndlessInputs):
    """Ids that are made by `frequencies (V,)`, which a carried teacher's labels go with."""

    labels_by_default = "teacher"
    start = Shares()

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        return {SHARES: Part(("vocab_size",), is_learnt=False, is_ids=False, begin=equal_shares)}

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        check_shares(SHARES, tensors, remedy)

    def frequencies(self, tensors: Tensors) -> Tensor:
        return tensors[SHARES]

    def words_of_made_rows(
        self, vocabulary: Vocabulary, *, rows: str, short: str, inputs: str
    ) -> InputWords:
        """The words of rows that are made.

        Args:
            rows, short: see `InputWords`.
            inputs: what the inputs are, as a fact of the card.
        """
        config = self.config
        return InputWords(
            positions=vocabulary.entries,
            position=f"Inputs are ids of a vocabulary of {config.vocab_size:,} entries.",
            rows=rows,
            short=short,
            facts={
                "rows shown": config.num_sequences,
                "positions per sequence (ξ)": config.sequence_length,
                "inputs": inputs,
            },
            excerpt="The first rows.",
            first_positions="The first positions of the first sequence:",
            first_row="First row that is made",
            numbers=self.numbers_per_position,
            figures=(),
            legend=ID_LEGEND,
        )


def input_cells(position: Position, likeliest: Likeliest) -> dict[str, Any]:
    """The cells of a distribution in the card's table."""
    return {
        "likeliest entries": likeliest(position["tokens"], position["probabilities"]),
        "entropy (nats)": position["entropy"],
    }


def checked_ids(i: int, values: Tensor, vocab_size: int, wanted: str) -> Tensor:
    """The ids (L,) of row i of a batch. Raises ValueError if they are none, or one is outside of
    the vocabulary.

    Args:
        wanted: what else could stand there, see `Inputs.wanted`.
    """
    name = f"rows[{i}]['input_ids']"
    is_empty = values.ndim == 1 and len(values) == 0  # an empty list has no type of its own
    if values.ndim != 1 or (values.is_floating_point() and not is_empty):
        shape = tuple(values.shape)
        raise ValueError(f"{name} is {values.dtype} of shape {shape}; give ids (L,){wanted}")
    outside = values[(values < 0) | (values >= vocab_size)]
    if len(outside):
        raise ValueError(
            f"{name} holds id {outside[0]}, outside 0 … {vocab_size - 1}; use the summary's"
            " tokenizer"
        )
    return values.long()


def rows_of_ids(ids: Tensor | Sequence[Sequence[int]]) -> Tensor:
    """Rows of ids as a tensor (n, L). Raises ValueError if they are none."""
    try:
        rows = torch.as_tensor(ids)
    except (TypeError, ValueError, RuntimeError) as error:  # rows of several lengths, or no numbers
        raise ValueError(
            f"ids are no table of integers ({error}); give rows of one length"
        ) from None
    is_table = rows.ndim == 2 and len(rows) > 0 and rows.shape[1] > 1
    if not is_table or rows.is_floating_point() or rows.dtype == torch.bool:
        raise ValueError(
            f"ids are {rows.dtype} of shape {tuple(rows.shape)}; give integers (n, L), one row or"
            " more, of two ids or more"
        )
    return rows
