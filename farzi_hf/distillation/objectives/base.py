"""The base class of the objectives."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, LearnerBatch
from farzi_hf.distillation.trajectory_bank import TrajectoryBank
from farzi_hf.summary.forms import Tensors

Batch = Mapping[str, Tensor]


Objective = Callable[[Learner, Tensors, Batch, int], Tensor]
"""`objective(learner, summary, batch, seed)`; the summary is its tensors by name, see `farzi_hf.summary.forms`."""


class ConfigurableObjective(ABC):
    """An objective that `FarziConfig.objective` can name. It takes its settings from a `FarziConfig`."""

    @classmethod
    def check(cls, config: Any) -> None:
        """Raises ValueError if a `FarziConfig` lacks a setting that this objective needs, or has one that it cannot use."""
        if config.learner_pool is not None:
            raise ValueError(
                f"learner_pool={config.learner_pool} is of no use to objective={config.objective!r}, which does not measure a training at its "
                "end; leave it out, or set objective='meta_matching'"
            )

    @classmethod
    @abstractmethod
    def from_config(
        cls, config: Any, training: SyntheticTraining, bank: TrajectoryBank | None
    ) -> ConfigurableObjective:
        """The objective with the settings of a `FarziConfig`.

        Args:
            config: a `FarziConfig` that `check` has passed.
            training: the inner loop.
            bank: Ω, None where `config.trajectories` is None.
        """

    def figures(self) -> dict[str, Any]:
        """What this objective adds to the log and to the card. Most have nothing."""
        return {}

    def state_dict(self) -> dict[str, Tensor]:
        """What changes from call to call, for a checkpoint. Most objectives have nothing of the kind."""
        return {}

    def load_state_dict(self, tensors: Mapping[str, Tensor], learner: Learner, device: Any) -> None:  # noqa: B027
        """Goes on from what `state_dict` has returned."""

    @abstractmethod
    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        """As `Objective`."""


def together(learner: Learner, size: int) -> Learner | LearnerBatch:
    """A `LearnerBatch` of `size` learners; for size 1, the learner itself."""
    return learner if size == 1 else learner.batch(size)
