"""The adjoint that runs the training itself backwards, from its last state to its first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse, clone, nbytes
from farzi_hf.engine.adjoints.fixed_point import SMALLEST_DECAY, FixedPointState, largest
from farzi_hf.engine.inner_loop import Buffers, InnerLoop, States, weights
from farzi_hf.engine.optimizers import InvertibleOptimizer, State


@dataclass(frozen=True)
class Reversible(RecordingAdjoint):
    """Run the training itself backwards from its last state. The memory hardly grows with the number of steps.

    States are integers that lose no bit (`farzi_hf.engine.adjoints.fixed_point`). The way back ends at the start bit for bit; if it does
    not, that is an error. Up to rounding, the steps are those of the same optimizer in floating point.

    Time 4 T·G: G forward, 3 G in reverse. Memory: with Adam 28 to 60 bytes per parameter, with SGD 24 to 32; about log2(1/β) bits per parameter and
    step for each accumulator (0.15 bits for β = 0.9, 0.0014 for 0.999, 1 bit for 0.5); the graph of one step.

    Raises (from `unroll` or in the backward pass):
        ValueError: the optimizer has an accumulator without memory (SGD without momentum, Adam with a β below 1/16).
        OverflowError: a parameter is finite, but too large for the integers, or a gradient for float32.
        RuntimeError: the inner loss did not give the same gradient twice.
    """

    def refusal(self, loop: InnerLoop) -> str | None:
        optimizer = loop.optimizer
        if not isinstance(optimizer, InvertibleOptimizer):
            reason = "its step has no inverse in integers; derive it from InvertibleOptimizer"
        elif min(optimizer.decays) < SMALLEST_DECAY:
            reason = f"a decay of {min(optimizer.decays):g} forgets too much; give it momentum (betas) of at least {SMALLEST_DECAY}"
        else:
            return super().refusal(loop)
        return f"adjoint=Reversible() cannot run {optimizer} backwards: {reason}, or use adjoint=Tape() or Checkpoint()"

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Integers | States]:
        if all(math.isfinite(largest(x)) for state in states for x in state):
            integers = Integers(loop, states)
            if integers.forward(loop, inputs):
                return clone(integers.states), integers
        lost = tuple(tuple(x.fill_(math.nan) for x in state) for state in states)
        return lost, lost

    def retrace(self, loop: InnerLoop, record: Integers | States, inputs: Buffers, reverse: Reverse) -> None:
        if not isinstance(record, Integers):
            # The training left the finite numbers. The meta-gradient is then NaN, as with every adjoint: in all that a step uses.
            for t in reversed(loop.differentiated):
                reverse(t, record, None)
            return
        for t in reversed(loop.differentiated):
            for group in record.groups:
                group.unstep(t, loop.rate(t))
            _check(t, record.checksum() == record.checksums.pop())
            g = reverse(t, record.states, partial(record.accumulators, t))
            for group, flat in zip(record.groups, g, strict=True):
                group.restore(flat, t)
        _check(loop.differentiated[0] - 1, record.full_checksum() == record.start)

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        # Parameters twice, as integers of 8 bytes too; each accumulator in one limb or two, and as floating-point numbers for the pullback.
        forgotten = -sum(map(math.log2, loop.optimizer.decays)) * len(loop.differentiated) / 8
        each = 8 + 20 * len(loop.optimizer.decays) + forgotten
        return 2 * nbytes(w) + int(each * sum(flat.numel() for flat in w))


class Integers:
    """The integers of one training: at its start, and after `forward` at its end."""

    def __init__(self, loop: InnerLoop, states: States):
        before = loop.differentiated[0] - 1
        self.groups = [FixedPointState(*each, before) for each in zip(loop.optimizers, states, strict=True)]
        self.start = self.full_checksum()
        self.checksums: list[list[int]] = []  # of the parameters before each step taken

    def forward(self, loop: InnerLoop, inputs: Buffers) -> bool:
        """Take all steps; False if a gradient is not finite."""
        for t in loop.differentiated:
            g = loop.replayed_gradient(weights(self.states), inputs, t)
            bounds = tuple(map(largest, g))
            if not all(map(math.isfinite, bounds)):
                return False
            self.checksums.append(self.checksum())
            for group, flat, bound in zip(self.groups, g, bounds, strict=True):
                group.step(flat, bound, t, loop.rate(t))
        return True

    @property
    def states(self) -> States:
        """States with the present parameters only. Every step writes over them."""
        return tuple((group.weights,) for group in self.groups)

    def accumulators(self, t: int, group: int, rows: slice) -> State:
        """Those after step `t`."""
        dtype = self.groups[group].weights.dtype
        return tuple(x.to(dtype) for x in self.groups[group].accumulators(rows, t))

    def checksum(self) -> list[int]:
        return [int(group.u.sum()) for group in self.groups]

    def full_checksum(self) -> list[int]:
        """Of the accumulators too."""
        sums = [limb.sum() for group in self.groups for total in group.sums for limb in total.limbs]
        return [*self.checksum(), *map(int, sums)]


def _check(t: int, same: bool) -> None:
    if not same:
        raise RuntimeError(
            f"adjoint=Reversible() did not come back to where it was before step {t + 1}: inner_loss gave another gradient than it did going "
            "forward; make it a pure function of (params, inputs, step) and its kernels deterministic (torch.use_deterministic_algorithms(True)), "
            "or use adjoint=Checkpoint() or Tape(); with torch_compile=True the compiler may have taken other kernels on the way back"
        )
