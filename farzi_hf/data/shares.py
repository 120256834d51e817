"""Which rows are read when, if each is read as often as its share says."""

from collections.abc import Sequence

import numpy as np


def rows_by_shares(
    shares: Sequence[float] | np.ndarray, count: int, generator: np.random.Generator
) -> list[int]:
    """Numbers of rows in the order in which they are read, each as often as its share says.

    A row that should be read x times is read once in each part of the training, of 1 / x, at a
    random moment of that part. So the reads of a row are spread over the whole training, whatever
    other rows there are, and equal shares make ordinary epochs.

    Args:
        shares: (n,), not negative; their sum does not matter.
        count: of reads.
        generator: of the order.

    Raises:
        ValueError: a share is negative or not finite, or all are 0.
    """
    shares = np.asarray(shares, dtype=np.float64)
    if not np.isfinite(shares).all() or shares.min(initial=0) < 0 or not shares.sum() > 0:
        raise ValueError(
            "weights has a negative number, or one that is not finite, or zeros alone; give"
            " positive numbers for the rows to read"
        )
    reads = shares * (count / shares.sum())
    parts = np.ceil(reads).astype(int)
    is_read = reads > 0
    rows: list[np.ndarray] = []
    moments: list[np.ndarray] = []
    # One part more than a row needs: chance may leave the training a few reads too short.
    for part in range(int(parts.max()) + 1):
        shuffled = generator.permutation(len(shares))
        offset = generator.random()
        # Shuffled again, so that equal shares are read in the order in which they always were.
        of_part = generator.permutation(shuffled[is_read[shuffled] & (parts[shuffled] >= part)])
        within = (np.arange(len(of_part)) + offset) / len(of_part)
        rows.append(of_part)
        moments.append((part + within) / reads[of_part])
    order = np.concatenate(moments).argsort(kind="stable")[:count]
    return np.concatenate(rows)[order].tolist()
