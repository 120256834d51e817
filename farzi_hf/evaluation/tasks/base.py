"""What every task answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction

from farzi_hf.data import (
    SequenceCollator,
)
from farzi_hf.evaluation.metrics import (
    bootstrap_interval,
)

Row = dict[str, Any]
Statistics = Sequence[Sequence[Any]]
"""For each seed, what `Task.statistics` gave of each of its students."""
Outputs = Callable[[Dataset, Callable[[Tensor, Mapping[str, Tensor]], Tensor]], list[np.ndarray]]
"""`outputs(rows, statistic)`: `statistic(logits, batch)` of each row, of a trained student."""


class Task(ABC):
    """What a model predicts, and how well it does so.

    Args:
        processing_class: the tokenizer, or the list of item names.
    """

    label_names: ClassVar[Sequence[str]]
    """Columns of a batch that the metrics need, as in `TrainingArguments.label_names`."""
    metric: ClassVar[str]
    """The main metric of a row, by its name there, and by its name in a table or figure."""
    metric_label: ClassVar[str]
    percent: ClassVar[bool]
    """Whether the main metric is a share, which tables show in per cent."""
    ratio_label: ClassVar[str]
    """What stands for quality where one row is compared with another."""
    compared: ClassVar[Sequence[str]]
    """The metrics that figures of a whole run show, one figure each."""
    entries: ClassVar[str]
    """What a vocabulary holds."""

    def __init__(self, processing_class: Any) -> None:
        self.processing_class = processing_class

    # -- training ----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def collator(self) -> SequenceCollator:
        """Makes a batch of rows."""

    @abstractmethod
    def training_rows(self, sequences: Dataset, length: int) -> Dataset:
        """What a model that reads `length` entries is trained on."""

    @abstractmethod
    def evaluation_rows(self, sequences: Dataset, length: int) -> Dataset:
        """What such a model is evaluated on."""

    @abstractmethod
    def preprocess_logits_for_metrics(self, logits: Tensor, labels: Any) -> Tensor:
        """As in `Trainer`: a few numbers in place of logits."""

    @abstractmethod
    def compute_metrics(self, eval_prediction: EvalPrediction) -> dict[str, float]:
        """As in `Trainer`."""

    # -- tables ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def statistics(self, outputs: Outputs, sequences: Dataset, length: int) -> np.ndarray:
        """The numbers of one student from which its metrics follow, (N, …): one row for each of the sequences."""

    @abstractmethod
    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """Of one student."""

    @abstractmethod
    def row(self, method: str, students: Statistics, nbytes: int) -> Row:
        """Metrics of the students of all seeds: mean, spread and intervals."""

    @abstractmethod
    def error(self, statistics: np.ndarray) -> float:
        """What early stopping minimises."""

    @abstractmethod
    def counted(self, train: Dataset, validation: Dataset, test: Dataset, vocab_size: int) -> dict[str, np.ndarray]:
        """The statistics of models that are counted and not trained: by name, on the test sequences."""

    def reference_lines(self, splits: Mapping[str, Dataset], vocab_size: int) -> dict[str, float]:
        """Lines of the figure of a distillation: the main metric, on the validation split, of what is counted and not trained."""
        return {}

    @abstractmethod
    def headline(self, row: Row) -> str:
        """The row's main figure."""

    @abstractmethod
    def readable(self, row: Row) -> dict[str, str]:
        """A row as a table shows it."""

    @abstractmethod
    def paired(self, ours: Statistics, theirs: Statistics) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
        """Two rows side by side, for one interval of how they compare.

        Args:
            ours, theirs: the students of two rows, of the same seeds.

        Returns:
            An array (N, …) with what all students achieve on each test sequence; and a function that computes, from such an
            array, our quality divided by theirs. It is 1 where both are equally good.
        """

    def share(self, ours: Statistics, theirs: Statistics) -> float:
        """Our quality divided by theirs."""
        rows, quotient = self.paired(ours, theirs)
        return quotient(rows)

    def ratio(self, ours: Statistics, theirs: Statistics) -> tuple[float, tuple[float, float]]:
        """The share, and its paired bootstrap interval: test sequences are resampled."""
        rows, quotient = self.paired(ours, theirs)
        return quotient(rows), bootstrap_interval(rows, quotient)


def count_cells(row: Row) -> dict[str, str]:
    """The last columns of every table."""
    return {
        "bytes": f"{row['bytes']:,}" if "bytes" in row else "",
        "steps": f"{row['steps']:,}" if "steps" in row else "",
        "students": str(row.get("students", "")),
    }
