"""Sums over a large vocabulary: the cross-entropy of a linear head, and the mean embedding of soft tokens. Both are twice differentiable.

Logits z = h M and soft tokens q = softmax(u D / τ) are numbers for each position and each of the V entries. Nothing of that size is
kept, unless it is small: a block of positions (`farzi_hf.summary.tiles`) is computed, used and forgotten, and computed again for the
derivatives. Time is linear in the number of positions and in V, and memory is a few blocks, and the arguments with their gradients.

An inner step needs three things of each function: its value, its gradient in the weights, and the product of a vector with the derivative of
that gradient. The gradient of the cross-entropy comes at once with its value.

The two functions are in modules of their names, `linear_cross_entropy` and `mean_embedding`; what both need is here. In the docstrings, j is
a position, v an entry of the vocabulary, p_j = softmax(z_j), and ⟨a, b⟩ is a sum over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from farzi_hf.summary.targets import Targets
from farzi_hf.summary.tiles import Tiles


def exact(function: Callable) -> Callable:
    """The function outside of autocast, which would round products: a backward pass may run inside."""

    @wraps(function)
    def run(*args: Any) -> Any:
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return function(*args)

    return run


def zeros(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    """Zeros to add the derivatives in the tensors to, or None where nobody needs one."""
    return [torch.zeros_like(x) if need else None for x, need in zip(tensors, needed, strict=True)]


NARROW = 32
"""Products whose result has fewer columns are faster when they are computed transposed."""


def add_product(total: Tensor, x: Tensor, y: Tensor) -> None:
    """total (v, k) += xᵀ y, of x (r, v) and y (r, k)."""
    if y.shape[1] < NARROW:
        total.add_(torch.mm(y.T, x).T)
    else:
        total.addmm_(x.T, y)


def check_once(name: str) -> None:
    """Raises RuntimeError where a derivative is asked for that can be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the derivative in the {name} cannot be differentiated again, but create_graph is True; take this derivative without "
            "it, or compute the loss from SoftTokens.probabilities()"
        )


@exact
def pulled_back(targets: Targets, x: Tensor, table: Tensor, scale: Tensor | float, needed: Sequence[bool]) -> list:
    """The derivatives in the targets' tensors, if that in q_j is `scale` · x_j M, where the table (V, k) has the M_v as its rows."""
    totals = zeros(targets.tensors, needed)
    tiles = Tiles(len(x), len(table), x)
    memory, q_memory, tile = tiles.block(), targets.memory(tiles), tiles.tile()
    for rows in tiles.rows:
        dqs, free, q = tiles.split(memory, rows), tiles.views(tile, rows), targets.block(tiles, rows, q_memory)
        means = []
        for i, entries in enumerate(tiles.entries):
            torch.mm(x[rows], table[entries].T, out=dqs[i])
            q.fill(i)
            means.append(q.dot(i, dqs[i], free[i]))
        mean = q.total(means)
        for i in range(len(tiles.entries)):
            q.pull_back(i, dqs[i], mean, scale, totals, free[i])
    return totals
