"""`config.inner`: its schedules, and a student of the stock Trainer that trains as the learners of
the distillation did.
"""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
import torch
from tiny_models import LENGTH, V, soft_trainer, tiny_model
from transformers import SchedulerType, TrainingArguments

from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.engine import OPTIMIZERS, InnerAdam, InnerAdamW, InnerSGD, InnerSoap
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.inner_settings import LR_SCHEDULES, lr_schedule

ADAM = {
    "optimizer": "adam",
    "lr": 0.02,
    "betas": [0.5, 0.99],
    "eps": 1e-3,
    "eps_root": 0.0,
    "weight_decay": 0.0,
}
SGD = {"optimizer": "sgd", "lr": 0.3, "momentum": 0.5, "weight_decay": 0.0}
SIZES = {"steps": 7, "synthetic_batch_size": 8}


def summary(inner, **form) -> FarziData:
    torch.manual_seed(1)
    return FarziData(FarziDataConfig(8, LENGTH, 4, V, latent_std=1.0, inner=inner, **form))


def student(farzi: FarziData, args: TrainingArguments) -> dict[str, torch.Tensor]:
    trainer = soft_trainer(
        tiny_model("gpt2"), farzi, args, optimizer_cls_and_kwargs=farzi.optimizer_cls_and_kwargs
    )
    trainer.train()
    return dict(trainer.model.named_parameters())


OWN = {"labels": "own", "label_dim": 2}
ADAMW = {**ADAM, "optimizer": "adamw", "weight_decay": 0.5, "max_grad_norm": 0.05}
ADAMW_LIKE = InnerAdamW(0.02, (0.5, 0.99), 1e-3, weight_decay=0.5, max_grad_norm=0.05)
LIKE = {
    "adam": (ADAM, InnerAdam(0.02, (0.5, 0.99), 1e-3)),
    "sgd": (SGD, InnerSGD(0.3, 0.5)),
    "adamw": (ADAMW, ADAMW_LIKE),
    "soap": (
        {**ADAMW, "optimizer": "soap"},
        InnerSoap(0.02, (0.5, 0.99), 1e-3, weight_decay=0.5, max_grad_norm=0.05),
    ),
}
WARM = {"warmup_steps": 3}
STUDENTS = [("adam", schedule, {}) for schedule in LR_SCHEDULES]
OTHERS = [(name, schedule, {}) for name in LIKE if name != "adam" for schedule in LR_SCHEDULES]
CORNERS = ("constant", "warmup_stable_decay")
STUDENTS += [
    each if each[1] in CORNERS else pytest.param(*each, marks=pytest.mark.slow) for each in OTHERS
]
STUDENTS += [("adam", "constant", WARM), ("adamw", "warmup_stable_decay", WARM)]
STUDENTS += [("adam", "constant", OWN), ("adam", "constant", {**OWN, "inputs": "tokens"})]


@pytest.mark.parametrize(("name", "schedule", "form"), STUDENTS)
def test_a_student_is_the_learner_of_the_inner_loop(tmp_path, name, schedule, form):
    """From the same start, on the same batches: all sequences in each step."""
    inner, optimizer = LIKE[name]
    warm = {name: form[name] for name in form if name == "warmup_steps"}
    farzi = summary(
        {**inner, **SIZES, "lr_scheduler_type": schedule, **warm}, **({} if warm else form)
    )
    model = tiny_model("gpt2")
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    training = SyntheticTraining(optimizer, farzi.forms, lr_scheduler_type=schedule, **warm)
    assert (
        replace(SyntheticTraining.of(farzi.config.inner, farzi.forms), batch_size=None) == training
    )
    learner = Learner(model)
    with torch.no_grad():
        expected = training(learner, farzi.tensors, start=start, steps=7, seed=0)
    found = student(farzi, farzi.training_arguments(tmp_path, use_cpu=True, disable_tqdm=True))
    assert not list(tmp_path.iterdir())
    assert max((found[name] - start[name]).abs().max() for name in start) > 0.05
    for name, parameter in expected.items():
        torch.testing.assert_close(found[name], parameter, rtol=1e-4, atol=1e-5)


def test_changes_go_first(tmp_path):
    changes = {"learning_rate": 0.5, "max_steps": 3, "optim": "sgd", "logging_steps": 1}
    args = summary({**ADAM, **SIZES}).training_arguments(tmp_path, use_cpu=True, **changes)
    assert {name: getattr(args, name) for name in changes} == changes
    assert args.per_device_train_batch_size == 8
    assert args.dataloader_pin_memory == (args.device.type != "cpu")


@pytest.mark.parametrize(
    ("changes", "steps"),
    [
        ({"num_train_epochs": 3}, 6),
        ({"num_train_epochs": 3, "max_steps": -1}, 6),
        ({"num_train_epochs": 4, "gradient_accumulation_steps": 2}, 4),
        ({"num_train_epochs": 3, "per_device_train_batch_size": 3}, 9),
        (
            {"num_train_epochs": 3, "per_device_train_batch_size": 3, "dataloader_drop_last": True},
            6,
        ),
        ({"max_steps": 5, "lr_scheduler_type": SchedulerType.WARMUP_STABLE_DECAY}, 5),
    ],
)
def test_a_schedule_is_one_of_the_steps_that_trainer_takes(tmp_path, changes, steps):
    inner = {**ADAM, **SIZES, "synthetic_batch_size": 4, "lr_scheduler_type": "warmup_stable_decay"}
    args = summary(inner).training_arguments(tmp_path, use_cpu=True, disable_tqdm=True, **changes)
    trainer = soft_trainer(tiny_model("gpt2"), summary(inner), args)
    trainer.train()
    assert trainer.state.global_step == steps
    assert args.lr_scheduler_kwargs["num_decay_steps"] == steps // 2


@pytest.mark.parametrize(
    "inner", [None, {}, ADAM, {"steps": 7}], ids=["none", "empty", "no steps", "no lr"]
)
def test_settings_that_the_summary_lacks_have_to_be_given(tmp_path, inner):
    farzi = summary(inner)
    with pytest.raises(ValueError, match=r"config\.inner=\{.* give learning_rate"):
        farzi.training_arguments(tmp_path)
    args = farzi.training_arguments(tmp_path, learning_rate=0.1, num_train_epochs=2, max_steps=4)
    assert (args.learning_rate, args.max_steps, args.max_grad_norm) == (0.1, 4, 0.0)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"betas": [0.9]}, r"config\.inner=\{.*\} is no adam: betas must be two numbers"),
        ({"lr": "fast"}, "is no adam: lr must be a finite number"),
        ({"optimizer": "lion"}, r"config\.inner\['optimizer'\]='lion' is none of adam, adamw, sgd"),
    ],
)
def test_settings_that_no_optimizer_has_are_refused(tmp_path, change, match):
    with pytest.raises(ValueError, match=match):
        summary({**ADAM, **SIZES, **change}).training_arguments(tmp_path)


class Signs(InnerSGD):
    def stock_settings(self) -> None:
        return None


def test_an_optimizer_that_trainer_lacks_is_refused_unless_another_is_given(tmp_path, monkeypatch):
    monkeypatch.setitem(OPTIMIZERS, "signs", Signs)
    farzi = summary({**SGD, **SIZES, "optimizer": "signs"})
    with pytest.raises(
        ValueError,
        match=(
            r"the inner optimizer of this summary, Signs, has no equal among Trainer's; give"
            r" optim=…"
        ),
    ):
        farzi.training_arguments(tmp_path)
    args = farzi.training_arguments(tmp_path, optim="sgd", learning_rate=0.5)
    assert (args.learning_rate, args.max_steps) == (0.5, 7)


def test_what_trainer_does_otherwise_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        summary({**ADAM, **SIZES}).training_arguments(tmp_path)
        assert not caplog.records
        summary({**ADAM, **SIZES, "weight_decay": 0.1}).training_arguments(
            tmp_path, weight_decay=0.0
        )
        assert not caplog.records
        summary({**ADAM, **SIZES, "weight_decay": 0.1, "eps_root": 1e-6}).training_arguments(
            tmp_path
        )
    assert "weight_decay=0.1, eps_root=1e-06" in caplog.text


def test_the_oldest_summaries_do_not_name_their_optimizer(tmp_path):
    args = summary({"lr": 0.02, **SIZES}).training_arguments(tmp_path)
    assert (args.optim, args.learning_rate) == ("adamw_torch", 0.02)


def test_a_last_incomplete_batch_is_said(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        summary({**ADAM, **SIZES}).training_arguments(tmp_path, per_device_train_batch_size=1)
        summary({**ADAM, **SIZES}).training_arguments(tmp_path, per_device_train_batch_size=10_000)
        assert not caplog.records
        farzi = summary({**ADAM, **SIZES})
        farzi.training_arguments(
            tmp_path, per_device_train_batch_size=farzi.config.num_sequences - 1
        )
    assert "does not divide" in caplog.text


# -- schedules -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("linear", [1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6]),
        ("warmup_stable_decay", [1.0, 1.0, 1.0, 1.0, 2 / 3, 1 / 3]),
    ],
)
def test_a_rate_falls_at_once_or_stays_for_half_of_the_steps(name, rates):
    rate = lr_schedule(name, 6)
    assert [rate(step) for step in range(1, 7)] == pytest.approx(rates)
    assert lr_schedule(name, 1)(1) == 1.0


def test_a_constant_rate_needs_no_schedule_and_an_unknown_one_is_refused():
    assert lr_schedule("constant", 4) is None
    with pytest.raises(
        ValueError, match=r"lr_scheduler_type must be one of 'constant', 'linear', .*, got 'steep'"
    ):
        lr_schedule("steep", 4)


def test_the_beginning_of_a_training_has_the_rates_of_the_whole():
    """One step of SGD of four moves the parameters as far as one step of one: the whole rate. Two
    of four move them by less than two of two.
    """
    torch.manual_seed(0)
    learner = Learner(tiny_model("gpt2"))
    farzi = FarziData(FarziDataConfig(4, LENGTH, 4, V, latent_std=1.0))
    training = SyntheticTraining(InnerSGD(0.1), farzi.forms, lr_scheduler_type="linear")
    start = learner.initial_parameters(0)

    def theta(steps: int, of_steps: int | None) -> torch.Tensor:
        params = training(
            learner, farzi.tensors, start=start, steps=steps, seed=0, of_steps=of_steps
        )
        return torch.cat([x.reshape(-1) for x in params.values()])

    assert torch.equal(theta(1, 4), theta(1, None))
    first, of_four, of_two = theta(1, None), theta(2, 4), theta(2, None)
    torch.testing.assert_close(
        (of_four - first) * 0.5, (of_two - first) * 0.75, rtol=1e-4, atol=1e-6
    )
