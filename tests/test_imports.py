"""The one-way flow of the package, read from the syntax trees."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# A module imports only from those before it; models and engine import nothing of ours.
ORDER = (
    "seeds", "field_types", "disk", "interrupts",
    "collators", "grammar", "catalogue", "interaction_columns", "interaction_files", "own_interactions", "interactions", "data", "metrics",
    "artefact_layout", "untrusted_text", "tensor_file", "artefact_folder", "atomic_folder", "vocabulary", "hub", "models",
    "farzi_data_config", "local_paths", "escaping", "card_learner", "card", "viewer", "publishing", "soft_tokens", "farzi_data",
    "learner_checks", "learner", "row_checks",
    "engine", "trajectories", "objectives", "baselines", "initialization", "config",
    "publishing_trainer", "trainer_input", "checkpoints", "callbacks", "resumable_trainer", "trainer", "soft_training", "plots",
)  # fmt: skip
INDEPENDENT = {"models", "engine"}
MODULES = sorted(set((ROOT / "farzi_hf").rglob("*.py")) - {ROOT / "farzi_hf" / "__init__.py"})


def name_of(path: Path) -> str:
    """The entry of ORDER that a file belongs to: farzi_hf/models/rnn.py is part of models."""
    return path.relative_to(ROOT / "farzi_hf").parts[0].removesuffix(".py")


def imported(path: Path) -> set[str]:
    """The entries of ORDER that a file imports, anywhere in it, absolutely or relatively."""
    package = (
        ("farzi_hf", *path.relative_to(ROOT / "farzi_hf").parts[:-1]) if path.is_relative_to(ROOT / "farzi_hf") else ()
    )
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            source = ".".join(part for part in (base, node.module) if part)
            # `from farzi_hf import data` names a module, `from farzi_hf.data import tokenize` a function of one
            names |= {f"{source}.{alias.name}" for alias in node.names} if source == "farzi_hf" else {source}
    return {name.split(".")[1] for name in names if name.startswith("farzi_hf.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_module_imports_only_from_those_before_it(path: Path) -> None:
    name = name_of(path)
    assert name in ORDER, f"{path.name} has no place in ORDER: add it where its imports allow"
    earlier = set() if name in INDEPENDENT else set(ORDER[: ORDER.index(name)])
    assert imported(path) <= earlier | {name}  # itself: the files of one folder may use each other


def test_only_recipes_and_the_package_import_the_trainer() -> None:
    users = {
        path
        for folder in ("farzi_hf", "metrics")
        for path in (ROOT / folder).rglob("*.py")
        if "trainer" in imported(path)
    }
    assert users <= {ROOT / "farzi_hf" / "__init__.py"}


def test_import_is_lazy() -> None:
    heavy = ("torch", "transformers", "datasets", "accelerate", "numpy")
    code = f"import sys, farzi_hf; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
