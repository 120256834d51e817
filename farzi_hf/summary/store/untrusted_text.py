"""Reading JSON and YAML that somebody else wrote. The result is plain data, or a ValueError that names the file, in bounded time.

`check_results` holds what is known of metrics and recipe; what a learner has to be is in `card_learner`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
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


_FIGURES = (
    "data_bytes", "data_sequences", "learner_parameters", "distillation_seconds", "student_seconds", "full_data_seconds", "full_data_steps",
)  # fmt: skip


def check_results(metrics: Mapping[str, Any], recipe: Mapping[str, Any], of_metrics: str, of_recipe: str) -> None:
    """Checks the entries of metrics and recipe that have a place of their own on the card or in `farzi show`. Others can be anything.

    Args:
        of_metrics: what an error calls the metrics: their argument or file.
        of_recipe: the same for the recipe.

    Raises:
        ValueError: an entry has another type than it needs.
    """
    for name in _FIGURES:
        if not (metrics.get(name) is None or _is_figure(metrics[name])):
            raise ValueError(
                f"{of_metrics}[{name!r}]={metrics[name]!r:.200} is not a number; give one, or leave it out"
            )
    if not isinstance(licence := metrics.get("licence"), str | None):
        raise ValueError(
            f"{of_metrics}['licence']={licence!r:.200} is no text; give the licence's name on the Hub, for instance 'mit'"
        )
    rows = metrics.get("table", [])
    if not (isinstance(rows, list | tuple) and all(isinstance(row, Mapping) and row for row in rows)):
        raise ValueError(
            f"{of_metrics}['table']={rows!r:.200} is no list of rows, which map columns to values; mend it"
        )
    for i, row in enumerate(rows):
        for column, value in row.items():
            numbers = value if column.endswith("_interval") and isinstance(value, list | tuple) else [value]
            if column.endswith(("_std", "_interval")) and not all(map(_is_number, numbers)):
                raise ValueError(f"{of_metrics}['table'][{i}][{column!r}]={value!r:.200} is no number; mend it")
    if not isinstance(inputs := recipe.get("input_sequences"), str | None):
        raise ValueError(f"{of_recipe}['input_sequences']={inputs!r:.200} is no text; mend it")


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, float | int) and not isinstance(value, bool))


def _is_figure(value: Any) -> bool:
    """Whether the card can compute with `value`."""
    return _is_number(value) and abs(value) < 1e18


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
