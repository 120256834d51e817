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

from farzi_hf.engine.autocast import autocast
from farzi_hf.engine.buffers import Buffers, Layout, States, weights
from farzi_hf.engine.inner_loop import (
    Accumulators,
    Derivatives,
    GradientGraph,
    InnerLoop,
    InnerLoss,
    summed,
)
from farzi_hf.engine.optimizers import InnerOptimizer

_logger = logging.getLogger(__name__)
_VARIANTS = 64  # of one function, for different losses, shapes and dtypes
_FAILED: set[str] = set()  # modes, in this process


class CompiledLoop(InnerLoop):
    """A compiled `InnerLoop`. It makes no graphs, so `Direct` and `GradientGraphs`
    cannot use it.
    """

    makes_graphs = False

    def detached_gradient(self, w: Buffers, inputs: Buffers, t: int) -> Buffers:
        w = tuple(flat.detach() for flat in w)
        inputs = tuple(x.detach() for x in inputs)
        return self.optimizer.clip(self._call(_gradient, w, inputs, self.global_step(t)))

    replayed_gradient = detached_gradient

    def reverse(
        self,
        t: int,
        before: States,
        after: Accumulators | None,
        inputs: Buffers,
        derivatives: Sequence[Derivatives],
        graph: GradientGraph | None = None,
    ) -> Buffers:
        # `Reversible` needs the bits of the way forward, which fused code gives on a CPU alone.
        needs_bits_of_forward = after is not None and weights(before)[0].device.type != "cpu"
        if needs_bits_of_forward:
            return self.in_parts(t, before, after, inputs, derivatives)
        needed = tuple(x.requires_grad for x in inputs)
        inputs = tuple(x.detach() for x in inputs)
        accumulators = tuple(
            state[1:] if after is None else after(group, slice(None))
            for group, state in enumerate(before)
        )
        for each in derivatives:
            g, cotangents, products = self._call(
                _reverse,
                weights(before),
                inputs,
                self.global_step(t),
                needed,
                self.optimizer,
                self.optimizers,
                accumulators,
                after is not None,
                each.states,
                t,
                self.rate(t),
            )
            for state, new_state in zip(each.states, cotangents, strict=True):
                for x, new in zip(state, new_state, strict=True):
                    x.copy_(new)
            for total, product in zip(each.inputs, products, strict=True):
                total.add_(product)
        # Not in compiled code, or its last bits could be others than going forward.
        return self.optimizer.clip(g)

    def in_parts(
        self,
        t: int,
        before: States,
        after: Accumulators | None,
        inputs: Buffers,
        derivatives: Sequence[Derivatives],
        graph: GradientGraph | None = None,
    ) -> Buffers:
        """`reverse` for 4 G: the gradient is taken as on the way forward, and again to be
        differentiated.
        """
        w = weights(before)
        step = self.global_step(t)
        needed = tuple(x.requires_grad for x in inputs)
        inputs = tuple(x.detach() for x in inputs)
        unclipped = self._call(_gradient, w, inputs, step)
        g = self.optimizer.clip(unclipped)
        for each in derivatives:
            dg = self._pullback(t, before, after, g, each.states)
            dg = self.optimizer.clip_pullback(unclipped, dg)
            products = self._call(_products, w, inputs, step, needed, dg)
            dw = weights(each.states)
            for total, product in zip((*dw, *each.inputs), products, strict=True):
                total.add_(product)
        return g

    def _call(self, function: Callable, w: Buffers, *args: Any, mode: str | None = None) -> Any:
        """The result of a compiled function of the loss, the layout and these arguments."""
        with autocast(self.autocast), torch._dynamo.config.patch(recompile_limit=_VARIANTS):
            return _compiled(function, mode)(self.inner_loss, self.layout, w, *args)


class CapturedLoop(CompiledLoop):
    """A `CompiledLoop` in a mode of `torch.compile`."""

    reverse = CompiledLoop.in_parts

    def _call(self, function: Callable, w: Buffers, inputs: Buffers, step: int, *args: Any) -> Any:
        step = torch.full((), step, device=w[0].device)
        mode = self.torch_compile
        if mode not in _FAILED:
            torch.compiler.cudagraph_mark_step_begin()
            try:
                made = super()._call(function, w, inputs, step, *args, mode=mode)
                # The next call writes over what a graph returns.
                return tuple(x.clone() for x in made)
            except RuntimeError as error:
                _FAILED.add(mode)
                first_line = str(error).partition("\n")[0]
                _logger.warning(
                    "torch_compile=%r failed, steps go on without it: %s", mode, first_line
                )
        return super()._call(function, w, inputs, step, *args)


@cache
def _compiled(function: Callable, mode: str | None) -> Callable:
    return torch.compile(function, fullgraph=True, mode=mode)


def row_of_step(table: Tensor, step: int | Tensor) -> Tensor:
    """table[step − 1], without waiting for a step that is a tensor on the device."""
    if isinstance(step, int):
        return table[step - 1]
    return table.index_select(0, step.view(1) - 1)[0]


# -- the compiled functions ------------------------------------------------------------------------


def _gradient(
    inner_loss: InnerLoss, layout: Layout, w: Buffers, inputs: Buffers, step: int | Tensor
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
    optimizer_of_all: InnerOptimizer,
    optimizers: tuple[InnerOptimizer, ...],
    accumulators: tuple[Buffers, ...],
    accumulators_are_after: bool,
    cotangents: States,
    t: int,
    lr: float,
) -> tuple[Buffers, States, Buffers]:
    """`InnerLoop.reverse` as a pure function: g_t before it is clipped, the cotangents before the
    step, and what the step adds to dx.

    Args:
        accumulators: those after the step, or those before it.
    """
    unclipped, pull = _gradient_and_pullback(inner_loss, layout, w, inputs, step, needed)
    g = optimizer_of_all.clip(unclipped)
    earlier = []
    dg = []
    groups = zip(optimizers, w, accumulators, g, cotangents, strict=True)
    for optimizer, flat, given, flat_g, cotangent in groups:
        after = (
            given if accumulators_are_after else optimizer.step((flat, *given), flat_g, t, lr)[1:]
        )
        changed = [x.clone() for x in cotangent]
        dg.append(optimizer.pullback(flat, after, flat_g, changed, t, lr))
        earlier.append(changed)
    dw, dx = pull(optimizer_of_all.clip_pullback(unclipped, tuple(dg)))  # dx = H_xw·dg
    for cotangent, product in zip(earlier, dw, strict=True):
        cotangent[0].add_(product)  # dw += H_ww·dg
    return unclipped, tuple(map(tuple, earlier)), dx


def _products(
    inner_loss: InnerLoss,
    layout: Layout,
    w: Buffers,
    inputs: Buffers,
    step: int | Tensor,
    needed: tuple[bool, ...],
    dg: Buffers,
) -> Buffers:
    """H_ww·dg and H_xw·dg."""
    _, pull = _gradient_and_pullback(inner_loss, layout, w, inputs, step, needed)
    dw, dx = pull(dg)
    return *dw, *dx


def _gradient_and_pullback(
    inner_loss: InnerLoss,
    layout: Layout,
    w: Buffers,
    inputs: Buffers,
    step: int | Tensor,
    needed: tuple[bool, ...],
) -> tuple[Buffers, Callable[[Buffers], tuple[Buffers, Buffers]]]:
    """g_t, and its pullback to w and to the `needed` inputs."""

    def gradient(w: Buffers, differentiated: Buffers) -> Buffers:
        values = iter(differentiated)
        mixed = tuple(next(values) if need else x for x, need in zip(inputs, needed, strict=True))
        return _gradient(inner_loss, layout, w, mixed, step)

    differentiated = tuple(x for x, need in zip(inputs, needed, strict=True) if need)
    return torch.func.vjp(gradient, w, differentiated)
