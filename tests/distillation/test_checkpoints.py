"""Checkpoints that are damaged: nothing goes on from them, the latest whole one is taken, and that
is said.
"""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tiny_trainer import begin_process, logged, tensors, tiny_data, tiny_trainer
from trainer_runs import run
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziTrainer
from farzi_hf.common.files import CHECKSUM
from farzi_hf.distillation.checkpoints import RECORD, flaw_of, newest_whole
from farzi_hf.distillation.run import discard_checkpoints, last_checkpoint

SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "save_total_limit": None}
BEST = {
    **SAVED,
    "eval_students": 1,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "load_best_model_at_end": True,
    "metric_for_best_model": "perplexity",
}
FILES = (
    "model.safetensors",
    "optimizer.pt",
    "scheduler.pt",
    "rng_state.pth",
    "trainer_state.json",
    "state_of_process_0.safetensors",
    "training_args.bin",
    "tokenizer.json",
)


class StopAt(TrainerCallback):
    """Ends a run early."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


@pytest.fixture(scope="module")
def whole(tmp_path_factory, sequences, tokenizer) -> FarziTrainer:
    """A run that nothing happened to."""
    trainer = tiny_trainer(tmp_path_factory.mktemp("whole"), sequences, tokenizer, **SAVED)
    trainer.train()
    return trainer


@pytest.fixture
def half(whole, tmp_path) -> Path:
    """A copy of its folder with three checkpoints of four, where `make` has its own."""
    folder = Path(shutil.copytree(whole.args.output_dir, tmp_path / "out"))
    shutil.rmtree(folder / "checkpoint-4")
    return folder


def flip(path: Path) -> None:
    """A bit in the middle."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty_out(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGES: dict[Callable[[Path], None], str] = {
    flip: "has changed",
    cut: "has changed",
    empty_out: "has changed",
    Path.unlink: "is gone",
    link: "has changed",
}


def assert_same_end(trainer: FarziTrainer, expected: FarziTrainer) -> None:
    assert all(map(torch.equal, tensors(trainer), tensors(expected)))
    assert logged(trainer, "loss") == logged(expected, "loss")


# -- which one is taken ----------------------------------------------------------------------------


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("name", FILES)
def test_a_checkpoint_with_a_damaged_file_is_passed_over(half, name, damage):
    damage(half / "checkpoint-3" / name)
    taken, flaws = newest_whole(half)
    assert taken == last_checkpoint(half) == str(half / "checkpoint-2")
    assert flaws == {"checkpoint-3": f"{name} {DAMAGES[damage]}"}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("model.safetensors", flip),
        ("model.safetensors", empty_out),
        ("optimizer.pt", Path.unlink),
        ("optimizer.pt", cut),
        ("scheduler.pt", Path.unlink),
        (RECORD, flip),
        (RECORD, empty_out),
    ],
)
def test_the_run_goes_on_from_the_one_before_and_says_so(half, make, whole, caplog, name, damage):
    """Bit for bit. With a flipped bit, or without the optimizer, it led to another summary without
    a word.
    """
    damage(half / "checkpoint-3" / name)
    trainer = make(**SAVED)
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, whole)
    flaw = f"{RECORD} is damaged" if name == RECORD else f"{name} {DAMAGES[damage]}"
    assert caplog.messages == [
        f"checkpoint-3 is passed over, {half}/checkpoint-2 is taken: {flaw}."
    ]
    assert last_checkpoint(half) == f"{half}/checkpoint-4"
    assert flaw_of(half / "checkpoint-3") == ""  # the run has come there again


def test_without_a_whole_one_the_run_begins_anew_and_says_why(half, make, whole, caplog):
    for path in half.glob("checkpoint-*"):
        flip(path / "optimizer.pt")
    message = r"no complete checkpoint; of checkpoint-3: optimizer.pt has changed; of checkpoint-2"
    with pytest.raises(ValueError, match=message):
        make(**SAVED).train(resume_from_checkpoint=True)
    trainer = make(**SAVED)
    trainer.train(resume_from_checkpoint=last_checkpoint(half))
    assert_same_end(trainer, whole)
    assert caplog.messages == [
        f"checkpoint-{step} is passed over, the run begins anew: optimizer.pt has changed."
        for step in (3, 2, 1)
    ]


def test_a_damaged_one_that_is_named_is_refused(half, make):
    flip(half / "checkpoint-2" / "scheduler.pt")
    with pytest.raises(
        ValueError, match=r"checkpoint-2' is not whole: scheduler.pt has changed; name another"
    ):
        make(**SAVED).train(resume_from_checkpoint=str(half / "checkpoint-2"))


def test_a_file_that_trainer_would_read_may_not_be_added(half):
    """It would take `pytorch_model.bin` in place of the tensors that are gone, for instance."""
    shutil.copy(half / "checkpoint-3" / "optimizer.pt", half / "checkpoint-3" / "optimizer.bin")
    (half / "checkpoint-2" / "pytorch_model_fsdp_0").mkdir()
    (half / "checkpoint-2" / "pytorch_model_fsdp_0" / "x").touch()
    taken, flaws = newest_whole(half)
    assert taken == f"{half}/checkpoint-1"
    assert flaws == {
        "checkpoint-3": "optimizer.bin was added",
        "checkpoint-2": "pytorch_model_fsdp_0 was added",
    }


def test_other_files_in_a_checkpoint_are_named_and_stay(half, make, whole, caplog):
    (half / "checkpoint-3" / "notes.txt").write_text("mine")
    trainer = make(**SAVED)
    trainer.check_run(True)
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, whole)
    assert caplog.messages == [
        f"{half}/checkpoint-3 holds what is not of it and is not read: notes.txt."
    ]
    assert (half / "checkpoint-3" / "notes.txt").read_text() == "mine"


def test_the_best_one_counts_where_it_will_be_the_result(make, caplog):
    """It is read at the end, hours later."""
    perplexities = {1: 5.0, 2: 3.0, 3: 9.0, 4: 9.0}

    def made(*callbacks: TrainerCallback) -> FarziTrainer:
        trainer = make({"callbacks": list(callbacks)}, **BEST)
        trainer.compute_metrics = lambda _: {"perplexity": perplexities[trainer.state.global_step]}
        return trainer

    first = made(StopAt(3))
    first.train()
    folder = Path(first.args.output_dir)
    assert last_checkpoint(folder) == f"{folder}/checkpoint-3"
    flip(folder / "checkpoint-2" / "model.safetensors")
    flaw = "model.safetensors has changed"
    assert newest_whole(folder) == (
        f"{folder}/checkpoint-1",
        {"checkpoint-3": f"of checkpoint-2, which was the best one, {flaw}", "checkpoint-2": flaw},
    )
    again = made()
    again.train(resume_from_checkpoint=True)
    assert again.model.fingerprint() == first.model.fingerprint()


def test_the_best_one_is_found_in_a_folder_that_has_moved(sequences, tokenizer, tmp_path):
    """Trainer knows it by the path that it had, and took the last one without a word."""
    perplexities = {1: 3.0, 2: 5.0, 3: 9.0, 4: 9.0}

    folder = tmp_path / "before"

    def started(*callbacks: TrainerCallback) -> FarziTrainer:
        trainer = tiny_trainer(folder, sequences, tokenizer, {"callbacks": list(callbacks)}, **BEST)
        trainer.compute_metrics = lambda _: {"perplexity": perplexities[trainer.state.global_step]}
        return trainer

    first = started(StopAt(2))
    first.train()
    folder = folder.rename(tmp_path / "after")
    for _ in range(2):  # the second time the run is over already
        again = started()
        again.train(resume_from_checkpoint=True)
        assert again.model.fingerprint() == first.model.fingerprint()


# -- older versions, and what is removed -----------------------------------------------------------


def as_before(checkpoint: Path) -> None:
    """The record of a version without checksums."""
    record = json.loads((checkpoint / RECORD).read_text(encoding="utf-8"))
    record["files"] = sorted(record["files"])
    del record["others"], record[CHECKSUM]
    (checkpoint / RECORD).write_text(json.dumps(record, indent=1), encoding="utf-8")


def test_a_checkpoint_of_an_older_version_is_used_with_a_warning(half, make, whole, caplog):
    for path in half.glob("checkpoint-*"):
        as_before(path)
    trainer = make(**{**SAVED, "save_total_limit": 2})
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, whole)
    assert caplog.messages == [
        f"{half}/checkpoint-3/{RECORD} has no checksum, because an older version wrote it: it is"
        " used unchecked."
    ]
    assert sorted(path.name for path in half.iterdir()) == ["checkpoint-3", "checkpoint-4"]


def test_one_of_an_older_version_that_is_not_complete_is_passed_over(half):
    as_before(half / "checkpoint-3")
    (half / "checkpoint-3" / "trainer_state.json").write_text('{"best')
    assert newest_whole(half) == (
        f"{half}/checkpoint-2",
        {"checkpoint-3": "trainer_state.json cannot be read"},
    )


def test_a_damaged_one_takes_no_place_of_a_whole_one(half, make, whole):
    """The latest is damaged, and one is to be kept: until the run comes there again, that is the
    new one.
    """
    shutil.copytree(half / "checkpoint-3", half / "checkpoint-7")
    for step in (3, 7):
        flip(half / f"checkpoint-{step}" / "optimizer.pt")

    seen = []

    class Notes(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            seen.append((state.global_step, last_checkpoint(half)))

    trainer = make({"callbacks": [Notes()]}, **{**SAVED, "save_total_limit": 1})
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, whole)
    assert seen == [(step, f"{half}/checkpoint-{step}") for step in (3, 4)]
    assert sorted(path.name for path in half.iterdir()) == ["checkpoint-4", "checkpoint-7"]


def test_files_of_others_stay_where_the_record_is_damaged(half):
    """Nothing says then whose they are: all of them were removed."""
    (half / "checkpoint-3" / "notes.txt").write_text("mine")
    flip(half / "checkpoint-3" / RECORD)
    discard_checkpoints(half)
    assert [path.name for path in half.iterdir()] == ["checkpoint-3"]
    assert {path.name for path in (half / "checkpoint-3").iterdir()} == {RECORD, "notes.txt"}


def test_files_of_others_stay_where_a_checkpoint_was_not_completed(half, make):
    """They were there before it was begun."""
    path = half / "checkpoint-3" / "notes.txt"
    path.write_text("mine")
    trainer = make(**SAVED)
    trainer.run.settings = {}
    trainer.run.begin_checkpoint(half / "checkpoint-3")
    (half / "checkpoint-3" / "model.safetensors").touch()
    assert flaw_of(half / "checkpoint-3") == "it was not written to its end"
    discard_checkpoints(half)
    assert {path.name for path in (half / "checkpoint-3").iterdir()} == {RECORD, "notes.txt"}


# -- a disk that is full ---------------------------------------------------------------------------


def without_room(settings, environment, log, dying) -> None:
    """No file may be longer than 5,000 bytes: the optimizer's is."""
    begin_process(environment, log)
    trainer = tiny_trainer(settings.pop("output_dir"), *tiny_data(), **settings)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, resource.RLIM_INFINITY))
    try:
        trainer.train()
    except OSError as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        raise SystemExit(9) from None


@pytest.mark.slow
def test_a_full_disk_is_said_whatever_the_writer_calls_it(make):
    """torch says `unexpected pos 64 vs 0`."""
    folder = Path(make(**SAVED).args.output_dir)
    assert run(folder, SAVED, target=without_room) == [9], folder.with_suffix(".0.log").read_text()
    assert last_checkpoint(folder) is None
