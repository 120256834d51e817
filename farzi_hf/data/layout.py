"""How a text file writes a table: what divides its cells, where its header is, and what its columns
hold if it has none.

`layout_of` decides it by the first rows. Columns are interactions if a header names them so, or if
the rows have one of the `FORMS`. Other tables without a header are never taken for interactions,
and `is_table` keeps them from being taken for a text.
"""

import csv
import io
import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pyarrow as pa

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.columns import NONE, Given, columns_of, hold_interactions
from farzi_hf.data.forms import (
    BLANKS,
    FEWEST_ROWS,
    FORMS,
    Cells,
    Form,
    are_alike,
    are_names,
    look_like_table,
)
from farzi_hf.data.opening import UnusableFileError, ending, opened, utf8

logger = logging.getLogger(__name__)

MARKS = (",", "\t", ";", "|", "::")
"""What may divide cells, beside blanks; the first of those that are equally frequent."""
WHOLE_LINES = ""
"""The mark of a file in which nothing divides a line."""
_ONE_CHARACTER = "\x1f"  # stands for marks that are not one character
_COMMENTS = ("#", "%", "//")
_TITLE_LINES = 10  # that may come before a header
_HEAD = 1 << 20  # characters that are looked at
_HEAD_LINES = 1000
_ROWS = 100


@dataclass(frozen=True)
class Layout:
    """How a text file writes a table."""

    mark: str
    """What divides cells: one of `MARKS`, `BLANKS` or `WHOLE_LINES`."""
    header: tuple[str, ...]
    """The cells of the first line that counts."""
    skipped: int
    """The lines before it, such as a title and comments."""
    form: Form | None
    """The form of a file without a header."""
    holds_interactions: bool
    """Whether the columns are those of interactions."""

    @property
    def has_quotes(self) -> bool:
        """Whether quotes may stand around a cell."""
        return self.mark not in ("::", BLANKS)

    @property
    def delimiter(self) -> str:
        """The character between the cells of `open`."""
        return self.mark if self.has_quotes and self.mark else _ONE_CHARACTER

    def open(self, path: Path) -> pa.NativeFile:
        """The file as UTF-8, its cells divided by `delimiter`."""
        if self.has_quotes:
            return utf8(path)
        return _with_delimiter(utf8(path), self.mark)

    def say_skipped(self, path: Path) -> None:
        """Logs that lines are left out."""
        if self.skipped:
            logger.warning(
                "%s: the lines before line %d are left out; the columns begin there",
                terminal_text(path),
                1 + self.skipped,
            )


def layout_of(path: Path, given: Given = NONE) -> Layout:
    """The layout of a text file with columns.

    Args:
        given: the names of columns that its header must have.

    Raises:
        UnusableFileError: it is not text.
        ValueError: it is empty, or its header is not UTF-8.
    """
    head = _Head(path)
    first = head.starts[0]
    after_comments = next((place for place in head.starts if not head.is_comment(place)), first)
    for place in dict.fromkeys([first, after_comments]):
        layout = head.with_names(place, given, alike=place != first)
        layout = layout or head.with_form(place, given)
        if layout is not None:
            return layout
    for place in head.starts[1:]:
        layout = head.with_names(place, given, alike=True)
        if layout is not None:
            return layout
    return head.of_text(after_comments)


def is_table(path: Path) -> bool:
    """Whether the first rows of a plain text are a table and no text."""
    try:
        head = _Head(path)
    except UnusableFileError:
        raise
    except ValueError:  # it is empty, or damaged, which reading will say
        return False
    first = head.starts[0]
    return any(look_like_table(head.rows(first, mark), mark) for mark in (*MARKS, BLANKS))


class _Head:
    """The first lines of a file, and the layouts that they may have.

    Attributes:
        starts: the places of the first lines that are not empty, of which one may be the header.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            with opened(path, errors="surrogateescape", newline="") as file:
                text = file.read(_HEAD)
        except (UnicodeError, OSError) as error:
            raise self._unreadable(reason(error)) from None
        self._lines = list(islice(io.StringIO(text, newline=""), _HEAD_LINES + 1))
        if len(text) == _HEAD and len(self._lines) > 1:
            self._lines.pop()  # which may be cut short
        filled = (place for place, line in enumerate(self._lines) if line.strip("\r\n"))
        self.starts = list(islice(filled, 1 + _TITLE_LINES))
        if not self.starts:
            raise self._unreadable("it is empty")

    def rows(self, place: int, mark: str) -> list[Cells]:
        """The cells of the lines from this one on; none if they cannot be divided."""
        lines = self._lines[place:]
        if mark == "::":
            rows = (line.rstrip("\r\n").split(mark) for line in lines if line.strip("\r\n"))
        elif mark == BLANKS:
            rows = (line.split() for line in lines if line.strip())
        else:
            rows = _readable(csv.reader(lines, delimiter=mark or _ONE_CHARACTER))
        return list(islice(rows, _ROWS))

    def is_comment(self, place: int) -> bool:
        """Whether a line is a comment, and no header such as #id,text."""
        line = self._lines[place]
        if line.startswith("sep="):  # of Excel
            return True
        if not line.startswith(_COMMENTS):
            return False
        names = self._names(place)
        return len(names) < 2 or any(" " in name.strip("#% ") for name in names)

    def with_names(self, place: int, given: Given, alike: bool) -> Layout | None:
        """The layout if this line names the columns of interactions.

        Args:
            alike: whether nearly all rows after it have to be as long.
        """
        for mark in (self._mark(place), BLANKS):
            rows = self.rows(place, mark)
            must_be_alike = alike or mark == BLANKS
            if not rows or (must_be_alike and not are_alike(rows)):
                continue
            if _name_interactions(rows, given):
                return self._layout(place, mark, holds_interactions=True)
        return None

    def with_form(self, place: int, given: Given) -> Layout | None:
        """The layout if the rows from this line on have one of the `FORMS`."""
        if any(given.values()):
            return None
        for mark in (self._mark(place), BLANKS):
            rows = self.rows(place, mark)
            for form in FORMS:
                if rows and form.matches(rows, mark):
                    return self._layout(place, mark, form, holds_interactions=True)
        return None

    def of_text(self, after_comments: int) -> Layout:
        """The layout of a table without interactions.

        Its header is the first line, or one after a comment or a title that has more names, and as
        many as nearly all rows have cells.
        """
        first = self.starts[0]
        title = self._names(first)
        if not are_names(title):
            for place in self.starts[1:]:
                rows = self.rows(place, self._mark(place))
                is_longer = bool(rows) and len(rows[0]) > len(title)
                has_rows = len(rows) > FEWEST_ROWS
                if is_longer and has_rows and are_names(rows[0]) and are_alike(rows):
                    return self._layout(place, self._mark(place))
        has_columns = len(self._names(after_comments)) > 1
        place = after_comments if has_columns else first
        return self._layout(place, self._mark(place))

    def _mark(self, place: int) -> str:
        """What divides the cells of a line: what it has most often."""
        line = self._lines[place]
        if ending(self._path) in (".tsv", ".inter") and "\t" in line:
            return "\t"
        most = max(MARKS, key=line.count)
        return most if most in line else WHOLE_LINES

    def _names(self, place: int, mark: str | None = None) -> Cells:
        """The cells of a line; none if they cannot be divided."""
        rows = self.rows(place, self._mark(place) if mark is None else mark)
        return rows[0] if rows else []

    def _layout(
        self, place: int, mark: str, form: Form | None = None, holds_interactions: bool = False
    ) -> Layout:
        names = self._names(place, mark)
        if not names:
            raise self._unreadable("its first line is not a row")
        try:
            "".join(names).encode()
        except UnicodeError as error:
            raise self._unreadable(reason(error)) from None
        skipped = place if place != self.starts[0] else 0  # readers skip empty lines by themselves
        return Layout(mark, tuple(names), skipped, form, holds_interactions)

    def _unreadable(self, why: str) -> ValueError:
        return ValueError(f"{self._path} does not hold a header and lines as long as it ({why})")


def _readable(rows: Iterator[Cells]) -> Iterator[Cells]:
    """The rows before one that is too long for Python's reader, without empty ones."""
    try:
        yield from filter(None, rows)
    except csv.Error:
        return


def _name_interactions(rows: Sequence[Cells], given: Given) -> bool:
    """Whether the first row names the columns of interactions, and the others do not disagree."""
    names = rows[0]
    try:
        columns_of(names, "", given)
    except ValueError:
        return False
    if any(given.values()):
        return True
    body = [row for row in rows[1:] if len(row) == len(names)]
    return hold_interactions(
        {name: [row[place] for row in body] for place, name in enumerate(names)}
    )


def _with_delimiter(file: pa.NativeFile, mark: str) -> pa.NativeFile:
    """The same text with `_ONE_CHARACTER` in the place of a mark of several characters, or of
    blanks.
    """
    delimiter = _ONE_CHARACTER.encode()
    rest = b""

    def divide(part: pa.Buffer) -> bytes:
        """Whole lines: a mark may begin in one part and end in the next. The last part is empty."""
        nonlocal rest
        content = rest + part.to_pybytes()
        last_line = max(content.rfind(b"\n"), content.rfind(b"\r")) + 1
        end = last_line if part.size else len(content)
        rest = content[end:]
        lines = content[:end]
        if mark == BLANKS:
            trimmed = re.sub(rb"(?<![^\r\n])[ \t]+|[ \t]+(?![^\r\n])", b"", lines)
            return re.sub(rb"[ \t]+", delimiter, trimmed)
        return lines.replace(mark.encode(), delimiter)

    return pa.TransformInputStream(file, divide)
