"""The base class of the tasks, and what both compute alike: mean and spread of students, bootstrap
intervals.
"""

from __future__ import annotations

import math
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, ClassVar

import evaluate
import numpy as np
from datasets import Dataset, DatasetDict
from torch import Tensor
from transformers import EvalPrediction, PreTrainedConfig

from farzi_hf.data import SequenceCollator, sequences_fingerprint
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.tasks.counted import CountedModel, CountedRow
from farzi_hf.tasks.counted_labels import CountedLabels

ResultRow = dict[str, Any]
"""A row of a table of results: names and values."""
Statistics = Sequence[Sequence[Any]]
"""For each seed a list with the `Task.statistics` of each student."""
Paired = tuple[np.ndarray, Callable[[np.ndarray], float]]
"""Results of two rows on each test sequence, (N, …), and what computes the quotient of their
qualities from them.
"""
Outputs = Callable[[Dataset, Callable[[Tensor, Mapping[str, Tensor]], Tensor]], list[np.ndarray]]
"""`outputs(rows, statistic)` runs a trained student and returns `statistic(logits, batch)` for each
row.
"""

_MOST_COUNTED = 5_000_000
"""Entries of the data, up to which n-grams are counted for labels: each takes a microsecond."""


class Task(ABC):
    """A prediction task and its metrics.

    Args:
        processing_class: the tokenizer, or the list of item names.
    """

    label_names: ClassVar[Sequence[str]]
    """Columns of a batch that the metrics need, as in `TrainingArguments.label_names`."""
    metric: ClassVar[str]
    """The name of the main metric in a row."""
    metric_label: ClassVar[str]
    """The name of the main metric in a table or figure."""
    percent: ClassVar[bool]
    """Whether the main metric is a share. Tables show shares in per cent."""
    ranked: ClassVar[bool] = False
    """Whether the metrics depend on the order of the predictions alone."""
    ratio_label: ClassVar[str]
    """The quotient that measures quality when two rows are compared, in words."""
    figures: ClassVar[str]
    """What the main figures mean, for a reader of the terminal."""
    unit_of_loss: ClassVar[str]
    """In what `validation_loss` is measured."""
    compared: ClassVar[Sequence[str]]
    """The metrics that figures of a whole run show, one figure each: of recommenders, whose runs
    have several splits.
    """
    module: ClassVar[type[evaluate.Metric]]
    """Computes the metrics from `statistics`."""
    counts: ClassVar[type[CountedModel]]
    """The strongest model that only counts."""
    counted_share: ClassVar[float] = 0.0
    """Of what a model on real data should predict, the share that counts predict, where that helps:
    α of `farzi_hf.tasks.counted_labels`.
    """

    def __init__(self, processing_class: Any) -> None:
        self.processing_class = processing_class
        self._counted: dict[Any, list[CountedRow]] = {}

    # -- data sets that a config names -------------------------------------------------------------

    learner: ClassVar[Mapping[str, Any]]
    """The default learner, as arguments of `AutoConfig.for_model`."""
    learners: ClassVar[Sequence[Mapping[str, Any]]]
    """Learners among which an automatic choice is made, as such arguments: cheapest first."""
    data_settings: ClassVar[Sequence[str]]
    """The settings of `load`."""
    more_settings: ClassVar[Sequence[str]] = ()
    """Other settings of a run that are for this task alone."""
    splits_differ: bool
    """Whether each seed has its own split of the data. Otherwise all seeds share the data set's own
    splits. An object knows it of its data, a class of most data of its kind.
    """
    split_label: str
    """The splits of the loaded data, in words."""

    @classmethod
    @abstractmethod
    def load(
        cls, dataset: str, data_dir: str | None, **settings: Any
    ) -> tuple[Task, Callable[[int], DatasetDict], str]:
        """The task of a data set; a function that gives train, validation and test of a seed, as
        sequences in `input_ids`; and what was read.
        """

    @classmethod
    def tried_in(cls, minutes: float, fits: Callable[..., bool]) -> Sequence[Mapping[str, Any]]:
        """The learners that a search of so many minutes tries.

        Args:
            minutes: of a CPU; a GPU does more in each.
            fits: whether an architecture has room in the summary, with as many bits for each of its
                numbers as a second argument says; by default with as few as still pay.
        """
        return cls.learners

    @abstractmethod
    def learner_config(self, learner: Mapping[str, Any], length: int) -> PreTrainedConfig:
        """The config of an architecture that has the task's vocabulary and reads
        `length` entries.
        """

    # -- training ----------------------------------------------------------------------------------

    preprocess_logits_for_metrics: ClassVar[Callable[[Tensor, Any], Tensor]]
    """As in `Trainer`: a few numbers in place of logits."""
    compute_metrics: ClassVar[Callable[[EvalPrediction], dict[str, float]]]
    """As in `Trainer`."""
    collator: SequenceCollator
    """Makes a batch from rows."""

    @abstractmethod
    def training_rows(self, sequences: Dataset, length: int) -> Dataset:
        """The rows for training a model that reads `length` entries."""

    @abstractmethod
    def evaluation_rows(self, sequences: Dataset, length: int) -> Dataset:
        """The rows for evaluating such a model."""

    def share_of_counts(self, entries: float) -> float:
        """`counted_share` for data of so many entries; 0 if they would take long to count."""
        return self.counted_share if entries <= _MOST_COUNTED else 0.0

    def counted_labels(self, rows: Dataset, vocab_size: int) -> CountedLabels:
        """What predicts the entries of these rows by counts, for a teacher to learn. Raises
        ValueError if the task has nothing of the kind.

        Args:
            rows: whole ones, that a teacher reads.
            vocab_size: V.
        """
        raise ValueError(
            f"teacher_counted_share: {type(self).__name__} has no n-grams that could label rows;"
            " leave it out"
        )

    # -- tables ------------------------------------------------------------------------------------

    @abstractmethod
    def statistics(self, outputs: Outputs, sequences: Dataset, length: int) -> np.ndarray:
        """The numbers from which one student's metrics are computed, (N, …): one row for each
        sequence.
        """

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        """The metrics of one student."""
        return _module(self.module).compute(predictions=statistics)

    def row(self, method: str, students: Statistics, nbytes: int) -> ResultRow:
        """Metrics of the students of all seeds: mean, spread and intervals."""
        results = [self.metrics(np.asarray(student)) for seed in students for student in seed]
        metrics = mean_and_spread(results) if len(results) > 1 else results[0]
        intervals = {
            f"{name}_interval": list(edges) for name, edges in self.intervals(students).items()
        }
        return {"method": method, **metrics, **intervals, "bytes": nbytes}

    @abstractmethod
    def intervals(self, students: Statistics) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals of some metrics, of the mean over all students."""

    def error(self, statistics: np.ndarray) -> float:
        """The metric, with the sign that makes less better; infinite for a student that has
        diverged.
        """
        value = self.metrics(statistics)[self.metric]
        if math.isnan(value):
            return math.inf
        # The larger a share is, the better.
        return -value if self.percent else value

    @abstractmethod
    def counting(
        self, train: Dataset, validation: Dataset, vocab_size: int
    ) -> Iterator[tuple[str, Callable[[Dataset], np.ndarray], int | None]]:
        """The models that only count, weakest first, as they get ready: the name of the row, what
        gives `statistics` of sequences, and the bytes that one must keep, None for those of the
        data.
        """

    def count(
        self,
        train: Dataset,
        validation: Dataset,
        test: Dataset,
        vocab_size: int,
        also: Sequence[Dataset] = (),
    ) -> list[CountedRow]:
        """The rows of models that only count, measured on the test sequences.

        What was measured once in a process is not counted again.

        Args:
            also: further test sequences that are measured now, for a later call: a counted model is
                too large to be kept.
        """
        of_model = (*map(sequences_fingerprint, (train, validation)), vocab_size)
        tests = {(*of_model, sequences_fingerprint(part)): part for part in (test, *also)}
        missing = {key: part for key, part in tests.items() if key not in self._counted}
        if missing:
            self._counted |= self._measured(missing, train, validation, vocab_size)
        return self._counted[(*of_model, sequences_fingerprint(test))]

    def _measured(
        self, tests: Mapping[Any, Dataset], train: Dataset, validation: Dataset, vocab_size: int
    ) -> dict[Any, list[CountedRow]]:
        """The rows of each of the test sets."""
        rows: dict[Any, list[CountedRow]] = {key: [] for key in tests}
        begin = time.perf_counter()
        for method, statistics, nbytes in self.counting(train, validation, vocab_size):
            seconds = round(time.perf_counter() - begin, 2)
            for key, test in tests.items():
                rows[key].append(CountedRow(method, statistics(test), seconds, nbytes))
            begin = time.perf_counter()
        return rows

    def counted(
        self, train: Dataset, validation: Dataset, test: Dataset, vocab_size: int
    ) -> dict[str, np.ndarray]:
        """The statistics of count models on the test sequences, by name. Count models are not
        trained.
        """
        rows = self.count(train, validation, test, vocab_size)
        return {row.method: row.statistics for row in rows}

    @abstractmethod
    def mixed(
        self,
        outputs: Outputs,
        train: Dataset,
        validation: Dataset,
        test: Dataset,
        vocab_size: int,
        length: int,
    ) -> tuple[str, np.ndarray] | None:
        """The row of a network mixed with the best counted model: its name, and the statistics on
        the test sequences. None where scores cannot be mixed.

        Args:
            outputs: of the network.
            length: as for `statistics`.
        """

    @abstractmethod
    def nats(self, statistics: np.ndarray) -> float | None:
        """The loss that trainings minimise, of these statistics, in nats a token; None where
        the metrics depend on ranks alone, so that no loss can be told from them.
        """

    @abstractmethod
    def headline(self, row: ResultRow) -> str:
        """The row's main figure, as text."""

    @abstractmethod
    def readable(self, row: ResultRow) -> dict[str, str]:
        """A row as a table shows it."""

    @abstractmethod
    def paired(self, ours: Statistics, theirs: Statistics, metric: str) -> Paired:
        """The results of the students of two rows on each test sequence, (N, …), and what computes
        our quality divided by theirs from them. Both rows have the same seeds. The quotient is 1 if
        both are equally good.
        """

    def share(self, ours: Statistics, theirs: Statistics) -> float:
        """Our quality divided by theirs."""
        rows, quotient = self.paired(ours, theirs, self.metric)
        return quotient(rows)

    def ratio(
        self, ours: Statistics, theirs: Statistics, metric: str | None = None
    ) -> tuple[float, tuple[float, float]]:
        """The share, and its paired bootstrap interval. The bootstrap resamples test sequences.

        A resample without a hit of either says nothing: it counts as 0 for the lower end and as
        infinite for the upper end.

        Args:
            metric: that measures the quality; by default the task's own.
        """
        rows, quotient = self.paired(ours, theirs, metric or self.metric)
        share = quotient(rows)
        if math.isnan(share):
            return share, (share, share)
        return share, bootstrap_interval(rows, quotient, unknown=(0.0, math.inf))


def shown_name(row: ResultRow) -> str:
    """The first column of every table."""
    return f"{row['method']} (still learning)" if row.get("still_learning") else row["method"]


def count_cells(row: ResultRow) -> dict[str, str]:
    """The last columns of every table."""
    return {
        "bytes": f"{row['bytes']:,}" if "bytes" in row else "",
        "seconds": f"{row['seconds']:,.1f}" if "seconds" in row else "",
        "steps": f"{row['steps']:,}" if "steps" in row else "",
        "students": str(row.get("students", "")),
    }


@cache
def _module(kind: type[evaluate.Metric]) -> evaluate.Metric:
    # It makes a folder, in which it writes nothing then. The cache of `evaluate` may be read-only.
    with tempfile.TemporaryDirectory() as folder:
        return kind(keep_in_memory=True, cache_dir=folder)


# -- statistics of students ------------------------------------------------------------------------


def mean_and_spread(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the results, and its standard deviation as `…_std`. With a single
    result, the deviation is 0.
    """
    row: dict[str, float] = {}
    for name in results[0]:
        values = [result[name] for result in results]
        row[name] = float(np.mean(values))
        # A student that diverged has infinite perplexity; the spread is then NaN.
        with np.errstate(invalid="ignore"):
            row[f"{name}_std"] = float(np.std(values, ddof=min(1, len(values) - 1)))
    return row


def bootstrap_interval(
    values: np.ndarray,
    statistic: Callable[[np.ndarray], float] = np.mean,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    unknown: tuple[float, float] = (math.nan, math.nan),
) -> tuple[float, float]:
    """Percentile bootstrap interval (Efron 1979) of a statistic over rows.

    Args:
        values: (N,) or (N, k): one row per independent unit (a user, a sentence).
        statistic: maps such an array to a number.
        confidence: the share, between 0 and 1, of the resampled statistics that lie inside the
            interval.
        unknown: what a NaN of the statistic counts as for the lower end, and for the upper one.
    """
    values = np.asarray(values)
    if len(values) == 0:
        raise ValueError("values is empty: an interval needs at least one row.")
    generator = stream(seed, Purpose.BOOTSTRAP)
    resampled = np.array(
        [
            statistic(values[generator.integers(len(values), size=len(values))])
            for _ in range(resamples)
        ]
    )
    low, high = (np.where(np.isnan(resampled), each, resampled) for each in unknown)
    lower_tail = (1 - confidence) / 2
    return _quantile(low, lower_tail), _quantile(high, (1 + confidence) / 2)


def _quantile(values: np.ndarray, share: float) -> float:
    """The value below which this share of the values is."""
    # Between two infinite numbers there is nothing.
    method = "linear" if np.isfinite(values).all() else "inverted_cdf"
    return float(np.quantile(values, share, method=method))


def check_task(task: Any) -> None:
    """Raises ValueError if an argument is no task."""
    if not isinstance(task, Task):
        raise ValueError(
            f"task={task!r:.200} is none; give LanguageModeling(tokenizer) or"
            " Recommendation(vocabulary)"
        )
