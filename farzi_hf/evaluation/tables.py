"""Tables on a terminal, in Markdown and as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farzi_hf.artefact.atomic_folder import replace_file
from farzi_hf.artefact.disk import names_the_disk


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table whose columns also line up on a terminal; every row has the keys of the first."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first, *others = widths
    rule = "|-" + "-" * first + "-|" + "".join("-" * width + "-:|" for width in others)

    def line(cells: Sequence[str]) -> str:
        right = [cell.rjust(width) for cell, width in zip(cells[1:], others, strict=True)]
        return "| " + " | ".join([cells[0].ljust(first), *right]) + " |"

    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def listed(facts: Mapping[str, Any]) -> str:
    """Facts as a Markdown list."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def save_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows as they are; a column that a row lacks stays empty, an interval is written as JSON."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    save_text(text.getvalue(), path)


def save_text(text: str, path: Path) -> None:
    """Replaces the file: a program that is killed, or a full disk, leaves the old one."""
    with names_the_disk(path.parent):
        replace_file(path, lambda new: new.write_bytes(text.encode()))
