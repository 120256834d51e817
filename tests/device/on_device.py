"""What the tests of the device share. They run on a GPU, or on a fake one (`make test-device`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import fake_cuda
import pytest
import torch
from meta_problems import MetaProblem
from torch import nn

needs_device = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        "not torch.cuda.is_available()",
        reason="there is no CUDA device, and no fake one: make test-device",
    ),
]


def moved(x: Any) -> Any:
    """A tensor, parameter or problem on the device, with leaves where it had them."""
    if isinstance(x, MetaProblem):
        return replace(
            x,
            params={name: moved(p) for name, p in x.params.items()},
            inputs=tuple(map(moved, x.inputs)),
        )
    on_device = x.detach().to("cuda")
    if isinstance(x, nn.Parameter):
        return nn.Parameter(on_device, x.requires_grad)
    return on_device.requires_grad_(x.requires_grad)


def launches(counts: dict[str, int]) -> int:
    """How many kernels ran."""
    return sum(
        number for name, number in counts.items() if not name.startswith(("read by", "sent"))
    )


def reads(counts: dict[str, int]) -> dict[str, int]:
    """What made the CPU wait for the device, and how often."""
    return {name: number for name, number in counts.items() if name.startswith("read by")}


def sent(counts: dict[str, int]) -> int:
    """How many copies went to the device."""
    return counts.get("sent and waited for", 0) + counts.get("sent", 0)


def waits(counts: dict[str, int]) -> int:
    """How often the CPU waited for the device: where it read back, and where it sent something
    without being told not to wait.
    """
    return sum(reads(counts).values()) + counts.get("sent and waited for", 0)


def counted(run: Callable[[], Any]) -> dict[str, int]:
    """By the name of an operation, how often `run` called it on the fake device."""
    if not fake_cuda.is_needed():
        pytest.skip("a real device does not count")
    torch.ops.fake_cuda.taken_counts()
    run()
    return dict(torch.ops.fake_cuda.taken_counts())
