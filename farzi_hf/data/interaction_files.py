"""Readers of the files of the paper's data sets: MovieLens, Amazon Magazine and the Netflix prize.

Each reader returns `Columns`, arrays with one entry per row of the files. `data.interactions` makes sequences of them.
"""

from __future__ import annotations

import codecs
import csv as python_csv
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
from datasets import DownloadManager

from farzi_hf.data.errors import DataUnavailableError
from farzi_hf.data.interaction_columns import NAMES, Columns, columns, integers, numbered


@dataclass(frozen=True)
class Source:
    """The place of a data set and the reader of its files.

    Args:
        pattern: the names of the files with interactions.
        url: the file or archive to download, or the page that says how to get the data.
        read: reads the interactions from these files.
        title_file: the name of the file with the items' titles.
        parse_title: turns a line of that file into (item, title).
        downloads: whether `url` is the data itself.
    """

    pattern: str
    url: str
    read: Callable[[list[Path]], Columns]
    title_file: str | None = None
    parse_title: Callable[[str], tuple[int, str]] | None = None
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
        try:
            # The files of MovieLens and Netflix are in Latin-1.
            lines = path.read_text(encoding="latin-1").split("\n")  # splitlines() would also split at "\x85"
            return dict(self.parse_title(line) for line in lines if line)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} has a line without id or title ({error}): it is cut short or damaged") from None


def parse(
    text: bytes,
    path: Path,
    delimiter: str,
    names: Sequence[str] | None = None,
    types: Mapping[str, pa.DataType] | None = None,
    quote: str | bool = False,
) -> pa.Table:
    """A table whose user, item and timestamp are text unless `types` says otherwise. A byte order mark and empty lines are skipped.

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
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not hold {expected} throughout ({reason!r}): it is cut short or another file"
        ) from None


_RATINGS = ("user", "item", "rating", "timestamp")


_BETWEEN = b"\x1f"  # a delimiter of one byte that is in none of these files


def _read_movielens(delimiter: bytes) -> Callable[[list[Path]], Columns]:
    def read(files: list[Path]) -> Columns:
        (path,) = files
        text = path.read_bytes()
        if _BETWEEN in text:
            raise ValueError(f"{path} holds the control character {_BETWEEN!r}: it is damaged or another file")
        table = parse(text.replace(delimiter, _BETWEEN), path, _BETWEEN.decode(), _RATINGS, {"rating": pa.float64()})
        return columns(table, path, integers)

    return read


def _read_amazon(files: list[Path]) -> Columns:
    """Amazon's own file without a header, with user and item in either order; a file of numbers, user first; or any with a header."""
    (path,) = files
    text = path.read_bytes()
    if set(NAMES) <= set(first_row(text)):
        return columns(parse(text, path, ",", quote='"'), path, numbered)
    table = parse(text, path, ",", _RATINGS, {"rating": pa.float64()}, quote='"')
    if not _users_first(table, path):
        table = table.rename_columns(["item", "user", *_RATINGS[2:]])
    return columns(table, path, numbered)


def first_row(text: bytes) -> list[str]:
    """The fields of the first line that is not empty."""
    line = re.split(rb"[\r\n]", text.removeprefix(codecs.BOM_UTF8).lstrip(b"\r\n"), maxsplit=1)[0]
    return next(python_csv.reader([line.decode(errors="replace")]), [])


def _users_first(table: pa.Table, path: Path) -> bool:
    """Whether the first of two columns without names holds the users. The values of all rows decide."""
    first, second = table["user"], table["item"]
    number, user, item = r"\A[+-]?[0-9]+\z", r"\AA[0-9A-Z]+\z", r"\A[0-9B][0-9A-Z]+\z"
    if _all_match(first, number) and _all_match(second, number):
        return True
    if _all_match(first, user) and _all_match(second, item):
        return True
    if _all_match(first, item) and _all_match(second, user):
        return False
    raise ValueError(
        f"{path} does not say which column holds the users: neither are both columns numbers, nor one Amazon's user ids (A…) "
        "and the other its item ids (B… or digits) throughout; give it the first line user,item,rating,timestamp"
    )


def _all_match(column: pa.ChunkedArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(column, pattern)).as_py() is not False


_NETFLIX_BLOCK = 1 << 26  # bytes per block
_NETFLIX_MOVIE = re.compile(rb"^([1-9]\d*):\r?\n", re.MULTILINE)
_NETFLIX_MOVIES, _NETFLIX_USERS = 17_770, 2_649_429  # the largest ids, from the prize's description


def _read_netflix(files: list[Path]) -> Columns:
    """Lines `MOVIE:`, each followed by lines of user,rating,date. They are read in blocks; 8 bytes are kept per interaction."""
    parts = [part for path in files for part in _netflix_blocks(path)]
    if not parts:
        raise ValueError(f"{files[0]} holds no interaction, nor do {len(files) - 1} files beside it: cut short")
    users, items, days = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Columns(users, items, days, range(int(items.max()) + 1))


def _netflix_blocks(path: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(users, items, days) of each block of a file."""
    parts, movie = [], None
    with path.open("rb") as file:
        while block := file.read(_NETFLIX_BLOCK):
            block += file.readline()
            heads = list(_NETFLIX_MOVIE.finditer(block))
            if movie is None and (not heads or heads[0].start() > 0):
                raise ValueError(
                    f"{path} does not begin with a line such as '1:': it is not one of Netflix's combined files"
                )
            starts = [0, *(head.end() for head in heads)]
            ends = [*(head.start() for head in heads), len(block)]
            movies = [movie or 0, *(int(head[1]) for head in heads)]
            if (largest := max(movies)) > _NETFLIX_MOVIES:
                raise ValueError(f"{path} has movie {largest}, the prize's are 1 … {_NETFLIX_MOVIES}: it is damaged")
            rows = [block.count(b"\n", start, end) for start, end in zip(starts, ends, strict=True)]
            rows[-1] += not block.endswith(b"\n")
            movie = movies[-1]
            if sum(rows) == 0:
                continue
            text = b"".join(block[start:end] for start, end in zip(starts, ends, strict=True))
            users, days = _netflix_ratings(text, path, sum(rows), movie)
            parts.append((users, np.repeat(np.array(movies, dtype=np.uint16), rows), days))
    return parts


def _netflix_ratings(text: bytes, path: Path, rows: int, movie: int) -> tuple[np.ndarray, np.ndarray]:
    """(users, days) of a block without the lines of the movies. `movie` is the block's last one, for errors."""
    types = {"user": pa.int32(), "rating": pa.int8(), "date": pa.date32()}
    table = parse(text, path, ",", ("user", "rating", "date"), types)
    # A carriage return alone would end a line too, but `rows` does not count it.
    if (
        len(table) != rows
        or table["user"].null_count
        or table["date"].null_count
        or text.count(b"\r") != text.count(b"\r\n")
    ):
        raise ValueError(f"{path} has empty lines or fields near movie {movie}: it is damaged or cut short")
    users, days = table["user"].to_numpy(), table["date"].cast(pa.int32()).to_numpy()
    # Arrow would read 07 and 0x7 as 7.
    written_otherwise = any(b"\n" + start in b"\n" + text[:1] or b"\n" + start in text for start in (b"0", b" ", b"\t"))
    if written_otherwise or users.min() < 1 or users.max() > _NETFLIX_USERS:
        raise ValueError(
            f"{path} has a user near movie {movie} who is no plain number of 1 … {_NETFLIX_USERS}: it is damaged"
        )
    limits = np.iinfo(np.int16)  # days since 1970, up to the year 2059
    if days.min() < limits.min or days.max() > limits.max:
        raise ValueError(f"{path} has a date near movie {movie} outside 1880 … 2059: it is damaged")
    return users, days.astype(np.int16)


def _title(delimiter: str, column: int, fields: int = 0) -> Callable[[str], tuple[int, str]]:
    """Reads the id from the first field of a line and the title from field `column`. Give `fields` if the last may hold the delimiter."""

    def parse(line: str) -> tuple[int, str]:
        parts = line.split(delimiter, fields - 1)
        return int(parts[0]), parts[column]

    return parse


SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data", "https://files.grouplens.org/datasets/movielens/ml-100k.zip", _read_movielens(b"\t"),
        "u.item", _title("|", 1),
    ),
    "ml-1m": Source(
        "ratings.dat", "https://files.grouplens.org/datasets/movielens/ml-1m.zip", _read_movielens(b"::"),
        "movies.dat", _title("::", 1),
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv", _read_amazon,
    ),
    "netflix": Source(
        "combined_data_*.txt", "https://www.kaggle.com/datasets/netflix-inc/netflix-prize-data", _read_netflix,
        "movie_titles.csv", _title(",", 2, fields=3), downloads=False,
    ),
}  # fmt: skip
