"""Interactions cut into blocks of time: what each block adds to the training, and whose last items it is measured by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from farzi_hf.data import Interactions, load_interactions
from farzi_hf.report import InteractionData
from farzi_hf.report.task_data import SAMPLE_INTERACTIONS

OLD, NEW = "old", "new"
"""Users who were in an earlier block, and users who are seen for the first time."""
_BETWEEN_VIEWERS = 3


def timed_interactions(data: InteractionData) -> Interactions:
    """The interactions with their timestamps.

    The embedded interactions have none. Here a new viewer comes at every third step of time, and then watches an item per step.
    """
    settings = data.settings
    if settings.dataset != SAMPLE_INTERACTIONS:
        return load_interactions(settings.dataset, settings.data_dir, settings.min_interactions, times=True)
    known = data.interactions
    times = [_BETWEEN_VIEWERS * user + np.arange(len(row)) for user, row in enumerate(known.sequences)]
    return Interactions(known.sequences, known.num_items, known.item_titles, known.item_ids, times)


@dataclass(frozen=True)
class Blocks:
    """Blocks of time with equal numbers of interactions.

    At the end of each block, the last item of a user's history up to then is held out. It is in the training rows of no block up to
    this one. If the user comes back, it becomes known, the next block trains on it, and a later item is held out.

    Attributes:
        histories: all items of each user, oldest first.
        counts: (users, blocks), the length of a user's history at the end of a block.
    """

    histories: list[np.ndarray]
    counts: np.ndarray

    @classmethod
    def of(cls, interactions: Interactions, number: int) -> Blocks:
        """Cuts at equal numbers of interactions. Equal times are in the order of users and of their histories.

        Raises:
            ValueError: a block has no new user with two items.
        """
        histories = interactions.sequences
        order = np.argsort(np.concatenate(interactions.times), kind="stable")
        block = np.empty(len(order), dtype=int)
        for b, part in enumerate(np.array_split(order, number)):
            block[part] = b
        users = np.repeat(np.arange(len(histories)), [len(history) for history in histories])
        counts = np.zeros((len(histories), number), dtype=int)
        np.add.at(counts, (users, block), 1)
        blocks = cls(histories, counts.cumsum(1))
        for b in range(number):
            if not len(blocks.users(b, NEW)):
                raise ValueError(f"blocks={number} leaves block {b + 1} without a new user of two items: give fewer")
        return blocks

    def __len__(self) -> int:
        return self.counts.shape[1]

    def known(self, block: int) -> np.ndarray:
        """(users,): how many items of each user may be trained on at the end of a block: all but the last. 0 before the first block."""
        return np.maximum(self.counts[:, block] - 1, 0) if block >= 0 else np.zeros(len(self.histories), dtype=int)

    def training_rows(self, block: int) -> Dataset:
        """What became known in this block, of each user, after the last item known before. So each pair of neighbours is in one block."""
        before, after = self.known(block - 1), self.known(block)
        starts = np.maximum(before - 1, 0)
        chosen = np.flatnonzero((after > before) & (after - starts >= 2))
        return _rows([self.histories[user][starts[user] : after[user]] for user in chosen])

    def users(self, block: int, group: str) -> np.ndarray:
        """The users of `OLD` or `NEW` who have an item to read and one to predict at the end of this block."""
        earlier = self.counts[:, block - 1] > 0 if block else np.zeros(len(self.histories), dtype=bool)
        return np.flatnonzero((self.counts[:, block] >= 2) & (earlier if group == OLD else ~earlier))

    def tests(self, block: int, group: str) -> Dataset:
        """The histories of these users up to the end of this block; the last item is the one that is held out."""
        return _rows([self.histories[user][: self.counts[user, block]] for user in self.users(block, group)])


def groups(block: int) -> tuple[str, ...]:
    """The groups of users of a block. The first block has no old ones."""
    return (OLD, NEW) if block else (NEW,)


def _rows(rows: Sequence[np.ndarray]) -> Dataset:
    return Dataset.from_dict({"input_ids": [row.tolist() for row in rows]})
