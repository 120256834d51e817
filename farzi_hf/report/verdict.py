"""The answer first: is a summary worth it, for what, and what is the strongest simple
alternative?
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from datasets import Dataset, DatasetDict

from farzi_hf.distillation import FarziTrainer
from farzi_hf.report.comparison import Comparison, Measured, with_ids
from farzi_hf.report.rendering import distillation_seconds
from farzi_hf.report.rows import BASELINES, on_summary, teacher
from farzi_hf.tasks import Row, Task

GOOD, POOR = 0.97, 0.9
"""Shares of the quality of full data from which a summary counts as equal, and below which it
counts as worse.
"""
FASTER = 3.0
"""How many times as fast a student has to be, where a summary is larger than its data."""
CLEAR = 1.25
"""How many times as fast or as small a summary has to be for that to be a reason."""
FULL, LONG = "full data", "full data, long"


@dataclass(frozen=True)
class Verdict:
    """What a comparison says in plain words.

    Attributes:
        worth: whether the summary is worth it.
        summary: the sentence with the answer.
        lines: the figures behind it, a sentence each.
        facts: the same figures by name: `share` of the quality of full data with `share_interval`,
            `bytes`, `data_bytes`, `student_seconds`, `full_data_seconds`, `distillation_seconds`,
            and `break_even`, the number of trainings from which on a summary saves time (None:
            never). Of the best model that only counts, `counted`, its name: our share of its
            quality, `counted_share` with `counted_share_interval`, and `counted_seconds`.
    """

    worth: bool
    summary: str
    lines: tuple[str, ...]
    facts: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"- {line}" for line in self.lines)])

    @classmethod
    def of(
        cls, c: Comparison, measured: Sequence[Measured], making: float | None = None
    ) -> Verdict:
        """The verdict on the first row.

        Args:
            measured: the summary's row first, "full data, long" or at least "full data" among the
                others.
            making: seconds that it took to make the summary; None where nobody knows.
        """
        task, ours, rows = c.task, measured[0], {part.method: part for part in measured}
        of_full_data = [rows[name] for name in (LONG, FULL) if name in rows]
        full = min(
            of_full_data, key=lambda part: task.error(part.students[0])
        )  # the better of them
        share, edges = task.ratio([ours.students], [full.students])
        of_counts = [part for part in measured if part.steps is None and part.method != "teacher"]
        counted = min(of_counts, key=lambda part: task.error(part.students[0]), default=None)
        beside_counting = None if counted is None else Counting.beside(task, ours, counted)
        saved = full.seconds - ours.seconds
        even = math.ceil(making / saved) if making is not None and saved > 0 else None
        facts = {
            "share": share,
            "share_interval": list(edges),
            "bytes": ours.nbytes,
            "data_bytes": full.nbytes,
            "student_seconds": ours.seconds,
            "full_data_seconds": full.seconds,
            "distillation_seconds": making,
            "break_even": even,
            **({} if beside_counting is None else beside_counting.facts),
        }
        faster, smaller = full.seconds / max(ours.seconds, 0.01), full.nbytes / ours.nbytes
        against = []
        if not POOR <= share < math.inf:  # a NaN too; infinite where full data have no hit
            none = (
                share == math.inf
                and "full data get nothing right on the test part, which is too small"
            )
            against.append(
                none or f"its student has {100 * share:.0f} % of the quality of full data"
            )
        if beside_counting is not None and not beside_counting.is_beaten:
            against.append(beside_counting.reason(c))
        if smaller <= 1 and faster < FASTER:
            against.append(
                f"it is {1 / smaller:,.1f} times as large as the data, and training on it saves"
                " little"
            )
        gains = []
        if faster >= CLEAR:
            gains.append(
                f"trainings that take {_seconds(ours.seconds)} in place of {_seconds(full.seconds)}"
            )
        if smaller >= CLEAR:
            gains.append(f"a file of {_size(ours.nbytes)} in place of {_size(full.nbytes)}")
        if not against and not gains:
            against = ["training on all data takes hardly longer and needs hardly more bytes"]
        words = "the quality" if share >= GOOD else f"{100 * share:.0f} % of the quality"
        answer = f"Worth it for {' and '.join(gains)}, with {words} of full data."
        if against:
            answer = f"Not worth it, because {'; and '.join(against)}."
        return cls(not against, answer, tuple(_lines(c, measured, full, counted, facts)), facts)


def _lines(
    c: Comparison,
    measured: Sequence[Measured],
    full: Measured,
    counted: Measured | None,
    facts: dict,
) -> list[str]:
    ours, rows = measured[0], {part.method: part for part in measured}

    def figure(part: Measured) -> str:
        return c.task.headline(c.row(part))

    low, high = (100 * edge for edge in facts["share_interval"])
    words = {LONG: "all data for as long as helps", FULL: "all data for as many steps"}
    others = "; ".join(f"{words[name]}: {figure(rows[name])}" for name in words if name in rows)
    of_which = " of the better one" if {FULL, LONG} <= set(rows) else ""
    lines = [
        (
            f"quality: {figure(ours)} on the test part; {others}. "
            f"That is {100 * facts['share']:.0f} %{of_which} (95 % interval {low:.0f}–{high:.0f} %)"
        ),
        f"time: {_seconds(ours.seconds)} a training, {_seconds(full.seconds)} on all data",
        f"size: {_size(ours.nbytes)}, the data {_size(full.nbytes)}",
    ]
    if facts["distillation_seconds"] is not None:
        even = facts["break_even"]
        pays = (
            f"pays from training {even:,} on"
            if even is not None
            else "never pays by the time of trainings alone"
        )
        lines.append(f"making it took {_seconds(facts['distillation_seconds'])}, which {pays}")
    if counted is not None:
        took = "" if counted.seconds is None else f" after {_seconds(counted.seconds)} of counting"
        low, high = (100 * edge for edge in facts["counted_share_interval"])
        lines.append(
            f"the strongest model that only counts, {counted.method}: {figure(counted)}{took}. Our"
            f" student has {100 * facts['counted_share']:.0f} % of its quality (95 % interval"
            f" {low:.0f}–{high:.0f} %)"
        )
    if (carried := rows.get("teacher")) is not None and c.farzi.carried is not None:
        advice = "Who wants one such model and no training takes it: farzi export --teacher"
        lines.append(f"the teacher that it carries: {figure(carried)}. {advice}")
    return lines


def _seconds(seconds: float) -> str:
    return (
        f"{seconds:.1f} s"
        if seconds < 10
        else f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.1f} min"
    )


def _size(nbytes: int) -> str:
    if nbytes < 10_000:
        return f"{nbytes:,} bytes"
    return f"{nbytes / 1000:,.1f} kB" if nbytes < 10**6 else f"{nbytes / 10**6:,.2f} MB"


@dataclass(frozen=True)
class Counting:
    """A student beside the best model that only counts.

    Attributes:
        ours, counted: their rows.
        share, edges: our quality divided by that of counting, and its interval.
    """

    ours: Measured
    counted: Measured
    share: float
    edges: tuple[float, float]

    @classmethod
    def beside(cls, task: Task, ours: Measured, counted: Measured) -> Counting:
        """The quotient on each test sequence, paired."""
        return cls(ours, counted, *task.ratio([ours.students], [counted.students]))

    @property
    def is_beaten(self) -> bool:
        """Whether the student is better beyond the interval, or not worse with clearly fewer bytes
        to keep.
        """
        is_smaller = self.counted.nbytes >= CLEAR * self.ours.nbytes
        return self.edges[0] > 1 or (is_smaller and self.share >= 1)

    @property
    def facts(self) -> dict[str, Any]:
        """The figures, by name."""
        return {
            "counted": self.counted.method,
            "counted_share": self.share,
            "counted_share_interval": list(self.edges),
            "counted_seconds": self.counted.seconds,
        }

    def reason(self, c: Comparison) -> str:
        """Why the student is not worth it."""
        seconds = self.counted.seconds
        took = "needs no training" if seconds is None else f"takes {_seconds(seconds)}"
        figure = c.task.headline(c.row(self.counted))
        how_good = "is better"
        if 0 < self.share < 1:
            how_good = f"is {100 / self.share - 100:.0f} % better"
        elif self.share >= 1:
            how_good = "is as good within the interval"
        return f"the counted model '{self.counted.method}' {how_good} ({figure}) and {took}"


@dataclass(frozen=True)
class Compared:
    """Students on a summary, on real data, and count models.

    Attributes:
        rows: a row of metrics for each, the summary's first.
        verdict: what they say.
    """

    measured: list[Measured]
    rows: list[Row]
    verdict: Verdict


def first_rows(
    c: Comparison, ours: Measured | str = "Farzi", long: Measured | None = None
) -> list[Measured]:
    """What a verdict needs and no more: a student on the summary, one on all data with as many
    steps, one for as long as helps, count models, and the carried teacher.

    Args:
        ours: the first row, or its name, if its student is to be trained.
        long: the row "full data, long", where it is known.
    """
    one = replace(c, num_students=1)
    first = on_summary(one, ours) if isinstance(ours, str) else ours
    measured = [first, BASELINES["full"](one), long or BASELINES["full_long"](one), *one.counted()]
    return [*measured, *filter(None, [teacher(one) if c.farzi.carried is not None else None])]


def compare(
    trainer: FarziTrainer, test_dataset: Dataset | None = None, *, baselines: Sequence[str] = ()
) -> Compared:
    """Compares the summary of a trainer with its real data, and gives a verdict.

    Args:
        trainer: after `train()`, with `train_dataset` and `eval_dataset`.
        test_dataset: rows to measure on; by default `eval_dataset`, on which settings may have been
            chosen.
        baselines: more rows, by their names in `farzi_hf.report.BASELINES`.

    Raises:
        ValueError: there are no rows to train or to measure on, or a baseline is unknown.
    """
    train, validation = trainer.sequences
    if isinstance(validation, dict):
        validation = next(iter(validation.values()))
    test = validation if test_dataset is None else test_dataset
    if not isinstance(train, Dataset) or not isinstance(test, Dataset):
        raise ValueError(
            "trainer has no train_dataset, or no test_dataset and no eval_dataset: give Datasets"
        )
    for name in baselines:
        if name not in BASELINES:
            raise ValueError(f"baselines: {name!r} is unknown; choose from {', '.join(BASELINES)}")
    given = {"train": train, "validation": test if validation is None else validation, "test": test}
    splits = DatasetDict({name: with_ids(trainer.task, rows) for name, rows in given.items()})
    c = Comparison.of_trainer(trainer, splits)
    measured = [*first_rows(c), *filter(None, (BASELINES[name](c) for name in baselines))]
    seconds = distillation_seconds(trainer.state.log_history)
    return Compared(measured, [c.row(part) for part in measured], Verdict.of(c, measured, seconds))
