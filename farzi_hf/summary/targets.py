"""What positions should predict: ids, or soft tokens as the factors that they are made of. Sums over the vocabulary take them chunk by chunk."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor

KEPT = 1 << 23
"""Distributions with no more numbers than this (32 MiB) are computed once and kept."""


class Targets(ABC):
    """What n positions should predict: a distribution over the vocabulary each."""

    tensors: tuple[Tensor, ...] = ()
    """Those that the distributions depend on."""

    @abstractmethod
    def __len__(self) -> int:
        """n."""

    def to(self, dtype: torch.dtype) -> Targets:
        """The same with numbers of this type. Ids stay what they are."""
        return self

    @abstractmethod
    def cross_entropy(self, logits: Tensor) -> Tensor:
        """logsumexp(z_j) − ⟨q_j, z_j⟩ of logits (n, V), (n,), by torch's own functions."""

    @abstractmethod
    def at(self, rows: slice, buffer: Tensor) -> Tensor:
        """The targets of some positions, in the form that `dot` and `subtract` take. They may be written into `buffer` (r, V)."""

    @abstractmethod
    def dot(self, q: Tensor, z: Tensor, buffer: Tensor) -> Tensor:
        """⟨q_j, z_j⟩ of each position, (r,). Overwrites `buffer`."""

    @abstractmethod
    def subtract(self, q: Tensor, p: Tensor, out: Tensor) -> Tensor:
        """p − q, written into `out` (r, V), which may be p."""

    def pull_back(  # noqa: B027  ids have no derivative
        self, rows: slice, q: Tensor, dq: Tensor, s: float, totals: Sequence[Tensor | None], buffer: Tensor
    ) -> None:
        """Adds the derivatives in `tensors` to `totals`, if s `dq` (r, V) is that in q. Overwrites `buffer`, which may be dq."""


@dataclass(frozen=True, eq=False)
class HardTargets(Targets):
    """Ids (n,)."""

    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.ids, reduction="none")

    def at(self, rows: slice, buffer: Tensor) -> Tensor:
        return self.ids[rows, None]

    def dot(self, q: Tensor, z: Tensor, buffer: Tensor) -> Tensor:
        return z.gather(1, q)[:, 0]

    def subtract(self, q: Tensor, p: Tensor, out: Tensor) -> Tensor:
        return torch.scatter_add(p, 1, q, torch.full_like(q, -1, dtype=p.dtype), out=out)


@dataclass(frozen=True, eq=False)
class SoftTokens(Targets):
    """`softmax(latents @ decoder / τ)`: distributions over the vocabulary, as the factors that they are made of.

    Args:
        latents: (…, d).
        decoder: (d, V); None if the latents have V numbers themselves.
        tau: τ.
    """

    latents: Tensor
    decoder: Tensor | None
    tau: float = 1.0

    @property
    def shape(self) -> torch.Size:
        """(…, V)."""
        entries = (self.latents if self.decoder is None else self.decoder).shape[-1]
        return torch.Size((*self.latents.shape[:-1], entries))

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.latents,) if self.decoder is None else (self.latents, self.decoder)

    def probabilities(self) -> Tensor:
        """All of them at once, (…, V)."""
        latents = self.latents / self.tau  # the smaller of the two factors
        return torch.softmax(latents if self.decoder is None else latents @ self.decoder, dim=-1)

    def to(self, dtype: torch.dtype) -> SoftTokens:
        if all(x.dtype == dtype for x in self.tensors):
            return self
        return SoftTokens(self.latents.to(dtype), None if self.decoder is None else self.decoder.to(dtype), self.tau)

    def flat(self) -> SoftTokens:
        """The same with one axis of positions."""
        return SoftTokens(self.latents.flatten(0, -2), self.decoder, self.tau)

    def following(self) -> SoftTokens:
        """Of sequences (b, ξ, V), what comes next: (b, ξ − 1, V)."""
        return SoftTokens(self.latents[:, 1:], self.decoder, self.tau)

    def __len__(self) -> int:
        return len(self.latents)

    @cached_property
    def _kept(self) -> Tensor | None:
        return self.probabilities().detach() if may_keep(self.shape) else None

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return -(self.probabilities() * logits.log_softmax(-1)).sum(-1)

    def at(self, rows: slice, buffer: Tensor) -> Tensor:
        if self._kept is not None:
            return self._kept[rows]
        z = self.latents[rows].detach() / self.tau
        if self.decoder is not None:
            z = torch.mm(z, self.decoder.detach(), out=buffer)
        return torch.softmax(z, -1, out=buffer)

    def dot(self, q: Tensor, z: Tensor, buffer: Tensor) -> Tensor:
        return torch.mul(q, z, out=buffer).sum(1)

    def subtract(self, q: Tensor, p: Tensor, out: Tensor) -> Tensor:
        return torch.sub(p, q, out=out)

    def pull_back(
        self, rows: slice, q: Tensor, dq: Tensor, s: float, totals: Sequence[Tensor | None], buffer: Tensor
    ) -> None:
        dz, scale = through_softmax(q, dq, buffer), s / self.tau
        if self.decoder is None:
            totals[0][rows].add_(dz, alpha=scale)
            return
        dlatents, ddecoder = totals
        if dlatents is not None:
            dlatents[rows].addmm_(dz, self.decoder.T, alpha=scale)
        if ddecoder is not None:
            ddecoder.addmm_(self.latents[rows].T, dz, alpha=scale)


def may_keep(shape: Sequence[int]) -> bool:
    """Whether numbers of that shape may stay in memory between the passes of a step."""
    return math.prod(shape) <= KEPT


def through_softmax(p: Tensor, dp: Tensor, out: Tensor) -> Tensor:
    """p ∘ (dp − ⟨p, dp⟩), written into `out`, which may be dp: from the derivative in the value p of a softmax to that in its argument."""
    return torch._softmax_backward_data(dp, p, -1, p.dtype, grad_input=out)
