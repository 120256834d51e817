"""Hit rate, nDCG and AUC from two numbers per user. Evaluation therefore never stores scores of size users × V.

`target_ranks` is a Trainer's ``preprocess_logits_for_metrics`` and `recommendation_metrics` its ``compute_metrics``. The first
passes one array of shape (users, 2) to the second: rank, AUC.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from farzi_hf.data import IGNORED
from farzi_hf.tasks.metrics.resampling import bootstrap_interval

if TYPE_CHECKING:
    from transformers import EvalPrediction


def rank_statistics(
    scores: torch.Tensor, targets: torch.Tensor, seen: torch.Tensor | Sequence[Sequence[int]] | None = None
) -> torch.Tensor:
    """For each user, the rank of the target among all items, from 1, and the AUC: the share of other items that score lower.

    Among equal scores, the lower id ranks first; in the AUC, an equal score counts one half. A diverged model must not look
    good: a NaN score of another item counts as better than the target, and a NaN score of the target counts as worst.

    Args:
        scores: (B, V). An item with score −∞ is not a candidate and is ignored.
        targets: (B,) ids.
        seen: items that are not candidates: for each user a list of ids, or (B, S) ids in which negative ids are padding. The
            target stays a candidate, even if the user has had it before.

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
        statistics: (N, 2), or (students, N, 2) for several models on the same users; the interval is then that of their mean.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    per_student = [_per_user(values, ks) for values in statistics.reshape(-1, *statistics.shape[-2:])]
    means = {name: np.mean([values[name] for values in per_student], axis=0) for name in per_student[0]}
    return {name: bootstrap_interval(v, np.mean, confidence, resamples, seed) for name, v in means.items()}


def target_ranks(
    logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """(rank, AUC) of each user's last item, among the items that the user has not had: (B, 2).

    Args:
        logits: (B, L, V), or a tuple that starts with them. The logits at position j score the item at j + 1. Item 0 is the
            padding and never a candidate.
        labels: (B, L) ids, −100 at padding, on whichever side; the last id is the target. Or a pair: these labels, and all ids that the user has
            had before, (B, S), padded with 0. ``label_names=["labels", "seen"]`` gives the pair for
            `farzi_hf.data.evaluation_windows`.
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    labels, seen = labels if isinstance(labels, tuple | list) else (labels, labels[:, :-1])
    rows, items = torch.arange(len(labels), device=labels.device), (labels != IGNORED).cumsum(1)
    if (few := items[:, -1] < 2).any():
        row = int(few.nonzero()[0])
        raise ValueError(f"labels[{row}] has no item before the target: give histories of at least two items")
    last = items.argmax(1)  # the first place where all items have been
    targets = labels[rows, last]
    scores = scores[rows, last - 1].float()
    scores[:, 0] = -torch.inf
    return rank_statistics(scores, targets, seen)


def recommendation_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `rank_metrics` of predictions that went through `target_ranks`."""
    return rank_metrics(eval_prediction.predictions)
