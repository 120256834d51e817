"""Learners of which only some parameters train: chosen ones, adapters of PEFT,
pretrained starts.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from tiny_models import LENGTH, PAPER, V, config_of, tiny_model
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
from farzi_hf.engine import Direct, InnerAdam, Reversible, Tape
from farzi_hf.summary import FarziData, FarziDataConfig

peft = pytest.importorskip("peft")
# PEFT asks transformers for an attribute that has a new name there.
pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)
STEPS, OPTIMIZER = 4, InnerAdam(0.05, (0.5, 0.99), 1e-3)
BATCH = {"input_ids": torch.arange(12).view(2, 6), "labels": torch.arange(12).view(2, 6)}


def with_adapters(model: nn.Module) -> nn.Module:
    adapters = peft.LoraConfig(
        task_type="CAUSAL_LM", r=2, lora_alpha=4, target_modules=["c_attn"], fan_in_fan_out=True
    )
    return peft.get_peft_model(model, adapters, autocast_adapter_dtype=False)


def lora() -> nn.Module:
    """`tiny_model` sets a seed of its own; adapters are to follow the caller's."""
    state = torch.get_rng_state()
    model = tiny_model("gpt2")
    torch.set_rng_state(state)
    return with_adapters(model)


def head_alone(vocab_size: int = V) -> nn.Module:
    """Only the head trains; all else is drawn."""
    model = AutoModelForCausalLM.from_config(
        config_of("gpt2", vocab_size, tie_word_embeddings=False)
    )
    model.requires_grad_(False)
    model.lm_head.requires_grad_(True)
    return model


def summary(vocab_size: int = V) -> FarziData:
    torch.manual_seed(1)
    return FarziData(FarziDataConfig(4, LENGTH, 4, vocab_size, latent_std=1.0))


def trained(params: dict[str, Tensor], start: dict[str, Tensor]) -> set[str]:
    return {name for name, x in params.items() if not torch.equal(x, start[name])}


@pytest.mark.parametrize("adjoint", [Tape(), Reversible()], ids=["tape", "reversible"])
def test_the_meta_gradient_of_adapters_is_exact(adjoint):
    learner, farzi = Learner(lambda: lora().double()), summary().double()
    start = learner.initial_parameters(0)
    few = {name for name, x in start.items() if not isinstance(x, nn.Parameter)}
    assert len(few) == 2
    assert all("lora_" in name for name in few)

    def result(kind) -> tuple[Tensor, ...]:
        found = SyntheticTraining(OPTIMIZER, PAPER, adjoint=kind)(
            learner, farzi.tensors, start=start, steps=STEPS, seed=0
        )
        assert trained(found, start) == few
        loss = learner.hard_loss(found, BATCH)
        return loss, *torch.autograd.grad(loss, [farzi.latents, farzi.decoder])

    tolerance = 1e-4 if isinstance(adjoint, Reversible) else 1e-9
    for ours, expected in zip(result(adjoint), result(Direct()), strict=True):
        assert expected.norm() > 0
        assert (ours - expected).norm() < tolerance * expected.norm()


def test_adapters_of_a_base_in_bfloat16():
    """The base and its head are bfloat16 and constant, the adapters and the summary are float32."""
    farzi, found = summary(), []
    for change in (lambda model: model.bfloat16(), lambda model: model.bfloat16().float()):

        def half(change=change) -> nn.Module:
            adapters = peft.LoraConfig(
                task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True
            )
            return peft.get_peft_model(
                change(tiny_model("gpt2")), adapters
            )  # in float32, as PEFT does it

        learner = Learner(half)
        training = SyntheticTraining(OPTIMIZER, PAPER, adjoint=Tape())
        theta = training(
            learner, farzi.tensors, start=learner.initial_parameters(0), steps=STEPS, seed=0
        )
        found.append(
            torch.autograd.grad(learner.hard_loss(theta, BATCH), [farzi.latents, farzi.decoder])
        )
    for a, b in zip(*found, strict=True):
        assert torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.98


def test_constants_that_start_equal_are_one_in_memory_and_drawn_ones_belong_to_their_seed():
    first, second = map(Learner(lora).initial_parameters, (1, 2))
    for name, x in first.items():
        assert (x is second[name]) == ("lora_" not in name)
    assert not torch.equal(
        *(x["transformer.h.0.attn.c_attn.lora_A.default.weight"] for x in (first, second))
    )
    first, second, again = (
        x["transformer.wte.weight"] for x in map(Learner(head_alone).initial_parameters, (1, 2, 1))
    )
    assert not torch.equal(first, second)
    assert torch.equal(first, again)
    assert not first.requires_grad


@pytest.mark.parametrize("make", [lora, head_alone])
def test_learners_keep_their_constants(make):
    learner, farzi = Learner(make), summary()
    training = SyntheticTraining(OPTIMIZER, PAPER, window=2)
    start = learner.initial_parameters(3)
    end = training(learner, farzi.tensors, start=start, steps=STEPS, seed=3)
    few = {name for name, x in learner.model.named_parameters() if x.requires_grad}
    assert trained(end, start) == few
    loss = MetaMatching(training, STEPS, STEPS)(learner, farzi.tensors, BATCH, 3)
    assert torch.autograd.grad(loss, farzi.latents)[0].norm() > 0
    GradientMatching(training, STEPS)(learner, farzi.tensors, BATCH, 3).backward()


def test_a_pool_goes_on_with_the_constants_of_each_learner():
    learner, farzi = Learner(head_alone), summary()
    make = partial(
        LearnerPool, SyntheticTraining(OPTIMIZER, PAPER, window=1), 2, 2, 5, random_starts, 7
    )
    first, second = make(), make()
    for _ in range(3):
        first(learner, farzi.tensors)
    second.load_state_dict(first.state_dict(), learner, "cpu")
    for _ in range(2):
        ours, theirs = second(learner, farzi.tensors), first(learner, farzi.tensors)
        assert all(torch.equal(ours[name], x) for name, x in theirs.items())


@pytest.mark.parametrize("kind", ["adapters", "head"])
def test_recorded_trainings_and_teachers_train_only_the_chosen(
    tmp_path, sequences, tokenizer, kind
):
    size = len(tokenizer)
    AutoModelForCausalLM.from_config(tiny_learner(size)).save_pretrained(
        folder := str(tmp_path / "pretrained")
    )
    adapted = lambda: with_adapters(AutoModelForCausalLM.from_pretrained(folder))  # noqa: E731
    learner = Learner(adapted if kind == "adapters" else partial(head_alone, size))
    few = {name for name, x in learner.model.named_parameters() if x.requires_grad}
    bank = record_trajectories(
        learner,
        InnerAdam(0.01),
        sequences["train"],
        SequenceCollator(),
        tmp_path / "omega",
        num=2,
        steps=4,
        save_every=2,
        batch_size=20,
        seed=0,
    )
    stored = bank.checkpoint(0, 4).keys()
    assert few <= stored
    assert ("transformer.wte.weight" in stored) == (kind == "head")  # drawn, and so not shared
    start = PretrainedStarts(bank, fresh=0.0)(learner, 1)
    assert {name for name, x in start.items() if not isinstance(x, nn.Parameter)} == few
    farzi, training = summary(size), SyntheticTraining(OPTIMIZER, PAPER)
    assert trained(training(learner, farzi.tensors, start=start, steps=2, seed=0), start) == few
    loss = TrajectoryMatching(training, bank, 2, 2)(learner, farzi.tensors, {}, 0)
    assert torch.autograd.grad(loss, farzi.latents)[0].norm() > 0
    data = RealData(sequences["train"], SequenceCollator(), quiet=True)
    taught = TeacherTraining(InnerAdam(0.01), 2, 20).train(learner, data, 5).params
    assert {name for name, x in taught.items() if not isinstance(x, nn.Parameter)} == few


def test_a_pretrained_folder_distils(tmp_path, sequences, tokenizer):
    AutoModelForCausalLM.from_config(tiny_learner(len(tokenizer))).save_pretrained(
        tmp_path / "pretrained"
    )
    load = partial(
        AutoModelForCausalLM.from_pretrained, tmp_path / "pretrained", dtype=torch.float32
    )
    trainer = tiny_trainer(
        tmp_path / "out", sequences, tokenizer, {"learner_init": load}, max_steps=2
    )
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
