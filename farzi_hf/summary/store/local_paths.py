"""Removing local folders from what is published."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any


def without_local_paths(value: Any) -> Any:
    """`value`, anything JSON can hold, in which absolute paths and paths from a home folder are cut to their last part.

    `/home/ann/omega` becomes `omega`, because the folders above it name users, machines and projects. Relative paths stay.
    """
    if isinstance(value, Mapping):
        return {name: without_local_paths(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [without_local_paths(part) for part in value]
    if isinstance(value, str) and "\n" not in value:
        for path in (PurePosixPath(value), PureWindowsPath(value)):
            if path.is_absolute() or value.startswith("~"):
                return path.name
    return value
