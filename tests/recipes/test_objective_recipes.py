"""The recipes that compare objectives and count trajectories: settings, cells that are run once,
tables.
"""

from __future__ import annotations

import csv
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open
from tiny_recipes import COMPARED, CONFIGS, GPT2, GRU4REC, START, places

pytest.importorskip("matplotlib")
import objectives
import trajectory_count
from experiment import Experiment, record
from objectives import FORMS

pytestmark = pytest.mark.usefixtures("small_data")
LEARNERS = {"sample": GPT2, "sample_interactions": GRU4REC}
OMEGA = (
    "--num_recorded",
    "2",
    "--trajectory_steps",
    "4",
    "--save_every",
    "2",
    "--last_start",
    "2",
    "--synthetic_steps",
    "2",
    "--expert_steps",
    "2",
)


def tiny(dataset: str, folder: Path) -> list[str]:
    named = ["--dataset", dataset, "--form", "paper", "--learner", LEARNERS[dataset]]
    return [*named, *COMPARED, *START, *OMEGA, *places(folder)]


def read_csv(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", sorted((CONFIGS / "tables").glob("objectives_*.yaml")), ids=lambda path: path.stem
)
def test_every_config_can_run(path, tmp_path):
    """MTT finds checkpoints where it looks for them."""
    form = "own" if path.stem.startswith(FORMS["own"]) else "paper"
    dataset, scale = path.stem.removeprefix(f"{FORMS[form]}_").rsplit("_", 1)
    e = experiment(
        "--form", form, "--dataset", dataset, "--scale", scale, "--card_dir", str(tmp_path)
    )
    args, recording = e.args, e.recording
    assert args.output_dir == f"outputs/{path.stem}"
    assert e.data.settings.dataset == dataset
    assert (
        recording.trajectory_steps % recording.save_every
        == args.expert_steps % recording.save_every
        == 0
    )
    assert args.last_start + args.expert_steps <= recording.trajectory_steps
    assert args.synthetic_steps < args.expert_steps
    cells = objectives.cells(e)
    names = [cell.method for cell in cells]
    assert names[:4] == ["DC, SGD", "DC, Adam", "MM, SGD", "MM, Adam"]
    assert len({cell.slug for cell in cells}) == len(names) == 15
    for cell in cells:
        replace(args, **cell.settings)  # every row is one that can be distilled


def experiment(*argv: str) -> Experiment:
    argv = [*argv, "--use_cpu", "true"]
    return Experiment.parse("objectives", "Objectives", argv, forms=FORMS)


# -- whole runs ------------------------------------------------------------------------------------


def test_each_split_has_trajectories_of_its_own(tmp_path):
    """Of another split they would have seen the test users."""
    folder = tmp_path / "omega"
    e = experiment(*tiny("sample_interactions", tmp_path), "--trajectories", str(folder))
    for seed in (0, 3):
        record(e.data, e.args, seed, e.recording)
    manifests = [json.loads((folder / f"seed-{i}" / "manifest.json").read_text()) for i in (0, 3)]
    assert manifests[0]["data"] != manifests[1]["data"]
    with safe_open(folder / "seed-3" / "trajectory-00001.safetensors", framework="pt") as shard:
        assert all(len(shard.get_tensor(name)) == 3 for name in manifests[1]["parameters"])


@pytest.mark.slow
def test_the_curve_over_the_number_of_trajectories(tmp_path):
    argv = [*tiny("sample_interactions", tmp_path), "--fresh_start_fraction", "0"]
    trajectory_count.main([*argv, "--counts", "0", "1", "2"])
    card = tmp_path / "card"
    rows = json.loads((card / "table.json").read_text(encoding="utf-8"))["rows"]
    assert [(row["method"], row["trajectories"]) for row in rows] == [
        (f"trajectories: {i}", i) for i in range(3)
    ]
    assert len({row["auc"] for row in rows}) == 3
    assert (card / "trajectory_count.png").stat().st_size > 1000
    times = {path: os.stat(path).st_mtime_ns for path in (tmp_path / "runs").glob("*/*/cell.json")}
    trajectory_count.main([*argv, "--counts", "0", "1"])
    assert {
        path: os.stat(path).st_mtime_ns for path in times
    } == times  # more of Ω in the folder change nothing


@pytest.mark.slow
@pytest.mark.parametrize(
    "methods",
    [("MM", "MTT"), pytest.param(("DC", "MM", "MTT", "Farzi"), marks=pytest.mark.slow)],
    ids=len,
)
def test_objectives_with_labels_of_their_own(tmp_path, methods):
    """Each objective changes the labels in its own way; a pool of learners is only for those that
    can use one.
    """
    own = (
        "--form",
        "own",
        "--labels",
        "own",
        "--inputs",
        "tokens",
        "--learner_pool",
        "2",
        "--inner_steps_min",
        "3",
        "--window",
        "1",
    )
    argv = [*tiny("sample", tmp_path), *own, "--seeds", "0", "--num_students", "1"]
    objectives.main([*argv, "--methods", *methods, "no outer step"])
    table = json.loads((tmp_path / "card" / "table.json").read_text(encoding="utf-8"))
    assert (table["labels"], len(table["rows"])) == ("own", 2 * len(methods) + 2)
    perplexity = {row["method"]: row["perplexity"] for row in table["rows"]}
    assert len(set(perplexity.values())) == len(table["rows"])
