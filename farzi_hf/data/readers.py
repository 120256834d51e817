"""Readers of interactions: the data sets of the paper by name, and the user's own tables, files and data sets of the Hub.

Each reader returns `Columns`, arrays with one entry per row. `data.interactions` makes sequences of them. Text files are read with Arrow and not
with `datasets.load_dataset`, which would turn the id 007 into 7, and a text that looks like a date into one.
"""

from __future__ import annotations

import codecs
import csv as python_csv
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as parquet
from datasets import Dataset, DownloadManager, load_dataset

from farzi_hf.data.columns import NAMES, Columns, columns


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one line for a user."""


def utf8(path: Path) -> bytes:
    """The text of a file in UTF-8 without byte order marks. A file that begins with the mark of UTF-16 is converted.

    Raises:
        ValueError: the file begins as UTF-16 but is none.
    """
    text = path.read_bytes()
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        try:
            text = text.decode("utf-16").encode()
        except UnicodeError as error:
            raise ValueError(f"{path} begins as UTF-16, but is none ({_reason(error)}): it is cut short") from None
    while text.startswith(codecs.BOM_UTF8):
        text = text.removeprefix(codecs.BOM_UTF8)
    return text


def _reason(error: Exception) -> str:
    """The first line of an error, in which text of a file cannot control a terminal."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return repr(line)[1:-1]


# -- tables and files of the user ------------------------------------------------------------------------------------


def read_own(data: Any, data_dir: str | Path | None = None) -> Columns:
    """The columns of a `datasets.Dataset`, of a table that Arrow reads (a data frame), of a file, or of a data set of the Hub.

    For arguments and errors see `data.load_interactions`.
    """
    if isinstance(data, (str, Path)):
        path = Path(data_dir or "") / data
        if isinstance(data, Path) or data_dir is not None or path.exists() or path.suffix.lower() in _FILE_SUFFIXES:
            if not path.is_file():
                kind = "a folder: give one of its files" if path.is_dir() else "no file: check the name"
                raise ValueError(f"{path} is {kind}, or give a split of datasets.load_dataset")
            if (read := _READERS.get(path.suffix.lower())) is None:
                kinds = f"give {', '.join(_READERS)} with columns user, item and timestamp, or a data frame"
                raise ValueError(f"{path} is of a kind that is not read here: {kinds}")
            return read(path)
        try:
            data = load_dataset(data, split="train")
        # Any failure means the same here: no such data set within reach.
        except Exception as error:
            raise DataUnavailableError(
                f"name={data!r} is none of {', '.join(SOURCES)}, no file, and cannot be loaded by datasets.load_dataset: {_reason(error)}"
            ) from error
    elif data_dir is not None:
        raise ValueError(f"data_dir={str(data_dir)!r} is for files, and name is a {type(data).__name__}: leave it out")
    if isinstance(data, Dataset):
        return columns(data.with_format("arrow")[:], "the data set")
    if not hasattr(data, "__arrow_c_stream__"):
        raise TypeError(
            f"name is a {type(data).__name__}; give one of {', '.join(SOURCES)}, a file, a datasets.Dataset (one split) or a "
            "data frame with columns user, item and timestamp"
        )
    try:
        table = pa.table(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"the data frame cannot be read ({_reason(error)}): give each column one type") from None
    return columns(table, "the data set")


def _read_text(path: Path) -> Columns:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return columns(_parse(utf8(path), path, delimiter), path, numbers=True)


def _read_parquet(path: Path) -> Columns:
    try:
        file = parquet.ParquetFile(path)
        complete = set(NAMES) <= set(file.schema_arrow.names)
        table = file.read(columns=list(NAMES)) if complete else file.schema_arrow.empty_table()
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no whole Parquet file ({_reason(error)})") from None
    return columns(table, path)


def _read_json(path: Path) -> Columns:
    """Rows as a list, or as one object per line. Text that looks like a date or a number stays text."""
    text = utf8(path)
    try:
        whole = text.lstrip().startswith(b"[")
        texts = [text] if whole else [line for line in text.splitlines() if line.strip()]
        rows = [json.loads(each, object_pairs_hook=_row) for each in texts]
        rows = rows[0] if whole else rows
        given = {name: [row.get(name) for row in rows] for name in NAMES}
        table = pa.table({name: column for name, column in given.items() if any(x is not None for x in column)})
    except (ValueError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(
            f'{path} does not hold rows {{"user": …, "item": …, "timestamp": …}} with one type per column ({_reason(error)}): '
            "it is cut short or another file"
        ) from None
    return columns(table, path)


def _row(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        raise ValueError(f"{[name for name, _ in pairs]} names a column twice")
    return row


_READERS = {
    ".csv": _read_text, ".tsv": _read_text, ".parquet": _read_parquet, ".json": _read_json, ".jsonl": _read_json,
}  # fmt: skip
# A name with such an ending means a file; the Hub is not asked.
_FILE_SUFFIXES = (*_READERS, ".txt", ".dat", ".data", ".arrow", ".feather", ".gz", ".zip", ".xlsx", ".xls", ".pkl")


def _parse(
    text: bytes, path: Path, delimiter: str, names: Sequence[str] | None = None, quote: str | bool = '"'
) -> pa.Table:
    """A table whose user, item and timestamp are text, and its rating a number. Empty lines are skipped.

    A last line without a line break is read. A line without all columns is an error.

    Args:
        names: the names of the columns; by default the first line that is not empty has them.
        quote: the character that may enclose a field.
    """
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            # With one thread, errors name the row.
            read_options=csv.ReadOptions(column_names=names and list(names), use_threads=False),
            parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=quote, newlines_in_values=bool(quote)),
            convert_options=csv.ConvertOptions(
                column_types={**dict.fromkeys(NAMES, pa.string()), **({"rating": pa.float64()} if names else {})},
                null_values=[""],
                strings_can_be_null=True,
            ),
        )
        table.column_names  # noqa: B018  Arrow decodes them only now
        return table
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        expected = f"lines of {delimiter.join(names)}" if names else "a header and lines as long as it"
        why = "it is cut short or another file"
        if b"\0" in text:
            why = "it holds zero bytes, as UTF-16 does: convert it with `iconv -f UTF-16 -t UTF-8`"
        raise ValueError(f"{path} does not hold {expected} throughout ({_reason(error)}): {why}") from None


# -- the paper's data sets -------------------------------------------------------------------------------------------

_RATINGS = ("user", "item", "rating", "timestamp")
_BETWEEN = b"\x1f"  # a delimiter of one byte that is in none of these files


def _read_movielens(path: Path, delimiter: bytes) -> Columns:
    text = utf8(path)
    if _BETWEEN in text:
        raise ValueError(f"{path} holds the control character {_BETWEEN!r}: it is damaged or another file")
    table = _parse(text.replace(delimiter, _BETWEEN), path, _BETWEEN.decode(), _RATINGS, quote=False)
    return columns(table, path, only_numbers=True)


def _read_amazon(path: Path) -> Columns:
    """Amazon's own file without a header, with user and item in either order; a file of numbers, user first; or any with a header."""
    text = utf8(path)
    head = re.split(rb"[\r\n]", text.lstrip(b"\r\n"), maxsplit=1)[0].decode(errors="replace")
    if set(NAMES) <= set(next(python_csv.reader([head]), [])):
        return columns(_parse(text, path, ","), path, numbers=True)
    table = _parse(text, path, ",", _RATINGS)

    def are(first: str, second: str) -> bool:
        pairs = ((table["user"], first), (table["item"], second))
        return all(pc.all(pc.match_substring_regex(column, pattern)).as_py() is not False for column, pattern in pairs)

    number, user, item = r"\A[+-]?[0-9]+\z", r"\AA[0-9A-Z]+\z", r"\A[0-9B][0-9A-Z]+\z"
    if are(item, user):
        table = table.rename_columns(["item", "user", *_RATINGS[2:]])
    elif not (are(number, number) or are(user, item)):
        raise ValueError(
            f"{path} does not say which column holds the users: neither are both columns numbers, nor one Amazon's user ids (A…) "
            "and the other its item ids (B… or digits) throughout; give it the first line user,item,rating,timestamp"
        )
    return columns(table, path, numbers=True)


@dataclass(frozen=True)
class Source:
    """The place of a data set and the reader of its file.

    Args:
        file: the name of the file with interactions.
        url: the file or archive to download.
        read: reads the interactions from the file.
        title_file: the name of the file with the items' titles.
        title: a regular expression with the id and the title of a line of that file.
    """

    file: str
    url: str
    read: Callable[[Path], Columns]
    title_file: str | None = None
    title: str = ""

    def find(self, name: str, data_dir: str | Path | None) -> Path:
        """The file, anywhere in the user's folder, or downloaded."""
        try:
            folder = Path(DownloadManager().download_and_extract(self.url) if data_dir is None else data_dir)
        # Any failure (no network, a proxy's answer, a moved file) means the same here.
        except Exception as error:
            remedy = f"get it from {self.url} and pass data_dir, the folder with {self.file}"
            raise DataUnavailableError(f"{name} cannot be downloaded: {remedy}") from error
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob(self.file) if path.is_file())
        if not files:
            raise ValueError(f"data_dir={str(folder)!r} lacks {self.file}: pass the folder that holds it ({self.url})")
        if len(files) > 1:
            found = f"{len(files)} times ({', '.join(str(path.parent) for path in files)})"
            raise ValueError(f"data_dir={str(folder)!r} holds {self.file} {found}: pass one of these folders")
        return files[0]

    def titles(self, path: Path) -> dict[int, str] | None:
        """The titles by original id; None if there is no file of titles beside the file of interactions."""
        path = path.with_name(self.title_file) if self.title_file else None
        if path is None or not path.is_file():
            return None
        # MovieLens' files are in Latin-1; splitlines() would also split at "\x85".
        lines = [line for line in path.read_text(encoding="latin-1").split("\n") if line]
        found = [re.match(self.title, line) for line in lines]
        if None in found:
            odd = lines[found.index(None)][:60]
            raise ValueError(f"{path} has a line without id or title ({odd!r}): it is cut short or damaged")
        return {int(match[1]): match[2] for match in found}


SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data", "https://files.grouplens.org/datasets/movielens/ml-100k.zip", partial(_read_movielens, delimiter=b"\t"),
        "u.item", r"(\d+)\|([^|]*)",
    ),
    "ml-1m": Source(
        "ratings.dat", "https://files.grouplens.org/datasets/movielens/ml-1m.zip", partial(_read_movielens, delimiter=b"::"),
        "movies.dat", r"(\d+)::(.*?)(?:::|$)",
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv", _read_amazon,
    ),
}  # fmt: skip
