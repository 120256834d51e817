"""The engine's benchmark with torch alone: all methods have the same gradient, and a row is
measured once.
"""

from __future__ import annotations

import json
import sys

import gpu_engine

TINY = [
    "--device",
    "cpu",
    "--steps",
    "3",
    "--sequences",
    "3",
    "--length",
    "5",
    "--vocabulary",
    "20",
    "--width",
    "8",
]


def test_methods_agree_and_a_second_call_measures_nothing_again(tmp_path, monkeypatch, capsys):
    plain = [
        name for name in gpu_engine.METHODS if "compiled" not in name and "captured" not in name
    ]
    monkeypatch.setattr(
        sys, "argv", ["gpu_engine.py", str(tmp_path / "rows.jsonl"), *TINY, "--methods", *plain]
    )
    gpu_engine.main()
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["method"] for row in rows] == plain
    assert all(row["error"] < 1e-3 and row["seconds"] > 0 for row in rows)
    capsys.readouterr()
    gpu_engine.main()
    assert capsys.readouterr().out == ""
