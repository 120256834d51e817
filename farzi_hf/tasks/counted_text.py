"""Kneser-Ney: the next token by counts of n-grams, the strongest model of text that only counts.

Interpolated modified Kneser-Ney (Chen & Goodman 1999, "An empirical study of smoothing techniques
for language modeling"). For a token w after the context h of n − 1 tokens,

    p_n(w | h) = (c(h w) − D(c(h w))) / Σ_v c(h v) + γ(h) p_{n−1}(w | h′),          their eq. (26)
    γ(h) = Σ_v D(c(h v)) / Σ_v c(h v),

h′ is h without its first token, and below the unigrams is 1 / V. The three discounts D(1), D(2) and
D(3 or more) come from counts of counts (their eq. 27). c is how often an n-gram occurs in the
highest order; in lower orders it is the number of different tokens before it (their section 4.1.6),
and for an n-gram that begins a row, which has none before it, how often it does.

N-grams are not hashed, so none is taken for another: an n-gram is its context's number among the
shorter n-grams, times V, plus its last token. Sorted, these keys hold all tokens that follow a
context side by side.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from datasets import Dataset

from farzi_hf.common.checks import check_size
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import check_ids, flatten_sequences
from farzi_hf.tasks.counted import CountedModel

HIGHEST = 5
"""The longest n-grams that are tried."""
_MOST_ORDERS = 16  # of a model that is loaded
_DEFAULT_DISCOUNTS = (0.5, 1.0, 1.5)
_PROBABILITIES = 2**23  # that exist at the same time while text is generated
_NO = -1
"""The rank of an n-gram that was not counted."""


@dataclass(frozen=True)
class NGrams:
    """The n-grams of one length n, sorted by their keys. The place of an n-gram among them is its
    rank.

    Attributes:
        keys: (N,) the rank of the first n − 1 tokens, times V, plus the last token.
        counts: (N,) c, as the equations use it.
        suffixes: (N,) the rank of the last n − 1 tokens.
        probabilities: (N,) p_n of the last token after the others.
        backoffs: γ of each context, one for each of the shorter n-grams; 1 where nothing follows.
    """

    keys: np.ndarray
    counts: np.ndarray
    suffixes: np.ndarray
    probabilities: np.ndarray
    backoffs: np.ndarray

    @classmethod
    def smoothed(
        cls,
        keys: np.ndarray,
        counts: np.ndarray,
        suffixes: np.ndarray,
        shorter: np.ndarray,
        vocab_size: int,
    ) -> NGrams:
        """The n-grams with their probabilities.

        Args:
            shorter: p_{n−1} of all shorter n-grams, by their ranks.
        """
        contexts = keys // vocab_size
        number = len(shorter) if len(shorter) > 1 else 1  # unigrams have one context, the empty one
        discounts = np.array([0.0, *discounts_of(counts)])[np.minimum(counts, 3)]
        totals = np.bincount(contexts, weights=counts, minlength=number)
        freed = np.bincount(contexts, weights=discounts, minlength=number)
        backoffs = np.divide(freed, totals, out=np.ones(number), where=totals > 0)
        kept = (counts - discounts) / totals[contexts]
        probabilities = kept + backoffs[contexts] * shorter[suffixes]
        return cls(keys, counts, suffixes, probabilities, backoffs)

    def ranks(self, contexts: np.ndarray, tokens: np.ndarray, vocab_size: int) -> np.ndarray:
        """(P,): the ranks of the n-grams of these contexts and last tokens; −1 where there is none.

        Args:
            contexts: (P,) ranks of the first n − 1 tokens; −1 where they were not counted.
            tokens: (P,) ids.
        """
        wanted = contexts * vocab_size + tokens
        places = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        counted = (contexts != _NO) & (self.keys[places] == wanted)
        return np.where(counted, places, _NO)

    def starts(self, vocab_size: int) -> np.ndarray:
        """Where the n-grams of each context begin, and the end of the last ones."""
        contexts = np.arange(len(self.backoffs) + 1)
        return np.searchsorted(self.keys, contexts * vocab_size)


def discounts_of(counts: np.ndarray) -> tuple[float, float, float]:
    """D(1), D(2) and D(3 or more) from the numbers of n-grams that occur once, twice, three and
    four times. Where these give no discounts, as in a text of few or of made-up words, they are
    .5, 1 and 1.5.
    """
    once, twice, thrice, four_times = (int((counts == times).sum()) for times in (1, 2, 3, 4))
    if min(once, twice, thrice) == 0:
        return _DEFAULT_DISCOUNTS
    share = once / (once + 2 * twice)
    discounts = (
        1 - 2 * share * twice / once,
        2 - 3 * share * thrice / twice,
        3 - 4 * share * four_times / thrice,
    )
    are_usable = all(0 < discount <= times for times, discount in enumerate(discounts, 1))
    return discounts if are_usable else _DEFAULT_DISCOUNTS


class KneserNey(CountedModel):
    """An n-gram model of text: interpolated modified Kneser-Ney, counted and not trained.

    ```python
    model = KneserNey.fit(splits["train"], len(tokenizer), splits["validation"])   # orders 1 to 5
    model.log_probabilities([[2, 17, 5, 3]])     # nats of 17, 5 and 3
    model.distribution([[2, 17], [2]])           # (2, V): what comes next
    model.generate(10, start=[2], end=3, seed=0)
    ```

    It predicts every token of a row but the first, as a language model does, from the tokens before
    it in the same row, n − 1 at most.

    Args:
        vocab_size: V.
        levels: the n-grams of length 1, 2, … n.
    """

    kind = "kneser_ney"

    def __init__(self, vocab_size: int, levels: Sequence[NGrams]) -> None:
        self.vocab_size = vocab_size
        self.levels = list(levels)

    @property
    def order(self) -> int:
        """The length of the longest n-grams, n."""
        return len(self.levels)

    @property
    def name(self) -> str:
        return f"Kneser-Ney {self.order}-gram, counted"

    @property
    def choice(self) -> str:
        return f"order {self.order}"

    # -- counting ----------------------------------------------------------------------------------

    @classmethod
    def candidates(
        cls,
        sequences: Dataset,
        vocab_size: int,
        validation: Dataset,
        *,
        orders: Sequence[int] = range(1, HIGHEST + 1),
    ) -> Iterator[KneserNey]:
        """A model of each order that the rows are long enough for; the `error` is nats per token of
        the validation rows.

        Args:
            orders: the lengths of n-grams among which to choose.
        """
        tried = 0
        for model in cls.counted(sequences, vocab_size, max(orders), min(orders)):
            if model.order in orders:
                nats, _ = model._measured(validation)
                model.error = -float(nats.mean())
                tried += 1
                yield model
        if not tried:
            raise ValueError(
                f"orders={list(orders)}: no row of the training part is as long; give lower orders"
            )

    @classmethod
    def longest(cls, sequences: Dataset, vocab_size: int, highest: int) -> KneserNey:
        """The model of order `highest`, or of the highest that rows are long enough for. Raises
        ValueError as `counted`.
        """
        [model] = cls.counted(sequences, vocab_size, highest, highest)
        return model

    @classmethod
    def counted(
        cls, sequences: Dataset, vocab_size: int, highest: int, lowest: int = 1
    ) -> Iterator[KneserNey]:
        """The models of order `lowest` to `highest`, as far as rows are long; of rows that are too
        short for `lowest`, the longest one that they allow. They share the counts of lower orders;
        the `seconds` of each are those since the beginning.

        Raises:
            ValueError: an id is outside the vocabulary, or no row has two tokens.
        """
        check_size("order", highest, most=_MOST_ORDERS)
        begin = time.perf_counter()
        check_ids(sequences, vocab_size)
        ids, lengths = flatten_sequences(sequences)
        places = _places(lengths)
        if not (places > 0).any():
            raise ValueError("sequences predict nothing: give rows of at least two tokens")
        keys = np.arange(vocab_size)
        suffixes = np.zeros(vocab_size, dtype=np.int64)
        raw = np.bincount(ids[places > 0], minlength=vocab_size)
        ranks = ids  # of the n-gram that ends at each place
        shorter = np.array([1 / vocab_size])
        lower: list[NGrams] = []
        for order in range(1, highest + 1):
            ends = np.flatnonzero(places >= order)  # of n-grams that are longer by one
            is_last = order == highest or not len(ends)
            if order >= lowest or is_last:
                top = NGrams.smoothed(keys, raw, suffixes, shorter, vocab_size)
                model = cls(vocab_size, [*lower, top])
                model.seconds = time.perf_counter() - begin
                yield model
            if is_last:
                return
            longer_keys, first, numbers, longer_raw = np.unique(
                ranks[ends - 1] * vocab_size + ids[ends],
                return_index=True,
                return_inverse=True,
                return_counts=True,
            )
            longer_suffixes = ranks[ends[first]]
            different = np.bincount(longer_suffixes, minlength=len(keys))
            if order > 1:
                different += np.bincount(ranks[places == order - 1], minlength=len(keys))
            lower.append(NGrams.smoothed(keys, different, suffixes, shorter, vocab_size))
            shorter = lower[-1].probabilities
            keys = longer_keys
            suffixes = longer_suffixes
            raw = longer_raw
            ranks = np.full(len(ids), _NO)
            ranks[ends] = numbers

    # -- scoring -----------------------------------------------------------------------------------

    def log_probabilities(self, rows: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Natural logarithms of the probabilities of each row's tokens but the first: (L − 1,)
        each.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        sequences = Dataset.from_dict({"input_ids": [list(map(int, row)) for row in rows]})
        lengths = flatten_sequences(sequences)[1]
        nats, _ = self._measured(sequences)
        return np.split(nats, np.cumsum(np.maximum(lengths - 1, 0))[:-1])

    def statistics(self, sequences: Dataset) -> np.ndarray:
        """(N, 1, 3): the sums of negative log-probabilities, of tokens predicted right, and of
        tokens, for each row that has a token to predict.
        """
        nats, right = self._measured(sequences, with_right=True)
        lengths = flatten_sequences(sequences)[1]
        rows = np.repeat(np.arange(len(lengths)), np.maximum(lengths - 1, 0))
        tokens = np.bincount(rows, minlength=len(lengths))
        sums = [np.bincount(rows, weights=x, minlength=len(lengths)) for x in (-nats, right)]
        return np.stack([*sums, tokens], axis=1)[tokens > 0][:, None].astype(np.float64)

    def _measured(
        self, sequences: Dataset, with_right: bool = False
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Log-probabilities of all predicted tokens in a row (P,), and whether each is the
        likeliest one after its context.
        """
        check_ids(sequences, self.vocab_size)
        ids, lengths = flatten_sequences(sequences)
        places = _places(lengths)
        predicted = places > 0
        if not predicted.any():
            raise ValueError("sequences predict nothing: give rows of at least two tokens")
        probabilities = np.full(len(ids), 1 / self.vocab_size)
        likeliest = np.zeros(len(ids), dtype=np.int64)
        contexts = np.zeros(len(ids), dtype=np.int64)
        for n, level in enumerate(self.levels, 1):
            seen = contexts != _NO
            backed_off = probabilities * np.where(seen, level.backoffs[contexts], 1.0)
            ranks = level.ranks(contexts, ids, self.vocab_size)
            probabilities = np.where(ranks != _NO, level.probabilities[ranks], backed_off)
            if with_right:
                likeliest = np.where(seen, self._likeliest[n - 1][contexts], likeliest)
            contexts = np.full(len(ids), _NO)  # of the next order, those that end before a token
            contexts[1:] = np.where(places[1:] >= n, ids[:-1] if n == 1 else ranks[:-1], _NO)
        nats = np.log(probabilities[predicted])
        return nats, (likeliest == ids)[predicted] if with_right else None

    @cached_property
    def _likeliest(self) -> list[np.ndarray]:
        """For each length n, the likeliest token after each context of n − 1 tokens.

        It is the best of those that follow the context, or the likeliest one after the shorter
        context, if that is better.
        """
        likeliest: list[np.ndarray] = []
        shorter = np.zeros(1, dtype=np.int64)  # the likeliest token after each shorter context
        its_probability = np.full(1, 1 / self.vocab_size)
        suffixes = np.zeros(1, dtype=np.int64)  # of the contexts
        for level in self.levels:
            best = shorter[suffixes]
            probability = level.backoffs * its_probability[suffixes]
            starts = level.starts(self.vocab_size)
            followed = np.flatnonzero(np.diff(starts))
            peaks = np.zeros(len(level.backoffs))
            peaks[followed] = np.maximum.reduceat(level.probabilities, starts[followed])
            contexts, tokens = np.divmod(level.keys, self.vocab_size)
            at_peak = np.flatnonzero(level.probabilities == peaks[contexts])[::-1]
            of_context = np.zeros(len(level.backoffs), dtype=np.int64)
            of_context[contexts[at_peak]] = tokens[at_peak]  # the lowest id is written last
            is_better = peaks >= probability
            shorter = np.where(is_better, of_context, best)
            its_probability = np.where(is_better, peaks, probability)
            likeliest.append(shorter)
            suffixes = level.suffixes
            if len(likeliest) == 1:
                suffixes = np.zeros(self.vocab_size, np.int64)
        return likeliest

    # -- what comes next ---------------------------------------------------------------------------

    def states(self, contexts: Sequence[Sequence[int]]) -> np.ndarray:
        """(b, n − 1) of b contexts: the ranks of the last token, of the last two, …, as far as they
        were counted, else −1.
        """
        longest = self.order - 1
        states = np.full((len(contexts), longest), _NO)
        recent = [list(context)[-longest:] if longest else [] for context in contexts]
        for step in range(longest):
            is_read = np.array([len(row) > step for row in recent], dtype=bool)
            if is_read.any():
                tokens = np.array([row[step] for row in recent if len(row) > step])
                states[is_read] = self.next_states(states[is_read], tokens)
        return states

    def next_states(self, states: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """(b, n − 1): the `states` after one more token each.

        Raises:
            ValueError: an id is outside the vocabulary.
        """
        if len(tokens) and not 0 <= tokens.min() <= tokens.max() < self.vocab_size:
            raise ValueError(
                f"contexts hold ids from {tokens.min()} to {tokens.max()}, outside 0 …"
                f" {self.vocab_size - 1}: use the model's tokenizer"
            )
        after = np.full_like(states, _NO)
        if self.order > 1:
            after[:, 0] = tokens
        for n in range(2, self.order):
            after[:, n - 1] = self.levels[n - 1].ranks(states[:, n - 2], tokens, self.vocab_size)
        return after

    def distribution(self, contexts: Sequence[Sequence[int]]) -> np.ndarray:
        """(b, V): the probabilities of the next token after each of b contexts, which are ids from
        the beginning of a row on; an empty one stands for no context at all.
        """
        return self.distribution_after(self.states(contexts))

    def distribution_after(self, states: np.ndarray, dtype: type = np.float64) -> np.ndarray:
        """(b, V): the same after the `states` (b, n − 1). Each row sums to 1.

        Tokens that never followed a context have the unigrams' shares, times what all longer
        contexts leave to shorter ones. So one product fills a row, and the n-grams that were
        counted, shortest first, take their places.
        """
        contexts = [np.zeros(len(states), np.int64), *states.T]
        left = self._left_by_longer(contexts)
        unigrams = self.levels[0]
        shares = np.full(self.vocab_size, unigrams.backoffs[0] / self.vocab_size)
        shares[unigrams.keys] = unigrams.probabilities
        probabilities = np.multiply.outer(left[0].astype(dtype), shares.astype(dtype))
        places = probabilities.reshape(-1)
        longer = zip(self.levels[1:], self._starts[1:], contexts[1:], left[1:], strict=True)
        for level, starts, of_level, left_by_longer in longer:
            rows = np.flatnonzero(of_level != _NO)
            first = starts[of_level[rows]]
            numbers = starts[of_level[rows] + 1] - first
            within = np.arange(numbers.sum()) - np.repeat(np.cumsum(numbers) - numbers, numbers)
            ranks = np.repeat(first, numbers) + within
            offsets = (rows - of_level[rows]) * self.vocab_size  # a key is context · V + token
            # p_n holds the share of shorter contexts too, so it takes the place of that share.
            places[np.repeat(offsets, numbers) + level.keys[ranks]] = level.probabilities[
                ranks
            ] * np.repeat(left_by_longer[rows], numbers)
        return probabilities

    def _left_by_longer(self, contexts: Sequence[np.ndarray]) -> list[np.ndarray]:
        """For each length n, the product of γ of all longer contexts that were counted, (b,).

        Args:
            contexts: of each length, the ranks (b,) of the n − 1 tokens before.
        """
        left = [np.ones(len(contexts[0]))]
        for level, of_level in zip(self.levels[:0:-1], contexts[:0:-1], strict=True):
            was_counted = of_level != _NO
            factors = np.where(was_counted, level.backoffs[np.maximum(of_level, 0)], 1.0)
            left.append(left[-1] * factors)
        return left[::-1]

    def states_before(self, ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """(P, n − 1): the `states` before each of the P tokens of rows.

        Args:
            ids: (P,) of all rows, one after the other.
            lengths: of the rows.
        """
        places = _places(lengths)
        states = np.full((len(ids), self.order - 1), _NO)
        ranks = ids
        for n in range(1, self.order):
            states[1:, n - 1] = np.where(places[1:] >= n, ranks[:-1], _NO)
            if n + 1 < self.order:
                ranks = self.levels[n].ranks(states[:, n - 1], ids, self.vocab_size)
        return states

    @cached_property
    def _starts(self) -> list[np.ndarray]:
        return [level.starts(self.vocab_size) for level in self.levels]

    def generate(
        self,
        count: int,
        *,
        start: Sequence[int] = (),
        end: int | None = None,
        max_length: int = 128,
        seed: int = 0,
    ) -> list[list[int]]:
        """`count` rows of ids, drawn token by token. Row i depends on (seed, i) alone.

        Args:
            start: the ids that each row begins with, such as BOS.
            end: the id that ends a row, such as EOS.
            max_length: of a row, `start` included.

        Raises:
            ValueError: an argument cannot be used.
        """
        check_size("count", count, 0)
        check_size("max_length", max_length, len(start) + 1)
        rows = [list(start) for _ in range(count)]
        size = max(1, _PROBABILITIES // self.vocab_size)
        for first in range(0, count, size):
            self._write(rows, range(first, min(first + size, count)), end, max_length, seed)
        return rows

    def _write(
        self, rows: list[list[int]], numbers: Sequence[int], end: int | None, most: int, seed: int
    ) -> None:
        """Goes on with the rows of these numbers until each has its end, or `most` ids."""
        going_on = np.array(numbers)
        steps = most - len(rows[numbers[0]])
        drawn = {row: stream(seed, Purpose.COUNTED_ROWS, row).random(steps) for row in numbers}
        states = self.states([rows[row] for row in numbers])
        for step in range(steps):
            cumulative = self.distribution_after(states).cumsum(axis=1)
            uniform = np.array([drawn[row][step] for row in going_on]) * cumulative[:, -1]
            tokens = (cumulative <= uniform[:, None]).sum(axis=1).clip(max=self.vocab_size - 1)
            for row, token in zip(going_on, tokens, strict=True):
                rows[row].append(int(token))
            unfinished = np.ones(len(tokens), dtype=bool) if end is None else tokens != end
            going_on = going_on[unfinished]
            if not len(going_on):
                return
            states = self.next_states(states[unfinished], tokens[unfinished])

    # -- what is saved -----------------------------------------------------------------------------

    def settings(self) -> dict[str, Any]:
        return {
            "vocab_size": self.vocab_size,
            "ngrams": [len(level.keys) for level in self.levels[1:]],
        }

    def arrays(self) -> dict[str, np.ndarray]:
        """For each length n: the counts; and from 2 on the last tokens, and how many of the n-grams
        each context has.
        """
        arrays = {"counts_1": self.levels[0].counts}
        for n, level in enumerate(self.levels[1:], 2):
            arrays[f"counts_{n}"] = level.counts
            arrays[f"tokens_{n}"] = level.keys % self.vocab_size
            arrays[f"followers_{n}"] = np.diff(level.starts(self.vocab_size))
        return arrays

    @classmethod
    def sizes(cls, settings: Mapping[str, Any]) -> dict[str, int]:
        vocab_size = check_size("vocab_size", settings.get("vocab_size"))
        ngrams = settings.get("ngrams")
        if not isinstance(ngrams, list) or len(ngrams) >= _MOST_ORDERS:
            raise ValueError(
                f"ngrams={ngrams!r:.200} is not a list of at most {_MOST_ORDERS} numbers"
            )
        sizes = {"counts_1": vocab_size}
        shorter = vocab_size
        for n, number in enumerate(ngrams, 2):
            check_size(f"ngrams[{n - 2}]", number)
            sizes[f"counts_{n}"] = number
            sizes[f"tokens_{n}"] = number
            sizes[f"followers_{n}"] = shorter
            shorter = number
        return sizes

    @classmethod
    def restored(cls, settings: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> KneserNey:
        vocab_size = settings["vocab_size"]
        keys = np.arange(vocab_size)
        suffixes = np.zeros(vocab_size, np.int64)
        shorter = np.array([1 / vocab_size])
        levels: list[NGrams] = []
        for n in range(1, len(settings["ngrams"]) + 2):
            counts = arrays[f"counts_{n}"]
            if n > 1:
                tokens = arrays[f"tokens_{n}"]
                followers = arrays[f"followers_{n}"]
                keys, suffixes = _keys_of(n, tokens, followers, levels, vocab_size)
            least = 0 if n == 1 else 1
            if counts.min() < least or not 0 < counts.sum(dtype=float) < 2**53:
                raise ValueError(f"counts_{n} holds numbers that are not counts; fetch it again")
            levels.append(NGrams.smoothed(keys, counts, suffixes, shorter, vocab_size))
            shorter = levels[-1].probabilities
        return cls(vocab_size, levels)


def _places(lengths: np.ndarray) -> np.ndarray:
    """(P,): the place of each id in its row, from 0."""
    return np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)


def _keys_of(
    n: int,
    tokens: np.ndarray,
    followers: np.ndarray,
    levels: Sequence[NGrams],
    vocab_size: int,
) -> tuple[np.ndarray, np.ndarray]:
    """The keys of the n-grams, and the ranks of their last n − 1 tokens, of what a file holds."""
    damaged = "fetch the file again"
    if followers.sum(dtype=float) != len(tokens) or tokens.max() >= vocab_size:
        raise ValueError(f"followers_{n} and tokens_{n} do not fit each other; {damaged}")
    contexts = np.repeat(np.arange(len(followers)), followers)
    keys = contexts * vocab_size + tokens
    if (np.diff(keys) <= 0).any():
        raise ValueError(f"tokens_{n} are not sorted; {damaged}")
    if n == 2:
        return keys, tokens
    suffixes = levels[-1].ranks(levels[-1].suffixes[contexts], tokens, vocab_size)
    if (suffixes == _NO).any():
        raise ValueError(f"tokens_{n} end with tokens that tokens_{n - 1} lack; {damaged}")
    return keys, suffixes
