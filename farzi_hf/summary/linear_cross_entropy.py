"""The cross-entropy of a linear head over a large vocabulary, twice differentiable (`farzi_hf.summary.vocabulary_sums`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from farzi_hf.summary.targets import TargetBlock, Targets
from farzi_hf.summary.tiles import BITS, Softmax, Tiles
from farzi_hf.summary.vocabulary_sums import (
    add_product,
    asked_for,
    check_once,
    derivative_of_head,
    exact,
    pulled_back,
    zeros,
)


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

    `blocks` are p and q of each block, in these `tiles` where they are kept, and as far as they are cheaper to compute again elsewhere.
    """

    losses: Tensor
    dh: Tensor | None
    dhead: Tensor | None
    tiles: Tiles
    blocks: Sequence[tuple[Softmax, TargetBlock]]


@torch.no_grad()
@exact
def _sums(targets: Targets, h: Tensor, head: Tensor, counts: Tensor | None, needed: Sequence[bool]) -> _Sums:
    losses, (dh,) = h.new_empty(len(h)), zeros((h,), needed[:1])
    dhead = derivative_of_head(head, needed[1], len(h))
    tiles, blocks = Tiles(len(h), len(head), h), []
    p_memory, q_memory = tiles.shared_block(), targets.memory(tiles)
    tile, z_tile = tiles.tile(), tiles.tile()
    for rows in tiles.rows:
        x, free = h[rows], tiles.views(tile, rows)
        x_bits, zs = x * BITS, tiles.views(z_tile, rows)
        p = Softmax(tiles.split(tiles.block() if p_memory is None else p_memory, rows))
        q, dots = targets.block(tiles, rows, q_memory), []
        for i, entries in enumerate(tiles.entries):
            q.fill(i, free[i])
            z = torch.mm(x_bits, head[entries].T, out=zs[i])
            dots.append(q.dot(i, z, free[i]))
            p.normalise(i, z)
        losses[rows] = (p.log_sums() - q.total(dots)) / BITS
        blocks.append((p, q))
        for i, entries in enumerate(tiles.entries if any(needed) else ()):
            difference = q.subtract(i, p, out=free[i])
            if counts is not None:
                difference.mul_(counts[rows, None])
            if dh is not None:
                dh[rows].addmm_(difference, head[entries])
            if dhead is not None:
                add_product(dhead[entries], difference, x, first=rows.start == 0)
        if not tiles.keep:
            p.forget()
            q.forget()
    return _Sums(losses, dh, dhead, tiles, blocks)


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
        *tensors: Tensor,
    ) -> tuple:
        ctx.targets, ctx.tiles, ctx.blocks = targets, sums.tiles, sums.blocks
        ctx.set_materialize_grads(False)
        found = sums.dh, sums.dhead, None if counts is None else sums.losses
        needs_ds = ctx.needs_input_grad[2]
        ctx.save_for_backward(s, h, head, counts, *tensors, *(found if needs_ds else ()))
        return tuple(None if x is None else x * s if needs_ds else x.mul_(s) for x in found)

    @staticmethod
    @once_differentiable
    @exact
    def backward(ctx: Any, a: Tensor | None, big_a: Tensor | None, b: Tensor | None) -> tuple[Any, ...]:
        if a is None and big_a is None and b is None:  # what follows depends on nothing here
            return (None,) * len(ctx.needs_input_grad)
        s, h, head, counts, *rest = ctx.saved_tensors
        targets, ds = ctx.targets, None
        found = rest[len(targets.tensors) :]
        if found:  # a loss that is not linear in the cross-entropy
            ds = sum((x * y).sum() for x, y in zip(found, (a, big_a, b), strict=True) if y is not None)
        _, *needed = asked_for(ctx, (s, h, head, counts, *targets.tensors))
        if any(needed[:3]):
            blocks = _Blocks(targets, ctx.tiles, ctx.blocks, h, head, counts)
            return None, None, ds, *blocks.derivatives(s, a, big_a, b, needed)
        if not any(needed):
            return None, None, ds, *(None for _ in needed)
        pairs = [(x, table) for x, table in ((a, head), (h, big_a)) if x is not None and table is not None]
        xs, tables = (torch.cat(parts, 1) for parts in zip(*pairs, strict=True))  # y = a M + h A in one product
        return None, None, ds, None, None, None, *pulled_back(targets, xs, tables, -s, needed[3:])


@dataclass(frozen=True)
class _Blocks:
    """Where `_Gradient` is differentiated: its arguments, and p and q of each block."""

    targets: Targets
    tiles: Tiles
    blocks: Sequence[tuple[Softmax, TargetBlock]]
    h: Tensor
    head: Tensor
    counts: Tensor | None

    def derivatives(
        self, s: Tensor, a: Tensor | None, big_a: Tensor | None, b: Tensor | None, needed: Sequence[bool]
    ) -> tuple[Tensor | None, ...]:
        """Those that are needed of the ones in h, the head, the counts and the targets' tensors, along (a, A, b)."""
        h, head, counts, tiles = self.h, self.head, self.counts, self.tiles
        h_bar, counts_bar, *q_bars = zeros((h, counts, *self.targets.tensors), (needed[0], *needed[2:]))
        head_bar = derivative_of_head(head, needed[1], len(h))
        p_memory, q_memory, y_memory = tiles.shared_block(), self.targets.memory(tiles), tiles.block()
        tile = tiles.tile()
        for rows, (p, q) in zip(tiles.rows, self.blocks, strict=True):
            ys, free = tiles.split(y_memory, rows), tiles.views(tile, rows)
            if not tiles.keep:
                p, q = p.again(tiles.split(p_memory, rows)), q.again(tiles, rows, q_memory)
            x, a_rows = h[rows], None if a is None else a[rows]
            p_mean, q_mean = self._along(x, a_rows, big_a, p, q, ys, free)
            if counts_bar is not None:
                counts_bar[rows] = (p_mean - q_mean) * s
            x_s = x * s
            a_s = None if a is None else a_rows * (s if counts is None else s * counts[rows, None])
            for i, entries in enumerate(tiles.entries):
                y = ys[i]
                if any(needed[3:]):
                    q.pull_back(i, y, q_mean, -s, q_bars, free[i])
                e, difference = y.sub_(p_mean[:, None]).mul_(p[i]), q.subtract(i, p, out=free[i])
                if counts is not None:
                    e.mul_(counts[rows, None])
                if b is not None:
                    e.addcmul_(difference, b[rows, None])
                if head_bar is not None:
                    add_product(head_bar[entries], e, x_s, first=rows.start == 0)
                    if a is not None:
                        add_product(head_bar[entries], difference, a_s)
                if h_bar is not None:
                    h_bar[rows].addmm_(e, head[entries])
                    if big_a is not None:
                        if counts is not None:
                            difference.mul_(counts[rows, None])
                        h_bar[rows].addmm_(difference, big_a[entries])
        if h_bar is not None:
            h_bar.mul_(s)
        return h_bar, head_bar, counts_bar, *q_bars

    def _along(
        self,
        x: Tensor,
        a: Tensor | None,
        big_a: Tensor | None,
        p: Softmax,
        q: TargetBlock,
        ys: Sequence[Tensor],
        free: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Writes y = a M + h A of a block into `ys`, tile by tile, and fills p and q; returns ⟨p_j, y_j⟩ and ⟨q_j, y_j⟩, (r,).

        Args:
            x, a: h and its cotangent at the block's positions.
        """
        x_bits, p_parts, q_parts = x * BITS, [], []
        for i, (columns, y) in enumerate(zip(self.tiles.entries, ys, strict=True)):
            if not p.has(i):
                p.normalise(i, torch.mm(x_bits, self.head[columns].T, out=free[i]))
            if a is None:
                y.zero_()
            else:
                torch.mm(a, self.head[columns].T, out=y)
            if big_a is not None:
                y.addmm_(x, big_a[columns].T)
            p_parts.append(torch.mul(p.tiles[i], y, out=free[i]).sum(1))
            q.fill(i, free[i])
            q_parts.append(q.dot(i, y, free[i]))
        return p.mean(p_parts), q.total(q_parts)


class _TargetDerivative(torch.autograd.Function):
    """Zero, with the derivatives of −Σ_j ⟨q_j, z_j⟩ in the targets' tensors.

    It is a node of its own, so that autograd computes them only where somebody asks for them. An inner step does not.
    """

    @staticmethod
    def forward(ctx: Any, targets: Targets, h: Tensor, head: Tensor, *tensors: Tensor) -> Tensor:
        ctx.targets = targets
        ctx.save_for_backward(h, head, *tensors)
        return h.new_zeros(())

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Any, ...]:
        check_once("targets")
        targets, (h, head, *_) = ctx.targets, ctx.saved_tensors
        return None, None, None, *pulled_back(targets, h, head, -s, ctx.needs_input_grad[3:])
