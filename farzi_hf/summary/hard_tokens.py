"""Hard tokens: ids drawn from the soft tokens of a summary, or the likeliest ones."""

from __future__ import annotations

import torch
from torch import Tensor

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.models.next_item import check_size
from farzi_hf.summary.forms import Tensors
from farzi_hf.summary.soft_tokens import soft_tokens

CHUNK = 512
"""Positions whose V probabilities exist at the same time."""


@torch.no_grad()
def hard_tokens(latents: Tensor, decoder: Tensor, tau: float, samples: int | None, seed: int, *part: int) -> Tensor:
    """Ids (μ·n, ξ), the rows of one synthetic sequence one after the other.

    Args:
        latents, decoder: (μ, ξ, d) and (d, V).
        tau: τ.
        samples: n, the draws per synthetic sequence. Every position is drawn from its own distribution. With None, n is 1 and each
            position has its likeliest token.
        seed: of the draws.
        part: tells other draws of the same seed apart.
    """
    generator = torch.Generator(latents.device).manual_seed(derive(seed, Purpose.HARD_TOKENS, *part))
    drawn = []
    for chunk in latents.flatten(0, 1).split(CHUNK):
        p = soft_tokens(chunk, decoder, tau)
        if samples is None:
            drawn.append(p.argmax(-1, keepdim=True))
        else:
            drawn.append(torch.multinomial(p, samples, replacement=True, generator=generator))
    by_position = torch.cat(drawn).view(*latents.shape[:2], samples or 1)
    return by_position.transpose(1, 2).flatten(0, 1)


def hard_ids(tensors: Tensors, tau: float, samples: int | None, seed: int) -> Tensor:
    """The inputs of a summary as ids, (μ·n, ξ). Inputs that are ids come n times.

    Raises:
        ValueError: n is below 1.
    """
    if samples is not None:
        check_size("samples_per_sequence", samples, 1)
    if "input_ids" in tensors:
        return tensors["input_ids"].long().repeat_interleave(samples or 1, dim=0)
    return hard_tokens(tensors["latents"], tensors["decoder"], tau, samples, seed)


def hard_labels(tensors: Tensors, ids: Tensor, samples: int | None, seed: int) -> Tensor:
    """The labels that belong to `hard_ids`, (μ·n, ξ): a student predicts `labels[:, j + 1]` after position j."""
    if "label_latents" not in tensors:
        return ids
    drawn = hard_tokens(tensors["label_latents"], tensors["label_decoder"], 1.0, samples, seed, 1)
    return torch.cat([ids[:, :1], drawn[:, :-1].to(ids)], dim=1)
