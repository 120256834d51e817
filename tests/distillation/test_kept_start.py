"""A start that teachers make: a signal ends it at once, and the same run goes on from the state that
is kept in its folder, bit for bit.
"""

from __future__ import annotations

import math
import signal
from pathlib import Path
from typing import Any

import pytest
from datasets import IterableDataset
from tiny_trainer import tiny_learner, tiny_trainer
from transformers import AutoModelForCausalLM

from farzi_hf import FarziTrainer
from farzi_hf.distillation import teacher
from farzi_hf.distillation.kept_start import FOLDER
from farzi_hf.distillation.run import Interrupted

CARRIED = {
    "inputs": "drawn",
    "labels": "teacher",
    "storage": "coded6",
    "synthetic_batch_size": 4,
    "teacher_steps": 80,
    "teacher_learning_rate": 0.03,
    "packing_steps": 40,
    "max_steps": 0,
}
OWN = {"inputs": "tokens", "labels": "own", "num_teachers": 2, "teacher_steps": 80, "max_steps": 0}
SEVERAL = {**CARRIED, "num_teachers": 2}


class Steps:
    """Counts the steps of teachers and of their packing, and sends a signal before one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.signal_at: int | None = None
        train_on = teacher.train_on

        def counted(*args: Any, **kwargs: Any) -> Any:
            self.count += 1
            if self.count == self.signal_at:
                signal.raise_signal(signal.SIGTERM)
            return train_on(*args, **kwargs)

        monkeypatch.setattr(teacher, "train_on", counted)
        monkeypatch.setattr(teacher, "_KEEPING", math.inf)  # at each evaluation


@pytest.fixture
def steps(monkeypatch) -> Steps:
    return Steps(monkeypatch)


def kept(trainer: FarziTrainer) -> Path:
    return Path(trainer.args.output_dir, FOLDER)


def stream(sequences) -> dict[str, Any]:
    return {"train_dataset": IterableDataset.from_generator(lambda: iter(sequences["train"]))}


@pytest.mark.parametrize(
    ("at", "given", "settings"),
    [
        (51, {}, CARRIED),  # in the teacher
        (101, {}, CARRIED),  # in its packing
        pytest.param(62, {"eval_dataset": None}, CARRIED, marks=pytest.mark.slow),
        pytest.param(104, {"eval_dataset": None}, CARRIED, marks=pytest.mark.slow),
        pytest.param(62, {"train_dataset": "stream"}, CARRIED, marks=pytest.mark.slow),
        pytest.param(104, {"train_dataset": "stream"}, CARRIED, marks=pytest.mark.slow),
        pytest.param(31, {"teacher": "trained"}, CARRIED, marks=pytest.mark.slow),
        pytest.param(121, {}, OWN, marks=pytest.mark.slow),  # in the second teacher
        pytest.param(131, {}, SEVERAL, marks=pytest.mark.slow),
        (181, {}, SEVERAL),  # in the packing of the first of two teachers
    ],
    ids=str,
)
def test_a_start_that_a_signal_ends_goes_on(
    at, given, settings, steps, tmp_path, sequences, tokenizer, caplog
):
    arguments = dict(given)
    if "train_dataset" in given:
        arguments |= stream(sequences)
    if "teacher" in given:
        arguments["teacher"] = AutoModelForCausalLM.from_config(tiny_learner(len(tokenizer)))

    def made(name: str) -> FarziTrainer:
        return tiny_trainer(tmp_path / name, sequences, tokenizer, arguments, **settings)

    whole = made("whole")
    whole.train()
    of_whole = steps.count
    steps.count, steps.signal_at = 0, at
    with pytest.raises(Interrupted) as ended:
        made("ended").train()
    assert (ended.value.code, steps.count) == (143, at)
    assert f"in {tmp_path / 'ended' / FOLDER}; the same run goes on" in caplog.text
    steps.count, steps.signal_at = 0, None
    resumed = made("ended")
    resumed.train()
    assert resumed.model.fingerprint() == whole.model.fingerprint()
    assert resumed.taught == whole.taught
    assert of_whole - at <= steps.count <= of_whole - at + 6  # those since the last evaluation
    assert kept(resumed).is_dir()
    resumed.save_model()
    assert not kept(resumed).exists()


def test_a_signal_before_the_start_ends_before_the_first_step(steps, make):
    """One that came while the data were checked."""
    trainer = make(**CARRIED)
    prepare = trainer.run.prepare

    def signalled(resume: Any) -> Any:
        signal.raise_signal(signal.SIGINT)
        return prepare(resume)

    trainer.run.prepare = signalled
    with pytest.raises(Interrupted):
        trainer.train()
    assert steps.count == 0


def test_a_checkpoint_replaces_the_state(make):
    trainer = make(**{**CARRIED, "max_steps": 1, "save_strategy": "steps", "save_steps": 1})
    trainer.train()
    assert not kept(trainer).exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"packing_penalty": 0.3},
        pytest.param({"teacher_learning_rate": 0.01}, marks=pytest.mark.slow),
        pytest.param({"seed": 7}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_a_start_of_other_settings_begins_anew(changes, steps, make, caplog):
    make(**CARRIED).train()
    steps.count = 0
    other = make(**{**CARRIED, **changes})
    other.train()
    assert steps.count > 100
    assert "holds a start of other settings or data: the start begins anew" in caplog.text


def test_a_start_of_other_held_out_rows_begins_anew(steps, make, sequences):
    make(**CARRIED).train()
    steps.count = 0
    make({"eval_dataset": sequences["validation"].select(range(8))}, **CARRIED).train()
    assert steps.count > 60


def test_a_folder_of_others_stays(make):
    trainer = make(**CARRIED)
    kept(trainer).mkdir(parents=True)
    (kept(trainer) / "teacher-0-0.safetensors").write_text("mine")
    with pytest.raises(ValueError, match="holds farzi_start, which no FarziTrainer has written"):
        trainer.train()
    assert (kept(trainer) / "teacher-0-0.safetensors").read_text() == "mine"


def test_a_start_that_is_only_looked_at_writes_nothing(make):
    trainer = make(**CARRIED)
    trainer.tune_initialization()
    assert not kept(trainer).exists()
