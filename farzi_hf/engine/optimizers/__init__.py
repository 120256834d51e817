"""The optimizers of the inner loop: a file each, and one line of the table below."""

from farzi_hf.engine.optimizers.adam import InnerAdam
from farzi_hf.engine.optimizers.base import InnerOptimizer, InvertibleOptimizer, State
from farzi_hf.engine.optimizers.paper_adam import PaperAdam
from farzi_hf.engine.optimizers.sgd import InnerSGD

__all__ = ["OPTIMIZERS", "InnerAdam", "InnerOptimizer", "InnerSGD", "InvertibleOptimizer", "PaperAdam", "State"]

OPTIMIZERS: dict[str, type[InnerOptimizer]] = {"adam": InnerAdam, "sgd": InnerSGD}
"""What a config can name. `PaperAdam` has no exact gradient, so it has no name there."""
