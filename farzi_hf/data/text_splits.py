"""Train, validation and test of rows of text: those that the source has, and what is missing by a
hash of the rows.

Equal rows are in one split, whatever the order of the rows is, and more data move no row from one
split to another. Rows are equal if they have the same words.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from farzi_hf.data.sequences import SPLITS

logger = logging.getLogger(__name__)

_SHARE = 0.05  # of the different rows, for validation and for test
_FEW_ROWS = 100
_LONG_ROW = 2000  # characters: more than a paragraph has


@dataclass(frozen=True)
class TextSplits:
    """Rows of text by split."""

    texts: dict[str, list[str]]
    """The rows of train, validation and test."""
    origin: str
    """How the splits came about, in words."""
    duplicates: int
    """The rows that were left out of validation and test: they are there twice, or in train too."""


@dataclass(frozen=True)
class _HashedTexts:
    """Rows of one split."""

    texts: np.ndarray
    """(n,), objects."""
    hashes: np.ndarray
    """(n,), one for each row; equal rows have equal ones."""

    @classmethod
    def of(cls, texts: Sequence[str]) -> _HashedTexts:
        words = (" ".join(text.split()).encode() for text in texts)
        hashes = b"".join(hashlib.blake2b(row, digest_size=8).digest() for row in words)
        return cls(np.array(texts, dtype=object), np.frombuffer(hashes, np.uint64))

    def where(self, chosen: np.ndarray) -> _HashedTexts:
        """The rows that a mask or places choose."""
        return _HashedTexts(self.texts[chosen], self.hashes[chosen])

    def first_of_each(self) -> np.ndarray:
        """The places of the rows that are different from all before them."""
        _, places = np.unique(self.hashes, return_index=True)
        return np.sort(places)


def split_texts(parts: Mapping[str, Sequence[str]], source: Any) -> TextSplits:
    """Train, validation and test. What is missing is taken from train: 5 % of the different rows
    each, by a hash. Validation and test hold each row once, and none of train.

    Args:
        parts: the rows by split; train at least.

    Raises:
        ValueError: there are too few different rows, or a split has no row of its own.
    """
    rows = {part: _HashedTexts.of(texts) for part, texts in parts.items()}
    given_train = rows["train"]
    missing = [part for part in ("test", "validation") if part not in parts]
    different = np.unique(given_train.hashes)
    _check_number(len(different), len(missing), given_train.texts, source)
    rows.update(_taken_from(given_train, different, missing))
    duplicates = 0
    for part in SPLITS[1:]:
        kept = rows[part].first_of_each()
        if part not in missing:
            kept = kept[~np.isin(rows[part].hashes[kept], given_train.hashes)]
        if len(kept) == 0:
            raise ValueError(
                f"{source}: its split {part} has no row that is not in train too: give rows of"
                " their own"
            )
        duplicates += len(rows[part].texts) - len(kept)
        rows[part] = rows[part].where(kept)
    texts = {part: rows[part].texts.tolist() for part in SPLITS}
    return TextSplits(texts, _origin(missing), duplicates)


def _check_number(different: int, missing: int, texts: Sequence[str], source: Any) -> None:
    """Raises ValueError if a split would be empty, and warns if it has few rows."""
    if different <= missing:
        remedy = "give at least 3, or files train.txt, valid.txt and test.txt"
        longest = max(map(len, texts), default=0)
        if longest >= _LONG_ROW:
            remedy += (
                f"; the longest has {longest:,} characters, so break it into lines (of a table:"
                " rows), a sentence or a paragraph each"
            )
        raise ValueError(
            f"{source} holds {different} different rows of text that are not blank: {remedy}"
        )
    if different < _FEW_ROWS:
        few = "%s holds only %d different rows of text: figures on its held-out rows mean little"
        logger.warning(few, source, different)


def _taken_from(
    train: _HashedTexts, different: np.ndarray, missing: Sequence[str]
) -> dict[str, _HashedTexts]:
    """The splits that are missing, and what then remains of train.

    Args:
        different: the hashes of the rows in increasing order. This order is random, and the same
            in every data set.
    """
    ends = np.searchsorted(different, [int(_SHARE * 2**64), int(2 * _SHARE * 2**64)])
    taken = {}
    start = 0
    for place, part in enumerate(missing):
        # Of few rows, one for each split.
        last_possible = len(different) - len(missing) + place
        end = np.clip(ends[place], start + 1, last_possible)
        is_taken = np.isin(train.hashes, different[start:end])
        taken[part] = train.where(is_taken)
        train = train.where(~is_taken)
        start = end
    return {**taken, "train": train}


def _origin(missing: Sequence[str]) -> str:
    if len(missing) == 2:
        return "90/5/5 split by hash"
    return ", ".join(["its own splits", *(f"{part} split off by hash" for part in missing)])
