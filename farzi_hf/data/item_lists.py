"""Columns in which each row lists ids: lists of Arrow, and texts such as [1, 2] or 1 2."""

import re
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from farzi_hf.data.columns import lists_items

_BRACKETS = r"(?s)\A\s*\[.*\]\s*\z"
_NUMBERS = r"\A\s*-?[0-9]+([\s,]+-?[0-9]+)*\s*\z"
_DIVIDED = r"[\s,;|]"
_ID = re.compile(r"""\s*(?:"([^"\\]*)"|'([^'\\]*)'|([^\s,'"\[\]\\]+))\s*,?\s*""")
"""An id in a list: in double or single quotes, or without."""
_LEFT_OUT = "..."  # by NumPy, in the text of a long array


def lists_of(column: pa.ChunkedArray, name: str, source: Any) -> pa.ChunkedArray | None:
    """A column as lists of ids, if it holds lists, or texts such as [1, 2], ['a', 'b'] or 1 2; None
    if it holds an id a row.

    Raises:
        ValueError: the texts do not say where an id ends.
    """
    if is_list(column.type):
        return column
    if not is_text(column.type):
        return None
    is_sequence = name.endswith("_seq")  # of RecBole, divided by blanks
    if not is_sequence and not _are_written_lists(column.drop_null(), name, source):
        return None
    lists = []
    for text in column.to_pylist():
        ids = (text or "").split() if is_sequence else _ids(text or "")
        if ids is None:
            raise _unclear(name, source, text)
        lists.append(ids)
    return pa.chunked_array([pa.array(lists, pa.list_(pa.string()))])


def lengths_of(lists: pa.ChunkedArray) -> np.ndarray:
    """The number of values in each list (n,); 0 where there is none."""
    return pc.fill_null(pc.list_value_length(lists), 0).to_numpy()


def row_of_each(lists: pa.ChunkedArray) -> np.ndarray:
    """The row of each value of all lists."""
    return np.repeat(np.arange(len(lists)), lengths_of(lists))


def is_list(kind: pa.DataType) -> bool:
    """Whether this is a type of lists."""
    return pa.types.is_list(kind) or pa.types.is_large_list(kind)


def is_text(kind: pa.DataType) -> bool:
    """Whether this is a type of texts."""
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _are_written_lists(texts: pa.ChunkedArray, name: str, source: Any) -> bool:
    """Whether texts write lists: all in brackets, or all numbers, in a column that is called so."""
    if len(texts) and _all_match(texts, _BRACKETS):
        return True
    if not lists_items([name]) or not _any_matches(texts, _DIVIDED):
        return False
    if not _all_match(texts, _NUMBERS):
        raise _unclear(name, source, texts[0].as_py())
    return True


def _ids(text: str) -> list[str] | None:
    """The ids in a text; None if it does not say where one ends, or leaves some out."""
    inner = text.strip().removeprefix("[").removesuffix("]").strip()
    ids = []
    place = 0
    while place < len(inner):
        match = _ID.match(inner, place)
        if match is None or match[3] == _LEFT_OUT:
            return None
        ids.append(next(part for part in match.groups() if part is not None))
        place = match.end()
    return ids


def _unclear(name: str, source: Any, text: str) -> ValueError:
    return ValueError(
        f"{source}: column {name!r} has texts such as {text!r:.80}, which do not say where an id"
        ' ends: write lists such as [1, 2] or ["a", "b"], or name the text_column if it is text'
    )


def _all_match(texts: pa.ChunkedArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern), min_count=0).as_py()


def _any_matches(texts: pa.ChunkedArray, pattern: str) -> bool:
    return pc.any(pc.match_substring_regex(texts, pattern), min_count=0).as_py()
