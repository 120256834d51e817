"""The memory layout of the parameters.

The trained ones are in one flat buffer per (dtype, device), and the network gets views of it, so the optimizer's cost does not depend on the
number of tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

Buffers = tuple[Tensor, ...]
"""One flat tensor per group of parameters. A group is all parameters of one dtype and device."""


@dataclass(frozen=True)
class Layout:
    """The place of each trained tensor in the flat buffers, and the tensors that do not train (`constants`)."""

    names: tuple[str, ...]
    groups: tuple[tuple[str, ...], ...]
    shapes: tuple[tuple[torch.Size, ...], ...]
    constants: dict[str, Tensor]

    @classmethod
    def of(cls, params: dict[str, Tensor]) -> Layout:
        """Sort `params` into groups and constants; the docstring of `unroll` has the rule."""
        plain_tensors_train = not any(x.requires_grad for x in params.values())
        groups: dict[tuple[torch.dtype, torch.device], list[str]] = {}
        constants: dict[str, Tensor] = {}
        for name, x in params.items():
            trains = x.requires_grad or (plain_tensors_train and not isinstance(x, nn.Parameter))
            if x.requires_grad and x.is_complex():
                raise ValueError(
                    f"params[{name!r}] is {x.dtype}, which does not train; give its real and imaginary part"
                )
            if trains and x.dtype == torch.float16:
                raise ValueError(
                    f"params[{name!r}] is float16, in which the squares of gradients vanish; train float32 parameters, under autocast if "
                    "the network should be fast"
                )
            if trains and x.is_floating_point():
                groups.setdefault((x.dtype, x.device), []).append(name)
            else:
                constants[name] = x
        if not groups:
            raise ValueError(
                f"params has no tensor to train, got {len(params)} frozen or integer ones ({next(iter(params))}, …); "
                "set requires_grad=True on those that should train"
            )
        shapes = tuple(tuple(params[name].shape for name in names) for names in groups.values())
        return cls(tuple(params), tuple(map(tuple, groups.values())), shapes, constants)

    def flatten(self, params: dict[str, Tensor]) -> Buffers:
        """Copy the trained tensors into new flat buffers."""
        return tuple(torch.cat([params[name].reshape(-1) for name in names]) for names in self.groups)

    def unflatten(self, w: Buffers) -> dict[str, Tensor]:
        """All tensors by name, in their order; the trained ones are views of the buffers. They are split at once: its backward is one
        concatenation."""
        params = dict(self.constants)
        for flat, names, shapes in zip(w, self.groups, self.shapes, strict=True):
            parts = flat.split([shape.numel() for shape in shapes])
            params.update((name, part.view(shape)) for name, part, shape in zip(names, parts, shapes, strict=True))
        return {name: params[name] for name in self.names}
