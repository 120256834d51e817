"""One cell of the benchmark in a process of its own: limits, what it reported, peak memory."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
import torch
from process import PeakMemory, run_limited, summarised


def run_python(code: str, memory_limit: int = 1 << 30, time_limit: float = 60.0) -> dict:
    code = f"import json, os, sys, time; report = open(sys.argv[1], 'a', buffering=1); {code}"
    return run_limited([sys.executable, "-c", code], dict(os.environ), memory_limit, time_limit)


def test_a_process_ends_ok_with_all_that_it_reported():
    facts = run_python("print(json.dumps({'a': 1, 'b': 2}), file=report); print(json.dumps({'b': 3}), file=report)")
    assert facts == {"a": 1, "b": 3, "status": "ok", "note": ""}


@pytest.mark.parametrize(
    ("code", "status", "note"),
    [
        ("print('{\"a\": 1}', file=report); x = b'1' * (300 << 20); time.sleep(60)", "out of memory", "stopped at 0."),
        ("print('{\"a\": 1}', file=report); time.sleep(60)", "too slow", "stopped after 2 s"),
        ("print('{\"a\": 1}', file=report); os.kill(os.getpid(), 9)", "out of memory", "killed by the system at 0."),
        ("print('{\"a\": 1}', file=report); raise MemoryError", "out of memory", "MemoryError"),
        ("print('{\"a\": 1}', file=report); raise ValueError('what is wrong')", "failed", "ValueError: what is wrong"),
    ],
    ids=["large", "slow", "killed", "refused", "wrong"],
)
def test_a_process_that_does_not_end_well_says_why_and_keeps_what_it_reported(code, status, note):
    facts = run_python(code, memory_limit=100 << 20, time_limit=2.0)
    assert (facts["a"], facts["status"]) == (1, status)
    assert facts["note"].startswith(note)


@pytest.mark.parametrize(("others", "status"), [(2, "out of memory"), (9, "failed")])
def test_a_machine_without_memory_is_not_blamed_on_a_method_where_others_hold_it(monkeypatch, others, status):
    """ "failed" is tried again."""
    full_at = time.monotonic() + 1

    def memory() -> SimpleNamespace:
        return SimpleNamespace(
            total=others << 30, available=(100 << 20) if time.monotonic() > full_at else others << 30
        )

    monkeypatch.setattr(psutil, "virtual_memory", memory)
    facts = run_python("print('a warning', file=sys.stderr, flush=True); print('{}', file=report); time.sleep(60)")
    assert facts["status"] == status
    assert "nothing was left beside" in facts["note"]  # and not the last line of stderr


def test_nothing_of_a_process_that_was_stopped_is_left(tmp_path):
    """Not even what it started itself."""
    marker = tmp_path / "alive"
    child = f"import time, pathlib; time.sleep(1.5); pathlib.Path({str(marker)!r}).touch()"
    code = f"import subprocess; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(60)"
    assert run_python(code, time_limit=0.5)["status"] == "too slow"
    time.sleep(2)
    assert not marker.exists()


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="peak memory can be read on Linux only")
def test_peak_memory_is_that_of_what_came_and_went_since():
    large = torch.ones(32 << 20)
    peak = PeakMemory(torch.device("cpu"))
    torch.ones(16 << 20).sum()
    assert 60 << 20 < peak.read() < 80 << 20
    del large


def test_figures_of_a_cell_are_medians_and_ratios_of_them():
    facts = summarised([(8.0, 6.0), (4.0, 4.0), (5.0, 5.0)], [(0.1, 0.3), (0.2, 0.3), (0.1, 0.2)], steps=10)
    assert facts == pytest.approx(
        {
            "repetitions": 3, "seconds": 5.0, "seconds_min": 4.0, "cpu_seconds": 5.0, "cpu_seconds_min": 4.0,
            "G_seconds": 0.1, "R_seconds": 0.3, "R/G": 3.0, "total/(T·G)": 5.0,
        }
    )  # fmt: skip
    assert "R/G" not in summarised([(8.0, 6.0)], [], steps=10)
