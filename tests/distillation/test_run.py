"""The run of a FarziTrainer: it resumes bit for bit, refuses other settings and folders of others,
and a signal ends it after a checkpoint.
"""

from __future__ import annotations

import errno
import re
import shutil
import signal
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
from tiny_trainer import SignalAt, logged, tensors, tiny_learner, tiny_trainer
from trainer_runs import run
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziTrainer
from farzi_hf.distillation.run import RECORD, Interrupted, discard_checkpoints, last_checkpoint

SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}
RESUMABLE = {
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 1,
    "save_total_limit": None,
    "logging_steps": 4,
    "eval_on_start": True,
    "eval_strategy": "steps",
    "eval_steps": 3,
    "eval_students": 1,
}
"""An epoch has 4 steps. A log is of several steps, before and after an interruption."""
CODES = {"SIGINT": 130, "SIGTERM": 143, "SIGHUP": 129}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, sequences, tokenizer) -> FarziTrainer:
    trainer = tiny_trainer(
        tmp_path_factory.mktemp("uninterrupted"), sequences, tokenizer, **RESUMABLE
    )
    trainer.train()
    return trainer


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, sequences, tokenizer) -> Path:
    """The folder of a run of four steps that was stopped after the second."""
    trainer = tiny_trainer(
        tmp_path_factory.mktemp("interrupted"),
        sequences,
        tokenizer,
        {"callbacks": [StopAt(2)]},
        **SAVED,
    )
    trainer.train()
    return Path(trainer.args.output_dir)


@pytest.fixture
def half(interrupted, tmp_path) -> Path:
    """A copy of that folder, where `make` has its own."""
    return Path(shutil.copytree(interrupted, tmp_path / "out"))


@pytest.fixture(autouse=True)
def handlers():
    """What they were is what they are."""
    before = [signal.getsignal(getattr(signal, name)) for name in CODES]
    yield
    assert [signal.getsignal(getattr(signal, name)) for name in CODES] == before


class StopAt(TrainerCallback):
    """Ends a run early."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


def assert_same_end(trainer: FarziTrainer, expected: FarziTrainer) -> None:
    """Latents, decoder, optimizer and the log without times, bit for bit."""

    def log(of: FarziTrainer) -> list[dict]:
        times = ("seconds_per_step", "peak_memory_gib", "_runtime", "_per_second")
        return [
            {k: v for k, v in entry.items() if not k.endswith(times)}
            for entry in of.state.log_history
        ]

    ours, theirs = tensors(trainer), tensors(expected)
    assert len(ours) == len(theirs) >= 2
    assert all(map(torch.equal, ours, theirs))
    assert log(trainer) == log(expected)


# -- resuming --------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [2, 4])
def test_resuming_is_bit_identical(make, uninterrupted, step):
    """From the middle of the first epoch and of what one log entry is of, and from their ends."""
    trainer = make(**RESUMABLE)
    trainer.train(resume_from_checkpoint=f"{uninterrupted.args.output_dir}/checkpoint-{step}")
    assert_same_end(trainer, uninterrupted)


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 2, "per_device_train_batch_size": 20},
        {"optim": "sgd"},
        {"max_steps": -1, "num_train_epochs": 1.5},
        {"inputs": "tokens", "labels": "own", "teacher_steps": 3},
    ],
    ids=str,
)
def test_resuming_with_other_trainings(make, settings):
    settings = {
        "max_steps": 4,
        "save_strategy": "steps",
        "save_steps": 1,
        "logging_steps": 3,
        **settings,
    }
    whole = make(**settings)
    whole.train()
    shutil.move(whole.args.output_dir, moved := f"{whole.args.output_dir}-whole")
    trainer = make(**settings)
    trainer.train(resume_from_checkpoint=f"{moved}/checkpoint-{whole.state.global_step - 2}")
    assert_same_end(trainer, whole)


def test_resuming_in_the_same_process_after_ctrl_c(make, uninterrupted):
    """A second signal ends at once. The interrupted trainer has already counted a micro-batch of
    the step that it resumes at.
    """
    twice = SignalAt("SIGINT", step=5, times=2)
    trainer = make({"callbacks": [twice]}, **RESUMABLE)
    for _ in range(2):  # the second time in the very step that the checkpoint is of
        with pytest.raises(Interrupted) as ended:
            trainer.train(resume_from_checkpoint=last_checkpoint(trainer.args.output_dir))
        assert (ended.value.code, trainer.state.global_step) == (130, 5)
    twice.times = 0
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, uninterrupted)


def test_resuming_a_finished_run_takes_no_further_step(make):
    """Of a constant rate, because a cosine ends at zero and would hide one step too many."""
    finished, again = make(**SAVED), make(**SAVED)
    finished.train()
    assert again.train(resume_from_checkpoint=True).global_step == again.state.global_step == 4
    assert all(map(torch.equal, tensors(finished)[:2], tensors(again)))
    assert again.state.log_history == finished.state.log_history[: len(again.state.log_history)]


def test_a_second_training_of_the_same_trainer_has_an_optimizer_of_its_own(make):
    trainer = make(max_steps=2)
    trainer.train()
    trainer.train()
    assert {int(state["step"]) for state in trainer.optimizer.state.values()} == {2}


def test_figures_of_the_start_are_logged_once(make):
    own = {**SAVED, "inputs": "tokens", "labels": "own", "teacher_steps": 3}
    make({"callbacks": [StopAt(1)]}, **own).train()
    resumed = make(**own)
    resumed.train(resume_from_checkpoint=True)
    assert len(logged(resumed, "start_seconds")) == 1


def test_a_run_that_goes_on_counts_skipped_steps_on(make):
    """Otherwise a run that is resumed now and then would skip any number of steps."""
    settings = {
        "max_steps": 2,
        "tau": 1e-30,
        "save_strategy": "steps",
        "save_steps": 1,
        "max_non_finite": 1,
    }
    make({"callbacks": [StopAt(1)]}, **settings).train()
    with pytest.raises(
        FloatingPointError, match="2 meta-gradients were not finite, more than max_non_finite=1"
    ):
        make(**settings).train(resume_from_checkpoint=True)


def test_the_best_checkpoint_is_kept_and_loaded_after_a_resume(make):
    perplexities = {1: 5.0, 2: 3.0, 3: 9.0, 4: 9.0}
    settings = {
        **SAVED,
        "save_total_limit": 1,
        "eval_students": 1,
        "eval_strategy": "steps",
        "eval_steps": 1,
        "load_best_model_at_end": True,
        "metric_for_best_model": "perplexity",
    }

    def train(*callbacks: TrainerCallback, **resume: bool) -> FarziTrainer:
        made = make({"callbacks": list(callbacks)}, **settings)
        made.compute_metrics = lambda _: {"perplexity": perplexities[made.state.global_step]}
        made.train(**resume)
        return made

    first = train(StopAt(3))
    folder = Path(first.args.output_dir)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-3",
    ]
    again = train(resume_from_checkpoint=True)
    assert sorted(path.name for path in folder.glob("checkpoint-*")) == [
        "checkpoint-2",
        "checkpoint-4",
    ]
    finished = train(resume_from_checkpoint=True)
    assert first.model.fingerprint() == again.model.fingerprint() == finished.model.fingerprint()


# -- what ends a run -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CODES)
def test_a_signal_ends_the_run_after_a_checkpoint_of_the_step(make, uninterrupted, caplog, name):
    """Although nothing was to be saved then; and what resumes from there is the run that nobody
    interrupted.
    """
    trainer = make({"callbacks": [SignalAt(name, step=2)]}, **{**RESUMABLE, "save_steps": 6})
    with pytest.raises(Interrupted) as ended:
        trainer.train()
    assert ended.value.code == CODES[name]
    saved = f"{trainer.args.output_dir}/checkpoint-3"
    assert last_checkpoint(trainer.args.output_dir) == saved
    assert caplog.messages == [
        f"{name}: the run is saved in {saved} and can be resumed from there."
    ]
    resumed = make(**{**RESUMABLE, "save_steps": 6})
    resumed.train(resume_from_checkpoint=True)
    assert_same_end(resumed, uninterrupted)


def test_the_checkpoint_stays_where_only_the_best_are_kept(make):
    """`save_strategy="best"` saves nothing that is no better, and a training that stops removes all
    but the best.
    """
    settings = {
        "eval_strategy": "steps",
        "eval_steps": 1,
        "metric_for_best_model": "eval_loss",
        "load_best_model_at_end": True,
        "save_strategy": "best",
        "save_total_limit": 1,
        "learning_rate": 1e-12,
        "eval_students": 1,
    }
    trainer = make({"callbacks": [SignalAt("SIGTERM", step=2)]}, **settings)
    with pytest.raises(Interrupted):
        trainer.train()
    assert last_checkpoint(trainer.args.output_dir) == f"{trainer.args.output_dir}/checkpoint-3"


def test_handlers_that_someone_has_set_stay(make):
    run = make().run
    seen = []
    earlier = signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with run.in_folder():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGHUP)
        assert seen == [signal.SIGTERM]
        assert run.noted == 0
    finally:
        signal.signal(signal.SIGTERM, earlier)
        signal.signal(signal.SIGHUP, ignored)


def test_a_signal_on_which_nobody_has_acted_is_not_lost(make, caplog):
    """It came after the last step."""
    with pytest.raises(Interrupted) as ended, make().run.in_folder():
        signal.raise_signal(signal.SIGINT)
    assert ended.value.code == 130
    assert caplog.messages == ["SIGINT: the training has ended."]


@pytest.mark.slow
def test_kill_9_while_a_checkpoint_is_written(make, uninterrupted):
    trainer = make(**RESUMABLE)
    folder = Path(trainer.args.output_dir)
    assert run(folder, RESUMABLE, die_while_saving=4) == [-signal.SIGKILL]
    assert (folder / "checkpoint-4" / "model.safetensors").exists()
    assert last_checkpoint(folder) == str(folder / "checkpoint-3")
    trainer.train(resume_from_checkpoint=True)
    assert_same_end(trainer, uninterrupted)


def test_a_full_disk_leaves_the_last_checkpoint(make):
    trainer = make(**SAVED)

    def save(output_dir: str) -> None:
        if trainer.state.global_step == 3:
            raise OSError(errno.ENOSPC, "the disk is full")
        original(output_dir)

    original, trainer._save_optimizer_and_scheduler = trainer._save_optimizer_and_scheduler, save
    with pytest.raises(OSError, match="the disk is full"):
        trainer.train()
    assert last_checkpoint(trainer.args.output_dir) == f"{trainer.args.output_dir}/checkpoint-2"


# -- what a run does not go on from ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_sequences": 5},
            (
                "^num_sequences 4 → 5: a run goes on with its own settings, .*checkpoint-2"
                " .*farzi_data="
            ),
        ),
        (
            {"seed": 4, "learning_rate": 0.001},
            (
                r"^learning_rate 0\.05 → 0\.001, seed 3 → 4: .* or begin a new run in another"
                r" output_dir"
            ),
        ),
        ({"max_steps": 8}, "^max_steps 4 → 8: "),
    ],
    ids=str,
)
def test_a_run_does_not_go_on_with_other_settings(half, make, changes, message):
    before = sorted(half.rglob("*"))
    for start in (make(**{**SAVED, **changes}).check_run, make(**{**SAVED, **changes}).train):
        with pytest.raises(ValueError, match=message):
            start(resume_from_checkpoint=True)
    assert sorted(half.rglob("*")) == before


def test_a_run_does_not_go_on_with_another_learner_other_data_or_other_teachers(
    half, make, sequences
):
    learner = tiny_learner(54)
    learner.n_head = 1
    other = sequences["train"].select([*range(1, 160), 0])
    for arguments, message in (
        ({"learner_init": learner}, r"learner\.n_head 2 → 1: "),
        (
            {"train_dataset": sequences["train"].select(range(100))},
            r"train_dataset\.sequences 160 → 100",
        ),
        ({"train_dataset": other}, r"train_dataset\.fingerprint \w+ → \w+: "),
        ({"teacher": learner}, r"teachers \[\] → \[.*: "),
    ):
        with pytest.raises(ValueError, match=message):
            make(arguments, **SAVED).train(resume_from_checkpoint=True)


def test_settings_cannot_change_after_the_trainer_is_made(make):
    """The recipe had them, and the distillation was another one."""
    trainer = make()
    trainer.args.inner_steps = 9
    with pytest.raises(
        ValueError,
        match=r"^args have changed since FarziTrainer was made: .*inner_steps 4 → 9; make",
    ):
        trainer.train()


def test_a_checkpoint_is_complete_only_when_all_processes_have_written(make, monkeypatch):
    """The trainer's state makes it complete. It is written after all processes have met, and they
    meet after their states are written.
    """
    trainer = make(**{**SAVED, "max_steps": 1})
    folder, met = Path(trainer.args.output_dir, "checkpoint-1"), []
    wait = trainer.accelerator.wait_for_everyone

    def noted() -> None:
        met.append({path.name for path in folder.glob("*")})
        wait()

    monkeypatch.setattr(trainer.accelerator, "wait_for_everyone", noted)
    trainer.train()
    assert any(
        "state_of_process_0.safetensors" in names and "trainer_state.json" not in names
        for names in met
    )


def test_resuming_needs_a_checkpoint_of_ours(make, tmp_path):
    with pytest.raises(
        ValueError,
        match=r"resume_from_checkpoint=True, but output_dir=.* has no complete checkpoint",
    ):
        make().train(resume_from_checkpoint=True)
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "trainer_state.json").write_text("{}")
    with pytest.raises(
        ValueError, match=rf"resume_from_checkpoint='.*model' has no readable {RECORD}"
    ):
        make(**SAVED).train(resume_from_checkpoint=str(tmp_path / "model"))


def test_checkpoints_that_are_not_complete_are_passed_over(half):
    (half / "checkpoint-best").mkdir()
    (half / "checkpoint-2" / "trainer_state.json").write_text('{"best_glo')
    assert last_checkpoint(half) == str(half / "checkpoint-1")
    (half / "checkpoint-2" / "trainer_state.json").unlink()  # a removal that was interrupted
    (half / "checkpoint-2" / "optimizer.pt").unlink()
    assert last_checkpoint(half) == str(half / "checkpoint-1")
    assert discard_checkpoints(half) == ["checkpoint-1", "checkpoint-2"]


# -- folders ---------------------------------------------------------------------------------------


def precious(folder: Path, name: str = "") -> Path:
    path = folder / name / "weights.bin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"precious")
    return path


def test_a_new_run_refuses_a_folder_with_checkpoints_before_any_step(half, make, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in half.rglob("*")}
    message = (
        r"output_dir='.*out' holds checkpoint-2 of an earlier run.*resume_from_checkpoint=True"
    )
    with pytest.raises(ValueError, match=message) as refusal:
        make(**SAVED).train()
    elsewhere = shutil.copytree(half, tmp_path / "elsewhere")
    with pytest.raises(ValueError, match=message):
        make(**SAVED).train(resume_from_checkpoint=f"{elsewhere}/checkpoint-1")
    assert {path: path.stat().st_mtime_ns for path in half.rglob("*")} == before
    notes = precious(half, "checkpoint-notes")
    remedy = resolve_name(
        re.search(r"farzi_hf\.[\w.]+", str(refusal.value))[0]
    )  # as a user would type it
    assert remedy(half) == ["checkpoint-1", "checkpoint-2"]
    assert [path.name for path in half.iterdir()] == ["checkpoint-notes"]
    make(**SAVED).train()
    assert notes.read_bytes() == b"precious"


def test_a_run_refuses_a_folder_with_a_checkpoint_that_is_not_ours(make):
    """It would write into it where the steps come that far."""
    trainer = make(**SAVED)
    path = precious(Path(trainer.args.output_dir), "checkpoint-500")
    (path.parent / "trainer_state.json").write_text("{}")
    assert last_checkpoint(trainer.args.output_dir) is None
    message = (
        r"holds checkpoint-500, which no FarziTrainer has written: choose another output_dir, or"
        r" move it away"
    )
    never_saves = make(**{**SAVED, "save_strategy": "no"})  # except after a signal
    for start in (trainer.check_run, trainer.train, never_saves.train):
        with pytest.raises(ValueError, match=message):
            start()
    assert path.read_bytes() == b"precious"


def test_rotation_removes_ours_alone(make):
    """Trainer's removes every folder whose name begins with checkpoint-, oldest first."""
    trainer = make(**SAVED, save_total_limit=2)
    folder = Path(trainer.args.output_dir)
    kept = [
        precious(folder, name)
        for name in ("checkpoint-notes", "checkpoint-1-backup", "checkpoint-")
    ]
    (folder / "checkpoint-4").mkdir()  # as a killed process leaves it
    trainer.train()
    assert all(path.read_bytes() == b"precious" for path in kept)
    names = {path.name for path in folder.iterdir()}
    assert names == {path.parent.name for path in kept} | {"checkpoint-3", "checkpoint-4"}
    assert trainer.args.save_total_limit == 2


def test_files_of_others_in_our_checkpoints_stay(make, caplog):
    """They were removed with the checkpoint."""

    class Notes(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            if state.global_step == 1:
                precious(Path(args.output_dir, "checkpoint-1"))
                precious(Path(args.output_dir, "checkpoint-1", "more"))

    make({"callbacks": [Notes(), StopAt(3)]}, **SAVED, save_total_limit=1).train()
    folder = make().args.output_dir
    left = sorted(path.name for path in Path(folder, "checkpoint-1").rglob("*"))
    assert left == [RECORD, "more", "weights.bin", "weights.bin"]
    assert sorted(path.name for path in Path(folder).iterdir()) == ["checkpoint-1", "checkpoint-3"]
    said = (
        f"{folder}/checkpoint-1 holds files that are not of the checkpoint and stay: more,"
        " weights.bin."
    )
    assert caplog.messages.count(said) == 1
    again = make(**SAVED, save_total_limit=1)
    again.train(resume_from_checkpoint=True)
    assert discard_checkpoints(folder) == ["checkpoint-1", "checkpoint-4"]
    make(**SAVED).train()  # the folder is ours still
    assert Path(folder, "checkpoint-1", "weights.bin").read_bytes() == b"precious"


def test_a_folder_that_appears_during_the_run_is_not_written_into(make):
    class Intrude(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            precious(Path(args.output_dir), "checkpoint-3")

    trainer = make({"callbacks": [Intrude()]}, **SAVED)
    with pytest.raises(ValueError, match=r"holds checkpoint-3, which no FarziTrainer"):
        trainer.train()
    assert [path.name for path in Path(trainer.args.output_dir, "checkpoint-3").iterdir()] == [
        "weights.bin"
    ]


def test_the_callers_random_numbers_change_nothing(sequences, tokenizer, tmp_path):
    """Accelerate's sampler of real rows took torch's global seed: `torch.manual_seed`, or another
    trainer, before `train()` made another run.
    """
    args, make_in = (
        {"max_steps": 3, "per_device_train_batch_size": 16},
        lambda out, **how: tiny_trainer(out, sequences, tokenizer, **how),
    )
    trainer = make_in(tmp_path / "first", **args)
    trainer.train()
    expected = [x.detach().clone() for x in trainer.model.parameters()]
    other = make_in(tmp_path / "other", **args)
    torch.manual_seed(1234)
    other.train()
    for x, y in zip(other.model.parameters(), expected, strict=True):
        assert torch.equal(x, y)
