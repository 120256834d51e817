"""What is no learner is refused when it is made, in one line: models that see the future, have no
second derivative, change themselves.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tiny_models import CONFIGS, V, config_of
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)
from transformers.models.gpt2.modeling_gpt2 import GPT2LMHeadModel

from farzi_hf.distillation import Learner

KINDS = {
    "bert": {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    },
    "roberta": {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    },
    "xlnet": {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 16},
}


def bidirectional(kind: str, **changes) -> PreTrainedConfig:
    return AutoConfig.for_model(kind, vocab_size=25, pad_token_id=0, **KINDS[kind], **changes)


def refused(learner_init: Callable | PreTrainedConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Learner(learner_init)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


# -- the future ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_models_that_see_the_future_are_refused(kind):
    refused(
        bidirectional(kind),
        rf"learner_init returned a \w+ \(model_type '{kind}'\), which sees the future;"
        r" .*is_decoder=True",
    )


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_the_same_models_as_decoders_are_learners(kind):
    assert Learner(bidirectional(kind, is_decoder=True)).vocab_size == 25


@pytest.mark.parametrize("kind", CONFIGS)
def test_causal_models_are_learners_whatever_the_seed(kind):
    for seed in range(3):
        torch.manual_seed(seed)
        Learner(config_of(kind))


class PeekingGPT2(GPT2LMHeadModel):
    """Only position `at` sees the next token, and only a little of it."""

    at = 0

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        ahead = torch.zeros_like(output.logits)
        ahead[:, self.at] = 1e-2 * output.logits[:, self.at + 1]
        output.logits = output.logits + ahead
        return output


@pytest.mark.parametrize("position", [0, 2])
def test_a_single_position_that_sees_one_token_ahead_is_found(position):
    kind = type("Peeking", (PeekingGPT2,), {"at": position})
    refused(lambda: kind(config_of("gpt2")), "which sees the future")


@pytest.mark.parametrize("positions", [1, 2, 3])
def test_models_of_few_positions_are_tried_on_as_many(positions):
    Learner(config_of("gpt2", n_positions=positions))


# -- what has no derivative ------------------------------------------------------------------------


class OnceDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dx: Tensor) -> Tensor:
        return 2 * dx


class FusedGPT2(GPT2LMHeadModel):
    """A model with a kernel of its own, as fused ones are."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = OnceDifferentiable.apply(output.logits)
        return output


def test_a_model_without_a_second_derivative_is_refused():
    message = (
        r"a FusedGPT2 \(model_type 'gpt2'\), whose loss has no second derivative"
        r" \(.*once_differentiable"
    )
    refused(lambda: FusedGPT2(config_of("gpt2")), message)


# -- the caller's mode -----------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_learner_made_without_gradients_is_the_same_learner(mode):
    config = config_of("gpt2")
    expected = Learner(config).initial_parameters(0)
    with mode():
        start = Learner(config).initial_parameters(0)
    assert all(torch.equal(x, expected[name]) for name, x in start.items())
    assert not any(x.is_inference() for x in start.values())


def test_a_model_that_was_made_under_inference_mode_is_refused_by_that_name():
    with torch.inference_mode():
        model = AutoModelForCausalLM.from_config(config_of("gpt2"))
    refused(lambda: model, r"was made under torch\.inference_mode\(\).*make the model outside")


# -- what is no decoder ----------------------------------------------------------------------------


def test_an_encoder_with_a_decoder_is_refused():
    config = T5Config(vocab_size=V, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    refused(config, "learner_init=T5Config makes no causal model: Unrecognized")
    refused(
        lambda: T5ForConditionalGeneration(config),
        "which does not run on ids alone .*give a causal",
    )


def test_trying_a_model_leaves_it_and_the_random_state_alone():
    weights, states = [], []

    def factory() -> PreTrainedModel:
        model = AutoModelForCausalLM.from_config(config_of("gpt2"))
        weights.append({name: weight.clone() for name, weight in model.named_parameters()})
        states.append(torch.get_rng_state())
        return model

    learner = Learner(factory)
    assert torch.equal(torch.get_rng_state(), states[-1])
    for name, weight in learner.model.named_parameters():
        assert torch.equal(weight, weights[0][name])
        assert weight.grad is None
