"""The base class of the objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from farzi_hf.common.settings import made
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.rows import RealData
from farzi_hf.distillation.trajectories import (
    PretrainedStarts,
    Starts,
    TrajectoryBank,
    random_starts,
)
from farzi_hf.summary.forms import Tensors

Batch = Mapping[str, Tensor]


Objective = Callable[[Learner, Tensors, Batch, int], Tensor]
"""`objective(learner, summary, batch, seed)`; the summary is its tensors by name, see
`farzi_hf.summary.forms`.
"""


@dataclass(frozen=True)
class Parts:
    """What an objective is made of, besides its settings.

    Attributes:
        training: the inner loop.
        bank: Ω, if there is one.
        real: the rows of real data.
    """

    training: SyntheticTraining
    bank: TrajectoryBank | None
    real: RealData

    def starts(self, config: Any) -> Starts:
        """The starts of inner loops. Without Ω, all are fresh; with Ω, some come from it."""
        return (
            random_starts if self.bank is None else made(PretrainedStarts, config, bank=self.bank)
        )


class ConfigurableObjective(ABC):
    """An objective that `FarziConfig.objective` can name. It declares its own settings in a
    dataclass `Settings`, if it has any.
    """

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises ValueError if a `FarziConfig` lacks a setting that this objective needs, or has
        one that it cannot use.
        """
        return

    @classmethod
    @abstractmethod
    def from_config(cls, config: Any, parts: Parts) -> ConfigurableObjective:
        """The objective with the settings of a `FarziConfig` that `check` has passed."""

    def state_dict(self) -> dict[str, Tensor]:
        """What changes from call to call, for a checkpoint. Most objectives have nothing of the
        kind.
        """
        return {}

    def load_state_dict(  # noqa: B027
        self, tensors: Mapping[str, Tensor], learner: Learner, device: Any
    ) -> None:
        """Goes on from what `state_dict` has returned."""

    @abstractmethod
    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """As `Objective`."""
