"""The optimizers of the inner loop. Each has a file of its own and a line in the table
`OPTIMIZERS`.
"""

from farzi_hf.engine.optimizers.adam import InnerAdam, InnerAdamW, PaperAdam
from farzi_hf.engine.optimizers.base import InnerOptimizer, InvertibleOptimizer, State
from farzi_hf.engine.optimizers.sgd import InnerSGD
from farzi_hf.engine.optimizers.soap import InnerSoap, Soap

__all__ = [
    "OPTIMIZERS",
    "InnerAdam",
    "InnerAdamW",
    "InnerOptimizer",
    "InnerSGD",
    "InnerSoap",
    "InvertibleOptimizer",
    "PaperAdam",
    "Soap",
    "State",
]

OPTIMIZERS: dict[str, type[InnerOptimizer]] = {
    "adam": InnerAdam,
    "adamw": InnerAdamW,
    "sgd": InnerSGD,
    "soap": InnerSoap,
}
"""The optimizers that a config can name. `PaperAdam` is not among them, because its gradient is not
exact.
"""
