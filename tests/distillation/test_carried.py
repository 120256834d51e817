"""Distillation of a summary that carries its teacher: the exact meta-gradient in the teacher's
weights, packing, resume.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from itertools import chain

import pytest
import torch
from datasets import Dataset
from meta_problems import relative_error
from tiny_trainer import SETTINGS, SignalAt, tensors, tiny_learner, tiny_trainer
from transformers import GPT2Config, GPT2LMHeadModel

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.distillation import Learner, MetaMatching, SyntheticTraining
from farzi_hf.distillation.mean_prediction import MeanPrediction
from farzi_hf.distillation.packing import Packing, Rounding
from farzi_hf.distillation.run import Interrupted
from farzi_hf.distillation.teacher import Teacher, TeacherTraining
from farzi_hf.engine import Checkpoint, Direct, InnerAdam, Reversible, Tape
from farzi_hf.models import RNNConfig
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.tensor_file import STORAGES
from farzi_hf.summary.student_starts import STUDENT_STARTS

V, XI, T = 11, 5, 6
CARRIED = {
    "inputs": "drawn",
    "labels": "teacher",
    "storage": "coded5",
    "teacher_steps": 20,
    "teacher_batch_size": 8,
    "packing_steps": 10,
    "inner_betas": [0.7, 0.95],
    "inner_lr_scheduler_type": "warmup_stable_decay",
}


def gpt2(width: int = 8) -> GPT2LMHeadModel:
    config = GPT2Config(
        vocab_size=V,
        n_positions=8,
        n_embd=width,
        n_layer=1,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.3,
        attn_implementation="eager",
    )
    return GPT2LMHeadModel(config)


@pytest.fixture(scope="module")
def farzi() -> FarziData:
    torch.manual_seed(0)
    return FarziData.from_teacher(
        gpt2(), sequence_length=XI, frequencies=torch.arange(V), storage="int5", seed=3
    ).double()


@pytest.fixture(scope="module")
def learner() -> Learner:
    return Learner(lambda: gpt2().double())


BATCH = {
    "input_ids": torch.tensor([[1, 4, 9, 2], [3, 3, 7, 10]]),
    "labels": torch.tensor([[1, 4, 9, 2], [3, 3, 7, 10]]),
}


def meta_gradient(farzi, learner, adjoint, window=None, rounding=None):
    training = SyntheticTraining(
        InnerAdam(0.05, (0.7, 0.95), 1e-2), farzi.forms, 3, window, adjoint
    )
    leaves = {
        name: x.detach().clone().requires_grad_(x.is_floating_point())
        for name, x in farzi.tensors.items()
    }
    loss = MetaMatching(training, T, T)(learner, rounding(leaves) if rounding else leaves, BATCH, 0)
    names = [name for name in leaves if name.startswith("teacher.")]
    return loss.detach(), dict(
        zip(names, torch.autograd.grad(loss, [leaves[name] for name in names]), strict=True)
    )


@pytest.mark.parametrize(
    "adjoint", [Tape(), Checkpoint(slots=2), Reversible()], ids=lambda x: type(x).__name__
)
@pytest.mark.parametrize("window", [None, 2])
def test_the_meta_gradient_in_the_teachers_weights_equals_direct(farzi, learner, adjoint, window):
    (expected, by_autograd), (loss, ours) = (
        meta_gradient(farzi, learner, a, window) for a in (Direct(), adjoint)
    )
    tolerance = 1e-6 if isinstance(adjoint, Reversible) else 1e-9
    torch.testing.assert_close(loss, expected, rtol=tolerance, atol=0)
    assert max(g.abs().max() for g in ours.values()) > 1e-4
    assert relative_error(list(ours.values()), list(by_autograd.values())) < tolerance


def test_the_meta_gradient_equals_finite_differences(farzi, learner):
    _, gradient = meta_gradient(farzi, learner, Tape())
    generator, step = torch.Generator().manual_seed(1), 1e-6
    direction = {
        name: torch.randn(g.shape, generator=generator).double() for name, g in gradient.items()
    }
    losses = []
    for sign in (1, -1):
        moved = FarziData(
            farzi.config,
            None,
            {n: x.detach() + sign * step * direction.get(n, 0) for n, x in farzi.tensors.items()},
        )
        losses.append(meta_gradient(moved.double(), learner, Tape())[0])
    slope = sum((gradient[name] * d).sum() for name, d in direction.items())
    torch.testing.assert_close((losses[0] - losses[1]) / (2 * step), slope, rtol=1e-6, atol=1e-8)


def test_a_stream_teaches_what_fixed_rows_with_the_same_ids_teach(farzi, learner):
    """θ_T of the stream's first rows equals that of the fixed form, read in the same order."""
    optimizer, start = InnerAdam(0.05, (0.7, 0.95), 1e-2), learner.initial_parameters(1)
    stream = SyntheticTraining(optimizer, farzi.forms, 4)
    theta = stream(learner, farzi.tensors, start=start, steps=1, seed=farzi.config.seed)
    fixed = farzi.materialize(4)
    expected = SyntheticTraining(optimizer, fixed.forms)(
        learner, fixed.tensors, start=start, steps=1, seed=9
    )
    for name, x in theta.items():
        torch.testing.assert_close(x, expected[name], rtol=1e-8, atol=1e-10)


def test_outer_steps_round_as_the_file_does(farzi, learner):
    """The outer loss is that of the rounded teacher, and weights inside the clamp get the gradient
    of the rounded ones.
    """
    raw, rounding = (
        FarziData(farzi.config, None, {n: x.detach().clone() for n, x in farzi.tensors.items()}),
        Rounding(),
    )
    rounding.start(raw, "int5")
    with torch.no_grad():
        for name, scale in rounding.scales.items():
            raw.tensors[name].add_(0.3 * scale)  # less than half a step: the rounded numbers stay
    loss, gradient = meta_gradient(raw, learner, Tape(), rounding=rounding)
    expected, of_rounded = meta_gradient(farzi, learner, Tape())
    torch.testing.assert_close(loss, expected, rtol=1e-9, atol=0)
    for name, g in gradient.items():
        inside = (raw.tensors[name] / rounding.scales.get(name, 1.0)).abs() <= STORAGES[
            "int5"
        ].largest
        torch.testing.assert_close(g[inside], of_rounded[name][inside], rtol=1e-6, atol=1e-9)
    rounding.finish(raw)
    for name, x in farzi.tensors.items():
        torch.testing.assert_close(raw.tensors[name], x, rtol=1e-12, atol=1e-12)


def test_a_trainer_carries_its_packed_teacher(sequences, tokenizer, tmp_path):
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, **{**CARRIED, "max_steps": 0})
    trainer.train()
    farzi = trainer.model
    kept = STORAGES["coded5"].rounded({name: x.detach() for name, x in farzi.tensors.items()})
    assert all(torch.equal(kept[name], x) for name, x in farzi.tensors.items())
    counts = torch.bincount(
        torch.tensor([*chain(*sequences["train"]["input_ids"])]), minlength=len(tokenizer)
    )
    assert torch.equal(farzi.frequencies > 0, counts > 0)
    before = trainer.evaluate()["eval_loss"]
    assert before < torch.log(torch.tensor(float(len(tokenizer))))
    trainer.save_model()
    again = FarziData.from_pretrained(tmp_path)
    assert again.fingerprint() == farzi.fingerprint()
    assert again.results.metrics["eval_loss"] == before


def test_students_of_an_evaluation_begin_as_the_setting_says(sequences, tokenizer, tmp_path):
    """By default with the teacher's tables; where there are outer steps, at random, as the learners
    of these do.
    """
    losses = {}
    for start in (None, "teacher", "random"):
        settings = {**CARRIED, "max_steps": 0, "student_start": start, "inner_steps": 2}
        trainer = tiny_trainer(tmp_path / str(start), sequences, tokenizer, **settings)
        trainer.train()
        losses[start] = trainer.evaluate()["eval_loss"]
        student = trainer.students.on_summary(0)
        fresh = trainer.students.beginning(0)[0]
        name = "transformer.wte.weight"
        begins_with_tables = not torch.equal(
            fresh[name], trainer.learner.initial_parameters(0)[name]
        )
        assert begins_with_tables is (start != "random")
        trainer.save_model()
        loaded = FarziData.from_pretrained(tmp_path / str(start))
        assert loaded.config.inner["student_start"] == (start or "teacher")
        again = replace(trainer.students, farzi=loaded).on_summary(0)
        assert all(torch.equal(student[name], again[name]) for name in student)
    assert losses[None] == losses["teacher"] < losses["random"]
    outer = FarziConfig(str(tmp_path), **{**SETTINGS, **CARRIED})
    assert outer.max_steps > 0
    assert outer.student_start == outer.inner_settings()["student_start"] == "random"


def test_outer_steps_go_on_from_a_teacher_that_was_made_in_python(sequences, tokenizer, tmp_path):
    """Of another width than the learner's; its numbers stay what coded5 can hold."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=16, n_embd=8, n_layer=1, n_head=1)
    )
    farzi = FarziData.from_teacher(model, sequence_length=8, storage="coded5", tokenizer=tokenizer)
    before = farzi.fingerprint()
    trainer = tiny_trainer(
        tmp_path,
        sequences,
        tokenizer,
        {"farzi_data": farzi},
        **{**CARRIED, "learning_rate": 0.05, "max_steps": 2},
    )
    trainer.train()
    assert trainer.model is farzi
    assert farzi.fingerprint() != before
    assert farzi.config.storage == "coded5"
    kept = STORAGES["coded5"].rounded({name: x.detach() for name, x in farzi.tensors.items()})
    assert all(torch.equal(kept[name], x) for name, x in farzi.tensors.items())


def test_a_stream_makes_a_carried_teacher(sequences, tokenizer, tmp_path):
    stream = sequences["train"].to_iterable_dataset()
    trainer = tiny_trainer(
        tmp_path, sequences, tokenizer, {"train_dataset": stream}, **{**CARRIED, "max_steps": 0}
    )
    trainer.train()
    assert trainer.args.max_steps == 0
    assert trainer.state.global_step == 0
    assert trainer.model.nbytes < 4 * sum(x.numel() for x in trainer.model.teacher.parameters())


def test_packing_with_a_penalty_needs_fewer_bytes(sequences, tokenizer, tmp_path):
    sizes = []
    for penalty in (0.0, 2.0):
        settings = {**CARRIED, "max_steps": 0, "packing_penalty": penalty, "packing_steps": 60}
        trainer = tiny_trainer(tmp_path / str(penalty), sequences, tokenizer, **settings)
        trainer.train()
        sizes.append(trainer.model.nbytes)
    assert sizes[1] < 0.8 * sizes[0]


def test_packing_does_not_end_because_its_first_steps_are_worse(
    sequences, tokenizer, tmp_path, monkeypatch
):
    """Few bits and a rate that is high again cost a trained model something at first. The packing
    once went back to its first steps then, and packed a text .06 nats worse than it could.
    """
    judged = itertools.count()

    def rises_at_first(params):
        each = next(judged)
        return 5.0 + each if each < 15 else 4.0 - each / 100

    monkeypatch.setattr(TeacherTraining, "validation", lambda *_: rises_at_first)
    learner = GPT2LMHeadModel(
        GPT2Config(vocab_size=len(tokenizer), n_positions=128, n_embd=8, n_layer=1, n_head=1)
    )
    settings = {**CARRIED, "max_steps": 0, "packing_steps": 40}
    given = {"teacher": learner, "eval_dataset": sequences["validation"]}
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, given, **settings)
    training = trainer.args.make_teacher_training()
    _, packed = trainer.labelling.pack(trainer.model, trainer.real_data, trainer.args, training)
    assert packed.steps == packed.end == 40


def test_storing_a_packed_teacher_changes_no_matrix(sequences, tokenizer, tmp_path):
    """Its scales have the precision of the file, so what was measured is what is saved."""
    settings = {**CARRIED, "max_steps": 0}
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, **settings)
    trainer.tune_initialization()
    packed = trainer.model.tensors
    stored = STORAGES["coded5"].rounded(packed)
    matrices = [name for name, x in packed.items() if name.startswith("teacher.") and x.dim() > 1]
    assert len(matrices) > 3
    for name in matrices:
        assert torch.equal(stored[name], packed[name]), name


SEVERAL = {**CARRIED, "max_steps": 0, "num_teachers": 3, "teacher_steps": 40}


def test_of_several_teachers_the_first_is_carried_and_stands_for_all(
    sequences, tokenizer, tmp_path
):
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, **SEVERAL)
    farzi, args = trainer.model, trainer.args
    data = replace(trainer.real_data, held_out=None, quiet=True)
    training = args.make_teacher_training()
    teachers = trainer.labelling.teachers(data, training, 0)
    assert len(teachers) == 3
    batch = data.batch(data.rows())
    targets = MeanPrediction(teachers)(batch)
    entropy = targets.cross_entropy(targets.logits()).mean()

    def distance(steps: int, *taught_by: Teacher) -> float:
        """From what all predict on average."""
        Packing(0.0, steps)(farzi, taught_by, data, training, "coded6", 0)
        params = {name: x.detach() for name, x in farzi.teacher.named_parameters()}
        loss = Learner(farzi.teacher).hard_loss(params, {**batch, "targets": targets})
        return float(loss - entropy)

    first = distance(0, *teachers)
    assert 0 < distance(100, *teachers) < 0.5 * first
    assert distance(100, teachers[0]) > 0.5 * first


@pytest.mark.parametrize("given", [{"storage": "exact"}, {"packing_steps": 0}])
def test_several_teachers_that_could_not_be_packed_are_refused_first(
    sequences, tokenizer, tmp_path, given
):
    with pytest.raises(ValueError, match=r"learns in its packing .* or give one teacher"):
        tiny_trainer(tmp_path, sequences, tokenizer, **{**SEVERAL, **given})
    tiny_trainer(tmp_path, sequences, tokenizer, **{**SEVERAL, **given, "num_teachers": 1})


def test_several_kinds_without_a_mean_are_refused_before_they_train(sequences, tokenizer, tmp_path):
    kinds = [tiny_learner(len(tokenizer)), tiny_learner(len(tokenizer) + 1)]
    with pytest.raises(ValueError, match="have no mean; give teachers over the same"):
        tiny_trainer(tmp_path, sequences, tokenizer, {"teacher": kinds}, **SEVERAL)


def test_a_summary_carries_the_first_of_several_kinds(sequences, tokenizer, tmp_path):
    kinds = [tiny_learner(len(tokenizer)), RNNConfig(vocab_size=len(tokenizer), hidden_size=8)]
    trainer = tiny_trainer(
        tmp_path, sequences, tokenizer, {"teacher": kinds}, **{**SEVERAL, "num_teachers": 1}
    )
    trainer.train()
    assert trainer.model.teacher.config.model_type == kinds[0].model_type


def test_several_teachers_are_packed_the_same_each_time(sequences, tokenizer, tmp_path):
    settings = {**SEVERAL, "packing_steps": 8}
    made = [tiny_trainer(tmp_path / name, sequences, tokenizer, **settings) for name in ("a", "b")]
    for trainer in made:
        trainer.train()
    for ours, theirs in zip(*map(tensors, made), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("inputs", [pytest.param("drawn", marks=pytest.mark.slow), "written"])
def test_a_resumed_run_is_the_same_bit_for_bit(sequences, tokenizer, tmp_path, inputs):
    settings = {
        **CARRIED,
        "inputs": inputs,
        "learner_pool": 2,
        "window": 1,
        "student_start": "teacher",
    }
    whole = tiny_trainer(tmp_path / "whole", sequences, tokenizer, **settings)
    whole.train()
    broken = tiny_trainer(
        tmp_path / "broken",
        sequences,
        tokenizer,
        {"callbacks": [SignalAt("SIGTERM", 2)]},
        **settings,
    )
    with pytest.raises(Interrupted):
        broken.train()
    resumed = tiny_trainer(tmp_path / "broken", sequences, tokenizer, **settings)
    resumed.train(resume_from_checkpoint=True)
    for ours, theirs in zip(tensors(resumed), tensors(whole), strict=True):
        assert torch.equal(ours, theirs)
    assert resumed.model.student_start is STUDENT_STARTS["teacher"]
    assert resumed.evaluate() == whole.evaluate()
    start = tiny_trainer(tmp_path / "start", sequences, tokenizer, **{**settings, "max_steps": 0})
    start.train()
    assert start.model.fingerprint() != whole.model.fingerprint()


def test_bad_settings(tmp_path, sequences, tokenizer):
    with pytest.raises(ValueError, match="need inputs of"):
        FarziConfig(str(tmp_path), **{**SETTINGS, **CARRIED, "inputs": "soft"})
    rows = Dataset.from_dict({"input_ids": [[1, 2, 3]] * 80})
    args = FarziConfig(str(tmp_path), **{**SETTINGS, **CARRIED, "torch_compile": True})
    trainer = FarziTrainer(tiny_learner(len(tokenizer)), args, rows, processing_class=tokenizer)
    with pytest.raises(ValueError, match="torch_compile"):
        trainer.train()


def dropping(vocab_size: int) -> GPT2Config:
    return GPT2Config(
        vocab_size=vocab_size,
        n_positions=64,
        n_embd=16,
        n_layer=1,
        n_head=2,
        bos_token_id=2,
        eos_token_id=3,
    )


@pytest.mark.parametrize("adjoint", ["tape", "reversible"])
def test_a_teacher_labels_without_dropout_while_the_trainer_trains(
    sequences, tokenizer, tmp_path, adjoint
):
    """Trainer sets the summary into training mode, and so it set the teacher: labels were another
    draw in each reading.
    """
    settings = {
        **CARRIED,
        "storage": "exact",
        "inner_optimizer": "adam",
        "adjoint": adjoint,
        "max_steps": 2,
    }
    trainer = tiny_trainer(
        tmp_path, sequences, tokenizer, {"learner_init": dropping(len(tokenizer))}, **settings
    )
    modes, loss = [], trainer.compute_loss
    trainer.compute_loss = lambda *args, **kwargs: (
        modes.append(trainer.model.teacher.training) or loss(*args, **kwargs)
    )
    trainer.train()
    assert (trainer.model.training, modes) == (True, [False, False])
    assert trainer.run.non_finite_steps == 0
    first, second = (trainer.evaluate() for _ in range(2))
    assert first["eval_loss"] == second["eval_loss"]
    assert not trainer.model.collator().forms.labels.model.training


class Scaled(GPT2LMHeadModel):
    """A model that its config does not describe."""

    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = 2 * output.logits
        return output


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # which peft asks for
@pytest.mark.parametrize(
    ("init", "message"),
    [
        (
            lambda: Scaled(dropping(54)),
            (
                "teacher: a model with its config and parameters predicts otherwise; give a plain"
                " one, or labels='own'"
            ),
        ),
        (
            lambda: peft_model(dropping(54)),
            "teacher: its config makes other parameters .*; give a plain one, or labels='own'",
        ),
    ],
    ids=["scaled", "lora"],
)
def test_a_teacher_that_its_config_does_not_make_is_refused_before_it_trains(
    sequences, tokenizer, tmp_path, init, message
):
    assert len(tokenizer) == 54
    with pytest.raises(ValueError, match=message):
        tiny_trainer(tmp_path, sequences, tokenizer, {"learner_init": init}, **CARRIED, max_steps=0)


def peft_model(config: GPT2Config):
    peft = pytest.importorskip("peft")
    return peft.get_peft_model(
        GPT2LMHeadModel(config),
        peft.LoraConfig(task_type="CAUSAL_LM", r=2, target_modules=["c_attn"], fan_in_fan_out=True),
    )
