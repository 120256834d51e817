"""What a load may cost: seconds and bytes, which are counted before they are spent.

A config of one kilobyte can describe a model that makes matrices of gigabytes, or loops over
millions of positions. Nobody can list the fields of all architectures that do so. So a budget looks
at each operation of torch just before it runs, computes from the shapes what the operation costs,
and ends the computation where that is more than is left.
"""

import math
import re
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

_LOAD_SECONDS = 2.5
"""The seconds that the load of a summary without numbers may take."""
_LOAD_BYTES = 2**28
"""The bytes that it may take."""
_LOAD_SPEED = 10**7
"""The numbers for which it may take a second more."""
_LOAD_FACTOR = 8
"""The bytes more that it may take for each of them."""


class OverBudgetError(RuntimeError):
    """An operation would take more seconds or bytes than are left. It has not run."""


class Budget(TorchDispatchMode):
    """A context whose operations of torch take no more than this; beyond, `OverBudgetError`.

    Seconds are computed, not measured: the same load is refused on every machine, or on none.
    Bytes count for as long as a tensor lives that the context has made.

    Args:
        seconds: of all operations together.
        nbytes: of all new tensors that exist at the same time.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """No: to skip it, torch would import its compiler, which takes a second."""
        return False

    def __init__(self, seconds: float, nbytes: int) -> None:
        super().__init__()
        self.seconds = seconds
        self.nbytes = nbytes
        self._costs: dict[Any, Cost] = {}
        """Of the operations so far: layers repeat each other."""
        self._alive: dict[int, weakref.ref] = {}
        """The storages of new tensors, by their addresses."""

    @classmethod
    def of_load(cls, shapes: Mapping[str, tuple[int, ...]]) -> "Budget":
        """That of loading a summary whose tensors have these shapes, beside themselves."""
        numbers = sum(map(math.prod, shapes.values()))
        return cls(_LOAD_SECONDS + numbers / _LOAD_SPEED, _LOAD_BYTES + _LOAD_FACTOR * numbers)

    @contextmanager
    def share(self, seconds: float) -> Iterator[None]:
        """A context that may spend only this much of what is left."""
        kept = max(0.0, self.seconds - seconds)
        self.seconds -= kept
        try:
            yield
        finally:
            self.seconds += kept

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        cost = self._cost(func, args, kwargs)
        self.seconds -= cost.seconds
        if self.seconds < 0:
            raise OverBudgetError(f"{func} would take too much time")
        if cost.nbytes > self.nbytes:
            raise OverBudgetError(f"{func} would take too much memory")
        results = func(*args, **kwargs)
        if cost.nbytes > 0:
            for tensor in tree_leaves(results):
                if isinstance(tensor, Tensor):
                    self._take(tensor.untyped_storage())
        return results

    def _cost(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> "Cost":
        if _kind_of(func).makes_views:
            return Cost(_CALL, 0)
        signature = (func, _signature(args), _signature(tuple(kwargs.items())))
        if signature not in self._costs:
            self._costs[signature] = cost_of(func, args, kwargs)
        return self._costs[signature]

    def _take(self, storage: torch.UntypedStorage) -> None:
        """Takes its bytes, until the last tensor is gone that looks at them."""
        address = storage._cdata
        if address in self._alive:
            return
        nbytes = storage.nbytes()

        def give_back(_: weakref.ref) -> None:
            del self._alive[address]
            self.nbytes += nbytes

        self.nbytes -= nbytes
        self._alive[address] = weakref.ref(storage, give_back)


def _signature(value: Any) -> Any:
    """What the cost of an operation can depend on, of an argument of it."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.device.type
    if isinstance(value, list | tuple):
        return tuple(map(_signature, value))
    return value if isinstance(value, str | int | float | torch.dtype) else str(value)


# -- what an operation costs -----------------------------------------------------------------------

_CALL = 6e-5
"""Seconds of an operation without numbers, and of the Python code around it."""
_WRITE = 3e-9
"""Seconds of a number that an operation writes; more than most operations take."""
_READ = 1e-9
"""Seconds of a number that an operation reads."""
_FLOPS = 1e10
"""Products and sums in a second."""
_FLOPS_OF_HALF = 4e8
"""Those of float16, which few processors compute themselves."""
_SORT = 60e-9
"""Seconds of a number that is sorted."""

_PICKING = ("embedding", "index", "gather", "select", "take")
"""Operations that read no more numbers than they write begin so."""
_SORTING = ("sort", "topk", "unique", "kthvalue", "median", "mode")
_CUBIC = ("linalg_(?!vector_norm)", "qr", "svd", "cholesky", "inverse", "matrix_exp", "solve")
"""Parts of the names of operations whose time grows with the third power of a size."""

_FLOP_COUNTERS = {
    packet._qualified_op_name: count
    for packet, count in flop_registry.items()
    if hasattr(packet, "_qualified_op_name")
}


class Cost(NamedTuple):
    """What an operation takes: seconds of one core, from above, and bytes of new results."""

    seconds: float
    nbytes: int


class _Kind(NamedTuple):
    """What does not depend on the arguments of an operation."""

    name: str
    makes_views: bool
    writes_in_place: bool
    takes_device: bool
    is_pointwise: bool


@cache
def _kind_of(func: Any) -> _Kind:
    schema = func._schema
    aliases = [x.alias_info for x in schema.returns if x.alias_info is not None]
    return _Kind(
        name=schema.name,
        makes_views=any(not x.is_write for x in aliases),
        writes_in_place=any(x.is_write for x in aliases),
        takes_device=any(x.name == "device" for x in schema.arguments),
        is_pointwise=torch.Tag.pointwise in func.tags,
    )


def cost_of(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Cost:
    """What `func(*args, **kwargs)`, an operation of torch, would cost."""
    kind = _kind_of(func)
    read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    if kind.makes_views or _is_without_numbers(kind, read, kwargs):
        return Cost(_CALL, 0)
    if kind.writes_in_place:
        made = read[:1]
    elif kind.is_pointwise:
        made = [_broadcast(read)]
    else:
        made = _results(func, kind, args, kwargs, read)
    seconds = _CALL + _WRITE * _count(made) + _products(kind, args, kwargs, read, made)
    if not kind.name.removeprefix("aten::").startswith(_PICKING):
        seconds += _READ * _count(read)
    if any(part in kind.name for part in _SORTING):
        seconds += _SORT * _count(read)
    if re.search("|".join(_CUBIC), kind.name):
        largest = max((size for x in read for size in x.shape), default=1)
        seconds += 10 * largest * _count(read) / _FLOPS
    nbytes = 0 if kind.writes_in_place else sum(x.numel() * x.element_size() for x in made)
    return Cost(seconds, nbytes)


def _count(tensors: Sequence[Tensor]) -> int:
    return sum(x.numel() for x in tensors)


def _is_without_numbers(kind: _Kind, read: Sequence[Tensor], kwargs: Mapping[str, Any]) -> bool:
    """Whether the operation is one of the device "meta", where tensors are shapes alone."""
    device = kwargs.get("device")
    if device is None and read:
        return all(x.device.type == "meta" for x in read)
    return device is not None and torch.device(device).type == "meta"


def _results(
    func: Any, kind: _Kind, args: Sequence[Any], kwargs: Mapping[str, Any], read: Sequence[Tensor]
) -> list[Tensor]:
    """The shapes of what an operation would make. Where they depend on numbers, such as those of
    all places that are not zero, they are taken to be those of the arguments.
    """
    shapes, named = tree_map_only(Tensor, _without_numbers, (tuple(args), dict(kwargs)))
    if kind.takes_device:
        named["device"] = "meta"
    try:
        made = func(*shapes, **named)
    except Exception:  # of the shapes too: then the operation itself raises it
        return list(read)
    return [x for x in tree_leaves(made) if isinstance(x, Tensor)]


def _broadcast(read: Sequence[Tensor]) -> Tensor:
    """As `_results`, of an operation on single numbers. In a hundredth of the time."""
    try:
        shape = torch.broadcast_shapes(*(x.shape for x in read))
    except RuntimeError:  # then the operation itself raises it
        shape = (_count(read),)
    widest = max((x.dtype for x in read), key=lambda dtype: dtype.itemsize)
    # A truth times a float is a float.
    return torch.empty(shape, dtype=widest if widest.itemsize > 4 else torch.float32, device="meta")


def _without_numbers(x: Tensor) -> Tensor:
    return torch.empty_strided(x.size(), x.stride(), dtype=x.dtype, device="meta")


def _products(
    kind: _Kind,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    read: Sequence[Tensor],
    made: Sequence[Tensor],
) -> float:
    """Seconds of the products and sums of an operation on matrices."""
    is_half = any(x.dtype == torch.float16 for x in read)
    flops_per_second = _FLOPS_OF_HALF if is_half else _FLOPS
    if "attention" in kind.name:
        query, key, value = read[:3]
        scores = query.numel() // query.shape[-1] * key.shape[-2]
        flops = 2 * scores * (query.shape[-1] + value.shape[-1])
        return flops / flops_per_second + _WRITE * scores
    if any(part in kind.name for part in ("rnn", "lstm", "gru")):
        positions = read[0].numel() // read[0].shape[-1]
        weights = sum(x.numel() for x in read[1:] if x.dim() == 2)
        return 2 * positions * weights / flops_per_second
    counter = _FLOP_COUNTERS.get(kind.name.rstrip("_"))
    if counter is None or not made:
        return 0.0
    return counter(*args, **kwargs, out_val=made[0]) / flops_per_second
