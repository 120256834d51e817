"""Full data as a user would train on them: the way is chosen by trials on the validation part.

Two rows come from here. "full data, same seconds" trains for as long as a student of the summary
does, with the settings that are best for so short a training. "full data, long" trains until the
validation part says stop. A summary is compared with the two, so both deserve trials as careful as
those that chose the summary's own settings.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
import torch
from tqdm.auto import tqdm

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.data.sequences import flatten_sequences
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.rows import RealData, validation_loss
from farzi_hf.distillation.teacher import TEACHER_OPTIMIZERS, TeacherTraining, Trained
from farzi_hf.report.comparison import Comparison, Measured, Student

FULL = "full data"
SAME_SECONDS = "full data, same seconds"
LONG = "full data, long"

_TIMED = 10
"""Steps of which the time is taken."""
_HELD_OUT = 512
"""Rows of the validation part that judge a trial."""
_FIRST_PART = 1 / 3
"""Of the seconds, for each trial of the first round. The two best have all of them."""
_LONGER = 4
"""How many times its steps a long training may take, while it still learns; then its row says so."""


@dataclass(frozen=True)
class RealTraining:
    """A way to train on all data."""

    optimizer: str
    """Its name in `TEACHER_OPTIMIZERS`."""
    rate: float
    """At a width of 16; wider models take less, by the root of the width."""
    tokens: int
    """Ids in a step, about."""
    dropout: bool = False
    """Whether the learner's own dropout is on."""
    counted_share: float = 0.0
    """Of what the learner should predict, the share that counted n-grams predict."""
    weight_decay: float = 0.0
    """Of the optimizer."""

    def __str__(self) -> str:
        parts = [f"{self.optimizer}, rate {self.rate:g} at width 16, {self.tokens} ids a step"]
        if self.dropout:
            parts.append("with dropout")
        if self.counted_share:
            parts.append(f"{self.counted_share:g} of the labels by n-grams")
        if self.weight_decay:
            parts.append(f"weight decay {self.weight_decay:g}")
        return ", ".join(parts)

    def of(self, learner: Learner, mean_length: float, steps: int) -> TeacherTraining:
        """The training of this learner on rows of so many ids."""
        rate = self.rate * math.sqrt(16 / learner.model.config.hidden_size)
        optimizer = TEACHER_OPTIMIZERS[self.optimizer](rate, weight_decay=self.weight_decay)
        rows = max(1, round(self.tokens / mean_length))
        return TeacherTraining(
            optimizer, steps, rows, dropout=self.dropout, counted_share=self.counted_share
        )


WAYS = (
    RealTraining("soap", 0.015, 800),
    RealTraining("adam", 0.01, 800),
    RealTraining("soap", 0.02, 400),
    RealTraining("adam", 0.02, 800),
    RealTraining("adam", 0.02, 400),
    RealTraining("soap", 0.03, 800),
)
"""Ways to train on all data, those first that are tried where there is time for few."""


@dataclass(frozen=True)
class Tried:
    """A trial of a way to train."""

    way: RealTraining
    """The way."""
    error: float
    """On the validation part, as `validation_loss` has it; infinity if the training diverged."""
    step_seconds: float
    """Seconds of a step, in this trial."""
    note: str = ""
    """What the row says beside the way, where it was chosen by less than all of the trials."""


@dataclass(frozen=True)
class FullData:
    """Trainings of a comparison's learner on all of its data. `same_seconds` and `long` are the two
    rows; what comes before them are the trials that choose a way to train.
    """

    comparison: Comparison
    """Has the learner, the data and the seeds."""
    ways: Sequence[RealTraining] = WAYS
    """That are tried."""

    @cached_property
    def data(self) -> RealData:
        """The training split, with held-out rows of the validation split."""
        c = self.comparison
        held_out = c.task.evaluation_rows(c.splits["validation"], c.length)
        return replace(c.real_data(c.splits["train"]), held_out=held_out)

    @cached_property
    def mean_length(self) -> float:
        """Ids of a row."""
        return float(flatten_sequences(self.data.dataset)[1].mean())

    @cached_property
    def seed(self) -> int:
        """Of all trials; the students of the rows have others."""
        return derive(self.comparison.seed, Purpose.REAL_STUDENT, self.comparison.num_students)

    @cached_property
    def has_dropout(self) -> bool:
        """Whether the learner drops anything while it trains."""
        model = self.comparison.learner.model
        return any(
            module.p > 0 for module in model.modules() if isinstance(module, torch.nn.Dropout)
        )

    @cached_property
    def counted_share(self) -> float:
        """α of the way that learns from n-grams, too: the teacher's; where it had none, the task's,
        if the data are quickly counted. n-grams help most where steps are few, and that a teacher
        had many says nothing of a training of a student's seconds.
        """
        c = self.comparison
        own = c.long_training.counted_share
        if own or c.device.type != "cpu":
            return own
        return c.task.share_of_counts(len(self.data.dataset) * self.mean_length)

    def step_seconds(self, way: RealTraining) -> float:
        """Seconds of a step, from a few steps that are timed."""
        training = way.of(self.comparison.learner, self.mean_length, _TIMED)
        return training.step_seconds(self.comparison.learner, self.data, self.seed)

    def trained(self, way: RealTraining, seconds: float, step_seconds: float, seed: int) -> Trained:
        """A training that takes about so many seconds: it is cut where its steps take longer.
        Nothing is evaluated meanwhile.

        Args:
            way: to train.
            seconds: of the training.
            step_seconds: of a step, by which the number of steps is known.
            seed: of the start and the order of the rows.
        """
        steps = max(1, int(seconds / step_seconds))
        training = way.of(self.comparison.learner, self.mean_length, steps)
        return replace(training, within=seconds).train(
            self.comparison.learner, replace(self.data, held_out=None, quiet=True), seed
        )

    def tried(self, way: RealTraining, seconds: float, step_seconds: float | None = None) -> Tried:
        """The way, judged after so many seconds. A training that diverged is the worst.

        Args:
            way: to train.
            seconds: of the training.
            step_seconds: of a step; None where they are not known yet.
        """
        try:
            each = self.step_seconds(way) if step_seconds is None else step_seconds
            began = time.perf_counter()
            trained = self.trained(way, seconds, each, self.seed)
        except FloatingPointError:
            return Tried(way, math.inf, math.inf)
        taken = time.perf_counter() - began
        error = validation_loss(self.comparison.learner, self.data, _HELD_OUT)(trained.params)
        return Tried(way, error, taken / trained.steps)

    def best_in(self, seconds: float, allowed: float = math.inf) -> Tried:
        """The best way to train for so many seconds. All have a third of them; the two best ones,
        and the best one with labels by n-grams, where they are quickly counted, and with dropout,
        if the learner has any, have all. To count takes none of these seconds.

        Args:
            allowed: seconds for all trials and the row. Ways for which they do not suffice are left
                out. Where they do not suffice for two, the first way is taken without a trial.
        """
        if (1 + 2 * _FIRST_PART) * seconds > allowed:
            note = "not compared with other ways for lack of time"
            return Tried(self.ways[0], math.inf, self.step_seconds(self.ways[0]), note)
        ends = time.perf_counter() + allowed
        first: list[Tried] = []
        trial = _FIRST_PART * seconds
        for way in self.ways:
            began = time.perf_counter()
            if len(first) > 1 and began + trial + seconds > ends:
                break
            first.append(self.tried(way, _FIRST_PART * seconds))
            trial = time.perf_counter() - began
        first.sort(key=lambda tried: tried.error)
        best, *others = first
        finalists = [best]
        if share := self.counted_share:
            finalists.append(replace(best, way=replace(best.way, counted_share=share)))
        finalists += others[:1]
        if self.has_dropout:
            finalists.append(replace(best, way=replace(best.way, dropout=True)))
        finals: list[Tried] = []
        for tried in finalists:
            # A first final trial says nothing without a second one. The row itself takes as long.
            is_first = not finals and len(finalists) > 1
            trainings = 3 if is_first else 2
            if ends - time.perf_counter() < trainings * seconds:
                break
            finals.append(self.tried(tried.way, seconds, tried.step_seconds))
        if finals:
            return min(finals, key=lambda tried: tried.error)
        note = f"the best of {len(first)} ways, each tried for a third of the seconds"
        return replace(best, note=note)

    def same_seconds(self, seconds: float, allowed: float = math.inf) -> Measured | None:
        """The row of students that train for so many seconds, in the way that is best then; None
        where there is no time for it.

        Args:
            seconds: of a student of the summary.
            allowed: for the trials and the row, see `best_in`.
        """
        if seconds > allowed:
            return None
        best = self.best_in(seconds, allowed)
        row = self.row(SAME_SECONDS, best.way, seconds, best.step_seconds)
        return replace(row, way=", ".join(part for part in (row.way, best.note) if part))

    def row(self, method: str, way: RealTraining, seconds: float, step_seconds: float) -> Measured:
        """The row of students that train in this way for so many seconds.

        Args:
            method: the name of the row.
            way: of all students.
            seconds: of each of them.
            step_seconds: of a step.
        """
        c = self.comparison
        taken: list[int] = []

        def train(seed: int) -> Student:
            trained = self.trained(way, seconds, step_seconds, seed)
            taken.append(trained.steps)
            return partial(c.learner.logits, trained.params)

        planned = max(1, int(seconds / step_seconds))
        row = c.trained(method, train, c.seeds, c.nbytes(c.splits["train"]), planned)
        return replace(row, steps=round(np.mean(taken)), way=str(way))

    def long(self, seconds: float) -> Measured:
        """The row of students that train until the validation part says stop.

        Their way is chosen by trials of the same kind: the one that is best in so many seconds, the
        same with dropout, the same without n-grams where it has them, and the comparison's own
        `long_training`. The row says if its students still learnt when their steps were over.

        Args:
            seconds: for a trial that chooses the way.
        """
        c = self.comparison
        way = self.best_in(seconds).way
        steps = c.long_training.steps
        trainings = {str(way): way.of(c.learner, self.mean_length, steps)}
        others = []
        if self.has_dropout:
            others.append(replace(way, dropout=not way.dropout))
        if way.counted_share:  # what helps in few steps may hold back in many
            others.append(replace(way, counted_share=0.0))
        for other in others:
            trainings[str(other)] = other.of(c.learner, self.mean_length, steps)
        trainings["the settings of the teacher"] = c.long_training
        trials = {}
        shown = tqdm(trainings.items(), LONG, disable=c.quiet, leave=False, dynamic_ncols=True)
        for words, training in shown:
            trials[words] = self._long_training(training, self.seed, longer=1)
        chosen = min(trials, key=lambda words: trials[words].validation)
        found: list[Trained] = []

        def train(seed: int) -> Student:
            found.append(self._long_training(trainings[chosen], seed, longer=_LONGER))
            return partial(c.learner.logits, found[-1].params)

        row = c.trained(LONG, train, c.seeds, c.nbytes(c.splits["train"]), steps)
        still_learning = any(bool(trained.still_learning) for trained in found)
        steps = round(np.mean([trained.steps for trained in found]))
        return replace(row, steps=steps, way=chosen, still_learning=still_learning)

    def _long_training(self, training: TeacherTraining, seed: int, longer: int) -> Trained:
        """One model, trained until the held-out rows say stop. One that diverged stays at its
        start.

        Args:
            training: how.
            seed: of the start and the order of the rows.
            longer: how many times its steps it may take while it still learns.
        """
        own = replace(training, longer=longer, count=1, kept=None)
        try:
            return own.train(self.comparison.learner, replace(self.data, quiet=True), seed)
        except FloatingPointError:
            start = self.comparison.learner.initial_parameters(seed, self.comparison.device)
            return Trained(start, 0, math.inf)
