"""Training any causal language model on soft tokens with the stock `transformers.Trainer`.

```python
Trainer(model=attach_soft_inputs(model), train_dataset=farzi.as_dataset(), data_collator=farzi.collator(),
        compute_loss_func=soft_cross_entropy, args=args).train()
```
No method of Trainer is overridden: a hook feeds soft tokens to the model through its own input embedding, and the loss is an
argument of Trainer. The same model, collator and loss take ordinary token ids, so `evaluate` works on real data.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForCausalLMLoss

from farzi_hf.summary.soft_tokens import feed_soft_tokens, shifted_cross_entropy, train_padding_row


def attach_soft_inputs(model: PreTrainedModel) -> PreTrainedModel:
    """Lets `model(input_ids=…)` take soft tokens (b, L, V) as well as token ids (b, L); returns the same model.

    Soft tokens reach the model as `inputs_embeds = soft @ embedding(0 … V−1)`, so a one-hot soft token is exactly its id.
    Ids and all other arguments are not changed. Attaching twice is the same as attaching once. If the head shares the embedding, its
    padding row gets a gradient at the input too, as in the inner loop.

    Raises:
        ValueError: at the first batch, if the soft tokens have another number of entries than the model's vocabulary.
    """
    if feed_soft_tokens not in model._forward_pre_hooks.values():
        model.register_forward_pre_hook(feed_soft_tokens, with_kwargs=True)
    train_padding_row(model)
    # From a class name such as GPT2LMHeadModel transformers cannot tell that the loss shifts labels by one. Trainer would count
    # the first token of every real sequence as predicted, and `evaluate` would return too small a loss.
    if getattr(model, "loss_type", None) is None:
        model.loss_type = "ForCausalLM"
    return model


def soft_cross_entropy(outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
    """Next-token cross-entropy for Trainer's `compute_loss_func`, in nats per predicted token.

    Args:
        outputs: the model's output; its `logits (b, L, V)` at position j predict token j + 1.
        labels: soft tokens (b, L, V), or ids (b, L), where −100 is ignored. For ids, which `evaluate` passes on real data, the loss
            is transformers' own.
        num_items_in_batch: the predicted tokens of all accumulated micro-batches, as Trainer counts them. The summed loss is
            divided by it, so that accumulation equals one large batch. None takes the count of this batch.

    Raises:
        ValueError: there are no labels, or soft labels have another vocabulary than the logits.
    """
    if labels is None:
        raise ValueError("labels is None; use a data collator that returns labels, for instance farzi.collator()")
    logits = outputs["logits"]
    if not labels.is_floating_point():
        return ForCausalLMLoss(logits, labels, logits.shape[-1], num_items_in_batch)
    # As in transformers' own loss: half precision is too coarse for a log-sum-exp over thousands of entries.
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    loss, count = shifted_cross_entropy(logits, labels)
    return loss / (count if num_items_in_batch is None else torch.as_tensor(num_items_in_batch, device=loss.device))
