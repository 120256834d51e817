"""Drawn ids for inputs: any number of rows, in which each id is drawn by frequency on its own."""

from __future__ import annotations

from typing import Any

from farzi_hf.data import Vocabulary
from farzi_hf.summary.endless import DrawnRows
from farzi_hf.summary.forms.base import Labels, Tensors
from farzi_hf.summary.forms.common_inputs import FrequencyInputs
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.origins import DRAWN
from farzi_hf.summary.store.tensor_file import SHARES


class DrawnInputs(FrequencyInputs):
    """`frequencies (V,)`: ids are drawn by them, anew in every row."""

    name = "drawn"
    result_words = "drawn ids"
    origin = DRAWN

    @classmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        return {"inputs": "ids, drawn by frequency"}

    def endless(self, tensors: Tensors, labels: Labels, seed: int, length: int) -> DrawnRows:
        return DrawnRows(tensors[SHARES], length, seed)

    def words(self, vocabulary: Vocabulary) -> InputWords:
        return self.words_of_made_rows(
            vocabulary,
            rows=(
                f"{vocabulary.entries} drawn by frequency, fresh in every row, as many rows as a"
                " training asks for"
            ),
            short=f"drawn ids, any number of rows of {self.config.sequence_length}",
            inputs="ids, drawn by frequency",
        )
