"""Batches of rows of ids: padded on the right, with the labels to predict."""

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
    """Makes `input_ids`, `attention_mask` and `labels`, (b, L) each, of rows with `input_ids` of any lengths.

    Rows may have `attention_mask`, `labels` and `seen` (the items that a user has had, for `farzi_hf.metrics.target_ranks`). Other columns
    are left out. Without labels in the rows, the labels are the ids. At padding labels are −100. Padding is known by its place and not by
    its id, so EOS is predicted even if the tokenizer pads with EOS or has no padding token.

    Args:
        padding_id: the id of a token that is only used for padding. Rows may contain it already; it is never predicted.
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
