"""Rules of sequences, the strongest recommender that only counts: the next item by the items that
the last ones were counted with.

Each of a user's last items votes for all items: by what followed it in the training histories
(`Following`), or by what the same users had (`Together`, the item-based neighbours of Sarwar et al.
2001). A vote decays with the place of the item in the history, and is divided by the popularity of
both items to a power:

    score(j) = Σ_p decay^p · votes(i_p, j) / (popularity(i_p) · popularity(j))^power,

i_0 is the last item, i_1 the one before, …. With `Together` and a power of ½ this is the cosine
between two items' users. The kind of votes, the decay and the power are chosen on the validation
part. Items without a vote rank by popularity, below all others.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from scipy import sparse

from farzi_hf.common.checks import check_size
from farzi_hf.data.sequences import check_ids, flatten_sequences, random_sequences
from farzi_hf.tasks.counted import CountedModel
from farzi_hf.tasks.ranks import rank_statistics

DECAYS = (0.4, 0.6, 0.8, 0.9, 1.0)
POWERS = (0.0, 0.15, 0.3, 0.5)
"""The settings that are tried: powers with a decay of .8 first, then decays with the best power."""
_FIRST_DECAY = 0.8
_TRIED = 2 * 10**7
"""Scores by which settings are chosen: of as many users of the validation part as have so many."""
_USERS = 1000
"""The most such users."""
_FEWEST_USERS = 200
"""The fewest, if there are as many."""
_VOTES = 50_000_000
"""The most votes that are kept: of each item its largest ones."""
_FEWEST = 500
"""The votes of an item that are kept in any case."""
_PAIRS = 4_000_000  # that are counted at once
_SCORES = 2**20  # that exist at the same time: few, so that they stay in the processor's cache


class Votes(ABC):
    """A kind of votes between items.

    Attributes:
        name: in the config of a saved model.
        words: what it is, for readers.
        last: how many of a user's last items vote.
    """

    name: ClassVar[str]
    words: ClassVar[str]
    last: ClassVar[int]

    @abstractmethod
    def blocks(
        self, ids: np.ndarray, lengths: np.ndarray, vocab_size: int
    ) -> Iterator[sparse.csr_array]:
        """The votes (items, V) of some items after the other, in the order of their ids: whole
        numbers in float32.

        Args:
            ids: (P,) the items of all histories.
            lengths: (rows,) of each history.
        """

    def count(self, ids: np.ndarray, lengths: np.ndarray, vocab_size: int) -> sparse.csr_array:
        """(V, V): the votes of each item (row) for each item (column)."""
        popularity = np.bincount(ids, minlength=vocab_size)
        most = max(_FEWEST, _VOTES // vocab_size)
        blocks = [
            _largest(block, popularity, most) for block in self.blocks(ids, lengths, vocab_size)
        ]
        return sparse.csr_array(sparse.vstack(blocks, format="csr"))


@dataclass(frozen=True)
class Following(Votes):
    """A vote for each item at most ten places later in a history, by 1 / distance. In units of
    1 / 2,520, votes are whole numbers.
    """

    name = "following"
    words = "what followed within ten places, by 1 / distance"
    last = 10
    window: int = 10
    unit: int = 2520

    def blocks(
        self, ids: np.ndarray, lengths: np.ndarray, vocab_size: int
    ) -> Iterator[sparse.csr_array]:
        order = np.argsort(ids, kind="stable")  # the places of each item
        ends = np.repeat(np.cumsum(lengths), lengths)  # of the history of each place
        counts = np.bincount(ids, minlength=vocab_size)
        for items in _portions(counts, _PAIRS // self.window):
            first = counts[: items.start].sum()
            places = order[first : first + counts[items].sum()]
            rows = []
            columns = []
            votes = []
            for distance in range(1, self.window + 1):
                later = places + distance
                inside = later < ends[places]
                rows.append(ids[places[inside]] - items.start)
                columns.append(ids[later[inside]])
                votes.append(np.full(inside.sum(), self.unit // distance, dtype=np.float64))
            pairs = (np.concatenate(rows), np.concatenate(columns))
            shape = (items.stop - items.start, vocab_size)
            yield sparse.coo_array((np.concatenate(votes), pairs), shape=shape).tocsr()


@dataclass(frozen=True)
class Together(Votes):
    """A vote for each user who had both items, among the latest items of each user where histories
    are so long that all pairs would take minutes.
    """

    name = "together"
    words = "what the same users had"
    last = 50
    most: int = 300_000_000
    """Pairs that are counted at most."""

    def blocks(
        self, ids: np.ndarray, lengths: np.ndarray, vocab_size: int
    ) -> Iterator[sparse.csr_array]:
        latest = int(lengths.max(initial=1))
        while latest > 10 and (np.minimum(lengths, latest).astype(float) ** 2).sum() > self.most:
            latest = latest * 3 // 4
        users = np.repeat(np.arange(len(lengths)), lengths)
        from_end = np.repeat(np.cumsum(lengths), lengths) - np.arange(len(ids))
        recent = from_end <= latest
        pairs = (users[recent], ids[recent])
        shape = (len(lengths), vocab_size)
        had = sparse.coo_array((np.ones(recent.sum(), np.float32), pairs), shape=shape).tocsr()
        had.data[:] = 1.0  # whoever had an item twice is one user
        of_items = sparse.csr_array(had.T)
        others = np.diff(had.indptr)  # of each user; of each item, the pairs that it is in:
        work = np.bincount(had.indices, weights=np.repeat(others, others), minlength=vocab_size)
        for items in _portions(work, 4 * _PAIRS):
            block = of_items[items] @ had
            shared_users = sparse.coo_array(block)
            # No item votes for itself.
            is_other = shared_users.row + items.start != shared_users.col
            pairs = (shared_users.row[is_other], shared_users.col[is_other])
            votes = (shared_users.data[is_other], pairs)
            yield sparse.coo_array(votes, shape=block.shape).tocsr()


VOTES: dict[str, Votes] = {votes.name: votes for votes in (Following(), Together())}
"""By their names."""


class SequenceRules(CountedModel):
    """A recommender that counts and is not trained: votes of a user's last items.

    ```python
    rules = SequenceRules.fit(splits["train"], len(names), splits["validation"])
    rules.recommend([[17, 5, 3]], top_k=10)      # ids that this user has not had
    rules.scores([[17, 5, 3]])                   # (1, V)
    ```

    Args:
        kind_of_votes: `Following()` or `Together()`.
        votes: (V, V), of each item (row) for each item (column).
        popularity: (V,) how often each item was counted.
        decay: by which a vote loses with each place from the end of a history.
        power: of the popularity by which votes are divided.
    """

    kind = "sequence_rules"

    def __init__(
        self,
        kind_of_votes: Votes,
        votes: sparse.csr_array,
        popularity: np.ndarray,
        decay: float,
        power: float,
    ) -> None:
        self.kind_of_votes = kind_of_votes
        self.votes = votes
        self.popularity = popularity
        self.vocab_size = len(popularity)
        self.decay = decay
        self.power = power

    @property
    def name(self) -> str:
        return "rules of sequences, counted"

    @property
    def choice(self) -> str:
        return f"{self.kind_of_votes.words}; decay {self.decay}, power {self.power}"

    # -- counting ----------------------------------------------------------------------------------

    @classmethod
    def candidates(
        cls,
        sequences: Dataset,
        vocab_size: int,
        validation: Dataset,
        *,
        kinds: Sequence[str] = tuple(VOTES),
    ) -> Iterator[SequenceRules]:
        """A model of each kind of votes, with the best settings for it; the `error` is the mean
        logarithm of the targets' ranks, over a thousand users at most.

        Args:
            kinds: names of `VOTES`.
        """
        unknown = set(kinds) - set(VOTES)
        if unknown:
            raise ValueError(f"kinds={list(kinds)}: {sorted(unknown)} are none of {list(VOTES)}")
        check_ids(sequences, vocab_size)
        some = int(np.clip(_TRIED // vocab_size, _FEWEST_USERS, _USERS))
        some = min(len(validation), some)
        held_out = random_sequences(validation, some, seed=0)
        for kind in kinds:
            begin = time.perf_counter()
            ids, lengths = flatten_sequences(sequences)
            votes = VOTES[kind].count(ids, lengths, vocab_size)
            popularity = np.bincount(ids, minlength=vocab_size)
            plain = cls(VOTES[kind], votes, popularity, _FIRST_DECAY, 0.0)
            by_power = [plain.changed(_FIRST_DECAY, power, held_out) for power in POWERS]
            best = min(by_power, key=lambda model: model.error)
            others = [decay for decay in DECAYS if decay != _FIRST_DECAY]
            by_decay = [plain.changed(decay, best.power, held_out) for decay in others]
            best = min([best, *by_decay], key=lambda model: model.error)
            best.seconds = time.perf_counter() - begin
            yield best

    def changed(self, decay: float, power: float, held_out: Dataset) -> SequenceRules:
        """The same votes with other settings, and the `error` on held-out histories."""
        model = SequenceRules(self.kind_of_votes, self.votes, self.popularity, decay, power)
        model.error = float(np.log(model.statistics(held_out)[:, 0]).mean())
        return model

    # -- ranking -----------------------------------------------------------------------------------

    def scores(self, histories: Sequence[Sequence[int]]) -> np.ndarray:
        """(b, V) float64 scores of the next item after b histories of ids, oldest first. Item 0,
        the padding, has −∞.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        recent = [list(history)[: -self.kind_of_votes.last - 1 : -1] for history in histories]
        lengths = np.array([len(row) for row in recent], dtype=np.int64)
        items = np.array([item for row in recent for item in row], dtype=np.int64)
        if len(items) and not 0 <= items.min() <= items.max() < self.vocab_size:
            raise ValueError(
                f"histories hold ids from {items.min()} to {items.max()}, outside 0 …"
                f" {self.vocab_size - 1}: use the model's items"
            )
        places = np.arange(len(items)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        share = np.maximum(self.popularity, 1.0) ** -self.power
        weights = self.decay**places * share[items]
        rows = np.repeat(np.arange(len(recent)), lengths)
        shape = (len(recent), self.vocab_size)
        voting = sparse.coo_array((weights.astype(np.float32), (rows, items)), shape=shape)
        scores = (voting.tocsr() @ self.votes).toarray().astype(np.float64)
        scores *= share
        # Popularity decides between items without votes, and is far too small to decide elsewhere.
        scores += self.popularity * (1e-12 / max(1, self.popularity.max()))
        scores[:, 0] = -np.inf
        return scores

    def statistics(self, sequences: Dataset) -> np.ndarray:
        """(N, 2): rank and AUC of the last item of each history, among the items that the user has
        not had; see `rank_statistics`.
        """
        check_ids(sequences, self.vocab_size)
        ids, lengths = flatten_sequences(sequences)
        histories = np.split(ids, np.cumsum(lengths)[:-1])
        size = max(1, _SCORES // self.vocab_size)
        statistics = []
        for first in range(0, len(histories), size):
            batch = histories[first : first + size]
            seen = [history[:-1].tolist() for history in batch]
            targets = torch.tensor([int(history[-1]) for history in batch])
            scores = torch.from_numpy(self.scores(seen))
            statistics.append(rank_statistics(scores, targets, seen).numpy())
        return np.concatenate(statistics)

    def recommend(self, histories: Sequence[Sequence[int]], top_k: int = 10) -> list[list[int]]:
        """The ids of the `top_k` best items for each history, best first, without those that the
        user has had. Among equal scores, the lower id comes first.
        """
        check_size("top_k", top_k)
        recommended: list[list[int]] = []
        size = max(1, _SCORES // self.vocab_size)
        for first in range(0, len(histories), size):
            batch = histories[first : first + size]
            scores = self.scores(batch)
            for row, history in zip(scores, batch, strict=True):
                row[list(history)] = -np.inf
                best = np.argsort(-row, kind="stable")[:top_k]
                recommended.append([int(item) for item in best if row[item] > -np.inf])
        return recommended

    # -- what is saved -----------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "votes": self.kind_of_votes.name,
            "pairs": int(self.votes.nnz),
            "decay": self.decay,
            "power": self.power,
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """How often each item was counted; for how many items each votes, for which ones, and how
        much.
        """
        return {
            "popularity": self.popularity,
            "partners": np.diff(self.votes.indptr),
            "items": self.votes.indices,
            "votes": self.votes.data.astype(np.int64),
        }

    @classmethod
    def sizes(cls, settings: Mapping[str, Any]) -> dict[str, int]:
        vocab_size = check_size("vocab_size", settings.get("vocab_size"))
        pairs = check_size("pairs", settings.get("pairs"), 0)
        if settings.get("votes") not in VOTES:
            raise ValueError(f"votes={settings.get('votes')!r:.80} is none of {list(VOTES)}")
        for name, most in (("decay", 1.0), ("power", 4.0)):
            value = settings.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ValueError(f"{name}={value!r:.80} is not a number")
            if not 0 <= value <= most:
                raise ValueError(f"{name}={value!r:.80} is not between 0 and {most}")
        return {
            "popularity": vocab_size,
            "partners": vocab_size,
            "items": pairs,
            "votes": pairs,
        }

    @classmethod
    def restored(
        cls, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]
    ) -> SequenceRules:
        vocab_size = settings["vocab_size"]
        partners = arrays["partners"]
        items = arrays["items"]
        votes = arrays["votes"]
        fits = partners.sum(dtype=float) == len(items) and items.max(initial=0) < vocab_size
        rows = np.repeat(np.arange(vocab_size), partners) if fits else np.zeros(0, np.int64)
        if not fits or (np.diff(rows * vocab_size + items) <= 0).any():
            raise ValueError("partners and items do not fit each other; fetch the file again")
        starts = np.concatenate([[0], np.cumsum(partners)])
        matrix = sparse.csr_array(
            (votes.astype(np.float32), items, starts), shape=(vocab_size, vocab_size)
        )
        kind = VOTES[settings["votes"]]
        return cls(kind, matrix, arrays["popularity"], settings["decay"], settings["power"])


def _portions(sizes: np.ndarray, most: float) -> Iterator[slice]:
    """Slices of items that follow each other, whose sizes sum to about `most`."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(sizes):
        done = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + most, side="right")))
        yield slice(start, stop)
        start = stop


def _largest(block: sparse.csr_array, popularity: np.ndarray, most: int) -> sparse.csr_array:
    """The `most` largest votes of each row, measured by the root of the popularity of whom they are
    for; whole numbers in float32, sorted by columns.
    """
    block.sum_duplicates()
    starts = block.indptr
    kept = np.ones(len(block.data), dtype=bool)
    for row in np.flatnonzero(np.diff(starts) > most):
        its = slice(starts[row], starts[row + 1])
        strength = block.data[its] / np.sqrt(np.maximum(popularity[block.indices[its]], 1))
        kept[its] = False
        kept[its.start + np.argpartition(-strength, most)[:most]] = True
    if not kept.all():
        rows = np.repeat(np.arange(len(starts) - 1), np.diff(starts))[kept]
        pairs = (rows, block.indices[kept])
        block = sparse.coo_array((block.data[kept], pairs), shape=block.shape).tocsr()
    return sparse.csr_array(block, dtype=np.float32)
