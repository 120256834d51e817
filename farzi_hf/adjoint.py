"""Differentiate through training: `unroll` makes the result of an inner loop differentiable in its data and its start.

`theta_T = unroll(inner_loss, params, inputs, optimizer=…, steps=T)` is an ordinary differentiable function: build
any outer loss on `theta_T` and call `.backward()`. How the backward pass finds the trajectory again is the
*adjoint*, an object. All adjoints give the same exact gradient, and differ in time and memory. With G the time of
one inner gradient (forward and backward through the network), P the number of trained parameters, and T the number
of differentiated steps:

| adjoint  | time  | memory                                                  |
|----------|-------|---------------------------------------------------------|
| `Direct` | 3 T·G | activations and gradient graphs of all T steps          |
| `Tape`   | 4 T·G | those of one step, and T·P numbers (more exactly below) |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from farzi_hf.inner_loop import (
    Buffers,
    InnerLoop,
    InnerLoss,
    Layout,
    States,
    autocast_settings,
    no_autocast,
    weights,
)
from farzi_hf.inner_optimizers import InnerOptimizer


def unroll(
    inner_loss: InnerLoss,
    params: dict[str, Tensor],
    inputs: tuple[Tensor, ...],
    *,
    optimizer: InnerOptimizer,
    steps: int,
    adjoint: Adjoint | None = None,
    window: int | None = None,
    first_step: int = 1,
) -> dict[str, Tensor]:
    """Train `params` on `inner_loss` for `steps` steps; the result is differentiable in `params` and `inputs`.

    Which tensors train: integer and frozen tensors do not; they reach `inner_loss` unchanged and come back as the same
    objects. Frozen is an `nn.Parameter` with `requires_grad=False`, and, as soon as any tensor of `params` has
    `requires_grad=True`, every tensor without it. So `dict(model.named_parameters())`, the same with buffers added,
    and a dict of detached clones (which all train) each mean what they say. A trained tensor on which the loss does
    not depend has gradient zero: `torch.optim` would skip it, here weight decay still shrinks it.

    Args:
        inner_loss: `inner_loss(params, inputs, step)` returns a scalar. It must be a pure function, because the
            backward pass evaluates it again (under the autocast settings of the forward pass): choose minibatches
            and dropout by `step`. It must have second derivatives: no flash attention, no cuDNN RNN. Only `params`
            and `inputs` get gradients, not what the function captures.
        params: the start θ_0, by name.
        inputs: tensors for `inner_loss`, the meta-variables among them.
        optimizer: `InnerAdam`, `InnerSGD` or another `InnerOptimizer`; its accumulators start at zero.
        steps: T, the number of inner steps.
        adjoint: how to differentiate; None means `Tape()`.
        window: differentiate only the last `window` steps (truncated backpropagation, biased); None means all of
            them. If smaller than `steps`, the gradient in `params` is zero.
        first_step: number of the first step: `inner_loss` and the optimizer's `lr_schedule` see
            first_step, …, first_step + steps − 1. Adam's bias corrections count from 1 in any case, as its moments
            start at zero.

    Returns:
        θ_T, with the keys, order and shapes of `params`. Trained tensors are views of one buffer per dtype and device.

    Raises:
        TypeError, ValueError: an argument is unusable; the message names it, the value and the remedy.
        RuntimeError: in a backward pass with `create_graph=True`, except through `Direct`.
    """
    adjoint = Tape() if adjoint is None else adjoint
    _check_types(params, inputs, optimizer, adjoint)
    _check_counts(steps, window, first_step)
    layout = Layout.of(params)
    w = layout.flatten(params)
    settings = autocast_settings((*w, *inputs))
    loop = InnerLoop(inner_loss, optimizer, layout, steps, window or steps, first_step, settings)
    differentiable = torch.is_grad_enabled() and any(x.requires_grad for x in (*w, *inputs))
    with torch.inference_mode(False), no_autocast(settings):  # training needs gradients even where the caller does not
        w = adjoint.run(loop, w, inputs) if differentiable else weights(loop.advance(loop.start(w), inputs, loop.all))
    trained = layout.unflatten(w)
    return {name: trained[name] for name in params}


class Adjoint(ABC):
    """A way to differentiate the inner loop."""

    @abstractmethod
    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        """The parameters after the last step, differentiable in `w` (those before the first) and `inputs`."""


@dataclass(frozen=True)
class Direct(Adjoint):
    """Plain autograd through all steps: the oracle, and the only adjoint that has higher derivatives.

    Time 3 T·G. Memory: the activations and the gradient graph of every differentiated step at once.
    """

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        if not loop.optimizer.exact:
            raise ValueError(
                f"adjoint=Direct() differentiates the steps of the optimizer and cannot follow the reverse rule of "
                f"optimizer={type(loop.optimizer).__name__}; use adjoint=Tape()"
            )
        states = tuple(loop.optimizer.init(flat) for flat in w)
        if loop.skipped:
            late = loop.advance(loop.start(w), inputs, loop.skipped)
            states = tuple((_cut(flat, state[0]), *state[1:]) for flat, state in zip(w, late, strict=True))
        for t in loop.taped:
            states = tuple((_requiring_grad(state[0]), *state[1:]) for state in states)
            g = loop.gradient(weights(states), inputs, t, create_graph=True)
            states = loop.update(states, g, t)
        return weights(states)


class RecordingAdjoint(Adjoint):
    """An adjoint that writes a record going forward and finds every step again from it going backward.

    No graph connects the steps: the reverse pass rebuilds the graph of one step at a time, for 3 G each.
    """

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        return _Unrolled.apply(self, loop, *w, *inputs)

    @abstractmethod
    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, list[Tensor]]:
        """Take the steps `loop.taped`, over the buffers of `states`; return the last states and the record."""

    @abstractmethod
    def retrace(
        self, loop: InnerLoop, record: list[Tensor], inputs: Buffers
    ) -> Iterator[tuple[int, States, States, Buffers]]:
        """Yield `(t, states before, states after, g_t)` for the steps `loop.taped`, last first; may eat up `record`."""


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep the gradient of every step, and the states of every √T-th; replay the optimizer between those, elementwise.

    Time 4 T·G: G forward, 3 G in reverse; the replay does not evaluate the network. Memory for T differentiated
    steps: T·P numbers for the gradients and up to 2√T·S for states, where S is 3P with Adam and 2P with SGD; the
    graph of one step; one copy of the inputs that need a gradient. All of it is freed by the backward pass.
    """

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, list[Tensor]]:
        tape: list[Tensor] = []
        for ts in _segments(loop.taped):
            tape.extend(x.clone() for state in states for x in state)
            states = loop.advance(states, inputs, ts, tape)
        return states, tape

    def retrace(
        self, loop: InnerLoop, record: list[Tensor], inputs: Buffers
    ) -> Iterator[tuple[int, States, States, Buffers]]:
        groups, fields = len(loop.layout.groups), loop.optimizer.fields
        for ts in reversed(_segments(loop.taped)):
            g = {t: _pop(record, groups) for t in reversed(ts)}
            start = _pop(record, groups * fields)
            trail = [tuple(start[i : i + fields] for i in range(0, len(start), fields))]
            for t in ts:
                trail.append(loop.update(trail[-1], g[t], t))
            for t in reversed(ts):
                after = trail.pop()
                yield t, trail[-1], after, g.pop(t)


class _Unrolled(torch.autograd.Function):
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`."""

    @staticmethod
    def forward(ctx: FunctionCtx, adjoint: RecordingAdjoint, loop: InnerLoop, *tensors: Tensor) -> Buffers:
        groups = len(loop.layout.groups)
        w, inputs = tensors[:groups], tensors[groups:]
        states = loop.advance(loop.start(w), inputs, loop.skipped)
        states, record = adjoint.record(loop, states, inputs)
        # As saved tensors, the record goes with the backward pass, and overwritten inputs or constants are noticed.
        ctx.save_for_backward(*inputs, *loop.layout.constants.values(), *record)
        ctx.adjoint, ctx.loop, ctx.num_inputs = adjoint, loop, len(inputs)
        return weights(states)

    @staticmethod
    def backward(ctx: FunctionCtx, *dw: Tensor) -> tuple[Any, ...]:
        adjoint, loop, saved = ctx.adjoint, ctx.loop, ctx.saved_tensors
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"adjoint={type(adjoint).__name__}() has first derivatives only, but backward was called with "
                "create_graph=True; use adjoint=Direct()"
            )
        needed = ctx.needs_input_grad[2 + len(dw) :]
        inputs = tuple(x.detach().requires_grad_(need) for x, need in zip(saved, needed, strict=False))
        record = list(saved[ctx.num_inputs + len(loop.layout.constants) :])
        dx = iter(totals := tuple(torch.zeros_like(x) for x in inputs if x.requires_grad))
        cotangents = loop.start(dw)
        with no_autocast(loop.autocast):
            for t, before, after, g in adjoint.retrace(loop, record, inputs):
                loop.reverse(before, after, g, inputs, cotangents, totals, t)
        dw = tuple(torch.zeros_like(flat) if loop.skipped else flat for flat in weights(cotangents))
        return None, None, *dw, *(next(dx) if need else None for need in needed)


def _segments(ts: range) -> list[range]:
    """Cut the steps into ⌈√T⌉ at a time."""
    length = math.isqrt(len(ts) - 1) + 1
    return [ts[i : i + length] for i in range(0, len(ts), length)]


def _pop(stack: list[Tensor], count: int) -> Buffers:
    """Take the last `count` items off the stack, in the order in which they went on."""
    top = tuple(stack[-count:])
    del stack[-count:]
    return top


def _requiring_grad(w: Tensor) -> Tensor:
    return w if w.requires_grad else w.detach().requires_grad_()


def _cut(start: Tensor, value: Tensor) -> Tensor:
    """`value`, linked to `start` by a derivative of zero (not by 0 · start, which may be NaN)."""
    return torch.where(torch.zeros_like(start, dtype=torch.bool), start, value)


def _check_types(params: Any, inputs: Any, optimizer: Any, adjoint: Any) -> None:
    if not isinstance(params, dict) or not params or not all(isinstance(x, Tensor) for x in params.values()):
        raise TypeError(
            f"params must be a dict of tensors with at least one entry, got {_described(params)}; "
            "for a module pass dict(module.named_parameters())"
        )
    if not isinstance(inputs, tuple) or not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(f"inputs must be a tuple of tensors, got {_described(inputs)}; for one tensor pass (x,)")
    if not isinstance(optimizer, InnerOptimizer):
        raise TypeError(
            f"optimizer must be an InnerOptimizer, got {_described(optimizer)}; pass for example InnerAdam(lr=0.01)"
        )
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint must be an Adjoint or None, got {_described(adjoint)}; pass for example Tape()")


def _check_counts(steps: Any, window: Any, first_step: Any) -> None:
    if not _is_int(steps) or steps < 1:
        raise ValueError(f"steps must be an integer >= 1, got {steps!r}; without steps, use params as they are")
    if window is not None and not (_is_int(window) and 1 <= window <= steps):
        raise ValueError(
            f"window must be None or an integer from 1 to steps={steps}, got {window!r}; None differentiates all steps"
        )
    if not _is_int(first_step):
        raise ValueError(f"first_step must be an integer, got {first_step!r}; the first step of a run is 1")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {str(value)[:60]!r}"
