"""Adjoints: how the backward pass of `unroll` finds the trajectory again. All give the same exact gradient.

Here are those that keep graphs, gradients or states; `Reversible`, which needs none of them, is in `farzi_hf.reversal`.

With G the time of one inner gradient (forward and backward through the network), P the number of trained parameters,
S the numbers in a state of the optimizer (3P for Adam, 2P for SGD), and T the number of differentiated steps:

| adjoint      | time   | memory                                                                              |
|--------------|--------|-------------------------------------------------------------------------------------|
| `Direct`     | 3 T·G  | the gradient graphs of all T steps                                                  |
| `Tape`       | 4 T·G  | the graph of one step, T·P + 2√T·S numbers                                          |
| `Reversible` | 4 T·G  | the graph of one step, about 50 bytes per parameter, and log2(1/β) bits a step      |
| `Checkpoint` | 5 T·G  | the graph of one step, √(2T)·S numbers; or fewer states, in more time               |
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from farzi_hf.inner_loop import Accumulators, Buffers, InnerLoop, States, no_autocast, weights

Reverse = Callable[[int, States, Accumulators | None], Buffers]
"""`reverse(t, before, after)`: `InnerLoop.reverse` of one backward pass. Returns g_t."""


class Adjoint(ABC):
    """A way to differentiate the inner loop."""

    @abstractmethod
    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        """The parameters after the last step, differentiable in `w` (those before the first) and `inputs`."""

    @abstractmethod
    def memory(self, loop: InnerLoop, w: Buffers, graph: int) -> int:
        """Estimate of the bytes in use at the peak, if the graph of one differentiable step has `graph` bytes."""


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
        if not loop.keeps_graphs:
            raise ValueError(
                "adjoint=Direct() needs autograd's graphs, which torch_compile=True does without; use adjoint=Tape()"
            )
        states = tuple(loop.optimizer.init(flat) for flat in w)
        if loop.skipped:
            late = loop.advance(loop.start(w), inputs, loop.skipped)
            states = tuple((_cut(flat, state[0]), *state[1:]) for flat, state in zip(w, late, strict=True))
        for t in loop.taped:
            states = loop.differentiable_step(states, inputs, t)
        return weights(states)

    def memory(self, loop: InnerLoop, w: Buffers, graph: int) -> int:
        return len(loop.taped) * graph


class RecordingAdjoint(Adjoint):
    """An adjoint that writes a record going forward and finds every step again from it going backward.

    No graph connects the steps: the reverse pass rebuilds the graph of one step at a time, for 3 G each.
    """

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        return _Unrolled.apply(self, loop, *w, *inputs)

    @abstractmethod
    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Any]:
        """Take the steps `loop.taped`, over the buffers of `states`; return the last states and the record, of any kind."""

    @abstractmethod
    def retrace(self, loop: InnerLoop, record: Any, inputs: Buffers, reverse: Reverse) -> None:
        """Call `reverse` for the steps `loop.taped`, last first; of a retained graph, as often as there is a backward pass."""


class Recording:
    """A stack of tensors that a backward pass takes down as it goes, so that their memory serves others.

    The states that it begins with stay: over a retained graph, the next backward pass records again from there.
    """

    def __init__(self, states: States):
        self.start = _clone(states)
        self.stack: list[Tensor] = []
        self.used = False

    def push(self, states: States) -> None:
        self.stack.extend(x.clone() for state in states for x in state)

    def pop(self, count: int) -> Buffers:
        """The last `count` tensors, in the order in which they went on."""
        top = tuple(self.stack[-count:])
        del self.stack[-count:]
        return top

    def pop_states(self) -> States:
        """States that `push` put there; those at the start where the stack is empty."""
        if not self.stack:
            return self.start
        fields = len(self.start[0])
        flat = self.pop(len(self.start) * fields)
        return tuple(flat[i : i + fields] for i in range(0, len(flat), fields))

    def renewed(self, adjoint: RecordingAdjoint, loop: InnerLoop, inputs: Buffers) -> Recording:
        """This record if no backward pass has used it, else the same one again."""
        record = adjoint.record(loop, _clone(self.start), inputs)[1] if self.used else self
        self.used = True
        return record


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep the gradient of every step, and the states of every √T-th; replay the optimizer between those, elementwise.

    Time 4 T·G: G forward, 3 G in reverse; the replay does not evaluate the network. Memory for T differentiated
    steps: T·P numbers for the gradients and up to 2√T·S for states, where S is 3P with Adam and 2P with SGD; the
    graph of one step; one copy of the inputs that need a gradient. The backward pass frees it as it goes.
    """

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Recording]:
        first, *others = _segments(loop.taped)
        record = Recording(states)
        states = loop.advance(states, inputs, first, record.stack)
        for ts in others:
            record.push(states)
            states = loop.advance(states, inputs, ts, record.stack)
        return states, record

    def retrace(self, loop: InnerLoop, record: Recording, inputs: Buffers, reverse: Reverse) -> None:
        record = record.renewed(self, loop, inputs)
        for ts in reversed(_segments(loop.taped)):
            g = {t: record.pop(len(loop.layout.groups)) for t in reversed(ts)}
            trail = [record.pop_states()]
            for t in ts:
                trail.append(loop.update(trail[-1], g.pop(t), t))
            for t in reversed(ts):
                after = trail.pop()
                reverse(t, trail[-1], lambda group, rows, after=after: [x[rows] for x in after[group][1:]])

    def memory(self, loop: InnerLoop, w: Buffers, graph: int) -> int:
        steps = len(loop.taped)
        return graph + _bytes(w) * (steps + 2 * (math.isqrt(steps) + 1) * loop.optimizer.fields)


@dataclass(frozen=True)
class Checkpoint(RecordingAdjoint):
    """Keep the states of few steps, and take the steps between them again: any optimizer, any dtype.

    When a kept state is no longer needed, its place serves a state further back, by the schedule that needs the fewest
    evaluations for this number of places (Griewank & Walther, 2000: revolve). With about √(2T) of them no step is
    taken more than twice, which makes 5 T·G; with fewer the time grows slowly: for T = 100, 10 slots
    make 5.3 T·G, 5 make 6.2, 3 make 8.0. Memory: `slots` states, S numbers each, and the graph of one step.

    Args:
        slots: the number of states kept, the first one among them; None means about √(2T), so that no step is
            taken more than twice.

    Raises:
        ValueError: `slots` is not an integer of at least 1.
    """

    slots: int | None = None

    def __post_init__(self) -> None:
        if self.slots is not None and (
            not isinstance(self.slots, int) or isinstance(self.slots, bool) or self.slots < 1
        ):
            raise ValueError(f"slots must be None or an integer >= 1, got {self.slots!r}; None takes about sqrt(2 T)")

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Recording]:
        (first, _), *others = self._first_descent(loop.taped)
        record = Recording(states)
        states = loop.advance(states, inputs, first)
        for ts, _ in others:
            record.push(states)
            states = loop.advance(states, inputs, ts)
        return states, record

    def retrace(self, loop: InnerLoop, record: Recording, inputs: Buffers, reverse: Reverse) -> None:
        def descend(start: States, ts: range, slots: int) -> None:
            """Reverse the steps `ts`, given the states before them, with `slots` places, that of `start` included."""
            while len(ts) > 1:
                length = split(len(ts), slots)
                descend(loop.advance(_clone(start), inputs, ts[:length]), ts[length:], slots - 1)
                ts = ts[:length]
            reverse(ts[0], start, None)

        record = record.renewed(self, loop, inputs)
        for ts, slots in reversed(self._first_descent(loop.taped)):
            descend(record.pop_states(), ts, slots)

    def memory(self, loop: InnerLoop, w: Buffers, graph: int) -> int:
        return graph + _bytes(w) * loop.optimizer.fields * (self._slots(len(loop.taped)) + 3)

    def _slots(self, steps: int) -> int:
        if self.slots is not None:
            return min(self.slots, steps)
        return next(slots for slots in range(1, steps + 1) if math.comb(slots + 2, 2) >= steps)

    def _first_descent(self, ts: range) -> list[tuple[range, int]]:
        """The steps between one state kept on the way forward and the next, with the places for them in reverse."""
        pieces, slots = [], self._slots(len(ts))
        while len(ts) > 1 and slots > 1:
            length = split(len(ts), slots)
            pieces.append((ts[:length], slots))
            ts, slots = ts[length:], slots - 1
        return [*pieces, (ts, slots)]


class _Unrolled(torch.autograd.Function):
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`."""

    @staticmethod
    def forward(ctx: FunctionCtx, adjoint: RecordingAdjoint, loop: InnerLoop, *tensors: Tensor) -> Buffers:
        groups = len(loop.layout.groups)
        w, inputs = tensors[:groups], tensors[groups:]
        states, ctx.record = adjoint.record(loop, loop.advance(loop.start(w), inputs, loop.skipped), inputs)
        # As saved tensors, so that it is noticed if they are overwritten.
        ctx.save_for_backward(*inputs, *loop.layout.constants.values())
        ctx.adjoint, ctx.loop = adjoint, loop
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
        dx = iter(totals := tuple(torch.zeros_like(x) for x in inputs if x.requires_grad))
        cotangents = loop.start(dw)

        def reverse(t: int, before: States, after: Accumulators | None) -> Buffers:
            return loop.reverse(t, before, after, inputs, cotangents, totals)

        with no_autocast(loop.autocast):
            adjoint.retrace(loop, ctx.record, inputs, reverse)
        dw = tuple(torch.zeros_like(flat) if loop.skipped else flat for flat in weights(cotangents))
        return None, None, *dw, *(next(dx) if need else None for need in needed)


def split(steps: int, slots: int) -> int:
    """After how many of `steps` steps to keep the next state, if there are `slots` places, the first state's included.

    With s places and r repetitions C(s + r, s) steps can be reversed (Griewank & Walther, 2000): here the first part with
    all places and r - 1 repetitions, the second one with a place less and r. With one place the last step is next.
    """
    repeats = next(r for r in range(1, steps) if math.comb(slots + r, slots) >= steps)
    return min(math.comb(slots + repeats - 1, slots), steps - math.comb(slots + repeats - 2, slots - 1))


def _segments(ts: range) -> list[range]:
    """Cut the steps into ⌈√T⌉ at a time."""
    length = math.isqrt(len(ts) - 1) + 1
    return [ts[i : i + length] for i in range(0, len(ts), length)]


def _clone(states: States) -> States:
    return tuple(tuple(x.clone() for x in state) for state in states)


def _bytes(w: Buffers) -> int:
    return sum(flat.nbytes for flat in w)


def _cut(start: Tensor, value: Tensor) -> Tensor:
    """`value`, linked to `start` by a derivative of zero (not by 0 · start, which may be NaN)."""
    return torch.where(torch.zeros_like(start, dtype=torch.bool), start, value)
