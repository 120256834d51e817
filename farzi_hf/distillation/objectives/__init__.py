"""Objectives: the losses that the outer loop can minimise, one file each. `OBJECTIVES` names them
for `FarziConfig`.

An objective is a function of the learner, the summary's tensors by name, a batch of real sequences
and a seed. It returns a scalar that is differentiable in the tensors. All its random numbers depend
on the seed alone.
"""

from farzi_hf.distillation.objectives.base import Batch, ConfigurableObjective, Objective, Parts
from farzi_hf.distillation.objectives.gradient_matching import GradientMatching
from farzi_hf.distillation.objectives.meta_matching import MetaMatching
from farzi_hf.distillation.objectives.trajectory_matching import TrajectoryMatching

OBJECTIVES: dict[str, type[ConfigurableObjective]] = {
    "meta_matching": MetaMatching,
    "gradient_matching": GradientMatching,
    "trajectory_matching": TrajectoryMatching,
}
"""The objectives that a config can name."""

__all__ = [
    "OBJECTIVES",
    "Batch",
    "ConfigurableObjective",
    "GradientMatching",
    "MetaMatching",
    "Objective",
    "Parts",
    "TrajectoryMatching",
]
