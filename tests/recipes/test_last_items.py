"""The table of one held-out item of each user reads the ranks that runs have kept."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

pytest.importorskip("matplotlib")
import last_items


def test_recall_and_gain_are_those_of_the_ranks(finished_items, tmp_path, capsys):
    run = finished_items.output / "split-0"
    card = tmp_path / "card"
    last_items.main([str(run), "--card_dir", str(card)])
    measured = json.loads((run / "results.json").read_text(encoding="utf-8"))["value"]["measured"]
    with (card / "table.csv").open(encoding="utf-8") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert len(rows) == len(measured) + len(last_items.PUBLISHED)
    for found in measured:
        [name] = [each for each in rows if each.endswith(found["method"])]
        ranks = np.asarray(found["students"])[..., 0]
        assert float(rows[name]["hr@20"]) == pytest.approx((ranks <= 20).mean())
        gains = np.where(ranks <= 10, 1 / np.log2(1 + ranks), 0.0)
        assert float(rows[name]["ndcg@10"]) == pytest.approx(gains.mean())
        is_trained = found["steps"] is not None
        assert bool(rows[name]["students"]) == is_trained
    assert "BSARec, published" in capsys.readouterr().out


def test_a_folder_without_rows_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match="no folder keeps a row"):
        last_items.main([str(tmp_path), "--card_dir", str(tmp_path / "card")])
