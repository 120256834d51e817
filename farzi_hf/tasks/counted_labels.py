"""What a teacher should predict, by counts beside the next token itself.

A small network learns slowly what an n-gram model counts in seconds, and where data are few it
learns rows by heart. So a share α of what a teacher should predict after a context h is what an
n-gram model predicts there, and the rest is the token that came,

    q(v) = (1 − α) [v = w] + α p(v | h).

A model that has counted a row knows it by heart, too, and would only repeat its tokens. So the rows
are dealt into parts, and what is predicted in a part is counted on all others.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from datasets import Dataset

from farzi_hf.data.sequences import flatten_sequences
from farzi_hf.tasks.counted_text import HIGHEST, KneserNey

_MOST_PARTS = 5
"""Parts of the rows of a small text."""
_COUNTED = 5_000_000
"""Tokens that are counted in all, where that is possible: two parts count each token once."""


class CountedLabels(Protocol):
    """Predicts entries of rows by counts."""

    def __call__(self, rows: Sequence[Sequence[int]], predicted: np.ndarray) -> np.ndarray:
        """(n, V) float32: the distributions of the n entries that are predicted.

        Args:
            rows: b of those that were counted.
            predicted: (b, L), which entries these are. No row has more than L, and what is beyond
                its end is not predicted.
        """


class NGramLabels:
    """Labels by Kneser-Ney models, of which none has counted the rows that it labels.

    It counts when it is first asked.

    Args:
        rows: sequences in `input_ids`, as a teacher reads them.
        vocab_size: V.
    """

    def __init__(self, rows: Dataset, vocab_size: int) -> None:
        self._rows = rows.select_columns(["input_ids"])
        self._vocab_size = vocab_size

    @cached_property
    def models(self) -> Sequence[KneserNey]:
        """The model of each part, counted on all other parts."""
        _, lengths = flatten_sequences(self._rows)
        parts = min(max(2, 1 + _COUNTED // max(1, int(lengths.sum()))), _MOST_PARTS)
        part_of_row = np.array([_part_of(row, parts) for row in self._rows["input_ids"]])
        models = []
        for part in range(parts):
            others = np.flatnonzero(part_of_row != part)
            # Rows that are all alike are in one part.
            sequences = self._rows.select(others) if len(others) else self._rows
            models.append(KneserNey.longest(sequences, self._vocab_size, HIGHEST))
        return models

    def __call__(self, rows: Sequence[Sequence[int]], predicted: np.ndarray) -> np.ndarray:
        counts = predicted.sum(1)
        labels = np.empty((counts.sum(), self._vocab_size), dtype=np.float32)
        part_of_row = np.array([_part_of(row, len(self.models)) for row in rows])
        for part in np.unique(part_of_row):
            is_of_part = part_of_row == part
            own = [np.asarray(rows[number]) for number in np.flatnonzero(is_of_part)]
            lengths = np.array([len(row) for row in own])
            is_entry = np.arange(predicted.shape[1]) < lengths[:, None]
            model = self.models[part]
            states = model.states_before(np.concatenate(own), lengths)
            states = states[predicted[is_of_part][is_entry]]
            labels[np.repeat(is_of_part, counts)] = model.distribution_after(states, np.float32)
        return labels


def _part_of(row: Sequence[int], parts: int) -> int:
    """The part of a row, by its content: a row that stands there twice is in one part."""
    return zlib.crc32(np.asarray(row, dtype=np.int64).tobytes()) % parts
