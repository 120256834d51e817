"""The adjoint that runs the training itself backwards, from its last state to its first."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse, nbytes
from farzi_hf.engine.adjoints.fixed_point import SMALLEST_DECAY, FixedPointState, largest
from farzi_hf.engine.inner_loop import CHUNK, Buffers, InnerLoop, States, weights
from farzi_hf.engine.optimizers import InvertibleOptimizer, State


@dataclass(frozen=True)
class Reversible(RecordingAdjoint):
    """Run the training itself backwards from its last state. The memory hardly grows with the number of steps.

    States are integers that lose no bit (`farzi_hf.engine.adjoints.fixed_point`). The way back ends at the start bit for bit; if it does
    not, that is an error. Up to rounding, the steps are those of the same optimizer in floating point.

    Time 4 T·G: G forward, 3 G in reverse. Memory: with Adam 28 to 60 bytes per parameter, with SGD 24 to 32; log2(1/β) bits
    per parameter and step for each accumulator (0.15 bits for β = 0.9, 0.0014 for 0.999, 1 bit for 0.5); the graph of
    one step.

    Raises (from `unroll` or in the backward pass):
        ValueError: the optimizer has an accumulator without memory (SGD without momentum, Adam with a β of 0).
        OverflowError: a parameter is finite, but too large for the integers, or a gradient for float32.
        RuntimeError: the inner loss did not give the same gradient twice, or an earlier backward pass stopped with an error.
    """

    def refusal(self, loop: InnerLoop) -> str | None:
        optimizer = loop.optimizer
        if not isinstance(optimizer, InvertibleOptimizer):
            return (
                f"adjoint=Reversible() cannot run {optimizer} backwards: its step has no inverse in integers; "
                "derive it from InvertibleOptimizer, or use adjoint=Tape() or Checkpoint()"
            )
        if min(optimizer.decays) < SMALLEST_DECAY:
            return (
                f"adjoint=Reversible() cannot run {optimizer} backwards: a decay of {min(optimizer.decays):g} forgets everything; "
                f"give it momentum (betas) of at least {SMALLEST_DECAY:.1g}, or use adjoint=Tape() or Checkpoint()"
            )
        return None

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Reversal | States]:
        if all(math.isfinite(largest(x)) for state in states for x in state):
            reversal = Reversal(loop, states)
            if reversal.forward(inputs):
                reversal.end = reversal.full_checksums()
                return reversal.release(), reversal
        lost = tuple(tuple(torch.full_like(x, math.nan) for x in state) for state in states)
        return lost, lost

    def retrace(self, loop: InnerLoop, record: Reversal | States, inputs: Buffers, reverse: Reverse) -> None:
        if isinstance(record, Reversal):
            return record.backward(inputs, reverse)
        # The training left the finite numbers. The meta-gradient is then NaN, as with every adjoint: in all that a step uses.
        for t in reversed(loop.differentiated):
            reverse(t, record, None)

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        steps, total = len(loop.differentiated), 0.0
        for flat in w:
            # Without room for large gradients: most are small.
            single = FixedPointState(loop.optimizer, loop.optimizer.init(flat.new_zeros(1)), 0)
            accumulators = 8 * len(single.sums) * min(flat.numel(), CHUNK)  # in float64, for the pullback
            total += flat.numel() * single.itemsize(steps) + accumulators
        return int(total) + nbytes(w)  # and θ_T, which is not the parameters that the way back starts from


class Reversal:
    """The integers of one unrolled training: at its start, or after `forward` at its end."""

    def __init__(self, loop: InnerLoop, states: States):
        self.loop = loop
        before = loop.differentiated[0] - 1
        self.groups = [FixedPointState(loop.optimizer, state, before) for state in states]
        self.start = self.full_checksums()
        self.end: list[tuple[int, ...]] = []  # as `start`, after the first way forward
        self.checksums: list[list[int]] = []  # of the parameters before each step taken
        self.under_way = False  # while the integers are neither at the start nor at the end

    def forward(self, inputs: Buffers) -> bool:
        """From the start to the end; False if a gradient is not finite. The integers then stay on the way."""
        self._set_out()
        for t in self.loop.differentiated:
            g = self.loop.replayed_gradient(weights(self.states()), inputs, t)
            if not all(math.isfinite(largest(flat)) for flat in g):
                return False
            self.checksums.append([group.checksum() for group in self.groups])
            for group, flat in zip(self.groups, g, strict=True):
                group.step(flat, t, self.loop.rate(t))
        self.under_way = False
        return True

    def backward(self, inputs: Buffers, reverse: Reverse) -> None:
        """From the end to the start."""
        before = self.loop.differentiated[0] - 1
        if not self.checksums:  # a second backward pass over a retained graph
            self._check(before, self.forward(inputs) and self.full_checksums() == self.end)
        self._set_out()
        for t in reversed(self.loop.differentiated):
            for group in self.groups:
                group.unstep(t, self.loop.rate(t))
            self._check(t, [group.checksum() for group in self.groups] == self.checksums.pop())
            g = reverse(t, self.states(), partial(self._accumulators, t))
            for group, flat in zip(self.groups, g, strict=True):
                group.restore(flat, t)
        self._check(before, self.full_checksums() == self.start)
        self.under_way = False

    def full_checksums(self) -> list[tuple[int, ...]]:
        """Of all integers of each group."""
        return [group.full_checksum() for group in self.groups]

    def release(self) -> States:
        """The present parameters for the caller to keep. Later steps write into other memory."""
        states = self.states()
        for group in self.groups:
            group.weights = torch.empty_like(group.weights)
        return states

    def states(self) -> States:
        """States with the present parameters only."""
        return tuple((group.weights,) for group in self.groups)

    def _set_out(self) -> None:
        if self.under_way:
            raise RuntimeError(
                "adjoint=Reversible() stopped with an error in an earlier backward pass and is on the way between end and start; "
                "call unroll again, or use adjoint=Checkpoint() or Tape(), which can start over"
            )
        self.under_way = True

    def _accumulators(self, t: int, group: int, rows: slice) -> State:
        dtype = self.groups[group].weights.dtype
        return tuple(x.to(dtype) for x in self.groups[group].accumulators(rows, t))

    def _check(self, t: int, same: bool) -> None:
        if not same:
            raise RuntimeError(
                f"adjoint=Reversible() did not come back to where it was before step {t + 1 if t else 1}: inner_loss gave "
                "another gradient than it did going forward; make it a pure function of (params, inputs, step) and its "
                "kernels deterministic (torch.use_deterministic_algorithms(True)), or use adjoint=Checkpoint() or Tape(); with "
                "torch_compile=True the compiler may have taken other kernels on the way back"
            )
