"""The adjoint that keeps all graphs: plain autograd."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.adjoints.base import Adjoint
from farzi_hf.engine.inner_loop import InnerLoop, weights
from farzi_hf.engine.layout import Buffers
from farzi_hf.engine.step_memory import StepMemory


@dataclass(frozen=True)
class Direct(Adjoint):
    """Plain autograd through all steps. The other adjoints are tested against it, and only it has higher derivatives.

    Time 3 T·G. Memory: the activations and the gradient graph of every differentiated step at once.
    """

    # With a larger share, getting the memory from the system costs more time than `Direct` saves.
    share: ClassVar[float] = 1 / 32

    def refusal(self, loop: InnerLoop) -> str | None:
        if not loop.optimizer.exact:
            return (
                f"adjoint=Direct() differentiates the steps of the optimizer and cannot follow the reverse rule of "
                f"optimizer={type(loop.optimizer).__name__}; use adjoint=Tape()"
            )
        if not loop.keeps_graphs:
            return "adjoint=Direct() needs autograd's graphs, which torch_compile=True does without; use adjoint=Tape()"
        return None

    def run(self, loop: InnerLoop, w: Buffers, inputs: Buffers) -> Buffers:
        states = tuple(loop.optimizer.init(flat) for flat in w)
        if loop.is_cut:
            late = loop.advance(loop.start(w), inputs, loop.undifferentiated)
            states = tuple((_cut(flat, state[0]), *state[1:]) for flat, state in zip(w, late, strict=True))
        for t in loop.differentiated:
            states = loop.differentiable_step(states, inputs, t)
        return weights(states)

    def memory(self, loop: InnerLoop, w: Buffers, inputs: Buffers, step: StepMemory) -> int:
        return len(loop.differentiated) * step.graph + step.peak - step.graph


def _cut(start: Tensor, value: Tensor) -> Tensor:
    """`value`, linked to `start` by a derivative of zero (not by 0 · start, which may be NaN)."""
    return torch.where(torch.zeros_like(start, dtype=torch.bool), start, value)
