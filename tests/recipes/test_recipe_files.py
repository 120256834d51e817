"""What recipes write is whole at any time, and the files that they name exist."""

from __future__ import annotations

import re

from tiny_recipes import RECIPES

CONFIG = re.compile(r"\b([a-z][a-z0-9_-]*\.yaml)\b")


def test_no_recipe_writes_a_result_in_place():
    """`recsys.py` wrote `results.json` so, from which it goes on."""
    in_place = re.compile(r"""\.write_text\(|\.write_bytes\(|open\(\s*["']w""")
    others = {"harness.py"}  # /proc, and what a process says
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(RECIPES.rglob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if in_place.search(line) and path.name not in others
    ]
    assert not found


def test_configs_that_recipes_name_exist():
    """In docstrings of recipes and in comments of configs. DATASET, NAME and the like stand for
    many names.
    """
    there = {path.name for path in RECIPES.rglob("*.yaml")} | {
        "recipe.yaml"
    }  # which each summary has
    pages = [path for kind in ("*.py", "*.yaml") for path in RECIPES.rglob(kind)]
    named = {
        (path.name, name)
        for path in pages
        for name in CONFIG.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert [pair for pair in sorted(named) if pair[1] not in there] == []
