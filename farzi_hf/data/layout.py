"""How a text file writes a table: what divides its cells, where its header is, and what its columns
hold if it has none.

`layout_of` decides it by the first rows. Columns are interactions if a header names them so, or if
the rows have one of the `FORMS`, each of which means one thing. Other files without a header are
never taken for interactions, and `is_table` keeps them from being taken for a text.
"""

import csv
import io
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from pathlib import Path

import pyarrow as pa

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.columns import NONE, Given, columns_of, hold_interactions
from farzi_hf.data.opening import UnusableFileError, ending, opened, utf8

logger = logging.getLogger(__name__)

MARKS = (",", "\t", ";", "|", "::")
"""What may divide cells; the first of those that are equally frequent."""
BLANKS = " "
"""Cells are divided by one blank or more. Words are too, so nearly all rows have to agree."""
WHOLE_LINES = ""
"""Nothing divides a line."""
_ONE_CHARACTER = "\x1f"  # stands for marks that are not one character
_COMMENTS = ("#", "%", "//")
_TITLE_LINES = 10  # that may come before a header
_HEAD, _HEAD_LINES = 1 << 20, 1000  # characters and lines that are looked at
_ROWS = 100  # of them
_FEWEST_ROWS = 3  # that show how a table is written
_NEARLY_ALL = 0.9

Row = list[str]

# -- what a file's first lines say -----------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A table of interactions without a header."""

    names: tuple[str, ...]
    """What its columns hold."""
    matches: Callable[[Sequence[Row], str], bool]
    """Whether the first rows of a file, divided by a mark, have this form."""
    lists_items: bool = False
    """Whether a line is a user with all their items."""


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

    def say_skipped(self, path: Path) -> None:
        """Logs that lines are left out."""
        if self.skipped:
            logger.warning(
                "%s: the lines before line %d are left out; the columns begin there",
                terminal_text(path),
                1 + self.skipped,
            )

    @property
    def delimiter(self) -> str:
        """The character between the cells of `open`."""
        return self.mark if self.has_quotes and self.mark else _ONE_CHARACTER

    @property
    def has_quotes(self) -> bool:
        """Whether quotes may stand around a cell."""
        return self.mark not in ("::", BLANKS)

    def open(self, path: Path) -> pa.NativeFile:
        """The file as UTF-8, its cells divided by `delimiter`."""
        return utf8(path) if self.has_quotes else _with_delimiter(utf8(path), self.mark)


def layout_of(path: Path, given: Given = NONE) -> Layout:
    """The layout of a text file with columns.

    Args:
        given: the names of columns that its header must have.

    Raises:
        UnusableFileError: it is no text.
        ValueError: it is empty, or its header is no UTF-8.
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
    """Whether the first rows of a plain text are a table and no text: nearly all have the same
    number of cells, and cells are ids and numbers.
    """
    try:
        head = _Head(path)
    except UnusableFileError:
        raise
    except ValueError:  # it is empty, or damaged, which reading will say
        return False
    first = head.starts[0]
    if _mostly(head.rows(first, BLANKS)[1:], lambda row: len(row) > 1 and _all_are(_NUMBER, row)):
        return True
    return any(_looks_like_table(head.rows(first, mark), mark) for mark in MARKS)


class _Head:
    """The first lines of a file.

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

    def mark(self, place: int) -> str:
        """What divides the cells of a line: what it has most often."""
        line = self._lines[place]
        if ending(self._path) in (".tsv", ".inter") and "\t" in line:
            return "\t"
        most = max(MARKS, key=line.count)
        return most if most in line else WHOLE_LINES

    def rows(self, place: int, mark: str) -> list[Row]:
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
        names = self._names(place, self.mark(place))
        return len(names) < 2 or any(" " in name.strip("#% ") for name in names)

    def with_names(self, place: int, given: Given, alike: bool = False) -> Layout | None:
        """The layout if this line names the columns of interactions; if `alike`, only if nearly all
        rows after it are as long.
        """
        for mark in (self.mark(place), BLANKS):
            rows = self.rows(place, mark)
            is_divided = bool(rows) and (_are_alike(rows) or not (alike or mark == BLANKS))
            if is_divided and _name_interactions(rows, given):
                return self._layout(place, mark, holds_interactions=True)
        return None

    def with_form(self, place: int, given: Given) -> Layout | None:
        """The layout if the rows from this line on have one of the `FORMS`."""
        if any(given.values()):
            return None
        for mark in (self.mark(place), BLANKS):
            rows = self.rows(place, mark)
            form = next((form for form in FORMS if rows and form.matches(rows, mark)), None)
            if form is not None:
                return self._layout(place, mark, form, holds_interactions=True)
        return None

    def of_text(self, after_comments: int) -> Layout:
        """The layout of a table without interactions. Its header is the first line, or one after a
        comment or a title that has more names, and as many as nearly all rows have cells.
        """
        first = self.starts[0]
        title = self._names(first, self.mark(first))
        later = [] if _are_names(title) else self.starts[1:]
        for place in later:
            rows = self.rows(place, self.mark(place))
            is_header = bool(rows) and len(rows[0]) > len(title) and _are_names(rows[0])
            if is_header and len(rows) > _FEWEST_ROWS and _are_alike(rows):
                return self._layout(place, self.mark(place))
        has_columns = len(self._names(after_comments, self.mark(after_comments))) > 1
        place = after_comments if has_columns else first
        return self._layout(place, self.mark(place))

    def _names(self, place: int, mark: str) -> Row:
        rows = self.rows(place, mark)
        return rows[0] if rows else []

    def _layout(
        self, place: int, mark: str, form: Form | None = None, holds_interactions: bool = False
    ) -> Layout:
        names = self._names(place, mark)
        if not names:
            raise self._unreadable("its first line is no row")
        try:
            "".join(names).encode()
        except UnicodeError as error:
            raise self._unreadable(reason(error)) from None
        skipped = place if place != self.starts[0] else 0  # readers skip empty lines by themselves
        return Layout(mark, tuple(names), skipped, form, holds_interactions)

    def _unreadable(self, why: str) -> ValueError:
        return ValueError(f"{self._path} does not hold a header and lines as long as it ({why})")


def _readable(rows: Iterator[Row]) -> Iterator[Row]:
    """The rows before one that is too long for Python's reader, without empty ones."""
    try:
        yield from filter(None, rows)
    except csv.Error:
        return


def _with_delimiter(file: pa.NativeFile, mark: str) -> pa.NativeFile:
    """The same text with one character in the place of the mark, of several ones or of blanks."""
    delimiter = _ONE_CHARACTER.encode()
    rest = b""

    def divide(part: pa.Buffer) -> bytes:
        """Whole lines: a mark may begin in one part and end in the next. The last part is empty."""
        nonlocal rest
        content = rest + part.to_pybytes()
        end = len(content) if part.size == 0 else 1 + max(map(content.rfind, (b"\n", b"\r")))
        rest = content[end:]
        lines = content[:end]
        if mark == BLANKS:
            trimmed = re.sub(rb"(?<![^\r\n])[ \t]+|[ \t]+(?![^\r\n])", b"", lines)
            return re.sub(rb"[ \t]+", delimiter, trimmed)
        return lines.replace(mark.encode(), delimiter)

    return pa.TransformInputStream(file, divide)


# -- what rows look like ---------------------------------------------------------------------------

_INTEGER = re.compile(r"-?\d+")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_TIME = re.compile(r"[1-9]\d{8,}(\.\d+)?|\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?")  # of 1973 and later
_CODE = re.compile(rf"\S{{1,64}}|{_TIME.pattern}")
_NAME = re.compile(r"[^\W\d]\w*")


def _all_are(pattern: re.Pattern, cells: Sequence[str]) -> bool:
    return all(map(pattern.fullmatch, cells))


def _are_names(cells: Sequence[str]) -> bool:
    """Whether these may be the names of columns: one word each, which begins with a letter."""
    return all(_NAME.fullmatch(cell.strip()) for cell in cells)


def _mostly(rows: Sequence[Row], holds: Callable[[Row], bool]) -> bool:
    """Whether something holds of nearly all rows, and these are enough to show it."""
    return len(rows) >= _FEWEST_ROWS - 1 and sum(map(holds, rows)) >= _NEARLY_ALL * len(rows)


def _all_show(rows: Sequence[Row], holds: Callable[[Row], bool]) -> bool:
    """Whether something holds of the first row, and of nearly all others."""
    return holds(rows[0]) and _mostly(rows[1:], holds)


def _are_alike(rows: Sequence[Row]) -> bool:
    """Whether nearly all rows after the first have as many cells."""
    return len(rows[0]) > 1 and _mostly(rows[1:], lambda row: len(row) == len(rows[0]))


def _name_interactions(rows: Sequence[Row], given: Given) -> bool:
    """Whether the first row names the columns of interactions, and the others do not disagree."""
    names = rows[0]
    try:
        columns_of(names, "", given)
    except ValueError:
        return False
    if any(given.values()):
        return True
    body = [row for row in rows[1:] if len(row) == len(names)]
    return hold_interactions({name: [row[i] for row in body] for i, name in enumerate(names)})


def _looks_like_table(rows: Sequence[Row], mark: str) -> bool:
    """Whether nearly all rows have the same number of cells, and all of these are ids and numbers,
    or two of them at least.
    """
    body = rows[1:]  # the first may be a header
    if not body:
        return False
    (width, _), *_ = Counter(map(len, body)).most_common(1)
    if width < 2 or not _mostly(body, lambda row: len(row) == width):
        return False
    columns = list(zip(*(row for row in body if len(row) == width), strict=True))
    codes = [cells for cells in columns if _all_are(_CODE, cells)]
    ids = [cells for cells in codes if all(re.search(r"\d", cell) for cell in cells)]
    return mark == "::" or len(codes) == width or len(ids) >= 2


def _are_ratings(rows: Sequence[Row], mark: str) -> bool:
    """A rating and a time at the end. The first row decides it, but bars and blanks divide other
    tables and words too: there nearly all rows have to agree, and the times to be of our days.
    """

    def is_rating(row: Row) -> bool:
        return len(row) == 4 and _all_are(_NUMBER, row[2:])

    if mark not in ("|", BLANKS):
        return is_rating(rows[0])
    return _all_show(rows, lambda row: is_rating(row) and bool(_TIME.fullmatch(row[3])))


def _are_timed_pairs(rows: Sequence[Row], mark: str) -> bool:
    """A third cell that is a time, and cannot be a rating."""

    def is_timed_pair(row: Row) -> bool:
        return len(row) == 3 and _all_are(_CODE, row[:2]) and bool(_TIME.fullmatch(row[2]))

    return _all_show(rows, is_timed_pair)


def _are_grouped_pairs(rows: Sequence[Row], mark: str) -> bool:
    """Integers of which the first ones stand in groups: all rows of a user stand together."""
    if not all(len(row) == 2 and _all_are(_INTEGER, row) for row in rows):
        return False
    users = [user for user, _ in rows]
    groups = [user for user, _ in groupby(users)]
    stand_together = len(groups) == len({*users})
    return stand_together and len(rows) >= 2 * max(_FEWEST_ROWS, len(groups))


def _are_numbered_lists(rows: Sequence[Row], mark: str) -> bool:
    """Integers, rows of several lengths, whose first numbers count the rows."""
    if len(rows) < _FEWEST_ROWS or not all(
        len(row) > 1 and _all_are(_INTEGER, row) for row in rows
    ):
        return False
    counts_rows = all(int(after[0]) == int(row[0]) + 1 for row, after in pairwise(rows))
    return counts_rows and len({*map(len, rows)}) > 1


RATINGS = Form(("user", "item", "rating", "timestamp"), _are_ratings)
FORMS = (
    RATINGS,
    Form(("user", "item", "timestamp"), _are_timed_pairs),
    Form(("user", "item"), _are_grouped_pairs),
    Form(("user", "items"), _are_numbered_lists, lists_items=True),
)
"""The forms of interactions without a header, as MovieLens and Amazon, and SASRec and its followers
write them.
"""
