"""Models that only count: what those of text and those of items have in common.

A counted model takes no training steps: it is made of the training rows in seconds, its few
settings are chosen on the validation rows, and it is saved as integers. A summary has to train
students that are better.
"""

from __future__ import annotations

import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset

_INTEGERS = (np.uint8, np.uint16, np.uint32, np.uint64)
_FREE = 2**25
"""The integers that a file may hold, however small it is."""
_RATIO = 64
"""The integers more that it may hold for each byte."""


@dataclass(frozen=True)
class CountedRow:
    """A counted model as a row of a table.

    Attributes:
        method: the name of the row.
        statistics: `Task.statistics` of the model on the test sequences.
        seconds: of counting, and of choosing settings on the validation part.
        nbytes: what one must keep of the model; None where nobody would keep more than the data.
    """

    method: str
    statistics: np.ndarray
    seconds: float
    nbytes: int | None = None


class CountedModel(ABC):
    """A model that only counts, and that can be saved.

    Attributes:
        vocab_size: V, the number of entries.
        seconds: that counting took, with the choice of settings; 0 for one that was loaded.
        error: on the validation part, by which settings are chosen: the less, the better. None for
            a model that was not measured.
    """

    kind: ClassVar[str]
    """The name of the class in the config of a saved model."""
    vocab_size: int
    seconds: float = 0.0
    error: float | None = None

    @property
    @abstractmethod
    def name(self) -> str:
        """The name of its rows in tables."""

    @property
    @abstractmethod
    def choice(self) -> str:
        """What was chosen on the validation part, in words."""

    @classmethod
    @abstractmethod
    def candidates(
        cls, sequences: Dataset, vocab_size: int, validation: Dataset, **settings: Any
    ) -> Iterator[CountedModel]:
        """The models among which the validation part chooses, each with its `error`."""

    @classmethod
    def fit(
        cls, sequences: Dataset, vocab_size: int, validation: Dataset, **settings: Any
    ) -> CountedModel:
        """Counts ``sequences``, and takes the candidate with the least error on ``validation``.

        Args:
            sequences, validation: rows of ids in ``input_ids``.
            settings: of `candidates`.

        Raises:
            ValueError: rows hold ids outside the vocabulary, or nothing to predict.
        """
        begin = time.perf_counter()
        models = cls.candidates(sequences, vocab_size, validation, **settings)
        best = next(models)
        for model in models:  # one by one, because each may take a gigabyte
            if model.error < best.error:
                best = model
        best.seconds = time.perf_counter() - begin
        return best

    @abstractmethod
    def statistics(self, sequences: Dataset) -> np.ndarray:
        """`Task.statistics` of this model, in the place of a student."""

    # -- what is saved -----------------------------------------------------------------------------

    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What is saved beside `arrays`: plain numbers and texts."""

    @abstractmethod
    def arrays(self) -> dict[str, np.ndarray]:
        """The integers ≥ 0 that are saved, by name; each has one axis."""

    @classmethod
    @abstractmethod
    def sizes(cls, settings: Mapping[str, Any]) -> dict[str, int]:
        """How many integers each of `arrays` has. Raises ValueError unless these are settings of
        such a model.
        """

    @classmethod
    @abstractmethod
    def restored(
        cls, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> CountedModel:
        """The model that has these `settings` and `arrays`. Raises ValueError where they contradict
        each other: others may have written them.
        """

    @cached_property
    def nbytes(self) -> int:
        """Bytes that one must keep: of `arrays`, coded."""
        return sum(len(coded(array)) for array in self.arrays().values())


def check_room(count: int, nbytes: int) -> None:
    """Raises ValueError if a file of `nbytes` bytes claims to hold far more than so many integers
    of a text: reading them would fill the memory.
    """
    if count > _FREE + _RATIO * nbytes:
        raise ValueError(f"{nbytes:,} bytes cannot hold {count:,} counts; fetch the file again")


def coded(array: np.ndarray) -> bytes:
    """Integers ≥ 0 (n,) in the fewest whole bytes each, all first bytes before all second ones, by
    zlib. One byte before them says how many bytes an integer has.
    """
    largest = int(array.max(initial=0))
    kind = next(kind for kind in _INTEGERS if largest <= np.iinfo(kind).max)
    size = np.dtype(kind).itemsize  # said, because no array of 0 integers tells it
    planes = array.astype(kind).view(np.uint8).reshape(len(array), size).T
    return bytes([size]) + zlib.compress(planes.tobytes(), 6)


def decoded(content: bytes, count: int, name: str) -> np.ndarray:
    """The inverse of `coded`: `count` integers, int64.

    Raises:
        ValueError: the content is damaged, or has another number of integers.
    """
    size = content[0] if content else 0
    if size not in {kind().itemsize for kind in _INTEGERS}:
        raise ValueError(f"{name} is not a list of counts; fetch the file again")
    coder = zlib.decompressobj()
    try:
        planes = coder.decompress(content[1:], count * size + 1)
    except zlib.error as error:
        raise ValueError(f"{name} cannot be decoded ({error}); fetch the file again") from None
    if len(planes) != count * size or not coder.eof or coder.unused_data:
        raise ValueError(
            f"{name} does not hold the {count:,} counts that config.json says; fetch it again"
        )
    integers = np.frombuffer(planes, np.uint8).reshape(size, count).T
    counts = np.ascontiguousarray(integers).view(f"<u{size}").reshape(count)
    if size == 8 and count and counts.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds counts that are not counts; fetch the file again")
    return counts.astype(np.int64)
