"""A resume with other settings, and whose folders a run may touch: of others nothing is deleted, overwritten or mixed with."""

from __future__ import annotations

import re
import shutil
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import yaml
from tiny_trainer import tensors, tiny_learner, tiny_trainer
from transformers.trainer_callback import TrainerCallback

from farzi_hf import FarziData
from farzi_hf.distillation.checkpoints import RECORD, discard_checkpoints, last_checkpoint

SAVED = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1, "lr_scheduler_type": "constant"}


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory, sequences, tokenizer) -> Path:
    """The folder of a run of four steps that was stopped after the second."""
    folder = tmp_path_factory.mktemp("interrupted")
    trainer = tiny_trainer(folder, sequences, tokenizer, {"callbacks": [StopAt(2)]}, **SAVED)
    trainer.train()
    return folder


class StopAt(TrainerCallback):
    """Ends a run early."""

    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step >= self.step


@pytest.fixture
def half(interrupted, tmp_path) -> Path:
    """A copy of that folder, where `make` has its own."""
    return Path(shutil.copytree(interrupted, tmp_path / "out"))


def logged(trainer, name: str) -> list[float]:
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def recipe_of(folder: str | Path) -> dict:
    return yaml.safe_load((Path(folder) / "recipe.yaml").read_text(encoding="utf-8"))


# -- what is changed takes effect ------------------------------------------------------------------------------------


def test_a_run_that_goes_on_with_other_settings_has_the_start_that_it_began_with(make, monkeypatch):
    """κ depends on the inner settings. It was chosen anew, and the row of the start was of another start."""
    settings = {**SAVED, "concentration": None}
    first = make({"callbacks": [StopAt(2)]}, **settings)
    first.tune_initialization()
    start = first.model.fingerprint()
    first.train()
    chosen = logged(first, "concentration")[0]
    for module in ("summary.initialization", "distillation.start_trial"):  # with other settings, another one is best
        monkeypatch.setattr(f"farzi_hf.{module}.CANDIDATES", (chosen / 2,))
    again = make(**settings, inner_learning_rate=0.1)
    again.check_run(last_checkpoint(again.args.output_dir))
    again.tune_initialization()
    assert again.model.fingerprint() == start
    again.train(resume_from_checkpoint=True)
    assert len(logged(again, "concentration")) == len(logged(again, "start_seconds")) == 1


def test_a_smaller_learning_rate_takes_effect_and_stands_in_the_recipe(half, make):
    """The scheduler and the optimizer of the checkpoint hold the old one."""
    again = make(**SAVED, learning_rate=0.001)
    again.train(resume_from_checkpoint=True)
    assert logged(again, "learning_rate") == [0.05, 0.05, 0.001, 0.001]
    history = [{"step": 2, "changed": {"learning_rate": [0.05, 0.001]}}]
    assert again.history == history
    again.save_model(folder := f"{again.args.output_dir}/summary")
    assert recipe_of(folder)["learning_rate"] == 0.001
    assert recipe_of(folder)["history"] == FarziData.from_pretrained(folder).results.recipe["history"] == history


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"lr_scheduler_type": "linear", "max_steps": 8}, [0.0375, 0.03125, 0.025, 0.01875, 0.0125, 0.00625]),
        ({"lr_scheduler_type": "cosine", "learning_rate": 0.02}, [0.01, 0.002929]),
        ({"lr_scheduler_type": "reduce_lr_on_plateau", "learning_rate": 0.02}, [0.02, 0.02]),
        ({"warmup_steps": 4, "lr_scheduler_type": "constant_with_warmup"}, [0.025, 0.0375]),
    ],
    ids=str,
)
def test_a_changed_schedule_is_followed_from_the_step_reached(half, make, changes, expected):
    if changes["lr_scheduler_type"] == "reduce_lr_on_plateau":
        changes |= {"eval_strategy": "steps", "eval_steps": 4, "metric_for_best_model": "loss"}
    again = make(**{**SAVED, **changes})
    again.train(resume_from_checkpoint=True)
    assert logged(again, "learning_rate")[2:] == pytest.approx(expected, rel=1e-3)
    assert set(again.history[0]["changed"]) == set(changes) - {"eval_strategy", "eval_steps", "metric_for_best_model"}


def test_a_plateau_may_become_a_schedule_of_steps(make):
    """The state of the one is none of the other's."""
    plateau = {"lr_scheduler_type": "reduce_lr_on_plateau", "eval_strategy": "steps", "metric_for_best_model": "loss"}
    first = make(**{**SAVED, **plateau, "max_steps": 2})
    first.train()
    again = make(**{**SAVED, "max_steps": 4, "lr_scheduler_type": "cosine"})
    again.train(resume_from_checkpoint=True)
    assert logged(again, "learning_rate")[2:] == pytest.approx([0.025, 0.007322], rel=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        # of the inner loop, of the optimizer, of the data, of the Trainer itself: one each
        {"window": 1}, {"adam_beta1": 0.1}, {"per_device_train_batch_size": 20}, {"max_grad_norm": 1e-3},
        *(pytest.param(more, marks=pytest.mark.slow) for more in (
            {"inner_epsilon": 0.1}, {"inner_learning_rate": 0.001}, {"weight_decay": 0.5}, {"inner_steps": 12},
        )),
    ],
    ids=str,
)  # fmt: skip
def test_any_other_setting_takes_effect_as_well(half, make, unchanged, changes):
    changed = make(**SAVED, **changes)
    changed.train(resume_from_checkpoint=True)
    assert not torch.equal(unchanged[0], tensors(changed)[0])
    ((name, value),) = changes.items()
    (entry,) = changed.history
    assert entry["step"] == 2
    assert entry["changed"][name][1] == value
    assert changed.model.config.inner == changed.args.summary_config(54).inner


def test_a_history_goes_on_and_an_unchanged_resume_adds_nothing_to_it(half, make):
    again = make(**{**SAVED, "max_steps": 3}, learning_rate=0.01)
    again.train(resume_from_checkpoint=True)
    third = make(**SAVED, learning_rate=0.01, window=2)
    third.train(resume_from_checkpoint=True)
    assert third.history == [
        {"step": 2, "changed": {"learning_rate": [0.05, 0.01], "max_steps": [4, 3]}},
        {"step": 3, "changed": {"max_steps": [3, 4], "window": [3, 2]}},
    ]
    assert logged(third, "learning_rate") == [0.05, 0.05, 0.01, 0.01]
    last = make(**SAVED, learning_rate=0.01, window=2)
    last.train(resume_from_checkpoint=True)
    assert last.history == third.history


def test_intervals_are_those_of_now(half, make):
    again = make(**{**SAVED, "save_steps": 2, "max_steps": 6}, eval_strategy="steps", eval_steps=3)
    again.args.logging_steps = 2
    again.train(resume_from_checkpoint=True)
    names = sorted(path.name for path in Path(again.args.output_dir).glob("checkpoint-*"))
    assert names == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    assert [entry["step"] for entry in again.state.log_history if "eval_loss" in entry] == [3, 6]
    assert [entry["step"] for entry in again.state.log_history if "loss" in entry] == [1, 2, 4, 6]


@pytest.fixture(scope="module")
def unchanged(interrupted, tmp_path_factory, sequences, tokenizer) -> list[torch.Tensor]:
    """What the interrupted run ends with when nothing is changed."""
    trainer = tiny_trainer(tmp_path_factory.mktemp("unchanged"), sequences, tokenizer, **SAVED)
    trainer.train(resume_from_checkpoint=str(interrupted / "checkpoint-2"))
    assert trainer.history == []
    return tensors(trainer)


# -- what cannot be changed ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"num_sequences": 5},
            "num_sequences=5 cannot be changed on the way: .*checkpoint-2 was made with 4; give that",
        ),
        ({"sequence_length": 9}, "sequence_length=9 cannot be changed .* was made with 8"),
        ({"latent_dim": 5}, "latent_dim=5 cannot be changed .* was made with 4"),
        ({"tau": 0.5}, r"tau=0\.5 cannot be changed .* was made with 1\.0"),
        ({"seed": 4}, "seed=4 cannot be changed .* was made with 3; .* or choose another output_dir to start anew"),
        ({"concentration": 4.0}, "concentration=4.0 cannot be changed"),
        ({"optim": "sgd"}, "optim='sgd' cannot be changed"),
    ],
    ids=str,
)
def test_what_made_the_summary_cannot_be_changed(half, make, changes, message):
    before = sorted(half.rglob("*"))
    with pytest.raises(ValueError, match=message):
        make(**SAVED, **changes).train(resume_from_checkpoint=True)
    assert sorted(half.rglob("*")) == before


def test_neither_the_learner_nor_the_data_can_be_changed(half, make, sequences):
    learner = tiny_learner(54)
    learner.n_head = 1
    with pytest.raises(ValueError, match=r"learner\.n_head=1 cannot be changed on the way: .* was made with 2"):
        make({"learner_init": learner}, **SAVED).train(resume_from_checkpoint=True)
    fewer = sequences["train"].select(range(100))
    with pytest.raises(ValueError, match=r"train_dataset\.sequences=100 cannot be changed .* was made with 160"):
        make({"train_dataset": fewer}, **SAVED).train(resume_from_checkpoint=True)
    other = sequences["train"].select([*range(1, 160), 0])
    with pytest.raises(ValueError, match=r"train_dataset\.fingerprint='\w+' cannot be changed"):
        make({"train_dataset": other}, **SAVED).train(resume_from_checkpoint=True)


def test_a_change_after_the_last_step_is_refused_rather_than_published(make):
    make(**SAVED).train()
    late = make(**SAVED, learning_rate=0.001)
    with pytest.raises(
        ValueError, match=r"learning_rate 0\.05 → 0\.001: this change is too late, because .*-4 has taken 4 steps"
    ):
        late.train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match="max_steps 4 → 3: this change is too late"):
        make(**{**SAVED, "max_steps": 3}).train(resume_from_checkpoint=True)
    more_students = make(**SAVED, eval_students=1)
    assert more_students.train(resume_from_checkpoint=True).global_step == 4


def test_no_steps_are_fewer_than_those_of_the_checkpoint(half, make):
    """A run of no steps would write a start without its labels beside it."""
    with pytest.raises(ValueError, match=r"max_steps 4 → 0: this change is too late, because .*-2 has taken 2 steps"):
        make(**{**SAVED, "max_steps": 0}).train(resume_from_checkpoint=True)


def test_a_run_of_part_of_an_epoch_is_finished_too(make):
    epochs = {**SAVED, "max_steps": -1, "num_train_epochs": 1.5}
    trainer = make(**epochs)
    trainer.train()
    again = make(**epochs)
    assert again.train(resume_from_checkpoint=True).global_step == trainer.state.global_step == 6
    assert all(map(torch.equal, tensors(trainer), tensors(again)))


def test_a_run_of_epochs_that_is_finished_stays_so_with_fewer_processes(make, monkeypatch):
    """The same epochs are more steps then."""
    epochs = {**SAVED, "max_steps": -1, "num_train_epochs": 1}
    steps = make(**epochs).train().global_step
    again = make(**epochs)
    monkeypatch.setattr(again, "_planned_steps", lambda: 2 * steps)
    assert again.train(resume_from_checkpoint=True).global_step == steps


def test_a_run_does_not_go_on_without_the_state_of_its_optimizer(half, make):
    (half / "checkpoint-2" / "optimizer.pt").unlink()
    with pytest.raises(ValueError, match=r"checkpoint-2' has no optimizer\.pt, without which a run cannot go on"):
        make(**SAVED).train(resume_from_checkpoint=True)


POOL = {**SAVED, "learner_pool": 2, "inner_steps": 6, "inner_steps_min": 4, "window": 2}


def test_a_run_does_not_go_on_without_the_state_of_a_process_that_it_had(make):
    trainer = make({"callbacks": [StopAt(2)]}, **POOL)
    trainer.train()
    state = Path(trainer.args.output_dir, "checkpoint-2", "state_of_process_0.safetensors")
    state.unlink()
    with pytest.raises(
        ValueError, match=r"checkpoint-2' has no state_of_process_0\.safetensors, without which process 0"
    ):
        make(**POOL).train(resume_from_checkpoint=True)


def test_a_checkpoint_is_complete_only_when_all_processes_have_written(make, monkeypatch):
    """The trainer's state makes it complete. It is written after all processes have met, and they meet after their states are written."""
    trainer = make(**{**POOL, "max_steps": 1})
    folder, met = Path(trainer.args.output_dir, "checkpoint-1"), []
    wait = trainer.accelerator.wait_for_everyone

    def noted() -> None:
        met.append({path.name for path in folder.glob("*")})
        wait()

    monkeypatch.setattr(trainer.accelerator, "wait_for_everyone", noted)
    trainer.train()
    assert any("state_of_process_0.safetensors" in names and "trainer_state.json" not in names for names in met)


def test_another_number_of_processes_is_recorded(half, make):
    record = half / "checkpoint-2" / RECORD
    text = record.read_text(encoding="utf-8")
    assert '"world_size": 1' in text
    record.write_text(text.replace('"world_size": 1', '"world_size": 2'), encoding="utf-8")
    trainer = make(**SAVED)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.history == [{"step": 2, "changed": {"world_size": [2, 1]}}]


def test_a_checkpoint_of_another_program_is_refused(make, tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "trainer_state.json").write_text("{}")
    with pytest.raises(ValueError, match=rf"resume_from_checkpoint='.*model' has no readable {RECORD}"):
        make(**SAVED).train(resume_from_checkpoint=str(tmp_path / "model"))


# -- folders ---------------------------------------------------------------------------------------------------------


def precious(folder: Path, name: str) -> Path:
    path = folder / name / "weights.bin"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"precious")
    return path


def test_a_new_run_refuses_a_folder_with_checkpoints_before_any_step(half, make):
    before = {path: path.stat().st_mtime_ns for path in half.rglob("*")}
    with pytest.raises(
        ValueError, match=r"output_dir='.*out' holds checkpoint-2 of an earlier run.*resume_from_checkpoint=True"
    ) as refusal:
        make(**SAVED).train()
    assert {path: path.stat().st_mtime_ns for path in half.rglob("*")} == before
    notes = precious(half, "checkpoint-notes")
    remedy = resolve_name(re.search(r"farzi_hf\.[\w.]+", str(refusal.value))[0])  # as a user would type it
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
    message = r"holds checkpoint-500, which has no farzi_run\.json .* choose another output_dir, or move it away"
    for start in (trainer.train, trainer.check_run):
        with pytest.raises(ValueError, match=message):
            start()
    assert path.read_bytes() == b"precious"
    with pytest.raises(ValueError, match=message):
        make(**{**SAVED, "save_strategy": "no"}).train()  # a signal makes it save


def test_rotation_removes_ours_alone(make):
    """Trainer's removes every folder whose name begins with checkpoint-, oldest first."""
    trainer = make(**SAVED, save_total_limit=2)
    folder = Path(trainer.args.output_dir)
    kept = [precious(folder, name) for name in ("checkpoint-notes", "checkpoint-1-backup", "checkpoint-")]
    trainer.train()
    assert all(path.read_bytes() == b"precious" for path in kept)
    names = {path.name for path in folder.iterdir()}
    assert names == {"checkpoint-notes", "checkpoint-1-backup", "checkpoint-", "checkpoint-3", "checkpoint-4"}
    assert trainer.args.save_total_limit == 2


def test_a_folder_that_appears_during_the_run_is_not_written_into(make):
    trainer = make(**SAVED)
    objective, calls = trainer.objective, []

    def intrude(*args):
        calls.append(precious(Path(trainer.args.output_dir), "checkpoint-3")) if len(calls) == 1 else calls.append(None)
        return objective(*args)

    trainer.objective = intrude
    with pytest.raises(ValueError, match=r"holds checkpoint-3, which has no farzi_run\.json"):
        trainer.train()
    assert [path.name for path in calls[1].parent.iterdir()] == ["weights.bin"]
    assert last_checkpoint(trainer.args.output_dir).endswith("checkpoint-2")


def test_the_best_checkpoint_is_kept(make):
    perplexities = iter([5.0, 3.0, 9.0, 9.0])
    trainer = make(
        {"compute_metrics": lambda _: {"perplexity": next(perplexities)}},
        **SAVED, save_total_limit=1, eval_students=1, eval_strategy="steps", eval_steps=1, load_best_model_at_end=True,
        metric_for_best_model="perplexity",
    )  # fmt: skip
    trainer.train()
    names = sorted(path.name for path in Path(trainer.args.output_dir).glob("checkpoint-*"))
    assert names == ["checkpoint-2", "checkpoint-4"]


@pytest.mark.parametrize("stopped", [True, False])
def test_the_best_checkpoint_is_found_and_kept_where_the_folder_was_moved(make, tmp_path, stopped):
    perplexities = {1: 5.0, 2: 3.0, 3: 9.0, 4: 9.0}
    settings = {
        **SAVED, "save_total_limit": 1, "eval_students": 1, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True,
        "metric_for_best_model": "perplexity",
    }  # fmt: skip

    def trainer(*callbacks: TrainerCallback):
        made = make({"callbacks": list(callbacks)}, **settings)
        made.compute_metrics = lambda _: {"perplexity": perplexities[made.state.global_step]}
        return made

    first = trainer(*[StopAt(3)] * stopped)
    first.train()
    best = first.model.fingerprint()
    Path(first.args.output_dir).rename(tmp_path / "moved")
    again = trainer()
    again.args.output_dir = str(tmp_path / "moved")
    again.train(resume_from_checkpoint=True)
    assert again.model.fingerprint() == best
    assert again.state.best_model_checkpoint == str(tmp_path / "moved" / "checkpoint-2")
    assert (tmp_path / "moved" / "checkpoint-2").is_dir()


@pytest.mark.parametrize("stopped", [True, False])
def test_the_metrics_of_the_best_summary_are_saved_after_a_resume(make, tmp_path, stopped):
    """They were known to the first process alone."""
    settings = {
        **SAVED, "eval_students": 1, "eval_strategy": "steps", "eval_steps": 1, "load_best_model_at_end": True,
        "metric_for_best_model": "perplexity", "learning_rate": 3.0,
    }  # fmt: skip
    first = make({"callbacks": [StopAt(3)] * stopped}, **settings)
    first.train()
    first.save_model(str(tmp_path / "first"))
    again = make(**settings)
    again.train(resume_from_checkpoint=True)
    assert again.state.best_model_checkpoint == first.state.best_model_checkpoint, "or the two cannot be compared"
    again.save_model(str(tmp_path / "again"))
    metrics = [(tmp_path / name / "metrics.json").read_text(encoding="utf-8") for name in ("first", "again")]
    assert metrics[0] == metrics[1]


def test_later_checkpoints_do_not_mix_with_those_of_a_changed_run(make):
    make(**SAVED).train()
    folder = make().args.output_dir
    changed = make(**SAVED, learning_rate=0.001)
    message = r"checkpoint-2' with other settings \(learning_rate 0\.05 → 0\.001\), but .* later checkpoints .*checkpoint-3, checkpoint-4"
    with pytest.raises(ValueError, match=message):
        changed.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    changed.args.output_dir = f"{folder}-2"
    changed.train(resume_from_checkpoint=f"{folder}/checkpoint-2")
    assert last_checkpoint(f"{folder}-2") == f"{folder}-2/checkpoint-4"
    unchanged = make(**SAVED)
    with pytest.raises(ValueError, match="holds checkpoint-4 of an earlier run"):
        unchanged.train(resume_from_checkpoint=f"{folder}-2/checkpoint-3")
    unchanged.train(resume_from_checkpoint=f"{folder}/checkpoint-2")  # bit for bit the same ones again


def test_a_removal_that_was_interrupted_leaves_no_checkpoint_to_go_on_from(half):
    checkpoint = Path(last_checkpoint(half))
    (checkpoint / "trainer_state.json").unlink()
    (checkpoint / "optimizer.pt").unlink()
    assert last_checkpoint(half).endswith("checkpoint-1")
    assert discard_checkpoints(half) == ["checkpoint-1", "checkpoint-2"]
