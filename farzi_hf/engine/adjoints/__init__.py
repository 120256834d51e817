"""Adjoints: they recover the trajectory in the backward pass of `unroll`. All give the same exact
gradient.

The documentation of each says what it costs in these terms: G is the time of one inner gradient
(forward and backward through the network), P the number of trained parameters, S the numbers in a
state of the optimizer (3P for Adam, 2P for SGD), T the number of differentiated steps.
"""

from farzi_hf.engine.adjoints.base import Adjoint
from farzi_hf.engine.adjoints.checkpoint import Checkpoint
from farzi_hf.engine.adjoints.graphs import Direct, GradientGraphs
from farzi_hf.engine.adjoints.reversible import Reversible
from farzi_hf.engine.adjoints.tape import Tape

__all__ = ["ADJOINTS", "Adjoint", "Checkpoint", "Direct", "GradientGraphs", "Reversible", "Tape"]

ADJOINTS: dict[str, type[Adjoint]] = {
    "gradient_graphs": GradientGraphs,
    "direct": Direct,
    "tape": Tape,
    "reversible": Reversible,
    "checkpoint": Checkpoint,
}
"""The adjoints that a config can name, the fastest first."""
