"""Meta-matching: the loss on real data after a training on the summary (Farzi, and MM)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.distillation.learner_pool import LearnerPool
from farzi_hf.distillation.objectives.base import Batch, ConfigurableObjective, Parts, together
from farzi_hf.distillation.trajectories import Starts, random_starts, start_of
from farzi_hf.engine import setting
from farzi_hf.summary.forms import Tensors, device_of


@dataclass(frozen=True)
class MetaMatching(ConfigurableObjective):
    """E_{θ0} L_D(θ_T(θ0, summary)): a learner trains on the summary, and this is its loss on real data (equation 2; with Ω, 3).

    Args:
        training: the inner loop.
        steps: T.
        steps_min: T is drawn uniformly from steps_min … steps; with a window this is RaT-BPTT (arXiv 2311.07025).
        learners: K, the number of θ0 over which the expectation is averaged, trained at once.
        starts: draws θ0. The paper's Farzi starts from Ω (`PretrainedStarts`); the paper's MM starts from `random_starts`.
        pool: learners that go on from call to call, in place of fresh ones; T is then the age of each.
    """

    training: SyntheticTraining
    steps: int
    steps_min: int
    learners: int = 1
    starts: Starts = random_starts
    pool: LearnerPool | None = None

    @dataclass(frozen=True)
    class Settings:
        inner_steps_min: int | None = setting(
            None, "in each outer step, T is drawn from inner_steps_min … inner_steps", least=1
        )
        learner_pool: int | None = setting(
            None,
            "learners that go on from outer step to outer step (`LearnerPool`); by default each outer step trains a fresh one",
            least=1,
        )

    @classmethod
    def check(cls, config: Any) -> None:
        """T has a range, and a pool needs a window, and ages after its first window."""
        steps, least = config.inner_steps, config.inner_steps_min
        if least is not None and least > steps:
            raise ValueError(
                f"inner_steps_min={least} is more than inner_steps={steps}, but T is drawn between the two; lower inner_steps_min"
            )
        if config.learner_pool is not None and not (config.window and config.window < (least or 0) < steps):
            raise ValueError(
                f"learner_pool={config.learner_pool} needs ages for its learners, with window < inner_steps_min < inner_steps; here they are "
                f"window={config.window}, inner_steps_min={least}, inner_steps={steps}"
            )

    @classmethod
    def from_config(cls, config: Any, parts: Parts) -> MetaMatching:
        steps, least, pool = config.inner_steps, config.inner_steps_min or config.inner_steps, None
        training, starts = parts.training, parts.starts(config)
        if config.learner_pool is not None:
            seed = derive(config.seed, Purpose.POOL, config.process_index)
            pool = LearnerPool(training, config.learner_pool, least, steps, starts, seed)
        return cls(training, steps, least, config.learners_per_step, starts, pool)

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """The outer loss in nats per token, differentiable in the summary's tensors. θ0, T and minibatches depend on `seed`, or on the pool."""
        several, theta = self.trained(learner, summary, seed)
        return several.hard_loss(theta, batch)

    def trained(self, learner: Learner, summary: Tensors, seed: int) -> tuple[Learner | LearnerBatch, Parameters]:
        """The learners, and their θ after the training on the summary."""
        several = together(learner, self.learners)
        return several, self._fresh(several, summary, seed) if self.pool is None else self.pool(several, summary)

    def _fresh(self, several: Learner | LearnerBatch, summary: Tensors, seed: int) -> Parameters:
        steps = int(stream(seed, Purpose.INNER_STEPS).integers(self.steps_min, self.steps + 1))
        start = start_of(self.starts, several, seed, device_of(summary))
        return self.training(several, summary, start=start, steps=steps, seed=seed, of_steps=self.steps)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Tensor]:
        """The pool's learners."""
        return {} if self.pool is None else self.pool.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor], learner: Learner, device: Any) -> None:
        """Goes on with the learners of `state_dict`."""
        if self.pool is not None:
            self.pool.load_state_dict(tensors, together(learner, self.learners), device)
