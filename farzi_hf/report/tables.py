"""Tables on a terminal, in Markdown and as CSV."""

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farzi_hf.common.files import replace_file
from farzi_hf.common.text import json_text, terminal_text


def markdown(rows: Sequence[Mapping[str, str]], texts: Sequence[str] = ()) -> str:
    """A Markdown table whose columns also line up on a terminal. All rows must have the same keys.

    The first column and the columns named in `texts` are aligned left. All other columns hold
    numbers and are aligned right. Cells may be texts of others: see `terminal_text`. A bar, which
    would end the cell, becomes a broken one.
    """
    cells = (rows[0], *(row.values() for row in rows))
    lines = [[terminal_text(cell).replace("|", "¦") for cell in line] for line in cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    left = [index == 0 or name in texts for index, name in enumerate(rows[0])]

    def line(cells: Sequence[str]) -> str:
        shown = zip(cells, widths, left, strict=True)
        return (
            "| "
            + " | ".join(
                cell.ljust(width) if text else cell.rjust(width) for cell, width, text in shown
            )
            + " |"
        )

    rule = (
        "".join(
            f"|-{'-' * width}{'-' if text else ':'}"
            for width, text in zip(widths, left, strict=True)
        )
        + "|"
    )
    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def listed(facts: Mapping[str, Any]) -> str:
    """Facts as a Markdown list."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def save_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes rows as CSV. If a row lacks a column, the cell stays empty; an interval is written as
    JSON.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)))
    writer.writeheader()
    for row in rows:
        writer.writerow(
            {k: json_text(v, None).strip() if isinstance(v, list) else v for k, v in row.items()}
        )
    save_text(text.getvalue(), path)


def save_json(value: Any, path: Path) -> None:
    """Writes JSON for programs and for readers, as `json_text` does."""
    save_text(json_text(value, indent=1, ensure_ascii=False), path)


def save_text(text: str, path: Path) -> None:
    """Replaces the file in one step. If the program is killed or the disk is full, the old file
    stays.
    """
    replace_file(path, lambda new: new.write_bytes(text.encode()))
