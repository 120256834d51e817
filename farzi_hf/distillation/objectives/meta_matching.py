"""Meta-matching: the loss on real data after a training on the summary (Farzi, and MM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives.base import Batch, ConfigurableObjective, device_of, together
from farzi_hf.distillation.starts import Starts, random_starts, starts_of
from farzi_hf.distillation.trajectory_bank import TrajectoryBank
from farzi_hf.summary.forms import Tensors


@dataclass(frozen=True)
class MetaMatching(ConfigurableObjective):
    """E_{θ0} L_D(θ_T(θ0, summary)): a learner trains on the summary, and this is its loss on real data (equation 2; with Ω, 3).

    Args:
        training: the inner loop.
        steps: T.
        steps_min: T is drawn uniformly from steps_min … steps; with a window this is RaT-BPTT (arXiv 2311.07025).
        learners: K, the number of θ0 over which the expectation is averaged, trained at once.
        starts: draws θ0. The paper's Farzi starts from Ω (`PretrainedStarts`); the paper's MM starts from `random_starts`.
    """

    training: SyntheticTraining
    steps: int
    steps_min: int
    learners: int = 1
    starts: Starts = random_starts

    @classmethod
    def from_config(cls, config: Any, training: SyntheticTraining, bank: TrajectoryBank | None) -> MetaMatching:
        least = config.inner_steps_min or config.inner_steps
        return cls(training, config.inner_steps, least, config.learners_per_step, starts_of(config, bank))

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """The outer loss in nats per token, differentiable in the summary's tensors. θ0, T and minibatches depend on `seed`."""
        steps = int(stream(seed, Purpose.INNER_STEPS).integers(self.steps_min, self.steps + 1))
        several = together(learner, self.learners)
        start = several.stack([self.starts(learner, each, device_of(summary)) for each in several.seeds(seed)])
        theta = self.training(several, summary, start=start, steps=steps, seed=seed, of_steps=self.steps)
        return several.hard_loss(theta, batch)
