"""The starts of inner loops: fresh initialisations, or checkpoints of real training (Ω)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.distillation.trajectory_bank import TrajectoryBank

Starts = Callable[[Learner, int, torch.device], Parameters]
"""`starts(learner, seed, device)`: θ_0, a function of the seed. `PretrainedStarts` is one."""


def random_starts(learner: Learner, seed: int, device: torch.device) -> Parameters:
    """θ_0 as the learner initialises it."""
    return learner.initial_parameters(seed, device)


def start_of(starts: Starts, learner: Learner | LearnerBatch, seed: int, device: torch.device) -> Parameters:
    """θ_0 of one learner, or of several that train together, each with a seed of its own."""
    return learner.stack([starts(learner.single, each, device) for each in learner.seeds(seed)])


def starts_of(config: Any, bank: TrajectoryBank | None) -> Starts:
    """The starts that a `FarziConfig` names. Without Ω, all starts are fresh; with Ω, some come from it."""
    return random_starts if bank is None else PretrainedStarts(bank, config.fresh_start_fraction, config.last_start)


@dataclass(frozen=True)
class PretrainedStarts:
    """The starts of equation (3), θ_0 ~ Ω, mixed with fresh initialisations.

    If all starts came from checkpoints of real training, the summary would only learn to finish a training. A student that
    starts from scratch would learn nothing from it. Ω also holds only a few initialisations, and the summary would overfit
    to them. Fresh initialisations prevent both.

    Args:
        bank: Ω.
        fresh: share of the starts that are fresh initialisations.
        last_step: no start is later than this step of real training; None takes all steps.
    """

    bank: TrajectoryBank
    fresh: float = 0.5
    last_step: int | None = None

    def __call__(self, learner: Learner, seed: int, device: torch.device | str | None = None) -> Parameters:
        """θ_0, a function of `seed`."""
        if stream(seed, Purpose.FRESH_START).random() < self.fresh:
            return learner.initial_parameters(seed, device)
        return learner.with_shared(self.bank.sample(seed, self.last_step, device))
