"""Results that recipes keep in files."""

from __future__ import annotations

import json
import math

import pytest
from kept import kept


def test_a_kept_result_is_json_for_every_reader(tmp_path):
    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    path = tmp_path / "a" / "x.json"
    assert kept(path, {"seed": 0}, lambda: [math.inf, 1]) == [math.inf, 1]
    assert json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)["value"] == ["Infinity", 1]
    assert kept(path, {"seed": 0}, list) == [math.inf, 1]
    assert kept(path, {"seed": 1}, list) == []


@pytest.mark.parametrize("content", ["eggs: 3", '{"value": 1}', '{"settings": 1}', "[1]", "5", "\ufeff"])
def test_a_file_that_no_recipe_wrote_is_refused_before_the_work(tmp_path, content):
    path = tmp_path / "x.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"x.json' exists already, and no recipe has written it: choose another output_dir"
    ):
        kept(path, {}, lambda: pytest.fail("it works already"))
    assert path.read_text(encoding="utf-8") == content
