"""How the tensors of a summary are stored: as they are, or rounded to fewer bytes.

A summary with labels of its own can have more bytes than its data: each position has e numbers, where an id of the data has two bytes,
or less where its bits are packed.
Students hardly notice it when those numbers are rounded to a byte each, or, where inputs are ids, to five or six bits
(recipes/LOG.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]

FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""The types of floating-point tensors, by their names in safetensors."""


@dataclass(frozen=True)
class Stored:
    """A tensor of the file: its shape, and the types that it may have."""

    shape: tuple[int, ...]
    dtypes: frozenset[str]


class Storage(ABC):
    """One way to store the tensors of a summary.

    Attributes:
        name: that of `FarziDataConfig.storage`.
        description: what a card says about it; None for the way that needs no words.
    """

    name: str
    description: str | None = None

    @abstractmethod
    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        """The tensors of the file, by name.

        Args:
            shapes: of the summary's tensors.
            learnt: the names of those that are learnt; the others are ids.
        """

    @abstractmethod
    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        """What the file holds of a summary's tensors."""

    @abstractmethod
    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        """The summary's tensors. What is stored of them again is `stored`, bit for bit."""

    def rounded(self, tensors: Tensors) -> dict[str, Tensor]:
        """What is left of a summary's tensors after they were stored and loaded.

        Raises:
            ValueError: they have a type that comes back as another one.
        """
        kept = self.loaded(self.stored(tensors))
        for name, tensor in tensors.items():
            if kept[name].dtype != tensor.dtype:
                raise ValueError(
                    f"storage={self.name!r} is for float32, but {name} is {tensor.dtype}; call float() first"
                )
        return kept

    def nbytes(self, tensors: Tensors) -> int:
        """Bytes of all tensors in the file."""
        return sum(x.numel() * x.element_size() for x in self.stored(tensors).values())

    def id_bits(self, vocab_size: int) -> int:
        """Bits of an id of real data that are stored as economically: 16 for a vocabulary of 257 to 65,536 entries."""
        return 8 * np.min_scalar_type(vocab_size - 1).itemsize


class Exact(Storage):
    """All numbers as they are, usually float32; ids in four bytes."""

    name = "exact"

    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        ids = frozenset({"I32"})
        return {name: Stored(tuple(shape), FLOATS if name in learnt else ids) for name, shape in shapes.items()}

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        return dict(tensors)

    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        return dict(stored)


class Whole(Storage):
    """A whole number n for each number x, and a scale s for each of the d or e dimensions: x = s n. Ids in two bytes where they fit.

    n has b bits, |n| < 2^(b−1). s is the largest |x| / (2^(b−1) − 1), rounded up to 12 bits, so that s n is exact in float32. The
    error is s / 2 at most. Here each n has a byte.

    Args:
        bits: b, at most 8.
    """

    types: ClassVar[frozenset[str]] = frozenset({"I8"})
    _SCALE, _SMALLEST = ".scale", 2.0**-100

    def __init__(self, bits: int) -> None:
        self.bits, self._largest = bits, 2 ** (bits - 1) - 1
        self.name, self.description = f"int{bits}", f"{bits} bits a number, and a scale for each dimension"

    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        found = {}
        for name, shape in shapes.items():
            if name not in learnt:
                found[name] = Stored(tuple(shape), frozenset({"I16", "I32"}))
                continue
            found[name] = Stored(self._shape(name, shape), self.types)
            found[name + self._SCALE] = Stored((shape[_dimensions(name)],), frozenset({"F32"}))
        return found

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        found = {}
        for name, x in tensors.items():
            if not x.is_floating_point():
                fits = x.numel() == 0 or int(x.max()) <= torch.iinfo(torch.int16).max
                found[name] = x.to(torch.int16 if fits else torch.int32)
                continue
            scale = self._scale(name, x.detach().float())
            whole = (x.detach().float() / _along(name, scale, x)).round()
            found[name], found[name + self._SCALE] = self._packed(name, whole.to(torch.int8)), scale
        return found

    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        found = {}
        for name, x in stored.items():
            if name + self._SCALE in stored:
                scale = stored[name + self._SCALE]
                whole = self._unpacked(name, x, len(scale))
                found[name] = whole.float() * _along(name, scale, whole)
            elif not name.endswith(self._SCALE):
                found[name] = x.to(torch.int32)
        return found

    def _scale(self, name: str, x: Tensor) -> Tensor:
        """(e,), above 0."""
        others = [i for i in range(x.dim()) if i != _dimensions(name) % x.dim()]
        mantissa, exponent = torch.frexp(x.abs().amax(others) / self._largest)
        return torch.ldexp((mantissa * 2**12).ceil() / 2**12, exponent).clamp(min=self._SMALLEST)

    def _shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the file's tensor, of a summary's tensor with `shape`."""
        return tuple(shape)

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        """The file's tensor, of whole numbers (int8)."""
        return whole

    def _unpacked(self, name: str, packed: Tensor, dimensions: int) -> Tensor:
        """The inverse of `_packed`; int8."""
        return packed


class Packed(Whole):
    """As `Whole`, without the bits that no number needs: those of the e dimensions of a position or of an entry follow each other.

    The file holds n + 2^(b−1), the highest bit first, in ⌈e b / 8⌉ bytes, which are the last axis: latents (μ, ξ, ·), decoder (V, ·).
    """

    types = frozenset({"U8"})

    def id_bits(self, vocab_size: int) -> int:
        """The bits that tell the ids apart, and no others: 11 for 2,000 entries."""
        return max(1, (vocab_size - 1).bit_length())

    def _shape(self, name: str, shape: Sequence[int]) -> tuple[int, ...]:
        axis = _dimensions(name)
        others = shape[1:] if axis == 0 else shape[:-1]
        return (*others, -(-shape[axis] * self.bits // 8))

    def _packed(self, name: str, whole: Tensor) -> Tensor:
        rows = (whole.cpu().movedim(_dimensions(name), -1) + 2 ** (self.bits - 1)).to(torch.uint8).numpy()
        bits = np.unpackbits(rows[..., None], axis=-1)[..., 8 - self.bits :]
        return torch.from_numpy(np.packbits(bits.reshape(*rows.shape[:-1], -1), axis=-1)).to(whole.device)

    def _unpacked(self, name: str, packed: Tensor, dimensions: int) -> Tensor:
        bits = np.unpackbits(packed.cpu().numpy(), axis=-1, count=dimensions * self.bits)
        bits = bits.reshape(*packed.shape[:-1], dimensions, self.bits)
        rows = np.packbits(bits, axis=-1)[..., 0] >> (8 - self.bits)
        whole = torch.from_numpy(rows).to(packed.device, torch.int8) - 2 ** (self.bits - 1)
        return whole.movedim(-1, _dimensions(name)).contiguous()


def _dimensions(name: str) -> int:
    """The axis of the d or e dimensions: the first of a decoder (e, V), the last of latents (μ, ξ, e)."""
    return 0 if name.endswith("decoder") else -1


def _along(name: str, scale: Tensor, x: Tensor) -> Tensor:
    """A scale (e,) as a tensor that x can be multiplied with."""
    return scale.view(-1, *[1] * (x.dim() - 1)) if _dimensions(name) == 0 else scale


STORAGES: dict[str, Storage] = {way.name: way for way in (Exact(), Whole(8), Packed(6), Packed(5), Packed(4))}
"""By the name that `FarziDataConfig.storage` gives them."""
