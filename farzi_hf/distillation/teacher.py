"""A start for labels of their own: what teachers, trained on the real data, would predict after
each input.

The last hidden states of a teacher (μ, ξ, h) times its head (h, V) are label latents times a label
decoder: a summary has room for a teacher's labels exactly where `label_dim` is at least h, or h + 1
where the head has a bias. The mean of the logits of K teachers has the same form, with K h numbers;
where `label_dim` is less, the closest labels of that rank are taken.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel

from farzi_hf.common.checks import check_share
from farzi_hf.common.settings import checked, setting
from farzi_hf.common.tensors import load_tensors, save_tensors
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.kept_start import KeptStart
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.processes import broadcast, shared, world
from farzi_hf.distillation.rows import RealData, real_loss, train_on, validation_loss
from farzi_hf.engine import InnerAdam, InnerOptimizer, InnerSoap, TrainingState
from farzi_hf.summary import FarziData
from farzi_hf.summary.teacher import LinearHead

TEACHER_OPTIMIZERS: dict[str, Callable[..., InnerOptimizer]] = {
    "adam": partial(InnerAdam, betas=(0.5, 0.999), eps=1e-4),
    "soap": partial(InnerSoap, betas=(0.7, 0.99), eps=1e-5),
}
"""With long memories: most entries of a large vocabulary are in few steps' rows (recipes/LOG.md).
"""

_CHUNK = 64  # sequences that a teacher reads at once
_EVALUATIONS = 40  # of a training, on held-out rows
_PATIENCE = 8  # evaluations without a better one, after which the rate falls
_NOISE = 0.25  # share of what the fall of the rate has gained
_POINTS = 4  # of a curve, from which its slope is known
_FEW = 256  # held-out rows, which are always worth their time
_LATE = 0.03  # of the seconds of a training: it may be late by so much before it is cut
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


@dataclass
class Progress:
    """How far the training of a teacher is. A file keeps the numbers in this order, and the cuts
    beside them.
    """

    step: int
    """Steps so far."""
    steps: int
    """Of the whole training."""
    held: int
    """Steps until the rate falls."""
    level: float = 1.0
    """The share of the rate from which it falls then."""
    lowest: float = math.inf
    """The lowest loss on held-out rows."""
    before: float = math.inf
    """The same, of the steps before the rate fell."""
    error: float = math.inf
    """The last loss on held-out rows."""
    has_stopped: bool = False
    """Whether the loss fell no more, so that the training went back to its best state."""
    all_steps: int = 0
    """Steps so far, those before the training went back too."""
    seconds: float = 0.0
    """That it has taken."""
    cuts: dict[int, int] = field(default_factory=dict)
    """After how many of all steps it was cut, and to how many of all steps."""

    def share_of_rate(self, step: int) -> float:
        """Of the learning rate, in this step: it stays, and then falls to 0 on a straight line."""
        fallen = max(0, step - 1 - self.held)
        return self.level * (1 - fallen / max(1, self.steps - self.held))

    @property
    def end(self) -> int:
        """All steps when the training ends."""
        return self.all_steps + self.steps - self.step

    def cut(self, end: int) -> None:
        """The rate falls from now on, so that the training ends after so many of all steps."""
        self.level = self.share_of_rate(self.step + 1)
        self.held = self.step
        self.steps = self.step + end - self.all_steps
        self.cuts[self.all_steps] = end

    def go_on(self) -> None:
        """The rate stays for as many steps again."""
        self.held *= 2
        self.steps *= 2

    def go_back(self, step: int) -> None:
        """To the best state: the rate falls from there, in as many steps as it took."""
        self.has_stopped = True
        self.step = step
        self.held = step
        self.steps = 2 * step


class Pace:
    """The seconds that a training has, and how many steps they allow.

    Args:
        within: seconds of the whole training.
        progress: how far it is.
    """

    def __init__(self, within: float, progress: Progress) -> None:
        self._within = within
        self._began = time.perf_counter() - progress.seconds
        self._marks = [(progress.seconds, progress.all_steps)]

    @property
    def seconds(self) -> float:
        """That the training has taken, in earlier starts too."""
        return time.perf_counter() - self._began

    def mark(self, progress: Progress) -> None:
        """From the mark before this one on, the seconds of a step are measured."""
        self._marks = [self._marks[-1], (self.seconds, progress.all_steps)]

    def end(self, progress: Progress) -> int:
        """All steps with which the training ends in time: as many as are planned, or fewer, if it
        would be late. While the rate stays, that is decided after half of the time, because the
        rate falls for as long as it has stayed; and so it is where the rate falls from the first
        step on, because the first steps tell little about the time of the others.
        """
        seconds, steps = self._marks[0]
        spent = self.seconds
        may_wait = progress.step < progress.held or not progress.held
        is_early = may_wait and spent < self._within / 2
        if is_early or progress.all_steps == steps or math.isinf(self._within):
            return progress.end
        each = (spent - seconds) / (progress.all_steps - steps)
        left = self._within - spent
        if each * (progress.end - progress.all_steps) <= left + _LATE * self._within:
            return progress.end
        return progress.all_steps + max(1, int(left / each))


def cuts_of(name: str, numbers: Any) -> dict[int, int]:
    """The cuts of a training by the setting of that name. Raises ValueError if it is no list of
    pairs of integers that are in order.
    """
    numbers = list(numbers) if isinstance(numbers, list | tuple) else [numbers]
    are_integers = all(type(number) is int for number in numbers)
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
    if not are_integers or len(numbers) % 2 or not _are_cuts(pairs):
        raise ValueError(
            f"{name}={numbers!r:.200} is not usable; give pairs of a number of steps and a larger"
            " one, such as [400, 600], or leave it out"
        )
    return dict(pairs)


def _are_cuts(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether each cut is after the one before it, and leaves some steps."""
    afters = [after for after, _ in pairs]
    return afters == sorted(set(afters)) and all(0 < after < end for after, end in pairs)


def numbers_of_cuts(cuts: Mapping[int, int]) -> list[int]:
    """The inverse of `cuts_of`."""
    return [number for pair in cuts.items() for number in pair]


GivenTeachers = PreTrainedModel | Sequence[PreTrainedModel]
"""Trained models over the summary's vocabulary."""
UntrainedTeachers = PreTrainedConfig | Sequence[PreTrainedConfig]
"""Configs of models that are trained for it, one kind or several."""


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
        return cls(
            optimizer,
            given.teacher_steps,
            given.teacher_batch_size,
            counted_share=given.teacher_counted_share,
            cuts=cuts,
        )

    @property
    def whole(self) -> TeacherTraining:
        """The same training, not cut."""
        return replace(self, within=math.inf, cuts={})

    def train(self, learner: Learner, data: RealData, seed: int) -> Trained:
        """One teacher. Its initialisation, its minibatches and its dropout depend on `seed`. Raises
        FloatingPointError if the training diverged.
        """
        loss = real_loss(
            learner,
            replace(data, counted_share=self.counted_share),
            self.batch_size,
            self.steps * self.longer,
            derive(seed, Purpose.TEACHER_MINIBATCHES),
            self.dropout,
            steps_of(self.kept),
        )
        start = learner.initial_parameters(derive(seed, Purpose.TEACHER), data.device)
        # As students and the stock Trainer have it.
        optimizer = self.optimizer.without_decay(learner.no_decay)
        training = replace(self, optimizer=optimizer)
        return training.run("Teacher", loss, start, data.quiet, self.validation(learner, data))

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
            state, best, progress, curve = self._going_on(start, validation is not None)
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
                    self._keep(state, best, progress, curve)
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

    def _keep(
        self,
        state: TrainingState,
        best: TrainingState | None,
        progress: Progress,
        curve: Sequence[tuple[int, float]],
    ) -> None:
        *numbers, cuts = astuple(progress)
        best_step = 0 if best is None else best.step
        tensors = {
            **state.to_tensors("now"),
            **({} if best is None else best.to_tensors("best")),
            "numbers": torch.tensor([best_step, *numbers], dtype=torch.float64),
            "cuts": torch.tensor(numbers_of_cuts(cuts), dtype=torch.int64),
            "curve": torch.tensor(curve, dtype=torch.float64).reshape(-1, 2),
        }
        save_tensors(self.kept, {name: x.cpu().contiguous() for name, x in tensors.items()})

    def _going_on(
        self, start: Parameters, is_judged: bool
    ) -> tuple[TrainingState, TrainingState | None, Progress, list[tuple[int, float]]]:
        """What `_keep` has written: the state, the best one so far, how far the training is, and
        its curve.

        Args:
            is_judged: whether there are held-out rows, and so a best state.
        """
        try:
            tensors, _ = load_tensors(self.kept)
            best_step, *numbers = tensors["numbers"].tolist()
            kinds = [type(value) for value in astuple(Progress(0, 0, 0))[:-1]]
            known = (kind(x) for kind, x in zip(kinds, numbers, strict=True))
            progress = Progress(*known, cuts_of("cuts", tensors["cuts"].tolist()))
            now = TrainingState.of_tensors("now", tensors, start, self.optimizer, progress.step)
            best = None
            if is_judged:
                best = TrainingState.of_tensors(
                    "best", tensors, start, self.optimizer, int(best_step)
                )
            # Files of older versions have no curve.
            curve = [(int(step), x) for step, x in tensors.get("curve", torch.empty(0)).tolist()]
            return now, best, progress, curve
        except (KeyError, ValueError, TypeError) as error:
            raise ValueError(
                f"{str(self.kept)!r} holds no training that can go on ({error}); remove it, and the"
                " training begins again"
            ) from None


def seconds_of(kept: Path) -> float:
    """How long the training whose state is in this file has taken; 0 if there is none. Raises
    ValueError if the file is damaged.
    """
    return float(load_tensors(kept)[0]["numbers"][-1]) if kept.exists() else 0.0


def steps_of(kept: Path | None) -> int:
    """How many steps that training has taken, those from which it went back too. 0 if there is no
    file, or it holds no training: an error follows where the training begins.
    """
    if kept is None or not kept.exists():
        return 0
    try:
        return int(load_tensors(kept)[0]["numbers"][-2])
    except (ValueError, LookupError):
        return 0


@dataclass(frozen=True)
class Labelling:
    """Where the labels of a summary come from.

    Args:
        kinds: the models that are to be trained for it.
        given: trained teachers; None if they are to be trained.
    """

    kinds: tuple[Learner, ...]
    given: tuple[PreTrainedModel, ...] | None = None

    @classmethod
    def by(cls, teacher: GivenTeachers | UntrainedTeachers | None, learner: Learner) -> Labelling:
        """By trained teachers, by models of other configs that are to be trained, or (None) by
        learners. Raises ValueError if the teachers are none, or some of them are models and others
        configs.
        """
        if teacher is None:
            return cls((learner,))
        is_one = isinstance(teacher, PreTrainedModel | PreTrainedConfig)
        teachers = (teacher,) if is_one else tuple(teacher)
        are_configs = {isinstance(each, PreTrainedConfig) for each in teachers}
        if len(are_configs) != 1:
            names = ", ".join(type(each).__name__ for each in teachers) or "empty"
            raise ValueError(f"teacher is {names}; give trained models only, or configs only")
        if are_configs == {True}:
            return cls(tuple(map(Learner, teachers)))
        return cls((learner,), teachers)

    @property
    def model(self) -> PreTrainedModel:
        """A model of the kind of the first teacher."""
        return self.kinds[0].model if self.given is None else self.given[0]

    @property
    def has_several(self) -> bool:
        """Whether there are several models, whose mean labels."""
        return len(self.kinds if self.given is None else self.given) > 1

    @property
    def first(self) -> Labelling:
        """By the first of the models alone."""
        given = None if self.given is None else self.given[:1]
        return Labelling(self.kinds[:1], given)

    def teachers(
        self, data: RealData, training: TeacherTraining, seed: int, kept: KeptStart | None = None
    ) -> list[Teacher]:
        """The teachers that were given; or of each kind as many as `training` says, each with a
        seed of its own. Processes share the work.

        Args:
            kept: the state of their trainings, from which they go on.
        """
        device = data.device
        if self.given is not None:
            teachers = []
            for model in self.given:
                params = {name: x.detach().to(device) for name, x in model.named_parameters()}
                teachers.append(Teacher(Learner(model).to(device), params))
            return teachers
        teachers = []
        for number, kind in enumerate(self.kinds):
            first = derive(seed, Purpose.TEACHER_KIND, number) if number else seed
            seeds = [derive(first, Purpose.TEACHER_NUMBER, i) for i in range(training.count)]
            trainings = [
                _kept(training, kept, f"teacher-{number}-{i}") for i in range(training.count)
            ]
            teachers += _trained(kind.to(device), data, trainings, seeds)
        return teachers

    def __call__(
        self, farzi: FarziData, data: RealData, settings: Any, kept: KeptStart | None = None
    ) -> dict[str, float]:
        """Sets the labels of a summary. Groups of tokens are those that the first teacher sees
        alike.

        Args:
            farzi: with labels of its own, or with room for one teacher; changed in place.
            data: on which teachers train.
            settings: a `FarziConfig`.
            kept: the state of their trainings, from which they go on.

        Returns:
            The steps and the validation loss of the first teacher, and of its training in few bits,
            where this process has trained it.
        """
        training = settings.make_teacher_training()
        if farzi.carried is not None:
            trained, packed = self.pack(farzi, data, settings, training, kept)
            facts = {} if trained is None else trained.facts("teacher")
            return facts if packed is None else {**facts, **packed.facts("packing")}
        teachers = self.teachers(data, training, settings.seed, kept)
        facts = {} if teachers[0].trained is None else teachers[0].trained.facts("teacher")
        start = settings.make_start()
        if start.by_teacher:
            embeddings = teachers[0].learner.embeddings(teachers[0].params)
            start(farzi, data.dataset, settings.seed, embeddings)
        label(farzi, teachers)
        # Processors that differ would make labels that differ in the last bits.
        broadcast(farzi.tensors)
        return facts

    def pack(
        self,
        farzi: FarziData,
        data: RealData,
        settings: Any,
        training: TeacherTraining,
        kept: KeptStart | None = None,
    ) -> tuple[Trained | None, Trained | None]:
        """Writes the teacher into a summary that carries it, packed into few bits.

        Args:
            farzi, data, settings, kept: as of a call; the summary is changed in place.
            training: of the teacher, and of its packing in all but the steps.

        Returns:
            How the teacher was trained, and how it was packed; None where that was not done, or by
            another process.
        """
        [teacher] = self.teachers(data, replace(training, count=1), settings.seed, kept)
        packing = settings.make_packing()
        training = _kept(training, kept, f"packing-{world()[0]}")  # all processes pack
        packed = packing(farzi, teacher, data, training, settings.storage, settings.seed)
        broadcast(farzi.tensors)
        return teacher.trained, packed


def _kept(training: TeacherTraining, kept: KeptStart | None, name: str) -> TeacherTraining:
    """The training with its state in the file of that name, where one is kept."""
    return training if kept is None else replace(training, kept=kept.file(name))


def _trained(
    kind: Learner, data: RealData, trainings: Sequence[TeacherTraining], seeds: Sequence[int]
) -> list[Teacher]:
    """A teacher of one kind for each training and its seed. Processes share the work, and then all
    have all of them. Only the process that has trained one knows how.
    """
    by_this_process: dict[int, Trained] = {}

    def train(number: int) -> Parameters:
        trained = trainings[number].train(kind, data, seeds[number])
        by_this_process[number] = trained
        return trained.params

    like = partial(kind.initial_parameters, seeds[0], data.device)
    of_all_processes = shared(len(seeds), train, like)
    return [
        Teacher(kind, params, by_this_process.get(number))
        for number, params in enumerate(of_all_processes)
    ]


@torch.no_grad()
def label(farzi: FarziData, teachers: Sequence[Teacher]) -> None:
    """Sets the labels of a summary to what teachers predict after each of its inputs: the softmax
    of the mean of their logits. Raises ValueError if the logits of a teacher are not a linear
    function of its last hidden states, or it has another vocabulary.

    Args:
        farzi: with labels of its own; changed in place.
        teachers: over the vocabulary of the summary.
    """
    factors = [_factors(farzi, teacher) for teacher in teachers]
    states = torch.cat([states / len(teachers) for states, _ in factors], dim=1)
    weight = torch.cat([weight for _, weight in factors])
    farzi.forms.labels.begin_at(farzi.tensors, states, weight)


def _factors(farzi: FarziData, teacher: Teacher) -> tuple[Tensor, Tensor]:
    """(μ·ξ, k) and (k, V), whose product is the teacher's logits."""
    learner = teacher.learner
    params = teacher.params
    if learner.vocab_size != farzi.config.vocab_size:
        raise ValueError(
            f"teacher: it has a vocabulary of {learner.vocab_size} entries, the summary one of"
            f" {farzi.config.vocab_size}; give one with the same"
        )
    head = linear_head(learner)
    states = []
    for first in range(0, farzi.config.num_sequences, _CHUNK):
        inputs = farzi.forms.inputs.batch(farzi.tensors, slice(first, first + _CHUNK))
        states.append(learner.states(params, learner.arguments(params, inputs)).flatten(0, 1))
    return head.factors(torch.cat(states), params)


def linear_head(learner: Learner) -> LinearHead:
    """The head of a model that is to label. Its `width` is the `label_dim` with which labels hold
    all that the model predicts. Raises ValueError if the model has no linear head.
    """
    if learner.head is None:
        raise ValueError(
            f"teacher: a {type(learner.model).__name__} has no linear head; give another"
        )
    return learner.head
