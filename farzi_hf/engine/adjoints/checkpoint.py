"""The adjoint that keeps few states and takes the steps between them again."""

from __future__ import annotations

import math
from dataclasses import dataclass

from farzi_hf.engine.adjoints.base import Recording, RecordingAdjoint, Reverse, clone, nbytes
from farzi_hf.engine.inner_loop import Buffers, InnerLoop, States


@dataclass(frozen=True)
class Checkpoint(RecordingAdjoint):
    """Keep the states of few steps, and take the steps between them again: any optimizer, any dtype.

    When a kept state is no longer needed, its place serves a state further back, by the schedule that needs the fewest
    evaluations for this number of places (Griewank & Walther, 2000: revolve). With about √(2T) of them no step is
    taken more than twice, which makes 5 T·G; with fewer the time grows slowly: for T = 100, 10 slots
    make 5.3 T·G, 5 make 6.2, 3 make 8.0. Memory: `slots` states, S numbers each, and the graph of one step.

    Args:
        slots: the number of states kept, the first one among them; None means about √(2T), so that no step is
            taken more than twice.

    Raises:
        ValueError: `slots` is not an integer of at least 1.
    """

    slots: int | None = None

    def __post_init__(self) -> None:
        if self.slots is not None and (
            not isinstance(self.slots, int) or isinstance(self.slots, bool) or self.slots < 1
        ):
            raise ValueError(f"slots must be None or an integer >= 1, got {self.slots!r}; None takes about sqrt(2 T)")

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Recording]:
        (first, _), *others = self._first_descent(loop.differentiated)
        record = Recording(states)
        states = loop.advance(states, inputs, first)
        for ts, _ in others:
            record.push(states)
            states = loop.advance(states, inputs, ts)
        return states, record

    def retrace(self, loop: InnerLoop, record: Recording, inputs: Buffers, reverse: Reverse) -> None:
        def descend(start: States, ts: range, slots: int) -> None:
            """Reverse the steps `ts`, given the states before them, with `slots` places, that of `start` included."""
            while len(ts) > 1:
                length = split(len(ts), slots)
                descend(loop.advance(clone(start), inputs, ts[:length]), ts[length:], slots - 1)
                ts = ts[:length]
            reverse(ts[0], start, None)

        record = record.renewed(self, loop, inputs)
        for ts, slots in reversed(self._first_descent(loop.differentiated)):
            descend(record.pop_states(), ts, slots)

    def memory(self, loop: InnerLoop, w: Buffers, graph: int) -> int:
        return graph + nbytes(w) * loop.optimizer.fields * (self._slots(len(loop.differentiated)) + 3)

    def _slots(self, steps: int) -> int:
        if self.slots is not None:
            return min(self.slots, steps)
        return next(slots for slots in range(1, steps + 1) if math.comb(slots + 2, 2) >= steps)

    def _first_descent(self, ts: range) -> list[tuple[range, int]]:
        """The steps between one state kept on the way forward and the next, with the places for them in reverse."""
        pieces, slots = [], self._slots(len(ts))
        while len(ts) > 1 and slots > 1:
            length = split(len(ts), slots)
            pieces.append((ts[:length], slots))
            ts, slots = ts[length:], slots - 1
        return [*pieces, (ts, slots)]


def split(steps: int, slots: int) -> int:
    """After how many of `steps` steps to keep the next state, if there are `slots` places, the first state's included.

    With s places and r repetitions C(s + r, s) steps can be reversed (Griewank & Walther, 2000): here the first part with
    all places and r - 1 repetitions, the second one with a place less and r. With one place the last step is next.
    """
    repeats = next(r for r in range(1, steps) if math.comb(slots + r, slots) >= steps)
    return min(math.comb(slots + repeats - 1, slots), steps - math.comb(slots + repeats - 2, slots - 1))
