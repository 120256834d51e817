"""The engine on a CUDA device: every adjoint with every optimizer gives the gradients of the CPU."""

from __future__ import annotations

import meta_problems as mp
import pytest
import torch
from adjoint_checks import CLOSE, every_adjoint, skip_irreversible
from meta_problems import OPTIMIZERS, PROBLEMS, gradients, relative_error
from on_device import moved, needs_device

from farzi_hf.engine import Checkpoint, Reversible, train, unroll

pytestmark = needs_device

QUICK = (("gpt2", "adamw_clipped"), ("mlp", "adam"), ("mlp", "sgd_clipped"))
"""Tried by `make test` too; all others by `make test-device` alone."""


def meta_gradient(problem: mp.MetaProblem, optimizer, **how) -> list[torch.Tensor]:
    theta = unroll(*problem.arguments, optimizer=optimizer, **how)
    trained = (x.flatten() for x in theta.values() if x.requires_grad)
    loss = sum((x + torch.arange(len(x), device=x.device).cos()).square().mean() for x in trained)
    return gradients(loss, problem.leaves)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param(name, rule, marks=() if (name, rule) in QUICK else pytest.mark.slow)
        for name in PROBLEMS for rule in OPTIMIZERS
    ],
)  # fmt: skip
@every_adjoint
def test_gradients_are_those_of_the_cpu(name, optimizer, adjoint):
    optimizer = OPTIMIZERS[optimizer]
    skip_irreversible(optimizer, adjoint)
    problem = PROBLEMS[name]()
    found = meta_gradient(moved(problem), optimizer, steps=6, window=4, adjoint=adjoint)
    assert all(x.is_cuda for x in found)
    expected = meta_gradient(problem, optimizer, steps=6, window=4, adjoint=Checkpoint())
    assert relative_error([x.cpu() for x in found], expected) <= (CLOSE if isinstance(adjoint, Reversible) else 1e-9)


def test_a_training_goes_on_where_it_stopped():
    problem, how = moved(mp.mlp()), {"optimizer": OPTIMIZERS["adam"], "steps": 3}
    halves = train(problem.inner_loss, train(*problem.arguments, **how), problem.inputs, **how)
    whole = train(*problem.arguments, **{**how, "steps": 6})
    assert all(torch.equal(x, halves.params[name]) for name, x in whole.params.items())
