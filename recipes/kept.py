"""Results that a recipe keeps, so that a later start does not make them again: JSON files with the settings that they depend on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from farzi_hf.cli.run_folder import made_with
from farzi_hf.evaluation import save_text


def kept(path: Path, settings: Mapping[str, Any], make: Callable[[], Any]) -> Any:
    """What `make` returns, from a file if an earlier run with the same settings has made it."""
    found = stored(path, settings)
    return keep(path, settings, make()) if found is None else found


def stored(path: Path, settings: Mapping[str, Any]) -> Any | None:
    """What a file holds, if it was made with the same settings."""
    return made_with(settings, path).get("value")


def keep(path: Path, settings: Mapping[str, Any], value: Any) -> Any:
    """Writes a value to its file, and returns it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_text(json.dumps({"settings": settings, "value": value}), path)
    return value
