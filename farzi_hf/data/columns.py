"""Columns of interactions: unchanged ids, and timestamps as numbers. A value that is ambiguous is refused."""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from reprlib import repr as short
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

logger = logging.getLogger(__name__)

NAMES = ("user", "item", "timestamp")

# No leading zeros and no plus sign, so that different texts are different numbers.
_INTEGER, _DECIMAL = r"\A(0|-?[1-9][0-9]*)\z", r"\A-?(0|[1-9][0-9]*)(\.[0-9]+)?\z"
_WRITTEN_OTHERWISE = r"\A\s*[+]?0*([0-9]+?)(\.0*)?\s*\z"  # 01, 1.0, +1 or a blank before it
# ISO 8601: a whole column with a zone, or a whole column without one. Microseconds are tried first, because nanoseconds end in 2262.
_ISO_8601 = tuple(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC"))
_EXACT_FLOAT = 2**53  # from here on, neighbouring integers are the same float64
_FORMS = "give integers, finite numbers, dates, or ISO 8601 text such as 2020-12-31T23:59:59"


@dataclass(frozen=True)
class Columns:
    """One row per interaction: users, items (both small integers) and the times that order them, (n,) each.

    `item_ids[i]` is the original id of item i.
    """

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray
    item_ids: Sequence[Any]


def columns(table: pa.Table, source: Any, numbers: bool = False, only_numbers: bool = False) -> Columns:
    """The columns of a table with user, item and timestamp. Other columns are ignored.

    Args:
        table: ids are integers or text. Different ids stay different: the text 007 is not 7. Timestamps are integers,
            finite floats, dates, datetimes, or text that holds integers, decimals or ISO 8601 dates and times.
        source: the file, for errors.
        numbers: for files of text, where text may mean numbers. If all ids of a column are plain integers, they become numbers: then 10
            comes after 9, and no two ids become equal. Otherwise all stay text, and a warning names two that would be the same number.
        only_numbers: the same, for data sets whose description says that ids are numbers; other text is refused.

    Raises:
        ValueError: a column is missing or exists twice, there are no rows, or a value is empty or cannot be read; the row is named.
    """
    names = table.column_names
    if missing := [name for name in NAMES if name not in names]:
        raise ValueError(f"{source} has columns {names}, but no {', '.join(missing)}: rename its columns")
    if twice := [name for name in NAMES if names.count(name) > 1]:
        raise ValueError(f"{source} has columns {names}, {', '.join(twice)} more than once: leave one of them")
    if len(table) == 0:
        raise ValueError(f"{source} holds no interactions: it is empty or cut short")
    users, items, times = (_checked(table[name], name, source) for name in NAMES)
    if numbers or only_numbers:
        users, items = (_read(x, n, source, only_numbers) for x, n in ((users, "user"), (items, "item")))
    (users, _), (items, item_ids) = _numbers(users), _numbers(items)
    return Columns(users, items, _times(times, source), item_ids)


def _checked(column: pa.ChunkedArray, name: str, source: Any) -> pa.ChunkedArray:
    """The column without dictionaries (pandas' categories) and with text in one encoding. Raises ValueError for empty values."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    kind = column.type
    empty = pc.is_null(column)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        column = column.cast(pa.large_string())
        empty = pc.or_(empty, pc.fill_null(pc.equal(column, ""), True))
    if count := pc.sum(empty).as_py():
        raise ValueError(
            f"{source}: column {name!r} has {count} empty values in {len(column)} rows, the first in row "
            f"{pc.index(empty, True).as_py()} (counted from 0): it is cut short or damaged"
        )
    if name != "timestamp" and not (_is_text(column) or pa.types.is_integer(kind)):
        _refuse(source, name, 0, column, f"is of type {kind}: give ids as integers or text")
    return column


def _is_text(column: pa.ChunkedArray) -> bool:
    return pa.types.is_large_string(column.type)


def _numbers(ids: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Small integers in the order of the ids (n,), and the different ids. There are no wide integers of n rows and no sort of them."""
    encoded = ids.dictionary_encode().combine_chunks()
    different, rank = np.unique(encoded.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    return rank.astype(np.min_scalar_type(len(rank)))[encoded.indices.to_numpy()], different.tolist()


def _read(ids: pa.ChunkedArray, name: str, source: Any, only_numbers: bool) -> pa.ChunkedArray:
    """The ids as numbers where their text is that of numbers: see `columns`."""
    other = pc.index(pc.match_substring_regex(ids, _INTEGER), False).as_py()
    try:
        if other < 0:
            return ids.cast(pa.int64())
    except pa.ArrowInvalid:  # too large
        other = _first_failure(ids, [pa.int64()])
    if only_numbers:
        _refuse(source, name, other, ids, "is no integer without leading zeros: it is damaged or another file")
    different = ids.unique()
    plain = pc.replace_substring_regex(different, _WRITTEN_OTHERWISE, r"\1").to_numpy(zero_copy_only=False)
    _, first, count = np.unique(plain, return_index=True, return_counts=True)
    if (count > 1).any():
        alike = np.flatnonzero(plain == plain[first[count.argmax()]])[:2]
        logger.warning(
            "%s: the %ss %s stay two, because not all are plain integers; write them alike if they are one",
            source, name, " and ".join(short(different[int(place)].as_py()) for place in alike),
        )  # fmt: skip
    return ids


def _times(column: pa.ChunkedArray, source: Any) -> np.ndarray:
    kind = column.type
    if _is_text(column):
        return _times_of_text(column, source)
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        return column.cast(pa.int32() if kind == pa.date32() else pa.int64()).to_numpy()
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind)):
        _refuse(source, "timestamp", 0, column, f"is of type {kind}: {_FORMS}")
    times = column.to_numpy()
    if not (finite := np.isfinite(times)).all():
        _refuse(source, "timestamp", int(finite.argmin()), column, f"has no place in time: {_FORMS}")
    return times


def _times_of_text(column: pa.ChunkedArray, source: Any) -> np.ndarray:
    other = pc.index(pc.match_substring_regex(column, _DECIMAL), False).as_py()
    if other < 0 and not pc.all(pc.match_substring_regex(column, _INTEGER)).as_py():
        times = column.cast(pa.float64()).to_numpy()
        if (large := np.abs(times) >= _EXACT_FLOAT).any():
            _refuse(
                source, "timestamp", int(large.argmax()), column, f"is too large beside decimal fractions: {_FORMS}"
            )
        return times
    kinds = [pa.int64()] if other < 0 else _ISO_8601
    for kind in kinds:
        try:
            return column.cast(kind).cast(pa.int64()).to_numpy()
        except pa.ArrowInvalid:
            continue
    why = f"cannot be read for certain, or not together with the rows before it: {_FORMS}"
    _refuse(source, "timestamp", max(other, _first_failure(column, kinds)), column, why)


def _first_failure(column: pa.ChunkedArray, kinds: Sequence[pa.DataType]) -> int:
    """The row at which the type that reads the most rows fails."""

    def fails(rows: int) -> bool:
        for kind in kinds:
            try:
                column.slice(0, rows).cast(kind)
            except pa.ArrowInvalid:
                continue
            return False
        return True

    return bisect_left(range(len(column) + 1), True, key=fails) - 1


def _refuse(source: Any, name: str, row: int, column: pa.ChunkedArray, why: str) -> NoReturn:
    raise ValueError(f"{source}: {name} {short(column[row].as_py())} in row {row} (counted from 0) {why}")
