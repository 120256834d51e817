"""Results that a recipe keeps, so that a later start does not make them again: JSON files with the settings that they depend on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farzi_hf.artefact.escaping import json_text
from farzi_hf.cli.run_folder import made_with
from farzi_hf.evaluation import save_text


def kept(
    path: Path, settings: Mapping[str, Any], make: Callable[[], Any], unless: Callable[[Any], bool] | None = None
) -> Any:
    """What `make` returns, from a file if an earlier run with the same settings has made it. A value is not kept if `unless` is true of it."""
    if (found := stored(path, settings)) is not None:
        return found
    value = make()
    if unless is None or not unless(value):
        path.parent.mkdir(parents=True, exist_ok=True)
        save_text(json_text({"settings": settings, "value": value}, indent=None), path)
    return value


def stored(path: Path, settings: Mapping[str, Any]) -> Any | None:
    """What a file holds, if it was made with the same settings."""
    return made_with(settings, path).get("value")
