"""Activation checkpointing inside an inner step: of each layer only the inputs are kept, also for the second derivative.

A step of the inner loop is differentiated twice. `torch.utils.checkpoint` recomputes a layer for its first derivative, and under
`create_graph=True` it would keep the layer's whole graph for the second one, or lose it. Here the first derivative is a function of its
own, which keeps no graph either: it computes the layer again when it is differentiated. So one layer's graph is in memory at a time.
A step with its derivatives then runs each layer five times in place of two.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils import _pytree as pytree

Run = Callable[..., tuple[Tensor, ...]]
"""A layer as a function of the tensors that it has derivatives in."""


def keep_inputs_of_layers(model: nn.Module) -> None:
    """Makes each layer of the model keep its inputs only. Layers are the members of the outermost `nn.ModuleList`s.

    Raises:
        ValueError: the model has no `nn.ModuleList`.
    """
    layers = list(_layers(model))
    if not layers:
        raise ValueError(
            f"checkpoint_layers=True, but {type(model).__name__} has no nn.ModuleList of layers; leave checkpoint_layers out"
        )
    for layer in layers:
        layer.forward = _Checkpointed(layer)


def _layers(module: nn.Module) -> list[nn.Module]:
    if isinstance(module, nn.ModuleList):
        return list(module)
    return [layer for child in module.children() for layer in _layers(child)]


class _Plain(nn.Module):
    """A layer as it was, for `torch.func.functional_call`."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer, self.original = layer, layer.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.original(*args, **kwargs)


class _Checkpointed:
    """The `forward` of a layer that keeps its inputs only."""

    def __init__(self, layer: nn.Module) -> None:
        self.plain = _Plain(layer)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        params = dict(self.plain.named_parameters())  # while the learner runs, they are its own
        leaves, structure = pytree.tree_flatten((params, args, kwargs))
        places = [i for i, x in enumerate(leaves) if isinstance(x, Tensor) and x.requires_grad]
        inputs = [leaves[i] for i in places]
        device = next(x.device.type for x in leaves if isinstance(x, Tensor))
        autocast = {"dtype": torch.get_autocast_dtype(device), "enabled": torch.is_autocast_enabled(device)}
        shapes: list[Any] = []

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            values = list(leaves)
            for i, x in zip(places, tensors, strict=True):
                values[i] = x
            params, own_args, own_kwargs = pytree.tree_unflatten(values, structure)
            with torch.autocast(device, **autocast):
                found = torch.func.functional_call(self.plain, params, own_args, own_kwargs)
            outputs, shape = pytree.tree_flatten(found)
            shapes[:] = [shape]
            return tuple(outputs)

        outputs = _Layer.apply(run, *inputs)
        return pytree.tree_unflatten(list(outputs), shapes.pop())


class _Layer(torch.autograd.Function):
    """y = run(x)."""

    @staticmethod
    def forward(ctx: Any, run: Run, *x: Tensor) -> tuple[Tensor, ...]:
        ctx.run = run
        ctx.save_for_backward(*x)
        return run(*x)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_LayerGradient.apply(ctx.run, len(dy), *dy, *ctx.saved_tensors)


class _LayerGradient(torch.autograd.Function):
    """dx = dyᵀ ∂run/∂x."""

    @staticmethod
    def forward(ctx: Any, run: Run, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.run, ctx.count = run, count
        ctx.save_for_backward(*tensors)
        return _gradient(run, count, _leaves(tensors), create_graph=False)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *v: Tensor) -> tuple[Tensor | None, ...]:
        tensors = _leaves(ctx.saved_tensors)
        dx = _gradient(ctx.run, ctx.count, tensors, create_graph=True)
        found = torch.autograd.grad(dx, tensors, v, materialize_grads=True)
        return None, None, *found


def _leaves(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [x.detach().requires_grad_() for x in tensors]


def _gradient(run: Run, count: int, tensors: Sequence[Tensor], create_graph: bool) -> tuple[Tensor, ...]:
    """dx, where the first `count` tensors are dy and the others are x."""
    x = tensors[count:]
    with torch.enable_grad():
        pairs = [(y, dy) for y, dy in zip(run(*x), tensors[:count], strict=True) if y.requires_grad]
        y, dy = zip(*pairs, strict=True)
        return torch.autograd.grad(y, x, dy, create_graph=create_graph, materialize_grads=True)


def check_checkpointed_layers(config: Any) -> None:
    """Raises ValueError if a `FarziConfig` asks for it where it cannot be: `torch.vmap` and `torch.compile` do not see through it."""
    if config.checkpoint_layers and config.learners_per_step > 1:
        raise ValueError(
            f"checkpoint_layers=True with learners_per_step={config.learners_per_step}: layers are computed again for one learner at a "
            f"time; use learners_per_step=1 and gradient_accumulation_steps={config.learners_per_step}"
        )
    if config.checkpoint_layers and config.torch_compile:
        raise ValueError(
            "checkpoint_layers=True with torch_compile=True: a compiled step decides itself what it keeps; leave one out"
        )
