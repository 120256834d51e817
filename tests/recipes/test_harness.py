"""The harness of the benchmarks: a cell in a process of its own, its limits, and the rows that are
kept.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import torch
from harness import Limits, complete, in_process, read_rows, run_limited


def run_python(code: str, memory: float = 1.0, seconds: float = 60.0) -> dict:
    code = f"import json, os, sys, time; report = open(sys.argv[1], 'a', buffering=1); {code}"
    return run_limited([sys.executable, "-c", code], os.environ, Limits(memory, seconds))


def test_a_process_ends_ok_with_all_that_it_reported():
    facts = run_python(
        "print(json.dumps({'a': 1, 'b': 2}), file=report); print(json.dumps({'b': 3}), file=report)"
    )
    assert facts == {"a": 1, "b": 3, "status": "ok", "note": ""}


@pytest.mark.parametrize(
    ("code", "status", "note"),
    [
        (
            "print('{\"a\": 1}', file=report); x = b'1' * (300 << 20); time.sleep(60)",
            "out of memory",
            "stopped at 0.",
        ),
        ("print('{\"a\": 1}', file=report); time.sleep(60)", "too slow", "stopped after 1 s"),
        (
            "print('{\"a\": 1}', file=report); os.kill(os.getpid(), 9)",
            "out of memory",
            "killed by the system at 0.",
        ),
        ("print('{\"a\": 1}', file=report); raise MemoryError", "out of memory", "MemoryError"),
        (
            "print('{\"a\": 1}', file=report); raise ValueError('what is wrong')",
            "failed",
            "ValueError: what is wrong",
        ),
    ],
    ids=["large", "slow", "killed", "refused", "wrong"],
)
def test_a_process_that_does_not_end_well_says_why_and_keeps_what_it_reported(code, status, note):
    facts = run_python(code, memory=0.1, seconds=1.0 if status == "too slow" else 60.0)
    assert (facts["a"], facts["status"]) == (1, status)
    assert facts["note"].startswith(note)


@pytest.mark.slow
def test_nothing_of_a_process_that_was_stopped_is_left(tmp_path):
    """Not even what it started itself."""
    marker = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(marker)!r}).touch()"
    code = f"import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    assert run_python(code, seconds=0.5)["status"] == "too slow"
    time.sleep(2)
    assert not marker.exists()


def doubled(report, number: int) -> None:
    """Runs in a process of its own, which imports this file by its name."""
    report({"twice": 2 * number, "threads": torch.get_num_threads()})
    report({"four_times": 4 * number})


@pytest.mark.slow
def test_a_function_runs_in_a_process_of_its_own_and_reports_what_it_knows():
    facts = in_process(doubled, {"number": 3}, Limits(memory=2.0, seconds=60.0, threads=1))
    assert facts == {"twice": 6, "threads": 1, "four_times": 12, "status": "ok", "note": ""}


class Table:
    """A benchmark of two cells, which counts what is measured."""

    files = ("results.json", "table.md")

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran = folder, []

    def __call__(
        self, *numbers: int, status: str = "ok", code: str = "a", **settings: int
    ) -> list[tuple[int, str]]:
        def run(cell: dict) -> dict:
            self.ran.append(cell["number"])
            return {"status": status, "note": ""}

        rows, cells = read_rows(self.folder, self.files), [{"number": n} for n in numbers]
        found = complete(
            self.folder / self.files[0], rows, cells, run, {"limit": 1, **settings}, code
        )
        return [(row["number"], row["code"]) for row in found]


def test_a_cell_is_measured_once_until_it_failed_or_the_code_changes(tmp_path):
    table = Table(tmp_path)
    assert table(1, 2) == [(1, "a"), (2, "a")] == table(2, 1)
    assert table.ran == [1, 2]
    assert table(3, status="failed") == [(1, "a"), (2, "a"), (3, "a")] == table(3)
    assert table.ran == [1, 2, 3, 3]
    assert table(2, code="b") == [
        (1, "a"),
        (2, "b"),
        (3, "a"),
    ]  # the others stay until somebody asks for them
    assert table.ran == [1, 2, 3, 3, 2]
