"""A training that stops and goes on: `train`, and `unroll` from where it has come to."""

from __future__ import annotations

from dataclasses import replace

import meta_problems as mp
import pytest
import torch
from adjoint_checks import OPTIMIZERS, every_adjoint, skip_irreversible
from meta_problems import ADAM, outer_loss

from farzi_hf.engine import Adjoint, InnerAdamW, InnerOptimizer, InnerSGD, train, unroll


def parts(problem: mp.MetaProblem, optimizer: InnerOptimizer, *lengths: int):
    state = problem.params
    for steps in lengths:
        state = train(
            problem.inner_loss,
            state,
            problem.inputs,
            optimizer=optimizer,
            steps=steps,
            first_step=3,
        )
    return state


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_training_in_parts_equals_a_whole_one(optimizer):
    problem = mp.mlp()
    whole = parts(problem, optimizer, 9)
    pieces = parts(problem, optimizer, 2, 1, 6)
    assert pieces.step == whole.step == 9
    assert list(whole.params) == list(problem.params)
    for ours, theirs in zip(pieces.states, whole.states, strict=True):
        assert all(map(torch.equal, ours, theirs))
    expected = unroll(*problem.arguments, optimizer=optimizer, steps=9, first_step=3)
    assert all(torch.equal(whole.params[name], x) for name, x in expected.items())


@every_adjoint
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("window", [None, 2])
def test_to_go_on_gives_the_gradient_of_a_window(optimizer, window: int | None, adjoint: Adjoint):
    skip_irreversible(optimizer, adjoint)
    problem = mp.mlp()
    state = parts(problem, optimizer, 5)
    settings = {"optimizer": optimizer, "adjoint": adjoint, "first_step": 3}
    found = unroll(problem.inner_loss, state, problem.inputs, steps=4, window=window, **settings)
    expected = unroll(*problem.arguments, steps=9, window=window or 4, **settings)
    inputs = [x for x in problem.inputs if x.requires_grad]
    ours, theirs = (torch.autograd.grad(outer_loss(theta), inputs) for theta in (found, expected))
    assert all(map(torch.equal, ours, theirs))
    assert all(x.any() for x in theirs)


def test_to_go_on_leaves_the_state_as_it_was():
    problem = mp.mlp()
    state = parts(problem, ADAM, 3)
    before = [x.clone() for buffers in state.states for x in buffers]
    outer_loss(
        unroll(problem.inner_loss, state, problem.inputs, optimizer=ADAM, steps=2)
    ).backward()
    parts(replace(problem, params=state), ADAM, 2)
    assert all(map(torch.equal, before, [x for buffers in state.states for x in buffers]))


def test_another_optimizer_cannot_go_on():
    problem = mp.mlp()
    with pytest.raises(
        ValueError, match=r"params is a training with another optimizer than InnerSGD\("
    ):
        unroll(
            problem.inner_loss,
            parts(problem, ADAM, 3),
            problem.inputs,
            optimizer=InnerSGD(0.1),
            steps=2,
        )
    without = InnerAdamW(0.1, no_decay=("bias",))
    with pytest.raises(
        ValueError, match=r"params is a training with another optimizer than InnerAdamW\("
    ):
        unroll(
            problem.inner_loss,
            parts(problem, InnerAdamW(0.1), 3),
            problem.inputs,
            optimizer=without,
            steps=2,
        )
