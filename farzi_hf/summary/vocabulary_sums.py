"""Sums over a large vocabulary: the cross-entropy of a linear head, and the mean embedding of soft tokens. Both are twice differentiable.

Logits z = h M and soft tokens q = softmax(u D / τ) are numbers for each position and each of the V entries. Nothing of that size is
kept, unless it is small: a block of positions (`farzi_hf.summary.tiles`) is computed, used and forgotten, and computed again for the
derivatives. Time is linear in the number of positions and in V, and memory is a few blocks, and the arguments with their gradients.

An inner step needs three things of each function: its value, its gradient in the weights, and the product of a vector with the derivative of
that gradient. The gradient of the cross-entropy comes at once with its value.

In the docstrings, j is a position, v an entry of the vocabulary, p_j = softmax(z_j), and ⟨a, b⟩ is a sum over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from farzi_hf.summary.targets import SoftTokens, TargetBlock, Targets
from farzi_hf.summary.tiles import Softmax, Tiles


def _exact(function: Callable) -> Callable:
    """The function outside of autocast, which would round products: a backward pass may run inside."""

    @wraps(function)
    def run(*args: Any) -> Any:
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return function(*args)

    return run


def _zeros(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    return [torch.zeros_like(x) if need else None for x, need in zip(tensors, needed, strict=True)]


NARROW = 32
"""Products whose result has fewer columns are faster when they are computed transposed."""


def _add_product(total: Tensor, x: Tensor, y: Tensor) -> None:
    """total (v, k) += xᵀ y, of x (r, v) and y (r, k)."""
    if y.shape[1] < NARROW:
        total.add_(torch.mm(y.T, x).T)
    else:
        total.addmm_(x.T, y)


def _check_once(name: str) -> None:
    """Raises RuntimeError where a derivative is asked for that can be differentiated again."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            f"the derivative in the {name} cannot be differentiated again, but create_graph is True; take this derivative without "
            "it, or compute the loss from SoftTokens.probabilities()"
        )


# -- cross-entropy ---------------------------------------------------------------------------------------------------


def linear_cross_entropy(
    states: Tensor, weight: Tensor | None, bias: Tensor | None, targets: Targets, counts: Tensor | None = None
) -> Tensor:
    """Σ_j c_j ℓ_j with ℓ_j = logsumexp(z_j) − ⟨q_j, z_j⟩ in nats, a scalar.

    The first derivatives in states, weight, bias and counts can be differentiated again, in everything. Those in the targets cannot:
    with create_graph=True they raise an error.

    Args:
        states: (n, k). The sum is computed in their type, or in float32 if that has more bits.
        weight: (V, k) of the head; None if the states are the logits, which are then kept.
        bias: (V,), or None.
        targets: q, n of them.
        counts: c (n,), how much each position counts; None stands for 1. Only for targets without derivatives, such as ids.

    Raises:
        ValueError: there are counts, and targets with derivatives; or the targets are not those of n positions and V entries.
    """
    entries = states.shape[-1] if weight is None else len(weight)
    if len(targets) != len(states):
        raise ValueError(f"there are {len(targets)} targets for {len(states)} states; give one for each")
    targets.check(entries)
    if counts is not None and targets.tensors:
        raise ValueError(f"counts are given beside {type(targets).__name__}, which have derivatives; give HardTargets")
    dtype = torch.promote_types(states.dtype, torch.float32)
    states, targets = states.to(dtype), targets.to(dtype)
    weight, bias = (None if x is None else x.to(dtype) for x in (weight, bias))
    with torch.autocast(states.device.type, enabled=False):
        # torch.compile fuses the plain formula, and cannot differentiate a Function twice.
        if weight is None or torch.compiler.is_compiling():
            losses = targets.cross_entropy(states if weight is None else F.linear(states, weight, bias))
            return (losses if counts is None else losses * counts).sum()
        # A bias is one more column, where states have a 1.
        head = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
        h = states if bias is None else torch.cat([states, torch.ones_like(states[:, :1])], dim=1)
        value = _CrossEntropy.apply(targets, h, head.contiguous(), counts)
        if any(x.requires_grad for x in targets.tensors):
            value = value + _TargetDerivative.apply(targets, h.detach(), head.detach(), *targets.tensors)
    return value


class _CrossEntropy(torch.autograd.Function):
    """The value, and with s its derivative: dh_j = s c_j Σ_v (p − q)_jv M_v, dM_v = s Σ_j c_j (p − q)_jv h_j and dc_j = s ℓ_j.

    `head` (V, k) has the M_v as its rows. So has the embedding that may share them, and sums of their derivatives run along the memory.
    """

    @staticmethod
    def forward(ctx: Any, targets: Targets, h: Tensor, head: Tensor, counts: Tensor | None) -> Tensor:
        ctx.targets, ctx.sums = targets, _sums(targets, h, head, counts, ctx.needs_input_grad[1:3])
        ctx.save_for_backward(h, head, counts)
        return ctx.sums.losses.sum() if counts is None else ctx.sums.losses.dot(counts)

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Any, ...]:
        h, head, counts = ctx.saved_tensors
        # The gradient is as large as the head: it is handed on, and computed again for a second backward pass through the same graph.
        sums = ctx.sums or _sums(ctx.targets, h, head, counts, ctx.needs_input_grad[1:3])
        ctx.sums = None
        return None, *_Gradient.apply(ctx.targets, sums, s, h, head, counts, *ctx.targets.tensors)


@dataclass(frozen=True)
class _Sums:
    """Of the positions' losses: themselves (n,), and Σ_j c_j ℓ_j's derivatives in h and the head, without s.

    `softmaxes` has p of each block, where it is kept, in these `tiles`.
    """

    losses: Tensor
    dh: Tensor | None
    dhead: Tensor | None
    tiles: Tiles
    softmaxes: Sequence[Softmax | None]


@torch.no_grad()
@_exact
def _sums(targets: Targets, h: Tensor, head: Tensor, counts: Tensor | None, needed: Sequence[bool]) -> _Sums:
    losses, (dh, dhead) = h.new_empty(len(h)), _zeros((h, head), needed)
    tiles, softmaxes = Tiles(len(h), len(head), h), []
    p_memory, q_memory, tile = None if tiles.keep else tiles.block(), targets.memory(tiles), tiles.tile()
    for rows in tiles.rows:
        x, free = h[rows], tiles.views(tile, rows)
        p = Softmax(tiles.split(tiles.block() if p_memory is None else p_memory, rows))
        q, dots = targets.block(tiles, rows, q_memory), []
        for i, entries in enumerate(tiles.entries):
            z = torch.mm(x, head[entries].T, out=p.tiles[i])
            q.fill(i)
            dots.append(q.dot(i, z, free[i]))
            p.normalise(i)
        losses[rows] = p.log_sums() - q.total(dots)
        softmaxes.append(p if tiles.keep else None)
        for i, entries in enumerate(tiles.entries if any(needed) else ()):
            difference = q.subtract(i, p[i], out=free[i])
            if counts is not None:
                difference.mul_(counts[rows, None])
            if dh is not None:
                dh[rows].addmm_(difference, head[entries])
            if dhead is not None:
                _add_product(dhead[entries], difference, x)
    return _Sums(losses, dh, dhead, tiles, softmaxes)


class _Gradient(torch.autograd.Function):
    """s times (dh, dM, dc), which `_CrossEntropy` has found for s = 1. Its derivatives along the cotangents (a, A, b):

    with y = a M + h A, r_j = p_j ∘ (y_j − ⟨p_j, y_j⟩) and e_j = c_j r_j + b_j (p − q)_j, they are s Σ_v e_jv M_v + c_j (p − q)_jv A_v in
    h_j, s Σ_j e_jv h_j + c_j (p − q)_jv a_j in M_v, s ⟨(p − q)_j, y_j⟩ in c_j, −s y_j in q_j, and ⟨a, dh⟩ + ⟨A, dM⟩ + ⟨b, dc⟩ in s.
    """

    @staticmethod
    def forward(
        ctx: Any,
        targets: Targets,
        sums: _Sums,
        s: Tensor,
        h: Tensor,
        head: Tensor,
        counts: Tensor | None,
        *_: Tensor,
    ) -> tuple:
        ctx.targets, ctx.tiles, ctx.softmaxes = targets, sums.tiles, sums.softmaxes
        ctx.set_materialize_grads(False)
        found = sums.dh, sums.dhead, None if counts is None else sums.losses
        needs_ds = ctx.needs_input_grad[2]
        ctx.save_for_backward(s, h, head, counts, *(found if needs_ds else ()))
        return tuple(None if x is None else x * s if needs_ds else x.mul_(s) for x in found)

    @staticmethod
    @once_differentiable
    @_exact
    def backward(ctx: Any, a: Tensor | None, big_a: Tensor | None, b: Tensor | None) -> tuple[Any, ...]:
        s, h, head, counts, *found = ctx.saved_tensors
        targets, tiles, needed, ds = ctx.targets, ctx.tiles, ctx.needs_input_grad[3:], None
        if found:  # a loss that is not linear in the cross-entropy
            ds = sum((x * y).sum() for x, y in zip(found, (a, big_a, b), strict=True) if y is not None)
        totals = h_bar, head_bar, counts_bar, *_ = _zeros((h, head, counts, *targets.tensors), needed)
        p_memory, q_memory = None if tiles.keep else tiles.block(), targets.memory(tiles)
        y_memory, tile = tiles.block(), tiles.tile()
        for rows, p in zip(tiles.rows, ctx.softmaxes, strict=True):
            ys, free = tiles.split(y_memory, rows), tiles.views(tile, rows)
            p = Softmax(tiles.split(p_memory, rows)) if p is None else p
            q = targets.block(tiles, rows, q_memory)
            x, a_rows = h[rows], None if a is None else a[rows]
            p_mean, q_mean = _along(x, a_rows, head, big_a, tiles.entries, p, q, ys, free)
            if counts_bar is not None:
                counts_bar[rows] = (p_mean - q_mean) * s
            x_s = x * s
            a_s = None if a is None else a_rows * (s if counts is None else s * counts[rows, None])
            for i, entries in enumerate(tiles.entries):
                y = ys[i]
                if any(needed[3:]):
                    q.pull_back(i, y, q_mean, -s, totals[3:], free[i])
                e, difference = y.sub_(p_mean[:, None]).mul_(p[i]), q.subtract(i, p[i], out=free[i])
                if counts is not None:
                    e.mul_(counts[rows, None])
                if b is not None:
                    e.addcmul_(difference, b[rows, None])
                if head_bar is not None:
                    _add_product(head_bar[entries], e, x_s)
                    if a is not None:
                        _add_product(head_bar[entries], difference, a_s)
                if h_bar is not None:
                    h_bar[rows].addmm_(e, head[entries])
                    if big_a is not None:
                        if counts is not None:
                            difference.mul_(counts[rows, None])
                        h_bar[rows].addmm_(difference, big_a[entries])
        if h_bar is not None:
            h_bar.mul_(s)
        return None, None, ds, *totals


def _along(
    x: Tensor,
    a: Tensor | None,
    head: Tensor,
    big_a: Tensor | None,
    entries: Sequence[slice],
    p: Softmax,
    q: TargetBlock,
    ys: Sequence[Tensor],
    free: Sequence[Tensor],
) -> tuple[Tensor, Tensor]:
    """Writes y = a M + h A of a block into `ys`, tile by tile, and fills p and q; returns ⟨p_j, y_j⟩ and ⟨q_j, y_j⟩, (r,).

    Args:
        x, a: h and its cotangent at the block's positions.
    """
    p_parts, q_parts = [], []
    for i, (columns, y) in enumerate(zip(entries, ys, strict=True)):
        if not p.has(i):
            torch.mm(x, head[columns].T, out=p.tiles[i])
            p.normalise(i)
        if a is None:
            y.zero_()
        else:
            torch.mm(a, head[columns].T, out=y)
        if big_a is not None:
            y.addmm_(x, big_a[columns].T)
        p_parts.append(torch.mul(p.tiles[i], y, out=free[i]).sum(1))
        q.fill(i)
        q_parts.append(q.dot(i, y, free[i]))
    return p.mean(p_parts), q.total(q_parts)


class _TargetDerivative(torch.autograd.Function):
    """Zero, with the derivatives of −Σ_j ⟨q_j, z_j⟩ in the targets' tensors.

    It is a node of its own, so that autograd computes them only where somebody asks for them. An inner step does not.
    """

    @staticmethod
    def forward(ctx: Any, targets: Targets, h: Tensor, head: Tensor, *tensors: Tensor) -> Tensor:
        ctx.targets = targets
        ctx.save_for_backward(h, head)
        return h.new_zeros(())

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Any, ...]:
        _check_once("targets")
        targets, (h, head) = ctx.targets, ctx.saved_tensors
        return None, None, None, *_pulled_back(targets, h, head, -s, ctx.needs_input_grad[3:])


@_exact
def _pulled_back(targets: Targets, x: Tensor, table: Tensor, scale: Tensor | float, needed: Sequence[bool]) -> list:
    """The derivatives in the targets' tensors, if that in q_j is `scale` · x_j M, where the table (V, k) has the M_v as its rows."""
    totals = _zeros(targets.tensors, needed)
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


# -- embedding -------------------------------------------------------------------------------------------------------


def mean_embedding(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v: soft tokens (…, V) and the embeddings E (V, h) of all entries give (…, h), of the type of E.

    The first derivatives in E can be differentiated again, in everything. Those in the tokens cannot: with
    create_graph=True they raise an error.

    Raises:
        ValueError: the tokens are of another vocabulary than the table.
    """
    tokens.check(len(table))
    with torch.autocast(table.device.type, enabled=False):
        dtype = torch.promote_types(tokens.latents.dtype, table.dtype)
        flat, entries = tokens.to(dtype).flat(), table.to(dtype)
        if torch.compiler.is_compiling():
            x = flat.probabilities() @ entries
        else:
            x = _MeanEmbedding.apply(flat, entries)
            if any(y.requires_grad for y in flat.tensors):
                x = x + _TokenDerivative.apply(flat, entries.detach(), *flat.tensors)
    return x.to(table.dtype).view(*tokens.shape[:-1], -1)


class _MeanEmbedding(torch.autograd.Function):
    """x_j = Σ_v q_jv E_v, (n, h); dE_v = Σ_j q_jv dx_j."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor) -> Tensor:
        ctx.tokens, ctx.table = tokens, table.detach()
        return _product(tokens, table)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, Tensor]:
        return None, _TableGradient.apply(ctx.tokens, ctx.table, dx, *ctx.tokens.tensors)


class _TableGradient(torch.autograd.Function):
    """dE (V, h); with A the cotangent of it, its derivatives are Σ_v q_jv A_v in dx_j, and ⟨A_v, dx_j⟩ in q_jv."""

    @staticmethod
    @_exact
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, dx: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens = tokens
        ctx.save_for_backward(dx)
        total, tiles = torch.zeros_like(table), Tiles(len(dx), len(table), table)
        memory = tokens.memory(tiles)
        for rows in tiles.rows:
            q = tokens.filled(tiles, rows, memory)
            for i, entries in enumerate(tiles.entries):
                share = q.share(i)
                _add_product(total[entries], q.tiles[i], dx[rows] if share is None else dx[rows] * share)
        return total

    @staticmethod
    @once_differentiable
    @_exact
    def backward(ctx: Any, big_a: Tensor) -> tuple[Any, ...]:
        tokens, (dx,), needed = ctx.tokens, ctx.saved_tensors, ctx.needs_input_grad[3:]
        totals = _pulled_back(tokens, dx, big_a, 1.0, needed) if any(needed) else [None for _ in needed]
        return None, None, _product(tokens, big_a), *totals


class _TokenDerivative(torch.autograd.Function):
    """Zeros (n, h), with the derivatives of x_j = Σ_v q_jv E_v in the tensors of q. It is a node of its own, as `_TargetDerivative` is."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens, ctx.table = tokens, table
        return table.new_zeros(len(tokens), table.shape[1])

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        _check_once("tokens")
        return None, None, *_pulled_back(ctx.tokens, dx, ctx.table, 1.0, ctx.needs_input_grad[2:])


@_exact
def _product(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v of each position, (n, h)."""
    x, tiles = table.new_empty(len(tokens), table.shape[1]), Tiles(len(tokens), len(table), table)
    memory = tokens.memory(tiles)
    for rows in tiles.rows:
        q = tokens.filled(tiles, rows, memory)
        x[rows] = q.mean([torch.mm(tile, table[entries]) for tile, entries in zip(q.tiles, tiles.entries, strict=True)])
    return x
