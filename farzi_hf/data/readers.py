"""Readers of interactions: the data sets of the paper by name, and the user's own tables, files and
data sets of the Hub.

Each reader returns an Arrow table, of which `data.interactions` makes sequences. Files are read
with Arrow and not with `datasets.load_dataset`, which would turn the id 007 into 7.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict, DownloadManager, load_dataset
from pyarrow import csv, json, parquet

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.columns import NAMES, NONE, Columns, Given, columns_of, lists_items
from farzi_hf.data.files import (
    DataUnavailableError,
    arrow_batches,
    find_files,
    of_json,
    own_splits,
)
from farzi_hf.data.item_lists import is_list, is_text, item_a_row, lists_of
from farzi_hf.data.layout import RATINGS, Layout, layout_of
from farzi_hf.data.opening import UnusableFileError, ending, opened, utf8
from farzi_hf.data.sequences import SPLITS

logger = logging.getLogger(__name__)

# no leading zeros and no plus sign, so that different texts are different numbers
INTEGER = r"\A(0|-?[1-9][0-9]*)\z"
_WRITTEN_OTHERWISE = r"\A\s*[+]?0*([0-9]+?)(\.0*)?\s*\z"  # 01, 1.0, +1 or a blank before it

_AMAZONS_USER = r"\A[A][0-9A-Z]+\z"
_NOT_IN_A_LINE = "\x1e"  # in place of what divides cells
_AS_TEXT = csv.ConvertOptions(column_types={"line": pa.string()})

# -- tables and files of the user ------------------------------------------------------------------


def read_own(
    data: Any, data_dir: str | Path | None = None, given: Given = NONE, **hub: Any
) -> pa.Table:
    """User, item and timestamp of a `datasets.Dataset`, of anything that Arrow reads (a data
    frame), of files, or of a data set of the Hub.

    Rows of files and of a `DatasetDict` have a `part` too, the place of their split in `SPLITS`.
    For arguments and errors see `data.load_interactions`; `hub` are arguments of
    `datasets.load_dataset`.
    """
    if isinstance(data, DatasetDict):
        parts = (own_splits(data, "the data set") if len(data) > 1 else data).items()
        return _joined(
            {part: [_chosen(x.with_format("arrow")[:], part, given)] for part, x in parts},
            "the data set",
        )
    if not isinstance(data, (str, Path)):
        table = data.with_format("arrow")[:] if isinstance(data, Dataset) else pa.table(data)
        return _chosen(table, "the data set", given)
    files = find_files(data, data_dir)
    if files is not None:
        files.say_left_out(data)
        read = {
            part: [_READERS.get(ending(x), _read_csv)(x, given=given) for x in paths]
            for part, paths in files.splits.items()
        }
        return _joined(read, data)
    hub = {"split": "train", **{name: x for name, x in hub.items() if x is not None}}
    try:
        table = load_dataset(data, **hub).with_format("arrow")[:]
    except Exception as error:  # any failure means the same here: no such data set within reach
        known = ", ".join(SOURCES)
        raise DataUnavailableError(
            f"name={data!r} is none of {known}, no file, and not on the Hub: {reason(error)}"
        ) from error
    return _chosen(table, data, given)


def _joined(parts: Mapping[str, list[pa.Table]], source: Any) -> pa.Table:
    """All rows, and their `part`."""
    tables = []
    users_before = 0
    for place, part in enumerate(SPLITS):
        for table in parts.get(part, ()):
            if _has_a_user_a_row(table) and len(table):
                users = pc.add(table["user"], users_before)
                table = table.set_column(0, "user", users)
                users_before = 1 + pc.max(users).as_py()
            tables.append(
                table.append_column("part", pa.array(np.full(len(table), place, np.int8)))
            )
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        remedy = "give them the same columns, and splits the names train, validation and test"
        raise ValueError(
            f"{source}: its {len(tables)} parts differ ({reason(error)}): {remedy}"
        ) from None


def _chosen(table: pa.Table, source: Any, given: Given) -> pa.Table:
    """The columns of `columns_of`, called user, item and timestamp, with an item a row. Without
    times, the order of the rows is theirs.
    """
    chosen = columns_of(table.column_names, source, given)
    items = table[chosen.item]
    may_be_lists = lists_items([chosen.item]) or given.get("item")
    lists = lists_of(items, chosen.item, source) if may_be_lists else None
    if lists is not None:
        users, items, times = _of_lists(table, chosen, lists, source)
    elif chosen.user is None:
        raise ValueError(
            f"{source}: column {chosen.item!r} has an item a row, and no column holds the users:"
            " name yours with user_column"
        )
    else:
        users = table[chosen.user]
        times = _equal_times(len(table)) if chosen.timestamp is None else table[chosen.timestamp]
    columns = {"columns": "\n".join(name or "" for name in chosen)}
    return pa.table([users, items, times], names=NAMES, metadata=columns)


def _equal_times(rows: int) -> pa.ChunkedArray:
    """Of rows whose order is that of time."""
    return pa.chunked_array([np.zeros(rows, np.int8)])


def _of_lists(
    table: pa.Table, chosen: Columns, lists: pa.ChunkedArray, source: Any
) -> tuple[pa.ChunkedArray, pa.ChunkedArray, pa.ChunkedArray]:
    """Users, items and times of a table whose rows list items, and times or one time."""
    others = [table[name] for name in (chosen.user, chosen.timestamp) if name]
    items, rows, others = item_a_row(lists, others)
    users = others[0] if chosen.user else pa.chunked_array([rows])
    if chosen.timestamp is None:
        return users, items, _equal_times(len(rows))
    times = table[chosen.timestamp]
    lists_of_times = lists_of(times, chosen.timestamp, source)
    if lists_of_times is None:
        return users, items, others[-1]
    lengths = [pc.fill_null(pc.list_value_length(x), 0) for x in (lists, lists_of_times)]
    if not lengths[0].equals(lengths[1]):
        row = pc.index(pc.equal(*lengths), False).as_py()
        raise ValueError(
            f"{source}: row {row} (counted from 0) has {lengths[0][row]} in {chosen.item!r} and"
            f" {lengths[1][row]} in {chosen.timestamp!r}: give a time for each item"
        )
    return users, items, pc.list_flatten(lists_of_times)


def _has_a_user_a_row(table: pa.Table) -> bool:
    """Whether no column held the users, so that each row was one."""
    return (table.schema.metadata or {}).get(b"columns", b" ").startswith(b"\n")


def _read_parquet(path: Path, given: Given = NONE) -> pa.Table:
    try:
        file = parquet.ParquetFile(path)
        chosen = columns_of(file.schema_arrow.names, path, given)
        return _chosen(file.read(columns=[name for name in chosen if name]), path, given)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is no whole Parquet file ({reason(error)})") from None


def _read_rows(path: Path, given: Given = NONE) -> pa.Table:
    """Of JSON, lines or an array, and of .arrow, whose columns have types."""
    try:
        table = _arrow_table(path) if ending(path) == ".arrow" else _json_table(path)
        _ = table.column_names  # raises where a name is no UTF-8
    except UnusableFileError:
        raise
    except (
        pa.ArrowException,
        ValueError,
        OSError,
        AttributeError,
        TypeError,
        OverflowError,
        RecursionError,
    ) as error:
        rows = (
            'rows {"user": …, "item": …, "timestamp": …}, one per line or all in an array, with one'
            " type per column"
        )
        raise ValueError(
            f"{path} does not hold {rows} ({reason(error)}): it is cut short or another file"
        ) from None
    return _chosen(table, path, given)


def _arrow_table(path: Path) -> pa.Table:
    return pa.Table.from_batches(arrow_batches(path))


def _json_table(path: Path) -> pa.Table:
    """The values of JSON as Arrow reads them, but for texts that look like dates: they stay texts,
    because they may be ids.
    """
    if opened(path).read(1 << 16).lstrip().startswith("["):  # an array, where Arrow wants lines
        rows = [*of_json(opened(path))]
        names = dict.fromkeys(chain.from_iterable(rows))
        table = pa.table({name: [row.get(name) for row in rows] for name in names})
        return table
    table = json.read_json(utf8(path))
    texts = []
    for column in table.schema:
        if pa.types.is_temporal(column.type):
            texts.append((column.name, pa.string()))
        elif is_list(column.type) and pa.types.is_temporal(column.type.value_type):
            texts.append((column.name, pa.list_(pa.string())))
    if not texts:
        return table
    how = json.ParseOptions(explicit_schema=pa.schema(texts))
    return json.read_json(utf8(path), parse_options=how)


def _read_csv(path: Path, given: Given = NONE) -> pa.Table:
    """A table whose user, item and timestamp are text; ids become numbers where all are. Empty
    lines are skipped. Raises ValueError if a line has more or fewer columns than the others, or the
    file is no text.
    """
    layout = layout_of(path, given)
    layout.say_skipped(path)
    if layout.form is None:
        columns = columns_of(layout.header, path, given)
        texts = _texts(path, layout, [name for name in columns if name])
        for place, name in enumerate(texts.column_names):
            if name != name.strip():  # cells have blanks beside them, as their names have
                texts = texts.set_column(place, name, pc.utf8_trim_whitespace(texts[name]))
        return _with_numbers(_chosen(texts, path, given), path)
    if layout.form is not RATINGS:
        logger.warning(
            "%s has no header: its columns are read as %s",
            terminal_text(path),
            ", ".join(layout.form.names),
        )
    if layout.form.lists_items:
        return _read_lists(path, layout)
    return _users_first(_read_named(path, layout), path, layout)


def _texts(path: Path, layout: Layout, columns: Sequence[str]) -> pa.Table:
    """Columns of a text file as text."""
    names = layout.form.names if layout.form else ()
    reading = csv.ReadOptions(
        column_names=names,
        skip_rows=layout.skipped,
        use_threads=False,  # with one thread, errors name the row
    )
    parsing = csv.ParseOptions(
        delimiter=layout.delimiter,
        quote_char='"' if layout.has_quotes else False,
        newlines_in_values=True,
    )
    converting = csv.ConvertOptions(
        column_types=dict.fromkeys(columns, pa.string()), include_columns=columns
    )
    try:
        table = csv.read_csv(layout.open(path), reading, parsing, converting)
        _ = table.column_names  # raises where a name is no UTF-8
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        due = f"lines of {','.join(names)}" if names else "a header and lines as long as it"
        raise ValueError(
            f"{path} does not hold {due} throughout ({reason(error)}): it is cut short or another"
            " file"
        ) from None
    return table


def _read_named(path: Path, layout: Layout) -> pa.Table:
    """A table without a header, whose columns its form names."""
    columns = [name for name in layout.form.names if name in NAMES]
    return _with_numbers(_chosen(_texts(path, layout, columns), path, NONE), path)


def _users_first(table: pa.Table, path: Path, layout: Layout) -> pa.Table:
    """A table without a header: Amazon's, with user and item in either order; or with numbers, the
    user first.
    """
    users, items = (table[name] for name in NAMES[:2])
    are_numbers = pa.types.is_integer(users.type) and pa.types.is_integer(items.type)
    if not len(table) or are_numbers or _are_amazons_users(users):
        return table
    if _are_amazons_users(items):
        return table.select([1, 0, 2]).rename_columns(NAMES)
    header = layout.mark.join(layout.form.names)
    raise ValueError(f"{path} does not say which column holds the users: add the line {header}")


def _are_amazons_users(ids: pa.ChunkedArray) -> bool:
    """Users of Amazon begin with A, items do not."""
    return is_text(ids.type) and pc.all(pc.match_substring_regex(ids, _AMAZONS_USER)).as_py()


def _read_lists(path: Path, layout: Layout) -> pa.Table:
    """Lines of a user and all items of that user."""
    whole_lines = csv.ParseOptions(delimiter=_NOT_IN_A_LINE, quote_char=False)
    reading = csv.ReadOptions(column_names=["line"], skip_rows=layout.skipped, use_threads=False)
    try:
        lines = csv.read_csv(layout.open(path), reading, whole_lines, _AS_TEXT)["line"]
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        raise ValueError(
            f"{path} does not hold lines of a user and items throughout ({reason(error)}): it is"
            " cut short or another file"
        ) from None
    lists = pc.split_pattern(lines, layout.delimiter)
    ids, rows, _ = item_a_row(lists, [])
    is_user = np.diff(rows, prepend=-1) != 0
    ids = pa.chunked_array([ids.combine_chunks()]) if isinstance(ids, pa.ChunkedArray) else ids
    users = ids.filter(pa.array(is_user)).take(pa.array(rows[~is_user]))
    items = ids.filter(pa.array(~is_user))
    columns = {"columns": "user\nitems\n"}
    table = pa.table([users, items, _equal_times(len(items))], names=NAMES, metadata=columns)
    return _with_numbers(table, path)


def _with_numbers(table: pa.Table, path: Path) -> pa.Table:
    """A table of texts with ids that are numbers where all are."""
    for place, name in enumerate(NAMES[:2]):
        if is_text(table[name].type):
            table = table.set_column(place, name, _numbers(table[name], name, path))
    return table


def _numbers(ids: pa.ChunkedArray, name: str, path: Path) -> pa.ChunkedArray:
    """Ids as numbers where all are plain integers: then 10 comes after 9. Else all stay text, and a
    warning names two that would be one number.
    """
    if pc.all(pc.match_substring_regex(ids, INTEGER)).as_py():
        with contextlib.suppress(pa.ArrowInvalid):  # too large
            return ids.cast(pa.int64())
    different, first = ids.drop_null().unique(), {}
    plain = pc.replace_substring_regex(different, _WRITTEN_OTHERWISE, r"\1")
    for text, number in zip(different.to_pylist(), plain.to_pylist(), strict=True):
        if (other := first.setdefault(number, text)) != text:
            logger.warning(
                "%s: the %ss %r and %r stay two; write them alike if they are one",
                path,
                name,
                other,
                text,
            )
            break
    return ids


_READERS = {
    ".parquet": _read_parquet,
    **dict.fromkeys((".arrow", ".jsonl", ".ndjson", ".json"), _read_rows),
}
"""By ending; others are text with columns."""

# -- the paper's data sets -------------------------------------------------------------------------


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
            folder = Path(
                DownloadManager().download_and_extract(self.url) if data_dir is None else data_dir
            )
        except (
            Exception
        ) as error:  # any failure (no network, a proxy's answer, a moved file) means the same here
            remedy = f"get it from {self.url} and pass data_dir, the folder with {self.file}"
            raise DataUnavailableError(f"{name} cannot be downloaded: {remedy}") from error
        files = (
            [folder]
            if folder.is_file()
            else [path for path in folder.rglob(self.file) if path.is_file()]
        )
        if len(files) != 1:
            found = "holds more than one" if files else "lacks"
            raise ValueError(
                f"data_dir={str(folder)!r} {found} {self.file}: pass the folder that has it"
                f" ({self.url})"
            )
        return files[0]

    def titles(self, path: Path) -> dict[int, str] | None:
        """The titles by original id; None if there is no file of titles beside the file of
        interactions.
        """
        if self.title_file is None or not (path := path.with_name(self.title_file)).is_file():
            return None
        if path.is_symlink():
            logger.warning("%s is a link, which is not followed: items have no titles", path)
            return None
        lines = re.findall(r"^(\d+)\|([^|\n]*)", path.read_text(encoding="latin-1"), re.MULTILINE)
        return {int(item): title for item, title in lines}


_ML_100K = Layout("\t", RATINGS.names, 0, RATINGS, holds_interactions=True)

SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data",
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        partial(_read_named, layout=_ML_100K),
        "u.item",
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv",
        _read_csv,
    ),
}
