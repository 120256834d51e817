"""The recipe as its user meets it: settings, what it says when something is wrong, and a whole run with all that it leaves."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import numpy as np
import pytest
import yaml
from datasets import load_dataset
from tiny_recipes import COMPARED, RECIPES, TINY, places
from tiny_trainer import tiny_trainer

pytest.importorskip("matplotlib")
import finetune
import objectives
import ptb
import recsys
import sample_efficiency
from _common import markdown, parse_arguments, save_csv
from _comparison import BASELINES
from _language_modeling import LanguageModelComparison, metrics_row
from _runs import begin_run, find_checkpoint

from farzi_hf import FarziConfig, FarziData
from farzi_hf.data import flatten_sequences
from farzi_hf.evaluation.metrics.language_modeling import token_metrics

CONFIGS = [
    path
    for path in sorted((RECIPES / "configs").glob("*.yaml"))
    if path.stem.startswith(("ptb_", "demo")) and path.stem != "demo_recsys"
]
TYPES = (ptb.RecipeArguments, FarziConfig)
SMALL = (
    *TINY, "--config", str(RECIPES / "configs" / "demo.yaml"), "--vocab_size", "60", "--window", "2", "--logging_steps", "1",
    "--eval_steps", "2", "--eval_students", "1", "--long_steps", "6",
)  # fmt: skip


def parse(*argv: str) -> tuple[ptb.RecipeArguments, FarziConfig]:
    return parse_arguments(TYPES, ptb.QUICK, argv)


def script(folder: Path, launcher: tuple[str, ...], *argv: str) -> subprocess.CompletedProcess:
    """ptb.py in processes of its own, without a network and with an empty cache."""
    environment = {
        **os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "PYTHONPATH": str(RECIPES.parent),
        "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    command = [sys.executable, *launcher, str(RECIPES / "ptb.py"), *argv]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_a_config_gives_every_field_its_type(path):
    recipe, args = parse("--config", str(path))
    assert args.output_dir == f"outputs/{path.stem}"
    for kind, values in zip(TYPES, (recipe, args), strict=True):
        for name, hint in get_type_hints(kind).items():
            value = getattr(values, name, None)
            for number, allowed in ((float, (float, int)), (int, int)):
                if hint in (number, number | None) and value is not None:
                    assert isinstance(value, allowed), name
    in_file = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert in_file.items() <= {**vars(recipe), **vars(args)}.items()


def test_there_is_a_config_for_the_demo_the_quick_run_and_each_size_of_the_paper():
    assert {"demo", "ptb_quick", "ptb_10x50", "ptb_200x50", "ptb_400x50"} <= {path.stem for path in CONFIGS}
    assert parse()[0].config == str(ptb.QUICK)


def test_the_command_line_wins_over_the_file_and_the_file_over_defaults(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("learning_rate: 2e-2\ninner_epsilon: 1e-5\ninner_betas: [0.8, 0.9]\nresume: false\n")
    recipe, args = parse("--config", str(path), "--inner_epsilon", "1e-3", "--learner", '{"model_type": "farzi_rnn"}')
    assert (args.learning_rate, args.inner_epsilon, args.inner_betas) == (0.02, 0.001, [0.8, 0.9])
    assert (recipe.resume, recipe.learner) == (False, {"model_type": "farzi_rnn"})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("inner_step: 5", "unknown key 'inner_step': did you mean inner_steps?"),
        ("- 5", "holds a list"),
        ("inner_steps: [", "cannot be read"),
        ("dataset: wikitext", "'wikitext' is unknown; choose from ptb, sample"),
        ("baselines: [none]", f"'none' is unknown; choose from {', '.join(BASELINES)}"),
        ("learner: {n_embd: 8}", "has no model_type"),
        ("learner: gpt2", "learner='gpt2' is not JSON"),
        ("num_students: 0", "give at least 1"),
        ("inner_steps: 0", "inner_steps=0 is not usable"),
    ],
)
def test_a_config_that_is_wrong_ends_in_one_line(tmp_path, content, message):
    path = tmp_path / "wrong.yaml"
    path.write_text(content)
    with pytest.raises(SystemExit) as stop:
        ptb.main(["--config", str(path)])
    assert message in stop.value.code.replace("\n", " ")


def test_without_data_it_names_the_sample_in_one_line(tmp_path):
    run = script(tmp_path, (), "--disable_tqdm", "true")
    assert run.returncode == 1
    assert run.stderr.count("\n") == 1
    assert "--dataset sample" in run.stderr


# -- checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def started(tmp_path, sequences, tokenizer):
    """A run of the recipe's kind, with settings over those of `tiny_trainer`, up to its first step."""

    def start(resume: bool = True, learner: str = "gpt2", exactly: bool = False, **settings):
        trainer = tiny_trainer(tmp_path / "run", sequences, tokenizer, **{**SAVED, **settings})
        recipe = {"learner": {"model_type": learner}, **trainer.args.to_recipe()}
        checkpoint = find_checkpoint(trainer.args, recipe, resume, ptb.OUTPUTS, exactly)
        begin_run(trainer, recipe, checkpoint)
        return trainer, checkpoint

    return start


SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 2, "lr_scheduler_type": "constant"}


def test_a_run_goes_on_with_what_may_change_and_says_what_may_not(started, tmp_path):
    trainer, checkpoint = started()
    assert checkpoint is None
    trainer.train()
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
    assert recipe == {"learner": {"model_type": "gpt2"}, **trainer.args.to_recipe()}
    trainer, checkpoint = started(max_steps=3, learning_rate=0.001, inner_learning_rate=0.01)
    assert checkpoint == str(tmp_path / "run" / "checkpoint-2")
    history = [
        {
            "step": 2,
            "changed": {"inner_learning_rate": [0.05, 0.01], "learning_rate": [0.05, 0.001], "max_steps": [2, 3]},
        }
    ]
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text(encoding="utf-8"))
    assert (recipe["learning_rate"], recipe["history"]) == (0.001, history)
    remedy = "give that to go on from it, or choose another output_dir to start anew; --no_resume discards the checkpoints in"
    with pytest.raises(
        ValueError, match=rf"num_sequences=5 cannot be changed on the way: .*checkpoint-2 was made with 4; {remedy}"
    ):
        started(num_sequences=5)
    with pytest.raises(ValueError, match=r"learner\.model_type='llama' cannot be changed .* was made with 'gpt2'"):
        started(learner="llama")
    with pytest.raises(ValueError, match="window=2 cannot be changed"):  # of a cell of a table
        started(max_steps=3, learning_rate=0.001, inner_learning_rate=0.01, window=2, exactly=True)
    assert (tmp_path / "run" / "checkpoint-2").exists()


def test_a_new_run_discards_checkpoints_of_ours_alone(started, tmp_path):
    started()[0].train()
    notes = tmp_path / "run" / "checkpoint-notes" / "precious.txt"
    notes.parent.mkdir()
    notes.write_text("precious")
    assert started(resume=False, num_sequences=5)[1] is None
    assert not (tmp_path / "run" / "checkpoint-2").exists()
    assert notes.read_text() == "precious"
    foreign = tmp_path / "run" / "checkpoint-500" / "weights.bin"
    foreign.parent.mkdir()
    foreign.write_text("precious")
    with pytest.raises(
        ValueError,
        match=r"output_dir='.*run' holds checkpoint-500, which .* choose another output_dir, or move it away",
    ):
        started(resume=False)
    assert foreign.read_text() == "precious"


@pytest.mark.parametrize(
    ("name", "script"),
    [
        ("recipe.yaml", ptb.main),
        ("table.md", ptb.main),
        ("plots/tokens.png", ptb.main),
        ("plots", ptb.main),
        ("summary/README.md", ptb.main),
        ("summary/config.json", ptb.main),
        ("checkpoint-500/weights.bin", ptb.main),
        ("table.csv", recsys.main),
        ("recipe.yaml", recsys.main),
        ("comparison_auc.png", recsys.main),
        ("split-1/results.json", recsys.main),
        ("split-1/recipe.yaml", recsys.main),
        ("split-1/summary/README.md", recsys.main),
        ("split-1/checkpoint-2/notes", recsys.main),
        ("table.md", finetune.main),
        ("comparison.png", finetune.main),
        ("recipe.yaml", finetune.main),
        ("card/table.json", objectives.main),
        ("card/comparison.png", objectives.main),
        ("card/table.md", sample_efficiency.main),
        ("card/sample_efficiency.png", sample_efficiency.main),
        ("runs/farzi-4-8/seed-1/cell.json", sample_efficiency.main),
        ("runs/farzi-4-8/seed-1/summary.safetensors", sample_efficiency.main),
    ],
)
def test_what_no_recipe_wrote_is_refused_before_any_work(tmp_path, name, script, monkeypatch):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("eggs: 3\nflour: 500 g\n")
    before = sorted((tmp_path / "out").rglob("*"))
    for module, function in ((ptb, "load_splits"), (recsys, "load")):
        monkeypatch.setattr(module, function, lambda *_: pytest.fail("it has begun to work"))
    arguments = {
        ptb.main: [*SMALL, "--output_dir", str(tmp_path / "out"), "--no_resume"],
        recsys.main: [*TINY, "--dataset", "sample", "--splits", "0", "1", "--output_dir", str(tmp_path / "out")],
        finetune.main: ["--summary", "no/such", "--output_dir", str(tmp_path / "out")],
        objectives.main: [*COMPARED, *places(tmp_path / "out")],
        sample_efficiency.main: [*COMPARED, "--budgets", "4", *places(tmp_path / "out")],
    }[script]
    with pytest.raises(SystemExit) as stop:
        script(arguments)
    assert path.name in stop.value.code or path.parent.name in stop.value.code
    assert "choose another" in stop.value.code
    assert "\n" not in stop.value.code
    assert path.read_text() == "eggs: 3\nflour: 500 g\n"
    assert sorted((tmp_path / "out").rglob("*")) == before


# -- the table -------------------------------------------------------------------------------------------------------


def test_the_table_lines_up_and_the_file_keeps_every_number(tmp_path):
    lines = markdown([{"trained on": "a", "perplexity": "1.0"}, {"trained on": "longer", "perplexity": "12,345.6"}])
    assert [len(line) for line in lines.splitlines()] == [27, 27, 27, 27]
    save_csv([{"method": "a", "perplexity_interval": [1.0, 2.0]}, {"method": "b", "steps": 3}], tmp_path / "t.csv")
    assert read_csv(tmp_path / "t.csv") == [
        {"method": "a", "perplexity_interval": "[1.0, 2.0]", "steps": ""},
        {"method": "b", "perplexity_interval": "", "steps": "3"},
    ]


def test_a_row_is_the_mean_over_students_and_its_interval_holds_it():
    nll = np.random.default_rng(0).gamma(2.0, size=(2, 50, 6))  # two students, 50 sequences of 6 tokens
    statistics = [np.stack([values, values < 1, np.ones_like(values)], axis=-1) for values in nll]
    row = metrics_row("method", statistics, nbytes=7)
    perplexities = np.exp(nll.mean(axis=(1, 2)))
    assert row["perplexity"] == pytest.approx(perplexities.mean())
    assert row["perplexity_std"] == pytest.approx(perplexities.std(ddof=1))
    assert row["perplexity_interval"][0] < row["perplexity"] < row["perplexity_interval"][1]


def test_students_are_measured_as_the_trainer_does_and_drawn_subsets_have_their_size(tmp_path, sequences, tokenizer):
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, eval_students=1)
    c = LanguageModelComparison(trainer, sequences, trainer.learner.model.config, num_students=2, long_steps=3)
    measured = token_metrics(c.statistics(c.student(trainer.train_student(0)), sequences["validation"]))
    expected = trainer.evaluate()
    assert measured == pytest.approx({name: expected[f"eval_{name}"] for name in measured}, rel=1e-4)
    assert c.tokens_per_step == 16
    assert len(c.draw_sequences(0)) == trainer.args.num_sequences
    lengths = flatten_sequences(c.draw_tokens(100, seed=0))[1]
    assert lengths.sum() - lengths[-1] < 100 <= lengths.sum()
    assert c.nbytes(sequences["test"]) == len(flatten_sequences(sequences["test"])[0])  # 54 entries: a byte each
    # Students on real data learn, and another seed is another student.
    untrained, trained, other = (
        c.train_on_real(sequences["train"], steps, seed) for steps, seed in ((1, 0), (30, 0), (30, 1))
    )
    before, after, another = (
        token_metrics(c.statistics(student, sequences["test"]))["perplexity"] for student in (untrained, trained, other)
    )
    assert after < 0.8 * before
    assert after != another


# -- whole runs ------------------------------------------------------------------------------------------------------


def test_a_run_leaves_table_plots_and_a_summary_that_loads_and_goes_on_when_started_again(tmp_path, capfd):
    output = tmp_path / "run"
    ptb.main([*SMALL, "--output_dir", str(output), "--disable_tqdm", "false"])
    said, shown = capfd.readouterr()
    for bar in (
        "Data set sample …",
        "Start of the summary …",
        "Choosing κ of the start",
        "Farzi, 0 outer steps",
        "1 student",
    ):
        assert bar in shown
    assert not re.findall(r".*(?:[Ww]arn|loss_type|pin_memory).*", shown)  # a first minute without them
    assert not re.search(r"\d+it \[", shown)  # a bar without an end, or past it
    methods = [
        "Farzi [4×8]", "Farzi, 0 outer steps", "Farzi, stock Trainer", "full data", "full data, long", "random, same sequences",
        "random, stopped early", "random, same tokens", "random, same bytes", "head (longest)", "unigram", "interpolated bigram",
    ]  # fmt: skip
    metrics = json.loads((output / "summary" / "metrics.json").read_text())
    assert [row["method"] for row in metrics["table"]] == methods
    assert [row["method"] for row in read_csv(output / "table.csv")] == methods
    table = (output / "table.md").read_text()
    assert table in said
    assert all(f"| {method} " in table for method in methods)
    assert (metrics["world_size"], metrics["outer_steps"], metrics["vocabulary"]) == (1, 2, 64)
    assert metrics["distillation_seconds"] > 0
    for name in ("distillation", "comparison", "tokens"):
        assert (output / "plots" / f"{name}.png").read_bytes() == (
            output / "summary" / "plots" / f"{name}.png"
        ).read_bytes()

    rows = load_dataset(str(output / "summary"), split="train", cache_dir=str(tmp_path / "cache"))
    farzi = FarziData.from_pretrained(output / "summary")
    np.testing.assert_array_equal(np.array(rows["latents"]), farzi.latents.detach().numpy())
    assert metrics["table"][0]["bytes"] == farzi.nbytes
    assert "interpolated bigram" in (output / "summary" / "README.md").read_text()

    recipe, args = parse("--config", str(output / "summary" / "recipe.yaml"))
    assert {**recipe.to_recipe(), **args.to_recipe()} == yaml.safe_load((output / "recipe.yaml").read_text())

    ptb.main([*SMALL, "--output_dir", str(output), "--baselines", "head"])
    assert f"going on from {output / 'checkpoint-2'}" in capfd.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize(
    "launcher",
    [
        ("-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "29613"),
        ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
         "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "29614"),
    ],
    ids=["torchrun", "accelerate"],
)  # fmt: skip
def test_two_processes_are_two_and_one_of_them_speaks(tmp_path, launcher, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    run = script(tmp_path, launcher, *SMALL, "--output_dir", "run", "--baselines", "head")
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("world size 2") == 1
    metrics = json.loads((tmp_path / "run" / "summary" / "metrics.json").read_text())
    assert metrics["world_size"] == 2
    assert [row["method"] for row in metrics["table"]][:3] == ["Farzi [4×8]", "Farzi, 0 outer steps", "head (longest)"]
