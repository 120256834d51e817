"""Layers that keep their inputs only: the same derivatives, the first and the second, with less
memory.
"""

from __future__ import annotations

import pytest
import torch
from live_bytes import LiveBytes
from tiny_models import V, config_of

from farzi_hf import FarziConfig, FarziData, FarziDataConfig
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.engine import Checkpoint, InnerAdam, Reversible, Tape

MODELS = {
    "gpt2": config_of("gpt2", n_layer=2),
    "llama": config_of("llama", num_hidden_layers=2),
    "sasrec": config_of("sasrec", num_hidden_layers=2, num_attention_heads=1),
}


def meta_gradient(config, adjoint, **options) -> list[torch.Tensor]:
    learner = Learner(config, **options)
    torch.manual_seed(0)
    farzi = FarziData(
        FarziDataConfig(4, 6, 3, V, inputs="soft", labels="own", label_dim=3)
    ).double()
    start = {name: x.double() for name, x in learner.initial_parameters(0).items()}
    training = SyntheticTraining(InnerAdam(0.05, eps=1e-3), farzi.forms, 2, adjoint=adjoint)
    theta = training(learner, farzi.tensors, start=start, steps=4, seed=0)
    batch = {
        "input_ids": torch.arange(12).view(2, 6) % V,
        "labels": torch.arange(12).view(2, 6) % V,
    }
    loss = learner.hard_loss(theta, batch)
    return [loss, *torch.autograd.grad(loss, list(farzi.parameters()))]


@pytest.mark.parametrize(
    "adjoint", [Tape(), Checkpoint(2), Reversible()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("name", MODELS)
def test_the_meta_gradient_is_the_same(name, adjoint):
    plain = meta_gradient(MODELS[name], adjoint)
    recomputed = meta_gradient(MODELS[name], adjoint, checkpoint_layers=True)
    for x, y in zip(plain, recomputed, strict=True):
        # Llama's norms run in float32
        torch.testing.assert_close(y, x, rtol=1e-6, atol=1e-7 if name == "llama" else 1e-12)


def test_a_deep_learner_needs_less_memory_for_its_second_derivative():
    config = config_of("gpt2", n_embd=32, n_layer=8)

    def peak(**options) -> int:
        learner = Learner(config, **options)
        theta = {name: x.requires_grad_() for name, x in learner.initial_parameters(0).items()}
        ids = torch.arange(8 * 32).view(8, 32) % V
        with LiveBytes() as live:
            loss = learner.hard_loss(theta, {"input_ids": ids, "labels": ids})
            gradient = torch.autograd.grad(loss, list(theta.values()), create_graph=True)
            torch.autograd.grad(sum((g * g).sum() for g in gradient), list(theta.values()))
        return live.peak

    assert peak(checkpoint_layers=True) < 0.35 * peak()


@pytest.mark.parametrize("name", ["gpt2", "sasrec"])
def test_a_layer_that_is_computed_again_drops_the_same(name):
    dropout = {"gpt2": {"resid_pdrop": 0.3, "attn_pdrop": 0.3}, "sasrec": {"dropout": 0.3}}[name]
    learner = Learner(config_of(name, **dropout), checkpoint_layers=True)
    theta = {name: x.double().requires_grad_() for name, x in learner.initial_parameters(0).items()}
    ids = torch.arange(12).view(2, 6) % V

    def loss(params) -> torch.Tensor:
        return learner.hard_loss(params, {"input_ids": ids, "labels": ids}, dropout=4)

    gradient = torch.autograd.grad(loss(theta), list(theta.values()))
    torch.manual_seed(0)
    step = {name: 1e-6 * torch.randn_like(x) for name, x in theta.items()}
    above, below = (loss({name: x + s * step[name] for name, x in theta.items()}) for s in (1, -1))
    slope = sum((g * d).sum() for g, d in zip(gradient, step.values(), strict=True))
    torch.testing.assert_close(slope, (above - below) / 2, rtol=1e-5, atol=0)
    assert loss(theta) != learner.hard_loss(theta, {"input_ids": ids, "labels": ids})


def test_what_cannot_be_recomputed_is_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"checkpoint_layers=True, but GRU4Rec.* has no nn.ModuleList"
    ):
        Learner(config_of("gru4rec"), checkpoint_layers=True)
    with pytest.raises(ValueError, match=r"torch_compile=True; leave one out"):
        FarziConfig(str(tmp_path), checkpoint_layers=True, torch_compile=True, use_cpu=True)
