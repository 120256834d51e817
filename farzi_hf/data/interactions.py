"""Interactions of users with items as sequences: `load_interactions`, the split by users, batches.

All readers follow these rules. A user's items are ordered by timestamp, and by row where timestamps
are equal. Every row counts, also one that occurs twice, because the paper counts so. Users with
fewer than `min_interactions` rows are left out. Items are numbered 1 … num_items in the order of
their original ids; 0 is the padding.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, DatasetDict

from farzi_hf.common.checks import check_size
from farzi_hf.common.text import count_of, terminal_text
from farzi_hf.data.columns import NAMES
from farzi_hf.data.item_lists import is_text
from farzi_hf.data.readers import SOURCES, read_own
from farzi_hf.data.samples import SampleCatalogue
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import SPLITS, in_memory
from farzi_hf.data.tables import columns_read
from farzi_hf.data.times import times_of

logger = logging.getLogger(__name__)

PADDING_TITLE = "<pad>"
SAMPLE_INTERACTIONS = "sample_interactions"
"""The name that configs use for the embedded interactions, `load_sample_interactions`."""


@dataclass(frozen=True)
class Interactions:
    """Users' histories."""

    sequences: list[np.ndarray]
    """The items of each user, oldest first, as an integer array (n,)."""
    num_items: int
    """The number of items; they are 1 … num_items."""
    item_titles: list[str] | None = None
    """num_items + 1 names, the padding's first; None if the data set has no titles."""
    item_ids: list | None = None
    """The num_items original ids; None if they are 1 … num_items."""
    columns: Sequence[str] = ()
    """The columns of users, items and times that were read. Empty texts: each row was a user, or
    the order of the rows is that of time.
    """
    user_ids: list | None = None
    """The original id of each user; None if the users have none."""
    own_ends: np.ndarray | None = None
    """If the files are train, validation and test, how many items of each user are of train, and of
    train or validation: (users, 2).
    """

    @property
    def description(self) -> str:
        """What was read, in one line."""
        rows = sum(map(len, self.sequences))
        said = (
            f"{rows:,} interactions of {len(self.sequences):,} users with {self.num_items:,} items"
        )
        if not any(self.columns):
            return said
        names = [repr(name) if name else None for name in self.columns]
        user, item, time = names
        user = user or "users: a row each"
        time = time or "times: the order of the rows"
        return f"{said} (columns {user}, {item}, {time})"

    @property
    def vocabulary(self) -> list[str]:
        """The V names that a summary has in place of a tokenizer: of padding and items, by title or
        else by original id.
        """
        if self.item_titles:
            return self.item_titles
        ids = range(1, self.num_items + 1) if self.item_ids is None else self.item_ids
        return [PADDING_TITLE, *map(str, ids)]

    def strong_generalization_split(self, seed: int) -> DatasetDict:
        """80 / 10 / 10 % of the users, drawn at random and disjoint. The column `input_ids` has a
        user's whole history per row.

        Raises:
            ValueError: fewer than 10 users.
        """
        users = len(self.sequences)
        if users < 10:
            raise ValueError(
                f"the data have {count_of(users, 'user')}, and a split of 80 / 10 / 10 % needs 10"
                " or more; choose --held_out last_items"
            )
        order = stream(seed, Purpose.SPLIT).permutation(users)
        held_out = users // 10
        parts = np.split(order, [users - 2 * held_out, users - held_out])
        return _splits([self.sequences[user] for user in part] for part in parts)

    def leave_one_out_split(self) -> DatasetDict:
        """A user's last item is the target of test, the one before of validation. Train has the
        others, and all where there are fewer than three.
        """
        lengths = np.array([len(sequence) for sequence in self.sequences])
        has_targets = lengths >= 3
        held_out = np.array([2, 1]) * has_targets[:, None]
        return self._split_at(lengths[:, None] - held_out)

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
        """Each user's items before the two ends (users, 2), and all of them, as far as an end adds
        some.
        """
        train: list[np.ndarray] = []
        validation: list[np.ndarray] = []
        test: list[np.ndarray] = []
        for sequence, (first, second) in zip(self.sequences, ends, strict=True):
            if first:
                train.append(sequence[:first])
            if first < second:
                validation.append(sequence[:second])
            if second < len(sequence):
                test.append(sequence)
        return _splits((train, validation, test))


def _splits(parts: Iterable[list[np.ndarray]]) -> DatasetDict:
    """The sequences of train, validation and test as rows."""
    splits = DatasetDict()
    for name, sequences in zip(SPLITS, parts, strict=True):
        if name != "train":
            sequences = _with_a_target(sequences, name)
        if not sequences:
            raise ValueError(
                f"the {name} split has no user: give longer histories, a file {name}.csv, or"
                " --held_out users"
            )
        ends = np.cumsum([len(sequence) for sequence in sequences])
        items = np.concatenate(sequences)
        rows = pa.LargeListArray.from_arrays(np.r_[0, ends], items)
        splits[name] = in_memory(input_ids=rows)
    return splits


def _with_a_target(sequences: list[np.ndarray], split: str) -> list[np.ndarray]:
    """The sequences of two items or more."""
    longer = [sequence for sequence in sequences if len(sequence) > 1]
    if len(longer) < len(sequences):
        logger.warning(
            "%s users are left out of %s, because they have a single item, which predicts none",
            f"{len(sequences) - len(longer):,}",
            split,
        )
    return longer


def load_sample_interactions(num_users: int = 1000, seed: int = 0) -> Interactions:
    """The embedded interactions: viewers of `data.samples.SampleCatalogue`. Equal seeds give equal
    ones. Raises ValueError unless there is a user.
    """
    check_size("num_users", num_users)
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
    """A data set of interactions as one sequence per user.

    An ambiguous value is refused; nothing is guessed. Ids stay as they are: the texts 007 and 7 are
    two users. In a text file, ids are numbers if the whole column holds plain integers, else all
    are text; a warning names two texts, such as 1 and 1.0, that would be the same number.
    Timestamps are integers, finite numbers, dates and datetimes, or text with numbers, ISO 8601
    dates and times, or dates of one form such as 12/31/2020 11:59 PM (`data.times.WRITTEN`), if
    they show which number is the month. A row may also list the items of a user. Users and items
    that are left out are logged in one line.

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
            (`data.columns.KNOWN`). Without a column of times, the order of the rows is that of
            time. A file without a header has one of the forms in `data.forms.FORMS`, such as user,
            item, rating and time, as MovieLens and Amazon have.
        subset, split, revision: of a data set of the Hub; by default its split "train".
        min_item_interactions: items with fewer rows are left out, then users, then items, until
            both have enough.

    Raises:
        ValueError: a file or a column is missing or there twice, a file is cut short, an id or
            timestamp cannot be used, or no user is left.
        DataUnavailableError: there is no `data_dir`, and the data cannot be downloaded.
    """
    check_size("min_interactions", min_interactions, 0)
    check_size("min_item_interactions", min_item_interactions, 0)
    if isinstance(name, str) and name in SOURCES:
        source = SOURCES[name].find(name, data_dir)
        table = SOURCES[name].read(source)
        titles = SOURCES[name].titles(source)
    else:
        source = name if isinstance(name, (str, Path)) else "the data set"
        given = {"user": user_column, "item": item_column, "timestamp": time_column}
        table = read_own(name, data_dir, given, name=subset, split=split, revision=revision)
        titles = _titles_beside(name, data_dir)
    rows = _rows(table, source).that_count(_Least(min_interactions, min_item_interactions), source)
    interactions = replace(rows.histories(), columns=columns_read(table))
    if not titles:
        return interactions
    names = [titles.get(item, str(item)) for item in interactions.item_ids]
    return replace(interactions, item_titles=[PADDING_TITLE, *names])


def _titles_beside(name: Any, data_dir: str | Path | None) -> Mapping[Any, str] | None:
    """The titles of a file that is called as that of a known data set."""
    if not isinstance(name, (str, Path)):
        return None
    path = Path(data_dir or "", name).expanduser()
    for source in SOURCES.values():
        if source.file == path.name:
            return source.titles(path)
    return None


# -- from a table to histories ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Least:
    """The rows that users and items have at least."""

    users: int
    items: int

    def __str__(self) -> str:
        return f"min_interactions={self.users}" + self.of_items(" and")

    def of_items(self, word: str) -> str:
        """What is asked of items, if it is anything."""
        return f"{word} min_item_interactions={self.items}" if self.items > 1 else ""


@dataclass(frozen=True)
class _NumberedRows:
    """The rows of a table as numbers (n,). 100 M rows need less than 4 GiB, because there is no
    Python object per row.
    """

    users: np.ndarray
    """The place of each row's user among all ids in their order."""
    items: np.ndarray
    """The same of the items."""
    times: np.ndarray
    """Numbers, or NumPy's datetimes."""
    parts: np.ndarray
    """The place of each row's split in `SPLITS`; 0 if there is one."""
    item_ids: list[Any]
    """The different items in their order."""
    user_ids: list[Any]
    """The different users in their order."""

    def where(self, kept: np.ndarray) -> "_NumberedRows":
        """The rows that a mask keeps."""
        return replace(
            self,
            users=self.users[kept],
            items=self.items[kept],
            times=self.times[kept],
            parts=self.parts[kept],
        )

    def that_count(self, least: _Least, source: Any) -> "_NumberedRows":
        """Without users and items that have few rows, until all have enough. Logs how many are left
        out.
        """
        rows = self
        while True:
            has_enough = np.bincount(rows.users) >= least.users
            is_frequent = np.bincount(rows.items) >= least.items
            kept = has_enough[rows.users] & is_frequent[rows.items]
            if kept.all():
                break
            rows = rows.where(kept)
        if len(rows.users) == 0:
            most = np.bincount(self.users).max()
            filters = f"min_interactions={least.users}{least.of_items(' with')}"
            raise ValueError(
                f"{filters} leaves no user: the most active one has {most}; give less"
                " (--min_interactions and --min_item_interactions on the command line)"
            )
        if len(rows.users) < len(self.users):
            _say_left_out(self, rows, least, source)
        return rows

    def histories(self) -> Interactions:
        """The items of each user by time. Items that occur are numbered from 1 on."""
        # Stable: equal timestamps keep the order of the rows. The first key counts least.
        keys = (
            (self.times, self.parts, self.users) if self.parts.any() else (self.times, self.users)
        )
        items = self.items[np.lexsort(keys)]
        occurs = np.bincount(self.items, minlength=len(self.item_ids)) > 0
        number = np.cumsum(occurs, dtype=np.int32)
        counts = np.bincount(self.users)
        is_user = counts > 0
        starts = np.cumsum(counts[is_user])[:-1]
        ends = None
        if self.parts.any():
            ends_of = [np.bincount(self.users, weights=self.parts <= part) for part in range(2)]
            ends = np.transpose([counts_of[is_user].astype(int) for counts_of in ends_of])
        return Interactions(
            sequences=np.split(number[items], starts),
            num_items=int(np.count_nonzero(occurs)),
            item_ids=[self.item_ids[place] for place in np.flatnonzero(occurs)],
            user_ids=[self.user_ids[place] for place in np.flatnonzero(is_user)],
            own_ends=ends,
        )


def _rows(table: pa.Table, source: Any) -> _NumberedRows:
    """The rows of a table with the columns user, item and timestamp, and with part if there are
    several splits. Raises ValueError if a value cannot be used.
    """
    if len(table) == 0:
        raise ValueError(f"{source} holds no interactions: it is empty or cut short")
    read = [name or role for name, role in zip(columns_read(table), NAMES, strict=True)]
    user_name, item_name, time_name = read  # as errors call them
    users = _ids(_filled(table["user"], user_name, source), user_name, source)
    items = _ids(_filled(table["item"], item_name, source), item_name, source)
    times = _filled(table["timestamp"], time_name, source)
    user_numbers, user_ids = _numbered(users)
    item_numbers, item_ids = _numbered(items)
    parts = np.zeros(len(table), np.int8)
    if "part" in table.column_names:
        parts = table["part"].to_numpy()
    return _NumberedRows(
        users=user_numbers,
        items=item_numbers,
        times=times_of(times, time_name, source),
        parts=parts,
        item_ids=item_ids,
        user_ids=user_ids,
    )


def _say_left_out(read: _NumberedRows, kept: _NumberedRows, least: _Least, source: Any) -> None:
    """Logs how many users, items and rows are left out, and why."""
    said = []
    for what, before, after in (
        ("users", read.users, kept.users),
        ("items", read.items, kept.items),
    ):
        number = _number_of_different(before)
        left_out = number - _number_of_different(after)
        if left_out:
            said.append(f"{left_out:,} of {number:,} {what}")
    logger.warning(
        "%s: %s are left out, with %s of %s rows, because of %s",
        terminal_text(source),
        " and ".join(said),
        f"{len(read.users) - len(kept.users):,}",
        f"{len(read.users):,}",
        least,
    )


def _number_of_different(numbers: np.ndarray) -> int:
    return int(np.count_nonzero(np.bincount(numbers)))


# -- columns of a table ----------------------------------------------------------------------------


def _filled(column: pa.ChunkedArray, name: str, source: Any) -> pa.ChunkedArray:
    """The column without dictionaries (pandas' categories) and with text in one encoding, if it has
    no empty value.
    """
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    is_empty = pc.is_null(column)
    if is_text(column.type) or pa.types.is_string_view(column.type):
        column = column.cast(pa.large_string())
        is_empty = pc.fill_null(pc.equal(column, ""), True)
    number = pc.sum(is_empty).as_py()
    if number:
        first = f"the first in row {pc.index(is_empty, True)} (counted from 0)"
        raise ValueError(
            f"{source}: column {name!r} has {number} empty values in {len(column)} rows, {first}:"
            " leave such rows out, or fill them"
        )
    return column


def _ids(column: pa.ChunkedArray, name: str, source: Any) -> pa.ChunkedArray:
    """The column, if it holds integers or text."""
    if pa.types.is_large_string(column.type) or pa.types.is_integer(column.type):
        return column
    raise ValueError(
        f"{source}: column {name!r} is of type {column.type!s:.80}: give ids as integers or"
        " text, one a row"
    )


def _numbered(ids: pa.ChunkedArray) -> tuple[np.ndarray, list[Any]]:
    """The place of each id in the order of all (n,), and the different ids in this order.

    There are no wide integers of n rows and no sort of them.
    """
    encoded = ids.dictionary_encode().combine_chunks()
    dictionary = encoded.dictionary.to_numpy(zero_copy_only=False)
    different, places = np.unique(dictionary, return_inverse=True)
    narrow = places.astype(np.min_scalar_type(len(places)))
    return narrow[encoded.indices.to_numpy()], different.tolist()
