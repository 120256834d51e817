"""The recipe that watches a long distillation: what it measures, and the line that it draws."""

from __future__ import annotations

import argparse

import pytest
from tiny_trainer import SETTINGS, SignalAt, tiny_trainer

pytest.importorskip("matplotlib")
import soak
from soak import report


def test_the_report_has_a_line_that_is_not_moved_by_peaks_or_by_the_start(tmp_path) -> None:
    """The first measurements are still settling, every tenth is a peak."""
    rows = [
        {
            "step": step,
            "minutes": step / 60,
            "open_files": 9,
            "threads": 4,
            "resident_mib": 500 - 100 * (step < 30) + 0.25 * step + 50 * (step % 10 == 0),
        }
        for step in range(1, 401)
    ]
    assert "+250." in report(rows, {"summary": "[4×8]"}, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"memory.csv", "memory.png", "table.md"}


def test_after_a_signal_the_earlier_report_stays(
    tmp_path, monkeypatch, sequences, tokenizer
) -> None:
    earlier = "step,minutes,resident_mib,open_files,threads\n1,2,3,4,5\n"
    (tmp_path / "memory.csv").write_text(earlier, encoding="utf-8")
    callbacks = {"callbacks": [SignalAt("SIGINT", step=2)]}
    monkeypatch.setattr(soak, "SETTINGS", {**SETTINGS, "max_steps": 50})
    monkeypatch.setattr(soak, "RunSettings", lambda dataset: argparse.Namespace(load=lambda: None))
    make = lambda data, args, seed: tiny_trainer(  # noqa: E731
        args.output_dir, sequences, tokenizer, callbacks, max_steps=50
    )
    monkeypatch.setattr(soak, "trainer_of", make)
    monkeypatch.setattr(soak, "keep_freed_memory", lambda: None)
    with pytest.raises(SystemExit) as stop:
        soak.main(["--every", "1", "--output_dir", str(tmp_path)])
    assert stop.value.code == 130
    assert (tmp_path / "memory.csv").read_text(encoding="utf-8") == earlier
