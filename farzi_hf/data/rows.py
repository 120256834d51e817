"""The rows of one file after the other, as they are read: lines, paragraphs, values of JSON, lines
of a table, rows of Parquet and Arrow.

`datasets` would fix the columns of a text file, and their types, by the first rows, and count each
use at the Hub.
"""

import csv
import io
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby
from pathlib import Path
from typing import Any, TextIO

import pandas
import pyarrow as pa
from pyarrow.parquet import ParquetFile

from farzi_hf.common.text import reason
from farzi_hf.data.layout import layout_of
from farzi_hf.data.opening import UnusableFileError, opened
from farzi_hf.data.sequences import DataRow

_AT_ONCE = 1000  # rows of a table that are read
_BLANKS = re.compile(r"\s*")


def rows_of(
    paths: Sequence[Path],
    several: bool,
    kind: str,
    column: str | None,
    path_column: str | None = None,
) -> Iterator[DataRow]:
    """The rows of all files of a kind, an entry of `ROWS`. Lines and paragraphs are columns `text`.

    Args:
        several: whether there are other files, which have the column.
        column: the only one to read; None: all.
        path_column: a column to add, with the path of a row's file; None adds none.

    Raises:
        ValueError: a file cannot be read.
        LookupError: no row of a file has the column.
    """
    for path in paths:
        count = 0
        lacks_column = column is not None
        try:
            for value in ROWS[kind](path, column):
                count += 1
                row = value if isinstance(value, dict) else {"text": value}
                lacks_column = lacks_column and column not in row
                read = row if column is None else {column: row.get(column)}
                yield read if path_column is None else {**read, path_column: str(path)}
        except UnusableFileError:
            raise
        except Exception as error:  # each reader has errors of its own
            raise ValueError(f"{path.name}, after {count} rows: {reason(error)}") from error
        if count and lacks_column and several:  # of JSON; the others know their columns
            raise LookupError(
                f"no row of {path.name} has {column!r}: leave that file out, or give it this column"
            )


# -- text ------------------------------------------------------------------------------------------


def _lines(path: Path, column: str | None) -> Iterator[str]:
    with opened(path) as file:
        yield from file


def _paragraphs(path: Path, column: str | None) -> Iterator[str]:
    with opened(path) as file:
        for is_blank, lines in groupby(file, str.isspace):
            if not is_blank:
                yield "".join(lines)


def _json_values(path: Path, column: str | None) -> Iterator[Any]:
    with opened(path) as file:
        yield from of_json(file)


def of_json(file: TextIO) -> Iterator[Any]:
    """The values of lines, or of as many lines as each takes; of an array, its own."""
    for value in _documents(file):
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _documents(file: TextIO) -> Iterator[Any]:
    """Values one after the other: one a line if the first line is a value, else anywhere."""
    lines = filter(str.strip, file)
    first = next(lines, "").lstrip()
    try:
        json.loads(first)
    except ValueError:
        yield from _decoded((first + file.read()).rstrip())
        return
    yield from map(json.loads, chain([first], lines))


def _decoded(text: str) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    place = 0
    while place < len(text):
        start = _BLANKS.match(text, place).end()
        value, place = decoder.raw_decode(text, start)
        yield value


def _csv_rows(path: Path, column: str | None) -> Iterator[dict[str, str]]:
    layout = layout_of(path)
    with io.TextIOWrapper(layout.open(path), "utf-8") as file:
        for _ in range(layout.skipped):
            file.readline()
        parts = pandas.read_csv(
            file,
            sep=layout.delimiter,
            quoting=csv.QUOTE_MINIMAL if layout.has_quotes else csv.QUOTE_NONE,
            dtype=object,
            na_filter=False,
            index_col=False,
            chunksize=_AT_ONCE,
        )
        part = _next_part(parts)
        while part is not None:
            yield from part.to_dict("records")
            part = _next_part(parts)


def _next_part(parts: Iterator[pandas.DataFrame]) -> pandas.DataFrame | None:
    """The next rows; None at the end. A line that would lose cells, because the header has no name
    for them, is an error.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("error", pandas.errors.ParserWarning)
        return next(parts, None)


# -- tables with types -----------------------------------------------------------------------------


def _parquet_rows(path: Path, column: str | None) -> Iterator[DataRow]:
    columns = None if column is None else [column]
    yield from _dicts(ParquetFile(path).iter_batches(_AT_ONCE, columns=columns), column)


def _arrow_rows(path: Path, column: str | None) -> Iterator[DataRow]:
    yield from _dicts(arrow_batches(path), column)


def arrow_batches(path: Path) -> Iterator[pa.RecordBatch]:
    """What an Arrow file holds: a stream, as `datasets` saves it, or a file with an index."""
    with pa.memory_map(str(path)) as source:
        has_index = source.read(6) == b"ARROW1"
        source.seek(0)
        if not has_index:
            yield from pa.ipc.open_stream(source)
            return
        reader = pa.ipc.open_file(source)
        for place in range(reader.num_record_batches):
            yield reader.get_batch(place)


def _dicts(batches: Iterable[pa.RecordBatch], column: str | None) -> Iterator[DataRow]:
    for batch in batches:
        if column is not None:
            batch = batch.select([column])
        yield from batch.to_pylist()


ROWS: Mapping[str, Callable[[Path, str | None], Iterator[Any]]] = {
    "line": _lines,
    "paragraph": _paragraphs,
    "json": _json_values,
    "csv": _csv_rows,
    "parquet": _parquet_rows,
    "arrow": _arrow_rows,
}
"""How the rows of a file are read, by its kind. Values that are no dictionary are texts."""
