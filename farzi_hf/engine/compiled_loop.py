"""The inner loop with its two costly parts compiled by `torch.compile`: a gradient, and a step in
reverse.

PyTorch does not support double backward through a compiled function, so the second derivatives are
computed inside it: the gradient by `torch.func.grad`, and the reverse step as the vector-Jacobian
product of that gradient, fused with the optimizer's arithmetic. Captured tensors, the step and the
learning rate are arguments of the compiled code, so that a change of them compiles nothing again.

With `torch_compile="reduce-overhead"` the network's part is a CUDA graph. The step is a tensor
then: each integer would have a graph of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from farzi_hf.engine.inner_loop import (
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
_FAILED: set[str] = set()  # modes, in this process


class CompiledLoop(InnerLoop):
    """A compiled `InnerLoop`. It makes no graphs, so `Direct` and `GradientGraphs`
    cannot use it.
    """

    makes_graphs = False

    def detached_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        inputs, w = (tuple(x.detach() for x in tensors) for tensors in (inputs, w))
        return self.optimizer.clip(self._call(_gradient, w, inputs, self.number(t)))

    replayed_gradient = detached_gradient

    def reverse(
        self,
        t: int,
        before: States,
        after: Any,
        inputs: Buffers,
        pulled: Sequence[Pulled],
        *_: None,
    ) -> Buffers:
        if (
            after and weights(before)[0].device.type != "cpu"
        ):  # `Reversible` needs the bits of the way forward
            return self.in_parts(t, before, after, inputs, pulled)
        needed = tuple(x.requires_grad for x in inputs)
        accumulators = tuple(
            after(i, slice(None)) if after else state[1:] for i, state in enumerate(before)
        )
        inputs = tuple(x.detach() for x in inputs)
        for cotangents, dx in pulled:
            g, earlier, products = self._call(
                _reverse,
                weights(before),
                inputs,
                self.number(t),
                needed,
                self.optimizer,
                self.optimizers,
                accumulators,
                after is not None,
                cotangents,
                t,
                self.rate(t),
            )
            for cotangent, new in zip(cotangents, earlier, strict=True):
                for x, y in zip(cotangent, new, strict=True):
                    x.copy_(y)
            for total, product in zip(dx, products, strict=True):
                total.add_(product)
        return self.optimizer.clip(
            g
        )  # not in compiled code, or its last bits could be others than going forward

    def in_parts(
        self,
        t: int,
        before: States,
        after: Any,
        inputs: Buffers,
        pulled: Sequence[Pulled],
        *_: None,
    ) -> Buffers:
        """`reverse` for 4 G: the gradient is taken as on the way forward, and again to be
        differentiated.
        """
        needed, inputs, w = (
            tuple(x.requires_grad for x in inputs),
            tuple(x.detach() for x in inputs),
            weights(before),
        )
        unclipped = self._call(_gradient, w, inputs, self.number(t))
        g = self.optimizer.clip(unclipped)
        for cotangents, dx in pulled:
            dg = self.optimizer.clip_pullback(
                unclipped, self._pullback(t, before, after, g, cotangents)
            )
            products = self._call(_vjp, w, inputs, self.number(t), needed, *dg)
            for total, product in zip((*weights(cotangents), *dx), products, strict=True):
                total.add_(product)
        return g

    def _call(self, function: Callable, w: Buffers, *args: Any, mode: str | None = None) -> Any:
        with autocast(self.autocast), torch._dynamo.config.patch(recompile_limit=_VARIANTS):
            return _compiled(function, mode)(self.inner_loss, self.layout, w, *args)


class CapturedLoop(CompiledLoop):
    """A `CompiledLoop` in a mode of `torch.compile`."""

    reverse = CompiledLoop.in_parts

    def _call(self, function: Callable, w: Buffers, inputs: Buffers, step: int, *args: Any) -> Any:
        args = w, inputs, torch.full((), step, device=w[0].device), *args
        if self.torch_compile not in _FAILED:
            torch.compiler.cudagraph_mark_step_begin()
            try:  # the next call writes over what a graph returns
                return tuple(
                    x.clone() for x in super()._call(function, *args, mode=self.torch_compile)
                )
            except RuntimeError as error:
                _FAILED.add(self.torch_compile)
                what = (
                    f"torch_compile={self.torch_compile!r} failed, steps go on without it:"
                    f" {str(error).partition(chr(10))[0]}"
                )
                logging.getLogger(__name__).warning(what)
        return super()._call(function, *args)


@cache
def _compiled(function: Callable, mode: str | None) -> Callable:
    return torch.compile(function, fullgraph=True, mode=mode)


def row_of_step(table: Tensor, step: int | Tensor) -> Tensor:
    """table[step − 1], without waiting for a step that is a tensor on the device."""
    return table[step - 1] if isinstance(step, int) else table.index_select(0, step.view(1) - 1)[0]


def _gradient(
    inner_loss: InnerLoss, layout: Layout, w: Buffers, inputs: Buffers, step: int
) -> Buffers:
    """g_t."""
    return torch.func.grad(lambda w: summed(inner_loss(layout.unflatten(w), inputs, step)))(w)


def _reverse(
    inner_loss: InnerLoss,
    layout: Layout,
    w: Buffers,
    inputs: Buffers,
    step: int,
    needed: tuple[bool, ...],
    whole: InnerOptimizer,
    optimizers: tuple[InnerOptimizer, ...],
    accumulators: tuple[Buffers, ...],
    stepped: bool,
    cotangents: States,
    t: int,
    lr: float,
) -> tuple[Buffers, States, Buffers]:
    """`InnerLoop.reverse` as a pure function, with g_t before it is clipped. `accumulators` are
    those after the step if `stepped`, otherwise those before it.
    """
    g, pull = _vjp(inner_loss, layout, w, inputs, step, needed)
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


def _vjp(
    inner_loss: InnerLoss,
    layout: Layout,
    w: Buffers,
    inputs: Buffers,
    step: int | Tensor,
    needed: tuple[bool, ...],
    *dg: Tensor,
) -> Any:
    """g_t, and its pullback to w and to the `needed` inputs; with `dg`, H_ww·dg and H_xw·dg."""

    def gradient(w: Buffers, differentiated: Buffers) -> Buffers:
        values = iter(differentiated)
        mixed = tuple(next(values) if need else x for x, need in zip(inputs, needed, strict=True))
        return _gradient(inner_loss, layout, w, mixed, step)

    g, pull = torch.func.vjp(
        gradient, w, tuple(x for x, need in zip(inputs, needed, strict=True) if need)
    )
    return sum(pull(dg), ()) if dg else (g, pull)
