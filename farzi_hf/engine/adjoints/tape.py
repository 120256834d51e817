"""The adjoint that keeps the gradient of every step."""

from dataclasses import dataclass

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse, clone, nbytes
from farzi_hf.engine.inner_loop import Buffers, InnerLoop, States

Segments = list[tuple[States, list[Buffers]]]
"""The states before each segment, and the gradients of its steps."""


@dataclass(frozen=True)
class Tape(RecordingAdjoint):
    """Keep the gradient of every step and the states of a few. In between, repeat the optimizer's
    updates.

    Time 4 T·G: G forward, 3 G in reverse. The updates do not evaluate the network. Memory for T
    differentiated steps: T·P numbers for the gradients and about 2 ln T·S for states, where S is 3P
    with Adam and 2P with SGD; the graph of one step; one copy of the inputs that need a gradient.
    The backward pass frees the memory step by step.
    """

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Segments]:
        record = []
        for ts in _segments(loop):
            record.append((clone(states), tape := []))
            states = loop.advance(states, inputs, ts, tape)
        return states, record

    def retrace(self, loop: InnerLoop, record: Segments, inputs: Buffers, reverse: Reverse) -> None:
        for ts in reversed(_segments(loop)):
            start, tape = record.pop()
            trail = [start]
            for t in ts:
                trail.append(loop.update(trail[-1], tape.pop(0), t))
            for t in reversed(ts):
                after = trail.pop()
                reverse(
                    t,
                    trail[-1],
                    lambda group, rows, after=after: tuple(x[rows] for x in after[group][1:]),
                )

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        # Where one is opened, there are all of its states, and of those before it the gradients and
        # the first states.
        fields, segments = loop.optimizer.fields, _segments(loop)
        opened = [
            sum(map(len, segments[:k])) + fields * (k + 1 + len(ts))
            for k, ts in enumerate(segments)
        ]
        return nbytes(w) * max(opened)


def _segments(loop: InnerLoop) -> list[range]:
    """Cut the steps into segments, each longer than the next one: when it is opened, the memory of
    those after it is free. All need the same.
    """
    ts, fields, length, found = loop.differentiated, loop.optimizer.fields, 1, []
    while ts:
        found.append(ts[-length:])
        ts = ts[:-length]
        length = fields * (length + 1) // (fields - 1) if fields > 1 else len(ts)
    return found[::-1]
