"""Readers of interactions: the data sets of the paper by name, and the user's own tables, files and data sets of the Hub.

Each reader returns an Arrow table, of which `data.interactions` makes sequences. Files are read with Arrow and not with
`datasets.load_dataset`, which would turn the id 007 into 7.
"""

from __future__ import annotations

import codecs
import contextlib
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DownloadManager, load_dataset
from pyarrow import csv, json, parquet

logger = logging.getLogger(__name__)

NAMES = ("user", "item", "timestamp")

INTEGER = r"\A(0|-?[1-9][0-9]*)\z"  # no leading zeros and no plus sign, so that different texts are different numbers
_WRITTEN_OTHERWISE = r"\A\s*[+]?0*([0-9]+?)(\.0*)?\s*\z"  # 01, 1.0, +1 or a blank before it


class DataUnavailableError(RuntimeError):
    """A data set is neither in a folder, nor in the cache, nor to be downloaded. The message is one line for a user."""


def utf8(path: Path) -> bytes:
    """The text of a file in UTF-8 without byte order marks. A file that begins with the mark of UTF-16 is converted."""
    text = path.read_bytes()
    if text.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = text.decode("utf-16").encode()
    while text.startswith(codecs.BOM_UTF8):
        text = text.removeprefix(codecs.BOM_UTF8)
    return text


def reason(error: Exception) -> str:
    """The first line of an error, in which text of a file cannot control a terminal."""
    line = next(iter(str(error).splitlines()), type(error).__name__)
    return repr(line)[1:-1]


# -- tables and files of the user ------------------------------------------------------------------------------------


def read_own(data: Any, data_dir: str | Path | None = None) -> pa.Table:
    """The table of a `datasets.Dataset`, of anything that Arrow reads (a data frame), of a file, or of a data set of the Hub.

    For arguments and errors see `data.load_interactions`.
    """
    if isinstance(data, Dataset):
        return data.with_format("arrow")[:]
    if not isinstance(data, (str, Path)):
        return pa.table(data)
    path = Path(data_dir or "") / data
    if isinstance(data, Path) or data_dir is not None or path.exists() or path.suffix.lower() in _READERS:
        if not path.is_file() or (read := _READERS.get(path.suffix.lower())) is None:
            kinds = f"give {', '.join(_READERS)} with columns {', '.join(NAMES)}, or a data frame"
            raise ValueError(f"{path} is no file that is read here: {kinds}")
        return read(path)
    try:
        return load_dataset(data, split="train").with_format("arrow")[:]
    # Any failure means the same here: no such data set within reach.
    except Exception as error:
        raise DataUnavailableError(
            f"name={data!r} is none of {', '.join(SOURCES)}, no file, and cannot be loaded by datasets.load_dataset: {reason(error)}"
        ) from error


def _read_parquet(path: Path) -> pa.Table:
    try:
        return parquet.ParquetFile(path).read(columns=list(NAMES))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no whole Parquet file ({reason(error)})") from None


def _read_json(path: Path) -> pa.Table:
    try:
        table = json.read_json(pa.BufferReader(utf8(path)))
        table.column_names  # noqa: B018  Arrow decodes them only now
        return table
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        rows = 'rows {"user": …, "item": …, "timestamp": …}, one per line, with one type per column'
        raise ValueError(f"{path} does not hold {rows} ({reason(error)}): it is cut short or another file") from None


def _read_csv(path: Path, delimiter: str = ",", names: Sequence[str] = ()) -> pa.Table:
    """A table whose user, item and timestamp are text; ids become numbers where all are. Empty lines are skipped.

    Args:
        names: the names of the columns; by default the first line that is not empty has them.

    Raises:
        ValueError: a line has more or fewer columns than the others, or the file is no text.
    """
    try:
        table = csv.read_csv(
            pa.BufferReader(utf8(path)),
            read_options=csv.ReadOptions(column_names=names, use_threads=False),  # with one thread, errors name the row
            parse_options=csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(column_types=dict.fromkeys(NAMES, pa.string())),
        )
        columns = table.column_names  # Arrow decodes them only now
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        expected = f"lines of {delimiter.join(names)}" if names else "a header and lines as long as it"
        why = "it is cut short or another file"
        raise ValueError(f"{path} does not hold {expected} throughout ({reason(error)}): {why}") from None
    for name in ("user", "item"):
        if columns.count(name) == 1:
            table = table.set_column(columns.index(name), name, _numbers(table[name], name, path))
    return table


def _numbers(ids: pa.ChunkedArray, name: str, path: Path) -> pa.ChunkedArray:
    """Ids as numbers where all are the text of plain integers: then 10 comes after 9, and no two ids become equal.

    Otherwise all stay text, and a warning names two that would be the same number.
    """
    if pc.all(pc.match_substring_regex(ids, INTEGER)).as_py():
        with contextlib.suppress(pa.ArrowInvalid):  # too large
            return ids.cast(pa.int64())
    different, first = ids.drop_null().unique(), {}
    plain = pc.replace_substring_regex(different, _WRITTEN_OTHERWISE, r"\1")
    for text, number in zip(different.to_pylist(), plain.to_pylist(), strict=True):
        if (other := first.setdefault(number, text)) != text:
            both = f"{other!r} and {text!r}"
            logger.warning("%s: the %ss %s stay two; write them alike if they are one", path, name, both)
            break
    return ids


_READERS = {
    ".csv": _read_csv, ".tsv": partial(_read_csv, delimiter="\t"), ".parquet": _read_parquet, ".jsonl": _read_json,
}  # fmt: skip

# -- the paper's data sets -------------------------------------------------------------------------------------------

_RATINGS = ("user", "item", "rating", "timestamp")


def _read_amazon(path: Path) -> pa.Table:
    """A file with a header; or Amazon's own without one, with user and item in either order; or numbers, the user first."""
    table = _read_csv(path)
    if set(NAMES) <= set(table.column_names):
        return table
    table = _read_csv(path, names=_RATINGS)
    # Amazon's users begin with A, its items do not.
    kinds = [
        pc.all(pc.match_substring_regex(table[x].cast(pa.string()), r"\A(A[0-9A-Z]+|[0-9]+)\z")) for x in NAMES[:2]
    ]
    if not any(kind.as_py() for kind in kinds):
        raise ValueError(
            f"{path} does not say which column holds the users: give it the first line {','.join(_RATINGS)}"
        )
    return table if kinds[0].as_py() else table.rename_columns(["item", "user", *_RATINGS[2:]])


@dataclass(frozen=True)
class Source:
    """The place of a data set and the reader of its file.

    Args:
        file: the name of the file with interactions.
        url: the file or archive to download.
        read: reads the interactions from the file.
        title_file: the name of the file with the items' titles, in MovieLens' form.
    """

    file: str
    url: str
    read: Callable[[Path], pa.Table]
    title_file: str | None = None

    def find(self, name: str, data_dir: str | Path | None) -> Path:
        """The file, anywhere in the user's folder, or downloaded."""
        try:
            folder = Path(DownloadManager().download_and_extract(self.url) if data_dir is None else data_dir)
        # Any failure (no network, a proxy's answer, a moved file) means the same here.
        except Exception as error:
            remedy = f"get it from {self.url} and pass data_dir, the folder with {self.file}"
            raise DataUnavailableError(f"{name} cannot be downloaded: {remedy}") from error
        files = [folder] if folder.is_file() else [path for path in folder.rglob(self.file) if path.is_file()]
        if len(files) != 1:
            found = "holds more than one" if files else "lacks"
            raise ValueError(f"data_dir={str(folder)!r} {found} {self.file}: pass the folder that has it ({self.url})")
        return files[0]

    def titles(self, path: Path) -> dict[int, str] | None:
        """The titles by original id; None if there is no file of titles beside the file of interactions."""
        if self.title_file is None or not (path := path.with_name(self.title_file)).is_file():
            return None
        lines = re.findall(r"^(\d+)\|([^|\n]*)", path.read_text(encoding="latin-1"), re.MULTILINE)
        return {int(item): title for item, title in lines}


SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data", "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        partial(_read_csv, delimiter="\t", names=_RATINGS), "u.item",
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv", _read_amazon,
    ),
}  # fmt: skip
