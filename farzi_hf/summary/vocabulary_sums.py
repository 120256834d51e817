"""Sums over a large vocabulary: the cross-entropy of a linear head, and the mean embedding of soft tokens. Both are twice differentiable.

Logits z = h M and soft tokens q = softmax(u D / τ) are numbers for each position and each of the V entries. Nothing of that size is
kept, unless it is small (`targets.KEPT`): a chunk of positions is computed, used and forgotten, and computed again for the derivatives.
Time is linear in the number of positions and in V, and memory is the chunk, and the arguments with their gradients.

An inner step needs three things of each function: its value, its gradient in the weights, and the product of a vector with the derivative of
that gradient. The gradient of the cross-entropy comes at once with its value.

In the docstrings, j is a position, v an entry of the vocabulary, p_j = softmax(z_j), and ⟨a, b⟩ is a sum over the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from farzi_hf.summary.targets import SoftTokens, Targets, may_keep, through_softmax

CHUNK = {"cpu": 1 << 22, "cuda": 1 << 26}
"""The numbers of a chunk, by the kind of device. Each chunk reads the head and adds to its gradient once, so small chunks cost time."""


class _Chunks:
    """Slices that cover n positions, and buffers (r, V) that each of them uses anew.

    Args:
        head: (V, k); the chunks go with its size.
    """

    def __init__(self, n: int, head: Tensor, buffers: int) -> None:
        entries, width = head.shape  # with fewer rows than its width, products would read the head for little work
        self.n, self.rows = n, min(n, max(width, CHUNK.get(head.device.type, CHUNK["cpu"]) // entries))
        self.buffers = [head.new_empty(self.rows, entries) for _ in range(buffers)]

    def __iter__(self) -> Iterator[tuple[slice, list[Tensor]]]:
        for first in range(0, self.n, max(1, self.rows)):
            rows = slice(first, min(first + self.rows, self.n))
            yield rows, [buffer[: rows.stop - first] for buffer in self.buffers]


def _zeros(tensors: Sequence[Tensor], needed: Sequence[bool]) -> list[Tensor | None]:
    return [torch.zeros_like(x) if need else None for x, need in zip(tensors, needed, strict=True)]


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
        ValueError: there are counts, and targets with derivatives.
    """
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
        losses, (dh, dhead) = h.new_empty(len(h)), _zeros((h, head), ctx.needs_input_grad[1:3])
        shape = (len(h), len(head))
        all_p = h.new_empty(shape) if may_keep(shape) else None
        for rows, (z, other, *free) in _Chunks(len(h), head, 3 if all_p is None else 2):
            torch.mm(h[rows], head.T, out=z)
            q = targets.at(rows, other)
            p = torch.softmax(z, -1, out=free[0] if all_p is None else all_p[rows])
            losses[rows] = z.amax(1) - p.amax(1).log() - targets.dot(q, z, z)
            difference = targets.subtract(q, p, z)
            if counts is not None:
                difference.mul_(counts[rows, None])
            if dh is not None:
                torch.mm(difference, head, out=dh[rows])
            if dhead is not None:
                dhead.addmm_(difference.T, h[rows])
        ctx.targets, ctx.all_p = targets, all_p
        ctx.save_for_backward(h, head, counts, dh, dhead, losses if ctx.needs_input_grad[3] else None)
        return losses.sum() if counts is None else losses.dot(counts)

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Any, ...]:
        h, head, counts, dh, dhead, losses = ctx.saved_tensors
        found = (dh, dhead, losses)
        return None, *_Gradient.apply(ctx.targets, ctx.all_p, found, s, h, head, counts, *ctx.targets.tensors)


class _Gradient(torch.autograd.Function):
    """s times (dh, dM, dc), which `_CrossEntropy` has found for s = 1. Its derivatives along the cotangents (a, A, b):

    with y = a M + h A, r_j = p_j ∘ (y_j − ⟨p_j, y_j⟩) and e_j = c_j r_j + b_j (p − q)_j, they are s Σ_v e_jv M_v + c_j (p − q)_jv A_v in
    h_j, s Σ_j e_jv h_j + c_j (p − q)_jv a_j in M_v, s ⟨(p − q)_j, y_j⟩ in c_j, −s y_j in q_j, and ⟨a, dh⟩ + ⟨A, dM⟩ + ⟨b, dc⟩ in s.
    """

    @staticmethod
    def forward(
        ctx: Any,
        targets: Targets,
        all_p: Tensor | None,
        found: tuple,
        s: Tensor,
        h: Tensor,
        head: Tensor,
        counts: Tensor | None,
        *_: Tensor,
    ) -> tuple:
        ctx.targets, ctx.all_p = targets, all_p
        ctx.save_for_backward(*found, s, h, head, counts)
        ctx.set_materialize_grads(False)
        return tuple(None if x is None else x * s for x in found)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, a: Tensor | None, big_a: Tensor | None, b: Tensor | None) -> tuple[Any, ...]:
        *found, s, h, head, counts = ctx.saved_tensors
        targets, all_p, needed, ds = ctx.targets, ctx.all_p, ctx.needs_input_grad[4:], None
        if ctx.needs_input_grad[3]:  # a loss that is not linear in the cross-entropy
            ds = sum((x * y).sum() for x, y in zip(found, (a, big_a, b), strict=True) if y is not None)
        totals = h_bar, head_bar, counts_bar, *_ = _zeros((h, head, counts, *targets.tensors), needed)
        for rows, (y, other, free, *more) in _Chunks(len(h), head, 4 if any(needed[3:]) else 3):
            p = torch.softmax(torch.mm(h[rows], head.T, out=y), -1, out=free) if all_p is None else all_p[rows]
            q = targets.at(rows, other)
            if a is None:
                y.zero_()
            else:
                torch.mm(a[rows], head.T, out=y)
            if big_a is not None:
                y.addmm_(h[rows], big_a.T)
            if any(needed[3:]):
                targets.pull_back(rows, q, y, -1.0, totals[3:], more[0])
            if counts_bar is not None:  # `other` is free: these targets are ids
                counts_bar[rows] = torch.mul(p, y, out=other).sum(1) - targets.dot(q, y, other)
            e = through_softmax(p, y, y)
            difference = targets.subtract(q, p, free)
            if counts is not None:
                e.mul_(counts[rows, None])
            if b is not None:
                e.addcmul_(difference, b[rows, None])
            if counts is not None:
                difference.mul_(counts[rows, None])
            if h_bar is not None:
                h_bar[rows].addmm_(e, head)
                if big_a is not None:
                    h_bar[rows].addmm_(difference, big_a)
            if head_bar is not None:
                head_bar.addmm_(e.T, h[rows])
                if a is not None:
                    head_bar.addmm_(difference.T, a[rows])
        return None, None, None, ds, *(None if total is None else total.mul_(s) for total in totals)


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
        totals = _zeros(targets.tensors, ctx.needs_input_grad[3:])
        for rows, (z, other) in _Chunks(len(h), head, 2):
            torch.mm(h[rows], head.T, out=z).mul_(-s)
            targets.pull_back(rows, targets.at(rows, other), z, 1.0, totals, z)
        return None, None, None, *totals


# -- embedding -------------------------------------------------------------------------------------------------------


def mean_embedding(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v: soft tokens (…, V) and the embeddings E (V, h) of all entries give (…, h), of the type of E.

    The first derivatives in E can be differentiated again, in everything. Those in the tokens cannot: with
    create_graph=True they raise an error.
    """
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
        x = table.new_empty(len(tokens), table.shape[1])
        for rows, (other,) in _Chunks(len(x), table, 1):
            torch.mm(tokens.at(rows, other), table, out=x[rows])
        return x

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, Tensor]:
        return None, _TableGradient.apply(ctx.tokens, ctx.table, dx, *ctx.tokens.tensors)


class _TableGradient(torch.autograd.Function):
    """dE (V, h); with A the cotangent of it, its derivatives are Σ_v q_jv A_v in dx_j, and ⟨A_v, dx_j⟩ in q_jv."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, dx: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens = tokens
        ctx.save_for_backward(dx)
        total = torch.zeros_like(table)
        for rows, (other,) in _Chunks(len(dx), table, 1):
            total.addmm_(tokens.at(rows, other).T, dx[rows])
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, big_a: Tensor) -> tuple[Any, ...]:
        tokens, (dx,), needed = ctx.tokens, ctx.saved_tensors, ctx.needs_input_grad[3:]
        totals, dx_bar = _zeros(tokens.tensors, needed), torch.empty_like(dx)
        for rows, (dq, other) in _Chunks(len(dx), big_a, 2):
            q = tokens.at(rows, other)
            torch.mm(q, big_a, out=dx_bar[rows])
            if any(needed):
                tokens.pull_back(rows, q, torch.mm(dx[rows], big_a.T, out=dq), 1.0, totals, dq)
        return None, None, dx_bar, *totals


class _TokenDerivative(torch.autograd.Function):
    """Zeros (n, h), with the derivatives of x_j = Σ_v q_jv E_v in the tensors of q. It is a node of its own, as `_TargetDerivative` is."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens, ctx.table = tokens, table
        return table.new_zeros(len(tokens), table.shape[1])

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        _check_once("tokens")
        tokens, table = ctx.tokens, ctx.table
        totals = _zeros(tokens.tensors, ctx.needs_input_grad[2:])
        for rows, (dq, other) in _Chunks(len(dx), table, 2):
            tokens.pull_back(rows, tokens.at(rows, other), torch.mm(dx[rows], table.T, out=dq), 1.0, totals, dq)
        return None, None, *totals
