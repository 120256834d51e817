"""The inner loop gets the sequences that it sees, and nothing else changes: not a bit of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import V, config_of

from farzi_hf.distillation import Learner, SyntheticTraining, inner_training
from farzi_hf.engine import InnerAdam, Reversible
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.forms import Forms


@pytest.mark.parametrize("form", ["soft", "tokens"])
@pytest.mark.parametrize("steps", [2, 5])
def test_the_inner_loop_gets_the_sequences_it_sees_and_the_gradient_stays_the_same(
    form, steps, monkeypatch
):
    """Bit for bit; 5 steps of 2 sequences go beyond an epoch of 9."""
    learner, config = Learner(config_of("gpt2")), FarziDataConfig(9, 5, 4, V, latent_std=1.0)
    if form == "tokens":
        config = FarziDataConfig(
            9, 5, vocab_size=V, inputs="tokens", labels="own", label_dim=4, latent_std=1.0
        )
    torch.manual_seed(0)
    farzi = FarziData(config)
    training = SyntheticTraining(
        InnerAdam(0.02, eps=1e-3), farzi.forms, batch_size=2, window=steps - 1, adjoint=Reversible()
    )
    sizes, batch = set(), Forms.batch

    def noted(forms, summary, rows):
        sizes.add(len(next(iter(summary.values()))))
        return batch(forms, summary, rows)

    monkeypatch.setattr(Forms, "batch", noted)

    def result(training):
        theta = training(
            learner, farzi.tensors, start=learner.initial_parameters(3), steps=steps, seed=4
        )
        loss = sum(x.square().sum() for x in theta.values())
        return [*theta.values(), *torch.autograd.grad(loss, list(farzi.parameters()))]

    found = result(training)
    assert sizes == {
        2 * steps
        if steps < 5
        else len(set(inner_training.minibatches(9, 2, 5, 4).flatten().tolist()))
    }
    monkeypatch.setattr(
        SyntheticTraining, "_compact", lambda self, summary, rows, *_: (summary, rows)
    )
    assert all(map(torch.equal, found, result(replace(training))))
