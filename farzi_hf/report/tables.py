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
    names = list(rows[0])
    table = [names, *(list(row.values()) for row in rows)]
    head, *body = [[_cell(text) for text in line] for line in table]
    columns = zip(head, *body, strict=True)
    widths = [max(map(len, column)) for column in columns]
    is_left = [column == 0 or name in texts for column, name in enumerate(names)]
    rule = "".join(map(_rule, widths, is_left)) + "|"
    lines = [_line(cells, widths, is_left) for cells in body]
    return "\n".join([_line(head, widths, is_left), rule, *lines])


def _rule(width: int, is_left: bool) -> str:
    """The part of the rule below a head that belongs to one column, and says how it is aligned."""
    return f"|-{'-' * width}{'-' if is_left else ':'}"


def _cell(text: str) -> str:
    """A text that neither acts on a terminal nor ends its cell."""
    return terminal_text(text).replace("|", "¦")


def _line(cells: Sequence[str], widths: Sequence[int], is_left: Sequence[bool]) -> str:
    """A line of a table, its cells as wide as their columns."""
    padded = [
        cell.ljust(width) if left else cell.rjust(width)
        for cell, width, left in zip(cells, widths, is_left, strict=True)
    ]
    return f"| {' | '.join(padded)} |"


def listed(facts: Mapping[str, Any]) -> str:
    """Facts as a Markdown list."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def save_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Writes rows as CSV. If a row lacks a column, the cell stays empty; an interval is written as
    JSON.
    """
    text = io.StringIO(newline="")
    columns = dict.fromkeys(name for row in rows for name in row)
    writer = csv.DictWriter(text, list(columns))
    writer.writeheader()
    for row in rows:
        writer.writerow({name: _csv_value(value) for name, value in row.items()})
    save_text(text.getvalue(), path)


def _csv_value(value: Any) -> Any:
    """The value of a cell; a list is an interval."""
    return json_text(value, None).strip() if isinstance(value, list) else value


def save_json(value: Any, path: Path) -> None:
    """Writes JSON for programs and for readers, as `json_text` does."""
    save_text(json_text(value, indent=1, ensure_ascii=False), path)


def save_text(text: str, path: Path) -> None:
    """Replaces the file in one step. If the program is killed or the disk is full, the old file
    stays.
    """
    replace_file(path, lambda new: new.write_bytes(text.encode()))
