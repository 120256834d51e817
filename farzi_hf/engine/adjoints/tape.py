"""The adjoint that keeps the gradient of every step."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse, clone, nbytes
from farzi_hf.engine.inner_loop import Buffers, InnerLoop, States

Segments = list[tuple[States, list[Buffers]]]
"""The states before each segment, and the gradients of its steps."""


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep the gradient of every step and the states of every √T-th step. In between, repeat the optimizer's updates.

    Time 4 T·G: G forward, 3 G in reverse. The updates do not evaluate the network. Memory for T differentiated
    steps: T·P numbers for the gradients and up to 2√T·S for states, where S is 3P with Adam and 2P with SGD; the
    graph of one step; one copy of the inputs that need a gradient. The backward pass frees the memory step by step.
    """

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Segments]:
        record = []
        for ts in _segments(loop.differentiated):
            record.append((clone(states), tape := []))
            states = loop.advance(states, inputs, ts, tape)
        return states, record

    def retrace(self, loop: InnerLoop, record: Segments, inputs: Buffers, reverse: Reverse) -> None:
        for ts in reversed(_segments(loop.differentiated)):
            start, tape = record.pop()
            trail = [start]
            for t in ts:
                trail.append(loop.update(trail[-1], tape.pop(0), t))
            for t in reversed(ts):
                after = trail.pop()
                reverse(t, trail[-1], lambda group, rows, after=after: tuple(x[rows] for x in after[group][1:]))

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        segments = _segments(loop.differentiated)  # the last one is opened first, when all others are still closed
        states = len(segments) + 1 + len(segments[-1])
        return nbytes(w) * (sum(map(len, segments[:-1])) + states * loop.optimizer.fields)


def _segments(ts: range) -> list[range]:
    """Cut the steps into segments of ⌈√T⌉."""
    length = math.isqrt(len(ts) - 1) + 1
    return [ts[i : i + length] for i in range(0, len(ts), length)]
