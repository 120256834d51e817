"""Sums over a large vocabulary: the cross-entropy of a linear head, and the mean embedding of soft
tokens. Both are twice differentiable.

Logits z = h M and soft tokens q = softmax(u D / τ) are numbers for each position and each of the V
entries. Nothing of that size is kept: a block of positions is computed, used and forgotten, and
computed again for the derivatives. Time is linear in the number of positions and in V, and memory
is a few blocks, and the arguments with their gradients.

An inner step needs three things of each function: its value, its gradient in the weights, and the
product of a vector with the derivative of that gradient. The gradient of the cross-entropy comes at
once with its value. In the docstrings, j is a position, v an entry of the vocabulary, p_j =
softmax(z_j), and ⟨a, b⟩ is a sum over the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from farzi_hf.engine.devices import is_traced, portions
from farzi_hf.summary.soft_tokens import SoftTokens, Targets, products_are_small, row_dot, softmax_

FEWEST = 48
"""The fewest positions of a block. Each block reads the head and adds to its gradient once:
products of fewer positions are slow.
"""


class _Blocks:
    """The blocks of a matrix (n, V), and memory for them.

    Args:
        like: has the type and device of the memory.
        count: how many matrices (r, V) exist at the same time.
    """

    def __init__(self, n: int, entries: int, like: Tensor, count: int) -> None:
        threads = torch.get_num_threads() if like.device.type == "cpu" else 1
        numbers = portions(like).block * threads
        parts = max(1, -(-n // max(FEWEST, numbers // entries)))
        self.n = n
        self.entries = entries
        self.count = count
        self.size = max(1, -(-n // parts))
        self.memory = like.new_empty(count * min(self.size, n) * entries)

    def __iter__(self) -> Iterator[tuple[slice, Tensor]]:
        """The positions of each block, and the memory (count, r, V) for its matrices."""
        for first in range(0, self.n, self.size):
            rows = slice(first, min(first + self.size, self.n))
            shape = self.count, rows.stop - first, self.entries
            yield rows, self.memory[: math.prod(shape)].view(shape)


def _exact(function: Callable) -> Callable:
    """The function outside of autocast, which would round products: a backward pass
    may run inside.
    """

    @wraps(function)
    def run(*args: Any) -> Any:
        device = next((x.device.type for x in args if isinstance(x, Tensor)), "cpu")
        with torch.autocast(device, enabled=False):
            return function(*args)

    return run


def _zeros(tensors: Sequence[Tensor | None], needed: Sequence[bool]) -> list[Tensor | None]:
    """Zeros to add the derivatives in the tensors to, or None where nobody needs one."""
    return [torch.zeros_like(x) if need else None for x, need in zip(tensors, needed, strict=True)]


@_exact
def _pulled_back(
    targets: Targets, x: Tensor, table: Tensor, scale: Tensor | float, needed: Sequence[bool]
) -> list:
    """The derivatives in the targets' tensors, if that in q_j is `scale` · x_j M, where the table
    (V, k) has the M_v as its rows.
    """
    totals = _zeros(targets.tensors, needed)
    for rows, (q, dq, free) in _Blocks(len(x), len(table), x, 3):
        q = targets.block(rows, q)
        torch.mm(x[rows], table.T, out=dq)
        targets.pull_back(rows, q, dq, targets.dot(q, dq, free), scale, totals, free)
    return totals


# -- the cross-entropy -----------------------------------------------------------------------------


def linear_cross_entropy(
    states: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    targets: Targets,
    counts: Tensor | None = None,
) -> Tensor:
    """Σ_j c_j ℓ_j with ℓ_j = logsumexp(z_j) − ⟨q_j, z_j⟩ in nats, a scalar. Raises ValueError if
    there are counts, and targets with derivatives; or the targets are not those of n positions and
    V entries.

    The first derivatives in states, weight, bias and counts can be differentiated again, in
    everything. Those in the targets cannot: with create_graph=True they raise an error.

    Args:
        states: (n, k). The sum is computed in their type, or in float32 if that has more bits.
        weight: (V, k) of the head; None if the states are the logits, which are then kept.
        bias: (V,), or None.
        targets: q, n of them.
        counts: c (n,), how much each position counts; None stands for 1. Only for targets without
            derivatives, such as ids.
    """
    entries = states.shape[-1] if weight is None else len(weight)
    if len(targets) != len(states):
        raise ValueError(
            f"there are {len(targets)} targets for {len(states)} states; give one for each"
        )
    targets.check(entries)
    if counts is not None and targets.tensors:
        raise ValueError(
            f"counts are given beside {type(targets).__name__}, which have derivatives; give"
            " HardTargets"
        )
    dtype = torch.promote_types(states.dtype, torch.float32)
    states = states.to(dtype)
    targets = targets.to(dtype)
    weight, bias, counts = (None if x is None else x.to(dtype) for x in (weight, bias, counts))
    with torch.autocast(states.device.type, enabled=False):
        # torch.compile fuses the plain formula, and cannot differentiate a Function twice.
        if weight is None or is_traced(states):
            logits = states if weight is None else F.linear(states, weight, bias)
            losses = targets.cross_entropy(logits)
            return (losses if counts is None else losses * counts).sum()
        # A bias is one more column, where states have a 1.
        head = weight if bias is None else torch.cat([weight, bias[:, None]], dim=1)
        h = states if bias is None else torch.cat([states, torch.ones_like(states[:, :1])], dim=1)
        value = _CrossEntropy.apply(targets, h, head.contiguous(), counts)
        if any(x.requires_grad for x in targets.tensors):
            zeros = _TokenDerivative.apply(targets, head.detach(), *targets.tensors)
            value = value - (h.detach() * zeros).sum()
    return value


class _CrossEntropy(torch.autograd.Function):
    """The value Σ_j c_j ℓ_j. If s is the derivative in the value, those in the arguments are dh_j =
    s c_j Σ_v (p − q)_jv M_v, dM_v = s Σ_j c_j (p − q)_jv h_j and dc_j = s ℓ_j. The rows of `head`
    (V, k) are the M_v.
    """

    @staticmethod
    def forward(
        ctx: Any, targets: Targets, h: Tensor, head: Tensor, counts: Tensor | None
    ) -> Tensor:
        needed = ctx.needs_input_grad[1:3]
        ctx.targets = targets
        ctx.computed = _losses_and_gradient(targets, h, head, counts, needed)
        ctx.save_for_backward(h, head, counts)
        losses, _, _ = ctx.computed
        return losses if counts is None else losses.dot(counts)

    @staticmethod
    def backward(ctx: Any, s: Tensor) -> tuple[Any, ...]:
        h, head, counts = ctx.saved_tensors
        # The gradient is as large as the head, so the graph does not keep it. A second backward
        # pass computes it again.
        computed = ctx.computed
        if computed is None:
            needed = ctx.needs_input_grad[1:3]
            computed = _losses_and_gradient(ctx.targets, h, head, counts, needed)
        ctx.computed = None
        tensors = ctx.targets.tensors
        return None, *_Gradient.apply(ctx.targets, computed, s, h, head, counts, *tensors)


@torch.no_grad()
@_exact
def _losses_and_gradient(
    targets: Targets, h: Tensor, head: Tensor, counts: Tensor | None, needed: Sequence[bool]
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """ℓ (n,), or Σ_j ℓ_j without counts; and the derivatives of Σ_j c_j ℓ_j in h and
    in the head.
    """
    dh, dhead = _zeros((h, head), needed)
    table = head.T
    small = products_are_small(h, head)
    totals = h.new_empty(len(h), 1)
    largest = h.new_zeros(len(h), 1)
    dots = []
    for rows, (p, q) in _Blocks(len(h), len(head), h, 2):
        q = targets.block(rows, q)
        states = h[rows]
        z = torch.mm(states, table, out=p)
        dots.append(targets.sum_of_dots(q, z) if counts is None else targets.dot(q, z, q))
        if not small:
            z.sub_(torch.amax(z, 1, keepdim=True, out=largest[rows]))
        total = torch.sum(z.exp_(), 1, keepdim=True, out=totals[rows])
        if not any(needed):
            continue
        # total · (p − q): products divide later, and are small.
        difference = targets.subtract(q, z, total)
        weight = total.reciprocal() if counts is None else counts[rows, None] / total
        if dh is not None:
            torch.mm(difference, head, out=dh[rows]).mul_(weight)
        if dhead is not None:
            dhead.addmm_(difference.T, states * weight)
    losses = totals.log_().add_(largest)[:, 0]
    if counts is not None:
        return losses - torch.cat([h.new_empty(0), *dots]), dh, dhead
    return losses.sum() - sum(dots), dh, dhead


class _Gradient(torch.autograd.Function):
    """s times (dh, dM, dc), which `_CrossEntropy` has found for s = 1. Its derivatives along the
    cotangents (a, A, b):

    with y = a M + h A, r_j = p_j ∘ (y_j − ⟨p_j, y_j⟩) and e_j = c_j r_j + b_j (p − q)_j, they are s
    Σ_v e_jv M_v + c_j (p − q)_jv A_v in h_j, s Σ_j e_jv h_j + c_j (p − q)_jv a_j in M_v, s ⟨(p −
    q)_j, y_j⟩ in c_j, −s y_j in q_j, and ⟨a, dh⟩ + ⟨A, dM⟩ + ⟨b, dc⟩ in s.
    """

    @staticmethod
    def forward(
        ctx: Any, targets: Targets, computed: tuple, s: Tensor, *arguments: Tensor | None
    ) -> tuple:
        h, head, counts, *tensors = arguments
        ctx.targets = targets
        ctx.set_materialize_grads(False)
        losses, dh, dhead = computed
        of_one = (dh, dhead, None if counts is None else losses)  # for s = 1
        needs_ds = ctx.needs_input_grad[2]
        if needs_ds:
            ctx.save_for_backward(s, h, head, counts, *tensors, *of_one)
            return tuple(None if x is None else x * s for x in of_one)
        ctx.save_for_backward(s, h, head, counts, *tensors)
        return tuple(None if x is None else x.mul_(s) for x in of_one)

    @staticmethod
    @once_differentiable
    @_exact
    def backward(
        ctx: Any, a: Tensor | None, big_a: Tensor | None, b: Tensor | None
    ) -> tuple[Any, ...]:
        _, _, needs_ds, *needed = ctx.needs_input_grad
        if (a is None and big_a is None and b is None) or not (needs_ds or any(needed)):
            return (None,) * len(ctx.needs_input_grad)
        s, h, head, counts, *rest = ctx.saved_tensors
        targets = ctx.targets
        ds = None
        if needs_ds:  # a loss that is not linear in the cross-entropy
            of_one = rest[len(targets.tensors) :]
            pairs = zip(of_one, (a, big_a, b), strict=True)
            ds = sum((x * y).sum() for x, y in pairs if y is not None)
        h_bar, head_bar, counts_bar, *q_bars = _zeros((h, head, counts, *targets.tensors), needed)
        pairs = [
            (x, table)
            for x, table in ((a, head), (h, big_a))
            if x is not None and table is not None
        ]
        # y = a M + h A in one product
        xs, tables = (torch.cat(parts, 1) for parts in zip(*pairs, strict=True))
        small = products_are_small(h, head)
        for rows, memory in _Blocks(len(h), len(head), h, 4):
            p, y, q, free = memory
            q = targets.block(rows, q)
            softmax_(torch.mm(h[rows], head.T, out=p), small)
            torch.mm(xs[rows], tables.T, out=y)
            q_mean = targets.dot(q, y, free)
            targets.pull_back(rows, q, y, q_mean, -s, q_bars, free)
            p_mean = row_dot(p, y, free)
            if counts_bar is not None:
                counts_bar[rows] = (p_mean - q_mean) * s
            e = y.sub_(p_mean[:, None]).mul_(p)
            difference = targets.subtract(q, p, p.new_ones(()))  # in the memory of p
            if counts is not None:
                e.mul_(counts[rows, None])
            if b is not None:
                e.addcmul_(difference, b[rows, None])
            if counts is not None:
                difference.mul_(counts[rows, None])
            if head_bar is not None:
                # Σ_j (p − q)_j a_j + e_j h_j in one product: both matrices are neighbours in
                # memory.
                of_a = torch.zeros_like(h[rows]) if a is None else a[rows]
                both = torch.cat([of_a, h[rows]]).mul_(s)
                head_bar.addmm_(memory[:2].flatten(0, 1).T, both)
            if h_bar is not None:
                torch.mm(e, head, out=h_bar[rows])
                if big_a is not None:
                    h_bar[rows].addmm_(difference, big_a)
        if h_bar is not None:
            h_bar.mul_(s)
        return None, None, ds, h_bar, head_bar, counts_bar, *q_bars


# -- the mean embedding ----------------------------------------------------------------------------


def mean_embedding(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v: soft tokens (…, V) and the embeddings E (V, h) of all entries give (…, h), of
    the type of E. Raises ValueError if the tokens are of another vocabulary than the table.

    The first derivatives in E can be differentiated again, in everything. Those in the tokens
    cannot: with create_graph=True they raise an error.
    """
    tokens.check(len(table))
    with torch.autocast(table.device.type, enabled=False):
        dtype = torch.promote_types(tokens.latents.dtype, table.dtype)
        flat = tokens.to(dtype).flat()
        entries = table.to(dtype)
        if is_traced(entries):
            x = flat.probabilities() @ entries
        else:
            x = _MeanEmbedding.apply(flat, entries)
            if any(y.requires_grad for y in flat.tensors):
                x = x + _TokenDerivative.apply(flat, entries.detach(), *flat.tensors)
    return x.to(table.dtype).view(*tokens.shape[:-1], table.shape[1])


class _MeanEmbedding(torch.autograd.Function):
    """x_j = Σ_v q_jv E_v, (n, h); dE_v = Σ_j q_jv dx_j."""

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor) -> Tensor:
        ctx.tokens = tokens
        return _product(tokens, table)

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[None, Tensor]:
        return None, _TableGradient.apply(ctx.tokens, dx, *ctx.tokens.tensors)


class _TableGradient(torch.autograd.Function):
    """dE (V, h); with A the cotangent of it, its derivatives are Σ_v q_jv A_v in dx_j, and ⟨A_v,
    dx_j⟩ in q_jv.
    """

    @staticmethod
    @_exact
    def forward(ctx: Any, tokens: SoftTokens, dx: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens = tokens
        ctx.save_for_backward(dx, *tensors)
        total = dx.new_zeros(tokens.shape[-1], dx.shape[1])
        for rows, [q] in _Blocks(len(dx), len(total), dx, 1):
            total.addmm_(tokens.block(rows, q).T, dx[rows])
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, big_a: Tensor) -> tuple[Any, ...]:
        dx, *_ = ctx.saved_tensors
        needed = ctx.needs_input_grad[2:]
        totals = [None for _ in needed]
        if any(needed):
            totals = _pulled_back(ctx.tokens, dx, big_a, 1.0, needed)
        return None, _product(ctx.tokens, big_a), *totals


class _TokenDerivative(torch.autograd.Function):
    """Zeros (n, h), with the derivatives of x_j = Σ_v q_jv E_v in the tensors of q.

    Autograd runs this node only where these derivatives are asked for. An inner step does not ask
    for them.
    """

    @staticmethod
    def forward(ctx: Any, tokens: SoftTokens, table: Tensor, *tensors: Tensor) -> Tensor:
        ctx.tokens = tokens
        ctx.save_for_backward(table, *tensors)
        return table.new_zeros(len(tokens), table.shape[1])

    @staticmethod
    def backward(ctx: Any, dx: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "the derivative in soft tokens cannot be differentiated again: leave out"
                " create_graph, or use SoftTokens.probabilities()"
            )
        table, *_ = ctx.saved_tensors
        return None, None, *_pulled_back(ctx.tokens, dx, table, 1.0, ctx.needs_input_grad[2:])


@_exact
def _product(tokens: SoftTokens, table: Tensor) -> Tensor:
    """Σ_v q_v E_v of each position, (n, h)."""
    x = table.new_empty(len(tokens), table.shape[1])
    for rows, [q] in _Blocks(len(x), len(table), table, 1):
        torch.mm(tokens.block(rows, q), table, out=x[rows])
    return x
