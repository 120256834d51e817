"""Reading a summary: what its positions say, as tokens with their probabilities or as ids, and
whether its numbers can be used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from farzi_hf.common.checks import check_size
from farzi_hf.data import Vocabulary
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.summary.endless import EndlessRows
from farzi_hf.summary.soft_tokens import SoftTokens

if TYPE_CHECKING:
    from farzi_hf.summary.forms import Forms, Position

Tensors = Mapping[str, Tensor]

CHUNK = 512
"""Positions whose probabilities exist at the same time."""

_BLOCK = 2**22
"""Probabilities that exist at the same time: where V is large, those of some entries."""

_AT_ONCE = 256
"""Sequences whose positions exist as Python objects at the same time."""


@dataclass(frozen=True, eq=False)
class Decoded(Sequence):
    """What `FarziData.decode` returns, made when it is read, because 100,000 decoded sequences take
    gigabytes.
    """

    forms: Forms
    """Of the summary."""

    tensors: Tensors
    """Of the summary."""

    source: EndlessRows | None
    """Its rows, where they are made; None where they are stored."""

    vocabulary: Vocabulary
    """The names of the entries. Without names, tokens are ids."""

    top_k: int
    """The likeliest entries of a position that are shown."""

    def __len__(self) -> int:
        return self.forms.config.num_sequences

    def __getitem__(self, rows: int | slice) -> Any:
        numbers = range(len(self))[rows]
        if not isinstance(numbers, range):
            return self[numbers : numbers + 1][0]
        if len(numbers) == 0 or numbers.step != 1:
            return [self[i] for i in numbers]
        given = self.rows(numbers[0], len(numbers))
        top_k = min(self.top_k, self.forms.config.vocab_size)
        return self.forms.decode(self.tensors, given, self._names, top_k)

    def __iter__(self) -> Iterator[list[Position]]:
        for start in range(0, len(self), _AT_ONCE):
            yield from self[start : start + _AT_ONCE]

    def rows(self, first: int, count: int) -> Tensor | slice:
        """Sequences `first` … as `Forms.batch` takes them."""
        return rows_of_source(self.source, self.tensors, first, count)

    @cached_property
    def _names(self) -> Sequence[Any]:
        size = self.forms.config.vocab_size
        if not self.vocabulary.named:
            return range(size)
        return _Names(dict(self.vocabulary.pairs()), size)


class _Names(Sequence):
    """The names of `size` entries, without a list of them: a stranger may have left most of them
    out.
    """

    def __init__(self, names: Mapping[int, str], size: int) -> None:
        self._names = names
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, i: int) -> str:
        return self._names.get(i, f"[{i}]")


def rows_of_source(
    source: EndlessRows | None, tensors: Tensors, first: int, count: int
) -> Tensor | slice:
    """Sequences `first` … `first + count − 1` of a summary, as `Forms.batch` takes them: their
    numbers, or the ids of rows that are made.
    """
    if source is None:
        return slice(first, first + count)
    device = next(iter(tensors.values())).device
    return source.rows(first, count).to(device)


def likeliest_entries(tokens: SoftTokens, names: Sequence[Any], top_k: int) -> list[list[Position]]:
    """The likeliest entries of each position of distributions (n, ξ, V): their names, falling in
    probability, the probabilities, and the entropy in nats.
    """
    decoder = None if tokens.decoder is None else tokens.decoder / tokens.tau
    positions = []
    for chunk in tokens.latents.flatten(0, 1).split(CHUNK):
        latents = chunk / tokens.tau if decoder is None else chunk
        summed_up = _summed_up(latents, decoder, top_k)
        for ids, its_probabilities, entropy in zip(*map(Tensor.tolist, summed_up), strict=True):
            its_names = [names[i] for i in ids]
            positions.append(
                {"tokens": its_names, "probabilities": its_probabilities, "entropy": entropy}
            )
    length = tokens.shape[1]
    return [positions[start : start + length] for start in range(0, len(positions), length)]


def _summed_up(
    latents: Tensor, decoder: Tensor | None, top_k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Of the distributions softmax(z), with z = latents @ decoder of shape (n, V), or z = latents:
    the ids (n, k) of the likeliest entries, their probabilities (n, k), and the entropies (n,). A
    block of entries at a time, with

        s = Σ_v exp(z_v − m),   t = Σ_v exp(z_v − m) (z_v − m),   m = max_v z_v,

    so that p_v = exp(z_v − m) / s, and the entropy is log s − t / s.
    """
    entries = (latents if decoder is None else decoder).shape[1]
    block = max(1, _BLOCK // max(1, len(latents)))
    m = top = ids = None
    for start in range(0, entries, block):
        some = slice(start, start + block)
        z = (latents[:, some] if decoder is None else latents @ decoder[:, some]).float()
        likeliest = z.topk(min(top_k, z.shape[1]))
        if m is None:
            top = likeliest.values
            ids = likeliest.indices
            m = top[:, :1]
            s = torch.zeros_like(m)
            t = torch.zeros_like(m)
        else:
            both = torch.cat([top, likeliest.values], dim=1)
            top, order = both.topk(min(top_k, both.shape[1]))
            ids = torch.cat([ids, likeliest.indices + start], dim=1).gather(1, order)
            step = top[:, :1] - m
            m = top[:, :1]
            scale = (-step).exp()
            t = torch.where(scale > 0, scale * (t - step * s), 0.0)
            s = scale * s
        z = z - m
        p = z.exp()
        s = s + p.sum(1, keepdim=True)
        t = t + (p * z).sum(1, keepdim=True)
    return ids, (top - m).exp() / s, (s.log() - t / s)[:, 0]


# -- as ids alone ----------------------------------------------------------------------------------


@torch.no_grad()
def hard_rows(
    forms: Forms, tensors: Tensors, source: EndlessRows | None, samples: int | None, seed: int
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a summary as ids, (μ·n, ξ) each; see `FarziData.as_hard_dataset`."""
    if samples is not None:
        check_size("samples_per_sequence", samples, 1)
    # On a GPU it would draw others.
    generator = torch.Generator().manual_seed(derive(seed, Purpose.HARD_TOKENS))
    count = forms.config.num_sequences
    at_once = max(1, CHUNK // forms.config.sequence_length)
    all_ids = []
    all_labels = []
    for first in range(0, count, at_once):
        rows = rows_of_source(source, tensors, first, min(at_once, count - first))
        inputs, targets = forms.batch(tensors, rows)
        are_inputs = forms.labels.are_inputs
        ids, labels = hardened(inputs, targets, are_inputs, samples, generator)
        all_ids.append(ids)
        all_labels.append(labels)
    return torch.cat(all_ids), torch.cat(all_labels)


def hardened(
    inputs: Tensor | SoftTokens,
    labels: SoftTokens,
    are_inputs: bool,
    samples: int | None,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """Inputs and labels of b rows, as `Forms.batch` gives them, as ids (b·n, ξ): the n = `samples`
    draws of a row one after the other.

    `labels[j + 1]` is what position j predicts. Inputs that are ids come n times. With None, n is 1
    and each position has its likeliest id.

    Args:
        are_inputs: whether the labels are the inputs, see `Labels.are_inputs`.
    """

    def ids_of(tokens: SoftTokens) -> Tensor:
        p = tokens.probabilities()
        if samples is None:
            return p.argmax(-1)
        drawn = torch.multinomial(
            p.flatten(0, 1).cpu(), samples, replacement=True, generator=generator
        )
        return drawn.to(p.device).view(*p.shape[:2], samples).transpose(1, 2).flatten(0, 1)

    are_soft = isinstance(inputs, SoftTokens)
    ids = ids_of(inputs) if are_soft else inputs.repeat_interleave(samples or 1, dim=0)
    if are_inputs:
        return ids, ids
    return ids, torch.cat([ids[:, :1], ids_of(labels)[:, :-1].to(ids)], dim=1)


# -- whether numbers can be used -------------------------------------------------------------------


@torch.no_grad()
def check_numbers(forms: Forms, tensors: Tensors, remedy: str) -> None:
    """Raises ValueError if soft tokens cannot be computed, or would not be finite, or an id is
    outside the vocabulary.
    """
    floats = {name: tensors[name] for name, part in forms.parts.items() if not part.is_ids}
    types = {name: tensor.dtype for name, tensor in floats.items()}
    if len(set(types.values())) > 1:
        raise ValueError(
            f"{', '.join(f'{name} is {dtype}' for name, dtype in types.items())}; call .to(dtype)"
        )
    for name, tensor in floats.items():
        if not tensor.numel():
            continue  # it has no least number
        least, largest = torch.aminmax(tensor)  # unlike `isfinite`, it makes no other tensors
        if not (math.isfinite(least) and math.isfinite(largest)):
            raise ValueError(f"{name} holds NaN or infinity; {remedy}")
    forms.inputs.check_numbers(tensors, remedy)
    forms.labels.check_numbers(tensors, remedy)


def check_product(latents: str, decoder: str, tensors: Tensors, tau: float, remedy: str) -> None:
    """Raises ValueError if softmax(latents @ decoder / τ) would overflow.

    Cauchy-Schwarz: the product of a latent and a column of the decoder is at most the product of
    their lengths.
    """
    longest_latent = _longest(tensors[latents].flatten(0, 1))
    longest_column = _longest(tensors[decoder].T)
    if longest_latent * longest_column / tau > torch.finfo(torch.float32).max:
        raise ValueError(f"{latents} and {decoder} overflow the softmax for tau={tau:g}; {remedy}")


def _longest(vectors: Tensor) -> float:
    """The length of the longest of n vectors (n, k), in float64."""
    blocks = vectors.split(max(1, _BLOCK // vectors.shape[1]))
    return max(float(x.double().norm(dim=1).max()) for x in blocks)


def check_shares(name: str, tensors: Tensors, remedy: str) -> None:
    """Raises ValueError if the tensor is no distribution over the vocabulary."""
    shares = tensors[name]
    if shares.min() < 0 or abs(shares.double().sum() - 1) >= 0.01:
        raise ValueError(f"{name} has negative numbers, or a sum other than 1; {remedy}")


def check_ids(name: str, tensors: Tensors, vocab_size: int, remedy: str) -> None:
    """Raises ValueError if the tensor holds an id outside of the vocabulary."""
    ids = tensors[name]
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    if len(outside):
        raise ValueError(f"{name} holds {int(outside[0])}, outside 0 … {vocab_size - 1}; {remedy}")
