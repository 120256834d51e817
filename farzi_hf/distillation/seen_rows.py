"""The rows of an input embedding that train. Ids look up few rows of a large one, and the others have no gradient in any inner step.

An optimizer without weight decay leaves such rows as they are, and so the inner loop gets only the rows that are looked up: no step
updates, differentiates or keeps the others. Parameters and gradients are those of the whole training, bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters, is_constant
from farzi_hf.engine import InnerLoss, InnerOptimizer
from farzi_hf.summary.forms import Tensors

WORTH = 0.5
"""The largest share of the rows for which it pays to leave out the others: each step writes the rows into a copy of the embedding."""


class AllRows:
    """Every row trains."""

    def narrow(self, params: Parameters) -> Parameters:
        """The parameters of the inner loop."""
        return params

    def widen(self, params: Parameters) -> Parameters:
        """The parameters of the learner, differentiable in those of the inner loop."""
        return params

    def loss(self, inner_loss: InnerLoss) -> InnerLoss:
        """The loss as a function of the inner loop's parameters."""
        return inner_loss


@dataclass(frozen=True)
class SeenRows:
    """Some rows train.

    Args:
        name: of the embedding (V, h) among the parameters.
        rows: (r,), each once.
    """

    name: str
    rows: Tensor

    @property
    def _table(self) -> str:
        """The name of the embedding as it is at the start. It is a constant of the inner loop."""
        return f"{self.name} at the start"

    def narrow(self, params: Parameters) -> Parameters:
        """The parameters of the inner loop: these rows, and a copy of the embedding, which the caller may change meanwhile."""
        table = params[self.name].detach().clone()
        return {**params, self.name: table[self.rows], self._table: nn.Parameter(table, requires_grad=False)}

    def widen(self, params: Parameters) -> Parameters:
        """The parameters of the learner, differentiable in those of the inner loop."""
        wide = {name: x for name, x in params.items() if name != self._table}
        wide[self.name] = params[self._table].detach().index_copy(0, self.rows, params[self.name])
        return wide

    def loss(self, inner_loss: InnerLoss) -> InnerLoss:
        """The loss as a function of the inner loop's parameters."""
        return lambda params, inputs, step: inner_loss(self.widen(params), inputs, step)


@torch.inference_mode(False)  # rows are saved for a backward pass
def trained_rows(
    learner: Learner | LearnerBatch, summary: Tensors, start: Parameters, optimizer: InnerOptimizer
) -> AllRows | SeenRows:
    """The rows that a training from `start` on any sequences of the summary can change."""
    ids = summary.get("input_ids")
    if ids is None or not optimizer.keeps_unused:
        return AllRows()
    rows = ids.long().unique()
    if len(rows) > WORTH * learner.vocab_size or (name := learner.lookup) is None:
        return AllRows()
    if is_constant(start[name]) or any(x.requires_grad for x in start.values()):
        return AllRows()
    return SeenRows(name, rows)
