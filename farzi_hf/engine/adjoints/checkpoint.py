"""The adjoint that keeps a few states and repeats the steps between them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse
from farzi_hf.engine.buffers import Buffers, States, clone, nbytes
from farzi_hf.engine.inner_loop import InnerLoop


class Piece(NamedTuple):
    """A state that is kept, and the steps from it to the next one."""

    start: States
    """The states before the first of the steps."""
    ts: range
    """The steps."""
    slots: int
    """The places for states while these steps are taken back, of which `start` has one."""


@dataclass(frozen=True)
class Checkpoint(RecordingAdjoint):
    """Keep the states of a few steps, and repeat the steps between them. It works with any
    optimizer and dtype.

    When a kept state is no longer needed, its place is used for an earlier state. The schedule
    needs the fewest evaluations for this number of places (Griewank & Walther, 2000: revolve). With
    about √(2T) places no step is taken more than twice, which takes 5 T·G. With fewer places the
    time grows slowly: for T = 100 it is 5.3 T·G with 10 slots, 6.2 with 5 and 8.0 with 3. Memory:
    `slots` states, S numbers each, and the graph of one step.

    Raises:
        ValueError: `slots` is not an integer of at least 1.
    """

    slots: int | None = None
    """The number of states kept, with the first one. None means about √(2T), so that no step is
    taken more than twice.
    """

    def __post_init__(self) -> None:
        if self.slots is not None and not (type(self.slots) is int and self.slots >= 1):
            raise ValueError(
                f"slots must be None or an integer >= 1, got {self.slots!r}; None takes about"
                " sqrt(2 T)"
            )

    def record(
        self, loop: InnerLoop, states: States, inputs: Buffers
    ) -> tuple[States, list[Piece]]:
        record = []
        ts = loop.differentiated
        slots = self._slots(len(ts))
        while ts:
            is_last = len(ts) == 1 or slots == 1
            length = len(ts) if is_last else split(len(ts), slots)
            record.append(Piece(clone(states), ts[:length], slots))
            states = loop.advance(states, inputs, ts[:length])
            ts = ts[length:]
            slots -= 1
        return states, record

    def retrace(
        self, loop: InnerLoop, record: list[Piece], inputs: Buffers, reverse: Reverse
    ) -> None:
        while record:
            _take_back(record.pop(), loop, inputs, reverse)

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        states = self._slots(len(loop.differentiated)) + 1
        return nbytes(w) * loop.optimizer.fields * states

    def _slots(self, steps: int) -> int:
        """The number of places that so many steps use."""
        if self.slots is not None:
            return min(self.slots, steps)
        # With s places, C(s + 2, 2) steps can be reversed if none is taken more than twice.
        return next(slots for slots in range(1, steps + 1) if math.comb(slots + 2, 2) >= steps)


def _take_back(piece: Piece, loop: InnerLoop, inputs: Buffers, reverse: Reverse) -> None:
    """Reverse the steps of a piece: the later part first, from a state that is made for it, then
    the earlier one with all places.
    """
    start, ts, slots = piece
    while len(ts) > 1:
        length = split(len(ts), slots)
        middle = loop.advance(clone(start), inputs, ts[:length])
        _take_back(Piece(middle, ts[length:], slots - 1), loop, inputs, reverse)
        del middle  # its place is free
        ts = ts[:length]
    reverse(ts[0], start, None)


def split(steps: int, slots: int) -> int:
    """The number of steps after which the next state is kept, for `steps` steps and `slots` places,
    of which the first state has one.

    With s places and r repetitions C(s + r, s) steps can be reversed (Griewank & Walther, 2000).
    The first part is reversed with all places and r - 1 repetitions, the second part with one place
    less and r repetitions. With one place, the split is before the last step.
    """
    repeats = next(r for r in range(1, steps) if math.comb(slots + r, slots) >= steps)
    most_in_first = math.comb(slots + repeats - 1, slots)
    least_in_second = math.comb(slots + repeats - 2, slots - 1)
    return min(most_in_first, steps - least_in_second)
