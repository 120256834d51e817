"""Processes: what their launcher asked for, and work that several of them share.

In shared work each process does a part, and all get the results, as tensors over the process group.
With one process, all of it is done here and nothing is exchanged. All processes must call these
functions in the same order.
"""

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import accelerate
import torch
from accelerate import PartialState
from torch import Tensor, distributed
from torch.autograd import Function

from farzi_hf.distillation.learner import Parameters

T = TypeVar("T")

# -- what the launcher asked for -------------------------------------------------------------------

SHARDING = (
    "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP",
    "ACCELERATE_USE_MEGATRON_LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG",
)
"""Variables with which `accelerate launch` tells a program to cut its model into pieces."""


def check_launcher() -> bool:
    """Whether the launcher started several processes on a machine without a GPU. Trainer needs
    `use_cpu` then, or each process is alone. Raises ValueError if the launcher asked for a model in
    pieces (DeepSpeed, FSDP and the like), or for a precision with loss scaling.
    """
    precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
    if precision in ("fp16", "fp8"):
        raise ValueError(
            f"ACCELERATE_MIXED_PRECISION={precision} is not supported: inner gradients underflow;"
            " launch with --mixed_precision no, or bf16"
        )
    for variable in SHARDING:
        value = os.environ.get(variable, "false")
        if value.lower() in ("1", "true", "yes"):
            raise ValueError(
                f"{variable}={value} is not supported: a summary is small; see"
                " recipes/accelerate/many_gpus.yaml"
            )
    return int(os.environ.get("WORLD_SIZE", 1)) > 1 and not torch.accelerator.is_available()


# -- shared work -----------------------------------------------------------------------------------


def world() -> tuple[int, int]:
    """The number of this process, and the number of processes."""
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def largest(value: int) -> int:
    """The largest of the values of all processes."""
    if world()[1] == 1:
        return value
    return int(accelerate.utils.gather(torch.tensor([value], device=PartialState().device)).max())


def agreed(work: Callable[[], T]) -> T:
    """The result of `work()` in this process, when all processes have done theirs. Raises
    RuntimeError if another process failed. Without this, all others would wait for it in vain.
    """
    failed = None
    result = None
    try:
        result = work()
    except Exception as error:  # whatever it is, the others have to know
        failed = error
    number = largest(0 if failed is None else world()[0] + 1)
    if failed is not None:
        raise failed
    if number:
        raise RuntimeError(
            f"process {number - 1} failed in work that all processes share; its own message"
            " says why"
        )
    return result


@torch.no_grad()
def broadcast(tensors: Parameters, source: int = 0) -> None:
    """Writes the values of one process into the tensors of all others, in place. Names, shapes and
    dtypes are the same in all.
    """
    for tensor in tensors.values() if world()[1] > 1 else ():
        # The process group may have another device.
        sent = tensor.detach().to(PartialState().device).contiguous()
        tensor.copy_(accelerate.utils.broadcast(sent, source))


def shared(
    count: int, train: Callable[[int], Parameters], like: Callable[[], Parameters]
) -> Iterator[Parameters]:
    """Parameters number 0 … `count` − 1, one after the other. n processes train n of them at a
    time, and each sends its own to all.

    Args:
        train: returns the parameters of one number. They depend on this number alone.
        like: returns parameters of the same names, shapes, dtypes and device.
    """
    rank, processes = world()
    for first in range(0, count, processes):
        number = first + rank
        if processes == 1:
            trained_here = train(number)
        else:  # all agree, also those for which no number is left
            work = partial(train, number) if number < count else lambda: None
            trained_here = agreed(work)
        for source in range(min(processes, count - first)):
            if source == rank:
                params = trained_here
            else:
                params = {name: x.clone() for name, x in like().items()}
            broadcast(params, source)
            yield params


def together(params: Parameters) -> Parameters:
    """The same parameters. Their gradients are sums over all processes, of which each has a loss of
    its own; second derivatives too.
    """
    trained = {name: x for name, x in params.items() if x.requires_grad and world()[1] > 1}
    if not trained:
        return params
    shared_by_all = _Together.apply(False, *trained.values())
    return {**params, **dict(zip(trained, shared_by_all, strict=True))}


class _Together(Function):
    @staticmethod
    def forward(ctx: Any, summed: bool, *of_process: Tensor) -> tuple[Tensor, ...]:
        ctx.summed = summed
        if summed:
            return accelerate.utils.reduce(of_process, "sum")
        return tuple(x.view_as(x) for x in of_process)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # Of a sum they are equal in all processes, and each carries back its own summand.
        return None, *(gradients if ctx.summed else _Together.apply(True, *gradients))
