"""Work that several processes share: each does a part, and all get the results, as tensors over the process group.

With one process, all of it is done here and nothing is exchanged. All processes must call these functions in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

import torch
from accelerate import PartialState
from torch import Tensor, distributed

from farzi_hf.distillation.learner import Parameters

T = TypeVar("T")


def world() -> tuple[int, int]:
    """The number of this process, and the number of processes."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def largest(value: int) -> int:
    """The largest of the values of all processes."""
    if world()[1] == 1:
        return value
    found = torch.tensor([value], device=PartialState().device)
    distributed.all_reduce(found, distributed.ReduceOp.MAX)
    return int(found)


def agreed(work: Callable[[], T]) -> T:
    """The result of `work()` in this process, when all processes have done theirs.

    Raises:
        RuntimeError: another process failed. Without this, all others would wait for it in vain.
    """
    failed, result = None, None
    try:
        result = work()
    except Exception as error:  # whatever it is, the others have to know
        failed = error
    number = largest(0 if failed is None else world()[0] + 1)
    if failed is not None:
        raise failed
    if number:
        raise RuntimeError(f"process {number - 1} failed in work that all processes share; its own message says why")
    return result


def first_process_first(work: Callable[[], T]) -> T:
    """`work()`, in the first process before the others."""
    if world()[0] == 0:
        result = agreed(work)
        agreed(lambda: None)
        return result
    agreed(lambda: None)
    return agreed(work)


def broadcast(tensors: Parameters, source: int = 0) -> None:
    """Writes the values of one process into the tensors of all others, in place. Names, shapes and dtypes are the same in all."""
    if world()[1] > 1:
        for tensor in tensors.values():
            _broadcast(tensor, source)


def shared(count: int, train: Callable[[int], Parameters], like: Callable[[], Parameters]) -> Iterator[Parameters]:
    """Parameters number 0 … `count` − 1, one after the other. n processes train n of them at a time, and each sends its own to all.

    Args:
        train: returns the parameters of one number. They depend on this number alone.
        like: returns parameters of the same names, shapes, dtypes and device.
    """
    rank, processes = world()
    for first in range(0, count, processes):
        own, number = None, first + rank
        if processes == 1:
            own = train(number)
        elif number < count:
            own = agreed(partial(train, number))
        else:
            agreed(lambda: None)
        for source in range(min(processes, count - first)):
            params = own if source == rank else {name: x.clone() for name, x in like().items()}
            broadcast(params, source)
            yield params


@torch.no_grad()
def _broadcast(tensor: Tensor, source: int) -> None:
    """Over the device of the process group, which may not be that of the tensor."""
    sent = tensor.detach().to(PartialState().device).contiguous()
    distributed.broadcast(sent, source)
    if world()[0] != source:
        tensor.copy_(sent)
