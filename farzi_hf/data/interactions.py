"""Interactions of users with items as sequences: `load_interactions`, the split by users, batches.

All readers follow these rules. A user's items are ordered by timestamp, and by row where timestamps
are equal. Every row counts, also one that occurs twice, because the paper counts so. Users with
fewer than `min_interactions` rows are left out. Items are numbered 1 … num_items in the order of
their original ids; 0 is the padding.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from farzi_hf.common.text import reason, terminal_text
from farzi_hf.data.columns import NAMES
from farzi_hf.data.readers import INTEGER, SOURCES, read_own
from farzi_hf.data.samples import SampleCatalogue
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import SPLITS, in_memory

logger = logging.getLogger(__name__)

# Microseconds come before nanoseconds, which end in 2262; a whole column has a zone, or none has.
# Arrow alone would read 0x10 as an integer.
_TIMES = (
    *(pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")),
    pa.float64(),
)
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
        columns: the columns of users, items and times that were read; an empty text stands for the
            order of the rows.
        own_ends: if the files are train, validation and test, how many items of each user are of
            train, and of train or validation: (users, 2).
    """

    sequences: list[np.ndarray]
    num_items: int
    item_titles: list[str] | None = None
    item_ids: list | None = None
    columns: Sequence[str] = ()
    own_ends: np.ndarray | None = None

    @property
    def description(self) -> str:
        """What was read, in one line."""
        rows = sum(map(len, self.sequences))
        absent = ("users: a row each", "", "times: the order of the rows")
        names = ", ".join(
            repr(name) if name else default
            for name, default in zip(self.columns, absent, strict=False)
        )
        columns = f" (columns {names})" if any(self.columns) else ""
        return (
            f"{rows:,} interactions of {len(self.sequences):,} users with {self.num_items:,}"
            f" items{columns}"
        )

    @property
    def vocabulary(self) -> list[str]:
        """The V names that a summary has in place of a tokenizer: of padding and items, by title or
        else by original id.
        """
        ids = range(1, self.num_items + 1) if self.item_ids is None else self.item_ids
        return self.item_titles or [PADDING_TITLE, *map(str, ids)]

    def strong_generalization_split(self, seed: int) -> DatasetDict:
        """80 / 10 / 10 % of the users, drawn at random and disjoint. The column `input_ids` has a
        user's whole history per row.

        Raises:
            ValueError: fewer than 10 users.
        """
        users = len(self.sequences)
        if users < 10:
            raise ValueError(
                f"there are {users} users: 80 / 10 / 10 % of them needs 10 or more; choose"
                " --held_out last_items"
            )
        order, held_out = stream(seed, Purpose.SPLIT).permutation(users), users // 10
        parts = np.split(order, [users - 2 * held_out, users - held_out])
        return _splits([self.sequences[user] for user in part] for part in parts)

    def leave_one_out_split(self) -> DatasetDict:
        """A user's last item is the target of test, the one before of validation. Train has the
        others, and all where there are fewer than three.
        """
        lengths = np.array([len(sequence) for sequence in self.sequences])
        return self._split_at(lengths[:, None] - np.array([2, 1]) * (lengths >= 3)[:, None])

    def own_split(self) -> DatasetDict:
        """The splits of the files. A user's target is the last item in a file; the items of the
        same user in earlier files come before it. Raises ValueError if the data are not of files
        called train, validation and test.
        """
        if self.own_ends is None:
            raise ValueError(
                "the interactions have no splits of their own: give files such as train.csv and"
                " test.csv"
            )
        return self._split_at(self.own_ends)

    def _split_at(self, ends: np.ndarray) -> DatasetDict:
        """Each user's items before the two ends, and all of them, as far as an end adds some."""
        cut = [(sequence, *its) for sequence, its in zip(self.sequences, ends, strict=True)]
        train = [sequence[:first] for sequence, first, _ in cut if first]
        validation = [sequence[:second] for sequence, first, second in cut if first < second]
        return _splits(
            (train, validation, [sequence for sequence, _, second in cut if second < len(sequence)])
        )


def _splits(parts: Iterable[list[np.ndarray]]) -> DatasetDict:
    splits = DatasetDict()
    for name, chosen in zip(SPLITS, parts, strict=True):
        single = 0 if name == "train" else sum(len(x) < 2 for x in chosen)
        if single:
            logger.warning(
                "%s users are left out of %s, because they have a single item, which predicts none",
                f"{single:,}",
                name,
            )
        chosen = [x for x in chosen if name == "train" or len(x) > 1]
        if not chosen:
            raise ValueError(
                f"the {name} split has no user: give longer histories, a file {name}.csv, or"
                " --held_out users"
            )
        ends = np.cumsum([len(sequence) for sequence in chosen])
        splits[name] = in_memory(
            input_ids=pa.LargeListArray.from_arrays(np.r_[0, ends], np.concatenate(chosen))
        )
    return splits


def load_sample_interactions(num_users: int = 1000, seed: int = 0) -> Interactions:
    """The embedded interactions: viewers of `data.samples.SampleCatalogue`. Equal seeds give equal
    ones.
    """
    catalogue = SampleCatalogue(seed)
    return Interactions(
        [catalogue.history() for _ in range(num_users)],
        catalogue.num_items,
        [PADDING_TITLE, *catalogue.titles],
    )


def load_interactions(
    name: str | Path | Dataset | Any,
    data_dir: str | Path | None = None,
    min_interactions: int = 3,
    *,
    user_column: str | None = None,
    item_column: str | None = None,
    time_column: str | None = None,
    subset: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    min_item_interactions: int = 1,
) -> Interactions:
    """A data set of interactions as one sequence per user. An ambiguous value is refused; nothing
    is guessed.

    Ids stay as they are: the texts 007 and 7 are two users. In a text file, ids are numbers if the
    whole column holds plain integers, else all are text; a warning names two texts, such as 1 and
    1.0, that would be the same number. Timestamps are integers, finite numbers, dates and
    datetimes, or text with numbers or ISO 8601 dates and times.

    Args:
        name: "ml-100k" (file `u.data`) or "magazine" (`Magazine_Subscriptions.csv`: Amazon's own,
            or numbers with the user first, or with a header). Or your own: a `datasets.Dataset` or
            `DatasetDict`, a data frame, a file, a folder or a pattern (text with columns, .jsonl,
            .parquet, .arrow; also compressed), or the name of a data set that
            `datasets.load_dataset` finds.
        data_dir: folder with the files. Without it a named data set is downloaded once.
        min_interactions: users with fewer rows are left out. The default gives the paper's counts.
        user_column, item_column, time_column: the columns of your own data. By default the first
            that has a usual name, such as user_id, reviewerID and RecBole's user_id:token
            (`data.readers.KNOWN`). Without a column of times, the order of the rows is that of
            time. A file without a header has user, item, rating and time, as MovieLens and Amazon
            have.
        subset, split, revision: of a data set of the Hub; by default its split "train".
        min_item_interactions: items with fewer rows are left out, then users, then items, until
            both have enough.

    Raises:
        ValueError: a file or a column is missing or there twice, a file is cut short, an id or
            timestamp cannot be used, or no user is left.
        DataUnavailableError: there is no `data_dir`, and the data cannot be downloaded.
    """
    if not isinstance(name, str) or name not in SOURCES:
        own = isinstance(name, (str, Path))
        given = {"user": user_column, "item": item_column, "timestamp": time_column}
        table = read_own(name, data_dir, given, name=subset, split=split, revision=revision)
        path = Path(data_dir or "", name).expanduser() if own else None
        known = next(
            (source for source in SOURCES.values() if own and source.file == path.name), None
        )
        source, titles = name if own else "the data set", known and known.titles(path)
    else:
        source = SOURCES[name].find(name, data_dir)
        table, titles = SOURCES[name].read(source), SOURCES[name].titles(source)
    return _sequences(table, source, (min_interactions, min_item_interactions), titles)


def _sequences(
    table: pa.Table, source: Any, least: tuple[int, int], titles: dict[Any, str] | None = None
) -> Interactions:
    """Sorts, filters and numbers the rows. 100 M rows need less than 4 GiB, because there is no
    Python object per row.
    """
    if len(table) == 0:
        raise ValueError(f"{source} holds no interactions: it is empty or cut short")
    columns = (table.schema.metadata or {}).get(b"columns", b"\n\n").decode().split("\n")
    shown = [name or known for name, known in zip(columns, NAMES, strict=True)]  # in errors
    users, items, times = map(_filled, (table[name] for name in NAMES), shown, NAMES, [source] * 3)
    parts = (
        table["part"].to_numpy() if "part" in table.column_names else np.zeros(len(table), np.int8)
    )
    (users, _), (items, item_ids), times = (
        _numbered(users),
        _numbered(items),
        _times(times, shown[2], source),
    )
    most = np.bincount(users).max()
    before = len(users), len(np.bincount(users)), len(item_ids)
    while not (
        kept := (np.bincount(users) >= least[0])[users] & (np.bincount(items) >= least[1])[items]
    ).all():
        users, items, times, parts = users[kept], items[kept], times[kept], parts[kept]
    if not len(users):
        filters = f"min_interactions={least[0]}" + f" with min_item_interactions={least[1]}" * (
            least[1] > 1
        )
        raise ValueError(f"{filters} leaves no user: the most active one has {most}")
    _say_left_out(source, least, before, (users, items))
    # Stable: equal timestamps keep the order of the rows.
    flat = items[np.lexsort((times, parts, users) if parts.any() else (times, users))]
    used = np.bincount(items, minlength=len(item_ids)) > 0
    flat = np.cumsum(used, dtype=np.int32)[flat]
    ids = [item_ids[i] for i in np.flatnonzero(used)]
    names = [PADDING_TITLE, *(titles.get(item, str(item)) for item in ids)] if titles else None
    counts = np.bincount(users)
    ends = [
        np.bincount(users, weights=parts <= part)[counts > 0].astype(int)
        for part in range(2)
        if parts.any()
    ]
    histories = np.split(flat, np.cumsum(counts[counts > 0])[:-1])
    return Interactions(
        histories, len(ids), names, ids, columns, np.transpose(ends) if ends else None
    )


def _say_left_out(
    source: Any,
    least: tuple[int, int],
    before: tuple[int, int, int],
    kept: tuple[np.ndarray, np.ndarray],
) -> None:
    """Logs how many rows, users and items are left out, and why.

    Args:
        before: the numbers of rows, users and items that were read.
        kept: the users and the items of the rows that stay.
    """
    after = len(kept[0]), *(np.count_nonzero(np.bincount(numbers)) for numbers in kept)
    rows, users, items = (was - now for was, now in zip(before, after, strict=True))
    if not rows:
        return
    said = [
        f"{left_out:,} of {read:,} {what}"
        for left_out, read, what in ((users, before[1], "users"), (items, before[2], "items"))
        if left_out
    ]
    of_items = f" and min_item_interactions={least[1]}" if least[1] > 1 else ""
    logger.warning(
        "%s: %s are left out, with %s of %s rows, because of min_interactions=%d%s",
        terminal_text(source),
        " and ".join(said),
        f"{rows:,}",
        f"{before[0]:,}",
        least[0],
        of_items,
    )


def _filled(column: pa.ChunkedArray, name: str, role: str, source: Any) -> pa.ChunkedArray:
    """The column without dictionaries (pandas' categories) and with text in one encoding, if it has
    no empty value.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    empty = pc.is_null(column)
    if (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_string_view(column.type)
    ):
        column = column.cast(pa.large_string())
        empty = pc.fill_null(pc.equal(column, ""), True)
    if count := pc.sum(empty).as_py():
        first = f"the first in row {pc.index(empty, True)} (counted from 0)"
        raise ValueError(
            f"{source}: column {name!r} has {count} empty values in {len(column)} rows, {first}"
        )
    if role != "timestamp" and not (
        pa.types.is_large_string(column.type) or pa.types.is_integer(column.type)
    ):
        raise ValueError(
            f"{source}: column {name!r} is of type {column.type}: give ids as integers or text"
        )
    return column


def _numbered(ids: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """Small integers in the order of the ids (n,), and the different ids. There are no wide
    integers of n rows and no sort of them.
    """
    encoded = ids.dictionary_encode().combine_chunks()
    different, rank = np.unique(
        encoded.dictionary.to_numpy(zero_copy_only=False), return_inverse=True
    )
    return (
        rank.astype(np.min_scalar_type(len(rank)))[encoded.indices.to_numpy()],
        different.tolist(),
    )


def _times(column: pa.ChunkedArray, name: str, source: Any) -> np.ndarray:
    """Numbers or NumPy's datetimes (n,). Text is read as integers, as dates and times, or as other
    numbers, whichever reads all of it.
    """
    kinds, errors = [column.type], []
    if pa.types.is_large_string(column.type):
        kinds = (
            [pa.int64()] if pc.all(pc.match_substring_regex(column, INTEGER)).as_py() else _TIMES
        )
    for kind in kinds:
        try:
            times = column.cast(kind).to_numpy()
            break
        except pa.ArrowInvalid as error:
            errors.append(error)
    else:
        raise ValueError(
            f"{source}: column {name!r} is no one kind of time ({reason(errors[0])}): {_FORMS}"
        )
    if times.dtype.kind not in "iufM" or not np.isfinite(times).all():
        raise ValueError(
            f"{source}: column {name!r} of type {column.type} has values without a time: {_FORMS}"
        )
    return times
