"""Tables on a terminal, in Markdown and as CSV."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from textwrap import wrap
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


_NARROW = 12
"""Letters to which a column of texts may shrink."""


def fitted(rows: Sequence[Mapping[str, str]], width: int, texts: Sequence[str] = ()) -> str:
    """The table of `markdown`, for a terminal of so many columns: where it would be wider, heads
    and texts go on in lines below, broken after a comma if there is one. Numbers are never broken:
    where many columns of them have no room at all, nothing is broken.

    Args:
        rows, texts: see `markdown`.
    """
    names = list(rows[0])
    head = [_cell(name) for name in names]
    body = [[_cell(text) for text in row.values()] for row in rows]
    is_left = [column == 0 or name in texts for column, name in enumerate(names)]
    columns = list(zip(head, *body, strict=True))
    widths = [max(map(len, column)) for column in columns]
    for most in (0, _NARROW):  # heads first, then texts
        least = [
            _least(column, left and most) for column, left in zip(columns, is_left, strict=True)
        ]
        while sum(widths) + 3 * len(widths) + 1 > width:
            wide = [i for i, size in enumerate(widths) if size > least[i]]
            if not wide:
                break
            widths[max(wide, key=widths.__getitem__)] -= 1
    if sum(widths) + 3 * len(widths) + 1 > width:
        return markdown(rows, texts)
    rule = "".join(map(_rule, widths, is_left)) + "|"
    lines = [_lines(cells, widths, is_left) for cells in (head, *body)]
    return "\n".join([*lines[0], rule, *(line for row in lines[1:] for line in row)])


def _least(column: Sequence[str], most: int) -> int:
    """To how many letters a column, its head first, may shrink.

    Args:
        most: letters that its cells need, if they are broken; 0: they are not.
    """
    head, *cells = column
    longest = max(map(len, cells))
    word = max(map(len, head.split()), default=0)
    return max(word, min(longest, most) if most else longest)


def _lines(cells: Sequence[str], widths: Sequence[int], is_left: Sequence[bool]) -> list[str]:
    """The lines of one row, its cells broken where they are wider than their columns."""
    broken = [_broken(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return [_line(line, widths, is_left) for line in zip_longest(*broken, fillvalue="")]


def _broken(text: str, width: int) -> list[str]:
    """A text in lines of so many letters, broken after commas, or at blanks within a part that is
    longer.
    """
    if len(text) <= width:
        return [text]
    lines: list[str] = []
    for part in re.split(r"(?<=,) ", text):
        if lines and (len(part) > width or len(lines[-1]) + 1 + len(part) <= width):
            part = f"{lines.pop()} {part}"
        lines += wrap(part, width, break_on_hyphens=False)
    return lines


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
