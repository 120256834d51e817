"""What differs between devices: how many numbers are computed at a time, and whether Python may
look at them.

A CPU is fast where they stay in its cache. A GPU takes microseconds to start a kernel, however
small, and to look at a number is to wait for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Portions(NamedTuple):
    """The numbers of a portion: that an optimizer updates; the same with its state in integers,
    which take more memory; and of a block of positions times entries of the vocabulary, on the CPU
    for each thread. The learners that take their steps as one, if they fit into a block. The share
    of all memory for the graphs of all steps: on a CPU, memory that a process never had costs more
    time than a gradient. How many times the rows of a CPU's step a step takes: there, small steps
    teach most in the same time; on a GPU they take almost as long as larger ones.
    """

    update: int
    integers: int
    block: int
    learners: int
    graphs: float
    rows: int


PORTIONS = {
    "cpu": Portions(1 << 18, 1 << 16, 1 << 17, 1, 1 / 8, 1),
    "cuda": Portions(1 << 24, 1 << 24, 1 << 26, 8, 1 / 4, 4),
}


def portions(x: Tensor) -> Portions:
    """Those of a tensor's device; any but a CPU is like a GPU."""
    return PORTIONS.get(x.device.type, PORTIONS["cuda"])


def values_are_free(x: Tensor) -> bool:
    """Whether code may depend on the numbers in x: compiled code may not, and would
    wait for a GPU.
    """
    return x.device.type == "cpu" and not torch.compiler.is_compiling()


def is_traced(x: Tensor) -> bool:
    """Whether torch.compile or torch.vmap runs the code: both take torch's own functions alone."""
    return torch.compiler.is_compiling() or torch._C._functorch.is_batchedtensor(x)


def chunks(x: Tensor, size: int) -> Iterator[slice]:
    """Slices that cover the elements of a flat tensor, `size` at a time."""
    return (slice(i, i + size) for i in range(0, len(x), size))
