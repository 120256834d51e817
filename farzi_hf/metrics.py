"""Metrics from small statistics, so that evaluation never gathers logits of size batch × length × vocabulary.

Of a language model, `token_statistics` is a Trainer's ``preprocess_logits_for_metrics`` and `language_modeling_metrics` its
``compute_metrics``; between them travels one array of shape (sequences, length − 1, 3): negative log-likelihood, correct, valid.
Of a recommender these are `target_ranks` and `recommendation_metrics`, and the array is (users, 2): rank, AUC.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional as F

from farzi_hf.seeds import Purpose, stream

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


# -- ranking -----------------------------------------------------------------------------------------------------------


def rank_statistics(
    scores: torch.Tensor, targets: torch.Tensor, seen: torch.Tensor | Sequence[Sequence[int]] | None = None
) -> torch.Tensor:
    """Of each user the rank of the target among all items, from 1, and the AUC: the share of other items that score lower.

    Of equal scores the lower id ranks first, and in the AUC an equal score counts one half. A score that is not a number
    counts as better than the target's, and a target's as worse than all: a diverged model is not a good one.

    Args:
        scores: (B, V). An item with −∞ is no candidate and counts nowhere.
        targets: (B,) ids.
        seen: items that are no candidates: per user a list of ids, or (B, S) ids with negative ones as padding. The target
            stays one, also where the user has had it before.

    Returns:
        float64 (B, 2).

    Raises:
        ValueError: shapes that do not match, or ids outside the columns of `scores`.
    """
    scores, targets = torch.as_tensor(scores), torch.as_tensor(targets)
    _check_targets(scores, targets)
    target_scores = scores.gather(1, targets[:, None])
    candidates = scores != -torch.inf
    if seen is not None:
        candidates &= ~_chosen(seen, scores)
    candidates.scatter_(1, targets[:, None], False)  # the others
    equal = (scores == target_scores) & candidates
    better = ~(scores <= target_scores) & candidates
    first = equal & (torch.arange(scores.shape[1], device=scores.device) < targets[:, None])
    others, better, equal, first = (x.sum(1).double() for x in (candidates, better, equal, first))
    auc = torch.where(others > 0, (others - better - equal / 2) / others.clamp(min=1), 1.0)
    return torch.stack([1 + better + first, auc], dim=1)


def _chosen(ids: torch.Tensor | Sequence[Sequence[int]], scores: torch.Tensor) -> torch.Tensor:
    """(B, V): whether an item is one of the user's ids; negative ids are padding."""
    if not isinstance(ids, torch.Tensor):
        rows = [torch.as_tensor(row, dtype=torch.long) for row in ids]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    if len(ids) != len(scores) or (ids.numel() and ids.max() >= scores.shape[1]):
        raise ValueError(
            f"seen holds ids of {len(ids)} users up to {ids.max() if ids.numel() else None}, but scores are {tuple(scores.shape)}: "
            "pass one row of ids below V per user"
        )
    # Padding goes to a column of its own, which is cut off again.
    chosen = torch.zeros(len(scores), scores.shape[1] + 1, dtype=torch.bool, device=scores.device)
    ids = ids.to(scores.device)
    return chosen.scatter_(1, torch.where(ids < 0, scores.shape[1], ids), True)[:, :-1]


def _check_targets(scores: torch.Tensor, targets: torch.Tensor) -> None:
    if scores.ndim != 2 or targets.shape != scores.shape[:1]:
        raise ValueError(f"scores are {tuple(scores.shape)} and targets {tuple(targets.shape)}: pass (B, V) and (B,)")
    if len(targets) == 0:
        raise ValueError("targets is empty: a metric needs at least one user")
    if targets.min() < 0 or targets.max() >= scores.shape[1]:
        raise ValueError(
            f"targets holds ids {targets.min()} … {targets.max()}, but scores have V={scores.shape[1]} columns: "
            "pass ids from 0 to V − 1"
        )


def ranking_metrics(
    scores: torch.Tensor,
    targets: torch.Tensor,
    ks: Sequence[int] = (10, 100),
    seen: torch.Tensor | Sequence[Sequence[int]] | None = None,
) -> dict[str, float]:
    """``hr@k``, ``ndcg@k`` and ``auc`` over all items, as fractions; one target per user. See `rank_statistics` and `rank_metrics`."""
    return rank_metrics(rank_statistics(scores, targets, seen).numpy(force=True), ks)


def rank_metrics(statistics: np.ndarray, ks: Sequence[int] = (10, 100)) -> dict[str, float]:
    """Means over users: ``hr@k`` = [rank ≤ k], ``ndcg@k`` = [rank ≤ k] / log2(rank + 1), ``auc``.

    Args:
        statistics: (N, 2) as `rank_statistics` gives them.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    if statistics.ndim != 2 or statistics.shape[1] != 2 or len(statistics) == 0:
        raise ValueError(
            f"statistics has shape {statistics.shape}, not (users, 2): give the Trainer preprocess_logits_for_metrics=target_ranks."
        )
    return {name: float(values.mean()) for name, values in _per_user(statistics, ks).items()}


def _per_user(statistics: np.ndarray, ks: Sequence[int]) -> dict[str, np.ndarray]:
    rank, auc = statistics.T
    hits = {f"hr@{k}": (rank <= k).astype(float) for k in ks}
    gains = {f"ndcg@{k}": (rank <= k) / np.log2(rank + 1) for k in ks}
    return {**hits, **gains, "auc": auc}


def ranking_intervals(
    statistics: np.ndarray,
    ks: Sequence[int] = (10, 100),
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
) -> dict[str, tuple[float, float]]:
    """Bootstrap interval of each metric of `rank_metrics`, resampling users.

    Args:
        statistics: (N, 2), or (students, N, 2) of several models on the same users: then of their mean.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    per_student = [_per_user(values, ks) for values in statistics.reshape(-1, *statistics.shape[-2:])]
    means = {name: np.mean([values[name] for values in per_student], axis=0) for name in per_student[0]}
    return {name: bootstrap_interval(v, np.mean, confidence, resamples, seed) for name, v in means.items()}


def target_ranks(
    logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Of each user (rank, AUC) of the last item, among the items that the user has not had: (B, 2).

    Args:
        logits: (B, L, V), or a tuple that starts with them. The logits at position j score the item at j + 1; item 0 is the
            padding and no candidate.
        labels: (B, L) ids, −100 at padding, the last one being the target; or these and all ids that the user has had before,
            (B, S) padded with 0: what ``label_names=["labels", "seen"]`` gives for `farzi_hf.data.evaluation_windows`.
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    labels, seen = labels if isinstance(labels, tuple | list) else (labels, labels[:, :-1])
    rows, last = torch.arange(len(labels), device=labels.device), (labels != IGNORED).sum(1) - 1
    targets = labels[rows, last]
    scores = scores[rows, last - 1].float()
    scores[:, 0] = -torch.inf
    return rank_statistics(scores, targets, seen)


def recommendation_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `rank_metrics` of predictions that went through `target_ranks`."""
    return rank_metrics(eval_prediction.predictions)


# -- over students and resamples ---------------------------------------------------------------------------------------


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
    generator = stream(seed, Purpose.BOOTSTRAP)
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
