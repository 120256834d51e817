"""The ids that a summary with `inputs="tokens"` has: functions of one kind, from real windows to sequences that are no data at all.

Each takes all ids of the data end to end, the length of each sequence, the shape (μ, ξ) and a generator, and returns ids (μ, ξ).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable

import numpy as np

InputSequences = Callable[[np.ndarray, np.ndarray, tuple[int, int], np.random.Generator], np.ndarray]


def real_windows(
    tokens: np.ndarray, lengths: np.ndarray, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """Consecutive ids of the sequences in random order, repeated if there are too few."""
    starts, needed, stream = np.cumsum(lengths) - lengths, shape[0] * shape[1], []
    for i in generator.permutation(len(lengths)):
        if needed <= 0:
            break
        stream.append(tokens[starts[i] : starts[i] + lengths[i]])
        needed -= lengths[i]
    return np.resize(np.concatenate(stream), shape).astype(np.int64)


def covering_windows(
    tokens: np.ndarray, lengths: np.ndarray, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """Real windows that together show as many different ids as a greedy choice finds: each shows the most ids that are still missing."""
    count = max(1, len(tokens) // shape[1])
    windows = real_windows(tokens, lengths, (count, shape[1]), generator)
    missing = set(tokens.tolist())
    queue = [(-len(ids), i, ids) for i, ids in enumerate(map(set, windows.tolist()))]
    heapq.heapify(queue)
    chosen: list[int] = []
    while queue and len(chosen) < shape[0]:
        _, i, ids = heapq.heappop(queue)
        left = ids & missing
        if queue and -len(left) > queue[0][0]:  # the gain has shrunk since it was computed
            heapq.heappush(queue, (-len(left), i, left))
            continue
        chosen.append(i)
        missing -= left
    return np.resize(windows[chosen], shape)


def made_up(
    tokens: np.ndarray, lengths: np.ndarray, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """Each id of the data once, the rest drawn by frequency, all in random order: no sequence of the data is in it.

    If there are more ids than positions, different ids are drawn by frequency.
    """
    ids, counts = np.unique(tokens, return_counts=True)
    shares, size = counts / counts.sum(), shape[0] * shape[1]
    if len(ids) >= size:
        drawn = generator.choice(ids, size, replace=False, p=shares)
    else:
        drawn = np.concatenate([ids, generator.choice(ids, size - len(ids), p=shares)])
    return generator.permutation(drawn).reshape(shape)


def made_up_by_root(
    tokens: np.ndarray, lengths: np.ndarray, shape: tuple[int, int], generator: np.random.Generator
) -> np.ndarray:
    """Ids drawn by the square root of their frequency, each on its own: no sequence of the data is in it."""
    ids, counts = np.unique(tokens, return_counts=True)
    shares = counts**0.5 / (counts**0.5).sum()
    return generator.choice(ids, shape, p=shares)
