"""Distillation: the learner as a pure function, its training on a summary, the start of that training, and the outer losses.

This room imports engine, data, models, artefact and summary. `farzi_hf.trainer` has the outer loop itself.
Exports `Learner`, `SyntheticTraining`, the objectives, the starts, and the recording and reading of trajectories.
"""

from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.distillation.objectives import OBJECTIVES, GradientMatching, MetaMatching, Objective, TrajectoryMatching
from farzi_hf.distillation.starts import PretrainedStarts, Starts, random_starts
from farzi_hf.distillation.trajectories import record_trajectories
from farzi_hf.distillation.trajectory_bank import TrajectoryBank

__all__ = [
    "OBJECTIVES", "GradientMatching", "Learner", "LearnerBatch", "MetaMatching", "Objective", "Parameters", "PretrainedStarts",
    "Starts", "SyntheticTraining", "TrajectoryBank", "TrajectoryMatching", "random_starts", "record_trajectories",
]  # fmt: skip
