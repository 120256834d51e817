"""The inner loop gets the sequences that it sees and trains the rows that the ids show, and nothing else changes: not a bit of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config

from farzi_hf.distillation import Learner, SyntheticTraining, inner_training
from farzi_hf.engine import InnerAdam, Reversible
from farzi_hf.summary import FarziData, FarziDataConfig

V = 40
TRAINING = SyntheticTraining(InnerAdam(0.02, (0.7, 0.999), 1e-6), 1.0, 2)


def gpt2(**changes) -> GPT2Config:
    sizes = {"vocab_size": V, "n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 16, "tie_word_embeddings": False}
    return GPT2Config(**{**sizes, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, **changes})


@pytest.fixture
def learner() -> Learner:
    return Learner(gpt2())


@pytest.fixture
def farzi() -> FarziData:
    torch.manual_seed(0)
    config = FarziDataConfig(4, 5, latent_dim=1, vocab_size=V, inputs="tokens", labels="own", label_dim=3)
    farzi = FarziData(config)
    farzi.input_ids.copy_(torch.randint(3, 15, farzi.input_ids.shape))
    return farzi


def outcome(learner: Learner, farzi: FarziData, training: SyntheticTraining) -> list[Tensor]:
    farzi.zero_grad()
    start = learner.initial_parameters(0)
    theta = training(learner, farzi.tensors, start=start, steps=6, seed=0)
    assert list(theta) == list(start)
    ids = torch.arange(V).view(4, 10)  # also rows that no step has seen
    learner.hard_loss(theta, {"input_ids": ids, "labels": ids}).backward()
    return [*theta.values(), *(x.grad for x in farzi.parameters())]


@pytest.mark.parametrize("form", ["soft", "tokens"])
@pytest.mark.parametrize("steps", [2, 5])
def test_the_inner_loop_gets_the_sequences_it_sees_and_the_gradient_stays_the_same(form, steps, monkeypatch):
    """Bit for bit; 5 steps of 2 sequences go beyond an epoch of 9."""
    learner, config = Learner(gpt2()), FarziDataConfig(9, 5, 4, V, latent_std=1.0)
    if form == "tokens":
        config = FarziDataConfig(9, 5, vocab_size=V, inputs="tokens", labels="own", label_dim=4, latent_std=1.0)
    torch.manual_seed(0)
    farzi = FarziData(config)
    training = SyntheticTraining(InnerAdam(0.02, eps=1e-3), 1.0, batch_size=2, window=steps - 1, adjoint=Reversible())
    sizes, batch_of = set(), inner_training.batch_of

    def noted(summary, rows, tau):
        sizes.add(len(next(iter(summary.values()))))
        return batch_of(summary, rows, tau)

    monkeypatch.setattr(inner_training, "batch_of", noted)

    def result(training):
        theta = training(learner, farzi.tensors, start=learner.initial_parameters(3), steps=steps, seed=4)
        loss = sum(x.square().sum() for x in theta.values())
        return [*theta.values(), *torch.autograd.grad(loss, list(farzi.parameters()))]

    found = result(training)
    assert sizes == {2 * steps if steps < 5 else len(set(inner_training.minibatches(9, 2, 5, 4).flatten().tolist()))}
    monkeypatch.setattr(SyntheticTraining, "_compact", lambda self, summary, rows, *_: (summary, rows))
    assert all(map(torch.equal, found, result(replace(training))))
