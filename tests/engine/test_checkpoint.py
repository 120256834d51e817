"""Checkpoints: as few steps again as any schedule."""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from functools import cache

import meta_problems as mp
import pytest
import torch
from meta_problems import ADAM, outer_loss
from torch import Tensor

from farzi_hf.engine import Checkpoint, InnerSGD, unroll


@cache
def fewest_advances(steps: int, slots: int) -> int:
    """Steps forward that a reversal takes at least, by dynamic programming over all schedules."""
    if steps == 1 or slots == 1:
        return steps * (steps - 1) // 2
    return min(m + fewest_advances(steps - m, slots - 1) + fewest_advances(m, slots) for m in range(1, steps))


@pytest.mark.parametrize("slots", [1, 2, 3, 5, 8, None])
@pytest.mark.parametrize("steps", [1, 2, 9, 25])
def test_checkpoints_take_as_few_steps_again_as_any_schedule(steps: int, slots: int | None) -> None:
    problem, calls = mp.mlp(), 0

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(params, inputs, step)

    adjoint = Checkpoint(slots)
    outer_loss(unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=steps, adjoint=adjoint)).backward()
    in_forward_pass = sum(len(ts) for ts, _ in adjoint._first_descent(range(steps))[:-1])
    assert calls == steps + fewest_advances(steps, adjoint._slots(steps)) - in_forward_pass + steps


def test_default_checkpoints_take_no_step_more_than_twice() -> None:
    problem, taken = mp.mlp(), Counter()

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        taken[step] += 1
        return problem.inner_loss(params, inputs, step)

    theta = unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=100, adjoint=Checkpoint())
    outer_loss(theta).backward()
    assert max(taken.values()) == 3, "twice to find the states, once in reverse"
    assert Checkpoint()._slots(100) == 13


@pytest.mark.parametrize("slots", [0, -1, 2.0, True])
def test_bad_slots(slots: object) -> None:
    with pytest.raises(ValueError, match=r"slots must be None or an integer >= 1, got"):
        Checkpoint(slots=slots)


def test_nothing_is_left_for_the_collection_of_cycles() -> None:
    problem = mp.mlp()
    kept = problem.inner_loss

    def inner_loss(*args) -> Tensor:
        return kept(*args)

    seen = weakref.ref(inner_loss)
    _, params, inputs = problem.arguments
    gc.collect()
    gc.disable()
    try:
        outer_loss(unroll(inner_loss, params, inputs, optimizer=ADAM, steps=7, adjoint=Checkpoint(slots=3))).backward()
        del inner_loss
        assert seen() is None
    finally:
        gc.enable()


@pytest.mark.slow
def test_there_may_be_more_slots_than_python_allows_calls_in_calls() -> None:
    x, limit = torch.ones(2, requires_grad=True), sys.getrecursionlimit()
    theta = unroll(
        lambda p, i, s: (p["w"] * i[0]).square().sum(), {"w": torch.ones(2)}, (x,), optimizer=InnerSGD(lr=1e-4),
        steps=3 * limit, adjoint=Checkpoint(slots=limit + 200),
    )  # fmt: skip
    assert torch.autograd.grad(theta["w"].sum(), x)[0].all()
