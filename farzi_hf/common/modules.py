"""Copies of modules."""

import copy
from typing import TypeVar

from torch import Tensor, nn

Kind = TypeVar("Kind", bound=nn.Module)


def copy_of(module: Kind) -> Kind:
    """A deep copy. What a module has kept of its last batch, as the states of a RecurrentGemma, is
    copied without the graph that made it: PyTorch copies no tensor that has one.
    """
    memo: dict[int, Tensor] = {}
    for part in module.modules():
        for value in vars(part).values():
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    return copy.deepcopy(module, memo)
