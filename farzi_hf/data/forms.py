"""What rows of text look like: tables of interactions without a header, and other tables.

Each of the `FORMS` of interactions means one thing. A row is the list of its cells. Rows are the
first ones of a file, at most a hundred.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

BLANKS = " "
"""Cells are divided by one blank or more. Words are too, so nearly all rows have to agree."""
FEWEST_ROWS = 3
"""Rows that show how a table is written."""
_NEARLY_ALL = 0.9
_MANY_DIGITS = 18  # of an integer

_INTEGER = re.compile(rf"-?\d{{1,{_MANY_DIGITS}}}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_TIME = re.compile(r"[1-9]\d{8,}(\.\d+)?|\d{4}-\d\d-\d\d([ T]\d\d:\d\d.*)?")
"""Seconds since 1970 of 1973 and later, or a date."""
_CODE = re.compile(rf"\S{{1,64}}|{_TIME.pattern}")
"""An id or a number, and no words."""
_DIGIT = re.compile(r"\d")
_NAME = re.compile(r"[^\W\d]\w*")

Cells = list[str]
"""A row of a text file: what stands between the marks."""


def are_names(cells: Sequence[str]) -> bool:
    """Whether these may be the names of columns: one word each, which begins with a letter."""
    return _all_are(_NAME, [cell.strip() for cell in cells])


def are_alike(rows: Sequence[Cells]) -> bool:
    """Whether the first row has several cells, and nearly all others have as many."""
    width = len(rows[0])
    return width > 1 and _mostly(rows[1:], lambda row: len(row) == width)


def look_like_table(rows: Sequence[Cells], mark: str) -> bool:
    """Whether rows, divided by a mark, are a table and no text. The first one may be a header.

    Nearly all rows have as many cells, and all columns are ids and numbers, or two of them at
    least. Divided by blanks, nearly all cells are numbers.
    """
    body = rows[1:]
    if mark == BLANKS:
        return _mostly(body, lambda row: len(row) > 1 and _all_are(_NUMBER, row))
    if not body:
        return False
    width = Counter(map(len, body)).most_common(1)[0][0]
    if width < 2 or not _mostly(body, lambda row: len(row) == width):
        return False
    columns = list(zip(*(row for row in body if len(row) == width), strict=True))
    codes = [cells for cells in columns if _all_are(_CODE, cells)]
    ids = [cells for cells in codes if all(map(_DIGIT.search, cells))]
    return mark == "::" or len(codes) == width or len(ids) >= 2


# -- interactions without a header -----------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """A table of interactions without a header."""

    names: tuple[str, ...]
    """What its columns hold."""
    matches: Callable[[Sequence[Cells], str], bool]
    """Whether rows, one at least, divided by a mark, have this form."""
    lists_items: bool = False
    """Whether a line is a user with all their items."""


def _are_ratings(rows: Sequence[Cells], mark: str) -> bool:
    """A rating and a time at the end.

    The first row decides it. But bars and blanks divide other tables and words too: there nearly
    all rows have to agree, and to have times of our days.
    """

    def is_rating(row: Cells) -> bool:
        return len(row) == 4 and _all_are(_NUMBER, row[2:])

    def is_timed_rating(row: Cells) -> bool:
        return is_rating(row) and _TIME.fullmatch(row[3]) is not None

    if mark in ("|", BLANKS):
        return _all_show(rows, is_timed_rating)
    return is_rating(rows[0])


def _are_timed_pairs(rows: Sequence[Cells], mark: str) -> bool:
    """A third cell that is a time, and cannot be a rating."""

    def is_timed_pair(row: Cells) -> bool:
        return len(row) == 3 and _all_are(_CODE, row[:2]) and _TIME.fullmatch(row[2]) is not None

    return _all_show(rows, is_timed_pair)


def _are_grouped_pairs(rows: Sequence[Cells], mark: str) -> bool:
    """Two integers, the first of which stand in groups: all rows of a user stand together."""
    if not all(len(row) == 2 and _all_are(_INTEGER, row) for row in rows):
        return False
    users = [user for user, _ in rows]
    groups = [user for user, _ in groupby(users)]
    stand_together = len(groups) == len(set(users))
    return stand_together and len(rows) >= 2 * max(FEWEST_ROWS, len(groups))


def _are_numbered_lists(rows: Sequence[Cells], mark: str) -> bool:
    """Integers, rows of several lengths, whose first numbers count the rows."""
    if not all(len(row) > 1 and _all_are(_INTEGER, row) for row in rows):
        return False
    numbers = [int(row[0]) for row in rows]
    count_rows = all(after == number + 1 for number, after in pairwise(numbers))
    return len(rows) >= FEWEST_ROWS and count_rows and len(set(map(len, rows))) > 1


RATINGS = Form(("user", "item", "rating", "timestamp"), _are_ratings)
FORMS = (
    RATINGS,
    Form(("user", "item", "timestamp"), _are_timed_pairs),
    Form(("user", "item"), _are_grouped_pairs),
    Form(("user", "items"), _are_numbered_lists, lists_items=True),
)
"""As MovieLens and Amazon have interactions without a header, and SASRec and its followers."""


# -- cells and rows --------------------------------------------------------------------------------


def _all_are(pattern: re.Pattern, cells: Sequence[str]) -> bool:
    return all(map(pattern.fullmatch, cells))


def _mostly(rows: Sequence[Cells], holds: Callable[[Cells], bool]) -> bool:
    """Whether something holds of nearly all of these rows, and they are enough to show it."""
    return len(rows) >= FEWEST_ROWS - 1 and sum(map(holds, rows)) >= _NEARLY_ALL * len(rows)


def _all_show(rows: Sequence[Cells], holds: Callable[[Cells], bool]) -> bool:
    """Whether something holds of the first row, and of nearly all others."""
    return holds(rows[0]) and _mostly(rows[1:], holds)
