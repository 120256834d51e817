"""What a run finds in its folder: checkpoints to go on from, and files that it may not touch."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from tiny_trainer import tiny_trainer

from farzi_hf import FarziConfig
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.distil import Run
from farzi_hf.cli.run_folder import (
    begin_run,
    check_outputs,
    find_checkpoint,
    kept,
    stored,
    write_recipe,
)
from farzi_hf.report import RunSettings

SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "lr_scheduler_type": "constant"}


@pytest.fixture
def started(tmp_path, sequences, tokenizer):
    """A run as recipes make it, with settings over those of `tiny_trainer`, up to its
    first step.
    """

    def start(**settings):
        trainer = tiny_trainer(tmp_path / "run", sequences, tokenizer, **{**SAVED, **settings})
        recipe = {"learner": {"model_type": "gpt2"}, **trainer.args.to_recipe()}
        checkpoint = find_checkpoint(trainer.args, ["table.md"])
        begin_run(trainer, recipe, checkpoint)
        return trainer, checkpoint

    return start


def test_a_run_goes_on_with_its_own_settings_alone(started, tmp_path):
    trainer, checkpoint = started()
    assert checkpoint is None
    trainer.train()
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe == {"learner": {"model_type": "gpt2"}, **trainer.args.to_recipe()}
    assert started()[1] == str(tmp_path / "run" / "checkpoint-2")
    remedy = r"begin a new run in another output_dir"
    with pytest.raises(
        ValueError, match=rf"^max_steps 2 → 3, learning_rate 0\.05 → 0\.001: .*{remedy}"
    ):
        started(max_steps=3, learning_rate=0.001)
    assert (tmp_path / "run" / "checkpoint-2").exists()
    assert yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8")) == recipe


def test_a_checkpoint_of_others_is_refused(started, tmp_path):
    foreign = tmp_path / "run" / "checkpoint-500" / "weights.bin"
    foreign.parent.mkdir(parents=True)
    foreign.write_text("precious")
    with pytest.raises(
        ValueError,
        match=r"output_dir='.*run' holds checkpoint-500, which .* choose another output_dir",
    ):
        started()
    assert foreign.read_text() == "precious"


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"seed": 1, "inner_betas": (0.7, 0.999)}, {"seed": 1, "inner_betas": [0.7, 0.999]}, True),
        ({"seed": 1}, {"seed": 2}, False),
        ({"seed": 1, "gone": 2}, {"seed": 1}, False),
        ({"seed": 1}, {"seed": 1, "num_students": 2}, False),
        (
            {"config": "a.yaml", "data_dir": "x", "data": "1"},
            {"config": "/b/a.yaml", "data_dir": "y", "data": "1"},
            True,
        ),
        ({}, {"load_best_model_at_end": True, "eval_strategy": "steps", "eval_steps": 1}, False),
        ({}, {"optim_args": "amsgrad=True"}, False),
    ],
)
def test_a_result_is_one_of_the_same_settings(tmp_path, before, now, same):
    if "optim_args" in now or "eval_steps" in now:  # which summary is kept is part of the recipe
        before, now = (
            FarziConfig(tmp_path, **SAVED, **more, use_cpu=True).to_recipe()
            for more in (before, now)
        )
    kept(tmp_path / "x.json", before, lambda: "result")
    assert (stored(tmp_path / "x.json", now) == "result") == same
    assert stored(tmp_path / "x.json", before) == "result"


def test_a_kept_result_is_json_for_every_reader(tmp_path):
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    path, settings = tmp_path / "a" / "x.json", {"max_grad_norm": math.inf}
    made = [math.inf, -math.inf, 1.5]
    assert kept(path, settings, lambda: made) == made
    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)["value"] == [
        "Infinity",
        "-Infinity",
        1.5,
    ]
    assert kept(path, settings, list) == made
    assert stored(path, {"max_grad_norm": 1.0}) is None
    assert kept(path, {"max_grad_norm": 1.0}, list) == stored(path, {"max_grad_norm": 1.0}) == []
    assert (
        kept(path, {"seed": 2}, lambda: path.exists(), unless=lambda value: not value) is False
    ), "of other settings"
    assert stored(path, {"seed": 2}) is None


def test_a_recipe_knows_its_own_results(tmp_path):
    recipe = {
        "seed": 0,
        "learning_rate": 1e-5,
        "max_grad_norm": math.inf,
        "splits": [0],
        "trajectories": "a",
    }
    names = ["recipe.yaml", "start.json", "table.md"]
    write_recipe(tmp_path, recipe)
    (tmp_path / "start.json").write_text("{}", encoding="utf-8")
    check_outputs(tmp_path, names, {"seed": 1})  # there are no results yet
    (tmp_path / "table.md").write_text("mine", encoding="utf-8")
    check_outputs(tmp_path, names, {**recipe, "splits": [0, 1], "trajectories": "b"})
    for other, how in (({**recipe, "seed": 1}, r"seed 0 → 1"), ({**recipe, "more": 2}, "more")):
        with pytest.raises(
            ValueError,
            match=rf"has table.md of a run with other settings \({how}\): choose another",
        ):
            check_outputs(tmp_path, names, other)
    with pytest.raises(ValueError, match=r"table.md' exists already and would be overwritten"):
        check_outputs(tmp_path, ["table.json", "table.md"])
    (tmp_path / "recipe.yaml").unlink()
    (tmp_path / "table.json").write_text('{"scores": []}', encoding="utf-8")
    check_outputs(tmp_path, ["table.json", "table.md"])
    with pytest.raises(ValueError, match=r"start.json' exists already and would be overwritten"):
        check_outputs(tmp_path, names, recipe)


@pytest.mark.parametrize(
    "content", ["eggs: 3", '{"value": 1}', '{"settings": 1}', "[1]", "5", "\ufeff"]
)
def test_a_file_that_no_recipe_wrote_is_refused_before_the_work(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"x.json' is no recipe's: choose another"):
        kept(path, {}, lambda: pytest.fail("it works already"))
    assert path.read_text(encoding="utf-8") == content


def test_the_recipe_of_a_run_finds_the_users_file_again_and_that_of_its_summary_names_no_folder(
    tmp_path, monkeypatch
):
    (tmp_path / "mine.csv").write_text(
        "user_id,item_id\n" + "".join(f"{u},{(u + t) % 7}\n" for u in range(30) for t in range(5))
    )
    monkeypatch.chdir(tmp_path)
    settings = {
        "output_dir": "out",
        "max_steps": 0,
        "inner_steps": 1,
        "teacher_steps": 1,
        "num_sequences": 2,
        "sequence_length": 4,
        "use_cpu": True,
    }
    run = Run(RunSettings(dataset="mine.csv").load(), FarziConfig(**settings), 0)
    run.begin()
    assert "data_dir" not in run.recipe
    monkeypatch.chdir("/")
    again, _ = parse_arguments((RunSettings, FarziConfig), tmp_path / "out" / "recipe.yaml", [])
    assert again.load().identity(0) == run.data.identity(0)
