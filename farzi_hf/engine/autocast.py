"""The caller's autocast: the inner loss runs under it, and nothing else does."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from typing import NamedTuple

import torch
from torch import Tensor


class Autocast(NamedTuple):
    """Autocast of one kind of device."""

    dtype: torch.dtype
    """The dtype that it casts to."""
    enabled: bool
    """Whether it is on."""


AutocastSettings = dict[str, Autocast]
"""By the type of the device."""


def autocast_settings(tensors: Iterable[Tensor]) -> AutocastSettings:
    """The caller's autocast settings for every kind of device that `tensors` are on."""
    kinds = {x.device.type for x in tensors}
    return {
        kind: Autocast(torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind))
        for kind in sorted(kinds)
        if torch.amp.is_autocast_available(kind)
    }


def autocast(settings: AutocastSettings) -> ExitStack:
    """Enter these settings, without autocast's cache of cast weights, which would stay in memory
    after the graph of a step.
    """
    stack = ExitStack()
    for kind, (dtype, enabled) in settings.items():
        stack.enter_context(torch.autocast(kind, dtype, enabled, cache_enabled=False))
    return stack


def no_autocast(settings: AutocastSettings) -> ExitStack:
    """Turn autocast off on the devices of `settings`: only the loss runs under it, not its
    derivatives or the optimizer.
    """
    return autocast({kind: Autocast(dtype, False) for kind, (dtype, _) in settings.items()})
