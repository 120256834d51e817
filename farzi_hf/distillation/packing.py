"""Training a teacher in the few bits that it will be stored in.

The loss sees the rounded matrices W' (`farzi_hf.summary.teacher`), and a penalty keeps the whole
numbers small, so that they need few bits once they are coded by their entropy:

    min over W, s of   L(W') + λ · mean log(1 + |W / s|)

L is the loss on real data. Where there are several teachers, it is the cross-entropy of what they
predict there on average, without dropout, so that the one that is stored stands for all of them.

A matrix has a scale for each of its columns. Vectors (biases, norms) are few, and stay as they are.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.learner import Parameters, is_constant
from farzi_hf.distillation.mean_prediction import MeanPrediction
from farzi_hf.distillation.rows import RealData, real_loss
from farzi_hf.distillation.teacher import Teacher, TeacherTraining, Trained
from farzi_hf.distillation.training_progress import cuts_of, steps_of
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import Tensors
from farzi_hf.summary.store.tensor_file import STORAGES, TEACHER
from farzi_hf.summary.teacher import rounded

_LOG_SCALE = ".log_scale"
_SPREAD = 3.0  # standard deviations of a column that the whole numbers span at the start
_SLOWER = 0.4  # the learning rate, as a share of the teacher's
_FEW = 1500  # steps; in fewer ones, what large steps disturb at first is not mended in time
_SLOWEST = 0.25  # the least share of that rate for few steps


@dataclass(frozen=True)
class Packing:
    """How a teacher trains on in few bits.

    Args:
        penalty: λ.
        steps: as many as those of the teacher, by default. 0: it is rounded and no more.
        cuts: as pairs, see `TeacherTraining`.
    """

    penalty: float = setting(
        0.15, "λ of a carried teacher: the larger, the fewer bytes", name="packing_penalty"
    )
    steps: int | None = setting(
        None, "steps in few bits; by default teacher_steps", name="packing_steps", least=0
    )
    cuts: tuple[int, ...] = setting(
        (), "the same as teacher_cuts, of the steps in few bits", name="packing_cuts", start=[]
    )

    def __post_init__(self) -> None:
        if not 0 <= self.penalty < math.inf:
            raise ValueError(
                f"packing_penalty must be a finite number from 0 on, got {self.penalty!r}; 0 does"
                " without it"
            )

    def learns_in(self, storage: str) -> bool:
        """Whether a teacher trains on in this storage; in others it is written as it is."""
        return self.steps != 0 and hasattr(STORAGES[storage], "largest")

    def __call__(
        self,
        farzi: FarziData,
        teachers: Sequence[Teacher],
        data: RealData,
        training: TeacherTraining,
        storage: str,
        seed: int,
    ) -> Trained | None:
        """Trains the first teacher on in the bits of `storage`, and writes what is left of it into
        the summary that carries it. It trains on the real data, as before, or, where there are
        several, on what all of them predict there on average; at a rate that falls from the first
        step on, and takes the best state on held-out rows. Returns how, where steps were taken.

        Raises:
            FloatingPointError: the training diverged.
            ValueError: the predictions of several teachers have no mean, see `MeanPrediction`.
        """
        learner = teachers[0].learner
        params = teachers[0].params
        trained = None
        steps = training.steps if self.steps is None else self.steps
        largest = getattr(STORAGES[storage], "largest", None)
        if steps and largest is not None:
            share = _SLOWER * min(1.0, max(_SLOWEST, steps / _FEW))
            optimizer = replace(training.optimizer, lr=share * training.optimizer.lr)
            cuts = cuts_of("packing_cuts", self.cuts)
            # What a trained model loses in its first steps in few bits says nothing of whether it
            # learns: the rate must not wait for that, and the training must not go back to them.
            slower = replace(training, optimizer=optimizer, steps=steps, cuts=cuts, falling=1.0)
            seed = derive(seed, Purpose.PACKING)
            # What several teachers predict has what counts could add, and cannot be learnt by heart:
            # without dropout the one that is stored comes much closer to it (recipes/LOG.md).
            is_one = len(teachers) == 1
            labelled = replace(data, counted_share=training.counted_share if is_one else 0.0)
            loss = real_loss(
                learner,
                labelled,
                training.batch_size,
                steps,
                seed,
                dropout=is_one,
                taken=steps_of(training.kept),
                nested_widths=training.nested_widths,
                targets=None if is_one else MeanPrediction(teachers),
            )
            validation = slower.validation(learner, data)
            trained = self.in_few_bits(slower, loss, params, largest, data.quiet, validation)
            params = trained.params
        with torch.no_grad():
            for name, x in farzi.teacher.named_parameters():
                x.copy_(params[name])
        return trained

    def in_few_bits(
        self,
        training: TeacherTraining,
        loss: Callable[[Parameters, int], Tensor],
        params: Parameters,
        largest: int,
        quiet: bool,
        validation: Callable[[Parameters], float] | None,
    ) -> Trained:
        """W' after the training by L(W') + λ · mean log(1 + |W / s|). The best state is that with
        the lowest of the same on held-out rows: bytes count there too.
        """

        def penalty(theta: Parameters) -> Tensor:
            return self.penalty * _mean_log(theta, largest)

        def penalised(theta: Parameters, step: int) -> Tensor:
            return loss(_rounded(theta, largest), step) + penalty(theta)

        @torch.no_grad()
        def held_out(theta: Parameters) -> float:
            return float(validation(_rounded(theta, largest)) + penalty(theta))

        start = _with_scales(params, largest)
        judged_by = None if validation is None else held_out
        trained = training.run("Packing", penalised, start, quiet, judged_by)
        packed = _rounded(trained.params, largest, as_stored=True)
        error = None if validation is None else validation(packed)
        return Trained(packed, trained.steps, error, end=trained.end, cuts=trained.cuts)


def _with_scales(params: Parameters, largest: int) -> Parameters:
    """The parameters, and log-scales at which the whole numbers span three standard deviations of
    each column, and its mean.
    """
    scaled = dict(params)
    for name, x in params.items():
        if x.dim() > 1 and not is_constant(x):
            rows = x.detach().flatten(0, -2)
            deviation = rows.std(dim=0, correction=min(1, len(rows) - 1))
            deviation = deviation.maximum(rows.mean(dim=0).abs() / 2).clamp_min(1e-8)
            scaled[name + _LOG_SCALE] = (_SPREAD * deviation / (largest + 1)).log()
    return scaled


def _rounded(params: Parameters, largest: int, as_stored: bool = False) -> Parameters:
    """W' of all matrices, without their scales.

    Args:
        as_stored: takes the scales in the precision of the file, so that storing W' loses nothing.
    """
    weights = {name: x for name, x in params.items() if not name.endswith(_LOG_SCALE)}
    scales = {
        name: params[name + _LOG_SCALE].exp() for name in weights if name + _LOG_SCALE in params
    }
    if as_stored:
        scales = {name: scale.half().float() for name, scale in scales.items()}
    return {
        **weights,
        **{name: rounded(weights[name], scale, largest) for name, scale in scales.items()},
    }


def _mean_log(params: Parameters, largest: int) -> Tensor:
    """mean log(1 + |W / s|) over all numbers of matrices."""
    total = 0.0
    count = 0
    for name, x in params.items():
        log_scale = params.get(name + _LOG_SCALE)
        if log_scale is not None:
            total = total + torch.log1p((x / log_scale.exp()).clamp(-largest, largest).abs()).sum()
            count += x.numel()
    return total / max(count, 1)


class Rounding:
    """Rounds a carried teacher in each outer step as it will be stored, and passes the rounding
    straight through.

    Scales are those of the start of the run. Other summaries are left as they are.
    """

    def __init__(self) -> None:
        self.scales: dict[str, Tensor] = {}
        self._largest = 0

    def start(self, farzi: FarziData, storage: str) -> None:
        """Takes over the scales of the teacher that `farzi` carries, unless a resumed run has
        brought its own.
        """
        largest = getattr(STORAGES[storage], "largest", None)
        if farzi.carried is None or largest is None:
            return
        self._largest = largest
        if not self.scales:
            tensors = farzi.tensors.items()
            teacher = {name: x.detach() for name, x in tensors if name.startswith(TEACHER)}
            self.scales = STORAGES[storage].scales(teacher)

    def __call__(self, tensors: Tensors) -> Tensors:
        """The tensors with W' in place of W."""
        new = {
            name: rounded(tensors[name], s.to(tensors[name]), self._largest)
            for name, s in self.scales.items()
        }
        return {**tensors, **new}

    @torch.no_grad()
    def finish(self, farzi: FarziData) -> None:
        """Leaves the rounded numbers in the summary."""
        if self.scales:
            for name, x in self(farzi.tensors).items():
                farzi.tensors[name].copy_(x)

    def state_dict(self) -> dict[str, Tensor]:
        """For a checkpoint."""
        return dict(self.scales)

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on with the scales of a checkpoint."""
        self.scales = dict(tensors)
