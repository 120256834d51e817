"""The choice of an adjoint where the caller names none: the fastest one that fits into memory."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from functools import cache, partial
from types import CellType, FunctionType, MethodType
from typing import Any

import psutil
import torch
from torch import Tensor

from farzi_hf.engine.adjoints import ADJOINTS, Adjoint
from farzi_hf.engine.inner_loop import InnerLoop
from farzi_hf.engine.layout import Buffers
from farzi_hf.engine.optimizers import InnerOptimizer
from farzi_hf.engine.step_memory import StepMemory

logger = logging.getLogger(__name__)


def choose_adjoint(loop: InnerLoop, w: Buffers, inputs: Buffers) -> Adjoint:
    """The fastest adjoint that supports the loop and needs no more than its `share` of the device's memory.

    The memory of each adjoint is estimated from that of one step, which is measured once per loss and shapes. The choice
    and its reason are logged (level INFO). If no adjoint fits, the one with the least memory is taken, with a warning.
    """
    step, total = _step_memory(loop, w, inputs), _total_memory(w[0].device)
    candidates = [adjoint for adjoint in (kind() for kind in ADJOINTS.values()) if adjoint.supports(loop)]
    needs = {adjoint: adjoint.memory(loop, w, inputs, step) for adjoint in candidates}
    fitting = [adjoint for adjoint in candidates if needs[adjoint] <= adjoint.share * total]
    chosen = fitting[0] if fitting else min(candidates, key=needs.__getitem__)
    listed = ", ".join(
        f"{type(adjoint).__name__} {need / 2**30:.2g} of {adjoint.share * total / 2**30:.2g} GiB"
        for adjoint, need in needs.items()
    )
    reason = "the fastest that fits" if fitting else "the smallest, none fits"
    _log_once(logging.INFO if fitting else logging.WARNING, f"adjoint={chosen!r}: {reason} (estimates: {listed})")
    return chosen


_MEASURED: dict[Hashable, StepMemory] = {}
_MEASUREMENTS = 64  # at most; the oldest is removed first
_PARTS, _FOLLOWED = 256, 1 << 16  # of a value and in all at most, so that the key of long lists is no work


def _step_memory(loop: InnerLoop, w: Buffers, inputs: Buffers) -> StepMemory:
    """`loop.step_memory`, measured again only if the step may have changed."""
    given = (loop.inner_loss, loop.optimizer, *loop.layout.constants.values(), *w, *inputs)
    key = (type(loop), loop.layout.groups, loop.layout.shapes, repr(loop.autocast), _Key().of(given))
    if key not in _MEASURED:
        if len(_MEASURED) == _MEASUREMENTS:
            del _MEASURED[next(iter(_MEASURED))]
        _MEASURED[key] = loop.step_memory(w, inputs)
    return _MEASURED[key]


class _Key:
    """A key for everything that the memory of a step can depend on: a tensor's shape and type, a function's code and what it captures.

    A training makes a new loss function at every call, so functions with equal code and captured values have equal keys. Containers and
    dataclasses are followed, and the global tensors and containers that a function names. Other objects stand for themselves: a change of
    their attributes is not seen. The key keeps no object alive. A container that was seen before is not followed again: it may hold
    itself, or be held many times.
    """

    def __init__(self) -> None:
        self.followed = 0
        self.seen: dict[int, tuple[int, Any]] = {}
        """By id, the number of each container and the container itself, because an id may be used again after its object."""

    def of(self, value: Any) -> Hashable:
        if isinstance(value, Tensor):
            return value.shape, value.dtype, value.device, value.requires_grad
        if value is None or isinstance(value, (str, int, float, torch.dtype, torch.device)):
            return value
        if (parts := _parts(value)) is not None:
            if id(value) in self.seen:
                return "seen before", self.seen[id(value)][0]
            self.seen[id(value)] = len(self.seen), value
            kind = value.__code__ if isinstance(value, FunctionType) else type(value)
            followed = parts[: min(_PARTS, _FOLLOWED - self.followed)]
            self.followed += len(followed)
            return kind, len(parts), *map(self.of, followed)
        if type(value).__eq__ is object.__eq__:
            with suppress(TypeError):  # a class may have no weak references
                return weakref.ref(value)
        return type(value), getattr(value, "shape", None)


def _parts(value: Any) -> Sequence[Any] | None:
    """What a value is made of; None if that cannot be told."""
    if isinstance(value, MethodType):
        return value.__func__, value.__self__
    if isinstance(value, partial):
        return value.func, *value.args, *value.keywords.keys(), *value.keywords.values()
    if isinstance(value, FunctionType):
        known = [cell.cell_contents for cell in value.__closure__ or () if _is_set(cell)]
        names = (value.__globals__.get(name) for name in value.__code__.co_names)
        return *(value.__defaults__ or ()), *known, *(x for x in names if isinstance(x, (Tensor, Mapping, list, tuple)))
    if isinstance(value, Mapping):
        return *value.keys(), *value.values()
    if isinstance(value, (list, tuple)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        # A learning rate is a number at each step, and its schedule is made anew for each training. A field may not be set yet.
        names = [field.name for field in fields(value)]
        own = isinstance(value, InnerOptimizer)
        return [getattr(value, name, None) for name in names if not (own and name == "lr_schedule")]
    return None


def _is_set(cell: CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018, it raises
    except ValueError:
        return False
    return True


@cache
def _log_once(level: int, message: str) -> None:
    logger.log(level, message)


def _total_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total
