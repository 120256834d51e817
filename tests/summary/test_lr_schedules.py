"""Learning rates that change over the steps of an inner loop."""

from __future__ import annotations

import pytest
import torch
from tiny_models import LENGTH, V, tiny_model

from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.engine import Direct, InnerSGD
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.inner_settings import lr_schedule


def test_a_linear_rate_falls_from_one_towards_zero():
    rate = lr_schedule("linear", 4)
    assert [rate(step) for step in (1, 2, 3, 4)] == [1.0, 0.75, 0.5, 0.25]


def test_a_rate_may_stay_for_half_of_the_steps():
    rate = lr_schedule("warmup_stable_decay", 6)
    assert [rate(step) for step in range(1, 7)] == pytest.approx([1.0, 1.0, 1.0, 1.0, 2 / 3, 1 / 3])
    assert lr_schedule("warmup_stable_decay", 1)(1) == 1.0


def test_a_constant_rate_needs_no_schedule():
    assert lr_schedule("constant", 4) is None


def test_an_unknown_schedule_is_refused():
    with pytest.raises(
        ValueError,
        match="lr_scheduler_type='steep' is unknown; choose one of constant, linear, cosine, warmup_stable_decay",
    ):
        lr_schedule("steep", 4)


def test_the_beginning_of_a_training_has_the_rates_of_the_whole():
    """One step of SGD of four moves the parameters as far as one step of one: the whole rate. Two of four move them by less than two of two."""
    torch.manual_seed(0)
    learner = Learner(tiny_model("gpt2"))
    farzi = FarziData(FarziDataConfig(4, LENGTH, 4, V, latent_std=1.0))
    training = SyntheticTraining(InnerSGD(0.1), 1.0, lr_scheduler_type="linear")
    start = learner.initial_parameters(0)

    def theta(steps: int, of_steps: int | None) -> torch.Tensor:
        params = training(learner, farzi.tensors, start=start, steps=steps, seed=0, of_steps=of_steps)
        return torch.cat([x.reshape(-1) for x in params.values()])

    assert torch.equal(theta(1, 4), theta(1, None))
    first, of_four, of_two = theta(1, None), theta(2, 4), theta(2, None)
    torch.testing.assert_close((of_four - first) * 0.5, (of_two - first) * 0.75, rtol=1e-4, atol=1e-6)


def test_the_meta_gradient_with_a_schedule_is_that_of_autograd():
    torch.manual_seed(0)
    learner = Learner(lambda: tiny_model("gpt2").double())
    farzi = FarziData(FarziDataConfig(4, LENGTH, 4, V, latent_std=1.0)).double()
    found = []
    for adjoint in (None, Direct()):
        training = SyntheticTraining(InnerSGD(0.1, 0.5), 1.0, adjoint=adjoint, lr_scheduler_type="cosine")
        theta = training(learner, farzi.tensors, start=learner.initial_parameters(0), steps=5, seed=0)
        loss = sum(x.square().sum() for x in theta.values())
        found.append(torch.autograd.grad(loss, [farzi.latents, farzi.decoder]))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
