"""Summaries that are rows of the user's data with weights. `FarziData.from_rows` calls this."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from farzi_hf.summary.config import FarziDataConfig
from farzi_hf.summary.forms import RealLabels, RowInputs
from farzi_hf.summary.forms.rows import ROWS, WEIGHTS, packed
from farzi_hf.summary.origins import CHOSEN

if TYPE_CHECKING:
    from farzi_hf.summary.farzi_data import FarziData


def summary_of_rows(
    kind: type[FarziData],
    rows: Sequence[Mapping[str, Any]] | Iterable[Mapping[str, Any]],
    weights: Tensor | Sequence[float],
    tokenizer: Any,
    vocab_size: int,
    sequence_length: int,
) -> FarziData:
    """See `FarziData.from_rows`. `kind` is the class of the summary."""
    weights = torch.as_tensor(weights, dtype=torch.float32).detach().cpu().clone()
    rows = list(rows)
    if weights.shape != (len(rows),):
        raise ValueError(
            f"weights has the shape {tuple(weights.shape)}, but there are {len(rows)} rows; give one"
            " for each"
        )
    if not bool(weights.isfinite().all()) or bool((weights < 0).any()) or not bool(weights.any()):
        raise ValueError(
            "weights has negative numbers, or some that are not finite, or zeros alone; give"
            " positive numbers for the rows that stay"
        )
    stays = weights > 0
    # A row that stays has the weight 1 on average.
    weights = weights / weights[stays].mean()
    content = packed([row for row, kept in zip(rows, stays.tolist(), strict=True) if kept])
    config = FarziDataConfig(
        int(stays.sum()),
        sequence_length,
        vocab_size=vocab_size,
        inputs=RowInputs.name,
        labels=RealLabels.name,
        origin=CHOSEN.name,
        num_rows=len(rows),
        row_words=len(content),
    )
    return kind(config, tokenizer, {ROWS: content, WEIGHTS: weights})
