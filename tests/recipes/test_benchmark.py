"""The benchmark: every method differentiates the same thing, cells end as they should, and results
survive being resumed.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytest.importorskip("matplotlib")
pytest.importorskip("psutil")
import benchmark
import harness
import scaling
import soak
from benchmark import relative_error, summarised, tables
from methods import METHODS, PACKAGES, Ours, Problem, Size

from farzi_hf.engine import Tape

TINY = Size(
    num_sequences=4, sequence_length=8, latent_dim=4, vocab_size=60, hidden_size=16, batch_size=8
)
TINY_ARGUMENTS = [
    text for name, value in dataclasses.asdict(TINY).items() for text in (f"--{name}", str(value))
]
STEPS = 6
# Largest relative error in float64; what is not here is exact to rounding. TorchOpt corrects the
# moments in float32.
TOLERANCE = {"TorchOpt": 1e-3, "Reversible": 1e-5, "Reversible, compiled": 1e-5}
ROUNDING = 1e-9
# Compiling higher's bytecode, at its first import only, finds an `is` with a literal.
higher_warns = pytest.mark.filterwarnings("ignore:.*is. with .*literal:SyntaxWarning")


@cache
def problem(dtype: torch.dtype) -> Problem:
    return Problem.of(TINY, dtype, "cpu")


@cache
def reference() -> list[torch.Tensor]:
    return problem(torch.float64).meta_gradient(Ours(Tape), STEPS)


def error_of(name: str, dtype: torch.dtype) -> float:
    if name in PACKAGES:
        pytest.importorskip(PACKAGES[name])
    return relative_error(problem(dtype).meta_gradient(METHODS[name], STEPS), reference())


# -- methods ---------------------------------------------------------------------------------------


def as_parameter(name: str):
    """Compiling takes a minute."""
    method = METHODS[name]
    # torch's compiler warns of torch's own old ways, and takes such a warning for an error where it
    # is one.
    warns = pytest.mark.filterwarnings("default")
    compiled = isinstance(method, Ours) and method.torch_compile
    return pytest.param(name, marks=[pytest.mark.slow, warns] if compiled else [])


@pytest.mark.parametrize(
    "name", [as_parameter(name) for name in METHODS if name not in ("higher", "Tape, bf16")]
)
def test_a_method_has_the_gradient_of_the_reference(name):
    assert error_of(name, torch.float64) <= TOLERANCE.get(name, ROUNDING)
    assert error_of(name, torch.float32) <= 1e-3


# -- a run -----------------------------------------------------------------------------------------


@pytest.fixture
def cells(monkeypatch) -> list[tuple[str, int]]:
    """Runs cells in this process in place of one each; the list of those that ran."""
    ran = []

    def run_here(measure, cell, limits) -> dict:
        ran.append((cell.get("method", "reference"), cell["steps"]))
        facts = {}
        measure(facts.update, **cell)
        return {**facts, "status": "ok", "note": ""}

    monkeypatch.setattr(benchmark, "in_process", run_here)
    monkeypatch.setattr(
        benchmark, "keep_freed_memory", lambda: None
    )  # they would act on this process for good
    monkeypatch.setattr(harness, "return_freed_memory", lambda: None)
    monkeypatch.setattr(benchmark, "plot_curves", lambda path, *panels: path.touch())
    return ran


def run(folder: Path, *arguments: str) -> None:
    methods = [] if "--methods" in arguments else ["--methods", "Tape", "autograd"]
    benchmark.main(
        [*TINY_ARGUMENTS, "--output_dir", str(folder), *methods, "--steps", "3", "5", *arguments]
    )


def rows_of(folder: Path) -> dict[str, dict]:
    return {
        row["method"]: row
        for row in json.loads((folder / "results.json").read_text(encoding="utf-8"))
    }


def test_a_run_leaves_its_numbers_and_a_table_and_a_second_one_measures_nothing(
    tmp_path, cells, capsys
):
    run(tmp_path, "--steps", "3")
    assert sorted(cells) == [("Tape", 3), ("autograd", 3), ("reference", 3)]
    rows = rows_of(tmp_path)
    assert {name: row["kind"] for name, row in rows.items()} == {"autograd": "peer", "Tape": "ours"}
    for name, row in rows.items():
        assert (row["status"], row["threads"], row["device"], row["vocab_size"]) == (
            "ok",
            1,
            "cpu",
            60,
        )
        assert row["torch"] == torch.__version__
        assert all(
            row[column]
            for column in ("processor", "malloc", "python", "transformers", "code", "date")
        )
        assert row["relative_error"] < 1e-3
        assert row["seconds"] >= row["seconds_min"] > 0
        assert ("G_seconds" in row) == ("total/(T·G)" in row) == (name == "Tape")
    (path,) = (tmp_path / "reference").iterdir()
    expected = Problem.of(TINY, torch.float64, "cpu").meta_gradient(Ours(Tape), 3)
    assert (
        relative_error(list(load_file(path).values()), expected[::-1]) == 0
    )  # the names are in order
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert table in capsys.readouterr().out
    assert "| autograd |" in table
    assert (
        (tmp_path / "results.csv")
        .read_text(encoding="utf-8")
        .startswith("method,kind,steps,status,note,")
    )
    cells.clear()
    run(tmp_path, "--steps", "3")
    assert not cells


def test_cells_that_cannot_be_measured_are_recorded_and_only_failures_are_tried_again(
    tmp_path, cells, monkeypatch
):
    endings = {
        "autograd": "out of memory",
        "Direct": "too slow",
        "torch.utils.checkpoint": "failed",
    }
    run_here, ran = benchmark.in_process, []

    def run_badly(measure, cell, limits):
        if cell.get("method") not in endings:
            return run_here(measure, cell, limits)
        ran.append(cell["method"])
        return {"warm_up_seconds": 1.5, "status": endings[cell["method"]], "note": "why"}

    monkeypatch.setattr(benchmark, "in_process", run_badly)
    arguments = ("--steps", "3", "--methods", "Tape", *endings)
    message = (
        r"failed cells, which the next run tries again:\ntorch[.]utils[.]checkpoint, T = 3: why"
    )
    for expected in (sorted(endings), ["torch.utils.checkpoint"]):
        with pytest.raises(SystemExit, match=message):
            run(tmp_path, *arguments)
        assert sorted(ran) == expected
        ran.clear()
    rows = rows_of(tmp_path)
    assert {name: rows[name]["status"] for name in endings} == endings
    assert rows["autograd"]["warm_up_seconds"] == 1.5
    table = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert all(f"{status} |" in table for status in endings.values())


def test_figures_of_a_cell_are_medians_and_ratios_of_them():
    facts = summarised(
        [(8.0, 6.0), (4.0, 4.0), (5.0, 5.0)], [(0.1, 0.3), (0.2, 0.3), (0.1, 0.2)], steps=10
    )
    assert facts == pytest.approx(
        {
            "repetitions": 3,
            "seconds": 5.0,
            "seconds_min": 4.0,
            "cpu_seconds": 5.0,
            "cpu_seconds_min": 4.0,
            "G_seconds": 0.1,
            "R_seconds": 0.3,
            "R/G": 3.0,
            "total/(T·G)": 5.0,
        }
    )
    assert "R/G" not in summarised([(8.0, 6.0)], [], steps=10)


def test_the_table_of_the_card_is_that_of_its_rows():
    folder = Path(__file__).parents[2] / "model_cards" / "benchmark"
    rows = benchmark.in_order(benchmark.read_rows(folder, benchmark.FILES))
    assert tables(rows) == (folder / "table.md").read_text(encoding="utf-8")


# -- scaling, and files of others ------------------------------------------------------------------


def test_a_cell_that_ran_out_of_memory_has_a_row_in_the_table_of_scaling(tmp_path, monkeypatch):
    """And where no cell is "ok", there is a table and no figure."""
    good = {"status": "ok", "note": "", "seconds": 0.5, "memory_bytes": 2e6, "estimated_bytes": 1e6}
    ending = {"status": "out of memory", "note": "stopped"}
    monkeypatch.setattr(
        scaling,
        "in_process",
        lambda measure, cell, limits: {**(good if cell["loss"] == "ours" else ending)},
    )
    argv = ["--vocabularies", "2000", "--lengths", "20", "--output_dir", str(tmp_path)]
    scaling.main(argv)
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    cells = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ")
    ]
    assert [[*row[:3], *row[4:]] for row in cells[1:]] == [
        ["ours", "2,000", "20", "0.500", "2", "0.50"],
        ["textbook", "2,000", "20", "out of memory", "", ""],
    ]
    assert (tmp_path / "scaling.png").stat().st_size > 1000
    monkeypatch.setattr(scaling, "LOSSES", {"textbook": scaling.textbook})
    (tmp_path / "scaling.png").unlink()
    scaling.main([*argv, "--memory_limit", "1"])
    assert not (tmp_path / "scaling.png").exists()


@pytest.mark.parametrize("loss", scaling.LOSSES)
def test_a_cell_of_scaling_is_measured(loss, monkeypatch):
    monkeypatch.setattr(scaling, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(harness, "return_freed_memory", lambda: None)
    facts = {}
    scaling.measure(facts.update, loss, vocabulary=50, length=6)
    assert min(facts["seconds"], facts["estimated_bytes"]) > 0


@pytest.mark.parametrize(
    ("module", "work", "files"),
    [
        (benchmark, "in_process", benchmark.FILES),
        (scaling, "in_process", scaling.FILES),
        (soak, "trainer_of", soak.FILES),
    ],
)
def test_files_of_others_are_refused_in_one_line_before_any_work(
    tmp_path, monkeypatch, module, work, files
):
    monkeypatch.setattr(module, work, lambda *_: pytest.fail("there was work before the check"))
    for name in files:
        folder = tmp_path / name
        folder.mkdir()
        (folder / name).write_bytes(b"name,price\napple,1\n")
        message = r"^\w+\.py: '.*' exists already and would be overwritten; .*move it away$"
        with pytest.raises(SystemExit, match=message):
            module.main(
                [
                    *(["--methods", "Tape"] if module is benchmark else []),
                    "--output_dir",
                    str(folder),
                ]
            )
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
            name: b"name,price\napple,1\n"
        }
