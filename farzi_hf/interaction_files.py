"""Readers of interactions: MovieLens, Amazon Magazine and the Netflix prize from their own files, and any data set of `datasets`.

Each gives `Columns`, arrays with one entry per row of the files; `farzi_hf.interactions` makes sequences of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
from datasets import Dataset, DownloadManager, load_dataset


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one line for a user."""


@dataclass(frozen=True)
class Columns:
    """One row per interaction: users and items as small integers, (n,) each, and what times to order them by.

    `item_ids` are the original ids behind the integers, in their order.
    """

    users: np.ndarray
    items: np.ndarray
    times: np.ndarray
    item_ids: Sequence[Any]


@dataclass(frozen=True)
class Source:
    """Where a data set lies and how its files are read.

    Args:
        pattern: of the files with the interactions.
        url: of the file or archive to download, or of the page that says how to get it.
        read: the interactions of these files.
        title_file: name of the file with the items' titles, and
        parse_title: a line of it as (item, title).
        downloads: whether the URL is the data itself.
    """

    pattern: str
    url: str
    read: Callable[[list[Path]], Columns]
    title_file: str | None = None
    parse_title: Callable[[str], tuple[int, str]] | None = None
    downloads: bool = True

    def files(self, name: str, data_dir: str | Path | None) -> list[Path]:
        folder = self._download(name) if data_dir is None else Path(data_dir)
        files = [folder] if folder.is_file() else sorted(folder.rglob(self.pattern))
        if not files:
            raise ValueError(
                f"data_dir={str(data_dir)!r} lacks {self.pattern}: pass the folder that holds it ({self.url})"
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
        """By original id; None where there is no such file."""
        path = files[0].with_name(self.title_file) if self.title_file else None
        if path is None or not path.is_file():
            return None
        try:
            # Before Unicode had won: MovieLens and Netflix are in Latin-1.
            return dict(self.parse_title(line) for line in path.read_text(encoding="latin-1").splitlines() if line)
        except (ValueError, IndexError) as error:
            raise ValueError(f"{path} has a line without id or title ({error}): it is cut short or damaged") from None


def _parse(text: bytes, path: Path, names: Sequence[str], delimiter: str, types: dict[str, pa.DataType]) -> pa.Table:
    """A table without a header. A last line that is whole but for its end is taken; one that lacks columns is an error."""
    try:
        return csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(column_names=list(names)),
            parse_options=csv.ParseOptions(delimiter=delimiter, quote_char=False),
            convert_options=csv.ConvertOptions(column_types=types, null_values=[""], strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        reason = str(error).splitlines()[0]
        raise ValueError(
            f"{path} does not hold lines of {delimiter.join(names)} throughout ({reason}): it is cut short or another file"
        ) from None


def _columns(table: pa.Table, source: Any) -> Columns:
    """Of a table with columns user, item, timestamp of any kind of id."""
    for name in ("user", "item", "timestamp"):
        nulls = table[name].null_count
        if nulls or len(table) == 0:
            raise ValueError(
                f"{source}: column {name!r} has {nulls} empty values in {len(table)} rows: it is cut short or damaged"
            )
    _, users = np.unique(table["user"].to_numpy(), return_inverse=True)
    item_ids, items = np.unique(table["item"].to_numpy(), return_inverse=True)
    return Columns(users, items, table["timestamp"].to_numpy(), item_ids.tolist())


def _read_movielens(delimiter: bytes) -> Callable[[list[Path]], Columns]:
    names = ("user", "item", "rating", "timestamp")
    types = {"user": pa.int64(), "item": pa.int64(), "rating": pa.float64(), "timestamp": pa.int64()}

    def read(files: list[Path]) -> Columns:
        text = files[0].read_bytes().replace(delimiter, b"\t")
        return _columns(_parse(text, files[0], names, "\t", types), files[0])

    return read


def _read_amazon(files: list[Path]) -> Columns:
    """user,item,rating,timestamp where the ids are numbers; the original has strings for ids, and the item first."""
    text, names = files[0].read_bytes(), ["user", "item", "rating", "timestamp"]
    first_line = text.partition(b"\n")[0].strip().decode(errors="replace").split(",")
    if set(names) <= set(first_line):
        text, names = text.partition(b"\n")[2], first_line
    elif not first_line[0].isdigit():
        names[:2] = names[1::-1]
    types = {"user": pa.string(), "item": pa.string(), "rating": pa.float64(), "timestamp": pa.int64()}
    table = _parse(text, files[0], names, ",", types)
    if all(table[name].to_numpy()[0].isdigit() for name in ("user", "item")):
        for name in ("user", "item"):  # numbered in the order of numbers, not of their digits
            table = table.set_column(table.column_names.index(name), name, table[name].cast(pa.int64()))
    return _columns(table, files[0])


_NETFLIX_BLOCK = 1 << 26  # bytes that are parsed at once
_NETFLIX_MOVIE = re.compile(rb"^(\d+):\r?\n", re.MULTILINE)


def _read_netflix(files: list[Path]) -> Columns:
    """`MOVIE:` and then lines of user,rating,date, read in blocks; 8 bytes are kept per interaction."""
    parts = [part for path in files for part in _netflix_blocks(path)]
    if not parts:
        raise ValueError(f"{files[0].parent} has {len(files)} files without an interaction: they are cut short")
    users, items, days = (np.concatenate(column) for column in zip(*parts, strict=True))
    return Columns(users, items, days, range(int(items.max()) + 1))


def _netflix_blocks(path: Path) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(users, items, days) of each block of a file."""
    types = {"user": pa.int32(), "rating": pa.int8(), "date": pa.date32()}
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
            rows = [block.count(b"\n", start, end) for start, end in zip(starts, ends, strict=True)]
            rows[-1] += not block.endswith(b"\n")
            movie = movies[-1]
            if sum(rows) == 0:
                continue
            text = b"".join(block[start:end] for start, end in zip(starts, ends, strict=True))
            table = _parse(text, path, ("user", "rating", "date"), ",", types)
            if len(table) != sum(rows) or table["user"].null_count or table["date"].null_count:
                raise ValueError(f"{path} has empty lines or fields near movie {movie}: it is damaged or cut short")
            # Days since 1970 fit 16 bits, as do the 17,770 movies.
            days = table["date"].cast(pa.int32()).to_numpy().astype(np.int16)
            items = np.repeat(np.array(movies, dtype=np.uint16), rows)
            parts.append((table["user"].to_numpy(), items, days))
    return parts


def columns_of(dataset: Dataset) -> Columns:
    """Of a data set with the columns user, item and timestamp."""
    missing = [name for name in ("user", "item", "timestamp") if name not in dataset.column_names]
    if missing:
        raise ValueError(
            f"the data set has columns {dataset.column_names}, but no {', '.join(missing)}: rename its columns"
        )
    return _columns(dataset.with_format("arrow")[:], "the data set")


def from_hub(name: str) -> Dataset:
    """The split "train" of what `datasets.load_dataset` finds under a name."""
    try:
        return load_dataset(name, split="train")
    # Any failure means the same here: no such data set within reach.
    except Exception as error:
        raise DataUnavailableError(
            f"name={name!r} is none of {', '.join(SOURCES)} and cannot be loaded by datasets.load_dataset: "
            f"{str(error).splitlines()[0]}"
        ) from error


def _title(delimiter: str, column: int, fields: int = 0) -> Callable[[str], tuple[int, str]]:
    """Reads the id in the first field of a line and the title in another; `fields` where the last one may hold the delimiter."""

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
