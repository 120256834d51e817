"""Training any causal language model on soft tokens with the stock `transformers.Trainer`.

```python
Trainer(model=attach_soft_inputs(model), train_dataset=farzi.as_dataset(), data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy, args=args).train()
```
Nothing of Trainer is overridden: a hook feeds soft tokens to the model through its own input embedding, and the loss goes
in where Trainer asks for one. The same model, collator and loss take ordinary token ids, so `evaluate` works on real data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from farzi_hf.summary.soft_tokens import feed_soft_tokens, shifted_cross_entropy, train_padding_row


def attach_soft_inputs(model: PreTrainedModel) -> PreTrainedModel:
    """Lets `model(input_ids=…)` take soft tokens (b, L, V) beside token ids (b, L); returns the same model.

    Soft tokens reach the model as `inputs_embeds = soft @ embedding(0 … V−1)`: a one-hot soft token is exactly its id.
    Ids, and everything else, pass through untouched. Attaching twice is the same as once. A padding row that the head
    shares is trained at the input too, as in the inner loop.

    Raises:
        ValueError: at the first batch, if soft tokens are not over the model's whole vocabulary.
    """
    if feed_soft_tokens not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(feed_soft_tokens, with_kwargs=True)
    train_padding_row(model)
    # Class names such as GPT2LMHeadModel do not tell transformers that the loss shifts labels by one. Trainer then counts
    # the first token of every real sequence as predicted, and evaluates to a loss that is too small.
    if getattr(model, "loss_type", None) is None:
        model.loss_type = "ForCausalLM"
    return model


def soft_cross_entropy(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Next-token cross-entropy for Trainer's `compute_loss_func`, in nats per predicted token.

    Args:
        outputs: the model's output; its `logits (b, L, V)` at position j predict token j + 1.
        labels: soft tokens (b, L, V), or ids (b, L) where −100 is ignored (what `evaluate` passes on real data): of these it
            is transformers' own loss.
        num_items_in_batch: predicted tokens over all accumulated micro-batches, which Trainer counts; the sum is
            divided by it, so that accumulation equals one large batch. Without it: those of this batch.

    Raises:
        ValueError: no labels, or soft labels over another vocabulary than the logits'.
    """
    if labels is None:
        raise ValueError("labels is None; use a data collator that returns labels, for instance farzi.collator()")
    logits = outputs["logits"]
    if not labels.is_floating_point():
        return ForCausalLMLoss(logits, labels, logits.shape[-1], num_items_in_batch)
    # Like transformers' own loss: a log-sum-exp over thousands of entries is too coarse in half precision.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss, count = shifted_cross_entropy(logits, labels)
    return loss / (count if num_items_in_batch is None else torch.as_tensor(num_items_in_batch, device=loss.device))
