"""Stochastic gradient descent with the exact reverse of its step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.optimizers.base import (
    FLOAT32_BITS,
    InvertibleOptimizer,
    State,
    check_fields,
    decayed,
    described,
    is_number,
    learning_rate,
    max_grad_norm,
    weight_decay,
)


@dataclass(frozen=True)
class InnerSGD(InvertibleOptimizer):
    r"""Stochastic gradient descent with momentum. Every step equals a step of `torch.optim.SGD`.

    One step and its exact reverse are

    1. $g \leftarrow g + \lambda w$
    2. $m_t = \mu m_{t-1} + g$
    3. $w_t = w_{t-1} - \alpha m_t$
    4. $dm \mathrel{-}= \alpha\, dw$
    5. $dg = dm$
    6. $dm \leftarrow \mu\, dm$, $dw \leftarrow dw + \lambda\, dg$

    Raises:
        ValueError: a hyper-parameter is out of its range.
    """

    fields: ClassVar[int] = 2
    unused_stay: ClassVar[bool] = True
    # Trainer leaves out biases and norms.
    without_stock_twin: ClassVar[tuple[str, ...]] = ("weight_decay",)

    lr: float = learning_rate()
    r"""$\alpha$, the learning rate."""
    momentum: float = described(0.0, "momentum of the inner SGD", name="inner_momentum")
    r"""$\mu$, in [0, 1)."""
    weight_decay: float = weight_decay()
    r"""$\lambda$; $\lambda w$ is added to the gradient."""
    lr_schedule: Callable[[int], float] | None = None
    """Maps the global step to a multiplier of `lr`."""
    max_grad_norm: float | None = max_grad_norm()
    """$C$, see `InnerOptimizer`; None does not clip."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not (is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(
                f"momentum must be a number in [0, 1), got {self.momentum!r}; 0.0 turns it off"
            )

    def stock_settings(self) -> dict[str, Any]:
        return {
            "optim": "sgd",
            "optim_args": f"momentum={self.momentum}",
            "learning_rate": self.lr,
            "weight_decay": self.weight_decay,
        }

    def init(self, w: Tensor) -> State:
        return w, torch.zeros_like(w)

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        w, m = state
        w_out, m_out = out or (None, None)
        g = decayed(g, w, self.weight_decay)  # (1)
        m = torch.add(g, m, alpha=self.momentum, out=m_out)  # (2)
        w = torch.add(w, m, alpha=-lr, out=w_out)  # (3)
        return w, m

    def pullback(
        self, w: Tensor, accumulators: State, g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        dw, dm = cotangent
        dm.sub_(dw, alpha=lr)  # (4)
        dg = dm.clone()  # (5)
        dm.mul_(self.momentum)  # (6)
        if self.weight_decay:
            dw.add_(dg, alpha=self.weight_decay)  # (6)
        return dg

    @property
    def decays(self) -> tuple[float, ...]:
        return (self.momentum,)

    def increments(self, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return (decayed(g, w, self.weight_decay),)  # (1)

    def displacement(self, accumulators: State, t: int, lr: float) -> Tensor:
        return accumulators[0].mul_(lr)  # (3)

    def resolution(self, index: int) -> int:
        # In multiples of α m, the move itself.
        return 2 * FLOAT32_BITS + max(0, math.ceil(math.log2(self.lr)))
