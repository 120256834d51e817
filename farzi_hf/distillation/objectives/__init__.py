"""What the outer loop minimises over the summary, one file each; `OBJECTIVES` names them for `FarziConfig`.

An objective is a function of the learner, the latents (μ, ξ, d), the decoder (d, V), a batch of real sequences and a seed,
of which everything random in it is a function. K learners at once make the mean of K such scalars.
"""

from farzi_hf.distillation.objectives.base import Batch, Objective
from farzi_hf.distillation.objectives.gradient_matching import GradientMatching
from farzi_hf.distillation.objectives.meta_matching import MetaMatching
from farzi_hf.distillation.objectives.trajectory_matching import TrajectoryMatching

OBJECTIVES = {
    "meta_matching": MetaMatching,
    "gradient_matching": GradientMatching,
    "trajectory_matching": TrajectoryMatching,
}

__all__ = ["OBJECTIVES", "Batch", "GradientMatching", "MetaMatching", "Objective", "TrajectoryMatching"]
