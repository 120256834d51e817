"""The answer first: is a summary worth it, for what, and what is the strongest simple
alternative?
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from datasets import Dataset, DatasetDict

from farzi_hf.distillation import FarziTrainer
from farzi_hf.report.comparison import Comparison, Measured, with_ids
from farzi_hf.report.full_data import FULL, LONG, SAME_SECONDS, FullData
from farzi_hf.report.rendering import distillation_seconds
from farzi_hf.report.rows import BASELINES, FirstRow, NewRow, teacher
from farzi_hf.tasks import ResultRow, Task

GOOD = 0.97
"""The share of the quality of full data from which a summary counts as equal."""
POOR = 0.9
"""The share below which it is not worth it."""
FASTER = 3.0
"""How many times as fast a student has to be, where a summary is larger than its data."""
CLEAR = 1.25
"""How many times as fast or as small a summary has to be for that to be a reason."""
_AS_GOOD = 0.995
"""The share of the quality of an alternative from which a difference is less than one per cent."""
_WORDS_OF_FULL_DATA = {
    LONG: "all data for as long as helps",
    SAME_SECONDS: "all data for as many seconds",
    FULL: "all data for as many steps",
}


@dataclass(frozen=True)
class Alternative:
    """What a user could do in the place of training on the summary, in as many seconds or fewer.

    Attributes:
        ours, row: the row of the summary's students, and that of the alternative.
        share, edges: our quality divided by that of the alternative, and its interval.
        name: the alternative, as the subject of a sentence.
        advice: how a user takes it.
    """

    ours: Measured
    row: Measured
    share: float
    edges: tuple[float, float]
    name: str
    advice: str

    @property
    def is_beaten(self) -> bool:
        """Whether the student is better beyond the interval, or not worse with clearly fewer bytes
        to keep.
        """
        is_smaller = self.row.nbytes >= CLEAR * self.ours.nbytes
        return self.edges[0] > 1 or (is_smaller and self.share >= 1)

    def reason(self, c: Comparison) -> str:
        """Why the student is not worth it."""
        seconds = self.row.seconds
        took = "needs no training" if seconds is None else f"takes {_seconds(seconds)}"
        if self.row.method == SAME_SECONDS and seconds >= CLEAR * self.ours.seconds:
            took += f", though it was planned for {_seconds(self.ours.seconds)}"
        figure = c.task.headline(c.row(self.row))
        how_good = "is better"
        if 0 < self.share <= _AS_GOOD:
            how_good = f"is {100 / self.share - 100:.0f} % better{_by(c.task)}"
        elif _AS_GOOD < self.share < 1:
            how_good = f"is as good to one per cent{_by(c.task)}"
        elif self.share >= 1:
            how_good = "is as good within the interval"
        elif math.isnan(self.share):
            how_good = f"cannot be compared, because {_unknown(c.task)}"
        return f"{self.name} {how_good} ({figure}) and {took}"


@dataclass(frozen=True)
class Alternatives:
    """All alternatives of one comparison.

    Attributes:
        counted: the best model that only counts; None if none was measured.
        trained: trainings on all data that take no longer than a student of the summary.
    """

    counted: Alternative | None
    trained: tuple[Alternative, ...]

    @classmethod
    def of(cls, task: Task, measured: Sequence[Measured]) -> Alternatives:
        """Those among the rows, of which ours is the first. A quotient is taken on each test
        sequence, paired.
        """
        ours = measured[0]

        def beside(row: Measured, name: str, advice: str) -> Alternative:
            share, edges = task.ratio([ours.students], [row.students])
            return Alternative(ours, row, share, edges, name, advice)

        counted_rows = [row for row in measured if row.steps is None and not row.is_model]
        best = min(counted_rows, key=lambda row: task.error(row.students[0]), default=None)
        counted = None
        if best is not None:
            name = f"the counted model '{best.method}'"
            counted = beside(best, name, "farzi count DATA --output_dir OUT")

        def takes_no_longer(row: Measured) -> bool:
            # Trials have given that row as many seconds, and took a few more or less. Of others,
            # less than what is clear is no difference either.
            return row.method == SAME_SECONDS or row.seconds < CLEAR * ours.seconds

        trained = [
            beside(row, f"training on {_WORDS_OF_FULL_DATA[row.method]}", "train on the data")
            for row in measured
            if row.method in _WORDS_OF_FULL_DATA and takes_no_longer(row)
        ]
        return cls(counted, tuple(trained))

    @property
    def all(self) -> tuple[Alternative, ...]:
        """The counted model first."""
        return self.trained if self.counted is None else (self.counted, *self.trained)

    @property
    def better(self) -> list[Alternative]:
        """Those that the student does not beat."""
        return [alternative for alternative in self.all if not alternative.is_beaten]

    @property
    def facts(self) -> dict[str, Any]:
        """The figures, by name."""
        facts: dict[str, Any] = {}
        if (counted := self.counted) is not None:
            facts |= {
                "counted": counted.row.method,
                "counted_share": counted.share,
                "counted_share_interval": list(counted.edges),
                "counted_seconds": counted.row.seconds,
            }
        of_same_seconds = [
            alternative for alternative in self.trained if alternative.row.method == SAME_SECONDS
        ]
        for alternative in of_same_seconds:
            facts |= {
                "same_seconds_share": alternative.share,
                "same_seconds_share_interval": list(alternative.edges),
            }
        return facts


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
            quality, `counted_share` with `counted_share_interval`, and `counted_seconds`. Of all
            data in as many seconds, `same_seconds_share` with its interval.
    """

    worth: bool
    summary: str
    lines: tuple[str, ...]
    facts: dict[str, Any]

    def __str__(self) -> str:
        return "\n".join([self.summary, *(f"- {line}" for line in self.lines)])

    @classmethod
    def of(
        cls,
        c: Comparison,
        measured: Sequence[Measured],
        making: float | None = None,
        late: bool = False,
    ) -> Verdict:
        """The verdict on the first row.

        Args:
            measured: the summary's row first, "full data, long" or at least "full data" among the
                others.
            making: seconds that it took to make the summary; None where nobody knows.
            late: whether there was no time for all data in as many seconds. Then nobody knows that
                a summary is worth it.
        """
        ours = measured[0]
        full = _best_of_full_data(c.task, measured)
        share, edges = c.task.ratio([ours.students], [full.students])
        alternatives = Alternatives.of(c.task, measured)
        facts = {
            "share": share,
            "share_interval": list(edges),
            "bytes": ours.nbytes,
            "data_bytes": full.nbytes,
            "student_seconds": ours.seconds,
            "full_data_seconds": full.seconds,
            "distillation_seconds": making,
            "break_even": _break_even(making, full.seconds - ours.seconds),
            **alternatives.facts,
        }
        against = [
            *_faults(c.task, ours, full, share),
            *(alternative.reason(c) for alternative in alternatives.better),
        ]
        gains = _gains(ours, full)
        if not against and not gains:
            against = ["training on all data takes hardly longer and needs hardly more bytes"]
        words = "the quality" if share >= GOOD else f"{100 * share:.0f} % of the quality"
        answer = f"Worth it for {' and '.join(gains)}, with {words} of full data."
        if against:
            answer = f"Not worth it, because {'; and '.join(against)}."
        elif late:
            answer = (
                "Not known to be worth it: no time was left to train on all data for as many"
                " seconds. Give more --minutes."
            )
        instead = _instead(c, full, alternatives) if against else None
        lines = _lines(c, measured, full, alternatives, facts, instead)
        return cls(not against and not late, answer, tuple(lines), facts)


def _best_of_full_data(task: Task, measured: Sequence[Measured]) -> Measured:
    """The best row of students on all data."""
    rows = [row for row in measured if row.method in _WORDS_OF_FULL_DATA]
    return min(rows, key=lambda row: task.error(row.students[0]))


def _break_even(making: float | None, saved: float) -> int | None:
    """The training from which on a summary has saved the seconds that it took; None: never."""
    return math.ceil(making / saved) if making is not None and saved > 0 else None


def _unknown(task: Task) -> str:
    """Why a quotient of two qualities is no number."""
    if task.percent:
        return "neither gets anything right on the test part"
    return "a loss on the test part is not finite"


def _faults(task: Task, ours: Measured, full: Measured, share: float) -> list[str]:
    """What speaks against a summary beside full data."""
    faults = []
    if math.isnan(share):
        faults.append(
            f"its quality beside full data is not known: of a student and full data, {_unknown(task)}"
        )
    elif share == math.inf:
        faults.append("full data get nothing right on the test part, which is too small")
    elif share < POOR:
        faults.append(f"a student has {100 * share:.0f} % of the quality of full data")
    times_as_small = full.nbytes / ours.nbytes
    times_as_fast = full.seconds / max(ours.seconds, 0.01)
    if times_as_small <= 1 and times_as_fast < FASTER:
        faults.append(
            f"the summary is {1 / times_as_small:,.1f} times as large as the data, and training on"
            " it saves little"
        )
    return faults


def _gains(ours: Measured, full: Measured) -> list[str]:
    """What a summary saves."""
    gains = []
    if full.seconds >= CLEAR * max(ours.seconds, 0.01):
        gains.append(
            f"trainings that take {_seconds(ours.seconds)} in place of {_seconds(full.seconds)}"
        )
    if full.nbytes >= CLEAR * ours.nbytes:
        gains.append(f"a file of {_size(ours.nbytes)} in place of {_size(full.nbytes)}")
    return gains


def _lines(
    c: Comparison,
    measured: Sequence[Measured],
    full: Measured,
    alternatives: Alternatives,
    facts: Mapping[str, Any],
    instead: str | None,
) -> list[str]:
    """The figures, a sentence each, and what to do instead."""
    ours = measured[0]
    rows = {row.method: row for row in measured}

    def figure(row: Measured) -> str:
        return c.task.headline(c.row(row))

    def of_full_data(row: Measured) -> str:
        learns = ", still learning" if row.still_learning else ""
        return f"{_WORDS_OF_FULL_DATA[row.method]}{learns}: {figure(row)}"

    of_all_data = [rows[name] for name in _WORDS_OF_FULL_DATA if name in rows]
    of_which = " of the best one" if len(of_all_data) > 1 else ""
    of_which += _by(c.task)
    lines = [
        f"quality: {figure(ours)} on the test part;"
        f" {'; '.join(map(of_full_data, of_all_data))}. That is"
        f" {_percent(c.task, facts['share'], facts['share_interval'], of_which)}",
        f"time: {_seconds(ours.seconds)} a training, {_seconds(full.seconds)} on all data",
        f"size: {_size(ours.nbytes)}, the data {_size(full.nbytes)}",
    ]
    if facts["distillation_seconds"] is not None:
        even = facts["break_even"]
        pays = (
            f"breaks even after {even:,} {_trainings(even)}"
            if even is not None
            else "never breaks even by the time of trainings alone"
        )
        lines.append(f"making it took {_seconds(facts['distillation_seconds'])}, which {pays}")
    if (counted := alternatives.counted) is not None:
        seconds = counted.row.seconds
        took = "" if seconds is None else f" after {_seconds(seconds)} of counting"
        lines.append(
            f"the strongest model that only counts, {counted.row.method}:"
            f" {figure(counted.row)}{took}. Our student has"
            f" {_percent(c.task, counted.share, counted.edges, f' of its quality{_by(c.task)}')}"
        )
    if instead is not None:
        lines.append(f"what to do instead: {instead}")
    if (carried := rows.get("teacher")) is not None and c.farzi.carried is not None:
        advice = "If you need just one such model, export it: farzi export SUMMARY OUT --teacher"
        lines.append(f"the teacher that it carries: {figure(carried)}. {advice}")
    return lines


def _instead(c: Comparison, full: Measured, alternatives: Alternatives) -> str:
    """What to do where a summary is not worth it: the strongest alternative; or training on all
    data, if there is none or if that is better beyond the interval.
    """

    def figure(row: Measured) -> str:
        return c.task.headline(c.row(row))

    on_all_data = f"{figure(full)} after {_seconds(full.seconds)}"
    if not alternatives.better:
        return f"train on the data ({on_all_data})"
    strongest = min(alternatives.better, key=lambda alternative: alternative.share)
    _, edges = c.task.ratio([full.students], [strongest.row.students])
    if edges[0] <= 1:
        return f"{strongest.advice} ({figure(strongest.row)})"
    if strongest is alternatives.counted:
        return (
            f"{strongest.advice} ({figure(strongest.row)}); for better quality, train on the data"
            f" ({on_all_data})"
        )
    sooner = f"{figure(strongest.row)} after {_seconds(strongest.row.seconds)}"
    return f"{strongest.advice} ({sooner}; {on_all_data})"


def _by(task: Task) -> str:
    """Which of several figures a quotient compares; nothing where there is one figure."""
    return f" by {task.metric.upper()}" if task.percent else ""


def _percent(task: Task, share: float, edges: Sequence[float], of: str) -> str:
    """A share of the quality of another row, and its interval, in words."""
    if math.isnan(share):
        return f"no share{of}, because {_unknown(task)}"
    if math.isinf(share):
        return f"no share{of}, because that row gets nothing right on the test part"
    low, high = ("∞" if math.isinf(edge) else f"{100 * edge:.0f}" for edge in edges)
    return f"{100 * share:.0f} %{of} (95 % interval {low}–{high} %)"


def _seconds(seconds: float) -> str:
    if seconds < 0.05:
        return "less than 0.1 s"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} min"


def _trainings(number: int) -> str:
    return "training" if number == 1 else "trainings"


def _size(nbytes: int) -> str:
    if nbytes < 10_000:
        return f"{nbytes:,} bytes"
    return f"{nbytes / 1000:,.1f} kB" if nbytes < 10**6 else f"{nbytes / 10**6:,.2f} MB"


@dataclass(frozen=True)
class Compared:
    """Students on a summary, on real data, and count models.

    Attributes:
        measured: the measurements of each, the summary's first.
        rows: their rows of metrics.
        verdict: what they say.
    """

    measured: list[Measured]
    rows: list[ResultRow]
    verdict: Verdict


def first_rows(
    c: Comparison,
    ours: FirstRow,
    long: Measured | None = None,
    due: float = math.inf,
) -> list[Measured]:
    """What a verdict needs and no more: a student on the summary, one on all data for as many
    seconds, one for as long as helps, count models, and the carried teacher.

    Args:
        ours: makes the first row.
        long: the row "full data, long", where it is known.
        due: `time.perf_counter()` when the rows should be there. Trials of all data for which the
            time does not suffice are left out, and then the row of as many seconds too: a line
            says so.
    """
    one = replace(c, num_students=1)
    first, measuring = ours.measured(one)
    full_data = FullData(one)
    # Two models are to be measured from then on: that of as many seconds, and the carried teacher.
    allowed = due - 2 * measuring - time.perf_counter()
    same_seconds = full_data.same_seconds(first.seconds, allowed)
    if same_seconds is None:
        print(f"no time is left for a row: {SAME_SECONDS}", flush=True)
    measured = [
        first,
        same_seconds,
        full_data.long(first.seconds) if long is None else long,
        *one.counted(),
        None if c.farzi.carried is None else teacher(one),
    ]
    return [row for row in measured if row is not None]


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
    if not hasattr(trainer, "sequences"):
        raise TypeError(f"trainer is a {type(trainer).__name__}; give a FarziTrainer after train()")
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
    start = "" if c.farzi.carried is None else f", {c.training.student_start.word} start"
    measured = first_rows(c, NewRow(f"Farzi{start}"))
    more = [BASELINES[name](c, measured[0]) for name in baselines]
    measured.extend(row for row in more if row is not None)
    rows = [c.row(row) for row in measured]
    seconds = distillation_seconds(trainer.state.log_history)
    return Compared(measured, rows, Verdict.of(c, measured, seconds))
