"""The smoothness of a training."""

from __future__ import annotations

import pytest
import torch
from metasmoothness import metasmoothness
from tiny_models import config_of

from farzi_hf.attribution import WeightedTraining
from farzi_hf.data import minibatches
from farzi_hf.distillation import Learner
from farzi_hf.engine import InnerSGD


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(config_of("gpt2", initializer_range=0.3))


def trained(learner: Learner, optimizer: InnerSGD, steps: int) -> WeightedTraining:
    ids = torch.randint(1, 13, (8, 6), generator=torch.Generator().manual_seed(0))
    start = {name: x.double() for name, x in learner.initial_parameters(0).items()}
    return WeightedTraining(
        learner, {"input_ids": ids, "labels": ids}, minibatches(8, 4, steps, 0), optimizer, start
    )


def test_a_slow_training_is_smooth_and_a_wild_one_is_not(learner):
    test = torch.randint(1, 13, (8, 6), generator=torch.Generator().manual_seed(1))
    slow, wild = (
        metasmoothness(
            trained(learner, InnerSGD(lr=lr, momentum=0.5), 20),
            {"input_ids": test, "labels": test},
            size=0.2,
            directions=4,
        )
        for lr in (0.001, 1.0)
    )
    assert slow["slope"] == pytest.approx(1, abs=0.01)
    assert slow["correlation"] > 0.999
    assert slow["curvature"] < 0.05
    assert abs(wild["slope"] - 1) > 0.1
    assert wild["curvature"] > 0.3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"size": 0.0}, "size=0.0 and dir"),
        ({"directions": 1}, "directions=1"),
        ({}, r"losses of shape \(2,\)"),
    ],
)
def test_smoothness_says_what_is_wrong(learner, settings, message):
    losses = lambda theta: theta["transformer.wte.weight"].sum().expand(2)  # noqa: E731
    with pytest.raises(ValueError, match=message):
        metasmoothness(trained(learner, InnerSGD(0.1), 2), losses, **settings)
