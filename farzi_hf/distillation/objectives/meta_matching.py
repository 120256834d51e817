"""Meta-matching: the loss on real data after a training on the summary (Farzi, and MM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.objectives.base import Batch, ConfigurableObjective, Parts
from farzi_hf.distillation.trajectories import Starts, random_starts
from farzi_hf.engine import TrainingState
from farzi_hf.summary.forms import Tensors, device_of


@dataclass(frozen=True)
class MetaMatching(ConfigurableObjective):
    """E_{θ0} L_D(θ_T(θ0, summary)): a learner trains on the summary, and this is its loss on real
    data (equation 2; with Ω, 3).

    Args:
        training: the inner loop.
        steps: T.
        steps_min: T is drawn uniformly from steps_min … steps; with a window this is RaT-BPTT
            (arXiv 2311.07025).
        starts: draws θ0. The paper's Farzi starts from Ω (`PretrainedStarts`); the paper's MM
            starts from `random_starts`.
        pool: learners that go on from call to call, in place of fresh ones; T is then the age of
            each.
    """

    training: SyntheticTraining
    steps: int
    steps_min: int
    starts: Starts = random_starts
    pool: LearnerPool | None = None

    @dataclass(frozen=True)
    class Settings:
        inner_steps_min: int | None = setting(
            None, "an outer step draws T from inner_steps_min … inner_steps", least=1
        )
        learner_pool: int | None = setting(
            None,
            "learners that go on from outer step to outer step (`LearnerPool`); by default, none",
            least=1,
        )

    @classmethod
    def check(cls, config: Any) -> None:
        """T has a range, and a pool needs a window, and ages after its first window."""
        steps = config.inner_steps
        least = config.inner_steps_min
        if least is not None and least > steps:
            raise ValueError(
                f"inner_steps_min={least} is more than inner_steps={steps}; lower inner_steps_min"
            )
        if config.learner_pool is not None and not (
            config.window and config.window < (least or 0) < steps
        ):
            raise ValueError(
                f"learner_pool={config.learner_pool} needs window < inner_steps_min < inner_steps,"
                f" got {config.window}, {least}, {steps}"
            )

    @classmethod
    def from_config(cls, config: Any, parts: Parts) -> MetaMatching:
        steps = config.inner_steps
        least = config.inner_steps_min or config.inner_steps
        pool = None
        training = parts.training
        starts = parts.starts(config)
        if config.learner_pool is not None:
            seed = derive(config.seed, Purpose.POOL, config.process_index)
            pool = LearnerPool(training, config.learner_pool, least, steps, starts, seed)
        return cls(training, steps, least, starts, pool)

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """The outer loss in nats per token, differentiable in the summary's tensors. θ0, T and
        minibatches depend on `seed`, or on the pool.
        """
        return learner.hard_loss(self.trained(learner, summary, seed), batch)

    def trained(self, learner: Learner, summary: Tensors, seed: int) -> Parameters:
        """θ after the training on the summary."""
        if self.pool is not None:
            return self.pool(learner, summary)
        steps = int(stream(seed, Purpose.INNER_STEPS).integers(self.steps_min, self.steps + 1))
        start = self.starts(learner, seed, device_of(summary))
        return self.training(
            learner, summary, start=start, steps=steps, seed=seed, of_steps=self.steps
        )

    # -- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """The pool's learners."""
        return {} if self.pool is None else self.pool.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor], learner: Learner, device: Any) -> None:
        """Goes on with the learners of `state_dict`."""
        if self.pool is not None:
            self.pool.load_state_dict(tensors, learner, device)


class LearnerPool:
    """Learners that go on from outer step to outer step, in place of a fresh learner for each. Each
    call takes the next one, and differentiates its next `window` steps.

    A fresh learner takes T − w steps before the window of w steps in which the outer loss is
    differentiated. A learner of the pool has taken them already. The idea is FRePo's (Zhou et al.,
    2022); there, as here, a learner is replaced by a fresh one when it is old.

    The age of a learner is the number of steps that it has taken, with those of the window: from
    `youngest` to `oldest`. The first learners have ages spread over this range. The steps of a
    window are taken again at the learner's next turn, on the summary as it is then. Its earlier
    steps were on earlier states of the summary. A learner that diverges makes way for a fresh one.

    Args:
        training: the inner loop, with a window.
        size: the number of learners.
        youngest, oldest: ages at which the outer loss is measured.
        starts: draws θ0.
        seed: of all that is drawn. Each process has a seed of its own, and so a pool of its own.
    """

    def __init__(
        self,
        training: SyntheticTraining,
        size: int,
        youngest: int,
        oldest: int,
        starts: Starts,
        seed: int,
    ) -> None:
        self.training = training
        self.youngest = youngest
        self.oldest = oldest
        self.starts = starts
        self.seed = seed
        self._turn = 0
        self.window = min(training.window or youngest, youngest)
        self._generations = [0] * size  # how many learners have had each place before
        self._states: list[TrainingState | None] = [None] * size

    def __call__(self, learner: Learner, summary: Tensors) -> Parameters:
        """θ of the next learner after its next steps, differentiable in the tensors of
        the summary.
        """
        place = self._turn
        start = self._states[self._turn]
        steps = self.window
        self._turn = (place + 1) % len(self._states)
        if start is not None and start.step + 2 * self.window > self.oldest:
            self._retire(place)
            start = None
        seed = derive(self.seed, Purpose.POOL_LEARNER, place, self._generations[place])
        if start is None:
            first = self._generations[place] == 0
            age = (self.oldest - self.youngest) * place // len(self._states) if first else 0
            steps = self.youngest + age - self.window
            start = self.starts(learner, seed, device_of(summary))
        training = {"seed": seed, "of_steps": self.oldest}
        state = self._states[place] = self.training.advance(
            learner, summary, start=start, steps=steps, **training
        )
        try:
            theta = self.training(learner, summary, start=state, steps=self.window, **training)
        except OverflowError:  # it has diverged, and is too large for the adjoint
            self._retire(place)
            raise
        if not torch.stack([x.isfinite().all() for x in theta.values()]).all():
            self._retire(place)
        return theta

    def _retire(self, place: int) -> None:
        """A learner makes way for a fresh one."""
        self._generations[place] += 1
        self._states[place] = None

    # -- checkpoints -------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """All that a resumed run needs to go on as if it had not been interrupted."""
        steps = [-1 if state is None else state.step for state in self._states]
        members = torch.tensor([*zip(self._generations, steps, strict=True)])
        tensors = {"turn": torch.tensor(self._turn), "members": members}
        for place, state in enumerate(self._states):
            tensors |= state.to_tensors(str(place)) if state else {}
        return tensors

    def load_state_dict(self, tensors: Mapping[str, Tensor], learner: Learner, device: Any) -> None:
        """The inverse of `state_dict`, in a pool with the same settings."""
        self._turn = int(tensors["turn"])
        for place, (generation, step) in enumerate(tensors["members"].tolist()):
            self._generations[place] = generation
            self._states[place] = None
            if step >= 0:
                seed = derive(self.seed, Purpose.POOL_LEARNER, place, generation)
                start = self.starts(learner, seed, device)
                optimizer = self.training.optimizer_for(learner, 1)
                self._states[place] = TrainingState.of_tensors(
                    str(place), tensors, start, optimizer, step
                )
