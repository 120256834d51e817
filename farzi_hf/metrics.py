"""Language-model metrics from per-token statistics, so that evaluation never gathers logits of size batch × length × vocabulary.

`token_statistics` is a Trainer's ``preprocess_logits_for_metrics`` and `language_modeling_metrics` its ``compute_metrics``;
between them travels one array of shape (sequences, length − 1, 3): negative log-likelihood, correct, valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

if TYPE_CHECKING:
    from numpy.typing import ArrayLike
    from transformers import EvalPrediction

IGNORED = -100  # transformers' label of a position that is not predicted


def token_statistics(logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor) -> torch.Tensor:
    """Per predicted token: negative log-likelihood in nats, 1 if the top prediction is right, 1 if the token counts.

    Args:
        logits: (B, L, V), or a tuple that starts with them. The logits at position j predict the label at j + 1.
        labels: (B, L) ids, −100 where nothing is to be predicted.

    Returns:
        float32 (B, L − 1, 3); ignored positions are all zero.
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    scores, targets = scores[:, :-1].float(), labels[:, 1:]
    valid = targets != IGNORED
    nll = F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    correct = (scores.argmax(-1) == targets) & valid
    return torch.stack([nll, correct.float(), valid.float()], dim=-1)


def sentence_totals(statistics: np.ndarray) -> np.ndarray:
    """Sums per sequence, (N, 3) float64: negative log-likelihood, correct tokens, tokens. Rows without a token are left out.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them. A valid flag ≤ 0 is padding: the Trainer pads with −100.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    if statistics.ndim != 3 or statistics.shape[-1] != 3:
        raise ValueError(
            f"statistics has shape {statistics.shape}, not (sequences, length − 1, 3): "
            "give the Trainer preprocess_logits_for_metrics=token_statistics."
        )
    totals = np.where(statistics[..., 2:] > 0, statistics, 0.0).sum(axis=1)
    totals = totals[totals[:, 2] > 0]
    if len(totals) == 0:
        raise ValueError("statistics holds no predicted token: every label is −100.")
    return totals


def pad_statistics(statistics: Sequence[ArrayLike]) -> np.ndarray:
    """Statistics of sentences of different lengths, each (L_i − 1, 3), as one float32 array (N, L − 1, 3) with valid = 0 as padding."""
    rows = [np.asarray(row, dtype=np.float32).reshape(-1, 3) for row in statistics]
    padded = np.zeros((len(rows), max(map(len, rows), default=0), 3), dtype=np.float32)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def corpus_perplexity(totals: np.ndarray) -> float:
    """exp(mean negative log-likelihood over all tokens), from `sentence_totals` (N, 3)."""
    nll, _, tokens = totals.sum(axis=0)
    return _exp(nll / tokens)


def _exp(nll: np.ndarray | float) -> np.ndarray | float:
    with np.errstate(over="ignore"):  # a diverged model has infinite perplexity; that is the answer, not an accident
        return np.exp(nll)


def token_metrics(statistics: np.ndarray) -> dict[str, float]:
    """``perplexity`` of the corpus, ``sentence_perplexity`` (mean of the sentences' perplexities), ``accuracy`` over tokens.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them.
    """
    totals = sentence_totals(statistics)
    return {
        "perplexity": float(corpus_perplexity(totals)),
        "sentence_perplexity": float(np.mean(_exp(totals[:, 0] / totals[:, 2]))),
        "accuracy": float(totals[:, 1].sum() / totals[:, 2].sum()),
    }


def language_modeling_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `token_metrics` of predictions that went through `token_statistics`."""
    return token_metrics(eval_prediction.predictions)


def mean_and_spread(results: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each metric's mean over the results and its standard deviation as `…_std`, which is 0 of a single result."""
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
        confidence: share of the resampled statistics inside the interval, between 0 and 1.
    """
    values = np.asarray(values)
    if len(values) == 0:
        raise ValueError("values is empty: an interval needs at least one row.")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence={confidence} is not a share: pass a number between 0 and 1, such as 0.95.")
    generator = np.random.default_rng(seed)
    resampled = [statistic(values[generator.integers(len(values), size=len(values))]) for _ in range(resamples)]
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def perplexity_interval(
    statistics: np.ndarray, confidence: float = 0.95, resamples: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """Bootstrap interval of the corpus perplexity, resampling sentences: tokens of one sentence are not independent.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them.
    """
    return bootstrap_interval(sentence_totals(statistics), corpus_perplexity, confidence, resamples, seed)
