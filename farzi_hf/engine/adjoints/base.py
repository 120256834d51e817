"""The interface of adjoints, and the node of the outer graph that all adjoints but `Direct` use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from farzi_hf.engine.inner_loop import (
    Buffers,
    GradientGraph,
    InnerLoop,
    Pulled,
    States,
    autocast,
    leaves,
    no_autocast,
    weights,
)

OuterLosses = Callable[[dict[str, Tensor]], Iterable[Tensor]]
"""`losses(theta_T)`: scalars, or a vector of them."""
Gradients = tuple[list[Tensor], list[Buffers]]
Reverse = Callable[..., Buffers]
"""`reverse(t, before, after, graph=None)`, which is `InnerLoop.reverse` of one backward pass.
Returns g_t.
"""


class Adjoint(ABC):
    """A way to differentiate the inner loop."""

    share: ClassVar[float] = 0.0
    """The share of a device's memory that the adjoint may need to be chosen automatically; at 0 it
    never is. It is a share of all memory, not of the free memory, so that a machine always makes
    the same choice, and with it the same rounding.
    """

    needs_graphs: ClassVar[bool] = False
    """Whether the adjoint keeps autograd's graphs, which compiled steps do not have."""

    def refusal(self, loop: InnerLoop) -> str | None:
        """The reason why the adjoint cannot differentiate this loop, and the remedy; None if it
        can.
        """
        if self.needs_graphs and not loop.makes_graphs:
            return (
                f"adjoint={type(self).__name__}() needs autograd's graphs, which torch_compile=True"
                " does without; use adjoint=Tape()"
            )
        return None

    @abstractmethod
    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        """The parameters after the last step, differentiable in `w`, the parameters before the
        first step, and in `inputs`.
        """

    def gradients(
        self, loop: InnerLoop, w: Buffers, inputs: Buffers, losses: OuterLosses
    ) -> Gradients:
        """The outer losses after the last step, and the derivatives of each in the inputs that
        require grad.
        """
        theta, needed = self.run(loop, w, inputs), [x for x in inputs if x.requires_grad]
        return _derivatives(loop, theta, losses, needed)


class RecordingAdjoint(Adjoint):
    """An adjoint that makes a record on the way forward, and recovers every step from it on the way
    back.

    No graph connects the steps: the reverse pass goes through the graph of one step at a time. If
    the record does not hold it, it is rebuilt, for 3 G in place of 2 G.
    """

    share: ClassVar[float] = 1 / 4

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        return _Unrolled.apply(self, loop, *w, *inputs)

    def gradients(
        self, loop: InnerLoop, w: Buffers, inputs: Buffers, losses: OuterLosses
    ) -> Gradients:
        states, record = _recorded(self, loop, (*w, *inputs))
        final = leaves(weights(states))
        values, dws = _derivatives(loop, final, losses, final)
        del states, final  # their memory is needed on the way back
        return values, [dx for _, dx in self.pull(loop, record, inputs, dws)]

    def pull(
        self, loop: InnerLoop, record: Any, inputs: Buffers, dws: Sequence[Buffers]
    ) -> list[Pulled]:
        """The derivatives of outer losses in the start and the inputs, from those in the parameters
        after the last step.
        """
        inputs = tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs)
        needed = [x for x in inputs if x.requires_grad]
        pulled = [  # no loss depends on the last accumulators
            (
                tuple(loop.optimizer.init(flat.clone()) for flat in dw),
                tuple(map(torch.zeros_like, needed)),
            )
            for dw in dws
        ]

        def reverse(
            t: int, before: States, after: Any, graph: GradientGraph | None = None
        ) -> Buffers:
            return loop.reverse(t, before, after, inputs, pulled, graph)

        self.retrace(loop, record, inputs, reverse)
        return pulled

    def memory(self, loop: InnerLoop, w: Buffers, inputs: Buffers, graph: int) -> int:
        """The peak memory in bytes beside the parameters and inputs themselves, roughly, of one
        outer loss.

        Args:
            graph: bytes of the graph of one gradient. While it is differentiated, there is about as
                much again.
        """
        cotangents = loop.optimizer.fields * nbytes(w) + nbytes(
            tuple(x for x in inputs if x.requires_grad)
        )
        # 4 P for θ_0, dg, its product, and θ_T, which the caller has.
        return 2 * graph + self.record_bytes(loop, w) + 4 * nbytes(w) + cotangents

    @abstractmethod
    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        """Bytes of the record and of the states that `retrace` makes of it, where
        there are most.
        """

    @abstractmethod
    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Any]:
        """Take the steps `loop.differentiated` in the buffers of `states`; return the last states
        and a record of any kind.
        """

    @abstractmethod
    def retrace(self, loop: InnerLoop, record: Any, inputs: Buffers, reverse: Reverse) -> None:
        """Call `reverse` for the steps `loop.differentiated`, the last one first. Each part of the
        record can go once it was used: with a retained graph, the next backward pass makes a new
        one.
        """


class _Unrolled(torch.autograd.Function):
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, adjoint: RecordingAdjoint, loop: InnerLoop, *tensors: Tensor
    ) -> Buffers:
        ctx.adjoint, ctx.loop = adjoint, loop
        states, ctx.record = _recorded(adjoint, loop, tensors)
        # Saved by autograd, which raises an error if they are overwritten.
        ctx.save_for_backward(*tensors, *loop.layout.constants.values())
        return weights(states)

    @staticmethod
    def backward(ctx: FunctionCtx, *dw: Tensor) -> tuple[Any, ...]:
        adjoint, loop, saved = ctx.adjoint, ctx.loop, ctx.saved_tensors
        if torch.is_grad_enabled():
            name = type(adjoint).__name__
            raise RuntimeError(
                f"adjoint={name}() has first derivatives only, and no create_graph=True; use"
                " adjoint=Direct()"
            )
        needed = ctx.needs_input_grad[2 + len(dw) :]
        inputs = tuple(
            x.detach().requires_grad_(need)
            for x, need in zip(saved[len(dw) :], needed, strict=False)
        )
        with no_autocast(loop.autocast):
            record = ctx.record or _recorded(adjoint, loop, saved[: len(dw) + len(needed)])[1]
            ctx.record = None
            ((cotangents, dx),) = adjoint.pull(loop, record, inputs, [dw])
        dx = iter(dx)
        dw = tuple(torch.zeros_like(flat) if loop.is_cut else flat for flat in weights(cotangents))
        return None, None, *dw, *(next(dx) if need else None for need in needed)


def _derivatives(
    loop: InnerLoop, theta: Buffers, losses: OuterLosses, sources: Sequence[Tensor]
) -> Gradients:
    """The losses at the parameters `theta`, one at a time, and the derivatives of each in
    `sources`.
    """
    values, found = [], []
    with torch.enable_grad(), autocast(loop.autocast):
        for loss in losses(loop.layout.unflatten(theta)):
            found.append(
                torch.autograd.grad(loss, sources, retain_graph=True, materialize_grads=True)
            )
            values.append(loss.detach())
    return values, found


def _recorded(adjoint: RecordingAdjoint, loop: InnerLoop, tensors: Buffers) -> tuple[States, Any]:
    """The whole training from its start: the last states and the record."""
    groups = len(loop.layout.groups)
    w, inputs = tensors[:groups], tensors[groups:]
    return adjoint.record(loop, loop.advance(loop.start(w), inputs, loop.undifferentiated), inputs)


def clone(states: States) -> States:
    """A copy of the states in new buffers."""
    return tuple(tuple(x.clone() for x in state) for state in states)


def nbytes(w: Buffers) -> int:
    """Bytes of all buffers."""
    return sum(flat.nbytes for flat in w)


def graph_bytes(loop: InnerLoop, w: Buffers, inputs: Buffers) -> int:
    """Bytes that autograd saves of the gradient of one step to differentiate it later, with the
    gradient itself.
    """
    there = {x.untyped_storage().data_ptr() for x in (*w, *inputs)}
    saved: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in there:
            saved[x.data_ptr()] = max(saved.get(x.data_ptr(), 0), x.nbytes)
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        graph = loop.gradient_graph(w, inputs, loop.differentiated[0])
    return sum(saved.values()) + nbytes(graph.g)
