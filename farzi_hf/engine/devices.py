"""What differs between devices: how many numbers are computed at a time.

A CPU is fast where they stay in its cache. A GPU takes some microseconds to start a kernel, however small, so it gets few and large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Portions:
    """The numbers of one portion.

    Attributes:
        update: that an optimizer updates.
        integers: the same where its state is in integers, which have 64 bits and more temporaries.
        block: positions times entries of the vocabulary; on the CPU for each thread.
    """

    update: int
    integers: int
    block: int


PORTIONS = {"cpu": Portions(1 << 18, 1 << 16, 1 << 20), "cuda": Portions(1 << 24, 1 << 24, 1 << 26)}


def portions(x: Tensor) -> Portions:
    """Those of a tensor's device; other devices than a CPU are like a GPU."""
    return PORTIONS.get(x.device.type, PORTIONS["cuda"])


def values_are_free(x: Tensor) -> bool:
    """Whether code may depend on the numbers in x: compiled code may not, and would have to wait for a GPU."""
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def chunks(x: Tensor, size: int) -> Iterator[slice]:
    """Slices that cover the elements of a flat tensor, `size` at a time."""
    return (slice(i, i + size) for i in range(0, len(x), size))
