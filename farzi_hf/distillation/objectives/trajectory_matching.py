"""Trajectory matching (MTT)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.objectives.base import Batch, ConfigurableObjective, Parts
from farzi_hf.distillation.trajectories import TrajectoryBank, last_start
from farzi_hf.summary.forms import Tensors, device_of


@dataclass(frozen=True)
class TrajectoryMatching(ConfigurableObjective):
    """MTT (Cazenavette et al., 2022): N steps on the summary should lead to the same θ as M ≫ N
    steps on the real data.

    The loss is ‖θ_N − θ*_M‖² / ‖θ*_0 − θ*_M‖². Here θ_0 = θ*_0 is a checkpoint of real training,
    and θ*_M is the same training M steps later. The third line of the paper's definition trains the
    expert on the summary; this is an error, and we train it on the real data. The batch of real
    sequences is not used, because the trajectories already stand for the real data.

    Args:
        training: the inner loop.
        bank: Ω.
        synthetic_steps: N.
        expert_steps: M, a multiple of the bank's `save_every`.
        last_step: no start is later than this step of real training; None allows every start with M
            steps after it.
    """

    training: SyntheticTraining
    bank: TrajectoryBank
    synthetic_steps: int
    expert_steps: int
    last_step: int | None = None

    @dataclass(frozen=True)
    class Settings:
        synthetic_steps: int | None = setting(
            None, "N of trajectory matching; by default inner_steps", least=1
        )
        expert_steps: int = setting(
            50, "M: N steps on the summary should do the same as M real ones", least=1
        )
        last_start: int | None = last_start()

    @classmethod
    def check(cls, config: Any) -> None:
        if config.trajectories is None:
            raise ValueError(
                f"objective={config.objective!r}, but trajectories is None; call"
                " record_trajectories"
            )

    @classmethod
    def from_config(cls, config: Any, parts: Parts) -> TrajectoryMatching:
        return cls(
            parts.training,
            parts.bank,
            config.synthetic_steps or config.inner_steps,
            config.expert_steps,
            config.last_start,
        )

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """The normalised distance: 1 where the summary teaches nothing, 0 where it teaches what the
        real data do.
        """
        ends = self.bank.segment(seed, self.expert_steps, self.last_step, device_of(summary))
        start, target = map(learner.with_shared, ends)
        theta = self.training(learner, summary, start=start, steps=self.synthetic_steps, seed=seed)
        return _squared_distance(theta, target) / _squared_distance(start, target)


def _squared_distance(a: Parameters, b: Parameters) -> Tensor:
    return torch.stack([(a[name] - b[name]).square().sum() for name in a]).sum()
