"""Adjoints: how the backward pass of `unroll` finds the trajectory again. All give the same exact gradient.

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

from farzi_hf.fixed_point import FixedPointState
from farzi_hf.inner_loop import Buffers, InnerLoop, States, no_autocast, weights

Reverse = Callable[[int, States, Callable[[], States] | None], Buffers]
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
    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, list[Tensor], Any]:
        """Take the steps `loop.taped`, over the buffers of `states`; return the last states and the record.

        The record is a list of tensors, which nobody writes to any more, and one object of any kind.
        """

    @abstractmethod
    def retrace(self, loop: InnerLoop, record: list[Tensor], memo: Any, inputs: Buffers, reverse: Reverse) -> None:
        """Call `reverse` for the steps `loop.taped`, last first; may eat up the list `record`."""


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep the gradient of every step, and the states of every √T-th; replay the optimizer between those, elementwise.

    Time 4 T·G: G forward, 3 G in reverse; the replay does not evaluate the network. Memory for T differentiated
    steps: T·P numbers for the gradients and up to 2√T·S for states, where S is 3P with Adam and 2P with SGD; the
    graph of one step; one copy of the inputs that need a gradient. All of it is freed by the backward pass.
    """

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, list[Tensor], None]:
        tape: list[Tensor] = []
        for ts in _segments(loop.taped):
            tape.extend(_copies(states))
            states = loop.advance(states, inputs, ts, tape)
        return states, tape, None

    def retrace(self, loop: InnerLoop, record: list[Tensor], memo: None, inputs: Buffers, reverse: Reverse) -> None:
        for ts in reversed(_segments(loop.taped)):
            g = {t: _pop(record, len(loop.layout.groups)) for t in reversed(ts)}
            trail = [_pop_states(record, loop)]
            for t in ts:
                trail.append(loop.update(trail[-1], g.pop(t), t))
            for t in reversed(ts):
                after = trail.pop
                reverse(t, trail[-2], after)

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

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, list[Tensor], None]:
        kept: list[Tensor] = []
        for ts, _ in self._first_descent(loop.taped):
            kept.extend(_copies(states))
            states = loop.advance(states, inputs, ts)
        return states, kept, None

    def retrace(self, loop: InnerLoop, record: list[Tensor], memo: None, inputs: Buffers, reverse: Reverse) -> None:
        def descend(start: States, ts: range, slots: int) -> None:
            """Reverse the steps `ts`, given the states before them, with `slots` places, that of `start` included."""
            while len(ts) > 1:
                length = split(len(ts), slots)
                middle = loop.advance(_clone(start), inputs, ts[:length])
                descend(middle, ts[length:], slots - 1)
                ts = ts[:length]
            reverse(ts[0], start, None)

        for ts, slots in reversed(self._first_descent(loop.taped)):
            descend(_pop_states(record, loop), ts, slots)

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


@dataclass(frozen=True)
class Reversible(RecordingAdjoint):
    """Run the training itself backwards, from its last state: memory that hardly grows with the number of steps.

    States are integers (`farzi_hf.fixed_point`), of which no bit is lost: going back ends at the start, bit for bit,
    and anything else is an error. The steps are those of the same optimizer in floating point up to rounding.

    Time 4 T·G: G forward, 3 G in reverse. Memory: with Adam 36 to 56 bytes per parameter, with SGD 24; log2(1/β) bits
    per parameter and step for each accumulator (0.15 bits for β = 0.9, 0.0014 for 0.999, 1 bit for 0.5); the graph of
    one step.

    Raises (from `unroll` or in the backward pass):
        ValueError: the optimizer has an accumulator without memory (SGD without momentum, Adam with a β of 0).
        OverflowError: a gradient or a parameter is too large for the integers.
        RuntimeError: the inner loss did not give the same gradient twice.
    """

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        if not all(loop.optimizer.decays):
            raise ValueError(
                f"adjoint=Reversible() cannot run {loop.optimizer} backwards: a decay of 0 forgets everything; "
                "give it momentum (betas above 0), or use adjoint=Tape() or Checkpoint()"
            )
        return super().run(loop, w, inputs)

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, list[Tensor], Reversal]:
        reversal = Reversal(loop, states)
        reversal.forward(inputs)
        return reversal.release(), [], reversal

    def retrace(self, loop: InnerLoop, record: list[Tensor], memo: Reversal, inputs: Buffers, reverse: Reverse) -> None:
        memo.backward(inputs, reverse)

    def memory(self, loop: InnerLoop, w: Buffers, graph: int) -> int:
        steps = len(loop.taped)
        bits = 64 * (4 + 4 * len(loop.optimizer.decays)) / 2 - steps * sum(map(math.log2, loop.optimizer.decays))
        return graph + int(sum(flat.numel() for flat in w) * bits / 8)


class Reversal:
    """The integers of one unrolled training, at its start or at its end."""

    def __init__(self, loop: InnerLoop, states: States):
        self.loop = loop
        before = loop.taped[0] - 1
        self.groups = [FixedPointState(loop.optimizer, state, before) for state in states]
        self.start = [group.full_checksum() for group in self.groups]
        self.checksums: list[list[int]] = []  # of the parameters before each step taken
        self.finite = True

    def forward(self, inputs: Buffers) -> None:
        """From the start to the end; training that left the finite numbers goes no further."""
        for t in self.loop.taped:
            g = self.loop.replayed_gradient(weights(self.states()), inputs, t)
            self.finite = all(bool(flat.isfinite().all()) for flat in g)
            if not self.finite:
                break
            self.checksums.append([group.checksum() for group in self.groups])
            for group, flat in zip(self.groups, g, strict=True):
                group.step(flat, t, self.loop.rate(t))

    def backward(self, inputs: Buffers, reverse: Reverse) -> None:
        """From the end to the start."""
        if not self.finite:  # as with every adjoint, the gradient is then not a number either
            lost = tuple(state * self.loop.optimizer.fields for state in self.states())
            reverse(self.loop.taped[-1], lost, lambda: lost)
            return
        if not self.checksums:  # a second time, over a retained graph
            self.forward(inputs)
        for t in reversed(self.loop.taped):
            for group in self.groups:
                group.unstep(t, self.loop.rate(t))
            self._check(t, [group.checksum() for group in self.groups] == self.checksums.pop())
            g = reverse(
                t, self.states(), lambda t=t: tuple((group.weights, *group.accumulators(t)) for group in self.groups)
            )
            for group, flat in zip(self.groups, g, strict=True):
                group.restore(flat, t)
        self._check(self.loop.taped[0] - 1, self.start == [group.full_checksum() for group in self.groups])

    def release(self) -> States:
        """The present parameters, for others to keep: nothing here will write to them again."""
        states = self.states()
        for group in self.groups:
            group.weights = torch.empty_like(group.weights)
        return states

    def states(self) -> States:
        """Of the present parameters only; NaN once they are lost."""
        if self.finite:
            return tuple((group.weights,) for group in self.groups)
        return tuple((torch.full_like(group.weights, math.nan),) for group in self.groups)

    def _check(self, t: int, same: bool) -> None:
        if not same:
            raise RuntimeError(
                f"adjoint=Reversible() did not come back to where it was before step {t + 1 if t else 1}: inner_loss gave "
                "another gradient than it did going forward; make it a pure function of (params, inputs, step) and its "
                "kernels deterministic (torch.use_deterministic_algorithms(True)), or use adjoint=Checkpoint() or Tape()"
            )


class _Unrolled(torch.autograd.Function):
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`."""

    @staticmethod
    def forward(ctx: FunctionCtx, adjoint: RecordingAdjoint, loop: InnerLoop, *tensors: Tensor) -> Buffers:
        groups = len(loop.layout.groups)
        w, inputs = tensors[:groups], tensors[groups:]
        states = loop.advance(loop.start(w), inputs, loop.skipped)
        states, record, ctx.memo = adjoint.record(loop, states, inputs)
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

        def reverse(t: int, before: States, after: Callable[[], States] | None) -> Buffers:
            return loop.reverse(t, before, after, inputs, cotangents, totals)

        with no_autocast(loop.autocast):
            adjoint.retrace(loop, record, ctx.memo, inputs, reverse)
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


def _copies(states: States) -> list[Tensor]:
    return [x.clone() for state in states for x in state]


def _clone(states: States) -> States:
    return tuple(tuple(x.clone() for x in state) for state in states)


def _pop(stack: list[Tensor], count: int) -> Buffers:
    """Take the last `count` items off the stack, in the order in which they went on."""
    top = tuple(stack[-count:])
    del stack[-count:]
    return top


def _pop_states(stack: list[Tensor], loop: InnerLoop) -> States:
    """Take states off the stack that `_copies` made."""
    fields = loop.optimizer.fields
    flat = _pop(stack, len(loop.layout.groups) * fields)
    return tuple(flat[i : i + fields] for i in range(0, len(flat), fields))


def _bytes(w: Buffers) -> int:
    return sum(flat.nbytes for flat in w)


def _cut(start: Tensor, value: Tensor) -> Tensor:
    """`value`, linked to `start` by a derivative of zero (not by 0 · start, which may be NaN)."""
    return torch.where(torch.zeros_like(start, dtype=torch.bool), start, value)
