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
    """How much a kind of device computes at a time."""

    update: int
    """Numbers that an optimizer updates at a time."""
    integers: int
    """The same where an optimizer's state is in integers, which take more memory."""
    block: int
    """Numbers of a block of positions × entries of the vocabulary; on a CPU, of each thread."""
    learners: int
    """Learners that take their steps as one, if they fit into a block."""
    graphs: float
    """The share of all memory that the graphs of all steps may take. On a CPU, memory that a
    process never had costs more time than a gradient.
    """
    rows: int
    """How many times the rows of a CPU's step a step takes. On a CPU, small steps teach most in the
    same time; on a GPU, they take almost as long as larger ones.
    """


PORTIONS = {
    "cpu": Portions(update=2**18, integers=2**16, block=2**17, learners=1, graphs=1 / 8, rows=1),
    "cuda": Portions(update=2**24, integers=2**24, block=2**26, learners=8, graphs=1 / 4, rows=4),
}
"""By the type of the device."""


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
    return (slice(start, start + size) for start in range(0, len(x), size))
