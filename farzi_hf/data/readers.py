"""Readers of interactions: the data sets of the paper by name, and the user's own tables, files and
data sets of the Hub.

Each reader returns an Arrow table, of which `data.interactions` makes sequences.
"""

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, DownloadManager, load_dataset
from pyarrow import json, parquet

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.columns import NONE, Given, columns_of
from farzi_hf.data.files import DataUnavailableError, find_files, own_splits
from farzi_hf.data.forms import RATINGS
from farzi_hf.data.item_lists import is_list
from farzi_hf.data.layout import Layout
from farzi_hf.data.opening import UnusableFileError, ending, opened, utf8
from farzi_hf.data.rows import arrow_batches, of_json
from farzi_hf.data.sequences import SPLITS
from farzi_hf.data.tables import has_a_user_a_row, interactions_of
from farzi_hf.data.text_tables import read_named, read_text_table

logger = logging.getLogger(__name__)

# -- tables and files of the user ------------------------------------------------------------------


def read_own(
    data: Any, data_dir: str | Path | None = None, given: Given = NONE, **hub: Any
) -> pa.Table:
    """User, item and timestamp of a table, of files, or of a data set of the Hub.

    A table is a `datasets.Dataset`, or anything that Arrow reads, such as a data frame. Rows of
    files and of a `DatasetDict` have a `part` too, the place of their split in `SPLITS`. For
    arguments and errors see `data.load_interactions`; `hub` are arguments of
    `datasets.load_dataset`.
    """
    if isinstance(data, DatasetDict):
        return _read_splits(data, given)
    if isinstance(data, Dataset):
        return interactions_of(_arrow(data), "the data set", given)
    if not isinstance(data, (str, Path)):
        return interactions_of(_table(data), "the data set", given)
    files = find_files(data, data_dir)
    if files is None:
        return interactions_of(_of_hub(data, **hub), data, given)
    files.say_left_out(data)
    tables = {
        part: [_reader(path)(path, given) for path in paths] for part, paths in files.splits.items()
    }
    return _joined(tables, data)


def _table(data: Any) -> pa.Table:
    """A data frame, or columns by their names, as a table."""
    try:
        return pa.table(data)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"name is a {type(data).__name__} that makes no table ({reason(error)}); give a data"
            " frame, a Dataset, columns by their names, or a file"
        ) from error


def _read_splits(data: DatasetDict, given: Given) -> pa.Table:
    splits = own_splits(data, "the data set") if len(data) > 1 else data
    tables = {part: [interactions_of(_arrow(x), part, given)] for part, x in splits.items()}
    return _joined(tables, "the data set")


def _arrow(data: Dataset) -> pa.Table:
    return data.with_format("arrow")[:]


def _of_hub(source: str | Path, **how: Any) -> pa.Table:
    given = {option: value for option, value in how.items() if value is not None}
    try:
        return _arrow(load_dataset(source, **{"split": "train", **given}))
    except Exception as error:  # any failure means the same here: no such data set within reach
        raise DataUnavailableError(
            f"name={source!r} is none of {', '.join(SOURCES)}, no file, and not on the Hub:"
            f" {reason(error)}"
        ) from error


def _joined(parts: Mapping[str, list[pa.Table]], source: Any) -> pa.Table:
    """All rows, and their `part`."""
    tables = []
    users_before = 0
    for place, part in enumerate(SPLITS):
        for table in parts.get(part, ()):
            if has_a_user_a_row(table) and len(table):  # counted from 0 in each table
                users = pc.add(table["user"], users_before)
                users_before = 1 + pc.max(users).as_py()
                table = table.set_column(0, "user", users)
            places = np.full(len(table), place, np.int8)
            tables.append(table.append_column("part", pa.array(places)))
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        remedy = "give them the same columns, and splits the names train, validation and test"
        raise ValueError(
            f"{source}: its {len(tables)} parts differ ({reason(error)}): {remedy}"
        ) from None


# -- files by their ending -------------------------------------------------------------------------

Reader = Callable[[Path, Given], pa.Table]


def _reader(path: Path) -> Reader:
    return _READERS.get(ending(path), read_text_table)


def _read_parquet(path: Path, given: Given) -> pa.Table:
    try:
        file = parquet.ParquetFile(path)
        chosen = columns_of(file.schema_arrow.names, path, given)
        table = file.read(columns=[name for name in chosen if name])
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is not a whole Parquet file ({reason(error)})") from None
    return interactions_of(table, path, given)


def _read_typed(read: Callable[[Path], pa.Table]) -> Reader:
    """The reader of files whose columns have types, which `read` reads whole."""

    def reader(path: Path, given: Given) -> pa.Table:
        try:
            table = read(path)
            _ = table.column_names  # raises where a name is not UTF-8
        except UnusableFileError:
            raise
        except _DAMAGED as error:
            rows = (
                'rows {"user": …, "item": …, "timestamp": …}, one per line or all in an array, with'
                " one type per column"
            )
            raise ValueError(
                f"{path} does not hold {rows} ({reason(error)}): it is cut short or another file"
            ) from None
        return interactions_of(table, path, given)

    return reader


# What Arrow and Python raise of files that hold something else.
_DAMAGED = (
    pa.ArrowException,
    ValueError,
    OSError,
    AttributeError,
    TypeError,
    OverflowError,
    RecursionError,
)


def _arrow_table(path: Path) -> pa.Table:
    return pa.Table.from_batches(arrow_batches(path))


def _json_table(path: Path) -> pa.Table:
    """The values of JSON as Arrow reads them, but for texts that look like dates: they stay texts,
    because they may be ids.
    """
    with opened(path) as file:
        is_array = file.read(1 << 16).lstrip().startswith("[")
    if is_array:  # where Arrow wants lines
        with opened(path) as file:
            rows = [*of_json(file)]
        names = dict.fromkeys(chain.from_iterable(rows))
        return pa.table({name: [row.get(name) for row in rows] for name in names})
    table = json.read_json(utf8(path))
    texts = []
    for column in table.schema:
        if pa.types.is_temporal(column.type):
            texts.append((column.name, pa.string()))
        elif is_list(column.type) and pa.types.is_temporal(column.type.value_type):
            texts.append((column.name, pa.list_(pa.string())))
    if not texts:
        return table
    parsing = json.ParseOptions(explicit_schema=pa.schema(texts))
    return json.read_json(utf8(path), parse_options=parsing)


_READERS: dict[str, Reader] = {
    ".parquet": _read_parquet,
    ".arrow": _read_typed(_arrow_table),
    ".jsonl": _read_typed(_json_table),
    ".ndjson": _read_typed(_json_table),
    ".json": _read_typed(_json_table),
}
"""By ending; others are text with columns."""

# -- the paper's data sets -------------------------------------------------------------------------


@dataclass(frozen=True)
class Source:
    """The place of a data set and the reader of its file."""

    file: str
    """The name of the file with interactions."""
    url: str
    """The file or archive to download."""
    read: Callable[[Path], pa.Table]
    """Reads the interactions from the file."""
    title_file: str | None = None
    """The name of the file with the items' titles, in MovieLens' form."""

    def find(self, name: str, data_dir: str | Path | None) -> Path:
        """The file, anywhere in the user's folder, or downloaded."""
        folder = self._downloaded(name) if data_dir is None else Path(data_dir)
        if folder.is_file():
            return folder
        files = [path for path in folder.rglob(self.file) if path.is_file()]
        if len(files) != 1:
            what = "holds more than one" if files else "lacks"
            raise ValueError(
                f"data_dir={str(folder)!r} {what} {self.file}: pass the folder that has it"
                f" ({self.url})"
            )
        return files[0]

    def titles(self, path: Path) -> dict[int, str] | None:
        """The titles by original id; None if there is no file of titles beside the file of
        interactions.
        """
        if self.title_file is None or not path.with_name(self.title_file).is_file():
            return None
        titles = path.with_name(self.title_file)
        if titles.is_symlink():
            logger.warning(
                "%s is a link, which is not followed: items have no titles", terminal_text(titles)
            )
            return None
        text = titles.read_text(encoding="latin-1")
        lines = re.findall(r"^(\d+)\|([^|\n]*)", text, re.MULTILINE)
        return {int(item): title for item, title in lines}

    def _downloaded(self, name: str) -> Path:
        try:
            return Path(DownloadManager().download_and_extract(self.url))
        except Exception as error:  # no network, a proxy's answer, a moved file: all mean the same
            remedy = f"get it from {self.url} and pass data_dir, the folder with {self.file}"
            raise DataUnavailableError(f"{name} cannot be downloaded: {remedy}") from error


_ML_100K = Layout("\t", RATINGS.names, 0, RATINGS, holds_interactions=True)

SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data",
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        partial(read_named, layout=_ML_100K),
        "u.item",
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv",
        read_text_table,
    ),
}
