"""Watchers of all tensors that operations make: how many bytes of them live, and how large the largest is."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that operations in this context make.

    Attributes:
        now: bytes of those that are alive.
        peak: the most of `now` so far.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._known: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        for x in _tensors((args, kwargs)):  # they were there before, or are counted already
            self._watch(x.untyped_storage(), 0)
        found = func(*args, **kwargs)
        for x in _tensors(found):
            storage = x.untyped_storage()
            self._watch(storage, storage.nbytes())
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


class LargestTensor(TorchDispatchMode):
    """`elements`: of the largest dense tensor that an operation in this context made."""

    elements = 0

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        self.elements = max([self.elements, *(x.numel() for x in _tensors(found))])
        return found


def _tensors(tree: Any) -> Iterator[Tensor]:
    """All tensors in lists, tuples and mappings, which are all that operations take."""
    if isinstance(tree, Tensor):
        if tree.layout == torch.strided:  # others have no storage
            yield tree
    elif isinstance(tree, (list, tuple)):
        for part in tree:
            yield from _tensors(part)
    elif isinstance(tree, dict):
        yield from _tensors(list(tree.values()))
