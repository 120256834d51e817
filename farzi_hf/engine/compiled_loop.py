"""The inner loop with its two costly parts compiled by `torch.compile`: a gradient, and a step in reverse.

PyTorch does not support double backward through a compiled function, so the second derivatives are computed inside it: the gradient by
`torch.func.grad`, and the reverse step as the vector-Jacobian product of that gradient, fused with the optimizer's arithmetic. Captured tensors, the
step and the learning rate are arguments of the compiled code, so that a change of them compiles nothing again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch

from farzi_hf.engine.inner_loop import (
    Accumulators,
    Buffers,
    InnerLoop,
    InnerLoss,
    Layout,
    Pulled,
    States,
    autocast,
    summed,
    weights,
)
from farzi_hf.engine.optimizers import InnerOptimizer

_VARIANTS = 64  # of one function, for different losses, shapes and dtypes


class CompiledLoop(InnerLoop):
    """A compiled `InnerLoop`. It makes no graphs, so `Direct` and `GradientGraphs` cannot use it."""

    makes_graphs = False

    def detached_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        inputs, w = (tuple(x.detach() for x in tensors) for tensors in (inputs, w))
        return self.optimizer.clip(self._call(_gradient, w, inputs, self.number(t)))

    replayed_gradient = detached_gradient

    def reverse(
        self, t: int, before: States, after: Accumulators | None, inputs: Buffers, pulled: Sequence[Pulled],
        graph: None = None,
    ) -> Buffers:  # fmt: skip
        needed = tuple(x.requires_grad for x in inputs)
        accumulators = tuple(after(i, slice(None)) if after else state[1:] for i, state in enumerate(before))
        inputs = tuple(x.detach() for x in inputs)
        for cotangents, dx in pulled:
            g, earlier, products = self._call(
                _reverse, weights(before), inputs, self.number(t), needed, self.optimizer, self.optimizers, accumulators, after is not None,
                cotangents, t, self.rate(t),
            )  # fmt: skip
            for cotangent, new in zip(cotangents, earlier, strict=True):
                for x, y in zip(cotangent, new, strict=True):
                    x.copy_(y)
            for total, product in zip(dx, products, strict=True):
                total.add_(product)
        return self.optimizer.clip(g)  # not in compiled code, or its last bits could be others than going forward

    def _call(self, function: Callable, w: Buffers, *args: Any) -> Any:
        with autocast(self.autocast), torch._dynamo.config.patch(recompile_limit=_VARIANTS):
            return _compiled(function)(self.inner_loss, self.layout, w, *args)


@cache
def _compiled(function: Callable) -> Callable:
    return torch.compile(function, fullgraph=True)


def _gradient(inner_loss: InnerLoss, layout: Layout, w: Buffers, inputs: Buffers, step: int) -> Buffers:
    """g_t."""
    return torch.func.grad(lambda w: summed(inner_loss(layout.unflatten(w), inputs, step)))(w)


def _reverse(
    inner_loss: InnerLoss, layout: Layout, w: Buffers, inputs: Buffers, step: int, needed: tuple[bool, ...],
    whole: InnerOptimizer, optimizers: tuple[InnerOptimizer, ...], accumulators: tuple[Buffers, ...], stepped: bool, cotangents: States,
    t: int, lr: float,
) -> tuple[Buffers, States, Buffers]:  # fmt: skip
    """`InnerLoop.reverse` as a pure function, with g_t before it is clipped. `accumulators` are those after the step if
    `stepped`, otherwise those before it."""

    def gradient(w: Buffers, differentiated: Buffers) -> Buffers:
        values = iter(differentiated)
        mixed = tuple(next(values) if need else x for x, need in zip(inputs, needed, strict=True))
        return _gradient(inner_loss, layout, w, mixed, step)

    differentiated = tuple(x for x, need in zip(inputs, needed, strict=True) if need)
    g, pull = torch.func.vjp(gradient, w, differentiated)
    earlier, dg = [], []
    each = zip(optimizers, w, accumulators, whole.clip(g), cotangents, strict=True)
    for optimizer, flat, state, gradient_, cotangent in each:
        after = state if stepped else optimizer.step((flat, *state), gradient_, t, lr)[1:]
        earlier.append([x.clone() for x in cotangent])
        dg.append(optimizer.pullback(flat, after, gradient_, earlier[-1], t, lr))
    dw, dx = pull(whole.clip_pullback(g, tuple(dg)))
    for cotangent, product in zip(earlier, dw, strict=True):
        cotangent[0].add_(product)  # dw += H_ww·dg
    return g, tuple(map(tuple, earlier)), dx  # dx = H_xw·dg
