"""Written ids for inputs: any number of rows that the carried teacher writes."""

from __future__ import annotations

from typing import Any

from farzi_hf.data import Vocabulary
from farzi_hf.summary.endless import WrittenRows
from farzi_hf.summary.forms.base import Labels, Tensors
from farzi_hf.summary.forms.common_inputs import FrequencyInputs
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.origins import WRITTEN
from farzi_hf.summary.store.tensor_file import SHARES


class WrittenInputs(FrequencyInputs):
    """`frequencies (V,)`: an id begins a row by them, and the teacher writes what follows. Ids
    without a frequency are never written.
    """

    name = "written"
    result_words = "written ids"
    origin = WRITTEN

    @classmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        return {"inputs": "ids, which the teacher writes"}

    def endless(self, tensors: Tensors, labels: Labels, seed: int, length: int) -> WrittenRows:
        return WrittenRows(labels.model, tensors[SHARES], length, seed)

    def words(self, vocabulary: Vocabulary) -> InputWords:
        return self.words_of_made_rows(
            vocabulary,
            rows="rows that the teacher writes, as many as a training asks for",
            short=f"written ids, any number of rows of {self.config.sequence_length}",
            inputs="ids, which the teacher writes",
        )
