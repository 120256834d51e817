"""Readers of interactions: the data sets of the paper by name, and the user's own tables, files and
data sets of the Hub.

Each reader returns an Arrow table, of which `data.interactions` makes sequences. Files are read
with Arrow and not with `datasets.load_dataset`, which would turn the id 007 into 7.
"""

import contextlib
import csv as plain_csv
import io
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

from farzi_hf.common.text import reason
from farzi_hf.data.files import (
    DataUnavailableError,
    arrow_batches,
    delimiter_of,
    ending,
    files_of,
    of_json,
    opened,
    own_splits,
    utf8,
)
from farzi_hf.data.sequences import SPLITS

logger = logging.getLogger(__name__)

NAMES = ("user", "item", "timestamp")
_RATINGS = ("user", "item", "rating", "timestamp")
KNOWN = {
    "user": "user userid uid reviewerid customerid memberid visitorid sessionid",
    "item": (
        "item itemid iid parentasin asin movieid productid articleid bookid isbn songid trackid"
        " gameid businessid newsid adid"
    ),
    "timestamp": "timestamp ts unixreviewtime unixtime datetime time date createdat",
}
"""What the columns are called, first choice first, in small letters without `_`, `-` and blanks
inside, and without RecBole's types.
"""

Given = Mapping[str, str | None]
"""The columns that a user names, by what they hold: user, item and timestamp."""
NONE: Given = {}
# no leading zeros and no plus sign, so that different texts are different numbers
INTEGER = r"\A(0|-?[1-9][0-9]*)\z"
_WRITTEN_OTHERWISE = r"\A\s*[+]?0*([0-9]+?)(\.0*)?\s*\z"  # 01, 1.0, +1 or a blank before it


# -- columns ---------------------------------------------------------------------------------------


def columns_of(names: Sequence[str], source: Any, given: Given = NONE) -> list[str | None]:
    """The columns of users, items and times (or None) among `names`: those given, else by name.
    ValueError if one is missing or there twice.
    """
    found: list[str | None] = []
    for role, known in KNOWN.items():
        plain = [re.sub(r"(?<=\w)[_ -](?=\w)|:(token|float)\Z", "", name).lower() for name in names]
        wanted = next((alias for alias in known.split() if alias in plain), role)
        own = given.get(role)
        matching = [
            name
            for name, its in zip(names, plain, strict=True)
            if (name == own if own else its == wanted)
        ]
        if role == "timestamp" and not matching and not own:
            matching = [None]
        if len(matching) != 1:
            remedy = (
                f"{own or wanted!r} must be there once; name yours with user_column, item_column"
                " and time_column"
            )
            raise ValueError(f"{source} has columns {list(names)}: {remedy}")
        found += matching
    return found


def has_interactions(names: Sequence[str] | Path) -> bool:
    """Whether these are the columns of interactions, or a row of them; or those in the first line
    of a file.
    """
    with contextlib.suppress(ValueError):
        names = first_line(names) if isinstance(names, Path) else names
        return _is_rating(names) or bool(columns_of(names, ""))
    return False


def _is_rating(line: Sequence[str]) -> bool:
    """Whether this is a row, user, item, rating and time, and not a header."""
    return len(line) == 4 and all(re.fullmatch(r"-?\d+(\.\d+)?", cell) for cell in line[2:])


def first_line(path: Path) -> list[str]:
    """The cells of the first line, that is not empty, of a text file with columns. Raises
    ValueError if the file is empty, or no text.
    """
    try:
        with opened(path, errors="surrogateescape", newline="") as file:
            text = io.StringIO(file.read(1 << 20), newline="")
        cells = next(filter(None, plain_csv.reader(text, delimiter=delimiter_of(path))))
        "".join(cells).encode()
        return cells
    except (plain_csv.Error, UnicodeError, OSError, StopIteration) as error:
        why = "it is empty" if isinstance(error, StopIteration) else reason(error)
        raise ValueError(f"{path} does not hold a header and lines as long as it ({why})") from None


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
    if (files := files_of(data, data_dir)) is not None:
        read = {
            part: [_READERS.get(ending(x), _read_csv)(x, given=given) for x in paths]
            for part, paths in files.items()
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
    places = [(place, table) for place, part in enumerate(SPLITS) for table in parts.get(part, ())]
    tables = [
        table.append_column("part", pa.array(np.full(len(table), place, np.int8)))
        for place, table in places
    ]
    try:
        return pa.concat_tables(tables)
    except pa.ArrowInvalid as error:
        remedy = "give them the same columns, and splits the names train, validation and test"
        raise ValueError(
            f"{source}: its {len(tables)} parts differ ({reason(error)}): {remedy}"
        ) from None


def _chosen(table: pa.Table, source: Any, given: Given) -> pa.Table:
    """The columns of `columns_of`, called user, item and timestamp. Without times, the order of the
    rows is theirs.
    """
    chosen = columns_of(table.column_names, source, given)
    times = (
        pa.chunked_array([np.zeros(len(table), np.int8)]) if chosen[2] is None else table[chosen[2]]
    )  # equal ones
    columns = {"columns": "\n".join(name or "" for name in chosen)}
    return pa.table([table[chosen[0]], table[chosen[1]], times], names=NAMES, metadata=columns)


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
        arrow = ending(path) == ".arrow"
        if not arrow and opened(path).read(1 << 16).lstrip().startswith(
            "["
        ):  # an array, where Arrow wants lines
            rows = [*of_json(opened(path))]
            table = pa.table(
                {
                    name: [row.get(name) for row in rows]
                    for name in dict.fromkeys(chain.from_iterable(rows))
                }
            )
        else:
            table = (
                pa.Table.from_batches(arrow_batches(path)) if arrow else json.read_json(utf8(path))
            )
        dates = pa.schema(
            [
                (x.name, pa.string())
                for x in table.schema
                if pa.types.is_temporal(x.type) and not arrow
            ]
        )
        if dates.names:  # text in JSON, such as ids that look like dates
            table = json.read_json(
                utf8(path), parse_options=json.ParseOptions(explicit_schema=dates)
            )
        table.column_names  # noqa: B018
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


def _read_csv(
    path: Path, delimiter: str | None = None, names: Sequence[str] = (), given: Given = NONE
) -> pa.Table:
    """A table whose user, item and timestamp are text; ids become numbers where all are. Empty
    lines are skipped. Raises ValueError if a line has more or fewer columns than the others, or the
    file is no text.

    Args:
        delimiter: by default that of the first line.
        names: the names of the columns; by default the first line that is not empty has them, or is
            a rating: see `_is_rating`.
    """
    header = names or first_line(path)
    if not names and not any(given.values()) and _is_rating(header):
        return _read_ratings(path)
    chosen = [*filter(None, columns_of(header, path, given))]
    try:
        table = csv.read_csv(
            utf8(path),
            read_options=csv.ReadOptions(
                column_names=names, use_threads=False
            ),  # with one thread, errors name the row
            parse_options=csv.ParseOptions(
                delimiter=delimiter or delimiter_of(path), newlines_in_values=True
            ),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(chosen, pa.string()), include_columns=chosen
            ),
        )
        table.column_names  # noqa: B018
    except (pa.ArrowInvalid, UnicodeDecodeError, OSError) as error:
        due = f"lines of {','.join(names)}" if names else "a header and lines as long as it"
        raise ValueError(
            f"{path} does not hold {due} throughout ({reason(error)}): it is cut short or another"
            " file"
        ) from None
    table = _chosen(table, path, given)
    for place, name in enumerate(("user", "item")):
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


def _read_ratings(path: Path) -> pa.Table:
    """Rows without a header: Amazon's, with user and item in either order; or numbers, the user
    first.
    """
    table = _read_csv(path, names=_RATINGS)
    of_user = r"\A(A[0-9A-Z]+|[0-9]+)\z"  # Amazon's users begin with A, its items do not
    kinds = [
        pc.all(pc.match_substring_regex(table[x].cast(pa.string()), of_user)) for x in NAMES[:2]
    ]
    if len(table) and not any(kind.as_py() for kind in kinds):
        raise ValueError(
            f"{path} does not say which column holds the users: add the line {','.join(_RATINGS)}"
        )
    return (
        table
        if kinds[0].as_py() or not len(table)
        else table.select([1, 0, 2]).rename_columns(NAMES)
    )


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
        lines = re.findall(r"^(\d+)\|([^|\n]*)", path.read_text(encoding="latin-1"), re.MULTILINE)
        return {int(item): title for item, title in lines}


SOURCES: dict[str, Source] = {
    "ml-100k": Source(
        "u.data",
        "https://files.grouplens.org/datasets/movielens/ml-100k.zip",
        partial(_read_csv, delimiter="\t", names=_RATINGS),
        "u.item",
    ),
    "magazine": Source(
        "Magazine_Subscriptions.csv",
        "https://jmcauley.ucsd.edu/data/amazon_v2/categoryFilesSmall/Magazine_Subscriptions.csv",
        _read_csv,
    ),
}
