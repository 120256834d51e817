"""Distillation: the trainer and its config, the learner as a pure function, its training on a
summary, and the outer losses.

Exports `FarziConfig`, `FarziTrainer`, `Learner`, `SyntheticTraining`, the objectives, the starts,
and trajectories.
"""

from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.objectives import (
    OBJECTIVES,
    GradientMatching,
    MetaMatching,
    Objective,
    TrajectoryMatching,
)
from farzi_hf.distillation.trainer import FarziTrainer
from farzi_hf.distillation.trajectories import (
    PretrainedStarts,
    Starts,
    TrajectoryBank,
    random_starts,
    record_trajectories,
)

__all__ = [
    "OBJECTIVES",
    "FarziConfig",
    "FarziTrainer",
    "GradientMatching",
    "Learner",
    "MetaMatching",
    "Objective",
    "Parameters",
    "PretrainedStarts",
    "Starts",
    "SyntheticTraining",
    "TrajectoryBank",
    "TrajectoryMatching",
    "random_starts",
    "record_trajectories",
]
