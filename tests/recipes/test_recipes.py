"""The recipes as their users meet them: what they say when something is wrong, and a whole run of
`ptb.py` with all that it leaves.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml
from datasets import load_dataset
from tiny_recipes import COMPARED, DEMO, DEMO_RECSYS, RECIPES, places

pytest.importorskip("matplotlib")
import finetune
import objectives
import ptb
import recsys
import sample_efficiency

from farzi_hf import FarziConfig, FarziData, FarziTrainer
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.report import RunSettings, TaskData


def script(folder: Path, launcher: tuple[str, ...], *argv: str) -> subprocess.CompletedProcess:
    """ptb.py in processes of its own, without a network and with an empty cache. If they wait for
    ever, the test fails with the stacks of all of them.
    """
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "cache"),
        "PYTHONPATH": str(RECIPES.parent),
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *launcher, str(RECIPES / "ptb.py"), *argv]
    said = [folder / name for name in ("stdout", "stderr")]
    # Files: a pipe has no end as long as any process has it open, also one that was left behind.
    with open(said[0], "w") as out, open(said[1], "w") as err:
        started = subprocess.Popen(command, cwd=folder, env=environment, stdout=out, stderr=err)
        try:
            code = started.wait(_LONGEST)
        except subprocess.TimeoutExpired:
            code = None
            end_with_stacks(started.pid)
            started.wait()
    stdout, stderr = (path.read_text(encoding="utf-8") for path in said)
    if code is None:
        pytest.fail(f"not over after {_LONGEST} s\n{stdout[-3000:]}\n{stderr[-20000:]}")
    return subprocess.CompletedProcess(command, code, stdout, stderr)


def end_with_stacks(pid: int) -> None:
    """Ends a process and all that it has started; those write their stacks to standard error."""
    started = psutil.Process(pid)
    processes = [*started.children(recursive=True), started]
    for process in processes:
        # One that does not end of itself must not keep the others from being ended.
        with suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
            process.send_signal(signal.SIGABRT)
            process.wait(_TO_WRITE)
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


_LONGEST = 250  # seconds of a run that takes twenty
_TO_WRITE = 10  # seconds for its stacks


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


def start_row(output: Path) -> dict[str, str]:
    return next(
        row for row in read_csv(output / "table.csv") if row["method"] == "Farzi, 0 outer steps"
    )


def test_without_data_it_names_the_sample_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="--dataset sample") as stop:
        ptb.main(["--disable_tqdm", "true"])
    assert "\n" not in stop.value.code
    assert not capsys.readouterr().err


FOREIGN = {
    ptb: (
        "recipe.yaml table.md plots/tokens.png plots summary/README.md summary/config.json"
        " checkpoint-500/weights.bin"
    ),
    recsys: (
        "table.csv recipe.yaml comparison_auc.png split-1/results.json split-1/recipe.yaml"
        " split-1/summary/README.md split-1/checkpoint-2/notes"
    ),
    finetune: "table.md comparison.png recipe.yaml",
    objectives: "card/table.json card/comparison.png",
    sample_efficiency: (
        "card/table.md card/sample_efficiency.png runs/farzi-4-8/seed-1/cell.json"
        " runs/farzi-4-8/seed-1/summary.safetensors"
    ),
}
"""Files of others, by the recipe that would overwrite them."""


@pytest.mark.parametrize(
    ("script", "name"), [(recipe, name) for recipe in FOREIGN for name in FOREIGN[recipe].split()]
)
def test_what_no_recipe_wrote_is_refused_before_any_work(tmp_path, script, name, monkeypatch):
    path = tmp_path / "out" / name
    path.parent.mkdir(parents=True)
    path.write_text("eggs: 3\nflour: 500 g\n")
    before = sorted((tmp_path / "out").rglob("*"))
    monkeypatch.setattr(TaskData, "splits", lambda *_: pytest.fail("it has begun to work"))
    arguments = {
        ptb: [*DEMO, "--output_dir", str(tmp_path / "out")],
        recsys: [*DEMO_RECSYS, "--splits", "0", "1", "--output_dir", str(tmp_path / "out")],
        finetune: ["--summary", "no/such", "--output_dir", str(tmp_path / "out")],
        objectives: ["--form", "paper", *COMPARED, *places(tmp_path / "out")],
        sample_efficiency: [*COMPARED, "--budgets", "4", *places(tmp_path / "out")],
    }[script]
    with pytest.raises(SystemExit) as stop:
        script.main(arguments)
    assert path.name in stop.value.code or path.parent.name in stop.value.code
    assert "choose another" in stop.value.code
    assert "\n" not in stop.value.code
    assert path.read_text() == "eggs: 3\nflour: 500 g\n"
    assert sorted((tmp_path / "out").rglob("*")) == before


@pytest.mark.parametrize(
    "script",
    [pytest.param(ptb, marks=pytest.mark.slow), finetune, objectives, sample_efficiency],
)
def test_results_of_other_settings_or_another_recipe_stay(
    finished_text, tmp_path, small_data, script, monkeypatch
):
    output = shutil.copytree(
        finished_text.output, tmp_path / "run", ignore=shutil.ignore_patterns("checkpoint-*")
    )
    before = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    monkeypatch.setattr(TaskData, "splits", lambda *_: pytest.fail("it has begun to work"))
    card = [*places(tmp_path), "--card_dir", str(output)]
    arguments = {
        ptb: [*DEMO, "--learning_rate", "0.5", "--output_dir", str(output)],
        finetune: ["--summary", str(output / "summary"), "--output_dir", str(output)],
        objectives: ["--form", "paper", *COMPARED, *card],
        sample_efficiency: [*COMPARED, "--budgets", "4", *card],
    }[script]
    with pytest.raises(SystemExit, match=r"choose another folder") as stop:
        script.main(arguments)
    assert "\n" not in stop.value.code
    assert script != ptb or re.search(r"settings \(learning_rate .* → 0.5\)", stop.value.code)
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == before


# -- whole runs ------------------------------------------------------------------------------------


def test_a_run_shows_what_it_does_and_how_far_it_is(finished_text):
    shown = finished_text.shown
    assert "Farzi, 0 outer steps" in shown
    assert "Students" in shown
    assert not re.findall(
        r".*(?:[Ww]arn|loss_type|pin_memory).*", shown
    )  # a first minute without them
    assert not re.search(r"\d+it \[", shown)  # a bar without an end, or past it


def test_a_run_leaves_a_table_and_plots(finished_text):
    output = finished_text.output
    methods = [
        "Farzi [4×8]",
        "Farzi, 0 outer steps",
        "Farzi, stock Trainer",
        "packed teacher, made-up inputs, warm start",
        "teacher",
        "full data",
        "full data, same seconds",
        "full data, long",
        "random, same sequences",
        "random, stopped early",
        "10 % of the rows, stopped early",
        "random, same bytes",
        "random, same bytes, stopped early",
        "head (longest)",
        "unigram",
        "interpolated bigram",
        "Kneser-Ney 5-gram, counted",
    ]
    metrics = json.loads((output / "summary" / "metrics.json").read_text())
    assert [row["method"] for row in metrics["table"]] == methods
    rows = csv.DictReader((output / "table.csv").read_text(encoding="utf-8").splitlines())
    assert [row["method"] for row in rows] == methods
    table = (output / "table.md").read_text()
    assert table.partition("\n\n")[0] in finished_text.printed
    assert all(f"| {method} " in table for method in methods)
    assert (metrics["world_size"], metrics["outer_steps"], metrics["vocabulary"]) == (1, 2, 64)
    assert metrics["distillation_seconds"] > 0
    assert (metrics["table"][3]["steps"], metrics["table"][3]["students"]) == (4, 2)
    card = (output / "summary" / "README.md").read_text()
    assert (
        f"{metrics['data_bytes']:,} bytes, coded; {metrics['data_bytes_flat']:,} in flat bits;"
        f" {metrics['data_bytes_after_xz']:,} bytes after xz -9"
    ) in card
    for name in ("distillation", "comparison", "tokens"):
        ours, published = (output / place / "plots" / f"{name}.png" for place in (".", "summary"))
        assert ours.read_bytes() == published.read_bytes()


def test_a_run_leaves_a_summary_that_loads_with_its_recipe(finished_text, tmp_path):
    output = finished_text.output
    rows = load_dataset(str(output / "summary"), split="train", cache_dir=str(tmp_path / "cache"))
    farzi = FarziData.from_pretrained(output / "summary")
    np.testing.assert_array_equal(np.array(rows["latents"]), farzi.latents.detach().numpy())
    metrics = json.loads((output / "summary" / "metrics.json").read_text())
    assert metrics["table"][0]["bytes"] == farzi.nbytes
    assert "interpolated bigram" in (output / "summary" / "README.md").read_text()
    types = (RunSettings, FarziConfig)
    settings, args = parse_arguments(
        types, ptb.CONFIG, ["--config", str(output / "summary" / "recipe.yaml")]
    )
    recipe = {**settings.load().recipe([args.seed]), **args.to_recipe()}
    # That rows are shown belongs to the run alone.
    of_the_run = yaml.safe_load((output / "recipe.yaml").read_text())
    assert {**recipe, "show_rows": True} == of_the_run


@pytest.mark.usefixtures("no_figures")
def test_a_run_that_goes_on_does_not_make_its_start_again(
    finished_text, tmp_path, small_data, monkeypatch
):
    output = shutil.copytree(finished_text.output, tmp_path / "run")
    before = start_row(output)
    for name in ("table.csv", "results.json"):
        (output / name).unlink()
    monkeypatch.setattr(FarziTrainer, "tune_initialization", None)
    ptb.main([*DEMO, "--disable_tqdm", "false", "--output_dir", str(output)])
    assert start_row(output) == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize(
    ("inputs", "words"),
    [("drawn", "drawn ids"), ("written", "written ids"), ("tokens", "fixed ids")],
)
def test_rows_of_a_summary_that_carries_its_teacher(tmp_path, small_data, inputs, words):
    """Farzi is what outer steps have made. Without them, it is a packed teacher."""
    form = (
        "--inputs",
        inputs,
        "--labels",
        "teacher",
        "--storage",
        "coded5",
        "--baselines",
        "packed_teacher",
        "teacher",
        "--eval_strategy",
        "no",
    )
    warm = f"packed teacher, {words}, warm start"
    started = [warm, f"{warm}, stock Trainer", "teacher"]
    moved = [
        "Farzi [4×8]",
        f"packed teacher, {words}, random start (0 outer steps)",
        "Farzi, stock Trainer",
        "teacher",
    ]
    for steps, methods in (("0", started), ("1", moved)):
        ptb.main([*DEMO, *form, "--max_steps", steps, "--output_dir", str(tmp_path / steps)])
        table = read_csv(tmp_path / steps / "table.csv")
        assert [row["method"] for row in table] == [
            *methods,
            "unigram",
            "interpolated bigram",
            "Kneser-Ney 5-gram, counted",
        ]
        nbytes = str(FarziData.from_pretrained(tmp_path / steps / "summary").nbytes)
        assert {row["bytes"] for row in table if row["method"] in (methods[0], *methods[-2:])} == {
            nbytes
        }


@pytest.mark.slow
def test_two_processes_are_two_and_one_of_them_speaks(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    config = str(RECIPES / "accelerate" / "two_cpu_processes.yaml")
    launcher = (
        "-m",
        "accelerate.commands.launch",
        "--config_file",
        config,
        "--main_process_port",
        "0",  # any that is free
    )
    run = script(tmp_path, launcher, *DEMO, "--output_dir", "run", "--baselines", "head")
    assert run.returncode == 0, run.stderr[-3000:]
    assert run.stdout.count("2 processes on cpu") == 1
    metrics = json.loads((tmp_path / "run" / "summary" / "metrics.json").read_text())
    assert metrics["world_size"] == 2
    assert [row["method"] for row in metrics["table"]][:3] == [
        "Farzi [4×8]",
        "Farzi, 0 outer steps",
        "head (longest)",
    ]
    before = start_row(tmp_path / "run")
    for name in (
        "start.json",
        "results.json",
    ):  # as if the run had ended before them; then both make the start again
        (tmp_path / "run" / name).unlink()
    more = script(tmp_path, launcher, *DEMO, "--output_dir", "run", "--baselines", "head")
    assert more.returncode == 0, more.stderr[-3000:]
    assert "going on from" in more.stdout
    assert {**start_row(tmp_path / "run"), "seconds": ""} == {**before, "seconds": ""}
