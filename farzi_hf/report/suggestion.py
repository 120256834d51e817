"""The automatic choice of a distillation: short trials on the validation part, cheapest first,
within bytes and minutes.

0. **Counting.** A model that only counts is measured first, in seconds. Students have to beat it.
1. **Learners.** Each architecture of `Task.learners` trains for some seconds on the real data.
   Where students of the best of them will not beat counting, by its learning curve and by what the
   first student has left to learn, the search says so and stops.
2. **The teacher.** The best of them trains on, until the validation part says stop or its share of
   the time is over.
3. **Packing.** The teacher trains on in few bits: in so few that it fits, and in fewer as long as
   it loses nothing.
4. **Students** train on the packed teacher: short ones, on ids that are drawn or written, and then
   longer ones until one comes close to its teacher, is no better, or has no time.
5. **The comparison** with real data has the rest of the time.

Stages end by the clock. The steps of a teacher and of its packing are planned from a few steps that
are timed; if later ones take longer, the training is cut (`TeacherTraining`, `within`). A stage
leaves later ones what they need by the first answer, and what there is no time for does not begin.

One choice has no trial, because each set that was measured gave the same answer (recipes/LOG.md):
the summary carries its teacher, and makes the ids that students read. Fixed rows with labels of
their own need a table of the vocabulary too, and students learn them by heart.

Every trial is kept on the disk with its result, see `TrialFolder`. A search that is started again
takes what is there and goes on.
"""

from __future__ import annotations

import copy
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict

from farzi_hf.common.files import exclusive
from farzi_hf.common.text import as_written, for_reader, reason
from farzi_hf.data import flatten_sequences, random_sequences
from farzi_hf.data.coding import stored_bytes
from farzi_hf.data.streams import described
from farzi_hf.distillation import FarziConfig
from farzi_hf.report.comparison import with_ids
from farzi_hf.report.search_students import EQUAL, SearchStudents
from farzi_hf.report.search_threads import SearchThreads
from farzi_hf.report.search_trials import (
    PACKINGS,
    SearchTrials,
    numbers_of,
    times_the_rows,
)
from farzi_hf.report.trial_folder import TrialFolder
from farzi_hf.report.trials import CountingWins, NoTimeLeft, Suggestion, Trial, words_of
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import LABELS, TeacherLabels
from farzi_hf.tasks import Task
from farzi_hf.tasks.base import check_task
from farzi_hf.tasks.counted import CountedRow

_SHARES = {"learners": 0.22, "teacher": 0.28, "packing": 0.06, "students": 0.15}
"""Of the time, for each stage. Packing has this for one way; a further one takes its time from the
comparison, which has the rest.
"""
_ALONE = {"learners": 0.04, "teacher": 0.44}
"""The same where there is one learner: its first teacher needs to be good enough for a first answer
only.
"""
_SHORT_STUDENTS = {"teacher": 0.25, "students": -0.1}
"""What these have more where students are fitted to their teacher and take a few seconds: the
teacher has the time of trials, and some of that of the comparison.
"""
_AT_LEAST = 0.6
"""Of their shares, that later stages have if an earlier one is late."""
_FLOOR = 0.1
"""Of its share, that a stage has however late it is."""
_LONGER = 1.5
"""Times the seconds of the first teacher, that a second one has at least."""
_LATER = 0.5
"""Of the seconds of a stage with several trials, by which the last one may be late."""
_BEHIND = 0.1
"""Of teachers that still learn, the widest one that is not worse by more is taken: most of its
training is to come.
"""
_IDS = 100_000
"""Of the validation part; more would tell little more, and take long."""
_AFTER_ROWS = 0.4
"""Of the seconds of files, card and figures, those after the last row of the comparison."""
_BENDS = 0.25
"""The power of the seconds with which what a teacher has left to learn falls (recipes/LOG.md)."""
_TINY = 1e-6
"""Of what a teacher has left to learn: for less, no minutes are told."""
_BEYOND = 0.02
"""Nats by which a student has to be better than counting, to be so beyond its interval."""
_SMALLEST = PACKINGS[-3][2]
"""Bits for which the width of a teacher still pays."""
_LATE = 0.1
"""Of the minutes, that a verdict may be late."""
_SLACK = 1.05
"""How much fewer bits a number may need than was measured."""


def to_stderr(line: str) -> None:
    """Shows a line to the reader at once, beside what goes to stdout."""
    print(for_reader(line, sys.stderr), file=sys.stderr, flush=True)


def suggest(
    dataset: DatasetDict | Dataset,
    task: Task,
    *,
    bytes: int | None = None,
    minutes: float | None = None,
    learner: Mapping[str, Any] | None = None,
    output_dir: str = "farzi",
    folder: str | Path | None = None,
    seed: int = 42,
    show: Callable[[str], None] = to_stderr,
) -> FarziConfig:
    """Chooses the settings of a distillation by short trials on the validation part.

    Args:
        dataset: whole rows in `input_ids`, or in `text` for the task's tokenizer, with the splits
            train and validation. A tenth of a single `Dataset` is held out.
        task: `LanguageModeling(tokenizer)` or `Recommendation(vocabulary)`.
        bytes: the most that the summary may have; by default as many as the data: ids in ⌈log₂ V⌉
            bits each.
        minutes: for all of it; by default 10, or 30 for a vocabulary of more than 5,000 entries.
        learner: the architecture, as arguments of `AutoConfig.for_model`; by default the best of
            `task.learners`.
        output_dir: of the config.
        folder: where trials are kept; by default they are lost.
        seed: of all trials, and of the config.
        show: is called with each line for the reader.

    Returns:
        The config. It has two attributes more: `learner`, the architecture as a dict, and
        `leaderboard`, a list of what was tried.

    Raises:
        ValueError: an argument cannot be used, or there are too few rows.
    """
    check_task(task)
    if not isinstance(dataset, Dataset | Mapping):
        raise ValueError(
            f"dataset is a {type(dataset).__name__}; give a datasets.Dataset, or a DatasetDict with"
            " train and validation"
        )
    if isinstance(dataset, Dataset) and len(dataset) > 1:
        held_out = dataset.train_test_split(0.1, seed=seed)
        dataset = DatasetDict(train=held_out["train"], validation=held_out["test"])
    elif isinstance(dataset, Dataset):
        raise ValueError(
            f"dataset has {len(dataset)} rows, of which a tenth is held out: give more"
        )
    dataset = DatasetDict({name: with_ids(task, rows) for name, rows in dataset.items()})
    with tempfile.TemporaryDirectory() as scratch:
        search = Search(
            splits=dataset,
            task=task,
            folder=Path(folder or scratch),
            output_dir=output_dir,
            seed=seed,
            most=bytes,
            minutes=minutes,
            learner=learner,
            show=show,
            goes_on=True,
        )
        threads = torch.get_num_threads()
        try:
            suggestion = search.run()
        finally:
            torch.set_num_threads(threads)
    suggestion.config.learner = suggestion.learner
    suggestion.config.leaderboard = suggestion.trials
    return suggestion.config


@dataclass
class Search:
    """The stages of the search on one data set: which trials are made, and which of them is taken.
    For arguments see `suggest`.

    Args:
        splits: train and validation, and test if there is one.
        folder: where trials are kept.
        most: bytes of the summary.
        fixed: settings of a `FarziConfig` that trials do not change.
        goes_on: whether the search goes on where counting will win.
        began: `time.perf_counter()` when the minutes began.
    """

    splits: DatasetDict
    task: Task
    folder: Path
    output_dir: str
    seed: int = 42
    most: int | None = None
    minutes: float | None = None
    learner: Mapping[str, Any] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)
    show: Callable[[str], None] = to_stderr
    goes_on: bool = False
    began: float = field(default_factory=time.perf_counter)
    trials: SearchTrials = field(init=False)

    def __post_init__(self) -> None:
        self._check()
        lengths = flatten_sequences(self.splits["train"])[1]
        self.vocab_size = self.task.learner_config(self.task.learners[0], 8).vocab_size
        self.length = self.fixed.get("sequence_length") or self._long_enough(lengths)
        mean = float(min(lengths.mean(), self.length))
        wider = times_the_rows(self.fixed)
        if self.most is None:
            self.most = stored_bytes(self.splits["train"], self.vocab_size).least
        self.most = int(self.most)
        if self.minutes is None:
            self.minutes = 10.0 if self.vocab_size <= 5000 else 30.0
        if self.learner is not None:
            self._check_learner(self.learner)
            self.learners = [dict(self.learner)]
        else:
            tried = self.task.tried_in(self.minutes * wider, self._fits)
            self.learners = [dict(learner) for learner in tried]
        held_out = self.splits["validation"]
        some = max(20, int(_IDS / mean))
        is_large = len(held_out) > some
        self.trials = SearchTrials(
            splits=self.splits,
            validation=random_sequences(held_out, some, self.seed) if is_large else held_out,
            task=self.task,
            length=self.length,
            mean=mean,
            wider=wider,
            most=self.most,
            minutes=self.minutes,
            began=self.began,
            seed=self.seed,
            fixed=self.fixed,
            kept=TrialFolder(self.folder, self.settings, self.show),
            show=self.show,
        )
        self.shares = _SHARES if len(self.learners) > 1 else {**_SHARES, **_ALONE}
        if self.students.are_short(self.learners[0]):
            more = {name: share + self.shares[name] for name, share in _SHORT_STUDENTS.items()}
            self.shares = {**self.shares, **more}

    def _check(self) -> None:
        for name, value in (("bytes", self.most), ("minutes", self.minutes)):
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if value is not None and not (is_number and 0 < value < math.inf):
                shown = value if is_number else f"{value!r:.200}"
                raise ValueError(
                    f"{name}={shown} is not usable: give a positive number, or leave it out"
                )
        present = {name for name, rows in self.splits.items() if len(rows)}
        if missing := {"train", "validation"} - present:
            raise ValueError(
                f"dataset has splits {list(self.splits)}: {', '.join(sorted(missing))} is missing,"
                " or has no row"
            )
        if not LABELS[self.fixed.get("labels", TeacherLabels.name)].carries_teacher:
            raise ValueError(
                f"labels={self.fixed['labels']!r}: trials choose summaries that carry a teacher;"
                " leave labels out"
            )
        if self.fixed.get("num_teachers", 1) > 1:
            raise ValueError(
                f"num_teachers={self.fixed['num_teachers']}: trials pack one teacher; leave it out,"
                " and set it in the recipe.yaml that they write"
            )

    def _check_learner(self, learner: Mapping[str, Any]) -> None:
        """Raises ValueError if there is no such model, before anything is trained."""
        try:
            numbers_of(self.task, learner, self.length)
        except Exception as error:  # each architecture fails in its own way
            raise ValueError(
                f"learner={dict(learner)!r:.300} makes no model ({reason(error)}): give arguments of"
                " AutoConfig.for_model that do"
            ) from error

    def _long_enough(self, lengths: np.ndarray) -> int:
        """How many ids a row of the summary has. Of items, so many that nineteen users of twenty
        have no more, and 100 at most. Text is tested at all positions, so students read all but
        those of two ids in a thousand.
        """
        share = 0.05 if self.task.ranked else 0.002 * lengths.mean()
        most = 100 if self.task.ranked else int(lengths.max())
        for length in range(10, most, 10):
            beyond = np.maximum(lengths - length, 0)
            left_out = beyond > 0 if self.task.ranked else beyond
            if left_out.mean() <= share:
                return length
        return max(10, most)

    def _fits(self, learner: Mapping[str, Any], bits: float = _SMALLEST) -> bool:
        """Whether a teacher of this architecture has room in the summary, with so many bits for
        each of its numbers.
        """
        return bits * numbers_of(self.task, learner, self.length) / 8 <= self.most

    def in_folder(self, folder: Path, output_dir: Path) -> Search:
        """The same search, whose trials are kept there and whose choice is for that run."""
        other = copy.copy(self)
        other.output_dir = str(output_dir)
        kept = TrialFolder(folder, self.settings, self.show)
        other.trials = replace(self.trials, kept=kept, made=[])
        return other

    @property
    def students(self) -> SearchStudents:
        """The trials of students."""
        return SearchStudents(self.trials)

    def run(self) -> Suggestion | CountingWins | NoTimeLeft:
        """All stages. No other search writes to the folder meanwhile."""
        with exclusive(self.trials.folder):
            return self._stages()

    def _stages(self) -> Suggestion | CountingWins | NoTimeLeft:
        if not self.goes_on and not self.trials.left:
            return self._no_time_left(self.trials.seconds_of_files)
        threads = SearchThreads(self.trials, self.learners[0])
        threads.choose()
        first = self.learner_stage()
        lost = None if self.goes_on else self.counting_wins(first) or self.too_late()
        if lost is not None:
            return lost
        threads.review("the teacher")
        teacher = self.teacher_stage(first)
        threads.review("packing")
        packed = self.packing_stage(teacher)
        threads.review("students")
        student = self.students.choose(teacher, packed)
        threads.review("the comparison")
        learner = teacher.found["learner"]
        names = ("storage", "packing_penalty", "packing_steps", "packing_cuts")
        of_packing = {name: packed.found[name] for name in names}
        of_teacher = {
            name: teacher.found[name]
            for name in ("teacher_steps", "teacher_cuts", "teacher_counted_share")
        }
        chosen = {**of_teacher, **of_packing, **student.found}
        config = self.trials.config(learner, self.output_dir, **chosen)
        packed_summary = FarziData.from_pretrained(self.trials.folder / packed.found["folder"])
        summary = packed_summary.with_inputs(config.inputs)
        summary.config.inner = config.inner_settings()
        return Suggestion(
            config=config,
            learner=learner,
            trials=self.trials.made,
            summary=summary,
            teacher=(self.trials.model_of(teacher), teacher),
            packed=packed,
            due=time.perf_counter() + self.trials.left - _AFTER_ROWS * self.trials.seconds_of_files,
            is_tried=student.error is not None,
            student=self.trials.students.get(student.name),
        )

    # -- time --------------------------------------------------------------------------------------

    def seconds_of_stage(self, name: str) -> float:
        """The seconds that a stage may take: its share; less if the search is late."""
        share = 60 * self.minutes * self.shares[name]
        return max(_FLOOR * share, min(share, self.trials.left - self.seconds_after(name)))

    def seconds_after(self, name: str) -> float:
        """The seconds that the stages after this one have at least: a part of their shares, or what
        they need by the first answer, if that is more.
        """
        stages = list(self.shares)
        later = stages[stages.index(name) + 1 :]
        of_comparison = 1 - sum(self.shares.values())
        of_students = of_comparison + self.shares["students"] * ("students" in later)
        of_others = sum(self.shares[stage] for stage in later if stage != "students")
        needed = self.students.seconds_needed(is_tried=name == "students")
        least = max(_AT_LEAST * 60 * self.minutes * of_students, needed)
        return _AT_LEAST * 60 * self.minutes * of_others + least

    # -- what is kept ------------------------------------------------------------------------------

    @cached_property
    def settings(self) -> dict[str, Any]:
        """On what the trials depend: the data and what was asked for."""
        parts = {name: rows for name, rows in self.splits.items() if name != "test"}
        return as_written(
            {
                "data": {name: described(rows)["fingerprint"] for name, rows in parts.items()},
                "bytes": self.most,
                "minutes": self.minutes,
                "learners": self.learners,
                "seed": self.seed,
                "counted_share": self.task.counted_share,
                "fixed": {name: repr(value) for name, value in self.fixed.items()},
            }
        )

    # -- counting ----------------------------------------------------------------------------------

    @cached_property
    def counted(self) -> CountedRow:
        """The best model that only counts, on the validation part. The test part is measured in the
        same go, for the comparison.
        """
        rows = self.task.count(
            self.splits["train"],
            self.splits["validation"],
            self.trials.validation,
            self.vocab_size,
            also=[part for name, part in self.splits.items() if name == "test" and len(part)],
        )
        return min(rows, key=lambda row: self.task.error(row.statistics))

    @property
    def counted_figure(self) -> str:
        """Its figure, in the words of the task."""
        return self.task.headline(self.task.metrics(self.counted.statistics))

    def _words_of_counting(self) -> str:
        """What counting gives."""
        return f"{self.counted.method}: {self.counted_figure}"

    def counting_wins(self, teacher: Trial) -> CountingWins | None:
        """Why the search should stop: students of this teacher will not be better than counting, by
        its learning curve and by what the first student had left to learn. None where they will be,
        or where no curve tells.

        With t seconds of training in place of the s that it had, the loss L of a teacher becomes

            L(t) = L(s) − (g / b) (1 − (s / t)^b),

        where g is by how much it fell for each e-fold of the seconds. So the curve begins with
        this slope, and bends. A better teacher has more to teach, and its students have more steps;
        what is left to them is about what was left to the first one.
        """
        counted = self.task.nats(self.counted.statistics)
        slope = 0.0 if teacher.found["stopped"] else teacher.found["slope"]
        if counted is None or slope is None:
            return None
        to_learn = max(-slope, 0.0) / _BENDS
        own = max(teacher.found["seconds"], 1e-9)
        times = max(1.0, 60 * self.minutes * self.shares["teacher"] / own)
        left_to_first = self._left_by_first_student()
        asked = counted - _BEYOND - left_to_first  # of a teacher
        expected = teacher.error - to_learn * (1 - times**-_BENDS)
        if expected <= asked:
            return None
        minutes = None
        share_left = 1 - (teacher.error - asked) / to_learn if to_learn else 0.0  # = (s / t)^b
        if share_left > 0:
            needed = own * max(share_left, _TINY) ** (-1 / _BENDS)
            minutes = needed / self.shares["teacher"] / 60
        return CountingWins(
            method=self.counted.method,
            figure=self.counted_figure,
            seconds=self.counted.seconds,
            of_teacher=f"{words_of(teacher.found['learner'])}: {teacher.figure}",
            spent=self.trials.spent,
            behind=expected + left_to_first - counted,
            minutes=minutes,
        )

    def _left_by_first_student(self) -> float:
        """By how many nats the student of the first answer is behind its teacher."""
        answer = self.trials.first_student
        if answer is None:
            return 0.0
        teacher = next(trial for trial in self.trials.made if "slope" in trial.found)
        return max(0.0, answer.error - teacher.error)

    def too_late(self) -> NoTimeLeft | None:
        """Why the search should stop after its first answer: by what that took, the shortest way to
        a verdict ends too late. None where there is time.
        """
        needed = self.students.fewest_seconds
        has_time = needed <= self.trials.left + _LATE * 60 * self.minutes
        if self.trials.decided("time for a verdict", has_time):
            return None
        return self._no_time_left(needed)

    def _no_time_left(self, needed: float) -> NoTimeLeft:
        return NoTimeLeft(
            method=self.counted.method,
            figure=self.counted_figure,
            seconds=self.counted.seconds,
            spent=self.trials.spent,
            needed=needed,
        )

    # -- stages ------------------------------------------------------------------------------------

    def learner_stage(self) -> Trial:
        """The teacher of the architecture that is best after as many seconds as each of them has."""
        of_stage = self.seconds_of_stage("learners")
        seconds = of_stage / len(self.learners)
        until = self.trials.spent + (1 + _LATER) * of_stage
        tried: list[Trial] = []
        for learner in self.learners:
            reason = self._left_out(learner, tried)
            has_time = not tried or self.trials.spent + seconds <= until
            question = f"time for a {words_of(learner)}"
            if reason is None and not self.trials.decided(question, has_time):
                reason = "no time is left for it"
            if reason is not None:
                self.show(f"{words_of(learner)} is not tried: {reason}")
                continue
            tried.append(self.trials.teacher(learner, seconds))
            if len(tried) == 1:
                shortest = self.students.first_settings(learner, "coded6")
                self.trials.first_answer(tried[0], shortest, self._words_of_counting)
        tried = self._that_go_on_well(tried)
        best = min(trial.error for trial in tried)
        # What still learns is the better for being wide; of what has learnt all there is, the
        # smallest is enough.
        near = [trial for trial in tried if trial.error <= best + _BEHIND]
        still_learning = [trial for trial in near if not trial.found["stopped"]]
        if still_learning:
            return still_learning[-1]
        return next(trial for trial in tried if trial.error <= best + EQUAL)

    def _that_go_on_well(self, tried: list[Trial]) -> list[Trial]:
        """Those of these trials whose learners may be trained for longer: the ones with dropout, if
        there are any, and if a longer teacher reads each row often. In a short trial dropout only
        costs steps, and what is learnt by heart does not show.
        """
        with_dropout = [trial for trial in tried if trial.found["learner"].get("dropout")]
        if len(with_dropout) in (0, len(tried)):
            return tried
        steps = self.seconds_of_stage("teacher") / with_dropout[-1].found["step_seconds"]
        question = "does a longer teacher read rows often"
        reads_often = self.trials.decided(question, self.trials.reads_often(steps))
        return with_dropout if reads_often else tried

    def _left_out(self, learner: Mapping[str, Any], tried: Sequence[Trial]) -> str | None:
        """Why this architecture is not tried after the others; None if it is."""
        if not tried:
            return None
        numbers = numbers_of(self.task, learner, self.length)
        best = min(trial.error for trial in tried)
        of_kind = [
            trial
            for trial in tried
            if trial.found["learner"]["model_type"] == learner["model_type"]
        ]
        if of_kind:
            last = of_kind[-1]
            if last.error > best + _BEHIND and numbers > last.found["numbers"]:
                return "a smaller one of this kind had too few steps in this time already"
            if min(trial.error for trial in of_kind) > best + EQUAL:
                return "smaller models of this kind are behind another kind"
        if not self._fits(learner):
            return f"its {numbers:,} parameters do not fit into {self.most:,} bytes"
        return None

    def teacher_stage(self, first: Trial) -> Trial:
        """The chosen teacher after all the time that it may have, unless it has learnt all there
        is; or an earlier one that is as good.
        """
        if first.found["stopped"]:
            return first
        seconds = self.seconds_of_stage("teacher")
        is_longer = seconds >= _LONGER * first.found["seconds"]
        if not self.trials.decided("time for a longer teacher", is_longer):
            self.show(f"no time is left for a longer teacher: {seconds:.0f} s")
            return first
        self.trials.teacher(first.found["learner"], seconds)
        teachers = [trial for trial in self.trials.made if "stopped" in trial.found]
        best = min(trial.error for trial in teachers)
        return next(trial for trial in teachers if trial.error <= best + EQUAL)

    def packing_stage(self, teacher: Trial) -> Trial:
        """The teacher in the fewest bits that lose nothing beside the first that fit. Where the
        clock cuts one, and something fits, no fewer bits are tried.
        """
        learner = teacher.found["learner"]
        name = f"packing {teacher.found['folder']}"
        steps, seconds = self.trials.planned(name, learner, self.seconds_of_stage("packing"))
        steps = min(steps, teacher.found["teacher_steps"])
        until = self.trials.spent + (1 + _LATER) * seconds  # no third one, unless none fits
        given = self.fixed.get("storage")
        ways = [way for way in PACKINGS if given in (None, way[0])]
        if not ways:
            ways = [(given, PACKINGS[0][1], 0.0)]
        best: Trial | None = None
        larger: float | None = None  # bytes of the last one, for each bit of a number in the table
        for storage, penalty, bits in ways:
            is_last = storage == ways[-1][0]
            if bits * teacher.found["numbers"] / 8 > _SLACK * self.most and not is_last:
                continue
            has_time = self.trials.left >= seconds + self.seconds_after("packing")
            if best is not None:
                has_time = has_time and self.trials.spent <= until
            question = f"time for {name} in {storage}, penalty {penalty}"
            has_time = self.trials.decided(question, has_time)
            if best is not None and not has_time:
                break
            will_fit = is_last or larger is None or larger * bits <= self.most
            if not has_time and not will_fit:
                self.show(f"no time is left for {storage}, penalty {penalty}")
                continue
            settings = self.trials.asked(
                storage=storage, packing_penalty=penalty, packing_steps=steps
            )
            trial = self.trials.packed(teacher, settings, seconds)
            larger = trial.nbytes / bits if bits else None
            if best is not None and trial.error > best.error + EQUAL:
                break
            if trial.nbytes <= self.most or is_last:
                best = trial
            is_cut = trial.found.get("is_cut", False)  # older versions have not kept it
            if best is not None and is_cut:
                break  # in fewer bits, so few steps would lose more
        if best.nbytes > self.most:
            self.show(
                f"no way to pack this teacher is small enough: {best.found['storage']} is taken,"
                f" so the summary is larger than {self.most:,} bytes"
            )
        return best
