"""What positions should predict: ids, or soft tokens as the factors that they are made of. Sums over the vocabulary take them tile by tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.summary.tiles import BITS, Softmax, Tiles


class TargetBlock(ABC):
    """The targets q (r, V) of a block of positions, tile by tile: each tile is filled once, in their order, before it is used."""

    def forget(self) -> None:  # noqa: B027  ids stay
        """Keeps no tile, but what makes it faster to fill them again."""

    def again(self, tiles: Tiles, rows: slice, memory: Tensor | None) -> TargetBlock:
        """The same in other memory, as `Targets.memory` returns it, in which each tile has to be filled again."""
        return self

    def fill(self, i: int, free: Tensor) -> None:  # noqa: B027  ids are there
        """Computes tile i. Overwrites `free`."""

    @abstractmethod
    def dot(self, i: int, z: Tensor, free: Tensor) -> Tensor:
        """What `total` needs of tile i for ⟨q_j, z_j⟩, (r,). Overwrites `free`."""

    @abstractmethod
    def total(self, parts: Sequence[Tensor]) -> Tensor:
        """⟨q_j, z_j⟩ of each position, (r,), from what `dot` gave for all tiles."""

    @abstractmethod
    def subtract(self, i: int, p: Softmax, out: Tensor) -> Tensor:
        """p − q of tile i, written into `out`."""

    def pull_back(  # noqa: B027  ids have no derivative
        self, i: int, dq: Tensor, means: Tensor, scale: Tensor | float, totals: Sequence[Tensor | None], free: Tensor
    ) -> None:
        """Adds tile i's part of the derivatives in the targets' `tensors` to `totals`, if that in q is `scale` · `dq`. Overwrites `free`.

        Args:
            means: ⟨q_j, dq_j⟩ over all entries, (r,).
        """


class Targets(ABC):
    """What n positions should predict: a distribution over the vocabulary each."""

    tensors: tuple[Tensor, ...] = ()
    """Those that the distributions depend on."""

    @abstractmethod
    def __len__(self) -> int:
        """n."""

    @abstractmethod
    def check(self, entries: int) -> None:
        """Raises ValueError unless they are distributions over that many entries."""

    def to(self, dtype: torch.dtype) -> Targets:
        """The same with numbers of this type. Ids stay what they are."""
        return self

    @abstractmethod
    def cross_entropy(self, logits: Tensor) -> Tensor:
        """logsumexp(z_j) − ⟨q_j, z_j⟩ of logits (n, V), (n,), by torch's own functions."""

    @abstractmethod
    def block(self, tiles: Tiles, rows: slice, memory: Tensor | None) -> TargetBlock:
        """Those of the positions `rows`.

        Args:
            memory: what the method `memory` returns. All blocks may use it, one after the other.
        """

    def memory(self, tiles: Tiles) -> Tensor | None:
        """Memory for the tiles of any block; None if a block needs none, or has its own."""
        return None


@dataclass(frozen=True, eq=False)
class HardTargets(Targets):
    """Ids (n,)."""

    ids: Tensor

    def __len__(self) -> int:
        return len(self.ids)

    def check(self, entries: int) -> None:
        if torch.compiler.is_compiling() or not len(self.ids):
            return
        least, largest = map(int, torch.aminmax(self.ids))
        if not 0 <= least <= largest < entries:
            raise ValueError(
                f"targets has ids from {least} to {largest}, but the vocabulary has the ids 0 to {entries - 1}"
            )

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return F.cross_entropy(logits, self.ids, reduction="none")

    def block(self, tiles: Tiles, rows: slice, memory: Tensor | None) -> TargetBlock:
        return _HardBlock(self.ids[rows, None], tiles.entries)


class _HardBlock(TargetBlock):
    def __init__(self, ids: Tensor, entries: Sequence[slice]) -> None:
        self.ids, self.entries = ids, entries

    def _inside(self, i: int) -> tuple[Tensor, Tensor]:
        """The ids counted from the tile's first, (r, 1), or 0 where they are elsewhere; and whether they are here."""
        ids = self.ids - self.entries[i].start
        inside = (ids >= 0) & (ids < self.entries[i].stop - self.entries[i].start)
        return ids.where(inside, 0), inside

    def dot(self, i: int, z: Tensor, free: Tensor) -> Tensor:
        ids, inside = self._inside(i)
        return z.gather(1, ids).where(inside, 0)[:, 0]

    def total(self, parts: Sequence[Tensor]) -> Tensor:
        return torch.stack(list(parts)).sum(0)

    def subtract(self, i: int, p: Softmax, out: Tensor) -> Tensor:
        (ids, inside), tile = self._inside(i), p.whole(i, out)
        return torch.scatter_add(tile, 1, ids, -inside.to(tile.dtype), out=out)


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
    _blocks: dict[tuple[int, ...], tuple[tuple[int, ...], _SoftBlock]] = field(
        default_factory=dict, init=False, repr=False
    )
    """The blocks that are small enough to be kept, by their positions and the number of their tiles, and of which version of the tensors."""

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

    def check(self, entries: int) -> None:
        if self.shape[-1] != entries:
            raise ValueError(
                f"soft tokens over {self.shape[-1]} entries, but the model's vocabulary has {entries}; build the model with "
                "vocab_size=farzi.config.vocab_size"
            )

    def cross_entropy(self, logits: Tensor) -> Tensor:
        return -(self.probabilities() * logits.log_softmax(-1)).sum(-1)

    def filled(self, tiles: Tiles, rows: slice, memory: Tensor | None) -> Softmax:
        """The softmax of a block, all tiles normalised."""
        block = self.block(tiles, rows, memory)
        free = tiles.views(tiles.tile(), rows)
        for i in range(len(tiles.entries)):
            block.fill(i, free[i])
        return block.softmax

    def block(self, tiles: Tiles, rows: slice, memory: Tensor | None) -> _SoftBlock:
        place = rows.start, rows.stop, len(tiles.entries)
        # An optimizer changes tensors in place. Those of inference mode have no versions.
        versions = tuple(0 if x.is_inference() else x._version for x in self.tensors)
        known, block = self._blocks.get(place, (None, None))
        if known == versions:
            return block
        block = _SoftBlock(self, tiles, rows, tiles.block() if memory is None else memory)
        if tiles.keep:
            self._blocks[place] = versions, block
        return block

    def memory(self, tiles: Tiles) -> Tensor | None:
        return tiles.shared_block()


class _SoftBlock(TargetBlock):
    def __init__(self, tokens: SoftTokens, tiles: Tiles, rows: slice, memory: Tensor) -> None:
        self.rows, self.entries, self.tau = rows, tiles.entries, tokens.tau
        self.softmax = Softmax(tiles.split(memory, rows))
        self.latents = tokens.latents.detach()[rows]
        self.decoder = None if tokens.decoder is None else tokens.decoder.detach()

    def forget(self) -> None:
        self.softmax.forget()

    def again(self, tiles: Tiles, rows: slice, memory: Tensor | None) -> _SoftBlock:
        new = copy(self)
        new.softmax = self.softmax.again(tiles.split(memory, rows))
        return new

    def fill(self, i: int, free: Tensor) -> None:
        if self.softmax.has(i):
            return
        entries = self.entries[i]
        if self.decoder is None:
            torch.mul(self.latents[:, entries], BITS / self.tau, out=free)
        else:
            torch.mm(self.latents * (BITS / self.tau), self.decoder[:, entries], out=free)
        self.softmax.normalise(i, free)

    def dot(self, i: int, z: Tensor, free: Tensor) -> Tensor:
        return torch.mul(self.softmax.tiles[i], z, out=free).sum(1)

    def total(self, parts: Sequence[Tensor]) -> Tensor:
        return self.softmax.mean(parts)

    def subtract(self, i: int, p: Softmax, out: Tensor) -> Tensor:
        tile, q, share = p.whole(i, out), self.softmax.tiles[i], self.softmax.share(i)
        return torch.sub(tile, q, out=out) if share is None else torch.addcmul(tile, q, share, value=-1, out=out)

    def pull_back(
        self, i: int, dq: Tensor, means: Tensor, scale: Tensor | float, totals: Sequence[Tensor | None], free: Tensor
    ) -> None:
        du, entries = torch.sub(dq, means[:, None], out=free).mul_(self.softmax[i]), self.entries[i]
        if self.decoder is None:
            totals[0][self.rows, entries].add_(du.mul_(scale / self.tau))
            return
        dlatents, ddecoder = totals
        if dlatents is not None:
            dlatents[self.rows].add_(torch.mm(du, self.decoder[:, entries].T).mul_(scale / self.tau))
        if ddecoder is not None:
            ddecoder[:, entries].addmm_((self.latents * (scale / self.tau)).T, du)
