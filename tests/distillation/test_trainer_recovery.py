"""FarziTrainer where something goes wrong: interruptions, kills, gradients that are not finite; and over two processes."""

from __future__ import annotations

import shutil
import signal
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from full_disk import FullFile
from safetensors.torch import load_file
from tiny_trainer import PoisonedGradient, tensors, tiny_trainer
from trainer_runs import run
from transformers.trainer_callback import TrainerCallback

from farzi_hf.distillation.trainer import last_checkpoint

RESUMABLE = {"max_steps": 6, "save_strategy": "steps", "save_steps": 2}  # an epoch has 4 steps


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, sequences, tokenizer):
    trainer = tiny_trainer(tmp_path_factory.mktemp("uninterrupted"), sequences, tokenizer, **RESUMABLE)
    trainer.train()
    return trainer


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def assert_same_end(trainer, expected) -> None:
    """Latents, decoder, optimizer and logged losses, bit for bit."""
    ours, theirs = tensors(trainer), tensors(expected)
    assert len(ours) == len(theirs) == 2 + 2 * 3  # Adam: step, first and second moment of each
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert logged(trainer, "loss") == logged(expected, "loss")
    assert logged(trainer, "grad_norm") == logged(expected, "grad_norm")


def test_resuming_a_finished_run_takes_no_further_step(make):
    # of a constant rate, because a cosine ends at zero and would hide one step too many
    settings = {**RESUMABLE, "lr_scheduler_type": "constant"}
    finished = make(**settings)
    finished.train()
    again = make(**settings)
    assert again.train(resume_from_checkpoint=True).global_step == again.state.global_step == 6
    assert all(
        torch.equal(a, b)
        for a, b in zip(tensors(finished)[:2], (again.model.latents, again.model.decoder), strict=True)
    )
    assert logged(again, "loss") == logged(finished, "loss")


class InterruptAt(TrainerCallback):
    """Ctrl-C at the end of a step, once."""

    def __init__(self, step: int):
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.step = -1
            raise KeyboardInterrupt


# -- interruptions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 4])
def test_resuming_is_bit_identical(make, uninterrupted, step):
    """From the middle of the first epoch, and from its end."""
    trainer = make(**RESUMABLE)
    trainer.train(resume_from_checkpoint=f"{uninterrupted.args.output_dir}/checkpoint-{step}")
    assert_same_end(trainer, uninterrupted)


@pytest.mark.parametrize(
    "settings", [{"gradient_accumulation_steps": 2, "per_device_train_batch_size": 20}, {"optim": "sgd"}]
)
def test_resuming_with_other_settings(make, settings):
    whole = make(**RESUMABLE, **settings)
    whole.train()
    trainer = make(**RESUMABLE, **settings)
    trainer.train(resume_from_checkpoint=f"{whole.args.output_dir}/checkpoint-2")
    assert all(torch.equal(a, b) for a, b in zip(tensors(trainer), tensors(whole), strict=True))
    assert logged(trainer, "loss") == logged(whole, "loss")


def test_resuming_in_the_same_process_after_ctrl_c(make, uninterrupted):
    """The interrupted trainer has already counted a micro-batch of the step that it resumes at."""
    interrupt = InterruptAt(step=5)
    trainer = make({"callbacks": [interrupt]}, **RESUMABLE)
    for interrupt.step in (5, 4):  # the second interruption is in the very step that the checkpoint is of
        with pytest.raises(KeyboardInterrupt):
            trainer.train(resume_from_checkpoint=last_checkpoint(trainer.args.output_dir))
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, uninterrupted)


def test_a_checkpoint_that_is_not_complete_is_passed_over(make, uninterrupted):
    trainer = make({"callbacks": [InterruptAt(step=5)]}, **RESUMABLE)
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    folder = Path(trainer.args.output_dir)
    assert last_checkpoint(folder) == str(folder / "checkpoint-4")
    (folder / "checkpoint-4" / "trainer_state.json").write_text('{"best_glo')
    assert last_checkpoint(folder) == str(folder / "checkpoint-2")
    (folder / "checkpoint-4" / "trainer_state.json").unlink()
    (folder / "checkpoint-best").mkdir()
    trainer = make(**RESUMABLE)
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, uninterrupted)
    assert last_checkpoint(folder) == str(folder / "checkpoint-6")


def test_resuming_needs_a_checkpoint(make):
    with pytest.raises(
        ValueError, match=r"resume_from_checkpoint=True, but output_dir=.* holds no complete checkpoint"
    ):
        make().train(resume_from_checkpoint=True)


def test_kill_9_while_a_checkpoint_is_written(make, uninterrupted):
    trainer = make(**RESUMABLE)
    folder = Path(trainer.args.output_dir)
    assert run(folder, RESUMABLE, die_while_saving=4) == [-signal.SIGKILL]
    assert (folder / "checkpoint-4" / "model.safetensors").exists()
    assert last_checkpoint(folder) == str(folder / "checkpoint-2")
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, uninterrupted)


def test_a_full_disk_is_named_while_a_checkpoint_is_written(make, monkeypatch):
    trainer = make(**RESUMABLE)

    def save(output_dir: str) -> None:
        if trainer.state.global_step == 4:
            monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(total=1000, used=1000, free=0))
            torch.save(torch.zeros(10_000), FullFile())
        original(output_dir)

    original, trainer._save_optimizer_and_scheduler = trainer._save_optimizer_and_scheduler, save
    with pytest.raises(OSError, match=r"the disk is full \(0 of its 1,000 bytes are free now\); make room .*out'"):
        trainer.train()
    assert last_checkpoint(trainer.args.output_dir) == f"{trainer.args.output_dir}/checkpoint-2"


# -- gradients that are not finite -----------------------------------------------------------------------------------


class Record(TrainerCallback):
    """Latents and decoder after each step."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model, **kwargs):
        self.steps.append([p.detach().clone() for p in model.parameters()])


def test_a_gradient_that_is_not_finite_is_skipped_and_counted(make):
    """In the third step, when the optimizer's moments would still move the summary."""
    record = Record()
    trainer = make({"callbacks": [record]}, max_steps=4, weight_decay=0.1)
    trainer.objective = PoisonedGradient(trainer.objective, calls=(2,))
    trainer.train()
    for before, after in zip(record.steps[1], record.steps[2], strict=True):
        assert torch.equal(before, after)
    for earlier, later in ((0, 1), (2, 3)):
        assert not torch.equal(record.steps[earlier][0], record.steps[later][0])
    assert logged(trainer, "non_finite_steps") == [0, 0, 1, 1]
    assert all(np.isfinite(logged(trainer, "loss")))
    assert all(torch.isfinite(x).all() for x in tensors(trainer))


def test_a_gradient_of_infinite_norm_is_skipped_and_counted(make):
    """Each of its entries is finite; clipping would make zeros of them, and the run would end well, having done nothing."""
    trainer = make(max_steps=4, tau=1e-30, max_non_finite=2, save_strategy="steps", save_steps=1)
    start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    message = "3 meta-gradients were not finite, more than max_non_finite=2; go on from .*smaller inner_learning_rate, learning_rate"
    with pytest.raises(FloatingPointError, match=message):
        trainer.train()
    assert logged(trainer, "non_finite_steps") == [1, 2]
    saved = load_file(Path(last_checkpoint(trainer.args.output_dir), "model.safetensors"))
    assert all(torch.equal(saved[name], before) for name, before in start.items())


def test_a_run_that_goes_on_counts_on(make):
    """Otherwise a run that is resumed now and then would skip any number of steps."""
    settings = {"max_steps": 2, "tau": 1e-30, "save_strategy": "steps", "save_steps": 1, "max_non_finite": 1}
    with pytest.raises(KeyboardInterrupt):
        make({"callbacks": [InterruptAt(1)]}, **settings).train()
    with pytest.raises(FloatingPointError, match="2 meta-gradients were not finite, more than max_non_finite=1"):
        make(**settings).train(resume_from_checkpoint=True)
    other = make(**settings, inner_learning_rate=0.001)
    assert (
        other.train(resume_from_checkpoint=True).global_step == 2
    )  # with one step that is skipped, of one that may be
    assert logged(other, "non_finite_steps")[-1] == 1


def test_steps_skipped_between_the_last_log_and_the_checkpoint_count(make):
    settings = {"max_steps": 4, "logging_steps": 4, "save_strategy": "steps", "save_steps": 3}
    first = make({"callbacks": [InterruptAt(3)]}, **settings)
    first.objective = PoisonedGradient(first.objective, calls=(0, 1))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = make(**settings)
    second.train(resume_from_checkpoint=True)
    assert logged(second, "non_finite_steps") == [2]


def test_other_settings_start_the_count_anew_for_good(make):
    """A later resume with the same settings counts on from there, not from the most that was ever logged."""
    settings = {"max_steps": 4, "tau": 1e-30, "save_strategy": "steps", "save_steps": 1, "max_non_finite": 2}
    with pytest.raises(KeyboardInterrupt):
        make({"callbacks": [InterruptAt(2)]}, **settings).train()
    other = {**settings, "inner_learning_rate": 0.001}
    with pytest.raises(KeyboardInterrupt):
        make({"callbacks": [InterruptAt(3)]}, **other).train(resume_from_checkpoint=True)
    last = make(**other)
    last.train(resume_from_checkpoint=True)
    assert logged(last, "non_finite_steps") == [1, 2, 1, 2]


@pytest.mark.parametrize("lost", [0, 2])
@pytest.mark.parametrize("every", [1, 4])
def test_a_loss_that_is_not_finite_shows_in_the_log(make, every, lost):
    """Alone as NaN; a mean is of the others."""
    trainer = make(max_steps=4, logging_steps=every)
    objective, losses = trainer.objective, []

    def sometimes_nan(*args):
        loss = objective(*args) * (float("nan") if len(losses) == lost else 1.0)
        losses.append(loss.item())
        return loss

    trainer.objective = sometimes_nan
    output = trainer.train()
    expected = losses if every == 1 else [np.nanmean(losses)]
    assert logged(trainer, "loss") == pytest.approx(expected, rel=1e-6, nan_ok=True)
    assert output.training_loss == pytest.approx(np.nanmean(losses), rel=1e-6)
    assert output.metrics["train_loss"] == output.training_loss == logged(trainer, "train_loss")[0]
    assert logged(trainer, "non_finite_steps")[-1] == 1


def test_one_bad_micro_batch_skips_the_whole_step_once(make):
    record = Record()
    trainer = make({"callbacks": [record]}, max_steps=3, gradient_accumulation_steps=2, per_device_train_batch_size=20)
    trainer.objective = PoisonedGradient(trainer.objective, calls=(2,))  # the first half of the second step
    trainer.train()
    assert torch.equal(record.steps[0][0], record.steps[1][0])
    assert not torch.equal(record.steps[1][0], record.steps[2][0])
    assert logged(trainer, "non_finite_steps") == [0, 1, 1]


def test_too_many_stop_the_run_and_leave_a_good_checkpoint(make):
    trainer = make(max_steps=20, save_strategy="steps", save_steps=1, max_non_finite=2)
    trainer.objective = PoisonedGradient(trainer.objective, calls=tuple(range(2, 20)))
    message = r"3 meta-gradients were not finite, more than max_non_finite=2; go on from the last checkpoint in .*out"
    with pytest.raises(FloatingPointError, match=message):
        trainer.train()
    saved = load_file(Path(last_checkpoint(trainer.args.output_dir), "model.safetensors"))
    for name, parameter in trainer.model.named_parameters():
        assert torch.isfinite(saved[name]).all()
        assert torch.equal(saved[name], parameter)


def test_the_count_starts_anew_with_each_training(make):
    trainer = make(max_steps=2, max_non_finite=2)
    objective = trainer.objective
    for _ in range(2):
        trainer.objective = PoisonedGradient(objective)
        trainer.train()
        assert logged(trainer, "non_finite_steps") == [1, 2]


# -- two processes ---------------------------------------------------------------------------------------------------


def test_two_processes_are_one_that_accumulates_two_batches(make, tmp_path):
    """Also: both find the same, both skip a step in which one of them finds a NaN, evaluate as one does,
    and stop at the same step when one of them gets a signal."""
    shared = {"max_steps": 2, "per_device_train_batch_size": 20}
    folder = tmp_path / "two"
    folder.mkdir()
    codes = run(folder, shared, processes=2)
    assert codes == [0, 0], [path.read_text() for path in tmp_path.glob("two.*.log")]
    first, second = (torch.load(folder / f"process-{rank}.pt") for rank in (0, 1))
    assert first["world_size"] == second["world_size"] == 2

    one = make(gradient_accumulation_steps=2, **shared)
    one.train()
    for a, b, expected in zip(first["tensors"], second["tensors"], tensors(one), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-6, atol=1e-6)
    assert first["losses"] == pytest.approx(logged(one, "loss"), rel=1e-6)
    assert first["evaluation"] == second["evaluation"]
    for name, value in one.evaluate().items():
        if "loss" not in name:  # as in every Trainer, eval_loss is a mean over batches, and these are cut differently
            assert first["evaluation"][name] == pytest.approx(value, rel=1e-4)

    assert first["interrupted"] == second["interrupted"] == (143, 1)  # both at the end of the same step
    assert last_checkpoint(folder) == str(folder / "checkpoint-1")

    one.objective = PoisonedGradient(one.objective, calls=(3,))
    one.train()
    assert first["poisoned"]["skipped"] == second["poisoned"]["skipped"] == logged(one, "non_finite_steps") == [0, 1]
    for a, b, expected in zip(*(x["poisoned"]["tensors"] for x in (first, second)), tensors(one), strict=True):
        assert torch.equal(a, b)
        torch.testing.assert_close(a, expected, rtol=1e-6, atol=1e-6)


def test_a_learner_without_room_in_the_adjoint_is_a_skipped_step(make, caplog):
    trainer = make(max_steps=2, inner_learning_rate=1e9, adjoint="reversible")
    start = [x.clone() for x in tensors(trainer)]
    trainer.train()
    assert logged(trainer, "non_finite_steps") == [1, 2]
    assert all(map(torch.equal, tensors(trainer), start))
    assert "the learner diverged: adjoint=Reversible() holds its states in integers with room for" in caplog.text
