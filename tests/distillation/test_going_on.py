"""Resumes after which something is elsewhere or other than before, in the same process or in a new one."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_trainer import tensors, tiny_learner, tiny_trainer
from transformers import DataCollatorForLanguageModeling
from transformers.trainer_callback import TrainerCallback

from farzi_hf.distillation import Learner, record_trajectories
from farzi_hf.engine import InnerAdam

SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


class StopOnceAt(TrainerCallback):
    """Ends a training early."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop |= state.global_step == self.step


def test_the_same_trainer_goes_on_with_the_settings_that_its_args_have_now(make):
    trainer = make({"callbacks": [StopOnceAt(2)]}, **SAVED, weight_decay=0.1)
    trainer.train()
    trainer.args.learning_rate, trainer.args.weight_decay = 0.002, 0.3
    trainer.train(resume_from_checkpoint=True)
    rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
    assert rates == [0.05, 0.05, 0.002, 0.002]
    assert max(group["weight_decay"] for group in trainer.optimizer.param_groups) == 0.3


def test_a_run_goes_on_whose_learner_has_an_infinity_in_its_config(make, tokenizer):
    learner = tiny_learner(len(tokenizer))
    learner.time_step_limit = [0.0, math.inf]
    make({"learner_init": learner, "callbacks": [StopOnceAt(2)]}, **SAVED).train()
    resumed = make({"learner_init": learner}, **SAVED)
    resumed.train(resume_from_checkpoint=True)
    assert (resumed.changed, resumed.state.global_step) == ({}, 4)


def test_a_second_training_of_the_same_trainer_has_an_optimizer_of_its_own(make):
    trainer = make(max_steps=2)
    trainer.train()
    trainer.args.learning_rate = 0.002
    trainer.train()
    assert {group["initial_lr"] for group in trainer.optimizer.param_groups} == {0.002}
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {2}
    assert trainer._artefact()["recipe"]["learning_rate"] == 0.002


def test_other_arguments_of_the_optimizer_count_from_the_resume_on(make):
    make({"callbacks": [StopOnceAt(2)]}, **SAVED, optim="rmsprop", optim_args="momentum=0.1").train()
    trainer = make(**SAVED, optim="rmsprop", optim_args="momentum=0.7")
    trainer.train(resume_from_checkpoint=True)
    assert trainer.changed == {"optim_args": ["momentum=0.1", "momentum=0.7"]}
    assert {group["momentum"] for group in trainer.optimizer.param_groups} == {0.7}


def test_a_finished_run_knows_its_trajectories_in_another_place(make, tmp_path, sequences, tokenizer):
    def omega(name: str, seed: int) -> Path:
        learner, collator = Learner(tiny_learner(len(tokenizer))), DataCollatorForLanguageModeling(tokenizer, mlm=False)
        record_trajectories(
            learner, InnerAdam(lr=0.05, eps=1e-3), sequences["train"], collator, tmp_path / name, num=1, steps=2, save_every=2,
            batch_size=20, seed=seed,
        )  # fmt: skip
        return tmp_path / name

    first, other = omega("first", seed=0), omega("other", seed=1)
    whole = make(**SAVED, trajectories=str(first))
    whole.train()
    moved = make(**SAVED, trajectories=str(shutil.move(first, tmp_path / "moved")))
    moved.train(resume_from_checkpoint=True)
    assert all(map(torch.equal, tensors(moved), tensors(whole)))
    with pytest.raises(ValueError, match=r"trajectories_recorded \w+ → \w+: this change is too late"):
        make(**SAVED, trajectories=str(other)).train(resume_from_checkpoint=True)
