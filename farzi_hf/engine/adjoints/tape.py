"""The adjoint that keeps the gradient of every step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse
from farzi_hf.engine.buffers import Buffers, States, clone, nbytes
from farzi_hf.engine.inner_loop import InnerLoop


class Segment(NamedTuple):
    """Some steps in a row, as the tape holds them."""

    start: States
    """The states before the first of them."""
    gradients: list[Buffers]
    """The gradient of each."""


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep the gradient of every step and the states of a few. In between, repeat the optimizer's
    updates.

    Time 4 T·G: G forward, 3 G in reverse. The updates do not evaluate the network. Memory for T
    differentiated steps: T·P numbers for the gradients and about 2 ln T·S for states, where S is 3P
    with Adam and 2P with SGD; the graph of one step; one copy of the inputs that need a gradient.
    The backward pass frees the memory step by step.
    """

    def record(
        self, loop: InnerLoop, states: States, inputs: Buffers
    ) -> tuple[States, list[Segment]]:
        record = []
        for ts in _segments(loop):
            segment = Segment(clone(states), [])
            record.append(segment)
            states = loop.advance(states, inputs, ts, segment.gradients)
        return states, record

    def retrace(
        self, loop: InnerLoop, record: list[Segment], inputs: Buffers, reverse: Reverse
    ) -> None:
        for ts in reversed(_segments(loop)):
            start, gradients = record.pop()
            trail = [start]  # the states before and after each step of the segment
            for t in ts:
                trail.append(loop.update(trail[-1], gradients.pop(0), t))
            for t in reversed(ts):
                after = trail.pop()
                before = trail[-1]
                reverse(
                    t,
                    before,
                    lambda group, rows, after=after: tuple(x[rows] for x in after[group][1:]),
                )

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        # While a segment is retraced, there are all of its states, and of those before it the
        # gradients and the first states.
        fields = loop.optimizer.fields
        earlier_gradients = 0
        buffers = []
        for earlier, ts in enumerate(_segments(loop)):
            states = earlier + len(ts) + 1
            buffers.append(earlier_gradients + fields * states)
            earlier_gradients += len(ts)
        return nbytes(w) * max(buffers)


def _segments(loop: InnerLoop) -> list[range]:
    """Cut the steps into segments, each longer than the next one: when it is opened, the memory of
    those after it is free. All need the same.
    """
    ts = loop.differentiated
    fields = loop.optimizer.fields
    last_first = []
    length = 1
    while ts:
        last_first.append(ts[-length:])
        ts = ts[:-length]
        length = fields * (length + 1) // (fields - 1) if fields > 1 else len(ts)
    return last_first[::-1]
