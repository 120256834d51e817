"""The recipe that watches a long distillation: what it measures, and the line that it draws."""

from __future__ import annotations

import argparse
import csv

import pytest
from tiny_trainer import SETTINGS, SignalAt, tiny_trainer

pytest.importorskip("matplotlib")
import soak
from soak import Watch, report, straight_line


def rows(slope: float) -> list[dict]:
    """400 measurements that grow so much per step; the first ones are still settling, every tenth is a peak."""
    steps = range(1, 401)
    memory = [500 - 100 * (step < 30) + slope * step + 50 * (step % 10 == 0) for step in steps]
    return [
        {"step": step, "minutes": step / 60, "resident_mib": mib, "open_files": 9, "threads": 4}
        for step, mib in zip(steps, memory, strict=True)
    ]


@pytest.mark.parametrize("slope", [0.0, 0.25])
def test_the_line_is_not_moved_by_peaks_or_by_the_start(slope: float) -> None:
    found, origin, error = straight_line(rows(slope))
    assert found == pytest.approx(slope, abs=1e-3)
    assert origin == pytest.approx(500, abs=1)
    assert error < 1e-3


def test_a_distillation_is_measured_and_ends_when_its_time_is_over(sequences, tokenizer, tmp_path) -> None:
    watch = Watch(minutes=0.0, every=1, file=tmp_path / "measured.csv")
    trainer = tiny_trainer(tmp_path, sequences, tokenizer, {"callbacks": [watch]}, max_steps=50)
    trainer.train()
    assert [row["step"] for row in watch.rows] == [1] == [trainer.state.global_step]
    assert watch.rows[0]["resident_mib"] > 50
    assert watch.rows[0]["open_files"] > 0
    with pytest.raises(ValueError, match="it left time for 1 measurements"):
        report(watch.rows, {}, tmp_path / "report")


def test_the_report_has_a_table_a_figure_and_the_measurements(tmp_path) -> None:
    table = report(rows(0.25), {"summary": "[4×8]"}, tmp_path)
    assert "+250." in table
    assert {path.name for path in tmp_path.iterdir()} == {"memory.csv", "memory.png", "table.md"}
    assert len((tmp_path / "memory.csv").read_text(encoding="utf-8").splitlines()) == 401


def test_after_a_signal_the_measurements_are_there_and_the_earlier_report_stays(
    tmp_path, monkeypatch, sequences, tokenizer
) -> None:
    earlier = "step,minutes,resident_mib,open_files,threads\n1,2,3,4,5\n"
    (tmp_path / "memory.csv").write_text(earlier, encoding="utf-8")
    callbacks = {"callbacks": [SignalAt("SIGINT", step=2)]}
    monkeypatch.setattr(soak, "SETTINGS", {**SETTINGS, "max_steps": 50})
    monkeypatch.setattr(soak, "RunSettings", lambda dataset: argparse.Namespace(load=lambda: None))
    make = lambda data, args, seed: tiny_trainer(args.output_dir, sequences, tokenizer, callbacks, max_steps=50)  # noqa: E731
    monkeypatch.setattr(soak, "trainer_of", make)
    monkeypatch.setattr(soak, "keep_freed_memory", lambda: None)
    with pytest.raises(SystemExit) as stop:
        soak.main(["--every", "1", "--output_dir", str(tmp_path)])
    assert stop.value.code == 130
    with (tmp_path / "measured.csv").open(encoding="utf-8") as file:
        assert [int(row["step"]) for row in csv.DictReader(file)] == [1, 2, 3]
    assert (tmp_path / "memory.csv").read_text(encoding="utf-8") == earlier
