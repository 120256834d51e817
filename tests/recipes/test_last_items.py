"""The table of one held-out item of each user has the metrics of the ranks that were kept."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import last_items
import recsys
from tiny_recipes import DEMO_RECSYS


@pytest.mark.usefixtures("small_data", "no_figures")
def test_recall_and_gain_are_those_of_the_ranks(tmp_path, capsys, monkeypatch):
    carried = ("--inputs", "drawn", "--labels", "teacher", "--storage", "coded5")
    options = ("--max_steps", "0", "--synthetic_batch_size", "10", "--baselines", "teacher")
    argv = [*DEMO_RECSYS, *carried, *options, "--held_out", "last_items"]
    recsys.main([*argv, "--output_dir", str(tmp_path / "run")])
    card = tmp_path / "card"
    given = [
        str(tmp_path / "run" / "split-0" / "summary"),
        "--card_dir",
        str(card),
        "--num_students",
        "2",
    ]
    last_items.main(given)
    with (card / "table.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    measured = []
    for kind in ("counted", "teacher", "students"):
        [path] = (card / "kept").glob(f"{kind}_*.json")
        measured += json.loads(path.read_text(encoding="utf-8"))["value"]
    assert len(rows) == len(measured) + len(last_items.PUBLISHED)
    for row, found in zip(rows, measured, strict=False):
        ranks = np.asarray(found["students"])[..., 0]
        assert float(row["hr@20"]) == pytest.approx((ranks <= 20).mean())
        gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)
        assert float(row["ndcg@10"]) == pytest.approx(gains.mean())
    assert rows[len(measured) - 1]["students"] == "2"
    assert "BSARec, published" in capsys.readouterr().out

    def fails(*args: object) -> None:
        raise AssertionError("it measures again")

    monkeypatch.setattr(last_items, "teacher", fails)
    last_items.main(given)
