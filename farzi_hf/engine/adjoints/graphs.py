"""The adjoints that keep the graph of every step: plain autograd, and one that goes back through
the optimizer by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from farzi_hf.engine.adjoints.base import Adjoint, RecordingAdjoint, Reverse
from farzi_hf.engine.buffers import Buffers, States, nbytes, weights
from farzi_hf.engine.inner_loop import GradientGraph, InnerLoop


@dataclass(frozen=True)
class Direct(Adjoint):
    """Plain autograd through all steps. The other adjoints are tested against it, and only it has
    higher derivatives.

    Time 3 T·G. Memory: the activations and the gradient graph of every differentiated step at once.
    It is never chosen automatically: `GradientGraphs` needs less of both.
    """

    needs_graphs: ClassVar[bool] = True

    def refusal(self, loop: InnerLoop) -> str | None:
        if not loop.optimizer.exact:
            return (
                "adjoint=Direct() cannot follow the reverse rule of"
                f" optimizer={type(loop.optimizer).__name__}; use adjoint=Tape()"
            )
        return super().refusal(loop)

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        w = tuple(flat if flat.requires_grad else flat.detach().requires_grad_() for flat in w)
        if loop.is_cut:
            late = loop.advance(loop.start(w), inputs, loop.undifferentiated)
            states = tuple(map(_linked, w, late))
        else:
            states = tuple(loop.optimizer.init(flat) for flat in w)
        for t in loop.differentiated:
            # Each step has inputs of its own, so that a loss which differentiates in them does not
            # go back through earlier steps.
            step_inputs = tuple(x.view_as(x) if x.requires_grad else x for x in inputs)
            gradient = loop.gradient(weights(states), step_inputs, t, create_graph=True)
            g = loop.optimizer.clip(gradient)
            lr = loop.rate(t)
            states = tuple(
                optimizer.step(state, flat, t, lr)
                for optimizer, state, flat in zip(loop.optimizers, states, g, strict=True)
            )
        return weights(states)


def _linked(start: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """A state whose parameters are linked to those of the start, with a derivative of zero (not by
    0 · w, which may be NaN).
    """
    w, *accumulators = state
    never = torch.zeros_like(start, dtype=torch.bool)
    return torch.where(never, start, w), *accumulators


class KeptStep(NamedTuple):
    """What `GradientGraphs` keeps of a step."""

    graph: GradientGraph
    """The graph of its gradient, with the parameters before the step."""
    accumulators: States
    """Those after the step, of each group."""


@dataclass(frozen=True)
class GradientGraphs(RecordingAdjoint):
    """Keep every state, and the graph of every gradient. No step is repeated, and the optimizer's
    part has no graph.

    Time 3 T·G, and less than `Direct`, which differentiates the optimizer operation by operation.
    Memory for T differentiated steps: T graphs of a gradient, each with the gradient itself, and
    T·S numbers for states, where S is 3P with Adam and 2P with SGD. The backward pass frees the
    memory step by step.
    """

    needs_graphs: ClassVar[bool] = True

    def record(
        self, loop: InnerLoop, states: States, inputs: Buffers
    ) -> tuple[States, list[KeptStep]]:
        record = []
        for t in loop.differentiated:
            graph = loop.gradient_graph(weights(states), inputs, t)
            states = loop.update(states, loop.clipped(graph), t)
            record.append(KeptStep(graph, tuple(state[1:] for state in states)))
        return states, record

    def retrace(
        self, loop: InnerLoop, record: list[KeptStep], inputs: Buffers, reverse: Reverse
    ) -> None:
        for t in reversed(loop.differentiated):
            graph, after = record.pop()
            before = tuple((flat.detach(),) for flat in graph.w)
            reverse(
                t,
                before,
                lambda group, rows, after=after: tuple(x[rows] for x in after[group]),
                graph,
            )

    def memory(self, loop: InnerLoop, w: Buffers, inputs: Buffers, graph: int) -> int:
        return super().memory(loop, w, inputs, graph) + (len(loop.differentiated) - 1) * graph

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        return nbytes(w) * loop.optimizer.fields * (len(loop.differentiated) + 1)
