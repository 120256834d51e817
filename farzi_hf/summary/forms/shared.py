"""Shared labels: a position predicts the next input, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor

from farzi_hf.data import Vocabulary
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
    POSITIONS,
    StoredLabels,
    commands_of_students,
    positions_table,
    refuse_label_dim,
    refuse_teacher,
)
from farzi_hf.summary.forms.soft import SoftInputs
from farzi_hf.summary.forms.words import InputWords, LabelWords
from farzi_hf.summary.soft_tokens import SoftTokens

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents


class SharedLabels(StoredLabels):
    """The inputs themselves, without tensors of their own."""

    name = "shared"
    goes_with = (SoftInputs,)
    table_names = (POSITIONS,)
    fields = ()
    defaults: ClassVar = {**BY_OUTER_STEPS, "inputs": "soft"}
    by_teachers = False
    are_inputs = True
    row_of_start = "Farzi, 0 outer steps"
    row_without_steps = None

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        return {}

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        refuse_teacher(config)
        refuse_label_dim(config)

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        """Nothing: the inputs check theirs."""

    # -- training ----------------------------------------------------------------------------------

    def batch(self, tensors: Tensors, rows: Tensor | slice, inputs: SoftTokens) -> SoftTokens:
        """(b, ξ − 1, V): the input of position j + 1 is what a student predicts at position j."""
        return inputs.following()

    def column(self, tensors: Tensors, count: int, length: int) -> None:
        return None

    def knows(self, row: TrainerRow) -> bool:
        """Whatever the labels: the inputs tell."""
        return True

    def collated(self, rows: Sequence[TrainerRow], read: Tensor, shared: Tensors) -> Tensor:
        """The inputs (b, ξ, V)."""
        return read

    # -- reading -----------------------------------------------------------------------------------

    def decode(
        self,
        tensors: Tensors,
        rows: Tensor | slice,
        inputs: Inputs,
        names: Sequence[Any],
        top_k: int,
    ) -> None:
        return None

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return {}

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return {}

    def tables(self, contents: Contents) -> list[Table]:
        return [positions_table(contents)]

    def torch_code(self) -> str:
        return ""

    def commands(self, repo: str) -> list[str]:
        return commands_of_students(repo)

    def words(self, inputs: InputWords, vocabulary: Vocabulary, nbytes: int) -> LabelWords:
        return self.words_of_sequences(
            inputs, of_labels="", origin="The labels are the inputs.", facts={}
        )
