"""The adjoints that keep the graph of every step: plain autograd, and one that goes back through the optimizer by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.adjoints.base import Adjoint, RecordingAdjoint, Reverse, nbytes
from farzi_hf.engine.inner_loop import Buffers, GradientGraph, InnerLoop, States, weights

Graphs = tuple[States, list[tuple[GradientGraph, States]]]
"""The states before the first step, and for each step its gradient's graph and the accumulators after it."""


@dataclass(frozen=True)
class Direct(Adjoint):
    """Plain autograd through all steps. The other adjoints are tested against it, and only it has higher derivatives.

    Time 3 T·G. Memory: the activations and the gradient graph of every differentiated step at once. It is never chosen automatically:
    `GradientGraphs` needs less of both.
    """

    def refusal(self, loop: InnerLoop) -> str | None:
        if not loop.optimizer.exact:
            return (
                f"adjoint=Direct() differentiates the steps of the optimizer and cannot follow the reverse rule of "
                f"optimizer={type(loop.optimizer).__name__}; use adjoint=Tape()"
            )
        if not loop.keeps_graphs:
            return "adjoint=Direct() needs autograd's graphs, which torch_compile=True does without; use adjoint=Tape()"
        return None

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        states = tuple(loop.optimizer.init(flat) for flat in w)
        if loop.is_cut:
            late = loop.advance(loop.start(w), inputs, loop.undifferentiated)
            states = tuple((_cut(flat, state[0]), *state[1:]) for flat, state in zip(w, late, strict=True))
        for t in loop.differentiated:
            states = loop.differentiable_step(states, inputs, t)
        return weights(states)


def _cut(start: Tensor, value: Tensor) -> Tensor:
    """`value`, linked to `start` by a derivative of zero (not by 0 · start, which may be NaN)."""
    return torch.where(torch.zeros_like(start, dtype=torch.bool), start, value)


@dataclass(frozen=True)
class GradientGraphs(RecordingAdjoint):
    """Keep every state, and the graph of every gradient. No step is repeated, and the optimizer's part has no graph.

    Time 3 T·G, and less than `Direct`, which differentiates the optimizer operation by operation. Memory for T differentiated steps: T
    graphs of a gradient, each with the gradient itself, and T·S numbers for states, where S is 3P with Adam and 2P with SGD. The backward
    pass frees the memory step by step.
    """

    # Memory that a process never had before costs more time than one gradient. A long run pays once, a single call always.
    share: ClassVar[float] = 1 / 8

    def refusal(self, loop: InnerLoop) -> str | None:
        if not loop.keeps_graphs:
            return "adjoint=GradientGraphs() needs autograd's graphs, which torch_compile=True does without; use adjoint=Tape()"
        return None

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Graphs]:
        start, steps = states, []
        for t in loop.differentiated:
            graph = loop.gradient_graph(weights(states), inputs, t)
            states = loop.updated(states, tuple(flat.detach() for flat in graph.g), t)
            steps.append((graph, tuple(state[1:] for state in states)))
        return states, (start, steps)

    def retrace(self, loop: InnerLoop, record: Graphs, inputs: Buffers, reverse: Reverse) -> None:
        start, kept = record
        if not kept:  # a second backward pass over a retained graph
            kept = self.record(loop, start, inputs)[1][1]
        steps = kept.copy()
        kept.clear()  # also if the pass stops with an error
        for t in reversed(loop.differentiated):
            graph, after = steps.pop()
            before = tuple((flat.detach(),) for flat in graph.w)
            reverse(t, before, lambda group, rows, after=after: tuple(x[rows] for x in after[group]), graph)

    def memory(self, loop: InnerLoop, w: Buffers, inputs: Buffers, graph: int) -> int:
        return super().memory(loop, w, inputs, graph) + (len(loop.differentiated) - 1) * graph

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        return nbytes(w) * loop.optimizer.fields * (len(loop.differentiated) + 1)
