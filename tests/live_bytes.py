"""A watcher of all tensors that operations make."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the dense tensors that operations in this context make.

    Attributes:
        now: bytes of those that are alive.
        peak: the most of `now` so far.
        elements: of the largest of them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.elements = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        for x in _tensors((args, kwargs)):  # they were there before, or are counted already
            self._watch(x.untyped_storage(), 0)
        found = func(*args, **(kwargs or {}))
        for x in _tensors(found):
            self._watch(x.untyped_storage(), x.untyped_storage().nbytes())
            self.elements = max(self.elements, x.numel())
        return found

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key in self._known:
            return
        self._known.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor) and x.layout == torch.strided]
