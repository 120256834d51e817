"""How many bytes real data need: in flat bits, as an entropy coder stores their ids, and by xz.

A summary is stored by the entropy of its numbers, so data are measured alike: claims about bytes
take the least of the three. The coder is adaptive, so it stores no table: it predicts each id from
the ids before it, and an arithmetic coder then needs −log2 of its probability. The sum of these,
which a decoder can undo id by id, is computed and not the code itself.

Where rows end is not counted, in none of the three.
"""

from __future__ import annotations

import hashlib
import lzma
from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from farzi_hf.data.sequences import flatten_sequences, id_bits

_ORDERS = 2
"""The most ids before one that predict it; the beginning of a row counts as one of them."""
_SCALES = (1, 2, 4, 8, 16, 32)
"""How much shorter contexts weigh; the best one is stored in a byte."""
_MANY = 4_000_000  # ids
_SCALES_OF_MANY = (4,)
"""Ids from which on trying all scales would take minutes, and what is taken for them."""
_HEADER = 8  # bytes: the number of ids, the scale and the order
_KEPT: dict[tuple[str, int], StoredBytes] = {}
_MOST_KEPT = 1000


@dataclass(frozen=True)
class StoredBytes:
    """Bytes of the ids of a data set, stored in three ways.

    Attributes:
        flat: ⌈log2 V⌉ bits each.
        coded: by an adaptive entropy coder.
        xz: what `xz -9` leaves of ids in whole bytes (it finds less in packed bits).
    """

    flat: int
    coded: int
    xz: int

    @property
    def least(self) -> int:
        """What one must keep."""
        return min(self.flat, self.coded, self.xz)


def stored_bytes(sequences: Dataset, vocab_size: int) -> StoredBytes:
    """The bytes of all ids of ``input_ids``. Equal ids are measured once in a process."""
    ids, lengths = flatten_sequences(sequences)
    digest = hashlib.blake2b(ids.tobytes(), digest_size=16)
    digest.update(lengths.tobytes())
    key = (digest.hexdigest(), vocab_size)
    if key not in _KEPT:
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        kind = np.min_scalar_type(vocab_size - 1)
        _KEPT[key] = StoredBytes(
            flat_bytes(len(ids), vocab_size),
            coded_bytes(ids, lengths, vocab_size),
            len(lzma.compress(ids.astype(kind).tobytes(), preset=9)),
        )
    return _KEPT[key]


def flat_bytes(tokens: int, vocab_size: int) -> int:
    """Bytes of so many ids of ⌈log2 V⌉ bits each."""
    return -(-tokens * id_bits(vocab_size) // 8)


def coded_bytes(ids: np.ndarray, lengths: np.ndarray, vocab_size: int) -> int:
    """Bytes of ids (P,) as an adaptive coder stores them, of rows with these lengths.

    An id w after the context h has the probability

        p(w | h) = (c(h w) + s d(h) p(w | h′)) / (c(h) + s d(h)),

    where c are counts and d(h) is the number of different ids after h, both so far; h′ is h without
    its first id, and below the empty context is 1 / V. With s = 1 this is Witten & Bell (1991),
    which the empty context always has. Contexts have none, one or two ids, s is one of six numbers:
    whatever needs the least.
    """
    if not len(ids):
        return _HEADER
    scales = _SCALES if len(ids) <= _MANY else _SCALES_OF_MANY
    places = np.arange(len(ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    contexts = np.zeros(len(ids), dtype=np.int64)
    begun = np.arange(len(ids))  # the places that have such a context
    probabilities, groups = _predicted(contexts, ids, vocab_size, (1,), [1 / vocab_size])
    totals = [-np.log2(probabilities[0]).sum()]
    probabilities = probabilities * len(scales)
    longer = np.where(places > 0, np.roll(ids, 1), vocab_size)  # V: the beginning of a row
    for order in range(1, _ORDERS + 1):
        parts = [shorter[begun] for shorter in probabilities]
        predicted, groups = _predicted(longer[begun], ids[begun], vocab_size + 1, scales, parts)
        for number, part in enumerate(predicted):
            probabilities[number] = probabilities[number].copy()
            probabilities[number][begun] = part
            totals.append(-np.log2(probabilities[number]).sum())
        if order < _ORDERS:
            numbers = np.full(len(ids), -1)
            numbers[begun] = groups
            longer = np.roll(numbers, 1)
            begun = np.flatnonzero(places >= order)
    return _HEADER + int(np.ceil(min(totals) / 8))


def _predicted(
    contexts: np.ndarray,
    ids: np.ndarray,
    vocab_size: int,
    scales: tuple[int, ...],
    shorter: list[np.ndarray | float],
) -> tuple[list[np.ndarray], np.ndarray]:
    """The probabilities of ids (P,) after contexts (P,), for each scale; and a number for each pair
    of context and id.

    Args:
        shorter: the probabilities after shorter contexts, for each scale.
    """
    seen, pairs, _ = _earlier(contexts * vocab_size + ids)
    total, numbers, order = _earlier(contexts)
    is_new = (seen == 0).astype(np.int64)
    running = np.cumsum(is_new[order])
    sizes = np.bincount(numbers)
    before = np.concatenate([[0], running])[np.cumsum(sizes) - sizes]  # in earlier contexts
    different = np.empty(len(ids), dtype=np.int64)
    different[order] = running - is_new[order] - before[numbers[order]]
    probabilities = []
    for scale, lower in zip(scales, shorter, strict=True):
        weight = scale * different
        with np.errstate(invalid="ignore"):  # 0 / 0 where a context is new
            after = (seen + weight * lower) / (total + weight)
        probabilities.append(np.where(total > 0, after, lower))
    return probabilities, pairs


def _earlier(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each key (P,), how many before it are equal, and the number of that key among all
    different ones; and the order that sorts the keys.
    """
    order = np.argsort(keys, kind="stable")
    sorted_keys = keys[order]
    is_first = np.concatenate([[True], sorted_keys[1:] != sorted_keys[:-1]])
    group = np.cumsum(is_first) - 1
    starts = np.flatnonzero(is_first)
    earlier = np.empty(len(keys), dtype=np.int64)
    earlier[order] = np.arange(len(keys)) - starts[group]
    numbers = np.empty(len(keys), dtype=np.int64)
    numbers[order] = group
    return earlier, numbers, order
