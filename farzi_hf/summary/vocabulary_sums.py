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


def add_product(total: Tensor, x: Tensor, y: Tensor, *, first: bool = False) -> None:
    """total (v, k) += xᵀ y, of x (r, v) and y (r, k). If this is the `first` summand, what `total` holds does not count."""
    if y.shape[1] >= NARROW:
        total.addmm_(x.T, y, beta=0 if first else 1)
    elif first:
        total.copy_(torch.mm(y.T, x).T)
    else:
        total.add_(torch.mm(y.T, x).T)


def derivative_of_head(head: Tensor, needed: bool, positions: int) -> Tensor | None:
    """Memory for a derivative in the head, which the first block of positions overwrites; None if nobody needs one."""
    if not needed:
        return None
    return torch.empty_like(head) if positions else torch.zeros_like(head)


def asked_for(ctx: Any, tensors: Sequence[Tensor | None]) -> list[bool]:
    """Which derivatives the present backward pass needs, in a `Function` whose arguments that are tensors were these, and None.

    `ctx.needs_input_grad` says which of them have one. Autograd may have been asked for fewer: the reverse of a training's first step needs
    the derivatives in the data alone.
    """
    nodes = iter(ctx.next_functions)
    return [x is not None and _is_asked_for(next(nodes)[0]) for x in tensors]


def _is_asked_for(node: Any) -> bool:
    # Autograd does not answer for a leaf.
    return node is not None and (not node.next_functions or torch._C._will_engine_execute_node(node))


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
            q.fill(i, free[i])
            means.append(q.dot(i, dqs[i], free[i]))
        mean = q.total(means)
        for i in range(len(tiles.entries)):
            q.pull_back(i, dqs[i], mean, scale, totals, free[i])
    return totals
