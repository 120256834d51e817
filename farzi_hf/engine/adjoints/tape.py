"""The adjoint that keeps the gradient of every step."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import NamedTuple

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse
from farzi_hf.engine.buffers import Buffers, States, clone, nbytes
from farzi_hf.engine.inner_loop import InnerLoop

_APART = 0.1
"""Of its size, by which a gradient may differ where it is taken again, perhaps by other kernels.
Dropout and other rows change more.
"""
_logger = logging.getLogger(__name__)


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
        last = record[-1].gradients[-1]
        for ts in reversed(_segments(loop)):
            start, gradients = record.pop()
            trail = [start]  # the states before and after each step of the segment
            for t in ts:
                trail.append(loop.update(trail[-1], gradients.pop(0), t))
            for t in reversed(ts):
                after = trail.pop()
                before = trail[-1]
                g = reverse(
                    t,
                    before,
                    lambda group, rows, after=after: tuple(x[rows] for x in after[group][1:]),
                )
                if t == loop.steps:
                    _check_again(g, last, loop.global_step(t))
                    del last

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


def _check_again(g: Buffers, taped: Buffers, step: int) -> None:
    """Warns if the gradient of a step is not the one on the tape. On a CPU alone: a GPU would have
    to wait for the answer.
    """
    if taped[0].device.type != "cpu":
        return
    apart = sum((a - b).square().sum() for a, b in zip(g, taped, strict=True))
    size = sum(b.square().sum() for b in taped)
    if apart > _APART**2 * size:
        _logger.warning(
            "adjoint=Tape(): in the backward pass, inner_loss gave another gradient for step %d"
            " than in the forward pass, so the meta-gradient is wrong; make inner_loss a pure"
            " function of (params, inputs, step): call module.eval() if there is dropout or batch"
            " normalisation, and choose minibatches by the step alone",
            step,
        )


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
