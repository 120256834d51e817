"""Training any causal language model on soft tokens with the stock `transformers.Trainer`.

```python
Trainer(model=attach_soft_inputs(model),
        train_dataset=farzi.as_dataset(), data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy, args=args).train()
```

No method of Trainer is overridden: a hook feeds soft tokens to the model through its own input
embedding, and the loss is an argument of Trainer. The same model, collator and loss take ordinary
token ids, so `evaluate` works on real data.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from farzi_hf.data import IGNORED, SequenceCollator
from farzi_hf.summary.forms import Forms, Tensors
from farzi_hf.summary.forms.common_inputs import checked_ids
from farzi_hf.summary.soft_tokens import (
    check_is_model,
    feed_soft_tokens,
    shifted_cross_entropy,
    train_padding_row,
)


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
    check_is_model(model)
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
    model._held = None  # soft labels, and how many items Trainer counts
    if isinstance(labels, Tensor) and labels.is_floating_point():
        model._held = labels, kwargs.get("num_items_in_batch")
        kwargs = {
            key: kwargs[key]
            for key in kwargs.keys() - {"labels", "shift_labels", "num_items_in_batch"}
        }
    return args, kwargs


def _soft_loss(model: PreTrainedModel, args: tuple, outputs: Any) -> Any:
    """Gives the output the loss of the labels that were kept."""
    if model._held is not None:
        outputs["loss"] = soft_cross_entropy(outputs, *model._held)
        model._held = None
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
    if num_items_in_batch is None:
        return loss / count
    return loss / torch.as_tensor(num_items_in_batch, device=loss.device)


def _nothing() -> None:
    """Of a collator that nobody listens to."""


@dataclass
class SoftTokenCollator:
    """Turns rows into a batch for a model that went through `attach_soft_inputs`.

    Rows of `FarziData.as_dataset()` become `input_ids`, the soft tokens (b, ξ, V) or ids (b, ξ);
    `labels`, the soft tokens again, or (b, ξ + 1, V) if the summary has labels of its own or a
    teacher; and `shift_labels`, the likeliest target of each prediction as an integer.
    `labels[:, j + 1]` is what position j predicts. The forms of the summary know its rows and
    complete them.

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

    forms: Forms
    """Of the summary, for the CPU."""

    shared: Tensors
    """The tensors that all its rows share, on the CPU."""

    on_rows: Callable[[], None] = _nothing
    """Called before a batch of the summary's rows is made."""

    @torch.no_grad()
    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        values = [_input_of(i, row) for i, row in enumerate(rows)]
        of_summary = {self.forms.knows(x, row) for x, row in zip(values, rows, strict=True)}
        if len(of_summary) > 1:
            raise ValueError("rows mix soft sequences and ids; give the rows of one dataset")
        if of_summary == {False}:
            return self._evaluated(values, rows)
        self.on_rows()
        read = self.forms.inputs.collated(values, self.shared)
        labels = self.forms.labels.collated(rows, read["input_ids"], self.shared)
        targets = labels[:, 1:]
        # A distribution has the sum 1; where nothing is predicted, all is 0.
        predicts = targets.sum(-1) > 0
        likeliest = targets.argmax(-1).masked_fill(~predicts, IGNORED)
        return {**read, "labels": labels, "shift_labels": likeliest}

    def _evaluated(
        self, values: Sequence[Tensor], rows: Sequence[Mapping[str, Any]]
    ) -> dict[str, Tensor]:
        """A batch of rows of ids."""
        inputs = self.forms.inputs
        for i, x in enumerate(values):
            checked_ids(i, x, inputs.config.vocab_size, inputs.wanted)
        batch = SequenceCollator()(rows)
        # transformers' models do not shift `shift_labels`, and expect them as long as the labels.
        return {**batch, "shift_labels": F.pad(batch["labels"][:, 1:], (0, 1), value=IGNORED)}


def _input_of(i: int, row: Mapping[str, Any]) -> Tensor:
    """The latents (ξ, d) or ids (L,) of row i of a batch."""
    if "input_ids" not in row:
        raise ValueError(
            f"rows[{i}] has columns {list(row)}, but no 'input_ids'; tokenize the text first"
        )
    return torch.as_tensor(row["input_ids"])
