"""Which rows are read when, if each is read as often as its share says."""

from collections.abc import Sequence

import numpy as np


def rows_by_shares(
    shares: Sequence[float] | np.ndarray, count: int, generator: np.random.Generator
) -> list[int]:
    """Numbers of rows in the order in which they are read, each as often as its share says.

    Passes follow each other. A pass reads as many rows as have a share, shuffled, and each of them
    at least ⌊x⌋ and at most ⌈x⌉ times where it should be x times. So equal shares make ordinary
    epochs.

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
    length = int((shares > 0).sum())
    rows: list[int] = []
    while len(rows) < count:
        shuffled = generator.permutation(len(shares))
        # A point of each unit of length that is shared out among the rows.
        ends = np.cumsum(shares[shuffled]) * (length / shares.sum())
        points = generator.random() + np.arange(length)
        places = np.searchsorted(ends, np.minimum(points, ends[-1] * (1 - 1e-12)), side="right")
        rows += generator.permutation(shuffled[places]).tolist()
    return rows[:count]
