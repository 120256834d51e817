"""Adjoints: they recover the trajectory in the backward pass of `unroll`. All give the same exact gradient.

With G the time of one inner gradient (forward and backward through the network), P the number of trained parameters,
S the numbers in a state of the optimizer (3P for Adam, 2P for SGD), and T the number of differentiated steps:

| adjoint          | time   | memory                                                                              |
|------------------|--------|-------------------------------------------------------------------------------------|
| `GradientGraphs` | 3 T·G  | the graphs of the gradients of all T steps, T·S numbers                             |
| `Direct`         | 3 T·G  | the graphs of all T steps, of gradients and of the optimizer; higher derivatives    |
| `Tape`           | 4 T·G  | the graph of one step, T·P + 2√T·S numbers                                          |
| `Reversible`     | 4 T·G  | the graph of one step, about 50 bytes per parameter, and log2(1/β) bits a step      |
| `Checkpoint`     | 5 T·G  | the graph of one step, √(2T)·S numbers; or fewer states, in more time               |
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
