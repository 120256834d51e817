"""Results that a recipe keeps, so that a later start does not make them again: JSON files with the settings that they depend on."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from farzi_hf.cli.run_folder import made_with
from farzi_hf.report import save_text
from farzi_hf.summary.store.escaping import json_text


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
    """What a file holds, if it was made with the same settings.

    Raises:
        ValueError: the file is not of this kind, and `kept` would overwrite it.
    """
    with suppress(ValueError, AttributeError):  # no JSON, or no object
        found = made_with(settings, path)
        if found or not path.exists() or json.loads(path.read_text(encoding="utf-8")).keys() == {"settings", "value"}:
            return found.get("value")
    raise ValueError(
        f"{str(path)!r} exists already, and no recipe has written it: choose another output_dir, or move it away"
    )
