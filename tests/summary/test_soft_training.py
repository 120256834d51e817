"""Soft tokens under the stock Trainer, on every family of models that the project names."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from datasets import Dataset
from tiny_models import (
    CONFIGS,
    FAMILIES,
    LENGTH,
    V,
    arguments,
    soft_trainer,
    tiny_model,
    tiny_summary,
)
from transformers import Trainer
from transformers.modeling_outputs import CausalLMOutput

from farzi_hf.distillation import Learner
from farzi_hf.models import RNNConfig
from farzi_hf.summary import FarziData, FarziDataConfig, attach_soft_inputs, soft_cross_entropy
from farzi_hf.summary.soft_tokens import SoftTokens


@pytest.fixture(params=CONFIGS)
def model(request):
    return tiny_model(request.param)


@pytest.fixture(
    params=[
        kind if kind in FAMILIES else pytest.param(kind, marks=pytest.mark.slow) for kind in CONFIGS
    ],
)
def trained_model(request):
    return tiny_model(request.param)


def test_one_hot_soft_tokens_are_exactly_their_ids(model):
    attach_soft_inputs(model).eval()
    ids = torch.randint(V, (3, LENGTH))
    soft = F.one_hot(ids, V).float()
    assert torch.equal(model(input_ids=soft).logits, model(input_ids=ids).logits)
    assert torch.equal(model(soft).logits, model(ids).logits)


def test_one_hot_soft_labels_cost_what_their_ids_cost(model):
    attach_soft_inputs(model).eval()
    ids = torch.randint(V, (3, LENGTH))
    outputs = model(input_ids=ids)
    hard = soft_cross_entropy(outputs, ids)
    torch.testing.assert_close(hard, model(input_ids=ids, labels=ids).loss)
    torch.testing.assert_close(soft_cross_entropy(outputs, F.one_hot(ids, V).float()), hard)


def test_stock_trainer_trains_on_soft_tokens_and_evaluates_on_ids(trained_model, tmp_path):
    model = trained_model
    trainer = soft_trainer(model, tiny_summary(), arguments(tmp_path, max_steps=15))
    before = trainer.evaluate(tiny_summary().as_dataset())["eval_loss"]
    trainer.train()
    assert trainer.evaluate(tiny_summary().as_dataset())["eval_loss"] < before
    rows = [
        {"input_ids": torch.randint(1, V, (length,)).tolist()} for length in (3, LENGTH, LENGTH)
    ]
    own = model.eval()(**trainer.data_collator(rows)).loss.item()
    assert trainer.evaluate(Dataset.from_list(rows))["eval_loss"] == pytest.approx(own, rel=1e-5)


def test_training_loss_is_nats_per_predicted_token(trained_model, tmp_path):
    """Counting vocabulary entries instead of positions would log a loss V times too small."""
    trainer = soft_trainer(
        trained_model, tiny_summary(), arguments(tmp_path, max_steps=1, learning_rate=0.0)
    )
    trainer.train()
    assert trainer.state.log_history[0]["loss"] == pytest.approx(
        torch.log(torch.tensor(V)).item(), rel=0.3
    )


def trained_whole_and_in_parts(model, tmp_path) -> dict:
    """The parameters after steps on eight sequences, which equal those after steps on four times
    two.
    """
    trained = []
    for batch, accumulation in ((8, 1), (2, 4)):
        one = attach_soft_inputs(copy.deepcopy(model))
        args = arguments(
            tmp_path,
            optim="sgd",
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            max_grad_norm=0.0,
            learning_rate=1.0,
            lr_scheduler_type="constant",
        )
        soft_trainer(one, tiny_summary(), args).train()
        trained.append({name: p.detach() for name, p in one.named_parameters()})
    torch.testing.assert_close(*trained, atol=1e-6, rtol=1e-5)
    return trained[0]


@pytest.mark.parametrize("kind", ["gpt2", "mamba"])
def test_accumulation_equals_a_large_batch(kind, tmp_path):
    trained_whole_and_in_parts(tiny_model(kind), tmp_path)


# peft asks transformers for a property by its old name
old_name = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)


@pytest.fixture
def lora():
    """A llama whose base is frozen, and its copy before training."""
    peft = pytest.importorskip("peft")
    base = tiny_model("llama")
    model = peft.get_peft_model(
        base, peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    )
    return attach_soft_inputs(model)  # last: peft calls the base model past its hooks


@old_name
def test_lora_takes_soft_tokens_as_it_takes_ids(lora):
    lora.eval()
    ids = torch.randint(V, (3, LENGTH))
    soft = F.one_hot(ids, V).float()
    assert torch.equal(lora(input_ids=soft).logits, lora(input_ids=ids).logits)


@old_name
def test_lora_trains_its_adapters_alone_and_accumulates(lora, tmp_path):
    start = {name: p.detach().clone() for name, p in lora.named_parameters()}
    trained = trained_whole_and_in_parts(lora, tmp_path)
    changed = {name for name, p in trained.items() if not torch.equal(p, start[name])}
    assert changed
    assert all("lora_" in name for name in changed)


def test_hard_tokens_need_nothing_of_ours(tmp_path):
    """A stock model, collator and loss."""
    model, farzi = tiny_model("gpt2"), tiny_summary()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    Trainer(model=model, args=arguments(tmp_path), train_dataset=farzi.as_hard_dataset(2)).train()
    assert any(not torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_attaching_twice_is_once_and_survives_a_copy():
    model = attach_soft_inputs(attach_soft_inputs(tiny_model("gpt2")))
    assert (len(model._forward_pre_hooks), len(model._forward_hooks)) == (2, 1)
    soft = torch.softmax(torch.randn(2, LENGTH, V), -1)
    assert torch.equal(copy.deepcopy(model).eval()(soft).logits, model.eval()(soft).logits)


def test_positional_arguments_after_the_tokens_keep_their_place():
    model = attach_soft_inputs(tiny_model(RNNConfig.model_type)).eval()
    soft = torch.softmax(torch.randn(2, LENGTH, V), -1)
    assert torch.equal(model(soft, torch.ones(2, LENGTH)).logits, model(soft).logits)


def test_gradients_reach_the_soft_tokens_through_input_and_target():
    model = attach_soft_inputs(tiny_model("llama"))
    soft = torch.softmax(torch.randn(2, LENGTH, V), -1).requires_grad_()
    soft_cross_entropy(model(input_ids=soft), soft.detach()).backward()
    assert soft.grad[:, 0].abs().sum() > 0
    assert soft.grad[:, -1].abs().sum() == 0  # the last position predicts nothing


@pytest.mark.parametrize("kind", sorted(CONFIGS))
def test_the_stock_trainer_sees_the_gradient_of_the_inner_loop(kind):
    """The row of the padding included, which the head of some families shares and trains."""
    model, soft = tiny_model(kind), tiny_summary()(torch.arange(3)).detach()
    learner = Learner(model)
    theta = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    expected = torch.autograd.grad(
        learner.soft_loss(theta, SoftTokens(soft.log(), None)),
        list(theta.values()),
        materialize_grads=True,
    )
    model = attach_soft_inputs(model).eval()
    soft_cross_entropy(model(input_ids=soft), soft).backward()
    for (name, p), gradient in zip(model.named_parameters(), expected, strict=True):
        found = torch.zeros_like(p) if p.grad is None else p.grad
        torch.testing.assert_close(
            found, gradient, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_one_hot_is_exact_in_half_precision_and_under_autocast():
    model = attach_soft_inputs(tiny_model("llama").to(torch.bfloat16)).eval()
    ids = torch.randint(V, (2, LENGTH))
    soft = F.one_hot(ids, V).float()
    outputs = model(input_ids=soft)
    assert torch.equal(outputs.logits, model(input_ids=ids).logits)
    assert soft_cross_entropy(outputs, soft).dtype == torch.float32
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(model(input_ids=soft).logits, model(input_ids=ids).logits)


@old_name
@pytest.mark.parametrize("labels", ["shared", "own"])
@pytest.mark.parametrize("kind", ["gpt2", "sasrec", "mamba", "lora"])
def test_a_trainer_without_our_loss_trains_on_the_soft_labels_too(kind, labels, tmp_path, request):
    """It would train on the likeliest id of each."""
    start = request.getfixturevalue("lora") if kind == "lora" else tiny_model(kind)
    farzi, trained = (
        FarziData(
            FarziDataConfig(
                8,
                LENGTH,
                4,
                V,
                labels=labels,
                inputs="soft",
                label_dim=4 if labels == "own" else None,
            )
        ),
        [],
    )
    for loss in ({"compute_loss_func": soft_cross_entropy}, {}):
        args = arguments(tmp_path, gradient_accumulation_steps=2, per_device_train_batch_size=2)
        model = attach_soft_inputs(copy.deepcopy(start))
        trainer = Trainer(
            model=model,
            args=args,
            train_dataset=farzi.as_dataset(),
            data_collator=farzi.collator(),
            **loss,
        )
        trainer.train()
        trained.append([dict(model.named_parameters()), trainer.state.log_history[0]["loss"]])
    torch.testing.assert_close(*trained)


def test_a_trainer_without_the_collator_says_so(tmp_path):
    """It gave the latents to the model, and the error spoke of the vocabulary alone."""
    farzi = tiny_summary()
    trainer = Trainer(
        attach_soft_inputs(tiny_model("gpt2")),
        arguments(tmp_path),
        train_dataset=farzi.as_dataset(),
    )
    with pytest.raises(ValueError, match=r"give Trainer data_collator=farzi\.collator\(\)"):
        trainer.train()


def test_division_by_num_items_in_batch():
    outputs = CausalLMOutput(logits=torch.randn(2, LENGTH, V))
    ids = torch.randint(V, (2, LENGTH))
    ids[0, 3:] = -100
    mean = soft_cross_entropy(outputs, ids)
    count = (ids[:, 1:] != -100).sum()
    torch.testing.assert_close(
        soft_cross_entropy(outputs, ids, num_items_in_batch=2 * count), mean / 2
    )
    torch.testing.assert_close(
        soft_cross_entropy(outputs, ids, num_items_in_batch=2 * int(count)), mean / 2
    )


def test_a_summary_of_another_vocabulary_and_missing_labels_are_refused(tmp_path):
    trainer = soft_trainer(tiny_model("gpt2"), tiny_summary(vocab_size=V + 2), arguments(tmp_path))
    with pytest.raises(ValueError, match=r"soft tokens over 15 entries, but the model's .* 13"):
        trainer.train()
    with pytest.raises(ValueError, match="labels is None"):
        soft_cross_entropy(CausalLMOutput(logits=torch.randn(2, LENGTH, V)), None)
