"""The interface of adjoints, and the node of the outer graph that all adjoints but `Direct` use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from farzi_hf.engine.inner_loop import Accumulators, Buffers, GradientGraph, InnerLoop, States, no_autocast, weights

Reverse = Callable[..., Buffers]
"""`reverse(t, before, after, graph=None)`, which is `InnerLoop.reverse` of one backward pass. Returns g_t."""


class Adjoint(ABC):
    """A way to differentiate the inner loop."""

    share: ClassVar[float] = 0.0
    """The share of a device's memory that the adjoint may need to be chosen automatically; at 0 it never is. It is a share of all memory, not
    of the free memory, so that a machine always makes the same choice, and with it the same rounding."""

    def refusal(self, loop: InnerLoop) -> str | None:
        """The reason why the adjoint cannot differentiate this loop, and the remedy; None if it can."""
        return None

    @abstractmethod
    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        """The parameters after the last step, differentiable in `w`, the parameters before the first step, and in `inputs`."""


class RecordingAdjoint(Adjoint):
    """An adjoint that makes a record on the way forward, and recovers every step from it on the way back.

    No graph connects the steps: the reverse pass goes through the graph of one step at a time. If the record does not hold it, it is
    rebuilt, for 3 G in place of 2 G.
    """

    share: ClassVar[float] = 1 / 4

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        return _Unrolled.apply(self, loop, *w, *inputs)

    def memory(self, loop: InnerLoop, w: Buffers, inputs: Buffers, graph: int) -> int:
        """The peak memory in bytes beside the parameters and inputs themselves, roughly.

        Args:
            graph: bytes of the graph of one gradient. While it is differentiated, there is about as much again.
        """
        cotangents = loop.optimizer.fields * nbytes(w) + nbytes(tuple(x for x in inputs if x.requires_grad))
        # 3 P for dg, its product, and θ_T, which the caller has.
        return 2 * graph + self.record_bytes(loop, w) + 3 * nbytes(w) + cotangents

    @abstractmethod
    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        """Bytes of the record and of the states that `retrace` makes of it, where there are most."""

    @abstractmethod
    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Any]:
        """Take the steps `loop.differentiated` in the buffers of `states`; return the last states and a record of any kind."""

    @abstractmethod
    def retrace(self, loop: InnerLoop, record: Any, inputs: Buffers, reverse: Reverse) -> None:
        """Call `reverse` for the steps `loop.differentiated`, the last one first. With a retained graph, this runs once per backward pass."""


class Recording:
    """A stack of tensors. A backward pass removes them one by one, so that their memory can be used again.

    The states at the start are kept: with a retained graph, the next backward pass makes the record again from there.
    """

    def __init__(self, states: States):
        self.start = clone(states)
        self.stack: list[Tensor] = []
        self.used = False

    def push(self, states: States) -> None:
        self.stack.extend(x.clone() for state in states for x in state)

    def pop(self, count: int) -> Buffers:
        """Removes the last `count` tensors and returns them in the order in which they were added."""
        top = tuple(self.stack[-count:])
        del self.stack[-count:]
        return top

    def pop_states(self) -> States:
        """Removes and returns the last states that `push` added; the states at the start if the stack is empty."""
        if not self.stack:
            return self.start
        fields = len(self.start[0])
        flat = self.pop(len(self.start) * fields)
        return tuple(flat[i : i + fields] for i in range(0, len(flat), fields))

    def renewed(self, adjoint: RecordingAdjoint, loop: InnerLoop, inputs: Buffers) -> Recording:
        """This record if no backward pass has used it; otherwise a new record of the same steps."""
        record = adjoint.record(loop, clone(self.start), inputs)[1] if self.used else self
        self.used = True
        return record


class _Unrolled(torch.autograd.Function):
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`."""

    @staticmethod
    def forward(ctx: FunctionCtx, adjoint: RecordingAdjoint, loop: InnerLoop, *tensors: Tensor) -> Buffers:
        groups = len(loop.layout.groups)
        w, inputs = tensors[:groups], tensors[groups:]
        states, ctx.record = adjoint.record(loop, loop.advance(loop.start(w), inputs, loop.undifferentiated), inputs)
        # Saved by autograd, which raises an error if they are overwritten.
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
        cotangents = loop.cotangents(dw)

        def reverse(t: int, before: States, after: Accumulators | None, graph: GradientGraph | None = None) -> Buffers:
            return loop.reverse(t, before, after, inputs, cotangents, totals, graph)

        with no_autocast(loop.autocast):
            adjoint.retrace(loop, ctx.record, inputs, reverse)
        dw = tuple(torch.zeros_like(flat) if loop.is_cut else flat for flat in weights(cotangents))
        return None, None, *dw, *(next(dx) if need else None for need in needed)


def clone(states: States) -> States:
    """A copy of the states in new buffers."""
    return tuple(tuple(x.clone() for x in state) for state in states)


def nbytes(w: Buffers) -> int:
    """Bytes of all buffers."""
    return sum(flat.nbytes for flat in w)


def graph_bytes(loop: InnerLoop, w: Buffers, inputs: Buffers) -> int:
    """Bytes that autograd saves of the gradient of one step to differentiate it later, with the gradient itself."""
    there = {x.untyped_storage().data_ptr() for x in (*w, *inputs)}
    saved: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in there:
            saved[x.data_ptr()] = max(saved.get(x.data_ptr(), 0), x.nbytes)
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        graph = loop.gradient_graph(w, inputs, loop.differentiated[0])
    return sum(saved.values()) + nbytes(graph.g)
