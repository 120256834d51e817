"""Mean and spread over students, and bootstrap intervals over resamples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from farzi_hf.data.seeds import Purpose, stream


def mean_and_spread(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the results, and its standard deviation as `…_std`. With a single result, the deviation is 0."""
    row: dict[str, float] = {}
    for name in results[0]:
        values = [result[name] for result in results]
        row[name] = float(np.mean(values))
        with np.errstate(invalid="ignore"):  # a student that diverged has infinite perplexity; the spread is then NaN
            row[f"{name}_std"] = float(np.std(values, ddof=min(1, len(values) - 1)))
    return row


def bootstrap_interval(
    values: np.ndarray,
    statistic: Callable[[np.ndarray], float] = np.mean,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval (Efron 1979) of a statistic over rows.

    Args:
        values: (N,) or (N, k): one row per independent unit (a user, a sentence).
        statistic: maps such an array to a number.
        confidence: the share, between 0 and 1, of the resampled statistics that lie inside the interval.
    """
    values = np.asarray(values)
    if len(values) == 0:
        raise ValueError("values is empty: an interval needs at least one row.")
    if resamples < 1:
        raise ValueError(f"resamples={resamples} resamples nothing: pass 1 or more, such as 1000.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not a share: pass a number between 0 and 1, such as 0.95.")
    generator = stream(seed, Purpose.BOOTSTRAP)
    resampled = [statistic(values[generator.integers(len(values), size=len(values))]) for _ in range(resamples)]
    method = "linear" if np.isfinite(resampled).all() else "inverted_cdf"  # between infinite ones there is nothing
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2], method=method)
    return float(low), float(high)
