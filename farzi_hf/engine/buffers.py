"""The numbers of a training in flat buffers: where each parameter is in them, and a training that
has stopped there.

One flat buffer holds all parameters of a dtype, device and optimizer. So the optimizer's cost does
not depend on the number of tensors. The network gets views of the buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from farzi_hf.engine.optimizers import InnerOptimizer, State

Buffers = tuple[Tensor, ...]
"""One flat tensor per group of parameters. A group is all parameters of one dtype, device and
optimizer.
"""
States = tuple[State, ...]
"""One optimizer state per group."""


@dataclass(frozen=True)
class Layout:
    """The place of each trained tensor in the flat buffers, and the tensors that do not train."""

    names: tuple[str, ...]
    """All tensors, in the order in which they were given."""
    groups: tuple[tuple[str, ...], ...]
    """The names of those that train, for each buffer, in their order there."""
    shapes: tuple[tuple[torch.Size, ...], ...]
    """The shape of each of them."""
    constants: dict[str, Tensor]
    """The tensors that do not train, by name."""

    @classmethod
    def of(cls, params: dict[str, Tensor], optimizer: InnerOptimizer) -> Layout:
        """Sort `params` into groups and constants; the docstring of `unroll` has the rule.

        Raises:
            ValueError: no tensor trains, or one that trains has a dtype without usable squares.
        """
        shapes = {name: x.shape for name, x in params.items()}
        optimizers = optimizer.by_parameter(shapes)
        plain_tensors_train = not any(x.requires_grad for x in params.values())
        groups: dict[tuple[torch.dtype, torch.device, int], list[str]] = {}
        constants: dict[str, Tensor] = {}
        for name, x in params.items():
            is_plain = not isinstance(x, nn.Parameter)
            trains = x.requires_grad or (plain_tensors_train and is_plain)
            if trains:
                _check_dtype(name, x)
            if trains and x.is_floating_point():
                group = (x.dtype, x.device, id(optimizers[name]))
                groups.setdefault(group, []).append(name)
            else:
                constants[name] = x
        if not groups:
            raise ValueError(
                f"params has no tensor to train, got {len(params)} frozen or integer ones"
                f" ({next(iter(params))}, …); set requires_grad=True on those that should train"
            )
        return cls(
            names=tuple(params),
            groups=tuple(tuple(names) for names in groups.values()),
            shapes=tuple(tuple(shapes[name] for name in names) for names in groups.values()),
            constants=constants,
        )

    @property
    def sizes(self) -> dict[str, torch.Size]:
        """The shapes of all tensors by name."""
        sizes = {name: x.shape for name, x in self.constants.items()}
        for names, shapes in zip(self.groups, self.shapes, strict=True):
            sizes.update(zip(names, shapes, strict=True))
        return sizes

    def flatten(self, params: dict[str, Tensor]) -> Buffers:
        """Copy the trained tensors into new flat buffers."""
        return tuple(
            torch.cat([params[name].reshape(-1) for name in names]) for names in self.groups
        )

    def unflatten(self, w: Buffers) -> dict[str, Tensor]:
        """All tensors by name, in their order; the trained ones are views of the buffers."""
        params = dict(self.constants)
        for flat, names, shapes in zip(w, self.groups, self.shapes, strict=True):
            # Split at once: the backward of that is one concatenation.
            parts = flat.split([shape.numel() for shape in shapes])
            for name, part, shape in zip(names, parts, shapes, strict=True):
                params[name] = part.view(shape)
        return {name: params[name] for name in self.names}


def _check_dtype(name: str, x: Tensor) -> None:
    if x.dtype == torch.float16 or x.is_complex():
        raise ValueError(
            f"params[{name!r}] is {x.dtype}, in which squares of gradients vanish or are not real;"
            " train float32 parameters, under autocast if the network should be fast"
        )


@dataclass(frozen=True)
class TrainingState:
    """A training that has stopped and can go on: `unroll` and `train` take it in place of
    `params`.
    """

    layout: Layout
    """The place of each parameter in the buffers."""
    states: States
    """The optimizer's states, in flat buffers. Never change them."""
    step: int
    """The number of steps taken."""

    @property
    def params(self) -> dict[str, Tensor]:
        """The parameters by name. They share memory with `states`."""
        return self.layout.unflatten(weights(self.states))

    def to_tensors(self, name: str) -> dict[str, Tensor]:
        """Copies of the states, for a file in which this one is called `name`."""
        return {
            f"{name}.{group}.{i}": x.clone()
            for group, state in enumerate(self.states)
            for i, x in enumerate(state)
        }

    @classmethod
    def of_tensors(
        cls,
        name: str,
        tensors: Mapping[str, Tensor],
        start: dict[str, Tensor],
        optimizer: InnerOptimizer,
        step: int,
    ) -> TrainingState:
        """The inverse of `to_tensors`.

        Args:
            name: of the state in the file.
            tensors: of the file.
            start: θ_0 of the training, whose constants and devices count.
            optimizer: of the training.
            step: the number of steps taken.

        Raises:
            KeyError: the file has no such state.
        """
        layout = Layout.of(start, optimizer)
        states = []
        for group, names in enumerate(layout.groups):
            prefix = f"{name}.{group}."
            device = start[names[0]].device
            count = sum(key.startswith(prefix) for key in tensors)
            count = max(1, count)  # a state that is not there is an error, and not an empty one
            states.append(tuple(tensors[f"{prefix}{i}"].to(device) for i in range(count)))
        return cls(layout, tuple(states), step)


def weights(states: States) -> Buffers:
    """The parameters of the states."""
    return tuple(state[0] for state in states)


def leaves(w: Buffers) -> Buffers:
    """The parameters as leaves for autograd. They share memory with `w`."""
    return tuple(flat.detach().requires_grad_() for flat in w)


def input_leaves(inputs: Buffers) -> Buffers:
    """The inputs as leaves for autograd, of which those require grad that do so now."""
    return tuple(x.detach().requires_grad_(x.requires_grad) for x in inputs)


def clone(states: States) -> States:
    """A copy of the states in new buffers."""
    return tuple(tuple(x.clone() for x in state) for state in states)


def nbytes(w: Buffers) -> int:
    """Bytes of all buffers."""
    return sum(flat.nbytes for flat in w)
