"""The learner as a pure function: its losses and their derivatives, its starts, every family of
models twice differentiable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from meta_problems import gradients, relative_error
from tiny_models import CONFIGS, NEXT_ITEM, V, config_of, tiny_summary
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from farzi_hf import FarziData, FarziDataConfig
from farzi_hf.data import SequenceCollator
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.distillation.learner import leaves
from farzi_hf.engine import InnerAdam, Tape, unroll
from farzi_hf.summary.soft_tokens import SoftTokens, shifted_cross_entropy

LENGTH = 5


def double(kind: str) -> Callable[[], PreTrainedModel]:
    return lambda: AutoModelForCausalLM.from_config(config_of(kind)).double()


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def given(q: Tensor) -> SoftTokens:
    """Soft tokens with these probabilities."""
    return SoftTokens(q.log(), None)


def random_ids(rows: int = 3) -> Tensor:
    return torch.randint(V, (rows, LENGTH), generator=torch.Generator().manual_seed(0))


@pytest.fixture(params=CONFIGS)
def learner(request, monkeypatch) -> Learner:
    # Norms, softmaxes and state spaces cast to single precision inside transformers, whatever the
    # parameters are.
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    return Learner(double(request.param))


# -- soft cross-entropy of logits ------------------------------------------------------------------


def test_soft_cross_entropy_is_minus_q_log_p_where_q_sums_to_one():
    z, q = 3 * normal(3, 4, 7), normal(3, 4, 7, seed=1).softmax(-1)
    loss, count = shifted_cross_entropy(z, q)
    torch.testing.assert_close(
        loss, -(q[:, 1:] * z[:, :-1].log_softmax(-1)).sum(), rtol=0, atol=1e-12
    )
    assert count == 3 * 3


# -- losses of a learner ---------------------------------------------------------------------------


def test_one_hot_tokens_have_exactly_the_logits_and_the_loss_of_their_ids(learner):
    theta, ids = learner.initial_parameters(0), random_ids()
    hard = learner.logits(theta, {"input_ids": ids})
    assert hard.std() > 0
    assert torch.equal(learner.logits(theta, {"input_ids": F.one_hot(ids, V).double()}), hard)
    soft = learner.soft_loss(theta, given(F.one_hot(ids, V).double()))
    torch.testing.assert_close(
        soft, learner.hard_loss(theta, {"input_ids": ids, "labels": ids}), rtol=0, atol=1e-12
    )


def test_hard_loss_is_the_models_own(learner):
    theta, ids = learner.initial_parameters(0), random_ids()
    labels, mask = ids.clone(), torch.ones_like(ids)
    labels[0, 3:], mask[0, 3:] = -100, 0
    batch = {"input_ids": ids, "labels": labels, "attention_mask": mask}
    expected = torch.func.functional_call(learner.model, theta, kwargs=batch).loss
    torch.testing.assert_close(learner.hard_loss(theta, batch), expected, rtol=0, atol=1e-12)


DROPOUT = {
    "gpt2": {"attn_pdrop": 0.3},
    "llama": {"attention_dropout": 0.3},
    **{kind: {"dropout": 0.3, "num_hidden_layers": 2} for kind in NEXT_ITEM},
}


@pytest.mark.parametrize("kind", DROPOUT)
def test_dropout_is_on_where_it_is_asked_for_and_a_function_of_its_seed(kind):
    learner = Learner(config_of(kind, **DROPOUT[kind]))
    theta, ids = learner.initial_parameters(0), random_ids()
    batch = {"input_ids": ids, "labels": ids}
    torch.manual_seed(5)
    before = torch.get_rng_state()
    plain, first, again, other = (
        learner.hard_loss(theta, batch, dropout=seed) for seed in (None, 1, 1, 2)
    )
    assert torch.equal(torch.get_rng_state(), before)
    assert first == again
    assert len({float(plain), float(first), float(other)}) == 3
    assert plain == learner.hard_loss(theta, batch)  # the model is in evaluation mode again
    assert torch.equal(learner.logits(theta, batch), learner.logits(theta, batch))


def test_without_dropout_its_seed_changes_nothing(learner):
    theta, ids = learner.initial_parameters(0), random_ids()
    batch = {"input_ids": ids, "labels": ids}
    assert torch.equal(learner.hard_loss(theta, batch, dropout=3), learner.hard_loss(theta, batch))


def test_soft_tokens_over_another_vocabulary_are_refused():
    learner = Learner(config_of("gpt2"))
    with pytest.raises(
        ValueError, match=rf"soft tokens over {V + 1} entries, but the model's vocabulary has {V}"
    ):
        learner.soft_loss(
            learner.initial_parameters(0), SoftTokens(torch.zeros(2, LENGTH, V + 1), None)
        )


# -- starts ----------------------------------------------------------------------------------------


def test_a_start_is_what_the_factory_draws_under_its_seed(learner):
    """It leaves the global random state as it is, and shares no memory with another start."""
    before = torch.get_rng_state()
    first, second, other = (learner.initial_parameters(seed) for seed in (7, 7, 8))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    drawn = dict(double(learner.model.config.model_type)().named_parameters())
    assert all(
        torch.equal(first[name], x) and torch.equal(second[name], x) for name, x in drawn.items()
    )
    assert any(not torch.equal(first[name], other[name]) for name in first)
    for parameter in first.values():
        parameter.zero_()
    assert any(parameter.abs().sum() > 0 for parameter in second.values())


# -- what a learner is made of ---------------------------------------------------------------------


def test_a_config_is_left_as_it_was():
    config = config_of("gpt2", attn_implementation="sdpa")
    before = config.to_dict()
    Learner(config).initial_parameters(0)
    assert config.to_dict() == before
    assert config._attn_implementation == "sdpa"


def test_of_a_model_only_class_and_config_count():
    model = AutoModelForCausalLM.from_config(config_of("llama", attn_implementation="sdpa"))
    learner = Learner(model)
    start = learner.initial_parameters(0)
    assert type(learner.model) is type(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()
    assert torch.equal(
        Learner(model).initial_parameters(0)["lm_head.weight"], start["lm_head.weight"]
    )
    assert not model._forward_pre_hooks
    assert model.config._attn_implementation == "sdpa"


def test_attention_is_eager_whatever_the_factory_says():
    learner = Learner(
        lambda: AutoModelForCausalLM.from_config(config_of("llama", attn_implementation="sdpa"))
    )
    assert learner.model.config._attn_implementation == "eager"  # sdpa has no second derivative


def test_what_makes_no_model_is_refused():
    with pytest.raises(TypeError, match="learner_init is str; give a function"):
        Learner("gpt2")
    with pytest.raises(TypeError, match="learner_init returned Linear; return a PreTrainedModel"):
        Learner(lambda: nn.Linear(2, 2))


# -- through training ------------------------------------------------------------------------------


def test_the_derivative_through_training_matches_finite_differences(learner):
    """Every family: soft tokens in, three steps of Adam, the loss on ids out."""
    theta, ids = learner.initial_parameters(0), random_ids()
    x = normal(4, LENGTH, V).requires_grad_()

    def outer_loss(x: Tensor) -> Tensor:
        def inner_loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
            return learner.soft_loss(params, SoftTokens(inputs[0], None))

        trained = unroll(inner_loss, theta, (x,), optimizer=InnerAdam(lr=0.05, eps=1e-2), steps=3)
        return learner.hard_loss(trained, {"input_ids": ids, "labels": ids})

    (gradient,) = torch.autograd.grad(outer_loss(x), x)
    direction = normal(*x.shape, seed=3)
    with torch.no_grad():
        change = outer_loss(x + 1e-5 * direction) - outer_loss(x - 1e-5 * direction)
    assert gradient.abs().max() > 1e-6
    assert relative_error([(gradient * direction).sum()], [change / 2e-5]) < 1e-6


# -- compiled --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_compiled_code_finds_the_model_as_it_was_when_it_was_compiled():
    """A loss leaves the head out of the model, runs it, and puts the head back."""
    torch.compiler.reset()
    learner, stats, ids = (
        Learner(config_of("gpt2")),
        torch._dynamo.utils.counters["stats"],
        random_ids(),
    )
    theta, batch, before = (
        learner.initial_parameters(0),
        {"input_ids": ids, "labels": ids},
        stats["unique_graphs"],
    )
    loss = torch.compile(learner.hard_loss, fullgraph=True, backend="eager")
    for _ in range(3):
        torch.testing.assert_close(loss(theta, batch), learner.hard_loss(theta, batch))
    assert stats["unique_graphs"] == before + 1


COMPILED = [  # torch cannot compile recurrent layers
    pytest.param(kind, marks=[] if kind == "sasrec" else pytest.mark.slow)
    for kind in CONFIGS
    if kind not in ("farzi_rnn", "gru4rec")
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", COMPILED)
@pytest.mark.filterwarnings("default")
def test_losses_of_every_learner_without_recurrent_layers_can_be_compiled(kind):
    """On real rows with padding, on soft tokens, and on ids with labels of their own."""
    torch.compiler.reset()
    learner = Learner(config_of(kind))
    tokens = FarziDataConfig(4, LENGTH, 1, V, inputs="tokens", labels="own", label_dim=3)
    theta = learner.initial_parameters(0)
    real = SequenceCollator(0)([{"input_ids": [1, 2, 3, 4]}, {"input_ids": [5, 6]}])
    losses = [lambda params: learner.hard_loss(params, real, torch.tensor([0.5, 2.0]))]
    for farzi in (tiny_summary(4), FarziData(tokens)):
        inputs = tuple(x.detach() for x in farzi.tensors.values())
        training = SyntheticTraining(InnerAdam(0.02), farzi.forms, 2)
        loss = training.inner_loss(learner, farzi.tensors, 3, seed=0)
        losses.append(lambda params, loss=loss, inputs=inputs: loss(params, inputs, 2))
    for loss in losses:
        found = torch.compile(torch.func.grad(loss), fullgraph=True, backend="eager")(theta)
        params = leaves(theta)
        expected = dict(zip(params, gradients(loss(params), list(params.values())), strict=True))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_trainings_give_the_same_gradient_and_are_compiled_once():
    """Also for other numbers of steps: minibatches are a table with a row for each step."""
    learner, farzi, stats = (
        Learner(config_of("gpt2")),
        tiny_summary(4),
        torch._dynamo.utils.counters["stats"],
    )
    plain = SyntheticTraining(InnerAdam(0.02, eps=1e-3), farzi.forms, 2, adjoint=Tape())
    for steps in (3, 5, 4):
        before, found = stats["unique_graphs"], []
        for training in (plain, replace(plain, torch_compile=True)):
            theta = training(
                learner, farzi.tensors, start=learner.initial_parameters(0), steps=steps, seed=steps
            )
            loss = sum(x.square().sum() for x in theta.values())
            found.append(
                torch.cat(
                    [x.flatten() for x in torch.autograd.grad(loss, tuple(farzi.parameters()))]
                )
            )
        torch.testing.assert_close(*found, rtol=1e-3, atol=1e-6)
        assert (stats["unique_graphs"] > before) == (steps == 3)
