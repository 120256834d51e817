"""Learning rates over the steps of an inner loop: schedules of transformers, so that a student under the stock Trainer has the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers import get_scheduler

LR_SCHEDULES: dict[str, Callable[[int], dict[str, Any]]] = {
    "constant": lambda steps: {},
    "linear": lambda steps: {},
    "cosine": lambda steps: {},
    # The learning rate stays for half of the steps, and then falls to 0 on a straight line.
    "warmup_stable_decay": lambda steps: {"num_decay_steps": max(1, steps // 2), "decay_type": "linear"},
}
"""By `lr_scheduler_type`: the `lr_scheduler_kwargs` of a training of a number of steps."""


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
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # a schedule is made for one
    scheduler = get_scheduler(name, optimizer, 0, steps, scheduler_specific_kwargs=LR_SCHEDULES[name](steps))
    (multiplier,) = scheduler.lr_lambdas
    return lambda step: multiplier(step - 1)
