"""Drawn ids for inputs: any number of rows, in which each id is drawn by frequency on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from farzi_hf.data import Vocabulary
from farzi_hf.summary.endless import DrawnRows
from farzi_hf.summary.forms.base import Labels, Part, Tensors, equal_shares
from farzi_hf.summary.forms.common_inputs import ID_LEGEND, EndlessInputs
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.initialization import Shares
from farzi_hf.summary.origins import DRAWN
from farzi_hf.summary.reading import check_shares
from farzi_hf.summary.store.tensor_file import SHARES

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig


class DrawnInputs(EndlessInputs):
    """`frequencies (V,)`: ids are drawn by them, anew in every row."""

    name = "drawn"
    row_words = "drawn ids"
    labels_by_default = "teacher"
    start = Shares()
    origin = DRAWN

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        return {SHARES: Part(("vocab_size",), is_learnt=False, is_ids=False, begin=equal_shares)}

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        check_shares(SHARES, tensors, remedy)

    @classmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        return {"inputs": "ids, drawn by frequency"}

    def endless(self, tensors: Tensors, labels: Labels, seed: int, length: int) -> DrawnRows:
        return DrawnRows(tensors[SHARES], length, seed)

    def frequencies(self, tensors: Tensors) -> Tensor:
        return tensors[SHARES]

    def words(self, vocabulary: Vocabulary) -> InputWords:
        return InputWords(
            positions=vocabulary.entries,
            position=f"Inputs are ids of a vocabulary of {self.config.vocab_size:,} entries.",
            rows=(
                f"{vocabulary.entries} drawn by frequency, fresh in every row, as many rows as a"
                " training asks for"
            ),
            short=f"drawn ids, any number of rows of {self.config.sequence_length}",
            facts={
                "rows shown": self.config.num_sequences,
                "positions per sequence (ξ)": self.config.sequence_length,
                "inputs": "ids, drawn by frequency",
            },
            excerpt="The first rows.",
            first_positions="The first positions of the first sequence:",
            first_row="First row that is made",
            numbers=self.numbers_per_position,
            figures=(),
            legend=ID_LEGEND,
        )
