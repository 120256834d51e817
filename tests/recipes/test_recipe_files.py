"""What recipes write is whole at any time."""

from __future__ import annotations

import re

from tiny_recipes import RECIPES


def test_no_recipe_writes_a_result_in_place():
    """`recsys.py` wrote `results.json` so, from which it goes on."""
    in_place = re.compile(r"""\.write_text\(|\.write_bytes\(|open\(\s*["']w""")
    others = {"process.py"}  # /proc, and what a process says
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(RECIPES.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if in_place.search(line) and path.name not in others
    ]
    assert not found
