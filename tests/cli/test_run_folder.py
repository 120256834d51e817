"""What a run finds in its folder: checkpoints to go on from, and files that it may not touch."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import yaml
from tiny_artefacts import METRICS, RECIPE, tiny, word_tokenizer
from tiny_trainer import tiny_trainer

from farzi_hf import FarziConfig, FarziData
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.distil import Distillation
from farzi_hf.cli.run_folder import (
    Left,
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
        raise ValueError(f"{name} is not JSON")

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


def test_a_kept_result_that_has_changed_is_refused(tmp_path):
    """A digit that flips was another result."""
    path = tmp_path / "x.json"
    kept(path, {"seed": 1}, lambda: {"perplexity": 12.5})
    path.write_text(path.read_text(encoding="utf-8").replace("12.5", "12.7"), encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"x.json' is damaged \(.* another checksum .*: move it away"
    ):
        stored(path, {"seed": 1})


def test_a_kept_result_of_an_older_version_is_taken_with_a_warning(tmp_path, caplog):
    path = tmp_path / "x.json"
    path.write_text('{"settings": {"seed": 1}, "value": 3}', encoding="utf-8")
    assert stored(path, {"seed": 1}) == 3
    [message] = caplog.messages
    assert message.startswith(f"{path} has no checksum")


@pytest.mark.parametrize(
    "content", ["eggs: 3", '{"value": 1}', '{"settings": 1}', "[1]", "5", "\ufeff"]
)
def test_a_file_that_no_recipe_wrote_is_refused_before_the_work(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(ValueError, match=r"x.json' is not a recipe's: choose another"):
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
    run = Distillation(RunSettings(dataset="mine.csv").load(), FarziConfig(**settings), 0)
    run.begin()
    assert "data_dir" not in run.recipe
    monkeypatch.chdir("/")
    again, _ = parse_arguments((RunSettings, FarziConfig), tmp_path / "out" / "recipe.yaml", [])
    assert again.load().identity(0) == run.data.identity(0)


# -- what a finished run has left ------------------------------------------------------------------


@pytest.fixture
def left(tmp_path):
    """A summary and a figure, and what is known of them."""
    farzi = tiny()
    farzi.save_pretrained(tmp_path / "summary", word_tokenizer(), METRICS, RECIPE)
    (tmp_path / "plots").mkdir()
    figure = tmp_path / "plots" / "tokens.png"
    figure.write_bytes(b"PNG")
    found = Left.by(tmp_path, farzi, [figure])
    return Left(**json.loads(json.dumps(vars(found))))


def test_what_is_as_it_was_needs_no_word(left, tmp_path, caplog):
    (tmp_path / "notes.txt").touch()
    assert left.is_there(tmp_path)
    assert not caplog.messages


def test_a_summary_that_is_gone_is_noticed(left, tmp_path):
    shutil.rmtree(tmp_path / "summary")
    assert not left.is_there(tmp_path)
    assert not Left().is_there(tmp_path)  # older results know no files


@pytest.mark.parametrize(
    "name", ["summary/README.md", "summary/viewer.html", "summary/metrics.json", "plots/tokens.png"]
)
def test_what_may_be_edited_is_named(left, tmp_path, caplog, name):
    path = tmp_path / name
    path.write_bytes(path.read_bytes() + b"\n")
    assert left.is_there(tmp_path)
    assert caplog.messages == [
        f"{tmp_path} has changed since this run wrote it: {name} has changed."
    ]


def test_a_summary_that_was_saved_again_is_the_same(left, tmp_path, caplog):
    FarziData.from_pretrained(tmp_path / "summary").save_pretrained(
        tmp_path / "summary", metrics={}, recipe={}
    )
    assert left.is_there(tmp_path)
    [message] = caplog.messages
    assert "metrics.json is gone" in message


@pytest.mark.parametrize("name", ["farzi.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("gone", [True, False])
def test_another_summary_is_refused(left, tmp_path, name, gone):
    path = tmp_path / "summary" / name
    if gone and name != "farzi.safetensors":
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    with pytest.raises(
        ValueError,
        match=rf"summary' has changed since this run wrote it \(summary/{name} .*: move it",
    ):
        left.is_there(tmp_path)
