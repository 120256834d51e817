"""Interactions of users with items as sequences: `load_interactions`, the split by users, batches.

All readers follow these rules. A user's items are ordered by timestamp, and by row where timestamps are equal. Every row
counts, also one that occurs twice, because the paper counts so. Users with fewer than `min_interactions` rows are left out.
Items are numbered 1 … num_items in the order of their original ids; 0 is the padding.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from farzi_hf.data.files import reason
from farzi_hf.data.readers import INTEGER, NAMES, SOURCES, read_own
from farzi_hf.data.samples import SampleCatalogue
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import SPLITS, in_memory

# Microseconds come before nanoseconds, which end in 2262; a whole column has a zone, or none has. Arrow alone would read 0x10 as an integer.
_TIMES = (*(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")), pa.float64())
_FORMS = "give integers, finite numbers, dates, or ISO 8601 text such as 2020-12-31T23:59:59"
PADDING_TITLE = "<pad>"
SAMPLE_INTERACTIONS = "sample_interactions"
"""The name that configs use for the embedded interactions, `load_sample_interactions`."""


@dataclass(frozen=True)
class Interactions:
    """Users' histories.

    Args:
        sequences: the items of each user, oldest first, as an integer array (n,).
        num_items: the number of items; they are 1 … num_items.
        item_titles: num_items + 1 names, the padding's first; None if the data set has no titles.
        item_ids: the num_items original ids; None if they are 1 … num_items.
        columns: what was read as users, items and times, in words.
    """

    sequences: list[np.ndarray]
    num_items: int
    item_titles: list[str] | None = None
    item_ids: list | None = None
    columns: str | None = None

    @property
    def description(self) -> str:
        """What was read, in one line."""
        rows = sum(map(len, self.sequences))
        columns = f" (columns {self.columns})" if self.columns else ""
        return f"{rows:,} interactions of {len(self.sequences):,} users with {self.num_items:,} items{columns}"

    @property
    def vocabulary(self) -> list[str]:
        """The V names that a summary has in place of a tokenizer: of padding and items, by title or else by original id."""
        ids = range(1, self.num_items + 1) if self.item_ids is None else self.item_ids
        return self.item_titles or [PADDING_TITLE, *map(str, ids)]

    def strong_generalization_split(self, seed: int) -> DatasetDict:
        """80 / 10 / 10 % of the users, drawn at random and disjoint. The column `input_ids` has a user's whole history per row.

        Raises:
            ValueError: fewer than 10 users.
        """
        users = len(self.sequences)
        if users < 10:
            raise ValueError(f"there are {users} users: a split of 80 / 10 / 10 % needs at least 10")
        order, held_out = stream(seed, Purpose.SPLIT).permutation(users), users // 10
        splits = DatasetDict()
        for name, part in zip(SPLITS, np.split(order, [users - 2 * held_out, users - held_out]), strict=True):
            chosen = [self.sequences[user] for user in part]
            ends = np.cumsum([len(sequence) for sequence in chosen])
            splits[name] = in_memory(input_ids=pa.LargeListArray.from_arrays(np.r_[0, ends], np.concatenate(chosen)))
        return splits


def load_sample_interactions(num_users: int = 1000, seed: int = 0) -> Interactions:
    """The embedded interactions: viewers of `data.samples.SampleCatalogue`. Equal seeds give equal ones."""
    catalogue = SampleCatalogue(seed)
    sequences = [catalogue.history() for _ in range(num_users)]
    return Interactions(sequences, catalogue.num_items, [PADDING_TITLE, *catalogue.titles])


def load_interactions(
    name: str | Path | Dataset | Any, data_dir: str | Path | None = None, min_interactions: int = 3, *, user_column: str | None = None,
    item_column: str | None = None, time_column: str | None = None, subset: str | None = None, split: str | None = None,
    revision: str | None = None,
) -> Interactions:  # fmt: skip
    """A data set of interactions as one sequence per user. An ambiguous value is refused; nothing is guessed.

    Ids stay as they are: the texts 007 and 7 are two users. In a text file, ids are numbers if the whole column holds plain integers, else
    all are text; a warning names two texts, such as 1 and 1.0, that would be the same number. Timestamps are integers, finite numbers,
    dates and datetimes, or text with numbers or ISO 8601 dates and times.

    Args:
        name: "ml-100k" (file `u.data`) or "magazine" (`Magazine_Subscriptions.csv`: Amazon's own, or numbers with the user first, or with
            a header). Or your own: a `datasets.Dataset`, a data frame, a file, a folder or a pattern (text with columns, with or without a
            compression, .jsonl, .parquet, .arrow), or the name of a data set that `datasets.load_dataset` finds.
        data_dir: folder with the files. Without it a named data set is downloaded once.
        min_interactions: users with fewer rows are left out. The default gives the paper's counts.
        user_column, item_column, time_column: the columns of your own data. By default the first that has a usual name, such as user_id,
            reviewerID and RecBole's user_id:token (`data.readers.KNOWN`). Without a column of times, the order of the rows is that of time. A
            file without a header has user, item, rating and time, as MovieLens and Amazon have.
        subset, split, revision: of a data set of the Hub; by default its split "train".

    Raises:
        ValueError: a file or a column is missing or there twice, a file is cut short, an id or timestamp cannot be used, or no user is left.
        DataUnavailableError: there is no `data_dir`, and the data cannot be downloaded.
    """
    if not isinstance(name, str) or name not in SOURCES:
        own = isinstance(name, (str, Path))
        given = {"user": user_column, "item": item_column, "timestamp": time_column}
        table = read_own(name, data_dir, given, name=subset, split=split, revision=revision)
        path = Path(data_dir or "", name) if own else None
        known = next((source for source in SOURCES.values() if own and source.file == path.name), None)
        return _sequences(table, name if own else "the data set", min_interactions, known and known.titles(path))
    path = SOURCES[name].find(name, data_dir)
    return _sequences(SOURCES[name].read(path), path, min_interactions, SOURCES[name].titles(path))


def _sequences(
    table: pa.Table, source: Any, min_interactions: int, titles: dict[Any, str] | None = None
) -> Interactions:
    """Sorts, filters and numbers the rows. 100 M rows need less than 4 GiB, because there is no Python object per row."""
    if len(table) == 0:
        raise ValueError(f"{source} holds no interactions: it is empty or cut short")
    users, items, times = (_filled(table[name], name, source) for name in NAMES)
    (users, _), (items, item_ids), times = _numbered(users), _numbered(items), _times(times, source)
    counts = np.bincount(users)
    kept = counts >= max(min_interactions, 1)
    if not kept.any():
        most = counts.max(initial=0)
        raise ValueError(f"min_interactions={min_interactions} leaves no user: the most active one has {most}")
    rows = np.lexsort((times, users))  # stable: equal timestamps keep the order of the rows
    items = items[rows]
    del rows
    items = items[np.repeat(kept, counts)]
    used = np.bincount(items, minlength=len(item_ids)) > 0
    number = np.cumsum(used, dtype=np.int32)
    flat = number[items]
    ids = [item_ids[i] for i in np.flatnonzero(used)]
    names = [PADDING_TITLE, *(titles.get(item, str(item)) for item in ids)] if titles else None
    columns = (table.schema.metadata or {}).get(b"columns", b"").decode() or None
    return Interactions(np.split(flat, np.cumsum(counts[kept])[:-1]), len(ids), names, ids, columns)


def _filled(column: pa.ChunkedArray, name: str, source: Any) -> pa.ChunkedArray:
    """The column without dictionaries (pandas' categories) and with text in one encoding, if it has no empty value."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    empty = pc.is_null(column)
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
        empty = pc.fill_null(pc.equal(column, ""), True)
    if count := pc.sum(empty).as_py():
        raise ValueError(
            f"{source}: column {name!r} has {count} empty values in {len(column)} rows, the first in row "
            f"{pc.index(empty, True).as_py()} (counted from 0): it is cut short or damaged"
        )
    if name != "timestamp" and not (_is_text(column) or pa.types.is_integer(column.type)):
        raise ValueError(f"{source}: column {name!r} is of type {column.type}: give ids as integers or text")
    return column


def _is_text(column: pa.ChunkedArray) -> bool:
    return pa.types.is_large_string(column.type)


def _numbered(ids: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Small integers in the order of the ids (n,), and the different ids. There are no wide integers of n rows and no sort of them."""
    encoded = ids.dictionary_encode().combine_chunks()
    different, rank = np.unique(encoded.dictionary.to_numpy(zero_copy_only=False), return_inverse=True)
    return rank.astype(np.min_scalar_type(len(rank)))[encoded.indices.to_numpy()], different.tolist()


def _times(column: pa.ChunkedArray, source: Any) -> np.ndarray:
    """Numbers or NumPy's datetimes (n,). Text is read as integers, as dates and times, or as other numbers, whichever reads all of it."""
    kinds, errors = [column.type], []
    if _is_text(column):
        integers = pc.all(pc.match_substring_regex(column, INTEGER)).as_py()
        kinds = [pa.int64()] if integers else _TIMES
    for kind in kinds:
        try:
            times = column.cast(kind).to_numpy()
            break
        except pa.ArrowInvalid as error:
            errors.append(error)
    else:
        raise ValueError(
            f"{source}: column 'timestamp' cannot be read as one kind of time ({reason(errors[0])}): {_FORMS}"
        )
    if times.dtype.kind not in "iufM" or not np.isfinite(times).all():
        raise ValueError(f"{source}: column 'timestamp' of type {column.type} has values without a time: {_FORMS}")
    return times
