"""What the launcher of this program asked for, read from its environment: how many processes, and which kind of parallelism."""

from __future__ import annotations

import logging
import os
from functools import cache

import torch

logger = logging.getLogger(__name__)

SHARDING = {
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism config",
}
"""Variables with which `accelerate launch` tells a program to cut its model into pieces."""
BF16_ERROR = "relative error 0.7 at T = 10 and 13 at T = 100, so that it points elsewhere, on a small model (float32: 0.0004 and 0.002)"
"""Against float64; see `warn_of_bf16`."""
_WORLD_SIZES = ("WORLD_SIZE", "PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")
_TWO_ON_CPU = "accelerate launch --config_file recipes/accelerate/two_cpu_processes.yaml"
_SAME = "ACCELERATE_USE_CPU=true accelerate launch --multi_gpu --num_processes 2"


def check_supported() -> None:
    """Raise ValueError if the launcher asked for a model in pieces (DeepSpeed, FSDP and the like), or for a precision with loss scaling."""
    if (precision := os.environ.get("ACCELERATE_MIXED_PRECISION", "no")) in ("fp16", "fp8"):
        raise ValueError(
            f"ACCELERATE_MIXED_PRECISION={precision} is not supported: gradients of the inner loop have no loss scaling and underflow; launch "
            "with --mixed_precision no, or bf16"
        )
    for variable, name in SHARDING.items():
        if _is_true(variable):
            raise ValueError(
                f"{variable}={os.environ[variable]}: {name} is not supported, because a summary is small and needs no sharding; launch "
                "several processes with plain data parallelism, for instance --config_file recipes/accelerate/many_gpus.yaml"
            )


def processes_without_gpu() -> bool:
    """Whether the launcher started several processes on a machine without a GPU. Trainer needs `use_cpu` then, or each process is alone."""
    return _asked() > 1 and not torch.accelerator.is_available()


def check_world_size(world_size: int, gpus: int) -> None:
    """Compare the number of processes with what the launcher asked for, and with the GPUs of this process.

    `accelerate launch --cpu --num_processes 2` starts one process and says nothing. It leaves the address of a meeting point, which it
    sets for several processes only. Such an address may also come from elsewhere, so this is a warning.

    Raises:
        ValueError: the launcher started several processes, but each would train alone, in the same output folder; or one process would
            share its batches among several GPUs.
    """
    if gpus > 1:
        raise ValueError(
            f"this process sees {gpus} GPUs, among which Trainer would share each batch, and an inner loop is on one; launch a process for "
            f"each with `accelerate launch --num_processes {gpus} …`, or show one with CUDA_VISIBLE_DEVICES=0"
        )
    if world_size > 1:
        return
    if _asked() > 1:
        raise ValueError(
            f"the launcher started {_asked()} processes, but each of them would train alone (world size 1); set use_cpu=True to train "
            "on CPUs, or start one process"
        )
    if _is_true("ACCELERATE_USE_CPU") and {"MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
        logger.warning(
            "accelerate launch was asked for several processes, but it has started ONE (world size 1): with --cpu it starts no more. "
            "Launch with `%s …`, or `%s …`.", _SAME, _TWO_ON_CPU,
        )  # fmt: skip


@cache
def warn_of_bf16() -> None:
    """Say once what bf16 autocast does to second derivatives, measured by recipes/benchmark/benchmark.py."""
    logger.warning(
        "bf16=True: the meta-gradient is made of second derivatives, and bf16 rounds them: %s. Leave bf16 out; if memory is short, "
        "set adjoint='reversible' or a smaller window.", BF16_ERROR,
    )  # fmt: skip


def _asked() -> int:
    """The number of processes that torchrun, accelerate or MPI has started."""
    return max(int(os.environ.get(name) or 1) for name in _WORLD_SIZES)


def _is_true(variable: str) -> bool:
    return os.environ.get(variable, "false").lower() in ("1", "true", "yes")
