"""Results that recipes keep in files."""

from __future__ import annotations

import json
import math

from kept import kept


def test_a_kept_result_is_json_for_every_reader(tmp_path):
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    path = tmp_path / "a" / "x.json"
    assert kept(path, {"seed": 0}, lambda: [math.inf, 1]) == [math.inf, 1]
    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)["value"] == ["Infinity", 1]
    assert kept(path, {"seed": 0}, list) == [math.inf, 1]
    assert kept(path, {"seed": 1}, list) == []
