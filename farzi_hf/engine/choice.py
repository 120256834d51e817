"""The choice of an adjoint where the caller names none: the fastest one that fits into memory."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

import psutil
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from farzi_hf.engine.adjoints import ADJOINTS, Adjoint
from farzi_hf.engine.inner_loop import Buffers, InnerLoop

logger = logging.getLogger(__name__)


def choose_adjoint(loop: InnerLoop, w: Buffers, inputs: Buffers) -> Adjoint:
    """The fastest adjoint that supports the loop and needs no more than its `share` of the device's memory.

    The memory of each is estimated from the graph of one gradient, which is taken for this. The choice and its reason are logged
    (level INFO). If no adjoint fits, the one with the least memory is taken, with a warning.
    """
    total, graph = _total_memory(w[0].device), graph_bytes(loop, w, inputs)
    candidates = [
        adjoint for adjoint in (kind() for kind in ADJOINTS.values() if kind.share) if not adjoint.refusal(loop)
    ]
    needs = {adjoint: adjoint.memory(loop, w, inputs, graph) for adjoint in candidates}
    fitting = [adjoint for adjoint in candidates if needs[adjoint] <= adjoint.share * total]
    chosen = fitting[0] if fitting else min(candidates, key=needs.__getitem__)
    listed = ", ".join(
        f"{type(adjoint).__name__} {need / 2**30:.2g} of {adjoint.share * total / 2**30:.2g} GiB"
        for adjoint, need in needs.items()
    )
    reason = "the fastest that fits" if fitting else "the smallest, none fits"
    _log_once(logging.INFO if fitting else logging.WARNING, f"adjoint={chosen!r}: {reason} (estimates: {listed})")
    return chosen


def graph_bytes(loop: InnerLoop, w: Buffers, inputs: Buffers) -> int:
    """Bytes that autograd keeps of the gradient of one step to differentiate it later, with the gradient itself."""
    with _NewTensors() as made:
        graph = loop.gradient_graph(w, inputs, loop.differentiated[0])
    kept = sum(storage.nbytes() for storage in made.storages.values())
    del graph
    return kept


class _NewTensors(TorchDispatchMode):
    """Notes the memory of the tensors that operations in this context make, as long as it is in use."""

    def __init__(self) -> None:
        super().__init__()
        self.storages: weakref.WeakValueDictionary[int, torch.UntypedStorage] = weakref.WeakValueDictionary()

    def __torch_dispatch__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        found = func(*args, **(kwargs or {}))
        if any(
            value.alias_info is None for value in func._schema.returns
        ):  # otherwise it is a view, or was there before
            for x in tree_leaves(found):
                if isinstance(x, Tensor) and x.layout == torch.strided:  # others have no storage
                    storage = x.untyped_storage()
                    self.storages[storage._cdata] = storage
        return found


@cache
def _log_once(level: int, message: str) -> None:
    logger.log(level, message)


def _total_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return psutil.virtual_memory().total
