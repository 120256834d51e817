"""Soft tokens, and batches for a model that takes them: of a summary's sequences to train on, of ids to evaluate on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.data import IGNORED, SequenceCollator
from farzi_hf.summary.soft_tokens import soft_tokens


@dataclass
class SoftTokenCollator:
    """Turns rows into a batch for a model that went through `attach_soft_inputs`.

    Of rows of `FarziData.as_dataset()`: `input_ids` and `labels`, both the soft tokens (b, ξ, V), and `shift_labels
    (b, ξ − 1)`, the likeliest target of each prediction as an integer.

    Of rows of ids, `input_ids` of any lengths: `input_ids`, padded with 0 on the right, `attention_mask`, `labels` (−100 at
    padding) and `shift_labels`, (b, L) each. Rows may bring `attention_mask`, `labels` and `seen` (what a user has had, for
    `farzi_hf.metrics.target_ranks`); other columns are left out.

    Trainer counts a batch's items on `shift_labels` where there is one; without it, it would count vocabulary entries and
    divide the loss by V times too much.

    Raises:
        ValueError: rows of both kinds in one batch, or of neither, or an id that the vocabulary lacks.
    """

    decoder: Tensor
    tau: float

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        inputs = [self._input(i, row) for i, row in enumerate(rows)]
        kinds = {x.ndim for x in inputs}
        if len(kinds) > 1:
            raise ValueError("rows mix soft sequences and ids; give the rows of one dataset")
        return self._soft(inputs) if kinds == {2} else self._hard(rows)

    def _input(self, i: int, row: Mapping[str, Any]) -> Tensor:
        """The latents (ξ, d) or ids (L,) of a row."""
        if "input_ids" not in row:
            raise ValueError(f"rows[{i}] has columns {list(row)}, but no 'input_ids'; tokenize the text first")
        x = torch.as_tensor(row["input_ids"])
        (dim, size), name = self.decoder.shape, f"rows[{i}]['input_ids']"
        if x.is_floating_point() and x.ndim == 2 and x.shape[1] == dim:
            return x.to(self.decoder.dtype)
        if x.ndim != 1 or (x.is_floating_point() and len(x)):  # an empty list has no type of its own
            raise ValueError(
                f"{name} is {x.dtype} of shape {tuple(x.shape)}; give ids (L,), or latents (ξ, {dim}) of this summary"
            )
        outside = x[(x < 0) | (x >= size)]
        if len(outside):
            raise ValueError(
                f"{name} holds id {outside[0]}, outside 0 … {size - 1}; use the tokenizer or item list that the summary was distilled with"
            )
        return x.long()

    def _soft(self, latents: Sequence[Tensor]) -> dict[str, Tensor]:
        soft = soft_tokens(torch.stack(list(latents)), self.decoder, self.tau)
        return {"input_ids": soft, "labels": soft, "shift_labels": soft[:, 1:].argmax(-1)}

    def _hard(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = SequenceCollator()(rows)
        # As transformers' models expect it, which then do not shift: as long as the labels.
        return {**batch, "shift_labels": F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)}
