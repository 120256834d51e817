"""The adjoint that runs the training itself backwards, from its last state to its first.

`Reversible.record` takes the steps with states in integers, and its record is one of three: the
`Integers` at the end; a `Tape`'s, where gradients cannot be had twice; or `NoNumbers`, where the
training left the finite numbers. Each can take the steps back.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse
from farzi_hf.engine.adjoints.fixed_point import (
    SMALLEST_DECAY,
    Bounds,
    FixedPointState,
    NotFinite,
    ReplayError,
    stack,
)
from farzi_hf.engine.adjoints.tape import Segment, Tape
from farzi_hf.engine.buffers import Buffers, States, clone, nbytes, weights
from farzi_hf.engine.inner_loop import InnerLoop
from farzi_hf.engine.optimizers import InvertibleOptimizer, State

_logger = logging.getLogger(__name__)

# For the estimate of memory.
_U_BYTES = 8
"""Bytes per parameter of its integer."""
_ACCUMULATOR_BYTES = 20
"""Bytes per parameter of each accumulator: one limb or two, and floating-point numbers for the
pullback.
"""


class Record(Protocol):
    """What `Reversible.record` leaves for the way back."""

    def retrace(self, loop: InnerLoop, inputs: Buffers, reverse: Reverse) -> None:
        """Call `reverse` for the differentiated steps, the last one first."""


@dataclass(frozen=True)
class Reversible(RecordingAdjoint):
    """Run the training itself backwards from its last state. The memory hardly grows with the
    number of steps.

    States are integers that lose no bit (`farzi_hf.engine.adjoints.fixed_point`). The way back ends
    at the start bit for bit; if it does not, that is an error. Up to rounding, the steps are those
    of the same optimizer in floating point.

    Time 4 T·G: G forward, 3 G in reverse (4 G in code compiled for a GPU). Memory: with Adam 28 to
    60 bytes per parameter, with SGD 24 to 32; about log2(1/β) bits per parameter and step for each
    accumulator (0.15 for β = 0.9, 0.0014 for 0.999, 1 for 0.5); the graph of one step.

    It runs with torch's deterministic algorithms, and on a GPU takes the first gradient again:
    where they differ, `Tape` takes its place, with a warning. There it waits for the device once
    forward and once in reverse.

    Raises (from `unroll` or in the backward pass):
        ValueError: the optimizer has an accumulator without memory (SGD without momentum, Adam
            with a β below 1/16).
        OverflowError: a parameter is finite, but too large for the integers, or a gradient for
            float32.
        ReplayError: a `RuntimeError`; the inner loss did not give the same gradient twice.
    """

    def refusal(self, loop: InnerLoop) -> str | None:
        optimizer = loop.optimizer
        if not isinstance(optimizer, InvertibleOptimizer):
            reason = "its step has no inverse in integers; derive it from InvertibleOptimizer"
        elif min(optimizer.decays) < SMALLEST_DECAY:
            reason = (
                f"a decay of {min(optimizer.decays):g} forgets too much; give momentum (betas) of"
                f" at least {SMALLEST_DECAY}"
            )
        else:
            return super().refusal(loop)
        return (
            f"adjoint=Reversible() cannot run {optimizer} backwards: {reason}, or use"
            " adjoint=Tape() or Checkpoint()"
        )

    def record(self, loop: InnerLoop, states: States, inputs: Buffers) -> tuple[States, Record]:
        bounds = Bounds(wait=_is_on_cpu(states))
        try:
            # On a GPU, integers get room for numbers of an expected size, and nobody looks before
            # the end. If some were larger, the steps are taken again with more room.
            while True:
                integers = Integers(loop, states, bounds)
                with _deterministic(states):
                    integers.forward(loop, inputs)
                if bounds.check():
                    return clone(integers.states), integers
        except NotFinite:
            all_nan = tuple(tuple(x.fill_(math.nan) for x in state) for state in states)
            return all_nan, NoNumbers(all_nan)
        except ReplayError as error:
            _logger.warning("%s; adjoint=Tape() takes the place of Reversible().", error)
            states, segments = Tape().record(loop, states, inputs)
            return states, OnTape(segments)

    def retrace(self, loop: InnerLoop, record: Record, inputs: Buffers, reverse: Reverse) -> None:
        record.retrace(loop, inputs, reverse)

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        decays = loop.optimizer.decays
        bits_per_step = -sum(map(math.log2, decays))
        bits_forgotten = bits_per_step * len(loop.differentiated)
        per_parameter = _U_BYTES + _ACCUMULATOR_BYTES * len(decays) + bits_forgotten / 8
        parameters = sum(flat.numel() for flat in w)
        # The parameters in floating point are there twice: these, and the last ones.
        return 2 * nbytes(w) + int(per_parameter * parameters)


class Integers:
    """The integers of one training: first at its start, and after `forward` at its end.

    Args:
        loop: the training.
        states: before the first step that is differentiated.
        bounds: how large numbers may become.
    """

    def __init__(self, loop: InnerLoop, states: States, bounds: Bounds):
        step_before = loop.differentiated[0] - 1
        self.bounds = bounds
        self.groups = [
            FixedPointState(optimizer, state, step_before, bounds)
            for optimizer, state in zip(loop.optimizers, states, strict=True)
        ]
        """The state of each group of parameters."""
        self.start = self._checksum_of_all()
        """The checksum of all integers at the start."""
        self.checksums: list[Tensor] = []
        """Those of the parameters before each step that was taken."""

    @property
    def states(self) -> States:
        """States with the present parameters only. Every step writes over them."""
        return tuple((group.weights,) for group in self.groups)

    def accumulators(self, t: int, group: int, rows: slice) -> State:
        """Those after step `t`."""
        state = self.groups[group]
        return tuple(x.to(state.weights.dtype) for x in state.accumulators(rows, t))

    def forward(self, loop: InnerLoop, inputs: Buffers) -> None:
        """Take all steps. Raises what `Bounds` raises."""
        expected_first = self._first_gradient(loop, inputs)
        for t in loop.differentiated:
            g = loop.replayed_gradient(weights(self.states), inputs, t)
            self.checksums.append(self._checksum())
            for group, flat in zip(self.groups, g, strict=True):
                group.step(flat, t, loop.rate(t))
            if expected_first is not None:
                for flat, expected in zip(g, expected_first, strict=True):
                    self.bounds.note(_check_replay, (flat != expected).any())
                expected_first = None

    def _first_gradient(self, loop: InnerLoop, inputs: Buffers) -> Buffers | None:
        """The gradient of the first step, to compare it with that of the same step again; None on a
        CPU, whose kernels give the same bits.
        """
        if not self.bounds.waits_to_the_end:
            return None
        first, *later = loop.differentiated
        ts = [first]
        if loop.torch_compile:
            # The compiler makes code for the first step, and for all others when it meets the
            # second: both are made before bits count.
            ts = [first, *later[:1], first]
        for t in ts:
            gradient = loop.replayed_gradient(weights(self.states), inputs, t)
        return gradient

    def retrace(self, loop: InnerLoop, inputs: Buffers, reverse: Reverse) -> None:
        """Take the steps back.

        Raises:
            ReplayError: the way back did not meet the same parameters, or did not end at the start.
        """
        # For each step back, whether it came to the parameters that were there. Nobody looks before
        # the end, because a GPU would wait.
        returned: list[Tensor] = []
        with _deterministic(self.states):
            for t in reversed(loop.differentiated):
                for group in self.groups:
                    group.unstep(t, loop.rate(t))
                returned.append((self._checksum() == self.checksums.pop()).all())
                g = reverse(t, self.states, partial(self.accumulators, t))
                for group, flat in zip(self.groups, g, strict=True):
                    group.restore(flat, t)
        returned.append((self._checksum_of_all() == self.start).all())
        each_returned = torch.stack(returned).tolist()
        if not all(each_returned):
            # A wrong gradient of a step leaves wrong accumulators before it, and these move the
            # parameters wrongly where the step before is taken back.
            step = loop.steps + 1 - each_returned.index(False)
            raise ReplayError(
                "adjoint=Reversible() did not come back to where it was before step"
                f" {step}: inner_loss gave another gradient than it"
                " did going forward; make it a pure function of (params, inputs, step), or use"
                " adjoint=Checkpoint() or Tape(); with torch_compile=True the compiler may have"
                " taken other kernels"
            )

    def _checksum(self) -> Tensor:
        """Of the parameters."""
        return stack([group.u.sum() for group in self.groups])

    def _checksum_of_all(self) -> Tensor:
        """Of the parameters and the accumulators."""
        integers = [group.u for group in self.groups]
        for group in self.groups:
            for accumulator in group.sums:
                integers.extend(accumulator.limbs)
        return stack([x.sum() for x in integers])


@dataclass(frozen=True)
class OnTape:
    """The record of a training whose gradients cannot be had twice."""

    segments: list[Segment]
    """The tape."""

    def retrace(self, loop: InnerLoop, inputs: Buffers, reverse: Reverse) -> None:
        """As `Tape` does."""
        Tape().retrace(loop, self.segments, inputs, reverse)


@dataclass(frozen=True)
class NoNumbers:
    """The record of a training that left the finite numbers. The meta-gradient is then NaN, as with
    every adjoint: in all that a step uses.
    """

    states: States
    """NaN, of each step."""

    def retrace(self, loop: InnerLoop, inputs: Buffers, reverse: Reverse) -> None:
        """Take back steps from and to NaN."""
        for t in reversed(loop.differentiated):
            reverse(t, self.states, None)


def _check_replay(differs: float) -> float:
    """For `Bounds.note`: raises ReplayError if two gradients differ. It asks for no room."""
    if differs:
        raise ReplayError("inner_loss gave two gradients for the same parameters and the same step")
    return 0.0


def _is_on_cpu(states: States) -> bool:
    """Whether the parameters are on a CPU."""
    return weights(states)[0].device.type == "cpu"


@contextmanager
def _deterministic(states: States) -> Iterator[None]:
    """Inside, torch takes kernels that give the same bits again, where it has them; with one
    thread, a CPU's always do.
    """
    mode = torch.get_deterministic_debug_mode()
    fills = torch.utils.deterministic.fill_uninitialized_memory
    is_on_one_thread = _is_on_cpu(states) and torch.get_num_threads() == 1
    if mode or is_on_one_thread:
        yield
        return
    # Without this, cuBLAS refuses products of matrices then.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fills
