"""Learners of which only some parameters train: chosen ones, adapters of PEFT, pretrained starts."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tiny_models import LENGTH, V, config_of, tiny_model
from tiny_trainer import tiny_learner, tiny_trainer
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from farzi_hf.data import SequenceCollator
from farzi_hf.distillation import (
    GradientMatching,
    Learner,
    MetaMatching,
    PretrainedStarts,
    SyntheticTraining,
    random_starts,
    record_trajectories,
)
from farzi_hf.distillation.objectives import TrajectoryMatching
from farzi_hf.distillation.objectives.meta_matching import LearnerPool
from farzi_hf.distillation.rows import RealData
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.engine import InnerAdam, Reversible, Tape
from farzi_hf.summary import FarziData, FarziDataConfig

peft = pytest.importorskip("peft")
# PEFT asks transformers for an attribute that has a new name there.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
STEPS, OPTIMIZER = 4, InnerAdam(0.05, (0.5, 0.99), 1e-3)
BATCH = {"input_ids": torch.arange(12).view(2, 6), "labels": torch.arange(12).view(2, 6)}


def with_adapters(model: nn.Module) -> nn.Module:
    adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)


def lora(dtype: torch.dtype = torch.float64) -> nn.Module:
    return with_adapters(tiny_model("gpt2").to(dtype))


def lora_on_tiny_model() -> nn.Module:
    """`tiny_model` sets a seed of its own; adapters are to follow the caller's."""
    state = torch.get_rng_state()
    model = tiny_model("gpt2")
    torch.set_rng_state(state)
    return with_adapters(model)


def head_alone(vocab_size: int = V) -> nn.Module:
    """Only the head trains; all else is drawn."""
    model = AutoModelForCausalLM.from_config(config_of("gpt2", vocab_size, tie_word_embeddings=False))
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    return model


def summary(vocab_size: int = V) -> FarziData:
    torch.manual_seed(1)
    return FarziData(FarziDataConfig(4, LENGTH, 4, vocab_size, latent_std=1.0))


def trained(params: dict[str, Tensor], start: dict[str, Tensor]) -> set[str]:
    return {name for name, x in params.items() if not torch.equal(x, start[name])}


def merged(params: dict[str, Tensor], adapters: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights of the model without adapters: W + (α / r) (B A)ᵀ, for GPT-2's transposed weights."""
    weights = {}
    for name, x in params.items():
        if "lora_" in name:
            continue
        if ".base_layer.weight" in name:
            stem = name.removesuffix("base_layer.weight")
            a, b = (adapters[f"{stem}lora_{kind}.default.weight"] for kind in "AB")
            x = x + 2.0 * (b @ a).T
        weights[name.replace(".base_layer", "")] = x
    return weights


@pytest.mark.parametrize("adjoint", [Tape(), Reversible()], ids=["tape", "reversible"])
def test_the_inner_loop_of_adapters_is_that_of_the_merged_weights(adjoint):
    """Adam on A and B written out by autograd, on the plain model with W + s·BA; values and the gradient in the summary, float64."""
    learner, farzi = Learner(lora), summary().double()
    plain = tiny_model("gpt2").double().eval()
    plain.set_attn_implementation("eager")
    start = learner.initial_parameters(0)
    names = [name for name, x in start.items() if not isinstance(x, nn.Parameter)]
    assert len(names) == 2
    assert all("lora_" in name for name in names)

    found = SyntheticTraining(OPTIMIZER, 1.0, adjoint=adjoint)(learner, farzi.tensors, start=start, steps=STEPS, seed=0)
    assert trained(found, start) == set(names)
    loss = learner.hard_loss(found, BATCH)
    ours = torch.autograd.grad(loss, [farzi.latents, farzi.decoder])

    def full_loss(adapters: dict[str, Tensor]) -> Tensor:
        tokens = torch.softmax(farzi.latents @ farzi.decoder, -1)
        weights = merged(start, adapters)
        embeds = tokens @ weights["transformer.wte.weight"]
        logits = torch.func.functional_call(plain, weights, kwargs={"inputs_embeds": embeds}).logits[:, :-1]
        return -(tokens[:, 1:] * logits.log_softmax(-1)).sum(-1).mean()

    adapters = {name: start[name].clone().requires_grad_() for name in names}
    m = {name: torch.zeros_like(x) for name, x in adapters.items()}
    v = {name: torch.zeros_like(x) for name, x in adapters.items()}
    for t in range(1, STEPS + 1):
        gradients = torch.autograd.grad(full_loss(adapters), list(adapters.values()), create_graph=True)
        for name, g in zip(names, gradients, strict=True):
            m[name], v[name] = 0.5 * m[name] + 0.5 * g, 0.99 * v[name] + 0.01 * g * g
            root = (v[name] / (1 - 0.99**t) + 1e-300).sqrt()
            adapters[name] = adapters[name] - 0.05 * (m[name] / (1 - 0.5**t)) / (root + 1e-3)
    tolerance = 1e-4 if isinstance(adjoint, Reversible) else 1e-9
    for name in names:
        torch.testing.assert_close(found[name], adapters[name], rtol=tolerance, atol=tolerance)
    logits = torch.func.functional_call(plain, merged(start, adapters), kwargs={"input_ids": BATCH["input_ids"]}).logits
    expected = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), BATCH["labels"][:, 1:].flatten())
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=tolerance)
    for a, b in zip(ours, torch.autograd.grad(expected, [farzi.latents, farzi.decoder]), strict=True):
        assert b.norm() > 0
        assert (a - b).norm() < tolerance * b.norm()


def test_adapters_of_a_base_in_bfloat16():
    """The base and its head are bfloat16 and constant, the adapters and the summary are float32."""
    base = {"load": lambda: tiny_model("gpt2").to(torch.bfloat16)}

    def half() -> nn.Module:
        adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(base["load"](), adapters)  # in float32, as PEFT does it

    learner, farzi = Learner(half), summary()
    start = learner.initial_parameters(0)
    training = SyntheticTraining(OPTIMIZER, 1.0, adjoint=Tape())
    loss = learner.hard_loss(training(learner, farzi.tensors, start=start, steps=STEPS, seed=0), BATCH)
    ours = torch.autograd.grad(loss, [farzi.latents, farzi.decoder])
    base["load"] = lambda: tiny_model("gpt2").to(torch.bfloat16).float()
    learner = Learner(half)
    start = learner.initial_parameters(0)
    loss = learner.hard_loss(training(learner, farzi.tensors, start=start, steps=STEPS, seed=0), BATCH)
    for a, b in zip(ours, torch.autograd.grad(loss, [farzi.latents, farzi.decoder]), strict=True):
        assert torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.98


def test_constants_that_start_equal_are_one_in_memory():
    learner = Learner(lora_on_tiny_model)
    first, second = learner.initial_parameters(1), learner.initial_parameters(2)
    for name, x in first.items():
        assert (x is second[name]) == ("lora_" not in name)
    assert not torch.equal(*(x["transformer.h.0.attn.c_attn.lora_A.default.weight"] for x in (first, second)))


def test_constants_that_are_drawn_belong_to_their_seed():
    """A factory may draw what does not train, too."""
    learner = Learner(head_alone)
    first, second, again = (learner.initial_parameters(seed) for seed in (1, 2, 1))
    name = "transformer.wte.weight"
    assert not torch.equal(first[name], second[name])
    assert torch.equal(first[name], again[name])
    assert isinstance(first[name], nn.Parameter)
    assert not first[name].requires_grad


@pytest.mark.parametrize("make", [lora_on_tiny_model, head_alone])
def test_learners_keep_their_constants(make):
    learner, farzi = Learner(make), summary()
    training = SyntheticTraining(OPTIMIZER, 1.0, window=2)
    start = learner.initial_parameters(3)
    end = training(learner, farzi.tensors, start=start, steps=STEPS, seed=3)
    few = {name for name, x in learner.model.named_parameters() if x.requires_grad}
    assert trained(end, start) == few
    loss = MetaMatching(training, STEPS, STEPS)(learner, farzi.tensors, BATCH, 3)
    assert torch.autograd.grad(loss, farzi.latents)[0].norm() > 0
    GradientMatching(training, STEPS)(learner, farzi.tensors, BATCH, 3).backward()


def test_a_pool_goes_on_with_the_constants_of_each_learner():
    learner, farzi = Learner(head_alone), summary()
    make = partial(LearnerPool, SyntheticTraining(OPTIMIZER, 1.0, window=1), 2, 2, 5, random_starts, 7)
    first, second = make(), make()
    for _ in range(3):
        first(learner, farzi.tensors)
    second.load_state_dict(first.state_dict(), learner, "cpu")
    for _ in range(2):
        ours, theirs = second(learner, farzi.tensors), first(learner, farzi.tensors)
        assert all(torch.equal(ours[name], x) for name, x in theirs.items())


@pytest.mark.parametrize("kind", ["adapters", "head"])
def test_recorded_trainings_and_teachers_train_only_the_chosen(tmp_path, sequences, tokenizer, kind):
    size = len(tokenizer)
    base = AutoModelForCausalLM.from_config(tiny_learner(size))
    base.save_pretrained(tmp_path / "pretrained")
    folder = str(tmp_path / "pretrained")
    adapted = lambda: with_adapters(AutoModelForCausalLM.from_pretrained(folder))  # noqa: E731
    learner = Learner(adapted if kind == "adapters" else partial(head_alone, size))
    few = {name for name, x in learner.model.named_parameters() if x.requires_grad}
    bank = record_trajectories(
        learner, InnerAdam(0.01), sequences["train"], SequenceCollator(), tmp_path / "omega", num=2, steps=4, save_every=2,
        batch_size=20, seed=0,
    )  # fmt: skip
    stored = bank.checkpoint(0, 4).keys()
    drawn = {name for name in stored if name.endswith(("wte.weight", "wpe.weight", "c_attn.weight"))}
    assert few <= stored
    assert len(drawn) == (0 if kind == "adapters" else 3)
    start = PretrainedStarts(bank, fresh=0.0)(learner, 1)
    assert {name for name, x in start.items() if not isinstance(x, nn.Parameter)} == few
    farzi = summary(size)
    training = SyntheticTraining(OPTIMIZER, 1.0)
    assert trained(training(learner, farzi.tensors, start=start, steps=2, seed=0), start) == few
    loss = TrajectoryMatching(training, bank, 2, 2)(learner, farzi.tensors, {}, 0)
    assert torch.autograd.grad(loss, farzi.latents)[0].norm() > 0

    data = RealData(sequences["train"], SequenceCollator(), quiet=True)
    taught = TeacherTraining(InnerAdam(0.01), 2, 20).train(learner, data, 5)
    constant = {name for name, x in taught.items() if isinstance(x, nn.Parameter)}
    assert constant == taught.keys() - few
    if kind == "adapters":
        assert all(torch.equal(taught[name], learner.model.get_parameter(name)) for name in constant)


def test_a_pretrained_folder_distils(tmp_path, sequences, tokenizer):
    AutoModelForCausalLM.from_config(tiny_learner(len(tokenizer))).save_pretrained(tmp_path / "pretrained")
    load = partial(AutoModelForCausalLM.from_pretrained, tmp_path / "pretrained", dtype=torch.float32)
    trainer = tiny_trainer(tmp_path / "out", sequences, tokenizer, {"learner_init": load}, max_steps=2)
    start = trainer.learner.initial_parameters(1)
    assert all(torch.equal(start[name], x) for name, x in load().named_parameters())
    trainer.train()
    assert trainer.evaluate()["eval_perplexity"] > 1


def test_what_cannot_be_a_learner_is_refused():
    with pytest.raises(ValueError, match=r"with nothing to train; set requires_grad=True"):
        Learner(lambda: tiny_model("gpt2").requires_grad_(False))
    with pytest.raises(ValueError, match=r"trains in torch.bfloat16.*dtype=torch.float32"):
        Learner(lambda: tiny_model("gpt2").bfloat16())
    with pytest.raises(TypeError, match="learner_init is PeftModelForCausalLM; give a function"):
        Learner(lora())
