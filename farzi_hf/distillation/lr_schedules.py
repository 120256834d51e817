"""Learning rates over the steps of an inner loop: schedules of transformers, so that a student under the stock Trainer has the same."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import get_scheduler

LR_SCHEDULES = ("constant", "linear", "cosine")
"""The values of `lr_scheduler_type` that fit a training of any length."""


def lr_schedule(name: str, steps: int) -> Callable[[int], float] | None:
    """The multiplier of the learning rate in each of the steps 1 … `steps`; None where it is constant.

    Args:
        name: one of `LR_SCHEDULES`.

    Raises:
        ValueError: `name` is unknown.
    """
    if name not in LR_SCHEDULES:
        raise ValueError(f"lr_scheduler_type={name!r} is unknown; choose one of {', '.join(LR_SCHEDULES)}")
    if name == "constant":
        return None
    unused = torch.optim.SGD([torch.zeros(1)], lr=1.0)
    (multiplier,) = get_scheduler(name, unused, num_warmup_steps=0, num_training_steps=steps).lr_lambdas
    return lambda step: multiplier(step - 1)
