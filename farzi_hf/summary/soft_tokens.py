"""Soft tokens: the softmax that computes them, the embedding that feeds them to a model, and the loss on them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel


def soft_tokens(latents: Tensor, decoder: Tensor, tau: float) -> Tensor:
    """`softmax(latents @ decoder / τ)`: latents (…, d) and decoder (d, V) give probabilities (…, V)."""
    return torch.softmax(latents @ decoder / tau, dim=-1)


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
        labels = labels.to(logits.dtype)
        # The compiler fuses the plain formula, and it cannot differentiate an autograd.Function twice.
        cross_entropy = _plain_soft_cross_entropy if torch.compiler.is_compiling() else _SoftCrossEntropy.apply
        return cross_entropy(logits, labels), logits.new_tensor(labels[:, 1:, 0].numel())
    targets = labels[:, 1:]
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return loss, (targets != -100).sum()


def _plain_soft_cross_entropy(z: Tensor, q: Tensor) -> Tensor:
    return -(q[:, 1:] * z[:, : q.shape[1] - 1].log_softmax(-1)).sum()


class _SoftCrossEntropy(torch.autograd.Function):
    """Σ_j [logsumexp(z_j) - q_{j+1}·z_j] of logits z (b, L, V) and soft tokens q (b, n + 1, V), twice differentiable.

    The first n = L − 1 or n = L positions of z predict something.

    It keeps the probabilities p = softmax(z) and no other tensor of that size. It takes one sequence at a time, so that
    (L, V) numbers stay in the processor's cache, and shifts by indexing, so that autograd never pads a slice with zeros.
    With s = dloss: dz_j = s (p_j - q_{j+1}), dq_{j+1} = -s z_j; the derivative of dz is `_SoftCrossEntropyGradient.backward`.
    """

    @staticmethod
    def forward(ctx, z: Tensor, q: Tensor) -> Tensor:
        p = torch.empty_like(z)
        loss = z.new_zeros(())
        n = q.shape[1] - 1
        for z_i, q_i, p_i in zip(z[:, :n], q[:, 1:], p[:, :n], strict=True):
            torch.softmax(z_i, -1, out=p_i)
            logsumexp = z_i.amax(-1) - p_i.amax(-1).log()
            loss += (logsumexp - torch.linalg.vecdot(q_i, z_i)).sum()
        ctx.save_for_backward(z, q, p)
        return loss

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, q, p = ctx.saved_tensors
        dz = _SoftCrossEntropyGradient.apply(z, q, p, dloss) if ctx.needs_input_grad[0] else None
        dq = -dloss * F.pad(z[:, : q.shape[1] - 1], (0, 0, 1, 0)) if ctx.needs_input_grad[1] else None
        return dz, dq


class _SoftCrossEntropyGradient(torch.autograd.Function):
    """dz = dloss (p - q) as a function of z, q and dloss. p = softmax(z) is passed to be reused, and is not differentiated."""

    @staticmethod
    def forward(ctx, z: Tensor, q: Tensor, p: Tensor, dloss: Tensor) -> Tensor:
        dz = torch.empty_like(p)
        n = q.shape[1] - 1
        dz[:, n:] = 0.0
        for dz_i, q_i, p_i in zip(dz[:, :n], q[:, 1:], p[:, :n], strict=True):
            torch.sub(p_i, q_i, out=dz_i).mul_(dloss)
        ctx.save_for_backward(q, p, dloss)
        return dz

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, u: Tensor) -> tuple[Tensor, Tensor | None, None, Tensor]:
        q, p, dloss = ctx.saved_tensors
        z_grad, ddloss = torch.empty_like(u), torch.zeros_like(dloss)
        q_grad = torch.empty_like(q) if ctx.needs_input_grad[1] else None
        n = q.shape[1] - 1
        z_grad[:, n:] = 0.0
        for i in range(len(u)):
            u_i, p_i = u[i, :n], p[i, :n]
            pu = torch.linalg.vecdot(p_i, u_i)
            torch.sub(u_i, pu[:, None], out=z_grad[i, :n]).mul_(p_i).mul_(dloss)
            ddloss += pu.sum() - torch.linalg.vecdot(q[i, 1:], u_i).sum()
            if q_grad is not None:
                q_grad[i, 0] = 0.0
                torch.mul(u_i, -dloss, out=q_grad[i, 1:])
        return z_grad, q_grad, None, ddloss


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
