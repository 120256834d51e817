"""What all objectives share."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from farzi_hf.distillation.learner import Learner, LearnerBatch

Batch = Mapping[str, Tensor]


Objective = Callable[[Learner, Tensor, Tensor, Batch, int], Tensor]
"""`objective(learner, latents, decoder, batch, seed)`."""


def together(learner: Learner, size: int) -> Learner | LearnerBatch:
    """K learners as one; one learner is itself."""
    return learner if size == 1 else learner.batch(size)
