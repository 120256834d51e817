"""Labels of their own: a learnt distribution for each position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.common.checks import check_size
from farzi_hf.common.settings import setting
from farzi_hf.data import Vocabulary
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.summary.forms.base import (
    Inputs,
    Likeliest,
    Part,
    Position,
    Table,
    Tensors,
    TrainerRow,
    normal,
)
from farzi_hf.summary.forms.common_inputs import StoredInputs
from farzi_hf.summary.forms.common_labels import (
    BY_OUTER_STEPS,
    POSITIONS,
    PREDICTED,
    StoredLabels,
    card_cells_of_label,
    commands_of_students,
    of_label,
    positions_table,
    refuse_teacher,
    terminal_cells_of_label,
)
from farzi_hf.summary.forms.words import InputWords, LabelWords
from farzi_hf.summary.reading import check_product, likeliest_entries
from farzi_hf.summary.soft_tokens import SoftTokens, soft_tokens
from farzi_hf.summary.store.columns import list_column
from farzi_hf.summary.teacher import factors_of_rank

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents


class OwnLabels(StoredLabels):
    """`label_latents (μ, ξ, e)` and `label_decoder (e, V)`: a student should predict
    softmax(label_latents[i, j] @ label_decoder) after position j of sequence i.
    """

    name = "own"
    goes_with = (StoredInputs,)
    table_names = ("labels", "label_decoder", POSITIONS)
    fields = ("label_dim",)
    defaults: ClassVar = {**BY_OUTER_STEPS, "inputs": "tokens"}
    by_teachers = True
    are_inputs = False
    row_of_start = "same inputs, teacher's labels"
    row_without_steps = None

    @dataclass(frozen=True)
    class Settings:
        label_dim: int | None = setting(
            None, "e, numbers per own label; by default those of a teacher's head", least=1
        )
        num_teachers: int = setting(
            1, "teachers; the labels are those of the mean of their logits", least=1
        )

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        latents = ("num_sequences", "sequence_length", "label_dim")
        return {
            "label_latents": Part(latents, is_learnt=True, is_ids=False, begin=normal),
            "label_decoder": Part(("label_dim", "vocab_size"), True, False, normal),
        }

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        refuse_teacher(config)
        label_dim = config.latent_dim if config.label_dim is None else config.label_dim
        config.label_dim = check_size("label_dim", label_dim)

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        check_product("label_latents", "label_decoder", tensors, 1.0, remedy)

    @torch.no_grad()
    def begin_at(self, tensors: Tensors, states: Tensor, weight: Tensor) -> None:
        """Sets the labels to softmax(states @ weight), or to what is closest in e dimensions.

        Args:
            tensors: of the summary, changed in place.
            states: (μ·ξ, k) of teachers.
            weight: (k, V) of their heads.
        """
        label_dim = self.config.label_dim
        latents, decoder = factors_of_rank(states, weight, min(label_dim, len(weight)))
        missing = label_dim - len(decoder)
        label_latents = tensors["label_latents"]
        label_latents.copy_(F.pad(latents, (0, missing)).view_as(label_latents))
        # Dimensions to spare: their latents are 0, so labels stay; their decoder is not, so that
        # latents have a gradient.
        generator = torch.Generator().manual_seed(derive(self.config.seed, Purpose.SPARE_LABELS))
        spare = torch.randn(missing, decoder.shape[1], generator=generator).to(decoder)
        tensors["label_decoder"].copy_(torch.cat([decoder, spare * self.config.latent_std]))

    # -- training ----------------------------------------------------------------------------------

    def batch(
        self, tensors: Tensors, rows: Tensor | slice, inputs: SoftTokens | Tensor
    ) -> SoftTokens:
        """(b, ξ, V): what a student predicts at each position."""
        return SoftTokens(tensors["label_latents"][rows], tensors["label_decoder"])

    def column(self, tensors: Tensors, count: int, length: int) -> Tensor:
        return tensors["label_latents"]

    def knows(self, row: TrainerRow) -> bool:
        """Whether the row has latents (ξ, e)."""
        labels = torch.as_tensor(row.get("labels", ()))
        is_matrix = labels.is_floating_point() and labels.ndim == 2
        return is_matrix and labels.shape[1] == self.config.label_dim

    def collated(self, rows: Sequence[TrainerRow], read: Tensor, shared: Tensors) -> Tensor:
        """(b, ξ + 1, V). Nobody reads `labels[:, 0]`."""
        decoder = shared["label_decoder"]
        latents = torch.stack([torch.as_tensor(row["labels"]) for row in rows]).to(decoder.dtype)
        return soft_tokens(F.pad(latents, (0, 0, 1, 0)), decoder, 1.0)

    # -- reading -----------------------------------------------------------------------------------

    def decode(
        self,
        tensors: Tensors,
        rows: Tensor | slice,
        inputs: Inputs,
        names: Sequence[Any],
        top_k: int,
    ) -> list[list[Position]]:
        labels = SoftTokens(tensors["label_latents"][rows], tensors["label_decoder"])
        return of_label(likeliest_entries(labels, names, top_k))

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return card_cells_of_label(position, likeliest)

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return terminal_cells_of_label(position, likeliest)

    def tables(self, contents: Contents) -> list[Table]:
        tensors = contents.tensors
        inputs = contents.forms.inputs

        def labels() -> pa.Table:
            column = {"labels": list_column(tensors["label_latents"])}
            return pa.table(contents.index | column | inputs.columns(contents))

        def decoder() -> pa.Table:
            column = {"decoder": list_column(tensors["label_decoder"].T)}
            return pa.table(contents.entries | column)

        comment = f"one row per sequence: (ξ, e) floats{inputs.columns_comment}"
        return [
            Table("labels", comment, labels),
            Table("label_decoder", "per vocabulary entry: e floats", decoder),
            positions_table(contents),
        ]

    def torch_code(self) -> str:
        config = self.config
        count = config.num_sequences
        length = config.sequence_length
        size = config.vocab_size
        return (
            f'Y = torch.tensor(labels[:]["labels"])  # ({count}, {length}, {config.label_dim})\n'
            'E = torch.tensor(label_decoder[:]["decoder"]).T'
            f"  # ({config.label_dim}, {size})\n"
            f"# what to predict after each position: (1, {length}, {size})\n"
            "targets = torch.softmax(Y[:1] @ E, -1)\n"
        )

    def commands(self, repo: str) -> list[str]:
        return commands_of_students(repo)

    def words(self, inputs: InputWords, vocabulary: Vocabulary, nbytes: int) -> LabelWords:
        return self.words_of_sequences(
            inputs,
            of_labels=(
                " Each position has a label of its own,\n"
                "`softmax(labels @ label_decoder)`: what a student should predict after it."
            ),
            origin=PREDICTED,
            facts={"labels": f"of their own, dimension (e) {self.config.label_dim}"},
        )
