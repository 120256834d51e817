"""The inner loop trains the rows of an embedding that the ids of a summary show, and nothing else
changes: not a bit of it.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from farzi_hf.distillation import Learner, SyntheticTraining, inner_training
from farzi_hf.engine import (
    Checkpoint,
    Direct,
    GradientGraphs,
    InnerAdam,
    InnerSGD,
    Reversible,
    Tape,
)
from farzi_hf.models import SASRecConfig
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.forms import forms_of

V = 40
FORM = FarziDataConfig(4, 5, latent_dim=1, vocab_size=V, inputs="tokens", labels="own", label_dim=3)
TRAINING = SyntheticTraining(InnerAdam(0.02, (0.7, 0.999), 1e-6), forms_of(FORM), 2)


def gpt2(**changes) -> GPT2Config:
    sizes = {
        "vocab_size": V,
        "n_embd": 8,
        "n_layer": 1,
        "n_head": 1,
        "n_positions": 16,
        "tie_word_embeddings": False,
    }
    return GPT2Config(
        **{**sizes, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "resid_pdrop": 0.0, **changes}
    )


@pytest.fixture
def learner() -> Learner:
    return Learner(gpt2())


@pytest.fixture
def farzi() -> FarziData:
    torch.manual_seed(0)
    farzi = FarziData(FORM)
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


@pytest.mark.parametrize(
    "adjoint", [Direct(), GradientGraphs(), Tape(), Checkpoint(), Reversible()]
)
@pytest.mark.parametrize("window", [None, 3])
def test_the_training_is_that_of_all_rows(monkeypatch, learner, farzi, adjoint, window):
    training = replace(TRAINING, adjoint=adjoint, window=window)
    with monkeypatch.context() as everything:
        everything.setattr(inner_training, "WORTH", 0.0)
        expected = outcome(learner, farzi, training)
    found = outcome(learner, farzi, training)
    assert not all_rows(learner, farzi)
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def all_rows(learner, farzi, start=None, optimizer=TRAINING.optimizer) -> bool:
    start = learner.initial_parameters(0) if start is None else start
    return inner_training.only_seen_rows(learner, farzi.input_ids, start, optimizer)[1] is None


class Anchored(GPT2LMHeadModel):
    """Uses a row of the embedding in another way, behind a gate."""

    def __init__(self, config, gate: float):
        super().__init__(config)
        self.gate = torch.nn.Parameter(torch.tensor([gate]))

    def forward(self, input_ids=None, **kwargs):
        found = super().forward(input_ids, **kwargs)
        found.logits = found.logits * (1 + self.gate * self.transformer.wte.weight[20].sum())
        return found


@pytest.mark.parametrize(
    "learner_init",
    [
        gpt2(tie_word_embeddings=True),
        SASRecConfig(num_items=V - 1, hidden_size=8, max_length=10),
        lambda: Anchored(gpt2(), 1.0),
        lambda: Anchored(gpt2(), 0.0),
    ],
    ids=["tied", "items", "anchored", "gate that starts at zero"],
)
def test_an_embedding_that_is_used_otherwise_trains_as_a_whole(learner_init, farzi):
    assert all_rows(Learner(learner_init), farzi)


class Decaying(InnerAdam):
    """Decays in a way of its own."""

    def step(self, state, g, t, lr, out=None):
        return super().step((state[0] * 0.9, *state[1:]), g, t, lr, out)


@pytest.mark.parametrize(
    "optimizer",
    [InnerAdam(0.01, weight_decay=0.1), InnerSGD(0.1, weight_decay=0.1), Decaying(0.01)],
)
def test_decay_changes_all_rows(learner, farzi, optimizer):
    assert all_rows(learner, farzi, optimizer=optimizer)


def test_starts_to_differentiate_and_constant_embeddings_keep_all_rows(learner, farzi):
    start = learner.initial_parameters(0)
    assert all_rows(learner, farzi, {name: x.clone().requires_grad_() for name, x in start.items()})
    frozen = {
        name: torch.nn.Parameter(x, False) if "wte" in name else x for name, x in start.items()
    }
    assert all_rows(learner, farzi, frozen)
