"""Count models, which need no training. A good summary trains students that are better than these models.

The count models predict every token but the first (BOS), EOS included. The language models do the same, and both report the same
metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from datasets import Dataset

from farzi_hf.data import check_sequences, flatten_sequences
from farzi_hf.tasks.metrics import rank_statistics
from farzi_hf.tasks.metrics.language_modeling import token_metrics


@dataclass(frozen=True)
class Transitions:
    """All (previous, next) pairs of a data set in one long list, and the place of each pair in its sequence. Each array is (P,)."""

    previous: np.ndarray
    following: np.ndarray
    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, sequences: Dataset, vocab_size: int) -> Transitions:
        check_sequences(sequences, vocab_size)
        ids, lengths = flatten_sequences(sequences)
        starts = np.cumsum(lengths) - lengths
        rows = np.repeat(np.arange(len(lengths)), lengths - 1)
        columns = np.arange(len(rows)) - np.repeat(starts - np.arange(len(lengths)), lengths - 1)
        position = starts[rows] + columns
        return cls(ids[position], ids[position + 1], rows, columns)


def popularity(dataset: Dataset, vocab_size: int) -> np.ndarray:
    """(V,): how often each item occurs in ``input_ids``. Used as scores, these counts recommend the same items to every user."""
    check_sequences(dataset, vocab_size)
    return np.bincount(flatten_sequences(dataset)[0], minlength=vocab_size).astype(np.float64)


class CountModel:
    """A model whose prediction depends on the previous token at most. It scores whole data sets at once, in numpy."""

    vocab_size: int

    def probabilities(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        """p(following | previous), all (P,)."""
        raise NotImplementedError

    def predictions(self, previous: np.ndarray) -> np.ndarray:
        """The most likely next id after each of ``previous`` (P,). Among equally likely ids, the lowest one."""
        raise NotImplementedError

    def token_statistics(self, sequences: Dataset) -> np.ndarray:
        """(N, longest − 1, 3) float32, as `farzi_hf.metrics.token_statistics` gives for a language model."""
        pairs = Transitions.of(sequences, self.vocab_size)
        statistics = np.zeros((len(sequences), pairs.columns.max() + 1, 3), dtype=np.float32)
        nll = -np.log(self.probabilities(pairs.previous, pairs.following))
        correct = self.predictions(pairs.previous) == pairs.following
        statistics[pairs.rows, pairs.columns] = np.stack([nll, correct, np.ones_like(nll)], axis=-1)
        return statistics

    def metrics(self, sequences: Dataset) -> dict[str, float]:
        """Corpus perplexity, mean of sentence perplexities and accuracy on ``sequences`` (column ``input_ids``)."""
        return token_metrics(self.token_statistics(sequences))


class Unigram(CountModel):
    """Word frequencies, with one added to every count so that a word unseen in training is not impossible.

    Args:
        distribution: (V,) probabilities.
    """

    def __init__(self, distribution: np.ndarray) -> None:
        self.distribution = distribution
        self.vocab_size = len(distribution)

    @classmethod
    def fit(cls, sequences: Dataset, vocab_size: int) -> Unigram:
        """Counts the predicted tokens of ``sequences``. BOS is never predicted and not counted."""
        counts = np.bincount(Transitions.of(sequences, vocab_size).following, minlength=vocab_size) + 1
        return cls(counts / counts.sum())

    def probabilities(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        return self.distribution[following]

    def predictions(self, previous: np.ndarray) -> np.ndarray:
        return np.full_like(previous, self.distribution.argmax())


class InterpolatedBigram(CountModel):
    """w(h) · p(next | h) + (1 − w(h)) · p(next): relative frequencies, mixed with a `Unigram`.

    w(h) = count(h) / (count(h) + scale · followers(h)); with scale = 1 this is Witten & Bell (1991). The weight w(h) grows with the
    count of the history h. It shrinks with the number of different tokens that followed h, and is 0 if h was never seen.
    The pairs are stored sorted and sparse; there is no V × V table.

    Args:
        unigram: the model of lower order.
        pairs: (K,) distinct sorted keys ``previous · V + next``.
        counts: (K,) how often each pair was seen.
        scale: positive; `fit` chooses it.
    """

    def __init__(self, unigram: Unigram, pairs: np.ndarray, counts: np.ndarray, scale: float) -> None:
        self.unigram, self.pairs, self.scale = unigram, pairs, scale
        self.vocab_size = unigram.vocab_size
        histories = pairs // self.vocab_size
        self._totals = np.bincount(histories, weights=counts, minlength=self.vocab_size)
        self._followers = np.bincount(histories, minlength=self.vocab_size)
        self._conditionals = counts / self._totals[histories]

    @classmethod
    def fit(cls, sequences: Dataset, vocab_size: int, validation: Dataset) -> InterpolatedBigram:
        """Counts on ``sequences`` and tries 28 scales from 1/32 to 16. It keeps the scale with the lowest perplexity on ``validation``."""
        seen, held_out = Transitions.of(sequences, vocab_size), Transitions.of(validation, vocab_size)
        pairs, counts = np.unique(seen.previous * vocab_size + seen.following, return_counts=True)
        unigram = Unigram.fit(sequences, vocab_size)
        models = [cls(unigram, pairs, counts, float(scale)) for scale in np.geomspace(1 / 32, 16, 28)]
        return max(models, key=lambda model: np.log(model.probabilities(held_out.previous, held_out.following)).sum())

    def probabilities(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        keys = previous * self.vocab_size + following
        index = np.minimum(np.searchsorted(self.pairs, keys), len(self.pairs) - 1)
        bigram = np.where(self.pairs[index] == keys, self._conditionals[index], 0.0)
        total, followers = self._totals[previous], self._followers[previous]
        weight = total / np.maximum(total + self.scale * followers, 1)  # 0 / 0 after a token never seen
        return weight * bigram + (1 - weight) * self.unigram.probabilities(previous, following)

    def predictions(self, previous: np.ndarray) -> np.ndarray:
        # The best token comes from the best seen pair. If that pair is less likely than the most frequent token, the latter is best.
        histories, following = np.divmod(self.pairs, self.vocab_size)
        best = np.full(self.vocab_size, self.unigram.distribution.argmax())
        score = self.probabilities(np.arange(self.vocab_size), best)
        pair_scores = self.probabilities(histories, following)
        order = np.lexsort((following, -pair_scores, histories))
        known, first = np.unique(histories[order], return_index=True)
        first = order[first]
        better = pair_scores[first] > score[known]
        best[known[better]] = following[first][better]
        return best[previous]


def ranks_of_scores(
    scores: Callable[[Sequence[int]], np.ndarray], histories: Sequence[Sequence[int]], batch_size: int = 256
) -> np.ndarray:
    """(N, 2): rank and AUC of the last item of each history, for a recommender that is not a neural model.

    Args:
        scores: a function of the items before the last one; it returns (V,) scores. Item 0 is the padding and never a candidate.
    """
    statistics = []
    for start in range(0, len(histories), batch_size):
        batch = histories[start : start + batch_size]
        seen, targets = [history[:-1] for history in batch], torch.tensor([history[-1] for history in batch])
        table = torch.from_numpy(np.stack([scores(history) for history in seen]))
        table[:, 0] = -torch.inf
        statistics.append(rank_statistics(table, targets, seen).numpy())
    return np.concatenate(statistics)
