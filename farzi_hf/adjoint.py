"""Differentiate through training: `unroll` runs an inner optimizer and makes its result differentiable in the data and in the start.

`theta_T = unroll(inner_loss, params, inputs, optimizer=…, steps=T)` is an ordinary differentiable function: build any outer loss on `theta_T` and
call `.backward()`. How the backward pass gets hold of the trajectory again is the *adjoint*, an object: all give the same exact
gradient and differ in memory and time only. In units of G, one evaluation of the inner gradient (forward and backward through the network), with P
trained numbers and T differentiated steps:

| adjoint  | time       | memory beyond one reverse step            |
|----------|------------|-------------------------------------------|
| `Direct` | 3 T·G      | every activation of every step            |
| `Tape`   | 4 T·G      | (T + O(√T)) · P numbers                    |

The trained parameters live in one flat buffer per (dtype, device), and the network sees views of it, so that the optimizer's cost does not depend on
the number of tensors.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from farzi_hf.inner_optimizers import InnerOptimizer, State

InnerLoss = Callable[[dict[str, Tensor], tuple[Tensor, ...], int], Tensor]
Buffers = tuple[Tensor, ...]
"""One flat tensor per group of parameters, a group being all those of one dtype and device."""
States = tuple[State, ...]
"""One optimizer state per group."""


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

    Which tensors train: integer tensors and frozen ones do not, they reach `inner_loss` unchanged and come back as the same objects. Frozen is an
    `nn.Parameter` with `requires_grad=False`; and a plain floating-point tensor without `requires_grad`, if any other tensor of `params` has it. So
    `dict(model.named_parameters())`, the same with buffers, and a dict of detached clones (which all train) each mean what they say.
    A trained tensor on which the loss does not depend has gradient zero: unlike `torch.optim`, which skips it, weight decay still shrinks it.

    Args:
        inner_loss: `inner_loss(params, inputs, step)` returns a scalar. A pure function: it is evaluated again in the backward pass, so minibatch
            choice and dropout must be functions of `step`. Only `params` and `inputs` get gradients, not what the function captures.
            It needs second derivatives: no flash attention, no cuDNN RNN. Backward runs it under the autocast settings of the forward pass.
        params: the start θ_0, by name. Two entries that share memory train independently.
        inputs: tensors passed to `inner_loss`, the meta-variables among them. Each inner step may use a part only.
        optimizer: `InnerAdam`, `InnerSGD`, …; its accumulators start at zero.
        steps: T, the number of inner steps.
        adjoint: how to differentiate; `Tape()` if None.
        window: differentiate only the last `window` steps (truncated backpropagation; biased). The gradient in `params` is then zero.
        first_step: number of the first step. `inner_loss` and the learning-rate schedule see first_step, …, first_step + steps − 1;
            Adam's bias corrections count from 1 in any case, because its moments start at zero.

    Returns:
        θ_T with the keys and shapes of `params`; trained tensors are views of one flat buffer per dtype and device.

    Raises:
        TypeError, ValueError: an argument is unusable; the message names it, the value and the remedy.
        RuntimeError: in the backward pass, if asked to record a graph of it (only `Direct` has second derivatives).
    """
    adjoint = Tape() if adjoint is None else adjoint
    _check_arguments(params, inputs, optimizer, steps, adjoint, window)
    layout = _Layout.of(params)
    w = layout.flatten(params)
    problem = Problem(inner_loss, optimizer, layout, steps, window or steps, first_step, _autocast_settings((*w, *inputs)))
    with problem.no_autocast():
        if torch.is_grad_enabled() and any(x.requires_grad for x in (*w, *inputs)):
            w = adjoint.run(problem, w, inputs)
        else:
            w = _weights(problem.advance(problem.start(w), inputs, range(1, steps + 1)))
    trained = layout.unflatten(w)
    return {name: trained[name] for name in params}


@dataclass(frozen=True)
class _Layout:
    """Where each trained tensor lies in the flat buffers, and the tensors that do not train."""

    groups: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[torch.Size, ...], ...]
    constants: dict[str, Tensor]

    @classmethod
    def of(cls, params: dict[str, Tensor]) -> _Layout:
        some_require_grad = any(x.requires_grad for x in params.values())

        def trains(x: Tensor) -> bool:
            plain = not some_require_grad and not isinstance(x, nn.Parameter)
            return x.is_floating_point() and (x.requires_grad or plain)

        groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
        for name, x in params.items():
            if trains(x):
                groups.setdefault((x.dtype, x.device), []).append(name)
        if not groups:
            raise ValueError(
                f"params has no tensor to train: all of {list(params)[:5]} … are integer or frozen; set requires_grad=True on those that should"
            )
        shapes = tuple(tuple(params[name].shape for name in names) for names in groups.values())
        constants = {name: x for name, x in params.items() if not trains(x)}
        return cls(tuple(map(tuple, groups.values())), shapes, constants)

    def flatten(self, params: dict[str, Tensor]) -> Buffers:
        return tuple(torch.cat([params[name].reshape(-1) for name in names]) for names in self.groups)

    def unflatten(self, w: Buffers) -> dict[str, Tensor]:
        params = dict(self.constants)
        for flat, names, shapes in zip(w, self.groups, self.shapes, strict=True):
            parts = flat.split([shape.numel() for shape in shapes])
            params.update((name, part.view(shape)) for name, part, shape in zip(names, parts, shapes, strict=True))
        return params


@dataclass(frozen=True)
class Problem:
    """What an adjoint needs to run the inner loop: every step of it forward, and every step in reverse.

    Steps are counted t = 1 … `steps` here; those from `first_taped` on are differentiated.
    """

    inner_loss: InnerLoss
    optimizer: InnerOptimizer
    layout: _Layout
    steps: int
    window: int
    first_step: int
    autocast: dict[str, tuple[torch.dtype, bool]]

    @property
    def first_taped(self) -> int:
        return self.steps - self.window + 1

    def number(self, t: int) -> int:
        """The global number of step t."""
        return self.first_step + t - 1

    def start(self, w: Buffers) -> States:
        """The states before the first step, in buffers of their own."""
        return tuple(self.optimizer.init(flat.detach().clone()) for flat in w)

    def no_autocast(self) -> ExitStack:
        """Gradients are taken, and the optimizer runs, in the dtypes of the tensors at hand; only the loss is under autocast."""
        return _autocast({device: (dtype, False) for device, (dtype, _) in self.autocast.items()})

    def gradient(self, w: Buffers, inputs: Buffers, t: int, *, create_graph: bool = False) -> Buffers:
        """g_t, one flat buffer per group. `w` must require grad."""
        step = self.number(t)
        with torch.enable_grad():
            with _autocast(self.autocast):
                loss = self.inner_loss(self.layout.unflatten(w), inputs, step)
            _check_loss(loss, step)
            return torch.autograd.grad(loss, w, create_graph=create_graph, materialize_grads=True)

    def update(self, states: States, g: Buffers, t: int, out: States | None = None) -> States:
        """The optimizer's step t on every group."""
        lr = self.optimizer.rate(self.number(t))
        outs = out or (None,) * len(states)
        return tuple(self.optimizer.step(state, flat, t, lr, o) for state, flat, o in zip(states, g, outs, strict=True))

    def pullback(self, before: States, after: States, g: Buffers, cotangents: States, t: int) -> Buffers:
        """The optimizer's reverse step t on every group: dg."""
        lr = self.optimizer.rate(self.number(t))
        groups = zip(before, after, g, cotangents, strict=True)
        return tuple(self.optimizer.pullback(b, a, flat, d, t, lr) for b, a, flat, d in groups)

    def advance(self, states: States, inputs: Buffers, ts: range, tape: list[Tensor] | None = None) -> States:
        """Steps `ts` with no graph, in place; appends each g_t to `tape` if given."""
        inputs = _detached(inputs)
        with torch.no_grad():
            for t in ts:
                g = self.gradient(_leaves(_weights(states)), inputs, t)
                states = self.update(states, g, t, out=states)
                if tape is not None:
                    tape.extend(g)
        return states


class Adjoint(ABC):
    """A way to differentiate the inner loop."""

    @abstractmethod
    def run(self, problem: Problem, w: Buffers, inputs: Buffers) -> Buffers:
        """The buffers after the last step, differentiable in `w` and `inputs`."""


class RecordingAdjoint(Adjoint):
    """An adjoint that records something going forward and finds every step again from it going backward, without a graph across steps.

    The backward pass costs a graph of each gradient and one product through it, 3 T·G, plus what `retrace` spends.
    """

    def run(self, problem: Problem, w: Buffers, inputs: Buffers) -> Buffers:
        return _Unrolled.apply(self, problem, *w, *inputs)

    @abstractmethod
    def record(self, problem: Problem, states: States, inputs: Buffers) -> tuple[States, list[Tensor]]:
        """Run the differentiated steps from `states` (which may be overwritten); return the last states and the record."""

    @abstractmethod
    def retrace(self, problem: Problem, record: list[Tensor]) -> Iterator[tuple[int, States, States, Buffers]]:
        """Yield `(t, states before t, states after t, g_t)` from the last step to the first differentiated one."""


@dataclass(frozen=True)
class Direct(Adjoint):
    """Plain autograd through the whole loop: the oracle, and the only adjoint with higher derivatives.

    Time 3 T·G. Memory: every activation of every differentiated step at once, like any differentiable optimizer.
    """

    def run(self, problem: Problem, w: Buffers, inputs: Buffers) -> Buffers:
        if not problem.optimizer.exact:
            name = type(problem.optimizer).__name__
            raise ValueError(f"adjoint=Direct() differentiates the optimizer's steps, but optimizer={name} has a rule of its own; use Tape()")
        states = tuple(problem.optimizer.init(flat) for flat in w)
        if problem.first_taped > 1:
            late = problem.advance(problem.start(w), inputs, range(1, problem.first_taped))
            states = tuple((_cut(flat, state[0]), *state[1:]) for flat, state in zip(w, late, strict=True))
        for t in range(problem.first_taped, problem.steps + 1):
            w = tuple(flat if flat.requires_grad else flat.detach().requires_grad_() for flat in _weights(states))
            g = problem.gradient(w, inputs, t, create_graph=True)
            states = problem.update(tuple((flat, *state[1:]) for flat, state in zip(w, states, strict=True)), g, t)
        return _weights(states)


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep every gradient g_t, and the states every √T steps; replay the optimizer between them, elementwise.

    Time 4 T·G (forward G, reverse 3G): the replay evaluates no network. Memory for T differentiated steps and P trained numbers: T·P for the
    gradients, and 2√T·S for the states, S = 3P with Adam and 2P with SGD; freed by the backward pass as saved tensors are (so
    `torch.autograd.graph.save_on_cpu` moves it off the device). The graph of one step's gradient is alive at a time.
    """

    def record(self, problem: Problem, states: States, inputs: Buffers) -> tuple[States, list[Tensor]]:
        tape: list[Tensor] = []
        for ts in self._segments(problem):
            tape.extend(x.clone() for state in states for x in state)
            states = problem.advance(states, inputs, ts, tape)
        return states, tape

    def retrace(self, problem: Problem, record: list[Tensor]) -> Iterator[tuple[int, States, States, Buffers]]:
        groups = len(problem.layout.groups)
        for ts in reversed(self._segments(problem)):
            g = {t: _pop(record, groups) for t in reversed(ts)}
            fields = _pop(record, groups * problem.optimizer.fields)
            trail = [tuple(_chunks(fields, groups))]
            for t in ts:
                trail.append(problem.update(trail[-1], g[t], t))
            for t in reversed(ts):
                after = trail.pop()
                yield t, trail[-1], after, g.pop(t)

    @staticmethod
    def _segments(problem: Problem) -> list[range]:
        length = math.isqrt(problem.window - 1) + 1  # ⌈√window⌉
        ends = problem.steps + 1
        return [range(t, min(t + length, ends)) for t in range(problem.first_taped, ends, length)]


class _Unrolled(torch.autograd.Function):
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`."""

    @staticmethod
    def forward(ctx: FunctionCtx, adjoint: RecordingAdjoint, problem: Problem, *tensors: Tensor) -> Buffers:
        w, inputs = _split(problem, tensors)
        states = problem.advance(problem.start(w), inputs, range(1, problem.first_taped))
        states, record = adjoint.record(problem, states, inputs)
        ctx.adjoint, ctx.problem, ctx.num_inputs = adjoint, problem, len(inputs)
        ctx.save_for_backward(*inputs, *problem.layout.constants.values(), *record)  # constants: so that autograd notices if they are overwritten
        return _weights(states)

    @staticmethod
    def backward(ctx: FunctionCtx, *dw: Tensor) -> tuple[Any, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                f"adjoint={type(ctx.adjoint).__name__}() has first derivatives only, but backward ran with create_graph=True; use adjoint=Direct()"
            )
        problem, saved = ctx.problem, ctx.saved_tensors
        inputs, record = saved[: ctx.num_inputs], saved[ctx.num_inputs + len(problem.layout.constants) :]
        needed = ctx.needs_input_grad[2 + len(dw) :]
        with problem.no_autocast():
            dw, dx = _reverse(ctx.adjoint, problem, inputs, needed, list(record), dw)
        return None, None, *dw, *dx


def _reverse(
    adjoint: RecordingAdjoint, problem: Problem, inputs: Buffers, needed: tuple[bool, ...], record: list[Tensor], dw: Buffers
) -> tuple[Buffers, list[Tensor | None]]:
    """The whole reverse pass: (dw_0, dx) from dw_T; None in dx for inputs that need no gradient."""
    inputs = tuple(x.detach().requires_grad_(need) for x, need in zip(inputs, needed, strict=True))
    dx = [torch.zeros_like(x) if need else None for x, need in zip(inputs, needed, strict=True)]
    sources = tuple(x for x in inputs if x.requires_grad)
    cotangents = problem.start(dw)
    for t, before, after, g in adjoint.retrace(problem, record):
        dg = problem.pullback(before, after, g, cotangents, t)
        w = _leaves(_weights(before))
        graphs = problem.gradient(w, inputs, t, create_graph=True)
        products = _vector_jacobian(graphs, (*w, *sources), dg)
        for total, product in zip((*_weights(cotangents), *(x for x in dx if x is not None)), products, strict=True):
            if product is not None:
                total.add_(product)  # dw += H_ww·dg, dx += H_xw·dg
    truncated = problem.first_taped > 1
    return tuple(torch.zeros_like(x) if truncated else x for x in _weights(cotangents)), dx


def _vector_jacobian(outputs: Buffers, sources: Buffers, vectors: Buffers) -> tuple[Tensor | None, ...]:
    """vectorsᵀ · ∂outputs/∂sources; None for a source that no output depends on. Frees the graph."""
    linked = [(y, v) for y, v in zip(outputs, vectors, strict=True) if y.requires_grad]
    if not linked:
        return (None,) * len(sources)
    outputs, vectors = zip(*linked, strict=True)
    return torch.autograd.grad(outputs, sources, vectors, allow_unused=True)


def _weights(states: States) -> Buffers:
    return tuple(state[0] for state in states)


def _detached(tensors: Buffers) -> Buffers:
    return tuple(x.detach() for x in tensors)


def _leaves(w: Buffers) -> Buffers:
    return tuple(flat.detach().requires_grad_() for flat in w)


def _cut(start: Tensor, value: Tensor) -> Tensor:
    """`value`, connected to `start` with derivative zero (`start` may hold infinities: no product with it)."""
    return torch.where(torch.zeros_like(start, dtype=torch.bool), start, value)


def _split(problem: Problem, tensors: Buffers) -> tuple[Buffers, Buffers]:
    groups = len(problem.layout.groups)
    return tensors[:groups], tensors[groups:]


def _pop(stack: list[Tensor], count: int) -> Buffers:
    top = tuple(stack[len(stack) - count :])
    del stack[len(stack) - count :]
    return top


def _chunks(items: Buffers, count: int) -> Iterator[Buffers]:
    size = len(items) // count
    return (items[i * size : (i + 1) * size] for i in range(count))


def _autocast_settings(tensors: Buffers) -> dict[str, tuple[torch.dtype, bool]]:
    """The autocast dtype and switch of every kind of device in use, as the caller has them now."""
    devices = {x.device.type for x in tensors if torch.amp.is_autocast_available(x.device.type)}
    return {device: (torch.get_autocast_dtype(device), torch.is_autocast_enabled(device)) for device in sorted(devices)}


def _autocast(settings: dict[str, tuple[torch.dtype, bool]]) -> ExitStack:
    """Enter these settings. Without autocast's cache of weights, which would outlive the graph of a step."""
    stack = ExitStack()
    for device, (dtype, enabled) in settings.items():
        stack.enter_context(torch.autocast(device, dtype, enabled, cache_enabled=False))
    return stack


def _check_arguments(params: Any, inputs: Any, optimizer: Any, steps: Any, adjoint: Any, window: Any) -> None:
    if not isinstance(params, dict) or not params or not all(isinstance(x, Tensor) for x in params.values()):
        raise TypeError(f"params must be a non-empty dict of tensors, got {_described(params)}; for a module pass dict(module.named_parameters())")
    if not isinstance(inputs, tuple) or not all(isinstance(x, Tensor) for x in inputs):
        raise TypeError(f"inputs must be a tuple of tensors, got {_described(inputs)}; for one tensor pass (x,)")
    if not isinstance(optimizer, InnerOptimizer):
        raise TypeError(f"optimizer must be an inner optimizer such as InnerAdam(lr=0.01), got {_described(optimizer)}")
    if not isinstance(adjoint, Adjoint):
        raise TypeError(f"adjoint must be an adjoint object such as Tape() or None, got {_described(adjoint)}")
    if not _is_count(steps) or steps < 1:
        raise ValueError(f"steps must be an integer >= 1, got {steps!r}; with no step to take, use params as they are")
    if window is not None and not (_is_count(window) and 1 <= window <= steps):
        raise ValueError(f"window must be None or an integer from 1 to steps={steps}, got {window!r}; None differentiates every step")


def _check_loss(loss: Any, step: int) -> None:
    if not isinstance(loss, Tensor) or loss.dim() != 0:
        got = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else _described(loss)
        raise ValueError(f"inner_loss must return a scalar tensor, got {got} at step {step}; reduce it with .mean() or .sum()")
    if not loss.requires_grad:
        raise ValueError(f"inner_loss returned a loss that does not depend on params at step {step}; remove .detach(), .item() or no_grad from it")


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _described(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{type(value).__name__} {str(value)[:60]!r}"
