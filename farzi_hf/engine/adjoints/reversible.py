"""The adjoint that runs the training itself backwards, from its last state to its first."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from farzi_hf.engine.adjoints.base import RecordingAdjoint, Reverse, clone, nbytes
from farzi_hf.engine.adjoints.fixed_point import (
    SMALLEST_DECAY,
    Bounds,
    FixedPointState,
    NotFinite,
    ReplayError,
    stack,
)
from farzi_hf.engine.adjoints.tape import Segments, Tape
from farzi_hf.engine.inner_loop import Buffers, InnerLoop, States, weights
from farzi_hf.engine.optimizers import InvertibleOptimizer, State

_logger = logging.getLogger(__name__)


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
        ValueError: the optimizer has an accumulator without memory (SGD without momentum, Adam with a β below 1/16).
        OverflowError: a parameter is finite, but too large for the integers, or a gradient for float32.
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

    def record(
        self, loop: InnerLoop, states: States, inputs: Buffers
    ) -> tuple[States, Integers | States | Segments]:
        bounds = Bounds(weights(states)[0].device.type == "cpu")
        try:
            while True:
                integers = Integers(loop, states, bounds)
                with _deterministic(states):
                    integers.forward(loop, inputs)
                if bounds.check():
                    return clone(integers.states), integers
        except NotFinite:
            lost = tuple(tuple(x.fill_(math.nan) for x in state) for state in states)
            return lost, lost
        except ReplayError as error:
            _logger.warning("%s; adjoint=Tape() takes the place of Reversible().", error)
            return Tape().record(loop, states, inputs)

    def retrace(
        self,
        loop: InnerLoop,
        record: Integers | States | Segments,
        inputs: Buffers,
        reverse: Reverse,
    ) -> None:
        if isinstance(record, list):
            Tape().retrace(loop, record, inputs, reverse)
            return
        if not isinstance(record, Integers):
            # The training left the finite numbers. The meta-gradient is then NaN, as with every
            # adjoint: in all that a step uses.
            for t in reversed(loop.differentiated):
                reverse(t, record, None)
            return
        same: list[Tensor] = []  # looked at after the last step, see `Bounds`
        with _deterministic(record.states):
            for t in reversed(loop.differentiated):
                for group in record.groups:
                    group.unstep(t, loop.rate(t))
                same.append((record.checksum() == record.checksums.pop()).all())
                g = reverse(t, record.states, partial(record.accumulators, t))
                for group, flat in zip(record.groups, g, strict=True):
                    group.restore(flat, t)
        same.append((record.checksum(True) == record.start).all())
        if False in (found := torch.stack(same).tolist()):
            raise ReplayError(
                "adjoint=Reversible() did not come back to where it was before step"
                f" {loop.steps + 1 - found.index(False)}: inner_loss gave another gradient than it"
                " did going forward; make it a pure function of (params, inputs, step), or use"
                " adjoint=Checkpoint() or Tape(); with torch_compile=True the compiler may have"
                " taken other kernels"
            )

    def record_bytes(self, loop: InnerLoop, w: Buffers) -> int:
        # Parameters twice, as integers of 8 bytes too; each accumulator in one limb or two, and as
        # floating-point numbers for the pullback.
        forgotten = -sum(map(math.log2, loop.optimizer.decays)) * len(loop.differentiated) / 8
        each = 8 + 20 * len(loop.optimizer.decays) + forgotten
        return 2 * nbytes(w) + int(each * sum(flat.numel() for flat in w))


class Integers:
    """The integers of one training: at its start, and after `forward` at its end."""

    def __init__(self, loop: InnerLoop, states: States, bounds: Bounds):
        before, self.bounds = loop.differentiated[0] - 1, bounds
        pairs = zip(loop.optimizers, states, strict=True)
        self.groups = [FixedPointState(*each, before, bounds) for each in pairs]
        self.start = self.checksum(True)
        self.checksums: list[Tensor] = []  # of the parameters before each step taken

    def forward(self, loop: InnerLoop, inputs: Buffers) -> None:
        """Take all steps. Raises what `Bounds` raises."""
        ts, again = loop.differentiated, ()
        if self.bounds.expected is not None:
            # The compiler makes code for the first step, and for all others when it meets the
            # second: both are made before bits count.
            for t in (*ts[:2], ts[0]) if loop.torch_compile else ts[:1]:
                again = loop.replayed_gradient(weights(self.states), inputs, t)
        for t in ts:
            g = loop.replayed_gradient(weights(self.states), inputs, t)
            self.checksums.append(self.checksum())
            for group, flat in zip(self.groups, g, strict=True):
                group.step(flat, t, loop.rate(t))
            for a, b in zip(g, again, strict=False):
                self.bounds.note(_check_replay, (a != b).any())
            again = ()

    @property
    def states(self) -> States:
        """States with the present parameters only. Every step writes over them."""
        return tuple((group.weights,) for group in self.groups)

    def accumulators(self, t: int, group: int, rows: slice) -> State:
        """Those after step `t`."""
        dtype = self.groups[group].weights.dtype
        return tuple(x.to(dtype) for x in self.groups[group].accumulators(rows, t))

    def checksum(self, of_all: bool = False) -> Tensor:
        """Of the parameters, or of the accumulators too."""
        limbs = (
            [limb for group in self.groups for total in group.sums for limb in total.limbs]
            if of_all
            else []
        )
        return stack([x.sum() for x in (*(group.u for group in self.groups), *limbs)])


def _check_replay(differs: float) -> float:
    if differs:
        raise ReplayError("inner_loss gave two gradients for the same parameters and the same step")
    return 0.0


@contextmanager
def _deterministic(states: States) -> Iterator[None]:
    """Inside, torch takes kernels that give the same bits again, where it has them; with one
    thread, a CPU's always do.
    """
    mode, fills = (
        torch.get_deterministic_debug_mode(),
        torch.utils.deterministic.fill_uninitialized_memory,
    )
    if mode or (weights(states)[0].device.type == "cpu" and torch.get_num_threads() == 1):
        yield
        return
    os.environ.setdefault(
        "CUBLAS_WORKSPACE_CONFIG", ":4096:8"
    )  # without it, products of matrices are refused
    torch.set_deterministic_debug_mode("warn")
    torch.utils.deterministic.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        torch.utils.deterministic.fill_uninitialized_memory = fills
