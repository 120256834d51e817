"""The interface of adjoints, and the node of the outer graph that all adjoints but `Direct` use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from farzi_hf.engine.autocast import autocast, no_autocast
from farzi_hf.engine.buffers import Buffers, States, input_leaves, leaves, nbytes, weights
from farzi_hf.engine.inner_loop import Accumulators, Derivatives, GradientGraph, InnerLoop

OuterLosses = Callable[[dict[str, Tensor]], Iterable[Tensor]]
"""`losses(theta_T)`: scalars, or a vector of them."""


class Gradients(NamedTuple):
    """Several outer losses of one training."""

    losses: list[Tensor]
    """Their values."""
    derivatives: list[Buffers]
    """Of each loss, in all that it was differentiated in."""


class Reverse(Protocol):
    """`InnerLoop.reverse` with the inputs and the outer losses of one backward pass."""

    def __call__(
        self,
        t: int,
        before: States,
        after: Accumulators | None,
        graph: GradientGraph | None = None,
    ) -> Buffers:
        """Take step t back; returns g_t, clipped."""


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
        theta = self.run(loop, w, inputs)
        return _differentiated(loop, theta, losses, [x for x in inputs if x.requires_grad])


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
        states, record = self.train(loop, w, inputs)
        theta = leaves(weights(states))
        values, dws = _differentiated(loop, theta, losses, theta)
        del states, theta  # their memory is needed on the way back
        derivatives = self.pull(loop, record, inputs, dws)
        return Gradients(values, [each.inputs for each in derivatives])

    def train(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> tuple[States, Any]:
        """The whole training from its start: the last states, and the record."""
        states = loop.advance(loop.start(w), inputs, loop.undifferentiated)
        return self.record(loop, states, inputs)

    def pull(
        self, loop: InnerLoop, record: Any, inputs: Buffers, dws: Sequence[Buffers]
    ) -> list[Derivatives]:
        """The derivatives of outer losses in the start and the inputs, from those in the parameters
        after the last step.
        """
        inputs = input_leaves(inputs)
        needed = [x for x in inputs if x.requires_grad]
        derivatives = []
        for dw in dws:
            # The cotangents of the accumulators start at zero: no loss depends on the last ones.
            states = tuple(loop.optimizer.init(flat.clone()) for flat in dw)
            derivatives.append(Derivatives(states, tuple(map(torch.zeros_like, needed))))

        def reverse(
            t: int,
            before: States,
            after: Accumulators | None,
            graph: GradientGraph | None = None,
        ) -> Buffers:
            return loop.reverse(t, before, after, inputs, derivatives, graph)

        self.retrace(loop, record, inputs, reverse)
        return derivatives

    def memory(self, loop: InnerLoop, w: Buffers, inputs: Buffers, graph: int) -> int:
        """The peak memory in bytes beside the parameters and inputs themselves, roughly, of one
        outer loss.

        Args:
            graph: bytes of the graph of one gradient. While it is differentiated, there is about as
                much again.
        """
        needed = tuple(x for x in inputs if x.requires_grad)
        derivatives = loop.optimizer.fields * nbytes(w) + nbytes(needed)
        # θ_0, dg, its product, and θ_T, which the caller has.
        parameters = 4 * nbytes(w)
        return 2 * graph + self.record_bytes(loop, w) + parameters + derivatives

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
    """The inner loop as one node of the outer graph, for any `RecordingAdjoint`.

    Its arguments are the adjoint, the loop, a buffer of parameters for each group, and the inputs.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, adjoint: RecordingAdjoint, loop: InnerLoop, *tensors: Tensor
    ) -> Buffers:
        ctx.adjoint = adjoint
        ctx.loop = loop
        groups = len(loop.layout.groups)
        states, ctx.record = adjoint.train(loop, tensors[:groups], tensors[groups:])
        # Saved by autograd, which raises an error if they are overwritten.
        ctx.save_for_backward(*tensors, *loop.layout.constants.values())
        return weights(states)

    @staticmethod
    def backward(ctx: FunctionCtx, *dw: Tensor) -> tuple[Any, ...]:
        adjoint = ctx.adjoint
        loop = ctx.loop
        if torch.is_grad_enabled():
            name = type(adjoint).__name__
            raise RuntimeError(
                f"adjoint={name}() has first derivatives only, and no create_graph=True; use"
                " adjoint=Direct()"
            )
        groups = len(dw)
        needed = ctx.needs_input_grad[2 + groups :]
        saved = ctx.saved_tensors
        w = saved[:groups]
        inputs = tuple(
            x.detach().requires_grad_(need)
            for x, need in zip(saved[groups : groups + len(needed)], needed, strict=True)
        )
        with no_autocast(loop.autocast):
            record = ctx.record
            if record is None:  # an earlier backward pass through a retained graph has used it
                _, record = adjoint.train(loop, w, inputs)
            ctx.record = None
            ((cotangents, dx),) = adjoint.pull(loop, record, inputs, [dw])
        dw = weights(cotangents)
        if loop.is_cut:
            dw = tuple(map(torch.zeros_like, dw))
        dx = iter(dx)
        return None, None, *dw, *(next(dx) if need else None for need in needed)


def _differentiated(
    loop: InnerLoop, theta: Buffers, losses: OuterLosses, sources: Sequence[Tensor]
) -> Gradients:
    """The losses at the parameters `theta`, one at a time, and the derivatives of each in
    `sources`.
    """
    values = []
    derivatives = []
    with torch.enable_grad(), autocast(loop.autocast):
        for loss in losses(loop.layout.unflatten(theta)):
            derivatives.append(
                torch.autograd.grad(loss, sources, retain_graph=True, materialize_grads=True)
            )
            values.append(loss.detach())
    return Gradients(values, derivatives)


def graph_bytes(loop: InnerLoop, w: Buffers, inputs: Buffers) -> int:
    """Bytes that autograd saves of the gradient of one step to differentiate it later, with the
    gradient itself.
    """
    given = {x.untyped_storage().data_ptr() for x in (*w, *inputs)}
    saved: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        address = x.data_ptr()
        if x.untyped_storage().data_ptr() not in given:
            saved[address] = max(saved.get(address, 0), x.nbytes)
        return x.detach()

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x):
        graph = loop.gradient_graph(w, inputs, loop.differentiated[0])
    return sum(saved.values()) + nbytes(graph.g)
