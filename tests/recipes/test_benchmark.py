"""The benchmark: every method differentiates the same thing, cells end as they should, and results survive being resumed."""

from __future__ import annotations

import csv
import dataclasses
import json
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch

# ruff: noqa: E402
pytest.importorskip("matplotlib")
psutil = pytest.importorskip("psutil")
import benchmark
import process
import results
import scaling
from benchmark import METHODS, PACKAGES
from methods import ADAM, Ours, Problem, Size
from process import relative_error
from results import read_rows, tables

from farzi_hf.engine import InnerAdam, Tape, unroll

TINY = Size(num_sequences=4, sequence_length=8, latent_dim=4, vocab_size=60, hidden_size=16, batch_size=8)
TINY_ARGUMENTS = [text for name, value in dataclasses.asdict(TINY).items() for text in (f"--{name}", str(value))]
STEPS = 6
# Largest relative error in float64; what is not here is exact to rounding. TorchOpt corrects the moments in float32.
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


# -- methods ---------------------------------------------------------------------------------------------------------


def as_parameter(name: str):
    """Compiling takes a minute."""
    method = METHODS[name]
    # torch's compiler warns of torch's own old ways, and takes such a warning for an error where it is one.
    warns = pytest.mark.filterwarnings("default")
    compiled = isinstance(method, Ours) and method.torch_compile
    return pytest.param(name, marks=[pytest.mark.slow, warns] if compiled else [])


@pytest.mark.parametrize("name", [as_parameter(name) for name in METHODS if name != "higher"])
def test_a_method_has_the_gradient_of_the_reference(name):
    assert error_of(name, torch.float64) <= TOLERANCE.get(name, ROUNDING)
    assert error_of(name, torch.float32) <= 1e-3


@higher_warns
def test_higher_differentiates_another_adam():
    """Its ε stands outside of the bias correction: a step t divides by √v̂ + ε/√(1−β2ᵗ), at t = 1 with 32 times the ε."""

    class OtherAdam(InnerAdam):
        def _corrected(self, t, lr):
            a, _, r = super()._corrected(t, lr)
            return a, self.eps, r

    def other(problem, steps):
        optimizer = OtherAdam(**ADAM)
        return unroll(problem.fused_loss, problem.start, problem.summary, optimizer=optimizer, steps=steps)

    assert error_of("higher", torch.float64) > 0.1
    found, expected = (problem(torch.float64).meta_gradient(m, STEPS) for m in (METHODS["higher"], other))
    assert relative_error(found, expected) <= ROUNDING


def test_g_and_r_are_those_of_single_steps():
    """On a clock that counts inner losses: a forward step has one, a reverse step of `Tape` one."""
    calls = []

    def timer(function):
        before = len(calls)
        function()
        return len(calls) - before, 0.0

    p = problem(torch.float32)
    counted = dataclasses.replace(p, learner=Counting(p.learner, calls))
    assert Ours(Tape).step_seconds(counted, timer) == (1.0, 1.0)


class Counting:
    def __init__(self, learner, calls):
        self.learner, self.calls = learner, calls

    def soft_loss(self, *args):
        self.calls.append(args)
        return self.learner.soft_loss(*args)


# -- a run -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_plot(monkeypatch) -> None:
    """For tests that write results many times."""
    monkeypatch.setattr(results, "plot_benchmark", lambda rows, path: path.touch())


@pytest.fixture
def cells(monkeypatch) -> list[tuple[str, int, str]]:
    """Runs cells in this process in place of one each; the list of those that ran."""
    ran = []

    def run_here(command: Sequence[str], *_) -> dict:
        cell = json.loads(command[-1])
        ran.append((cell["method"], cell["steps"], cell["dtype"]))
        report = Path(cell["reference"]).with_name("report")
        report.unlink(missing_ok=True)
        report.touch()
        benchmark.measure_cell(cell, report)
        facts = {}
        for line in report.read_text().splitlines():
            facts.update(json.loads(line))
        return {**facts, "status": "ok", "note": ""}

    monkeypatch.setattr(benchmark, "run_limited", run_here)
    monkeypatch.setattr(benchmark, "end_with_parent", lambda: None)
    for module in (benchmark, process):  # they would act on this process for good
        monkeypatch.setattr(module, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(process, "return_freed_memory", lambda: None)
    return ran


def run(folder: Path, *arguments: str) -> None:
    methods = [] if "--methods" in arguments else ["--methods", "Tape", "autograd"]
    benchmark.main([*TINY_ARGUMENTS, "--output_dir", str(folder), *methods, "--steps", "3", "5", *arguments])


CELLS = [("Tape", 3, "float32"), ("Tape", 5, "float32"), ("autograd", 3, "float32"), ("autograd", 5, "float32")]


@pytest.mark.slow
def test_a_run_leaves_its_numbers_a_table_and_a_plot(tmp_path, cells, capsys):
    run(tmp_path)
    assert sorted(cells) == sorted([*CELLS, ("Tape", 3, "float64"), ("Tape", 5, "float64")])
    with (tmp_path / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    in_order = [("autograd", 3), ("autograd", 5), ("Tape", 3), ("Tape", 5)]
    assert [(row["method"], int(row["steps"])) for row in rows] == in_order
    for row in rows:
        assert (row["status"], row["threads"], row["device"], row["vocab_size"]) == ("ok", "1", "cpu", "60")
        assert row["torch"] == torch.__version__
        assert all(row[column] for column in ("processor", "malloc", "python", "transformers", "code", "date"))
        assert float(row["relative_error"]) < 1e-3
        assert float(row["seconds"]) >= float(row["seconds_min"]) > 0
        assert bool(row["G_seconds"]) == bool(row["total/(T·G)"]) == (row["method"] == "Tape")
    table = (tmp_path / "table.md").read_text()
    assert table in capsys.readouterr().out
    assert "| autograd |" in table
    assert (tmp_path / "benchmark.png").read_bytes()[:4] == b"\x89PNG"
    assert not list(tmp_path.glob(".new*"))


@pytest.mark.slow
def test_a_cell_is_measured_once_until_the_code_changes_or_it_is_asked_for_anew(tmp_path, cells, no_plot, monkeypatch):
    run(tmp_path, "--steps", "3")
    before = read_rows(tmp_path / "results.csv")
    cells.clear()
    run(tmp_path)
    assert sorted(cells) == sorted([("Tape", 5, "float64"), *(cell for cell in CELLS if cell[1] == 5)])
    after = read_rows(tmp_path / "results.csv")
    assert [row for row in after if row["steps"] == 3] == before
    cells.clear()
    run(tmp_path, "--anew")
    assert sorted(cells) == CELLS  # the references are still those of this code
    cells.clear()
    monkeypatch.setattr(benchmark, "code_hash", lambda *more: "changed")
    run(tmp_path, "--steps", "3", "--methods", "autograd")
    assert sorted(cells) == [("Tape", 3, "float64"), ("autograd", 3, "float32")]
    assert len(read_rows(tmp_path / "results.csv")) == 4


def test_results_of_other_settings_are_not_mixed(tmp_path, cells, no_plot):
    run(tmp_path, "--steps", "3", "--methods", "autograd")
    with pytest.raises(
        SystemExit, match="results with other hidden_size, threads: choose another --output_dir, or --anew"
    ):
        run(tmp_path, "--hidden_size", "8", "--threads", "2")
    run(tmp_path, "--hidden_size", "8", "--anew", "--steps", "3", "--methods", "autograd")
    assert [row["hidden_size"] for row in read_rows(tmp_path / "results.csv")] == ["8"]


def test_cells_that_cannot_be_measured_are_recorded_and_only_failures_are_tried_again(
    tmp_path, cells, no_plot, monkeypatch
):
    endings = {"autograd": "out of memory", "Direct": "too slow", "torch.utils.checkpoint": "failed"}
    run_here, ran = benchmark.run_limited, []

    def run_badly(command, memory_limit, *rest):
        cell = json.loads(command[-1])
        if cell["method"] not in endings:
            return run_here(command)
        ran.append(cell["method"])
        return {"warm_up_seconds": 1.5, "status": endings[cell["method"]], "note": "why"}

    monkeypatch.setattr(benchmark, "run_limited", run_badly)
    arguments = ("--steps", "3", "--methods", "Tape", *endings)
    for expected in (sorted(endings), ["torch.utils.checkpoint"]):
        with pytest.raises(
            SystemExit, match=r"failed cells, which the next run tries again:\ntorch[.]utils[.]checkpoint, T = 3: why"
        ):
            run(tmp_path, *arguments)
        assert sorted(ran) == expected
        ran.clear()
    rows = {row["method"]: row for row in read_rows(tmp_path / "results.csv")}
    assert {name: rows[name]["status"] for name in endings} == endings
    assert (rows["autograd"]["warm_up_seconds"], rows["autograd"]["seconds"]) == (1.5, None)
    table = (tmp_path / "table.md").read_text()
    assert all(f"{status} |" in table for status in endings.values())
    assert "too slow" in tables(list(rows.values()))


def test_without_a_reference_nothing_is_measured(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "run_limited", lambda *_: {"status": "out of memory", "note": "stopped at 20.0 GiB"})
    with pytest.raises(SystemExit, match=r"no float64 reference for T = 3: out of memory, stopped at 20[.]0 GiB"):
        run(tmp_path)
    assert not (tmp_path / "results.csv").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--methods", "tape"), "methods: 'tape' is unknown; choose from 'autograd', "),
        (("--scale", "huge"), "scale='huge' is unknown; choose from full, quick"),
        (("--steps", "0"), "steps=[0] and threads=1 must be at least 1"),
        (("--device", "tpu"), "device='tpu' does not exist here: use cpu"),
    ],
)
def test_arguments_that_are_wrong_end_in_one_line(tmp_path, arguments, message):
    with pytest.raises(SystemExit) as stop:
        run(tmp_path, *arguments)
    assert stop.value.code.startswith(f"benchmark.py: {message}")


def test_a_missing_peer_is_named_with_the_way_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark.importlib.util, "find_spec", lambda name: None if name == "higher" else name)
    with pytest.raises(
        SystemExit, match=r"needs the package higher, which is not installed: pip install farzi-hf\[bench\]"
    ):
        run(tmp_path, "--methods", "Tape", "higher")
    args, _ = benchmark.parse(["--methods", "Tape", "TorchOpt"])
    assert args.methods == ["Tape", "TorchOpt"]


def test_the_quick_scale_is_small_and_can_be_overridden():
    ours = ["--methods", "Tape"]  # which need no package of the extra
    (full, size), (quick, small) = (
        benchmark.parse(ours + options) for options in ([], ["--scale", "quick", "--hidden_size", "4"])
    )
    assert (full.steps, size) == ([10, 50, 100, 200, 400], Size())
    assert (small.vocab_size, small.hidden_size, quick.output_dir) == (200, 4, "outputs/benchmark_quick")
    assert max(quick.steps) <= 20


@pytest.mark.slow
def test_cells_are_processes_of_their_own(tmp_path):
    run(tmp_path, "--steps", "3")
    rows = read_rows(tmp_path / "results.csv")
    assert [(row["method"], row["status"]) for row in rows] == [("autograd", "ok"), ("Tape", "ok")]
    assert all(row["repetitions"] == 3 and row["memory_bytes"] > 0 for row in rows)


def test_a_cell_that_ran_out_of_memory_has_a_row_in_the_table_of_scaling(tmp_path):
    facts = {"vocabulary": 2000, "note": "", "commit": "abc"}
    good = {"status": "ok", "seconds": 0.5, "memory_bytes": 2e6, "estimated_bytes": 1e6}
    rows = [
        {**facts, "loss": "ours", "length": 20, **good},
        {**facts, "loss": "textbook", "length": 1024, "status": "out of memory"},
    ]
    scaling.write(rows, tmp_path)
    lines = (tmp_path / "table.md").read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert cells[1:] == [
        ["ours", "2,000", "20", "abc", "0.500", "2", "0.50"],
        ["textbook", "2,000", "1,024", "abc", "out of memory", "", ""],
    ]
    assert (tmp_path / "scaling.png").stat().st_size > 1000


def test_results_of_other_limits_are_measured_again(tmp_path, monkeypatch):
    """And failed ones; without any that is "ok", there is a table and no figure."""
    status = ["out of memory", "failed", "ok", "ok"]
    good = {"seconds": 0.5, "memory_bytes": 2e6, "estimated_bytes": 1e6}
    monkeypatch.setattr(scaling, "run_cell", lambda *args: {"status": status.pop(0), "note": "", **good})
    monkeypatch.setattr(scaling, "LOSSES", {"ours": scaling.ours})
    argv = ["--vocabularies", "2000", "--lengths", "20", "--output_dir", str(tmp_path), "--memory_limit"]
    left = []
    for limit in ("0.05", "0.05", "8", "8", "8"):
        scaling.main([*argv, limit])
        left.append((len(status), (tmp_path / "scaling.png").exists()))
    assert left == [(3, False), (3, False), (2, False), (1, True), (1, True)]
