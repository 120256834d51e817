"""Fixed ids for inputs: they are stored, and not learnt."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.data import Vocabulary
from farzi_hf.summary.forms.base import Part, Table, Tensors, any_ids
from farzi_hf.summary.forms.common_inputs import ID_LEGEND, IdInputs, StoredInputs
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.initialization import INPUT_SEQUENCES
from farzi_hf.summary.reading import check_ids
from farzi_hf.summary.store.columns import list_column

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents


class TokenInputs(IdInputs, StoredInputs):
    """`input_ids (μ, ξ)`: ids of the vocabulary."""

    name = "tokens"
    result_words = "fixed ids"
    labels_by_default = "own"
    start = "input_sequences"
    table_names = ()

    @dataclass(frozen=True)
    class Settings:
        input_sequences: str = setting("made_up", "where the ids come from", table=INPUT_SEQUENCES)

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        axes = ("num_sequences", "sequence_length")
        return {"input_ids": Part(axes, is_learnt=False, is_ids=True, begin=any_ids)}

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        check_ids("input_ids", tensors, self.config.vocab_size, remedy)

    @classmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        return {"inputs": f"ids, {settings.input_sequences.replace('_', ' ')}"}

    # -- training ----------------------------------------------------------------------------------

    def batch(self, tensors: Tensors, rows: Tensor | slice) -> Tensor:
        return tensors["input_ids"][rows].long()

    def looked_up(self, tensors: Tensors) -> Tensor:
        return tensors["input_ids"]

    def column(self, tensors: Tensors) -> Tensor:
        return tensors["input_ids"]

    # -- reading -----------------------------------------------------------------------------------

    columns_comment = ", ids"

    def columns(self, contents: Contents) -> dict[str, pa.Array]:
        return {"input_ids": list_column(contents.tensors["input_ids"]), **contents.text}

    def tables(self, contents: Contents) -> list[Table]:
        """None: `columns` has all."""
        return []

    def torch_code(self) -> str:
        return ""

    def words(self, vocabulary: Vocabulary) -> InputWords:
        config = self.config
        return InputWords(
            positions=vocabulary.entries,
            position=f"Inputs are ids of a vocabulary of {config.vocab_size:,} entries.",
            rows=f"{config.num_sequences} stored rows of ids",
            short=f"fixed ids, {config.num_sequences:,} rows of {config.sequence_length}",
            facts={
                "synthetic sequences (μ)": config.num_sequences,
                "positions per sequence (ξ)": config.sequence_length,
                "inputs": "ids, which were not learnt",
            },
            excerpt="The first rows.",
            first_positions="The first positions of the first sequence:",
            first_row="Synthetic sequence 0",
            numbers=self.numbers_per_position,
            figures=(),
            legend=ID_LEGEND,
        )
