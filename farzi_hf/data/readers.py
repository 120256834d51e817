"""Readers of interactions: the data sets of the paper by name, and the user's own tables, files and data sets of the Hub.

Each reader returns `Columns`, arrays with one entry per row. `data.interactions` makes sequences of them. Text files are read with Arrow and not
with `datasets.load_dataset`, which would turn the id 007 into 7, and a text that looks like a date into one.
"""

from __future__ import annotations

import codecs
import csv as python_csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
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


def _read_file(path: Path) -> Columns:
    if not path.is_file():
        kind = "a folder: give one of its files" if path.is_dir() else "no file: check the name"
        raise ValueError(f"{path} is {kind}, or give a split of datasets.load_dataset")
    if (read := _READERS.get(path.suffix.lower())) is None:
        raise ValueError(
            f"{path} is of a kind that is not read here: give {', '.join(_READERS)} with columns user, item and timestamp, "
            "or a data frame"
        )
    return read(path)


def _read_text(path: Path) -> Columns:
    delimiter = "\t" if path.suffix.lower() == ".tsv" else ","
    return columns(parse(utf8(path), path, delimiter, quote='"'), path, numbers=True)


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


def parse(
    text: bytes,
    path: Path,
    delimiter: str,
    names: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    quote: str | bool = False,
) -> pa.Table:
    """A table whose user, item and timestamp are text unless `types` says otherwise. Empty lines are skipped.

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
                column_types={**dict.fromkeys(NAMES, pa.string()), **(types or {})},
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


def _read_movielens(delimiter: bytes) -> Callable[[list[Path]], Columns]:
    def read(files: list[Path]) -> Columns:
        (path,) = files
        text = utf8(path)
        if _BETWEEN in text:
            raise ValueError(f"{path} holds the control character {_BETWEEN!r}: it is damaged or another file")
        table = parse(text.replace(delimiter, _BETWEEN), path, _BETWEEN.decode(), _RATINGS, {"rating": pa.float64()})
        return columns(table, path, only_numbers=True)

    return read


def _read_amazon(files: list[Path]) -> Columns:
    """Amazon's own file without a header, with user and item in either order; a file of numbers, user first; or any with a header."""
    (path,) = files
    text = utf8(path)
    head = re.split(rb"[\r\n]", text.lstrip(b"\r\n"), maxsplit=1)[0].decode(errors="replace")
    if set(NAMES) <= set(next(python_csv.reader([head]), [])):
        return columns(parse(text, path, ",", quote='"'), path, numbers=True)
    table = parse(text, path, ",", _RATINGS, {"rating": pa.float64()}, quote='"')

    def are(first: str, second: str) -> bool:
        pairs = zip((table["user"], table["item"]), (first, second), strict=True)
        return all(pc.all(pc.match_substring_regex(column, pattern)).as_py() is not False for column, pattern in pairs)

    number, user, item = r"\A[+-]?[0-9]+\z", r"\AA[0-9A-Z]+\z", r"\A[0-9B][0-9A-Z]+\z"
    if are(number, number) or are(user, item):
        return columns(table, path, numbers=True)
    if are(item, user):
        return columns(table.rename_columns(["item", "user", *_RATINGS[2:]]), path, numbers=True)
    raise ValueError(
        f"{path} does not say which column holds the users: neither are both columns numbers, nor one Amazon's user ids (A…) "
        "and the other its item ids (B… or digits) throughout; give it the first line user,item,rating,timestamp"
    )


_NETFLIX_BLOCK = 1 << 26  # bytes per block
_NETFLIX_MOVIES, _NETFLIX_USERS = 17_770, 2_649_429  # the largest ids, from the prize's description
_NETFLIX_TYPES = {"user": pa.int32(), "rating": pa.int8(), "date": pa.date32()}


def _read_netflix(files: list[Path]) -> Columns:
    """Lines `MOVIE:`, each followed by lines of user,rating,date. They are read in blocks; 8 bytes are kept per interaction."""
    parts = [part for path in files for part in _netflix_blocks(path)]
    if not parts:
        raise ValueError(f"{files[0]} holds no interaction, nor do {len(files) - 1} files beside it: cut short")
    users, items, days = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Columns(users, items, days, range(int(items.max()) + 1))


def _netflix_blocks(path: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(users, items, days) of each block of a file."""
    parts, movie = [], 0
    with path.open("rb") as file:
        while block := file.read(_NETFLIX_BLOCK):
            # the lines before the first movie of the block, then by turns a movie and its lines
            first, *rest = re.split(rb"^([1-9]\d*):\r?\n", block + file.readline(), flags=re.MULTILINE)
            if not movie and (first or not rest):
                raise ValueError(
                    f"{path} does not begin with a line such as '1:': it is not one of Netflix's combined files"
                )
            movies, texts = [movie, *map(int, rest[::2])], [first, *rest[1::2]]
            movie = movies[-1]
            rows = [text.count(b"\n") + (text[-1:] not in (b"\n", b"")) for text in texts]
            if sum(rows):
                users, days = _netflix_ratings(b"".join(texts), path, max(movies))
                parts.append((users, np.repeat(np.array(movies, dtype=np.uint16), rows), days))
    return parts


def _netflix_ratings(text: bytes, path: Path, movie: int) -> tuple[np.ndarray, np.ndarray]:
    """(users, days) of a block without the lines of the movies. `movie` is its largest one, for errors."""
    if movie > _NETFLIX_MOVIES:
        raise ValueError(f"{path} has movie {movie}, the prize's are 1 … {_NETFLIX_MOVIES}: it is damaged")
    # Arrow would leave out an empty line, end a line at a carriage return alone, and read 07 and 0x7 as 7.
    letters = np.frombuffer(text, np.uint8)
    starts = np.r_[0, np.flatnonzero(letters[:-1] == ord("\n")) + 1]
    digits = (letters[starts] >= ord("1")) & (letters[starts] <= ord("9"))
    if not digits.all() or text.count(b"\r") != text.count(b"\r\n"):
        raise ValueError(
            f"{path} has a line up to movie {movie} that is no user,rating,date: it is damaged or cut short"
        )
    table = parse(text, path, ",", tuple(_NETFLIX_TYPES), _NETFLIX_TYPES)
    users, days = table["user"].to_numpy(), table["date"].cast(pa.int32()).to_numpy()
    limits = np.iinfo(np.int16)  # days since 1970, up to the year 2059
    if table["date"].null_count or days.min() < limits.min or days.max() > limits.max:
        raise ValueError(f"{path} has no date, or one outside 1880 … 2059, up to movie {movie}: it is damaged")
    if users.max() > _NETFLIX_USERS:
        raise ValueError(f"{path} has user {users.max()}, the prize's are 1 … {_NETFLIX_USERS}: it is damaged")
    return users, days.astype(np.int16)


@dataclass(frozen=True)
class Source:
    """The place of a data set and the reader of its files.

    Args:
        pattern: the names of the files with interactions.
        url: the file or archive to download, or the page that says how to get the data.
        read: reads the interactions from these files.
        title_file: the name of the file with the items' titles.
        title: a regular expression with the id and the title of a line of that file.
        downloads: whether `url` is the data itself.
    """

    pattern: str
    url: str
    read: Callable[[list[Path]], Columns]
    title_file: str | None = None
    title: str = ""
    downloads: bool = True

    def files(self, name: str, data_dir: str | Path | None) -> list[Path]:
        folder = self._download(name) if data_dir is None else Path(data_dir)
        files = [folder] if folder.is_file() else sorted(path for path in folder.rglob(self.pattern) if path.is_file())
        if not files:
            raise ValueError(
                f"data_dir={str(data_dir)!r} lacks {self.pattern}: pass the folder that holds it ({self.url})"
            )
        (file, count), *_ = Counter(path.name for path in files).most_common(1)
        if count > 1:
            found = ", ".join(str(path.parent) for path in files if path.name == file)
            raise ValueError(
                f"data_dir={str(data_dir)!r} holds {file} {count} times ({found}): pass one of these folders"
            )
        return files

    def _download(self, name: str) -> Path:
        remedy = f"get it from {self.url} and pass data_dir, the folder with {self.pattern}"
        if not self.downloads:
            raise DataUnavailableError(f"{name} has no public download: {remedy}")
        try:
            return Path(DownloadManager().download_and_extract(self.url))
        # Any failure (no network, a proxy's answer, a moved file) means the same here.
        except Exception as error:
            raise DataUnavailableError(f"{name} cannot be downloaded: {remedy}") from error

    def titles(self, files: list[Path]) -> dict[int, str] | None:
        """The titles by original id; None if there is no file of titles."""
        path = files[0].with_name(self.title_file) if self.title_file else None
        if path is None or not path.is_file():
            return None
        # The files of MovieLens and Netflix are in Latin-1; splitlines() would also split at "\x85".
        lines = [line for line in path.read_text(encoding="latin-1").split("\n") if line]
        found = [re.match(self.title, line) for line in lines]
        if None in found:
            odd = lines[found.index(None)][:60]
            raise ValueError(f"{path} has a line without id or title ({odd!r}): it is cut short or damaged")
        return {int(match[1]): match[2] for match in found}


SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data", "https://files.grouplens.org/datasets/movielens/ml-100k.zip", _read_movielens(b"\t"),
        "u.item", r"(\d+)\|([^|]*)",
    ),
    "ml-1m": Source(
        "ratings.dat", "https://files.grouplens.org/datasets/movielens/ml-1m.zip", _read_movielens(b"::"),
        "movies.dat", r"(\d+)::(.*?)(?:::|$)",
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv", _read_amazon,
    ),
    "netflix": Source(
        "combined_data_*.txt", "https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data", _read_netflix,
        "movie_titles.csv", r"(\d+),[^,]*,(.*)", downloads=False,
    ),
}  # fmt: skip
