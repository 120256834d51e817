"""Where inner loops start: fresh initialisations, or checkpoints of real training (Omega)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.trajectory_bank import TrajectoryBank

Starts = Callable[[Learner, int, torch.device], Parameters]
"""`starts(learner, seed, device)`: θ_0, a function of the seed. `PretrainedStarts` is one."""


def random_starts(learner: Learner, seed: int, device: torch.device) -> Parameters:
    """θ_0 as the learner initialises it."""
    return learner.initial_parameters(seed, device)


def starts_of(config: Any, bank: TrajectoryBank | None) -> Starts:
    """The starts that a `FarziConfig` asks for: from Ω and fresh ones, or fresh ones alone where there is no Ω."""
    return random_starts if bank is None else PretrainedStarts(bank, config.fresh_start_fraction, config.last_start)


@dataclass(frozen=True)
class PretrainedStarts:
    """Where inner loops start in equation (3), θ_0 ~ Ω, with fresh initialisations in the mix.

    From checkpoints of real training alone the summary learns to finish trainings, and a student that starts from scratch
    learns nothing from it. The initialisations in Ω are few: fresh ones keep the summary from learning them by heart.

    Args:
        bank: Ω.
        fresh: share of the starts that are initialised anew.
        last_step: the latest step of real training that is a start; None takes all.
    """

    bank: TrajectoryBank
    fresh: float = 0.5
    last_step: int | None = None

    def __call__(self, learner: Learner, seed: int, device: torch.device | str | None = None) -> Parameters:
        """θ_0, a function of `seed`."""
        if stream(seed, Purpose.FRESH_START).random() < self.fresh:
            return learner.initial_parameters(seed, device)
        return self.bank.sample(seed, self.last_step, device)
