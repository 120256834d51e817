"""Soft tokens: the softmax that computes them, the embedding that feeds them to a model, and the loss on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from farzi_hf.summary.targets import SoftTokens


def soft_tokens(latents: Tensor, decoder: Tensor, tau: float) -> Tensor:
    """`softmax(latents @ decoder / τ)`: latents (…, d) and decoder (d, V) give probabilities (…, V)."""
    return SoftTokens(latents, decoder, tau).probabilities()


def shifted_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed next-token cross-entropy and the number of predicted tokens.

    Args:
        logits: (b, L, V); position j predicts token j + 1.
        labels: integer ids (b, L), where -100 is ignored; or soft tokens (b, L, V) or (b, L + 1, V) that sum to one over V.
            `labels[:, j + 1]` is what position j predicts, so with L + 1 labels every position predicts one.

    Returns:
        The loss summed over tokens, in nats, and the token count, both scalars. With soft labels q, a token's loss is -Σ_v q_v log p_v.
    """
    if labels.is_floating_point():
        (size, length, entries), found = logits.shape, tuple(labels.shape)
        if found not in ((size, length, entries), (size, length + 1, entries)):
            raise ValueError(
                f"labels: soft tokens of shape {found}, but the logits are {tuple(logits.shape)}; "
                "give the model the summary's vocabulary size (config.vocab_size) and batches of its sequence length"
            )
        predicted = labels[:, 1:].to(logits.dtype)
        log_p = logits[:, : predicted.shape[1]].log_softmax(-1)
        return -(predicted * log_p).sum(), logits.new_tensor(predicted[..., 0].numel())
    targets = labels[:, 1:]
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return loss, (targets != -100).sum()


def embed_soft_tokens(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """(b, L, V) probabilities → (b, L, h): the mean input embedding under each distribution.

    The embedding module itself is called on all ids, because some modules scale their output (Gemma's does).
    """
    embedding = model.get_input_embeddings()
    table = embedding(torch.arange(tokens.shape[-1], device=tokens.device))
    return tokens.to(table.dtype) @ table


def feed_soft_tokens(model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook (`with_kwargs=True`): floating-point `input_ids` (b, L, V) reach the model as `inputs_embeds`."""
    soft = kwargs.get("input_ids", args[0] if args else None)
    if not (isinstance(soft, Tensor) and soft.is_floating_point()):
        return args, kwargs
    entries = vocabulary_size(model)
    if soft.shape[-1] != entries:
        raise ValueError(
            f"input_ids holds soft tokens over {soft.shape[-1]} entries, but the model's vocabulary has {entries}; "
            "build the model with vocab_size=farzi.config.vocab_size"
        )
    # Autocast would round the product to half precision, and a one-hot token would no longer be exactly its id.
    with torch.autocast(soft.device.type, enabled=False):
        embeds = embed_soft_tokens(model, soft)
    # Only Trainer needs shift_labels, for counting. A model without **kwargs would raise TypeError.
    kept = {key: value for key, value in kwargs.items() if key not in ("input_ids", "shift_labels")}
    return (None, *args[1:]) if args else (), {**kept, "inputs_embeds": embeds}


def train_padding_row(model: PreTrainedModel) -> None:
    """Gives a tied embedding's padding row its gradient at the input too, which torch leaves out.

    The head trains that row in any case. Without its part at the input, the derivative of a training would be wrong.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and head.weight is embedding.weight:
        embedding.padding_idx = None


def vocabulary_size(model: PreTrainedModel) -> int:
    """V: the entries of the model's input embedding."""
    return model.get_input_embeddings().weight.shape[0]
