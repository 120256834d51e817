"""Gradient matching (DC)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, Parameters, leaves
from farzi_hf.distillation.objectives.base import Batch, ConfigurableObjective, Parts
from farzi_hf.distillation.trajectories import Starts, random_starts
from farzi_hf.engine import autocast_settings, no_autocast
from farzi_hf.summary.forms import Tensors, device_of


@dataclass(frozen=True)
class GradientMatching(ConfigurableObjective):
    """DC (Zhao et al., 2021): the gradient in θ on the summary should point in the same direction
    as the gradient on real data.

    The loss is Σ over parameter tensors of 1 − cos(∇L_syn(θ_t), ∇L_D(θ_t)), for a learner after t
    steps on the summary. The paper sums over t; here each outer step takes one term of the sum,
    with t drawn uniformly from 0 … T − 1. θ_t is detached: no gradient passes through the training,
    and the adjoint does not matter.

    Args:
        training: the inner loop that leads to θ_t. The gradient is matched on the synthetic
            minibatch of step t + 1.
        steps: T.
        starts: draws θ0.
    """

    training: SyntheticTraining
    steps: int
    starts: Starts = random_starts

    @classmethod
    def from_config(cls, config: Any, parts: Parts) -> GradientMatching:
        return cls(parts.training, config.inner_steps, parts.starts(config))

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """The distance, between 0 and twice the number of tensors, differentiable in the summary's
        tensors.
        """
        taken = int(stream(seed, Purpose.MATCHED_STEP).integers(self.steps))
        theta = self.starts(learner, seed, device_of(summary))
        if taken:
            with torch.no_grad():
                theta = self.training(
                    learner, summary, start=theta, steps=taken, seed=seed, of_steps=self.steps
                )
        theta = leaves(theta)
        loss = self.training.inner_loss(learner, summary, taken + 1, seed)
        synthetic = _gradients(
            loss(theta, tuple(summary.values()), taken + 1), theta, create_graph=True
        )
        real = _gradients(learner.hard_loss(theta, batch), theta)
        return _cosine_distance(synthetic, real)


NEGLIGIBLE = 1e-6
"""Share of the whole gradient's norm. A tensor whose gradient is smaller has only rounding errors
there, and no direction to match.
"""


def _gradients(loss: Tensor, theta: Parameters, create_graph: bool = False) -> list[Tensor]:
    trained = [x for x in theta.values() if x.requires_grad]
    with no_autocast(autocast_settings(tuple(trained))):  # only the loss is under autocast
        return list(
            torch.autograd.grad(loss, trained, create_graph=create_graph, materialize_grads=True)
        )


def _cosine_distance(synthetic: Sequence[Tensor], real: Sequence[Tensor]) -> Tensor:
    """Σ over tensors of 1 − cos. Tensors whose real gradient is negligible are left out; an
    attention key's bias is one.
    """
    norms = torch.stack([x.norm() for x in real])
    cosines = torch.stack(
        [
            F.cosine_similarity(x.flatten(), y.flatten(), dim=0, eps=1e-12)
            for x, y in zip(synthetic, real, strict=True)
        ]
    )
    return torch.where(norms > NEGLIGIBLE * norms.norm(), 1 - cosines, 0.0).sum()
