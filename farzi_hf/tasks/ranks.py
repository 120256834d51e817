"""The rank of a user's target among all items, from scores: what every recommender is measured by,
trained or counted.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farzi_hf.data.sequences import IGNORED
from farzi_hf.engine.devices import values_are_free


def are_last(labels: torch.Tensor, count: int) -> torch.Tensor:
    """(B, L): whether an item is one of the last `count` of its row. The first one never is, because
    nothing stands before it.

    Args:
        labels: (B, L) ids, −100 at padding.
    """
    is_item = labels != IGNORED
    from_end = is_item.flip(1).cumsum(1).flip(1)
    is_last = is_item & (from_end <= count)
    is_last[:, 0] = False
    return is_last


def rank_statistics(
    scores: torch.Tensor,
    targets: torch.Tensor,
    seen: torch.Tensor | Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """For each user, the rank of the target among all items, from 1, and the AUC: the share of
    other items that score lower.

    Among equal scores, the lower id ranks first; in the AUC, an equal score counts one half. A
    diverged model must not look good: a NaN score of another item counts as better than the target,
    and a NaN score of the target counts as worst.

    Args:
        scores: (B, V). An item with score −∞ is not a candidate and is ignored.
        targets: (B,) ids.
        seen: items that are not candidates: for each user a list of ids, or (B, S) ids in which
            negative ids are padding. The target stays a candidate, even if the user has had it
            before.

    Returns:
        float64 (B, 2).

    Raises:
        ValueError: shapes that do not match, or `targets` or `seen` have ids outside the columns of
            `scores`.
    """
    try:
        scores = torch.as_tensor(scores)
        targets = torch.as_tensor(targets)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"scores or targets are no numbers ({error}): pass (B, V) and (B,)"
        ) from None
    if scores.ndim != 2 or targets.shape != scores.shape[:1]:
        raise ValueError(
            f"scores are {tuple(scores.shape)} and targets {tuple(targets.shape)}: pass (B, V) and"
            " (B,)"
        )
    if values_are_free(targets):  # a GPU would have to be waited for
        _check_targets(targets, scores.shape[1])
    target_scores = scores.gather(1, targets[:, None])
    is_other = candidates(scores, seen).scatter_(1, targets[:, None], False)
    is_equal = (scores == target_scores) & is_other
    is_better = ~(scores <= target_scores) & is_other
    lower_ids = torch.arange(scores.shape[1], device=scores.device) < targets[:, None]
    counts = (is_other, is_better, is_equal, is_equal & lower_ids)
    # As bytes they are summed five times as fast as truth values are.
    others, better, equal, first = (
        each.view(torch.uint8).sum(1, dtype=torch.int32).double() for each in counts
    )
    auc = torch.where(others > 0, (others - better - equal / 2) / others.clamp(min=1), 1.0)
    return torch.stack([1 + better + first, auc], dim=1)


def _check_targets(targets: torch.Tensor, entries: int) -> None:
    outside = targets[(targets < 0) | (targets >= entries)]
    if len(outside):
        raise ValueError(
            f"targets have the id {int(outside[0])}, but scores are of the ids 0 to {entries - 1};"
            " give scores of all items"
        )


def candidates(
    scores: torch.Tensor, ids: torch.Tensor | Sequence[Sequence[int]] | None
) -> torch.Tensor:
    """(B, V): whether an item's score is not −∞, and the item is none of the ids that the user has
    seen; negative ids are padding.
    """
    has_score = scores != -torch.inf
    if ids is None:
        return has_score
    if not isinstance(ids, torch.Tensor):
        rows = [torch.as_tensor(row, dtype=torch.long) for row in ids]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)
    if len(ids) != len(scores) or (ids.numel() and ids.max() >= scores.shape[1]):
        most = ids.max() if ids.numel() else None
        raise ValueError(
            f"seen holds ids of {len(ids)} users up to {most}, but scores are {tuple(scores.shape)}"
        )
    # Padding goes to a column of its own, which is cut off again.
    users, entries = scores.shape
    is_seen = torch.zeros(users, entries + 1, dtype=torch.bool, device=scores.device)
    ids = ids.to(scores.device)
    is_seen.scatter_(1, torch.where(ids < 0, entries, ids), True)
    return has_score & ~is_seen[:, :-1]
