"""Reading JSON and YAML that somebody else wrote. The result is plain data, or a ValueError that names the file, in bounded time."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

_DEPTH = 100  # lists and mappings inside each other; ours have five levels


def parse_json(content: bytes, path: Path) -> Any:
    """The value in `content`, which was read from `path`."""
    return _parse(json.loads, content, path, "JSON")


def parse_yaml(content: bytes, path: Path) -> Any:
    """The value in `content`, which was read from `path`. It has to be data that JSON can hold too, without YAML's aliases."""
    return _parse(_load_yaml, content, path, "YAML")


def as_mapping(value: Any, path: Path) -> dict[str, Any]:
    """`value`, which was read from the file `path`; it has to be a mapping with strings as keys."""
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return value
    raise ValueError(
        f"{path} holds a {type(value).__name__} where a mapping of names to values is due; fetch the file again, or mend it"
    )


def _parse(load: Callable[[str], Any], content: bytes, path: Path, kind: str) -> Any:
    try:
        value = load(content.decode("utf-8"))
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else str(error)
        raise ValueError(f"{path} is no readable {kind}: {reason}; fetch the file again, or mend it") from None
    if _depth_exceeds(value, _DEPTH):
        raise ValueError(f"{path} is no readable {kind}: it is nested too deep; fetch the file again, or mend it")
    return value


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        parts = [part for part in level if isinstance(part, dict | list)]
        level = [child for part in parts for child in (part.values() if isinstance(part, dict) else part)]
        if not level:
            return False
    return True


class _PlainLoader(yaml.SafeLoader):
    """Refuses aliases: a few lines of them can stand for more data than fits into memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.composer.ComposerError(None, None, "aliases (*name) are not read", self.peek_event().start_mark)
        return super().compose_node(parent, index)


def _load_yaml(text: str) -> Any:
    value = yaml.load(text, _PlainLoader)
    try:
        json.dumps(value)
    except TypeError as error:  # dates, sets, bytes, and keys such as lists
        raise ValueError(f"it holds what JSON cannot ({error})") from None
    return value
