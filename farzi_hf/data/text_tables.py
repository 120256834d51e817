"""Interactions in text files with columns: with a header, or in one of the forms without it.

Files are read with Arrow, and all ids as text first, because other readers turn the id 007 into 7.
"""

import contextlib
import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.columns import NAMES, NONE, Given, columns_of
from farzi_hf.data.forms import RATINGS
from farzi_hf.data.item_lists import is_text
from farzi_hf.data.layout import Layout, layout_of
from farzi_hf.data.tables import interactions_of, without_times

logger = logging.getLogger(__name__)

# No leading zeros and no plus sign, so that different texts are different numbers.
INTEGER = r"\A(0|-?[1-9][0-9]*)\z"
"""A number that an id or a time may be."""
_WRITTEN_OTHERWISE = r"\A\s*[+]?0*([0-9]+?)(\.0*)?\s*\z"  # 01, 1.0, +1 or a blank before it
_AMAZONS_USER = r"\AA[0-9A-Z]+\z"
_WHOLE_LINE = "line"
_IN_NO_LINE = "\x1e"  # in the place of what divides cells


def read_text_table(path: Path, given: Given = NONE) -> pa.Table:
    """User, item and timestamp of a text file with columns. Times are text; ids become numbers
    where all are. Empty lines are skipped.

    Raises:
        UnusableFileError: the file is not text.
        ValueError: a column is missing, or a line has more or fewer cells than the others.
    """
    layout = layout_of(path, given)
    layout.say_skipped(path)
    if layout.form is None:
        return _read_with_header(path, layout, given)
    if layout.form is not RATINGS:
        logger.warning(
            "%s has no header: its columns are read as %s",
            terminal_text(path),
            ", ".join(layout.form.names),
        )
    if layout.form.lists_items:
        return _read_lists(path, layout)
    return _users_first(read_named(path, layout), path, layout)


def read_named(path: Path, layout: Layout) -> pa.Table:
    """As `read_text_table`, of a file without a header: the layout's form names its columns."""
    columns = [name for name in layout.form.names if name in NAMES]
    texts = _texts(path, layout, columns)
    return _with_numbers(interactions_of(texts, path, NONE), path)


def _read_with_header(path: Path, layout: Layout, given: Given) -> pa.Table:
    chosen = columns_of(layout.header, path, given)
    texts = _texts(path, layout, [name for name in chosen if name])
    for place, name in enumerate(texts.column_names):
        if name != name.strip():  # the cells too have blanks beside them
            texts = texts.set_column(place, name, pc.utf8_trim_whitespace(texts[name]))
    return _with_numbers(interactions_of(texts, path, given), path)


def _read_lists(path: Path, layout: Layout) -> pa.Table:
    """Lines of a user and all items of that user."""
    parsing = csv.ParseOptions(delimiter=_IN_NO_LINE, quote_char=False)
    lines = _read(path, layout, [_WHOLE_LINE], parsing, [_WHOLE_LINE])[_WHOLE_LINE]
    lists = pc.split_pattern(lines.combine_chunks(), layout.delimiter)
    ids = lists.flatten()
    line = np.repeat(np.arange(len(lists)), lists.value_lengths().to_numpy())
    is_user = np.diff(line, prepend=-1) > 0
    users = ids.filter(pa.array(is_user))
    items = ids.filter(pa.array(~is_user))
    users_of_items = users.take(pa.array(line[~is_user]))
    table = without_times(users_of_items, items, (*layout.form.names, None))
    return _with_numbers(table, path)


def _texts(path: Path, layout: Layout, columns: Sequence[str]) -> pa.Table:
    """Columns of a text file as text."""
    names = layout.form.names if layout.form else ()
    parsing = csv.ParseOptions(
        delimiter=layout.delimiter,
        quote_char='"' if layout.has_quotes else False,
        newlines_in_values=True,
    )
    return _read(path, layout, names, parsing, columns)


def _read(
    path: Path,
    layout: Layout,
    names: Sequence[str],
    parsing: csv.ParseOptions,
    columns: Sequence[str],
) -> pa.Table:
    """Columns as text.

    Args:
        names: of all columns; empty: the header has them.
        columns: the names of those to read.
    """
    reading = csv.ReadOptions(
        column_names=names,
        skip_rows=layout.skipped,
        use_threads=False,  # with one thread, errors name the row
    )
    converting = csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns
    )
    try:
        table = csv.read_csv(layout.open(path), reading, parsing, converting)
        _ = table.column_names  # raises where a name is not UTF-8
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        due = f"lines of {','.join(names)}" if names else "a header and lines as long as it"
        raise ValueError(
            f"{path} does not hold {due} throughout ({reason(error)}): it is cut short, another"
            " file, or in another encoding; save that as UTF-8"
        ) from None
    return table


# -- users and ids ---------------------------------------------------------------------------------


def _users_first(table: pa.Table, path: Path, layout: Layout) -> pa.Table:
    """A table without a header: Amazon's, with user and item in either order; or with numbers, the
    user first.
    """
    first = table["user"]
    second = table["item"]
    are_numbers = pa.types.is_integer(first.type) and pa.types.is_integer(second.type)
    if len(table) == 0 or are_numbers or _are_amazons_users(first):
        return table
    if _are_amazons_users(second):
        return table.select(["item", "user", "timestamp"]).rename_columns(NAMES)
    header = layout.mark.join(layout.form.names)
    raise ValueError(f"{path} does not say which column holds the users: add the line {header}")


def _are_amazons_users(ids: pa.ChunkedArray) -> bool:
    """Users of Amazon begin with A, items do not."""
    return is_text(ids.type) and pc.all(pc.match_substring_regex(ids, _AMAZONS_USER)).as_py()


def _with_numbers(table: pa.Table, path: Path) -> pa.Table:
    """A table with users and items that are numbers where all are."""
    for place, name in enumerate(("user", "item")):
        if is_text(table[name].type):
            table = table.set_column(place, name, _numbers(table[name], name, path))
    return table


def _numbers(ids: pa.ChunkedArray, name: str, path: Path) -> pa.ChunkedArray:
    """Ids as numbers where all are plain integers: then 10 comes after 9. Else all stay text, and a
    warning names two that would be one number.
    """
    if pc.all(pc.match_substring_regex(ids, INTEGER)).as_py():
        with contextlib.suppress(pa.ArrowInvalid):  # too large
            return ids.cast(pa.int64())
    different = ids.drop_null().unique()
    plain = pc.replace_substring_regex(different, _WRITTEN_OTHERWISE, r"\1")
    first_of: dict[str, str] = {}
    for text, number in zip(different.to_pylist(), plain.to_pylist(), strict=True):
        other = first_of.setdefault(number, text)
        if other != text:
            logger.warning(
                "%s: the %ss %r and %r count as two; write them alike if they are the same",
                path,
                name,
                other,
                text,
            )
            break
    return ids
