"""Checkpoints: as few steps again as any schedule."""

from __future__ import annotations

from functools import cache

import meta_problems as mp
import pytest
from meta_problems import ADAM, outer_loss
from torch import Tensor

from farzi_hf.engine import Checkpoint, unroll
from farzi_hf.engine.adjoints.checkpoint import split


@cache
def fewest_advances(steps: int, slots: int) -> int:
    """Steps forward that a reversal takes at least, by dynamic programming over all schedules."""
    if steps == 1 or slots == 1:
        return steps * (steps - 1) // 2
    return min(
        m + fewest_advances(steps - m, slots - 1) + fewest_advances(m, slots)
        for m in range(1, steps)
    )


def before_the_last_state(steps: int, slots: int) -> int:
    """Steps before the last state that the forward pass keeps."""
    if steps == 1 or slots == 1:
        return 0
    return (first := split(steps, slots)) + before_the_last_state(steps - first, slots - 1)


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, None])
@pytest.mark.parametrize("steps", [1, 2, 9, 25])
def test_checkpoints_take_as_few_steps_again_as_any_schedule(steps: int, slots: int | None) -> None:
    problem = mp.mlp()
    calls = 0

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(params, inputs, step)

    adjoint = Checkpoint(slots)
    outer_loss(
        unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=steps, adjoint=adjoint)
    ).backward()
    slots = adjoint._slots(steps)
    assert (
        calls == steps + fewest_advances(steps, slots) - before_the_last_state(steps, slots) + steps
    )


def test_bad_slots() -> None:
    with pytest.raises(ValueError, match=r"slots must be None or an integer >= 1, got 0"):
        Checkpoint(slots=0)
