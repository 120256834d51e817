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
from datasets import Dataset, DatasetDict

from farzi_hf.data.columns import Columns
from farzi_hf.data.readers import SOURCES, read_own
from farzi_hf.data.samples import SampleCatalogue
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import SPLITS, SequenceCollator, in_memory

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
    """

    sequences: list[np.ndarray]
    num_items: int
    item_titles: list[str] | None = None
    item_ids: list | None = None

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


@dataclass(frozen=True)
class InteractionCollator(SequenceCollator):
    """Makes a batch of rows of items, padded on the right: `input_ids`, `attention_mask`, `labels` (−100 at padding), (b, L) each,
    and, if the rows have it, `seen` (b, S), padded with 0.
    """

    padding_id: int | None = 0


def load_sample_interactions(num_users: int = 1000, seed: int = 0) -> Interactions:
    """The embedded interactions: viewers of `data.samples.SampleCatalogue`.

    Args:
        num_users: the number of viewers.
        seed: equal seeds give equal interactions.
    """
    catalogue = SampleCatalogue(seed)
    sequences = [catalogue.history() for _ in range(num_users)]
    return Interactions(sequences, catalogue.num_items, [PADDING_TITLE, *catalogue.titles])


def load_interactions(
    name: str | Path | Dataset | Any, data_dir: str | Path | None = None, min_interactions: int = 3
) -> Interactions:
    """A data set of interactions as one sequence per user. An ambiguous value is refused; nothing is guessed.

    Ids stay as they are: the texts 007 and 7 are two users. In a text file (.csv, .tsv), ids are numbers if the whole column holds plain
    integers, else all are text; a warning names two texts, such as 1 and 1.0, that would be the same number. Timestamps are integers,
    finite numbers, dates and datetimes, or text with integers, decimals or ISO 8601 dates and times.

    Args:
        name: "ml-100k" (file `u.data`), "ml-1m" (`ratings.dat`), "magazine" (`Magazine_Subscriptions.csv`: Amazon's own, or
            numbers with the user first, or with a header). Or your own with columns user, item and timestamp: a `datasets.Dataset`,
            a data frame, a file (.csv, .tsv, .parquet, .json, .jsonl), or the name of a data set that `datasets.load_dataset`
            finds (its split "train").
        data_dir: folder with the files. Without it a named data set is downloaded once.
        min_interactions: users with fewer rows are left out. The default gives the paper's counts.

    Raises:
        ValueError: files or columns are missing, a file exists twice, is cut short or has other columns, an id or timestamp cannot be
            used, or no user is left.
        TypeError: `name` is neither text nor a table.
        DataUnavailableError: there is no `data_dir`, and the data cannot be downloaded.
    """
    if not isinstance(name, str) or name not in SOURCES:
        return _sequences(read_own(name, data_dir), min_interactions)
    source = SOURCES[name]
    path = source.find(name, data_dir)
    return _sequences(source.read(path), min_interactions, source.titles(path))


def _sequences(columns: Columns, min_interactions: int, titles: dict[Any, str] | None = None) -> Interactions:
    """Sorts, filters and numbers the rows. 100 M rows need less than 4 GiB, because there is no Python object per row."""
    counts = np.bincount(columns.users)
    kept = counts >= max(min_interactions, 1)
    if not kept.any():
        most = counts.max(initial=0)
        raise ValueError(f"min_interactions={min_interactions} leaves no user: the most active one has {most}")
    rows = np.lexsort((columns.times, columns.users))  # stable: equal timestamps keep the order of the rows
    items = columns.items[rows]
    del rows
    items = items[np.repeat(kept, counts)]
    used = np.bincount(items, minlength=len(columns.item_ids)) > 0
    number = np.cumsum(used, dtype=np.int32)
    flat = number[items]
    ids = [columns.item_ids[i] for i in np.flatnonzero(used)]
    names = [PADDING_TITLE, *(titles.get(item, str(item)) for item in ids)] if titles else None
    return Interactions(np.split(flat, np.cumsum(counts[kept])[:-1]), len(ids), names, ids)
