"""Rows of ids as batches: padded on the right, with what is to be predicted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

IGNORED = -100  # transformers' label of a position that is not predicted


@dataclass(frozen=True)
class SequenceCollator:
    """Rows with `input_ids` of any lengths as `input_ids`, `attention_mask` and `labels`, (b, L) each.

    Rows may bring `attention_mask`, `labels` and `seen` (what a user has had, for `farzi_hf.metrics.target_ranks`); other columns
    are left out. Labels are the ids where rows bring none, and −100 at padding. Padding is told by its place rather than by its id:
    a tokenizer that pads with EOS, or with nothing, still has EOS predicted.

    Args:
        padding_id: the id of a token that only pads, as rows may bring it themselves: it is never predicted.
    """

    padding_id: int | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        ids = [torch.as_tensor(row["input_ids"], dtype=torch.long) for row in rows]
        given = {
            name: [torch.as_tensor(row[name], dtype=torch.long) for row in rows] for name in _FILL if name in rows[0]
        }
        columns = {"attention_mask": [torch.ones_like(x) for x in ids], **given}
        batch = {name: pad_sequence(column, True, _FILL[name]) for name, column in columns.items()}
        batch = {"input_ids": pad_sequence(ids, True, self.padding_id or 0), **batch}
        unpredicted = batch["attention_mask"] == 0
        if "labels" not in given and self.padding_id is not None:
            unpredicted |= batch["input_ids"] == self.padding_id
        labels = batch.get("labels", batch["input_ids"]).masked_fill(unpredicted, IGNORED)
        return {**batch, "labels": labels}


_FILL = {"attention_mask": 0, "labels": IGNORED, "seen": 0}
