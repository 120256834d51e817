"""Reading a summary: what its positions say, as tokens with their probabilities or as ids, and
whether its numbers can be used.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from farzi_hf.common.checks import check_size
from farzi_hf.data import Vocabulary
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.summary.config import FarziDataConfig
from farzi_hf.summary.forms import PER_SEQUENCE, Tensors, batch_of, device_of, rows_of
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.store.tensor_file import SHARES

CHUNK = 512
"""Positions whose probabilities exist at the same time."""

_BLOCK = 2**22
"""Probabilities that exist at the same time: where V is large, those of some entries."""

_AT_ONCE = 256
"""Sequences whose positions exist as Python objects at the same time."""


@dataclass(frozen=True)
class Decoded(Sequence):
    """What `decode` returns, made when it is read, because 100,000 decoded sequences take
    gigabytes.
    """

    tensors: Tensors
    config: FarziDataConfig
    vocabulary: Vocabulary
    top_k: int

    def __len__(self) -> int:
        return self.config.num_sequences

    def __getitem__(self, rows: int | slice) -> Any:
        if not isinstance(rows, slice):
            return self[rows:][0] if rows == -1 else self[rows : rows + 1][0]
        return decode(rows_of(self.tensors, rows), self.config, self.vocabulary, self.top_k)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]


@torch.no_grad()
def decode(
    tensors: Tensors, config: FarziDataConfig, vocabulary: Vocabulary, top_k: int
) -> list[list[dict[str, Any]]]:
    """See `FarziData.decode`."""
    k = min(top_k, config.vocab_size)
    known = dict(vocabulary.pairs())

    def name(i: int) -> Any:
        return known.get(i, f"[{i}]") if vocabulary.named else i

    if "input_ids" in tensors:
        ids = tensors["input_ids"].flatten().tolist()
        positions = [{"tokens": [name(i)], "probabilities": [1.0], "entropy": 0.0} for i in ids]
    else:
        positions = _likeliest(tensors["latents"], tensors["decoder"] / config.tau, k, name)
    if "label_latents" in tensors:
        labels = _likeliest(tensors["label_latents"], tensors["label_decoder"], k, name)
        for position, label in zip(positions, labels, strict=True):
            position |= {f"label_{name}": value for name, value in label.items()}
    length = config.sequence_length
    return [positions[start : start + length] for start in range(0, len(positions), length)]


def _likeliest(
    latents: Tensor, decoder: Tensor, k: int, name: Callable[[int], Any]
) -> list[dict[str, Any]]:
    """The k likeliest entries of each position."""
    positions = []
    for chunk in latents.flatten(0, 1).split(CHUNK):
        ids, probabilities, entropy = _summed_up(chunk, decoder, k)
        for row in zip(ids.tolist(), probabilities.tolist(), entropy.tolist(), strict=True):
            positions.append(
                {
                    "tokens": list(map(name, row[0])),
                    "probabilities": row[1],
                    "entropy": row[2],
                }
            )
    return positions


def _summed_up(latents: Tensor, decoder: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of the distributions softmax(z), with z = latents @ decoder of shape (n, V): the ids (n, k)
    of the likeliest entries, their probabilities (n, k), and the entropies (n,). A block of entries
    at a time, with

        s = Σ_v exp(z_v − m),   t = Σ_v exp(z_v − m) (z_v − m),   m = max_v z_v,

    so that p_v = exp(z_v − m) / s, and the entropy is log s − t / s.
    """
    block = max(1, _BLOCK // max(1, len(latents)))
    m = top = ids = None
    for start in range(0, decoder.shape[1], block):
        z = (latents @ decoder[:, start : start + block]).float()
        likeliest = z.topk(min(k, z.shape[1]))
        if m is None:
            top, ids = likeliest
            m = top[:, :1]
            s = t = torch.zeros_like(m)
        else:
            both = torch.cat([top, likeliest.values], dim=1)
            top, order = both.topk(min(k, both.shape[1]))
            ids = torch.cat([ids, likeliest.indices + start], dim=1).gather(1, order)
            step = top[:, :1] - m
            m = top[:, :1]
            scale = (-step).exp()
            t = torch.where(scale > 0, scale * (t - step * s), 0.0)
            s = scale * s
        z -= m
        p = z.exp()
        s = s + p.sum(1, keepdim=True)
        t = t + (p * z).sum(1, keepdim=True)
    return ids, (top - m).exp() / s, (s.log() - t / s)[:, 0]


@torch.no_grad()
def hard_rows(
    tensors: Tensors, tau: float, samples: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a summary as ids, (μ·n, ξ) each; see `FarziData.as_hard_dataset`."""
    if samples is not None:
        check_size("samples_per_sequence", samples, 1)
    generator = torch.Generator().manual_seed(
        derive(seed, Purpose.HARD_TOKENS)
    )  # on a GPU it would draw others
    count, length = next(tensors[name] for name in PER_SEQUENCE if name in tensors).shape[:2]
    rows = torch.arange(count, device=device_of(tensors)).split(max(1, CHUNK // length))
    parts = [hardened(*batch_of(tensors, some, tau), samples, generator) for some in rows]
    return torch.cat([ids for ids, _ in parts]), torch.cat([labels for _, labels in parts])


def hardened(
    inputs: Tensor | SoftTokens, labels: SoftTokens, samples: int | None, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of b rows, as `batch_of` gives them, as ids (b·n, ξ): the n = `samples`
    draws of a row one after the other.

    `labels[j + 1]` is what position j predicts. Inputs that are ids come n times. With None, n is 1
    and each position has its likeliest id.
    """

    def ids_of(tokens: SoftTokens) -> Tensor:
        p = tokens.probabilities()
        if samples is None:
            return p.argmax(-1)
        drawn = torch.multinomial(
            p.flatten(0, 1).cpu(), samples, replacement=True, generator=generator
        )
        return drawn.to(p.device).view(*p.shape[:2], samples).transpose(1, 2).flatten(0, 1)

    ids = (
        ids_of(inputs)
        if isinstance(inputs, SoftTokens)
        else inputs.repeat_interleave(samples or 1, dim=0)
    )
    if labels.shape[1] < inputs.shape[1]:  # they are the inputs
        return ids, ids
    return ids, torch.cat([ids[:, :1], ids_of(labels)[:, :-1].to(ids)], dim=1)


@torch.no_grad()
def check_numbers(tensors: Tensors, config: FarziDataConfig, remedy: str) -> None:
    """Raises ValueError if soft tokens cannot be computed, or would not be finite, or an id is
    outside the vocabulary.
    """
    learnt = {name: tensor for name, tensor in tensors.items() if name in (*config.learnt, SHARES)}
    types = {name: tensor.dtype for name, tensor in learnt.items()}
    if len(set(types.values())) > 1:
        raise ValueError(
            f"{', '.join(f'{name} is {dtype}' for name, dtype in types.items())}; call .to(dtype)"
        )
    for name, tensor in learnt.items():
        least, largest = torch.aminmax(tensor)  # unlike `isfinite`, it makes no other tensors
        if not (math.isfinite(least) and math.isfinite(largest)):
            raise ValueError(f"{name} holds NaN or infinity; {remedy}")
    for latents, decoder, tau in (
        ("latents", "decoder", config.tau),
        ("label_latents", "label_decoder", 1.0),
    ):
        if latents in tensors:
            # Cauchy-Schwarz: the product of a latent and a column of the decoder is at most the
            # product of their lengths.
            longest = _longest(tensors[latents].flatten(0, 1)) * _longest(tensors[decoder].T)
            if longest / tau > torch.finfo(torch.float32).max:
                raise ValueError(
                    f"{latents} and {decoder} overflow the softmax for tau={tau:g}; {remedy}"
                )
    if SHARES in tensors and not (
        tensors[SHARES].min() >= 0 and abs(tensors[SHARES].double().sum() - 1) < 0.01
    ):
        raise ValueError(f"{SHARES} has negative numbers, or a sum other than 1; {remedy}")
    if "input_ids" in tensors:
        ids = tensors["input_ids"]
        outside = ids[(ids < 0) | (ids >= config.vocab_size)]
        if len(outside):
            raise ValueError(
                f"input_ids holds {int(outside[0])}, outside 0 … {config.vocab_size - 1}; {remedy}"
            )


def _longest(vectors: Tensor) -> float:
    """The length of the longest of n vectors (n, k), in float64."""
    blocks = vectors.split(max(1, _BLOCK // vectors.shape[1]))
    return max(float(x.double().norm(dim=1).max()) for x in blocks)
