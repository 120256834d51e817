"""The training of a teacher on real data: a learning rate that stays and then falls, an early stop
by held-out rows, an end in time, and a file from which it goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor
from tqdm.auto import tqdm

from farzi_hf.common.checks import check_share
from farzi_hf.common.settings import checked, setting
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.nested_dropout import narrower_widths, widths_of
from farzi_hf.distillation.rows import RealData, real_loss, train_on, validation_loss
from farzi_hf.distillation.training_progress import (
    Pace,
    Progress,
    cuts_of,
    read_training,
    steps_of,
    write_training,
)
from farzi_hf.engine import InnerAdam, InnerOptimizer, InnerSoap, TrainingState

TEACHER_OPTIMIZERS: dict[str, Callable[..., InnerOptimizer]] = {
    "adam": partial(InnerAdam, betas=(0.5, 0.999), eps=1e-4),
    "soap": partial(InnerSoap, betas=(0.7, 0.99), eps=1e-5),
}
"""With long memories: most entries of a large vocabulary are in few steps' rows (recipes/LOG.md).
"""

_EVALUATIONS = 40  # of a training, on held-out rows
_PATIENCE = 8  # evaluations without a better one, after which the rate falls
_NOISE = 0.25  # share of what the fall of the rate has gained
_POINTS = 4  # of a curve, from which its slope is known
_FEW = 256  # held-out rows, which are always worth their time
_KEEPING = 0.05  # the most that writing the state may take of the seconds of a training


@dataclass(frozen=True)
class Trained:
    """What a training has led to.

    Attributes:
        params: θ.
        steps: that led there.
        validation: the loss on held-out rows, in nats per token; None where there are none.
        still_learning: whether the loss on held-out rows still fell when the steps were over, so
            that more steps would have given a better model; None where nobody knows.
        all_steps: that were taken, those from which the training went back too.
        curve: pairs of steps and the loss on held-out rows after them, while the rate stayed.
        end: the step at which the training ended, where `steps` may be an earlier one.
        cuts: how it was cut to end in time, see `TeacherTraining`.
    """

    params: Parameters
    steps: int
    validation: float | None
    still_learning: bool | None = None
    curve: tuple[tuple[int, float], ...] = ()
    all_steps: int = 0
    end: int = 0
    cuts: Mapping[int, int] = field(default_factory=dict)

    @property
    def slope(self) -> float | None:
        """By how much the loss on held-out rows rises for each e-fold of the steps, by the last
        two thirds of the curve: below 0 as long as a training learns. None where the curve is too
        short.
        """
        last = [(steps, error) for steps, error in self.curve if 3 * steps >= self.curve[-1][0]]
        if len(last) < _POINTS:
            return None
        steps, errors = np.transpose(last)
        return float(np.polyfit(np.log(steps), errors, 1)[0])

    def facts(self, name: str) -> dict[str, float]:
        """For log and card; `name` begins their keys."""
        facts = {f"{name}_steps_taken": self.steps}
        if self.validation is not None:
            facts[f"{name}_validation"] = round(self.validation, 4)
        return facts


@dataclass(frozen=True)
class Teacher:
    """A trained model, as a pure function and its parameters; `trained` is how, where this process
    has done it.
    """

    learner: Learner
    params: Parameters
    trained: Trained | None = None


@dataclass(frozen=True)
class TeacherTraining:
    """Training on real data with a learning rate that stays for half of the steps, or for another
    share, and then falls to 0 on a straight line.

    With held-out rows it stops early. If their loss does not fall any more while the rate stays,
    the training goes back to the best state so far, and the rate falls from there, in as many steps
    as it took to get there. Its end is the result, unless the loss has risen again by more than
    noise; else the best state of all is.

    Args:
        optimizer: its learning rate is that of the first steps.
        steps: of the whole training, if it does not stop early.
        batch_size: real sequences per step.
        count: the number of teachers.
        dropout: whether the learner's own dropout is on.
        nested_widths: of nested dropout, see `farzi_hf.distillation.nested_dropout`.
        counted_share: α, the share of what n-grams predict in what the learner should predict, see
            `farzi_hf.tasks.counted_labels`.
        falling: the share of the steps in which the rate falls. 1: it falls from the first step on,
            and the best state on held-out rows is the result.
        longer: while the loss on held-out rows still falls at the end of the steps at a constant
            rate, they are doubled, up to so many times as many steps.
        kept: a file with the state of the training of the one teacher, from which it goes on;
            written at evaluations, at each unless that would take long.
        within: seconds of the training. Where the measured steps would take longer, they become
            fewer: the rate falls sooner, or faster.
        cuts: how an earlier training was cut, which this one repeats: the number of all steps
            after which the rate began to fall, or to fall faster, and that of all steps with
            which the training then ended.
        on_step: is called with the seconds of each step, without those of evaluations.
    """

    optimizer: InnerOptimizer
    steps: int
    batch_size: int
    count: int = 1
    dropout: bool = True
    counted_share: float = 0.0
    nested_widths: tuple[int, ...] = ()
    falling: float = 0.5
    longer: int = 1
    kept: Path | None = None
    within: float = math.inf
    cuts: Mapping[int, int] = field(default_factory=dict)
    on_step: Callable[[float], None] | None = None

    @dataclass(frozen=True)
    class Settings:
        teacher_steps: int = setting(
            2000, "most steps of a teacher; it stops early by eval_dataset", least=1
        )
        teacher_cuts: tuple[int, ...] = setting(
            (),
            "how a search ended a teacher's training in time: pairs of the steps after which the"
            " rate began to fall, and of all steps then",
            start=[],
        )
        teacher_optimizer: str = setting(
            "adam", "of the teacher; soap is better for text", table=TEACHER_OPTIMIZERS
        )
        teacher_learning_rate: float = setting(
            0.01, "of that optimizer, for half of its steps; then it falls to 0"
        )
        teacher_batch_size: int = setting(16, "real sequences per step of the teacher", least=1)
        teacher_weight_decay: float = setting(
            0.0, "λ of the teacher; it helps where learners overfit, on items"
        )
        teacher_counted_share: float = setting(
            0.0,
            "of what a teacher of text should predict, the share that counted n-grams predict; the"
            " rest is the next token",
        )
        teacher_nested_widths: tuple[int, ...] = setting(
            (),
            "of narrower students: in half of the rows a teacher's head reads so many dimensions"
            " alone (nested dropout), so that these students lose less",
            start=[],
        )

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> TeacherTraining:
        """The training by the settings of a config, or of a summary's recipe. Those that it lacks
        have their defaults. Raises ValueError if one cannot be used.
        """
        given = checked(cls.Settings, settings)
        check_share("teacher_counted_share", given.teacher_counted_share)
        make = TEACHER_OPTIMIZERS[given.teacher_optimizer]
        optimizer = make(given.teacher_learning_rate, weight_decay=given.teacher_weight_decay)
        cuts = cuts_of("teacher_cuts", settings.get("teacher_cuts", ()))
        nested_widths = widths_of(
            "teacher_nested_widths", settings.get("teacher_nested_widths", ())
        )
        return cls(
            optimizer,
            given.teacher_steps,
            given.teacher_batch_size,
            counted_share=given.teacher_counted_share,
            nested_widths=nested_widths,
            cuts=cuts,
        )

    def whole(self, learner: Learner) -> TeacherTraining:
        """The same training of another learner, not cut: with nested dropout at those widths that
        are narrower than it.
        """
        widths = narrower_widths(learner, self.nested_widths)
        return replace(self, within=math.inf, cuts={}, nested_widths=widths)

    def train(self, learner: Learner, data: RealData, seed: int, name: str = "Teacher") -> Trained:
        """One teacher. Its initialisation, its minibatches and its dropout depend on `seed`, and
        the progress bar is called `name`. Raises FloatingPointError if the training diverged.
        """
        loss = real_loss(
            learner,
            replace(data, counted_share=self.counted_share),
            self.batch_size,
            self.steps * self.longer,
            derive(seed, Purpose.TEACHER_MINIBATCHES),
            self.dropout,
            steps_of(self.kept),
            self.nested_widths,
        )
        start = learner.initial_parameters(derive(seed, Purpose.TEACHER), data.device)
        # As students and the stock Trainer have it.
        optimizer = self.optimizer.without_decay(learner.no_decay)
        training = replace(self, optimizer=optimizer)
        return training.run(name, loss, start, data.quiet, self.validation(learner, data))

    def step_seconds(self, learner: Learner, data: RealData, seed: int) -> float:
        """Seconds of a step, from a training that is timed twice: the first one warms up. Nothing
        is evaluated meanwhile. Raises FloatingPointError as `train`.
        """
        data = replace(data, held_out=None, quiet=True)
        taken = []
        for _ in range(2):
            began = time.perf_counter()
            self.train(learner, data, seed)
            taken.append((time.perf_counter() - began) / self.steps)
        return min(taken)

    def validation(self, learner: Learner, data: RealData) -> Callable[[Parameters], float] | None:
        """The loss on held-out rows; on so many that it takes a sixth of the time of the steps
        between two evaluations, or a few.
        """
        return validation_loss(learner, data, max(_FEW, self.batch_size * self._between // 2))

    @property
    def _between(self) -> int:
        """Steps between two evaluations."""
        return max(1, self.steps // _EVALUATIONS)

    def run(
        self,
        name: str,
        loss: Callable[[Parameters, int], Tensor],
        start: Parameters,
        quiet: bool,
        validation: Callable[[Parameters], float] | None = None,
    ) -> Trained:
        """Trains by `loss(θ, step)` from `start`, and stops early by `validation(θ)`. The progress
        bar is called `name`.
        """
        state: Parameters | TrainingState = start
        best: TrainingState | None = None
        progress = Progress(0, self.steps, self.steps - int(self.falling * self.steps))
        curve: list[tuple[int, float]] = []
        if self.kept is not None and self.kept.exists():
            is_judged = validation is not None
            state, best, progress, curve = read_training(
                self.kept, start, self.optimizer, is_judged
            )
        pace = Pace(self.within, progress)
        keeps_from = 0.0  # seconds of the training
        with tqdm(
            None,
            name,
            progress.steps,
            initial=progress.step,
            disable=quiet,
            leave=False,
            dynamic_ncols=True,
        ) as bar:
            while progress.step < progress.steps:
                end = min(self.cuts.get(progress.all_steps, progress.end), pace.end(progress))
                if end < progress.end:
                    progress.cut(end)
                    bar.total = bar.n + progress.steps - progress.step
                optimizer = replace(self.optimizer, lr_schedule=progress.share_of_rate)
                began = time.perf_counter()
                (state,) = train_on(loss, optimizer, state, steps=1, every=1)
                if self.on_step is not None:
                    self.on_step(time.perf_counter() - began)
                progress.step += 1
                progress.all_steps += 1
                bar.update()
                is_last = progress.step == progress.steps
                if progress.step % self._between and not is_last:
                    continue
                pace.mark(progress)
                if validation is not None:
                    progress.error = validation(state.params)
                    if progress.step <= progress.held and not progress.has_stopped:
                        curve.append((progress.step, progress.error))
                    if best is None or progress.error < progress.lowest:
                        best = state
                        progress.lowest = progress.error
                    elif self._has_stopped(progress, best):
                        state = best
                        progress.go_back(best.step)
                        bar.total = bar.n + progress.step
                    if self._goes_on(progress):
                        progress.go_on()
                        bar.total = progress.steps
                    if progress.step <= progress.held:
                        progress.before = progress.lowest
                    lowest = f"{progress.lowest:.3f}"
                    bar.set_postfix(validation=lowest, step=best.step, refresh=False)
                is_over = progress.step == progress.steps
                if self.kept is not None and (is_over or pace.seconds >= keeps_from):
                    progress.seconds = pace.seconds
                    write_training(self.kept, state, best, progress, curve)
                    keeps_from = pace.seconds + (pace.seconds - progress.seconds) / _KEEPING
        how = {"all_steps": progress.all_steps, "end": progress.steps, "cuts": progress.cuts}
        if best is None:
            return Trained(state.params, progress.step, None, **how)
        # Where the rate falls from the first step on, no loss is known of steps before that.
        gained = progress.before - progress.lowest if self.falling < 1 else 0.0
        is_last_best = progress.error - progress.lowest <= _NOISE * gained
        chosen = state if is_last_best else best
        return Trained(
            chosen.params,
            chosen.step,
            progress.error if is_last_best else progress.lowest,
            still_learning=not progress.has_stopped,
            curve=tuple(curve),
            **how,
        )

    def _has_stopped(self, progress: Progress, best: TrainingState) -> bool:
        """Whether the loss does not fall any more while the rate stays."""
        waited = progress.step - best.step
        return progress.step < progress.held and waited >= _PATIENCE * self._between

    def _goes_on(self, progress: Progress) -> bool:
        """Whether the rate is about to fall while the loss still does, and more steps are allowed."""
        is_about_to_fall = progress.step <= progress.held < progress.step + self._between
        is_allowed = 2 * progress.steps <= self.longer * self.steps
        return is_about_to_fall and is_allowed and not progress.has_stopped
