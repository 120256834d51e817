"""The one-way flow between the rooms of the package, read from the syntax trees."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parent.parent / "farzi_hf"
# A room imports from the rooms before it. What stands beside the rooms, the trainer first of all, may use them all.
ROOMS = ("engine", "data", "models", "tasks", "summary", "distillation", "attribution", "report")
INDEPENDENT = ("engine", "models")
BESIDE = ("cli",)
FILES = sorted(path for room in ROOMS for path in (PACKAGE / room).rglob("*.py"))


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
            names |= {f"{source}.{alias.name}" for alias in node.names} if source == "farzi_hf" else {source}
    return {name.split(".")[1] for name in names if name.startswith("farzi_hf.")}


def test_every_file_is_in_a_room_or_beside_them() -> None:
    assert {path.name for path in PACKAGE.iterdir() if path.is_dir() and path.name != "__pycache__"} == {
        *ROOMS,
        *BESIDE,
    }


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_room_imports_only_rooms_before_it(path: Path) -> None:
    room = path.relative_to(PACKAGE).parts[0]
    earlier = set() if room in INDEPENDENT else set(ROOMS[: ROOMS.index(room)])
    assert imported(path) <= earlier | {room}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_says_what_it_is_for_and_what_it_exports(room: str) -> None:
    door = importlib.import_module(f"farzi_hf.{room}")
    assert door.__doc__
    assert all(hasattr(door, name) for name in door.__all__)


def test_import_is_lazy() -> None:
    heavy = ("torch", "transformers", "datasets", "accelerate", "numpy")
    code = f"import sys, farzi_hf; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=PACKAGE.parent, capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
