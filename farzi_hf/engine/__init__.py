"""The engine: exact meta-gradients through the training of any inner loop. Its memory hardly grows
with the number of steps.

It imports nothing else of farzi_hf. Exports `unroll`, the inner optimizers and the adjoints, which
are objects given to `unroll`.
"""

from farzi_hf.engine.adjoints import (
    ADJOINTS,
    Adjoint,
    Checkpoint,
    Direct,
    GradientGraphs,
    Reversible,
    Tape,
)
from farzi_hf.engine.adjoints.fixed_point import ReplayError
from farzi_hf.engine.autocast import autocast_settings, no_autocast
from farzi_hf.engine.buffers import TrainingState
from farzi_hf.engine.inner_loop import InnerLoss
from farzi_hf.engine.optimizers import (
    OPTIMIZERS,
    InnerAdam,
    InnerAdamW,
    InnerOptimizer,
    InnerSGD,
    InnerSoap,
    InvertibleOptimizer,
    PaperAdam,
    Soap,
    State,
)
from farzi_hf.engine.unroll import gradients, train, unroll

__all__ = [
    "ADJOINTS",
    "OPTIMIZERS",
    "Adjoint",
    "Checkpoint",
    "Direct",
    "GradientGraphs",
    "InnerAdam",
    "InnerAdamW",
    "InnerLoss",
    "InnerOptimizer",
    "InnerSGD",
    "InnerSoap",
    "InvertibleOptimizer",
    "PaperAdam",
    "ReplayError",
    "Reversible",
    "Soap",
    "State",
    "Tape",
    "TrainingState",
    "autocast_settings",
    "gradients",
    "no_autocast",
    "train",
    "unroll",
]
