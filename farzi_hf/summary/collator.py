"""Batches for a model that takes soft tokens: a summary's sequences for training, ids for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.data import IGNORED, SequenceCollator
from farzi_hf.summary.config import FarziDataConfig
from farzi_hf.summary.forms import Tensors
from farzi_hf.summary.soft_tokens import soft_tokens


@dataclass
class SoftTokenCollator:
    """Turns rows into a batch for a model that went through `attach_soft_inputs`.

    Rows of `FarziData.as_dataset()` become `input_ids`, the soft tokens (b, ξ, V) or ids (b, ξ); `labels`, the soft tokens again, or
    (b, ξ + 1, V) if the summary has labels of its own; and `shift_labels`, the likeliest target of each prediction as an
    integer. `labels[:, j + 1]` is what position j predicts.

    Rows of ids, with `input_ids` of any lengths, become `input_ids`, padded with 0 on the right, `attention_mask`, `labels` (−100 at
    padding) and `shift_labels`, (b, L) each. Rows may have `attention_mask`, `labels` and `seen` (the items that a user has had, for
    `farzi_hf.metrics.target_ranks`). Other columns are left out.

    Trainer counts a batch's items on `shift_labels` if there are any. Without them it would count vocabulary entries, and
    divide the loss by a number V times too large.

    Raises:
        ValueError: a batch has rows of both kinds or of neither, or an id that is not in the vocabulary.
    """

    decoder: Tensor | None
    tau: float
    label_decoder: Tensor | None = None
    vocab_size: int | None = None

    @classmethod
    def of(cls, tensors: Tensors, config: FarziDataConfig) -> SoftTokenCollator:
        """The collator of a summary."""
        decoder, label_decoder = (
            tensors[name].detach().cpu().clone() if name in tensors else None for name in ("decoder", "label_decoder")
        )
        return cls(decoder, config.tau, label_decoder, config.vocab_size)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        inputs = [self._input(i, row) for i, row in enumerate(rows)]
        kinds = {x.ndim for x in inputs}
        if len(kinds) > 1:
            raise ValueError("rows mix soft sequences and ids; give the rows of one dataset")
        if self.label_decoder is not None and all(_has_latents(row, self.label_decoder) for row in rows):
            return self._own(inputs, rows)
        return self._soft(inputs) if kinds == {2} else self._hard(rows)

    def _input(self, i: int, row: Mapping[str, Any]) -> Tensor:
        """The latents (ξ, d) or ids (L,) of a row."""
        if "input_ids" not in row:
            raise ValueError(f"rows[{i}] has columns {list(row)}, but no 'input_ids'; tokenize the text first")
        x = torch.as_tensor(row["input_ids"])
        dim = None if self.decoder is None else self.decoder.shape[0]
        size = self.vocab_size or self.decoder.shape[1]
        name = f"rows[{i}]['input_ids']"
        if dim is not None and x.is_floating_point() and x.ndim == 2 and x.shape[1] == dim:
            return x.to(self.decoder.dtype)
        if x.ndim != 1 or (x.is_floating_point() and len(x)):  # an empty list has no type of its own
            raise ValueError(
                f"{name} is {x.dtype} of shape {tuple(x.shape)}; give ids (L,)"
                + ("" if dim is None else f", or latents (ξ, {dim}) of this summary")
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
        # transformers' models do not shift `shift_labels`, and expect them as long as the labels.
        return {**batch, "shift_labels": F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)}

    def _own(self, inputs: Sequence[Tensor], rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        latents = torch.stack([torch.as_tensor(row["labels"]) for row in rows]).to(self.label_decoder.dtype)
        # Labels of their own stand where shared ones do: `labels[:, 0]` is read by nobody.
        labels = soft_tokens(F.pad(latents, (0, 0, 1, 0)), self.label_decoder, 1.0)
        given = torch.stack(list(inputs))
        batch = {"labels": labels, "shift_labels": labels[:, 1:].argmax(-1)}
        if given.is_floating_point():
            return {"input_ids": soft_tokens(given, self.decoder, self.tau), **batch}
        return {"input_ids": given, "attention_mask": torch.ones_like(given), **batch}


def _has_latents(row: Mapping[str, Any], decoder: Tensor) -> bool:
    """Whether the labels of a row are latents (ξ, e)."""
    labels = torch.as_tensor(row["labels"]) if "labels" in row else torch.empty(0)
    return labels.is_floating_point() and labels.ndim == 2 and labels.shape[1] == decoder.shape[0]
