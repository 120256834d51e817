"""Activation checkpointing inside an inner step: of each layer only the inputs are kept, also for
the second derivative.

A step of the inner loop is differentiated twice. `torch.utils.checkpoint` recomputes a layer for
its first derivative, and under `create_graph=True` it would keep the layer's whole graph for the
second one, or lose it. Here the first derivative is a function of its own, which keeps no graph
either: it computes the layer again when it is differentiated. So one layer's graph is in memory at
a time. A step with its derivatives then runs each layer five times in place of two.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from farzi_hf.distillation.learner_model import dropping

TensorFunction = Callable[..., tuple[Tensor, ...]]
"""A layer, or a derivative of it, as a function of the tensors that it has derivatives in."""


def keep_inputs_of_layers(model: nn.Module) -> None:
    """Makes each layer of the model keep its inputs only. Layers are the members of the outermost
    `nn.ModuleList`s. Raises ValueError if the model has no `nn.ModuleList`.
    """

    def layers(module: nn.Module) -> list[nn.Module]:
        if isinstance(module, nn.ModuleList):
            return list(module)
        return [layer for child in module.children() for layer in layers(child)]

    of_model = layers(model)
    if not of_model:
        raise ValueError(
            f"checkpoint_layers=True, but {type(model).__name__} has no nn.ModuleList; leave it out"
        )
    for layer in of_model:
        layer.forward = partial(_recomputed, _Plain(layer))


class _Plain(nn.Module):
    """A layer as it was, for `torch.func.functional_call`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.original = layer.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


def _recomputed(plain: _Plain, *args: Any, **kwargs: Any) -> Any:
    """The `forward` of a layer that keeps its inputs only."""
    if not torch.is_grad_enabled():
        return plain(*args, **kwargs)
    params = dict(plain.named_parameters())  # while the learner runs, they are its own
    leaves, structure = pytree.tree_flatten((params, args, kwargs))
    places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
    device = next(x.device.type for x in leaves if isinstance(x, Tensor))
    # A layer with dropout draws by a seed of its own, so that each run drops the same.
    seed = int(torch.randint(2**62, ())) if plain.layer.training else None
    autocast = {
        "dtype": torch.get_autocast_dtype(device),
        "enabled": torch.is_autocast_enabled(device),
    }
    shapes: list[Any] = []

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        values = list(leaves)
        dropped = nullcontext() if seed is None else dropping(plain.layer, seed)
        for i, x in zip(places, tensors, strict=True):
            values[i] = x
        with torch.autocast(device, **autocast), dropped:
            result = torch.func.functional_call(plain, *pytree.tree_unflatten(values, structure))
        outputs, shape = pytree.tree_flatten(result)
        shapes[:] = [shape]
        return tuple(outputs)

    outputs = _Recomputed.apply(run, *[leaves[i] for i in places])
    return pytree.tree_unflatten(list(outputs), shapes.pop())


class _Recomputed(torch.autograd.Function):
    """y = run(x). Its derivative is such a function again."""

    @staticmethod
    def forward(ctx: Any, run: TensorFunction, *x: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.save_for_backward(*x)
        return run(*x)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Recomputed.apply(
            partial(_gradient, ctx.run, len(dy)), *dy, *ctx.saved_tensors
        )


def _gradient(run: TensorFunction, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
    """dx = dyᵀ ∂run/∂x, where the first `count` tensors are dy and the others are x. Inside another
    derivative, dx has a graph.
    """
    inside = torch.is_grad_enabled()
    tensors = tensors if inside else [x.detach().requires_grad_() for x in tensors]
    x = tensors[count:]
    with torch.enable_grad():
        pairs = [(y, dy) for y, dy in zip(run(*x), tensors[:count], strict=True) if y.requires_grad]
        y, dy = zip(*pairs, strict=True)
        return torch.autograd.grad(y, x, dy, create_graph=inside, materialize_grads=True)
