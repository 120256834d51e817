"""The recipes of the paper's tables and figures, on the embedded data: cells, findings that are
computed, cards.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from tiny_recipes import COMPARED, CONFIGS, GPT2, RECIPES, SASREC, START, USERS, places

pytest.importorskip("matplotlib")
import cold_start
import cross_architecture
import inner_optimizers
import inputs
import objectives
import privacy
import regularization
import sample_efficiency
from experiment import OWN_FORM, PAPER_FORM, Experiment

from farzi_hf.report import Comparison, RunSettings
from farzi_hf.tasks import Recommendation

pytestmark = pytest.mark.usefixtures("small_data")
LEARNERS = {"sample": GPT2, "sample_interactions": SASREC}
OWN = ("--inputs", "tokens", "--labels", "own", "--max_steps", "0", "--num_students", "1")
"""Of summaries with the labels of a teacher."""

# Compiling higher's bytecode, at its first import only, finds an `is` with a literal.
higher_warns = pytest.mark.filterwarnings("ignore:.*is. with .*literal:SyntaxWarning")


def tiny(dataset: str, folder: Path, start: tuple[str, ...] = START) -> list[str]:
    learner = ["--learner", LEARNERS[dataset]]
    return [
        "--dataset",
        dataset,
        *COMPARED,
        *start,
        "--save_strategy",
        "no",
        *places(folder),
        *learner,
    ]


def card(folder: Path) -> dict:
    """The card's JSON, after a look at what has to lie beside it."""
    table = json.loads((folder / "card" / "table.json").read_text(encoding="utf-8"))
    assert {"seeds", "torch", "scale", "seconds of all cells"} <= set(table)
    with (folder / "card" / "table.csv").open(encoding="utf-8") as file:
        assert [row["method"] for row in csv.DictReader(file)] == [
            row["method"] for row in table["rows"]
        ]
    markdown = (folder / "card" / "table.md").read_text(encoding="utf-8")
    assert markdown.splitlines()[2] == table["findings"][0]
    assert "ranks" not in (folder / "card" / "table.json").read_text(encoding="utf-8")
    return table


def modified(folder: Path) -> dict[Path, int]:
    return {path: os.stat(path).st_mtime_ns for path in (folder / "runs").glob("*/*/cell.json")}


def methods(table: dict) -> list[str]:
    return [row["method"] for row in table["rows"]]


# -- settings --------------------------------------------------------------------------------------


TABLES = sorted(
    path
    for path in (CONFIGS / "tables").glob("*.yaml")
    if path.stem.startswith(("paper_", "own_", "inputs_"))
)


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.stem)
def test_every_config_can_run(path, tmp_path):
    form, dataset, scale = re.fullmatch("([a-z]+)_(.+)_(.+)", path.stem).groups()
    argv = [
        "--dataset",
        dataset,
        "--scale",
        scale,
        "--form",
        form,
        "--card_dir",
        str(tmp_path),
        "--use_cpu",
        "true",
    ]
    e = Experiment.parse("any", "Any", argv, forms=OWN_FORM | PAPER_FORM | {"inputs": "inputs"})
    assert e.args.output_dir == f"outputs/{path.stem}"
    assert e.data.settings.dataset == dataset
    if form == "inputs":
        assert (e.args.inputs, e.args.labels, e.args.max_steps) == ("tokens", "own", 0)
    else:
        assert e.args.num_sequences in e.settings.budgets  # a summary that other tables find again


@pytest.mark.parametrize(
    ("recipe", "argv", "message"),
    [
        (
            sample_efficiency,
            ["--budgets", "5", "5"],
            "budgets=[5, 5] is not usable: give a list of different numbers of at least 1",
        ),
        (
            sample_efficiency,
            ["--dataset", "magazine", "--scale", "paper"],
            "form='own' has no settings for magazine at scale paper; choose",
        ),
        (
            privacy,
            ["--initialization", "spectral"],
            "initialization='spectral': other starts are computed from the data",
        ),
        (
            cross_architecture,
            ["--teachers", "LSTM"],
            "teachers: 'LSTM' is unknown; choose from Transformer, RNN, Llama, NeoX",
        ),
        (
            cold_start,
            [],
            "--dataset sample has no users and items: choose a data set of interactions",
        ),
        (
            regularization,
            ["--label_dims", "8"],
            "label_dims=[8] leaves nothing to compare with; give at least two numbers",
        ),
        (
            objectives,
            ["--form", "paper", "--methods", "magic"],
            f"methods: 'magic' is unknown; choose from {'; '.join(objectives.METHODS)}",
        ),
    ],
)
def test_wrong_settings_end_in_one_line(recipe, argv, message, tmp_path):
    """A private summary does not start from the data, which has no ε."""
    with pytest.raises(SystemExit) as stop:
        recipe.main([*tiny("sample", tmp_path, ()), *argv])
    assert str(stop.value.code).startswith(f"{recipe.__name__}.py: ")
    assert message in stop.value.code


def test_make_runs_recipes_that_there_are_on_data_sets_that_they_know():
    makefile = (RECIPES.parent / "Makefile").read_text(encoding="utf-8")
    runs = makefile.partition("PAPER := ")[2].partition("\n\n")[0].replace("\\\n", " ").split()
    forms = dict.fromkeys(
        ("sample_efficiency", "cross_architecture", "cold_start", "regularization"), "own"
    )
    forms |= {
        "objectives": "objectives_own",
        "trajectory_count": "objectives_own",
        "inner_optimizers": "paper",
    }
    assert {run.partition(":")[0] for run in runs} >= set(forms)
    for recipe, _, dataset in (run.partition(":") for run in runs):
        assert (RECIPES / "paper" / f"{recipe}.py").exists()
        assert (CONFIGS / "tables" / f"{forms.get(recipe, recipe)}_{dataset}_quick.yaml").exists()
        assert recipe != "cold_start" or RunSettings(dataset=dataset).task_class is Recommendation


# -- whole runs ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "metric", "counted"),
    [
        ("sample", "perplexity", ["unigram", "interpolated bigram", "Kneser-Ney 3-gram, counted"]),
        pytest.param(
            "sample_interactions",
            "hr@100",
            ["popularity", "item bigram", "rules of sequences, counted"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_sample_efficiency(tmp_path, capsys, dataset, metric, counted):
    argv = [*tiny(dataset, tmp_path), "--budgets", "2", "5"]
    sample_efficiency.main(argv)
    table = card(tmp_path)
    patterns = (
        "Farzi [{}×8]",
        "random, {} sequences",
        "random, bytes of [{}×8]",
        "head (longest), {} sequences",
    )
    sized = [pattern.format(size) for pattern in patterns for size in (2, 5)]
    assert methods(table) == [*sized, "full data", "full data, long", *counted]
    assert all(metric in row for row in table["rows"])
    assert (
        table["rows"][1]["bytes"] - table["rows"][0]["bytes"] == 3 * 8 * 4 * 4
    )  # latents; the decoder is the same
    assert table["findings"][0].startswith(
        "Of 6 statements of the paper that this table can decide"
    )
    assert len(table["findings"]) == 8
    assert "of 2 seeds, 4 and 4 students" in table["findings"][1]
    assert (tmp_path / "card" / "sample_efficiency.png").stat().st_size > 1000
    text = (tmp_path / "card" / "table.md").read_text(encoding="utf-8")
    assert "| share of full data's quality, %" in text
    assert "\n| [5×8] " in text
    times = modified(tmp_path)
    assert len(times) == 2 * 10
    changed = next(iter(times))
    changed.unlink()
    sample_efficiency.main(argv)
    assert {path for path, time in modified(tmp_path).items() if time != times[path]} == {changed}
    assert [row["method"] for row in card(tmp_path)["rows"]] == methods(table)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dataset", "teachers", "names"),
    [
        ("sample", ["Transformer", "Llama"], ["Transformer", "RNN", "Llama", "NeoX"]),
        ("sample_interactions", [], ["SASRec", "GRU4Rec", "FMLP"]),
    ],
)
def test_cross_architecture(tmp_path, dataset, teachers, names):
    argv = [
        *tiny(dataset, tmp_path),
        "--num_students",
        "1",
        *(["--teachers", *teachers] if teachers else []),
    ]
    teachers = teachers or names
    cross_architecture.main(argv)
    table = card(tmp_path)
    pairs = [f"{teacher} → {student}" for teacher in teachers for student in names]
    assert sorted(methods(table)[: len(pairs)]) == sorted(pairs)
    assert methods(table)[len(pairs) :] == [
        f"{row} → {name}" for name in names for row in ("full data", "full data, long")
    ]
    summaries = list((tmp_path / "runs").glob("*/*/summary.safetensors"))
    assert len(summaries) == 2 * len(teachers)  # one per teacher and seed, whoever learns from it
    assert len(table["findings"]) == 1 + len(pairs) + len(teachers) * (len(teachers) - 1) + len(
        names
    )
    assert f" {names[-1]} |" in (tmp_path / "card" / "table.md").read_text(encoding="utf-8")
    assert len(modified(tmp_path)) == 2 * len(names) * (len(teachers) + 2)


@pytest.mark.slow
def test_inputs(tmp_path):
    inputs.main([*tiny("sample", tmp_path), *OWN])
    table = card(tmp_path)
    names = ["made up", "made up by root", "real windows", "covering windows"]
    assert methods(table) == [*names, "full data", "full data, long"]
    assert len({row["bytes"] for row in table["rows"][:4]}) == 1
    assert len({row["perplexity"] for row in table["rows"][:4]}) == 4
    assert table["findings"][0].startswith("**made up has ")
    assert (tmp_path / "card" / "inputs.png").stat().st_size > 1000


@pytest.mark.slow
def test_privacy(tmp_path):
    pytest.importorskip("opacus")
    argv = [
        *tiny("sample", tmp_path, ()),
        "--initialization",
        "random",
        "--num_students",
        "1",
        "--seeds",
        "0",
    ]
    privacy.main([*argv, "--noise_multipliers", "1", "--per_device_train_batch_size", "16"])
    rows = {row["method"]: row for row in card(tmp_path)["rows"]}
    names = ["no outer step", "not private", "clipped, no noise", "private, σ = 1"]
    assert list(rows)[:4] == names
    assert len({rows[name]["perplexity"] for name in names}) == 4
    assert rows[names[3]]["epsilon"] > 0
    assert rows[names[3]]["releases"] == 2
    assert "epsilon" not in rows["not private"]
    assert " ε |" in (tmp_path / "card" / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_other_architectures_learn_from_a_carried_teacher(tmp_path):
    carried = (
        "--inputs",
        "drawn",
        "--labels",
        "teacher",
        "--storage",
        "coded5",
        "--max_steps",
        "0",
        "--num_students",
        "1",
    )
    argv = [
        *tiny("sample_interactions", tmp_path, ()),
        *carried,
        "--seeds",
        "0",
        "--teachers",
        "GRU4Rec",
    ]
    cross_architecture.main(argv)
    table = {row["method"]: row for row in card(tmp_path)["rows"]}
    pairs = [f"GRU4Rec → {name}" for name in ("SASRec", "GRU4Rec", "FMLP")]
    assert len({table[name]["auc"] for name in pairs}) == 3
    assert len({table[name]["bytes"] for name in pairs}) == 1


@pytest.mark.slow
@pytest.mark.usefixtures("no_figures")
def test_a_summary_that_another_run_left_behind_is_not_taken_for_ours(tmp_path, monkeypatch):
    """A run with other settings makes a summary, and is interrupted while its students train."""

    def interrupted(comparison: Comparison, count: int) -> None:
        raise KeyboardInterrupt

    argv = [*tiny("sample", tmp_path), *OWN, "--seeds", "0", "--teachers", "Transformer"]
    cross_architecture.main(argv)
    expected = [row["perplexity"] for row in card(tmp_path)["rows"]]
    with monkeypatch.context() as patch:
        patch.setattr(Comparison, "on_summary_each", interrupted)
        with pytest.raises((KeyboardInterrupt, SystemExit)):
            cross_architecture.main([*argv, "--teacher_steps", "7"])
    (student,) = tmp_path.glob("*/transformer-rnn")
    shutil.rmtree(student)
    cross_architecture.main(argv)
    assert [row["perplexity"] for row in card(tmp_path)["rows"]] == expected


def test_tenths_are_equal_groups_and_the_largest_come_first():
    values = np.array([3, 9, 9, 1, 0, 4, 5, 6, 7, 8, 2, 10, 11, 12, 13, 14, 15, 16, 17, 18])
    found = cold_start.tenths(values)
    assert np.bincount(found).tolist() == [2] * 10
    assert (found[values.argmax()], found[values.argmin()]) == (0, 9)
    assert all(values[found == i].min() >= values[found == i + 1].max() for i in range(9))


def test_regions_are_paired_and_judged_by_what_the_paper_says():
    """There, a summary is worse than full data where much is known, and better elsewhere."""
    hits = {
        "Farzi": np.array([1.0] * 30 + [0.0] * 70),
        "full data": np.array([0.0] * 30 + [1.0] * 70),
    }
    found = cold_start.regions("Farzi", "full data", "users", hits, np.repeat(range(10), 10))
    assert [verdict for verdict, _ in found] == ["does not agree"] * 2
    assert found[0][1].endswith("HR@100: +100.0 points (+100.0 … +100.0, 30 test users).")
    found = cold_start.regions("Farzi", "full data", "items", hits, np.zeros(100))
    assert [verdict for verdict, _ in found] == [
        "agrees",
        "not decided",
    ]  # 30 − 70 points of all; nobody is elsewhere


@pytest.mark.slow
def test_cold_start(tmp_path):
    argv = [*tiny("sample_interactions", tmp_path), "--num_students", "1"]
    cold_start.main(argv)
    table = card(tmp_path)
    assert methods(table) == [
        "Farzi [4×8]",
        "full data",
        "full data, long",
        "popularity",
        "item bigram",
        "rules of sequences, counted",
    ]
    strata = json.loads((tmp_path / "card" / "strata.json").read_text(encoding="utf-8"))
    users = 2 * USERS // 10  # two splits
    for by in ("items", "users"):
        for row in table["rows"][:4]:
            mine = [cell for cell in strata if (cell["by"], cell["method"]) == (by, row["method"])]
            assert [cell["tenth"] for cell in mine] == list(range(1, 11))
            assert sum(cell["n"] for cell in mine) == users
            total = sum(cell["n"] * cell.get("hr@100", 0) for cell in mine) / users
            assert total == pytest.approx(row["hr@100"])
    assert {cell["n"] for cell in strata if cell["by"] == "users"} == {users // 10}
    assert (tmp_path / "card" / "cold_start.png").stat().st_size > 1000
    times = modified(tmp_path)
    # What one recipe has distilled, another one finds again.
    sample_efficiency.main([*argv, "--budgets", "4"])
    assert {path: os.stat(path).st_mtime_ns for path in times} == times


@pytest.mark.slow
def test_inner_optimizers(tmp_path):
    inner_optimizers.main(
        [*tiny("sample_interactions", tmp_path), "--logging_steps", "1", "--seeds", "0"]
    )
    table = card(tmp_path)
    by_name = {row["method"]: row for row in table["rows"]}
    names = ["Farzi, SGD", "Farzi, SGD with momentum", "Farzi, Adam", "Farzi, Adam by autograd"]
    assert list(by_name) == [*names, "full data", "full data, long"]
    assert by_name["Farzi, Adam by autograd"]["auc"] == pytest.approx(
        by_name["Farzi, Adam"]["auc"], abs=1e-3
    )
    assert all(by_name[name]["seconds_per_step"] > 0 for name in names)


@pytest.mark.parametrize(
    "dataset", ["sample", pytest.param("sample_interactions", marks=pytest.mark.slow)]
)
def test_regularization(tmp_path, dataset):
    """The largest e is compared with."""
    argv = [*tiny(dataset, tmp_path), *OWN, "--seeds", "0"]
    regularization.main([*argv, "--label_dims", "2", "8"])
    table = card(tmp_path)
    two, eight = table["rows"][:2]
    assert methods(table) == ["Farzi, e = 2", "Farzi, e = 8", "full data", "full data, long"]
    for row in (two, eight):
        assert row["gap"] == pytest.approx(row["validation_loss"] - row["train_loss"])
        assert 1 <= row["effective_rank"] <= row["rank"] + 0.1 <= 4 * 8 + 0.1
    assert two["bytes"] < eight["bytes"]
    assert two["effective_rank"] < eight["effective_rank"]
    assert all((tmp_path / "card" / name).stat().st_size > 1000 for name in regularization.FIGURES)
