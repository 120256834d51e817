"""What a search has tried, and what it has chosen."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from transformers import PreTrainedModel

from farzi_hf.common.text import count_of
from farzi_hf.distillation import FarziConfig
from farzi_hf.report.comparison import Comparison, Measured
from farzi_hf.report.full_data import LONG
from farzi_hf.report.rows import FirstRow, NewRow, TriedRow, TriedStudent, prediction_of
from farzi_hf.report.tables import markdown
from farzi_hf.summary import FarziData


@dataclass(frozen=True)
class Trial:
    """What was tried.

    Attributes:
        name: what it is.
        error: on the validation part: nats a token, or the mean ln r of targets that are r-th of
            all entries; None where nothing was measured.
        figure: the same in the words of the task.
        nbytes: of the summary.
        seconds: of the trial.
        training_seconds: of the training in it, without reading, writing and measuring; 0 where
            nothing was trained.
        why: what follows from it.
        found: settings that it has tried.
        files: the checksum of each file of the folder that it has left.
    """

    name: str
    error: float | None = None
    figure: str = ""
    nbytes: int | None = None
    seconds: float = 0.0
    training_seconds: float = 0.0
    why: str = ""
    found: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)


def leaderboard(trials: Sequence[Trial]) -> str:
    """A table of what was tried."""
    rows = [
        {
            "trial": trial.name,
            "validation": trial.figure,
            "error": "" if trial.error is None else f"{trial.error:.3f}",
            "bytes": "" if trial.nbytes is None else f"{trial.nbytes:,}",
            "seconds": f"{trial.seconds:.0f}",
            "so": trial.why,
        }
        for trial in trials
    ]
    return markdown(rows, texts=["validation", "so"])


@dataclass(frozen=True)
class Suggestion:
    """What a search has chosen.

    Attributes:
        config: the settings.
        learner: the architecture, as arguments of `AutoConfig.for_model`.
        trials: all that was tried.
        summary: the packed teacher with these settings, ready for students.
        teacher: the teacher before it was packed, and the trial that trained it.
        packed: the trial that packed it.
        due: `time.perf_counter()` when the rows of the verdict are due.
        is_tried: whether there was time for trials of students.
        student: of the trial that was chosen; None if none was tried, or an earlier start has made
            it.
    """

    config: FarziConfig
    learner: dict[str, Any]
    trials: list[Trial]
    summary: FarziData
    teacher: tuple[PreTrainedModel, Trial]
    packed: Trial
    due: float
    is_tried: bool = True
    student: TriedStudent | None = None

    @property
    def seconds(self) -> float:
        """Of all trials."""
        return round(sum(trial.seconds for trial in self.trials), 2)

    def first_row(self, method: str) -> FirstRow:
        """Who makes the row of this name, of a student with these settings: its trial, or, if an
        earlier start has made that, a new training.
        """
        return NewRow(method) if self.student is None else TriedRow(method, self.student)

    def long_row(self, c: Comparison) -> Measured:
        """The row "full data, long": the teacher is a model that has trained on all data for as
        long as helps.
        """
        model, trial = self.teacher
        statistics = c.statistics(prediction_of(model.to(c.device).eval()), c.splits["test"])
        return Measured(
            LONG,
            [statistics],
            c.nbytes(c.splits["train"]),
            steps=trial.found["steps"],
            seconds=trial.found["seconds"],
            way="the best trial of a teacher",
            still_learning=not trial.found["stopped"] and not self._has_longer_teacher,
        )

    @property
    def _has_longer_teacher(self) -> bool:
        """Whether the same teacher was tried with more steps, which were not worth them."""
        _, trial = self.teacher
        found = [other.found for other in self.trials if "teacher_steps" in other.found]
        return any(
            other["learner"] == trial.found["learner"] and other["steps"] > trial.found["steps"]
            for other in found
        )

    def reasons(self) -> list[str]:
        """Each choice with its reason, a line each."""
        settings = self.config
        packed = self.packed
        students = "the best students that were tried"
        if not self.is_tried:
            students = "the shortest students, for there was no time to try any"
        return [
            (
                f"learner: {words_of(self.learner)}, the best on the validation part in the time"
                f" that it had ({self.teacher[1].figure})"
            ),
            f"teacher_steps: {settings.teacher_steps:,} at most; {self.teacher[1].why}",
            (
                f"storage: {settings.storage}, packing_penalty {settings.packing_penalty}:"
                f" {packed.nbytes:,} bytes; {packed.why}"
            ),
            (
                f"inner_steps: {settings.inner_steps}, of {settings.synthetic_batch_size} rows,"
                f" rate {settings.inner_learning_rate}: {students}"
            ),
            "labels: a carried teacher, which was best on every set that was measured",
            (
                f"inputs: {settings.inputs}, with which students came closest to their teacher for"
                " the seconds that they took"
            ),
            (
                f"sequence_length: {settings.sequence_length}, enough for the histories of 19 of 20"
                " users (100 items at most), or for 998 of 1,000 ids of a text"
            ),
        ]


@dataclass(frozen=True)
class CountingWins:
    """What a search says where a model that only counts will be better than its students.

    Attributes:
        method, figure: the counted model, and what it has on the validation part.
        seconds: that counting took.
        of_teacher: the best network of the search, and what it has.
        spent: seconds of the search.
        behind: nats a token by which its students are expected to be behind counting.
        minutes: that students need to be ahead, by its learning curve; None if they never are.
    """

    method: str
    figure: str
    seconds: float
    of_teacher: str
    spent: float
    behind: float
    minutes: float | None

    def __str__(self) -> str:
        worse = math.expm1(self.behind)
        students = "as good as counting" if worse < _LEVEL else f"{worse:.0%} worse than counting"
        if self.minutes is None:
            asks = "More minutes would not help."
        elif self.minutes > _LONG:
            asks = "They would need more than a day to be ahead."
        else:
            asks = f"To be ahead, they need about --minutes {_up(self.minutes)}."
        return (
            f"Counting wins: {self.method} has {self.figure} on the validation part after"
            f" {self.seconds:.0f} s. The best network after {self.spent / 60:.1f} minutes is"
            f" {self.of_teacher}. By its learning curve, students of it will be {students} in the"
            f" minutes that are given. {asks}\n"
            "Take the counted model: farzi count DATA --output_dir OUT. To continue anyway:"
            " --go_on."
        )


@dataclass(frozen=True)
class NoTimeLeft:
    """What a search says where its minutes are over before a summary can be compared.

    Attributes:
        method, figure: the best model that only counts, and what it has on the validation part.
        seconds: that counting took.
        spent: seconds of the search.
        needed: seconds that a verdict takes at the least, by what was measured so far.
    """

    method: str
    figure: str
    seconds: float
    spent: float
    needed: float

    def __str__(self) -> str:
        return (
            f"No time is left to make a summary and to compare it: {self.spent / 60:.1f} minutes"
            f" are over, and a verdict takes {self.needed / 60:.1f} more at the least. Give"
            f" --minutes {_up(2 * (self.spent + self.needed) / 60)}, or --go_on, which ends late."
            f"\nWhat there is so far: {self.method} has {self.figure} on the validation part after"
            f" {self.seconds:.0f} s. To keep it: farzi count DATA --output_dir OUT."
        )


_LEVEL = 0.01
"""Of the perplexity."""
_LONG = 24 * 60
"""Minutes of a day."""


def _up(minutes: float) -> int:
    """A round number of minutes that is not less."""
    return math.ceil(minutes / 5) * 5


def width_of(learner: Mapping[str, Any]) -> int:
    """Numbers per position, by whichever name the architecture has for them."""
    return next(
        (int(learner[name]) for name in ("n_embd", "hidden_size", "d_model") if name in learner), 16
    )


def words_of(learner: Mapping[str, Any]) -> str:
    """An architecture in a few words."""
    layers = learner.get("n_layer", learner.get("num_hidden_layers", 1))
    dropout = next((learner[name] for name in ("dropout", "resid_pdrop") if learner.get(name)), 0)
    drops = f", dropout {dropout}" if dropout else ""
    return (
        f"{learner['model_type']} of width {width_of(learner)}, {count_of(layers, 'layer')}{drops}"
    )
