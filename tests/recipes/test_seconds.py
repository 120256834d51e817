"""Quality over seconds: rows of students and of all data, each made once, and ways to train on all
data that are chosen anew for each number of seconds.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
import seconds

from farzi_hf.report.full_data import WAYS, FullData, Tried


def settings_of(path: Path) -> dict:
    return json.loads(path.read_text(encoding="utf-8"))["settings"]


@pytest.mark.slow
@pytest.mark.usefixtures("small_data")
def test_rows_of_students_and_of_all_data_are_made_once(carried_summary, tmp_path, monkeypatch):
    tried = []

    def judged(full: FullData, way, allowed: float) -> Tried:
        """The third way is the best one in a short time, and half of its rate in a longer time."""
        tried.append((allowed, way))
        best = WAYS[2].rate if allowed < 0.03 else WAYS[2].rate / 2
        return Tried(way, abs(best - way.rate), 0.01)

    monkeypatch.setattr(FullData, "tried", judged)
    monkeypatch.setattr(seconds, "WAYS", WAYS[:3])
    card = tmp_path / "card"
    argv = [str(carried_summary), "--student", "GPT-2 32", "--card_dir", str(card), "--steps", "2"]
    argv += ["--random_steps", "3", "--seconds", "0.02", "0.04"]
    argv += ["--num_students", "2", "--num_real", "1"]
    seconds.main(argv)
    assert [way for allowed, way in tried if allowed == 0.02] == list(WAYS[:3])
    slower = replace(WAYS[2], rate=WAYS[2].rate / 2)
    assert [way for allowed, way in tried if allowed == 0.04] == [WAYS[2], slower, WAYS[1]]
    with (card / "table.csv").open(encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    names = list(rows)
    assert names[-2:] == ["full data, 0.02 s", "full data, 0.04 s"]
    assert rows["full data, 0.02 s"]["way"] == str(WAYS[2])
    assert rows["full data, 0.04 s"]["way"] == str(slower)
    for name, students in (("warm start, T = 2", "2"), ("random start, T = 3", "2")):
        [method] = [each for each in names if each.endswith(name)]
        assert rows[method]["students"] == students
        assert float(rows[method]["seconds"]) > 0
    assert (card / "seconds.png").is_file()
    table = (card / "table.md").read_text(encoding="utf-8")
    assert " % (" in table

    # What all the data give does not depend on the summary.
    of_summary = {path.name: "summary" in settings_of(path) for path in (card / "kept").iterdir()}
    assert of_summary == {name: "start_t" in name for name in of_summary}
    assert len(set(of_summary.values())) == 2

    def fails(*args: object) -> None:
        raise AssertionError("it trains again")

    monkeypatch.setattr(seconds.Comparison, "trained", fails)
    monkeypatch.setattr(FullData, "tried", fails)
    seconds.main(argv)
    again = (card / "table.md").read_text(encoding="utf-8")
    trained = [line for line in table.splitlines() if "start, T" in line or "full data" in line]
    assert len(trained) > 4
    assert set(trained) <= set(again.splitlines())
