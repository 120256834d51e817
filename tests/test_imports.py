"""The one-way flow between the rooms of the package, read from the syntax trees."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "farzi_hf"
# A room imports from the rooms before it.
ROOMS = (
    "common",
    "engine",
    "data",
    "models",
    "tasks",
    "summary",
    "distillation",
    "attribution",
    "report",
    "cli",
)
INDEPENDENT = {"common": set(), "engine": set(), "models": {"common"}}
LOOSE = 2
"""Modules beside the rooms and `__init__.py` that the package may have."""


def imported(path: Path) -> set[str]:
    """What a file imports of the package, anywhere in it: the first name after `farzi_hf`."""
    package = ["farzi_hf", *path.relative_to(PACKAGE).parts[:-1]]
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            names |= (
                {f"{source}.{alias.name}" for alias in node.names}
                if source == "farzi_hf"
                else {source}
            )
    return {name.split(".")[1] for name in names if name.startswith("farzi_hf.")}


def test_every_file_is_in_a_room_and_two_at_most_stand_beside_them():
    assert {
        path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"
    } == set(ROOMS)
    assert len({path.name for path in PACKAGE.glob("*.py")} - {"__init__.py"}) <= LOOSE


def test_a_room_imports_only_rooms_before_it():
    wrong = {}
    for number, room in enumerate(ROOMS):
        files = sorted((PACKAGE / room).rglob("*.py"))
        assert files
        allowed = {room} | INDEPENDENT.get(room, set(ROOMS[:number]))
        wrong |= {
            str(path.relative_to(PACKAGE)): found
            for path in files
            if (found := imported(path) - allowed)
        }
    assert not wrong


def test_a_room_says_what_it_is_for_and_what_it_exports():
    for room in ROOMS:
        door = importlib.import_module(f"farzi_hf.{room}")
        assert door.__doc__, room
        assert all(hasattr(door, name) for name in door.__all__), room


def test_import_is_lazy():
    heavy = ("torch", "transformers", "datasets", "accelerate", "numpy")
    code = f"import sys, farzi_hf; print([name for name in {heavy} if name in sys.modules])"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, cwd=PACKAGE.parent, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_the_engine_is_imported_with_torch_alone():
    """A GPU image has torch, and perhaps nothing else."""
    found = set()
    for path in (PACKAGE / "engine").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = (
                [x.name for x in node.names]
                if isinstance(node, ast.Import)
                else [getattr(node, "module", None) or ""]
            )
            found |= {name.split(".")[0] for name in names}
    assert found - {"", "farzi_hf"} - sys.stdlib_module_names == {"torch"}
