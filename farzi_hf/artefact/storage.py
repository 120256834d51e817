"""How the tensors of a summary are stored: as they are, or rounded to fewer bytes.

A summary with labels of its own can have more bytes than its data: each position has e numbers, where an id of the data has two bytes.
Students hardly notice it when those numbers are rounded to a byte each (recipes/LOG.md).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

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
        description: what a card says about it; None for the way that needs no words.
    """

    description: ClassVar[str | None] = None

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
                way = type(self).__name__.lower()
                raise ValueError(f"storage={way!r} is for float32, but {name} is {tensor.dtype}; call float() first")
        return kept

    def nbytes(self, tensors: Tensors) -> int:
        """Bytes of all tensors in the file."""
        return sum(x.numel() * x.element_size() for x in self.stored(tensors).values())


class Exact(Storage):
    """All numbers as they are, usually float32; ids in four bytes."""

    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        ids = frozenset({"I32"})
        return {name: Stored(tuple(shape), FLOATS if name in learnt else ids) for name, shape in shapes.items()}

    def stored(self, tensors: Tensors) -> dict[str, Tensor]:
        return dict(tensors)

    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        return dict(stored)


class Int8(Storage):
    """A byte for each number x, and a scale s for each of the d or e dimensions: x = s n with |n| ≤ 127. Ids in two bytes where they fit.

    s is the largest |x| / 127, rounded up to 12 bits, so that s n is exact in float32. The error is s / 2 at most.
    """

    description = "a byte each, and a scale for each dimension"
    _SCALE, _LARGEST, _SMALLEST = ".scale", 127, 2.0**-100

    def layout(self, shapes: Shapes, learnt: Collection[str]) -> dict[str, Stored]:
        found = {}
        for name, shape in shapes.items():
            found[name] = Stored(tuple(shape), frozenset({"I8"} if name in learnt else {"I16", "I32"}))
            if name in learnt:
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
            found[name], found[name + self._SCALE] = whole.to(torch.int8), scale
        return found

    def loaded(self, stored: Tensors) -> dict[str, Tensor]:
        found = {}
        for name, x in stored.items():
            if name + self._SCALE in stored:
                found[name] = x.float() * _along(name, stored[name + self._SCALE], x)
            elif not name.endswith(self._SCALE):
                found[name] = x.to(torch.int32)
        return found

    def _scale(self, name: str, x: Tensor) -> Tensor:
        """(e,), above 0."""
        others = [i for i in range(x.dim()) if i != _dimensions(name) % x.dim()]
        mantissa, exponent = torch.frexp(x.abs().amax(others) / self._LARGEST)
        return torch.ldexp((mantissa * 2**12).ceil() / 2**12, exponent).clamp(min=self._SMALLEST)


def _dimensions(name: str) -> int:
    """The axis of the d or e dimensions: the first of a decoder (e, V), the last of latents (μ, ξ, e)."""
    return 0 if name.endswith("decoder") else -1


def _along(name: str, scale: Tensor, x: Tensor) -> Tensor:
    """A scale (e,) as a tensor that x can be multiplied with."""
    return scale.view(-1, *[1] * (x.dim() - 1)) if _dimensions(name) == 0 else scale


STORAGES: dict[str, Storage] = {"exact": Exact(), "int8": Int8()}
"""By the name that `FarziDataConfig.storage` gives them."""
