"""Reading a user's own interactions: a data set, a data frame, a file or a data set of the Hub, with columns user, item and timestamp."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from datasets import Dataset, load_dataset

from farzi_hf.data.errors import DataUnavailableError
from farzi_hf.data.interaction_columns import NAMES, Columns, columns, numbered
from farzi_hf.data.interaction_files import SOURCES, parse


def columns_of(data: Any, data_dir: str | Path | None = None) -> Columns:
    """The columns of a `datasets.Dataset`, of a table that Arrow reads (a data frame), of a file, or of a data set of the Hub.

    Args:
        data: the rows, an existing file, or the name of a data set for `datasets.load_dataset`.
        data_dir: the folder of the file.

    Raises:
        ValueError: the file is missing or of a kind that is not read, or columns or values cannot be used.
        TypeError: `data` is something else.
        DataUnavailableError: the data set is not within reach.
    """
    if isinstance(data, (str, Path)):
        path = Path(data) if data_dir is None else Path(data_dir) / data
        if isinstance(data, Path) or data_dir is not None or path.exists() or path.suffix.lower() in _FILE_SUFFIXES:
            return _read_file(path)
        data = _from_hub(data)
    elif data_dir is not None:
        raise ValueError(f"data_dir={str(data_dir)!r} is for files, and name is a {type(data).__name__}: leave it out")
    if isinstance(data, Dataset):
        data = data.with_format("arrow")[:]
    elif hasattr(data, "__arrow_c_stream__"):
        data = _as_table(data)
    else:
        raise TypeError(
            f"name is a {type(data).__name__}; give one of {', '.join(SOURCES)}, a file, a datasets.Dataset (one split) or a "
            "data frame with columns user, item and timestamp"
        )
    return columns(data, "the data set")


def _as_table(data: Any) -> pa.Table:
    try:
        return pa.table(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"the data frame cannot be read ({_first_line(error)}): give each column one type") from None


def _from_hub(name: str) -> Dataset:
    """The split "train" of the data set that `datasets.load_dataset` finds under `name`."""
    try:
        return load_dataset(name, split="train")
    # Any failure means the same here: no such data set within reach.
    except Exception as error:
        raise DataUnavailableError(
            f"name={name!r} is none of {', '.join(SOURCES)}, no file, and cannot be loaded by datasets.load_dataset: {_first_line(error)}"
        ) from error


def _read_file(path: Path) -> Columns:
    if path.is_dir():
        raise ValueError(
            f"{path} is a folder: give one of its files, or a split of datasets.load_dataset({str(path)!r})"
        )
    if not path.is_file():
        raise ValueError(
            f"{path} is no file: check the name, or give the name of a data set of the Hub without a suffix"
        )
    read = _READERS.get(path.suffix.lower())
    if read is None:
        raise ValueError(
            f"{path} is of a kind that is not read here: give {', '.join(_READERS)} with columns user, item and timestamp, "
            "or a data frame"
        )
    return read(path)


def _delimited(delimiter: str) -> Callable[[Path], Columns]:
    def read(path: Path) -> Columns:
        return columns(parse(path.read_bytes(), path, delimiter, quote='"'), path, numbered)

    return read


def _parquet(path: Path) -> Columns:
    try:
        schema = parquet.read_schema(path)
        complete = set(NAMES) <= set(schema.names)
        table = parquet.ParquetFile(path).read(columns=list(NAMES)) if complete else schema.empty_table()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no whole Parquet file ({_first_line(error)})") from None
    return columns(table, path)


def _json(path: Path) -> Columns:
    """Rows as a list, or as one object per line. Text that looks like a date or a number stays text."""
    text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
    try:
        if text.lstrip().startswith(b"["):
            rows = json.loads(text, object_pairs_hook=_row)
        else:
            rows = [json.loads(line, object_pairs_hook=_row) for line in text.splitlines() if line.strip()]
        names = {name for row in rows for name in row}
        table = pa.table({name: [row.get(name) for row in rows] for name in NAMES if name in names})
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        reason = _first_line(error)
        raise ValueError(
            f"{path} does not hold rows with one type per column ({reason!r}): it is cut short or another file"
        ) from None
    return columns(table, path)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


def _row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"{[name for name, _ in pairs]} names a column twice")
    return row


_READERS = {
    ".csv": _delimited(","), ".tsv": _delimited("\t"), ".parquet": _parquet, ".json": _json, ".jsonl": _json,
}  # fmt: skip
# A name with such an ending means a file; the Hub is not asked.
_FILE_SUFFIXES = (*_READERS, ".txt", ".dat", ".data", ".arrow", ".feather", ".gz", ".zip", ".xlsx", ".xls", ".pkl")
