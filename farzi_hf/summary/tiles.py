"""Matrices of positions and entries of the vocabulary that are never made as a whole: blocks of positions, which lie in memory as tiles.

A block is all that exists at a time. A tile of it, some entries of its positions, is contiguous and fits into the cache of a core: what is
computed of it there is not read from memory again. Where a sum over all entries comes in between, the tiles of the block are kept for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

BLOCK = {"cpu": 1 << 23, "cuda": 1 << 26}
"""The numbers of a block, by the kind of device. Each block reads the head and adds to its gradient once, so small blocks cost time."""

TILE = {"cpu": 1 << 19, "cuda": 1 << 26}
"""The numbers of a tile, by the kind of device; on the CPU, for each thread."""

KEPT = 1 << 23
"""A matrix with no more numbers than this (32 MiB in float32) is computed once, and kept between the passes of a step."""

FEWEST = 256
"""The fewest positions of a block: products of fewer would read the head for little work."""

ALIGNED = 16

BITS = 1 / math.log(2)
"""log₂ e: logits times this are logits in bits."""


class Tiles:
    """How a matrix (n, V) is cut.

    Attributes:
        rows: the positions of each block.
        entries: the entries of each tile of a block.
        keep: whether the matrix is small enough to be kept.
    """

    def __init__(self, n: int, entries: int, like: Tensor) -> None:
        device, self.like = like.device.type, like
        self.keep = n * entries <= KEPT
        self.rows = _slices(n, max(FEWEST, _of(BLOCK, device) // entries))
        self._most = max((rows.stop - rows.start for rows in self.rows), default=0)
        numbers = _of(TILE, device) * (torch.get_num_threads() if device == "cpu" else 1)
        self.entries = _slices(entries, max(1, numbers // max(self._most, 1)), ALIGNED)

    def block(self) -> Tensor:
        """Memory for any block."""
        return self.like.new_empty(self._most * self.entries[-1].stop)

    def shared_block(self) -> Tensor | None:
        """Memory for all blocks, one after the other; None if they are kept, and each needs its own."""
        return None if self.keep else self.block()

    def tile(self) -> Tensor:
        """Memory for any tile."""
        return self.like.new_empty(self._most * self.entries[0].stop)

    def split(self, block: Tensor, rows: slice) -> list[Tensor]:
        """The tiles (r, v) of a block, one after the other in its memory."""
        r = rows.stop - rows.start
        return [block[r * e.start : r * e.stop].view(r, e.stop - e.start) for e in self.entries]

    def views(self, tile: Tensor, rows: slice) -> list[Tensor]:
        """The memory of one tile in the shape of each tile of a block."""
        r = rows.stop - rows.start
        return [tile[: r * (e.stop - e.start)].view(r, e.stop - e.start) for e in self.entries]


class Softmax:
    """The softmax of a block, tile by tile, of logits in bits: 2^z in place of e^z, because processors raise 2 to a power in half of the time.

    In the first pass, each tile is computed up to a factor. When all have been, the sum over all entries is known, and with it the `share`
    that each tile has to be multiplied with. What is computed `again` needs no share.

    Args:
        tiles: their memory.
    """

    def __init__(self, tiles: list[Tensor]) -> None:
        self.tiles = tiles
        self._tops: list[Tensor] = []
        self._sums: list[Tensor] = []
        self._shares: Tensor | None = None
        self._known: tuple[Tensor, Tensor] | None = None
        """The largest logit of each position, and log₂ Σ_v 2^(z_v − it). Their sum would be rounded at the size of the logits."""
        self._filled = 0
        self._whole = [False for _ in tiles]

    def forget(self) -> None:
        """Keeps the sums over the entries, and no tile."""
        self._normalisers()
        self.tiles, self._tops, self._sums, self._shares = [], [], [], None

    def again(self, tiles: list[Tensor]) -> Softmax:
        """The same softmax in other memory, in which each tile has to be computed again."""
        new = Softmax(tiles)
        new._known, new._whole = self._normalisers(), [True for _ in tiles]
        return new

    def has(self, i: int) -> bool:
        """Whether tile i has been computed."""
        return i < self._filled

    def normalise(self, i: int, z: Tensor) -> None:
        """Computes tile i from its logits in bits, which are overwritten. The next one is i + 1."""
        self._filled += 1
        if self._known is not None:
            top, log_sum = self._known
            torch.exp2(z.sub_(top[:, None]).sub_(log_sum[:, None]), out=self.tiles[i])
            return
        top = z.amax(1).clamp_min_(torch.finfo(z.dtype).min)  # where a tile has −∞ only, 2^(−∞ + ∞) would be no number
        p = torch.exp2(z.sub_(top[:, None]), out=self.tiles[i])
        self._tops.append(top)
        self._sums.append(p.sum(1))

    def log_sums(self) -> Tensor:
        """log₂ Σ_v 2^z_v of the logits over all entries, (r,)."""
        top, log_sum = self._normalisers()
        return top + log_sum

    def _normalisers(self) -> tuple[Tensor, Tensor]:
        if self._known is None:
            tops = torch.stack(self._tops)
            top = tops.amax(0)
            shares = (tops - top).exp2_()
            total = (shares * torch.stack(self._sums)).sum(0)
            self._known, self._shares = (top, total.log2()), shares / total
        return self._known

    def mean(self, parts: Sequence[Tensor]) -> Tensor:
        """The sum over all tiles, if each part (r,) or (r, k) is linear in a tile as it is now."""
        total = torch.zeros_like(parts[0])
        for i, part in enumerate(parts):
            share = self.share(i)
            total.add_(part) if share is None else total.addcmul_(part, share[:, 0] if part.dim() == 1 else share)
        return total

    def share(self, i: int) -> Tensor | None:
        """What the numbers of tile i have to be multiplied with, (r, 1); None if they are those of the whole softmax."""
        self._normalisers()
        return None if self._whole[i] else self._shares[i][:, None]

    def whole(self, i: int, memory: Tensor) -> Tensor:
        """Tile i of the whole softmax, in `memory` unless it is there already."""
        share = self.share(i)
        return self.tiles[i] if share is None else torch.mul(self.tiles[i], share, out=memory)

    def __getitem__(self, i: int) -> Tensor:
        """Tile i of the whole softmax, in its own memory."""
        if (share := self.share(i)) is not None:
            self.tiles[i].mul_(share)
            self._whole[i] = True
        return self.tiles[i]


def _of(sizes: dict[str, int], device: str) -> int:
    return sizes.get(device, sizes["cpu"])


def _slices(n: int, most: int, multiple: int = 1) -> list[slice]:
    """Slices of about the same size that cover n, of at most `most`; where they are many, a multiple."""
    size = math.ceil(n / math.ceil(n / most)) if n else 1
    if size < n:
        size = max(1, -(-size // multiple) * multiple)
    return [slice(i, min(i + size, n)) for i in range(0, n, size)]
