"""Training any causal language model on soft tokens with the stock `transformers.Trainer`.

```python
Trainer(model=attach_soft_inputs(model), train_dataset=farzi.as_dataset(), data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy, args=args).train()
``` No method of Trainer is overridden: a hook feeds soft tokens to the model through its own input
embedding, and the loss is an argument of Trainer. The same model, collator and loss take ordinary
token ids, so `evaluate` works on real data.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from farzi_hf.data import IGNORED, SequenceCollator
from farzi_hf.summary.soft_tokens import (
    feed_soft_tokens,
    shifted_cross_entropy,
    soft_tokens,
    train_padding_row,
)
from farzi_hf.summary.teacher import CarriedTeacher


def attach_soft_inputs(model: PreTrainedModel) -> PreTrainedModel:
    """Lets `model(input_ids=…)` take soft tokens (b, L, V) as well as token ids (b, L); returns the
    same model.

    Soft tokens reach the model as `inputs_embeds = soft @ embedding(0 … V−1)`, so a one-hot soft
    token is exactly its id. Ids and all other arguments are not changed. Attaching twice is the
    same as attaching once. If the head shares the embedding, its padding row gets a gradient at the
    input too, as in the inner loop. Of soft labels, the model's own loss is `soft_cross_entropy`,
    so a Trainer without `compute_loss_func` takes it too.

    Raises:
        ValueError: at the first batch, if the soft tokens have another number of entries than the
            model's vocabulary.
    """
    if feed_soft_tokens not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(feed_soft_tokens, with_kwargs=True)
        model.register_forward_pre_hook(_hold_soft_labels, with_kwargs=True)
        model.register_forward_hook(_soft_loss)
    train_padding_row(model)
    # From a class name such as GPT2LMHeadModel transformers cannot tell that the loss shifts labels
    # by one. Trainer would count the first token of every real sequence as predicted, and
    # `evaluate` would return too small a loss.
    if getattr(model, "loss_type", None) is None:
        model.loss_type = "ForCausalLM"
    return model


def _hold_soft_labels(
    model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]
) -> tuple[tuple, dict[str, Any]]:
    """Keeps soft labels from the model, which would train on `shift_labels`, their likeliest ids,
    in their place.
    """
    labels = kwargs.get("labels")
    model._held = None
    if isinstance(labels, Tensor) and labels.is_floating_point():
        model._held = labels, kwargs.get("num_items_in_batch")
        kwargs = {
            key: kwargs[key]
            for key in kwargs.keys() - {"labels", "shift_labels", "num_items_in_batch"}
        }
    return args, kwargs


def _soft_loss(model: PreTrainedModel, args: tuple, outputs: Any) -> Any:
    if model._held is not None:
        outputs["loss"], model._held = soft_cross_entropy(outputs, *model._held), None
    return outputs


def soft_cross_entropy(
    outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None
) -> Tensor:
    """Next-token cross-entropy for Trainer's `compute_loss_func`, in nats per predicted token.

    Args:
        outputs: the model's output; its `logits (b, L, V)` at position j predict token j + 1.
        labels: soft tokens (b, L, V), or ids (b, L), where −100 is ignored. For ids, which
            `evaluate` passes on real data, the loss is transformers' own.
        num_items_in_batch: the predicted tokens of all accumulated micro-batches, as Trainer counts
            them. The summed loss is divided by it, so that accumulation equals one large batch.
            None takes the count of this batch.

    Raises:
        ValueError: there are no labels, or soft labels have another vocabulary than the logits.
    """
    if labels is None:
        raise ValueError(
            "labels is None; use a data collator that returns labels, for instance farzi.collator()"
        )
    logits = outputs["logits"]
    if not labels.is_floating_point():
        return ForCausalLMLoss(logits, labels, logits.shape[-1], num_items_in_batch)
    # As in transformers' own loss: half precision is too coarse for a log-sum-exp over thousands of
    # entries.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss, count = shifted_cross_entropy(logits, labels)
    return loss / (
        count
        if num_items_in_batch is None
        else torch.as_tensor(num_items_in_batch, device=loss.device)
    )


@dataclass
class SoftTokenCollator:
    """Turns rows into a batch for a model that went through `attach_soft_inputs`.

    Rows of `FarziData.as_dataset()` become `input_ids`, the soft tokens (b, ξ, V) or ids (b, ξ);
    `labels`, the soft tokens again, or (b, ξ + 1, V) if the summary has labels of its own; and
    `shift_labels`, the likeliest target of each prediction as an integer. `labels[:, j + 1]` is
    what position j predicts.

    Rows of a summary that carries a teacher are ids (ξ,) with `labels` without numbers, (ξ, 0). The
    teacher labels the batch.

    Rows of ids, with `input_ids` of any lengths, become `input_ids`, padded with 0 on the right,
    `attention_mask`, `labels` (−100 at padding) and `shift_labels`, (b, L) each. Rows may have
    `attention_mask`, `labels` and `seen` (the items that a user has had, for
    `farzi_hf.metrics.target_ranks`). Other columns are left out.

    Trainer counts a batch's items on `shift_labels` if there are any. Without them it would count
    vocabulary entries, and divide the loss by a number V times too large.

    Raises:
        ValueError: a batch has rows of both kinds or of neither, or an id that is not in the
            vocabulary.
    """

    decoder: Tensor | None
    tau: float
    label_decoder: Tensor | None = None
    vocab_size: int | None = None
    teacher: CarriedTeacher | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        inputs = [self._input(i, row) for i, row in enumerate(rows)]
        if len({x.ndim for x in inputs}) > 1:
            raise ValueError("rows mix soft sequences and ids; give the rows of one dataset")
        labels = self._labels(inputs, rows)
        if labels is None and inputs[0].ndim == 1:
            batch = SequenceCollator()(rows)
            # transformers' models do not shift `shift_labels`, and expect them as long as the
            # labels.
            return {**batch, "shift_labels": F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)}
        given = torch.stack(inputs)
        read = {"input_ids": given, "attention_mask": torch.ones_like(given)}
        if given.ndim == 3:
            read = {"input_ids": soft_tokens(given, self.decoder, self.tau)}
        labels = read["input_ids"] if labels is None else labels
        return {**read, "labels": labels, "shift_labels": labels[:, 1:].argmax(-1)}

    def _input(self, i: int, row: Mapping[str, Any]) -> Tensor:
        """The latents (ξ, d) or ids (L,) of a row."""
        if "input_ids" not in row:
            raise ValueError(
                f"rows[{i}] has columns {list(row)}, but no 'input_ids'; tokenize the text first"
            )
        x = torch.as_tensor(row["input_ids"])
        dim = None if self.decoder is None else self.decoder.shape[0]
        size = self.vocab_size or self.decoder.shape[1]
        name = f"rows[{i}]['input_ids']"
        if dim is not None and x.is_floating_point() and x.ndim == 2 and x.shape[1] == dim:
            return x.to(self.decoder.dtype)
        if x.ndim != 1 or (
            x.is_floating_point() and len(x)
        ):  # an empty list has no type of its own
            latents = "" if dim is None else f", or latents (ξ, {dim}) of this summary"
            raise ValueError(
                f"{name} is {x.dtype} of shape {tuple(x.shape)}; give ids (L,){latents}"
            )
        outside = x[(x < 0) | (x >= size)]
        if len(outside):
            raise ValueError(
                f"{name} holds id {outside[0]}, outside 0 … {size - 1}; use the summary's tokenizer"
            )
        return x.long()

    @torch.no_grad()
    def _labels(self, inputs: Sequence[Tensor], rows: Sequence[Mapping[str, Any]]) -> Tensor | None:
        """(b, ξ + 1, V) of rows with labels of their own, or of a teacher's. They stand where
        shared ones do: nobody reads `labels[:, 0]`.
        """
        if self.label_decoder is not None and all(
            _has_latents(row, self.label_decoder) for row in rows
        ):
            latents = torch.stack([torch.as_tensor(row["labels"]) for row in rows]).to(
                self.label_decoder.dtype
            )
            return soft_tokens(F.pad(latents, (0, 0, 1, 0)), self.label_decoder, 1.0)
        if self.teacher is not None and all(_has_latents(row, torch.empty(0, 0)) for row in rows):
            labels = self.teacher.labels(self.teacher.tensors, torch.stack(inputs)).probabilities()
            return F.pad(labels, (0, 0, 1, 0))
        return None


def _has_latents(row: Mapping[str, Any], decoder: Tensor) -> bool:
    """Whether the labels of a row are latents (ξ, e)."""
    labels = torch.as_tensor(row["labels"]) if "labels" in row else torch.empty(0)
    return labels.is_floating_point() and labels.ndim == 2 and labels.shape[1] == decoder.shape[0]
