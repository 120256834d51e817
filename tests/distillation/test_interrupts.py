"""SIGINT, SIGTERM and SIGHUP: what is saved, what is said, and how the program ends."""

from __future__ import annotations

import signal
import threading
from functools import partial
from pathlib import Path

import pytest
import torch
from tiny_trainer import SignalAt, tensors, tiny_trainer

from farzi_hf.distillation import record_trajectories
from farzi_hf.distillation.signals import Interrupted, noted_signals
from farzi_hf.distillation.trainer import last_checkpoint

CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sequences, tokenizer):
    """The run that nobody interrupted."""
    trainer = tiny_trainer(tmp_path_factory.mktemp("whole"), sequences, tokenizer)
    trainer.train()
    return trainer


@pytest.fixture(autouse=True)
def handlers():
    """What they were is what they are."""
    before = [signal.getsignal(getattr(signal, name)) for name in CODES]
    yield
    assert [signal.getsignal(getattr(signal, name)) for name in CODES] == before


@pytest.mark.parametrize("name", CODES)
def test_a_signal_ends_the_run_after_a_checkpoint_of_the_step(make, whole, caplog, name):
    """Although nothing was to be saved; and what resumes from there is the run that nobody interrupted."""
    trainer = make({"callbacks": [SignalAt(name, step=2)]})
    with pytest.raises(Interrupted) as ended:
        trainer.train()
    assert ended.value.code == CODES[name]
    saved = f"{trainer.args.output_dir}/checkpoint-3"
    assert last_checkpoint(trainer.args.output_dir) == saved
    assert caplog.messages == [f"{name}: the run is saved in {saved} and can be resumed from there."]

    resumed = make()
    resumed.train(resume_from_checkpoint=True)
    assert all(map(torch.equal, tensors(resumed), tensors(whole)))
    losses = [[entry["loss"] for entry in x.state.log_history if "loss" in entry] for x in (resumed, whole)]
    assert losses[0] == losses[1]


def test_figures_of_the_start_are_logged_also_after_a_signal_before_the_first_log(make):
    own = {"inputs": "tokens", "labels": "own", "teacher_steps": 3, "logging_steps": 3}
    trainer = make({"callbacks": [SignalAt("SIGINT", step=1)]}, **own)
    with pytest.raises(Interrupted):
        trainer.train()
    seconds = trainer._start_facts["start_seconds"]
    resumed = make(**own)
    resumed.train(resume_from_checkpoint=True)
    assert [entry["start_seconds"] for entry in resumed.state.log_history if "start_seconds" in entry] == [seconds]

    again = make(**own, max_steps=resumed.state.max_steps + 1)  # from a checkpoint after that log
    again.train(resume_from_checkpoint=True)
    assert [entry["start_seconds"] for entry in again.state.log_history if "start_seconds" in entry] == [seconds]


def test_a_training_that_is_made_anew_saves_nothing_and_says_so(make, caplog):
    trainer = make({"callbacks": [SignalAt("SIGINT", step=2)]})
    trainer.saves_on_signal = False
    with pytest.raises(Interrupted) as ended:
        trainer.train()
    assert (ended.value.code, trainer.state.global_step) == (130, 3)
    assert caplog.messages == ["SIGINT: the training ends here and saves no checkpoint."]
    assert last_checkpoint(trainer.args.output_dir) is None


def test_a_second_signal_ends_at_once(make):
    trainer = make({"callbacks": [SignalAt("SIGINT", step=2, times=2)]})
    with pytest.raises(Interrupted) as ended:
        trainer.train()
    assert ended.value.code == 130
    assert trainer.state.global_step == 2
    assert last_checkpoint(trainer.args.output_dir) is None


def test_a_terminal_is_told_that_once_more_ends_at_once(make, caplog, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with pytest.raises(Interrupted):
        make({"callbacks": [SignalAt("SIGINT", step=0)]}).train()
    assert caplog.messages[0] == "SIGINT: this step is finished and saved first; once more ends at once."
    assert "checkpoint-1" in caplog.messages[1]


BEST = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss", "load_best_model_at_end": True}


@pytest.mark.parametrize("when", ["step", "evaluation"])
def test_the_checkpoint_stays_where_only_the_best_are_kept(make, when):
    """`save_strategy="best"` saves nothing that is no better, and a training that stops removes all but the best."""
    settings = {**BEST, "save_strategy": "best", "save_total_limit": 1, "learning_rate": 1e-12, "eval_students": 1}
    evaluating = when == "evaluation"
    trainer = make({"callbacks": [SignalAt("SIGTERM", step=3 if evaluating else 2, evaluating=evaluating)]}, **settings)
    with pytest.raises(Interrupted):
        trainer.train()
    assert last_checkpoint(trainer.args.output_dir) == f"{trainer.args.output_dir}/checkpoint-3"


def test_a_checkpoint_that_is_due_anyway_is_written_once(make, monkeypatch):
    trainer = make({"callbacks": [SignalAt("SIGTERM", step=1)]}, save_strategy="steps", save_steps=2)
    saved, save = [], trainer._save_optimizer_and_scheduler
    monkeypatch.setattr(trainer, "_save_optimizer_and_scheduler", lambda folder: (saved.append(folder), save(folder)))
    with pytest.raises(Interrupted):
        trainer.train()
    assert saved == [f"{trainer.args.output_dir}/checkpoint-2"]


def test_in_another_thread_it_trains_without_handlers(make):
    trainer = make(max_steps=1)
    thread = threading.Thread(target=trainer.train)
    thread.start()
    thread.join()
    assert trainer.state.global_step == 1


def test_handlers_that_someone_has_set_stay():
    seen = []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with noted_signals() as noted:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
        assert seen == [signal.SIGTERM]
        assert noted.number == 0
    finally:
        signal.signal(signal.SIGTERM, earlier)
        signal.signal(signal.SIGHUP, ignored)


def test_a_signal_on_which_nobody_has_acted_is_not_lost(caplog):
    """It came after the last step."""
    with pytest.raises(Interrupted) as ended, noted_signals():
        signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130
    assert caplog.messages == ["SIGINT: the work under way is finished."]


@pytest.mark.parametrize("name", CODES)
def test_a_recording_keeps_what_it_has_and_goes_on(make, sequences, tmp_path, caplog, name):
    trainer = make()
    batches = []

    def collator(rows):
        batches.append(rows)
        if len(batches) == 6:  # the second trajectory of four steps each
            signal.raise_signal(getattr(signal, name))
        return trainer.data_collator(rows)

    def record(folder: Path):
        return record_trajectories(
            trainer.learner, trainer.args.make_inner_optimizer(), sequences["train"], collator, folder,
            num=3, steps=4, save_every=2, batch_size=8, seed=1,
        )  # fmt: skip

    with pytest.raises(Interrupted) as ended:
        record(tmp_path / "omega")
    assert ended.value.code == CODES[name]
    assert len(batches) == 6
    message = f"{name}: {tmp_path / 'omega'} has 1 of 3 trajectories, recording can go on from there."
    assert caplog.messages == [message]
    first = tmp_path / "omega" / "trajectory-00000.safetensors"
    modified = first.stat().st_mtime_ns
    record(tmp_path / "omega")
    record(tmp_path / "whole")
    assert first.stat().st_mtime_ns == modified
    for path in sorted((tmp_path / "whole").iterdir()):
        assert path.read_bytes() == (tmp_path / "omega" / path.name).read_bytes()
