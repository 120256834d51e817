"""Any table of interactions as one with the columns user, item and timestamp, an item a row."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farzi_hf.data.columns import NAMES, Columns, Given, columns_of, lists_items
from farzi_hf.data.item_lists import lengths_of, lists_of, row_of_each

_METADATA = b"columns"


def interactions_of(table: pa.Table, source: Any, given: Given) -> pa.Table:
    """The columns of `columns_of`, called user, item and timestamp; lists of items become an item a
    row. Without times, the order of the rows is theirs.

    Args:
        source: what an error names.
        given: the columns that the user names.

    Raises:
        ValueError: columns are missing, or a list of items cannot be read.
    """
    chosen = columns_of(table.column_names, source, given)
    items = table[chosen.item]
    may_be_lists = lists_items([chosen.item]) or given.get("item")
    lists = lists_of(items, chosen.item, source) if may_be_lists else None
    if lists is not None:
        return _of_lists(table, chosen, lists, source)
    if chosen.user is None:
        raise ValueError(
            f"{source}: column {chosen.item!r} has one item in each row, and no column holds the"
            " users: name yours with user_column"
        )
    times = _equal_times(len(table)) if chosen.timestamp is None else table[chosen.timestamp]
    return with_names(table[chosen.user], items, times, chosen)


def with_names(
    users: pa.ChunkedArray, items: pa.ChunkedArray, times: pa.ChunkedArray, read: Sequence[Any]
) -> pa.Table:
    """A table of interactions that remembers which columns were read."""
    columns = "\n".join(name or "" for name in read)
    return pa.table([users, items, times], names=NAMES, metadata={_METADATA: columns})


def without_times(users: pa.ChunkedArray, items: pa.ChunkedArray, read: Sequence[Any]) -> pa.Table:
    """A table of interactions in the order of time."""
    return with_names(users, items, _equal_times(len(items)), read)


def columns_read(table: pa.Table) -> list[str]:
    """The names of the columns that were read as user, item and timestamp; empty where there was
    none.
    """
    metadata = table.schema.metadata or {}
    return metadata.get(_METADATA, b"\n\n").decode().split("\n")


def has_a_user_a_row(table: pa.Table) -> bool:
    """Whether no column held the users, so that each row was one."""
    columns = columns_read(table)
    return columns[0] == "" and columns[1] != ""


def _of_lists(table: pa.Table, chosen: Columns, lists: pa.ChunkedArray, source: Any) -> pa.Table:
    """Of a table whose rows list items, and times too or one time."""
    row = row_of_each(lists)
    items = pc.list_flatten(lists)
    users = pa.chunked_array([row]) if chosen.user is None else table[chosen.user].take(row)
    if chosen.timestamp is None:
        return without_times(users, items, chosen)
    times = table[chosen.timestamp]
    lists_of_times = lists_of(times, chosen.timestamp, source)
    if lists_of_times is None:
        return with_names(users, items, times.take(row), chosen)
    differ = np.flatnonzero(lengths_of(lists) != lengths_of(lists_of_times))
    if len(differ):
        wrong = int(differ[0])
        raise ValueError(
            f"{source}: row {wrong} (counted from 0) has {lengths_of(lists)[wrong]} in"
            f" {chosen.item!r} and {lengths_of(lists_of_times)[wrong]} in {chosen.timestamp!r}:"
            " give a time for each item"
        )
    return with_names(users, items, pc.list_flatten(lists_of_times), chosen)


def _equal_times(rows: int) -> pa.ChunkedArray:
    """Of rows whose order is that of time."""
    return pa.chunked_array([np.zeros(rows, np.int8)])
