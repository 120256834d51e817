"""A pool of learners: its ages, its exactness, and its state."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from tiny_models import PAPER, tiny_model, tiny_summary
from torch import Tensor

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation import Learner, SyntheticTraining, random_starts
from farzi_hf.distillation.objectives.meta_matching import LearnerPool
from farzi_hf.engine import InnerAdam, Reversible, Tape
from farzi_hf.summary import FarziData

WINDOW, YOUNGEST, OLDEST = 2, 5, 11


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(lambda: tiny_model("gpt2").double())


@pytest.fixture
def farzi() -> FarziData:
    return tiny_summary().double()


def training() -> SyntheticTraining:
    optimizer = InnerAdam(0.02, (0.5, 0.99), 1e-3)
    return SyntheticTraining(
        optimizer, PAPER, batch_size=4, window=WINDOW, lr_scheduler_type="linear"
    )


def pool(size: int = 3) -> LearnerPool:
    return LearnerPool(training(), size, YOUNGEST, OLDEST, random_starts, seed=7)


def gradient(theta: dict[str, Tensor], farzi: FarziData) -> list[Tensor]:
    loss = sum(x.square().sum() for x in theta.values())
    return list(torch.autograd.grad(loss, [farzi.latents, farzi.decoder]))


def test_on_a_summary_that_does_not_change_a_turn_is_a_window_of_a_fresh_training(learner, farzi):
    """Values and gradients, at each turn of each learner until the first is replaced."""
    learners = pool()
    for turn, age in enumerate([5, 7, 9, 7, 9, 11, 9, 11]):
        found = learners(learner, farzi.tensors)
        seed = derive(7, Purpose.POOL_LEARNER, turn % 3, 0)
        start = learner.initial_parameters(seed)
        expected = training()(
            learner, farzi.tensors, start=start, steps=age, seed=seed, of_steps=OLDEST
        )
        assert all(torch.equal(found[name], x) for name, x in expected.items())
        assert all(map(torch.equal, gradient(found, farzi), gradient(expected, farzi)))


def test_ages_stay_in_their_range_and_old_learners_are_replaced(learner, farzi):
    learners, ages = pool(), []
    for turn in range(15):
        learners(learner, farzi.tensors)
        ages.append((learners._generations[turn % 3], learners._states[turn % 3].step + WINDOW))
    assert [age for _, age in ages[::3]] == [5, 7, 9, 11, 5]
    assert [age for _, age in ages[1::3]] == [7, 9, 11, 5, 7]
    assert [generation for generation, _ in ages[2::3]] == [0, 0, 1, 1, 1]


def test_the_steps_of_a_window_are_taken_again_on_the_changed_summary(learner, farzi):
    learners, first = pool(1), {name: x.detach().clone() for name, x in farzi.tensors.items()}
    learners(learner, farzi.tensors)
    with torch.no_grad():
        farzi.latents.add_(1.0)
    theta = learners(learner, farzi.tensors)
    seed = derive(7, Purpose.POOL_LEARNER, 0, 0)
    state, settings = learner.initial_parameters(seed), {"seed": seed, "of_steps": OLDEST}
    for summary, steps in ((first, YOUNGEST - WINDOW), (farzi.tensors, WINDOW)):
        state = training().advance(learner, summary, start=state, steps=steps, **settings)
    expected = training()(learner, farzi.tensors, start=state, steps=WINDOW, **settings)
    for name, x in expected.items():
        torch.testing.assert_close(theta[name], x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("turns", [0, 2, 7])
def test_a_pool_goes_on_from_its_state(learner, farzi, turns):
    first = pool()
    for _ in range(turns):
        first(learner, farzi.tensors)
    second = pool()
    second.load_state_dict(first.state_dict(), learner, "cpu")
    for _ in range(4):
        ours, theirs = second(learner, farzi.tensors), first(learner, farzi.tensors)
        assert all(torch.equal(ours[name], x) for name, x in theirs.items())


@pytest.mark.parametrize("adjoint", [Tape(), Reversible()], ids=["NaN", "no room"])
def test_a_learner_that_diverges_makes_way_for_a_fresh_one(learner, farzi, adjoint):
    wild = replace(
        training(),
        optimizer=InnerAdam(1e300 if isinstance(adjoint, Tape) else 1e9),
        adjoint=adjoint,
    )
    learners = LearnerPool(wild, 1, YOUNGEST, OLDEST, random_starts, seed=7)
    with pytest.raises(OverflowError) if isinstance(adjoint, Reversible) else nullcontext():
        learners(learner, farzi.tensors)
    assert (learners._generations, learners._states) == ([1], [None])
