"""Optimizers of the inner loop, each with the exact reverse of one of its steps.

An optimizer here holds hyper-parameters only. It works on *states*: tuples of flat buffers of equal shape `(P,)`
that start with the parameters `w` (Adam: `w, m, v`; SGD: `w, m`). `step` goes forward through one update, `pullback`
carries the derivative of the loss in the state (`dw, dm, dv`: the *cotangent*, shaped like the state) back through it.
Equation numbers in parentheses refer to the docstring of the class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

State = tuple[Tensor, ...]

_FLOAT32_BITS = 24


class InnerOptimizer(ABC):
    """What `farzi_hf.adjoint.unroll` needs to know of an optimizer.

    `t` counts the steps since the state was zero (1, 2, …), as bias corrections want it; the learning rate of a step
    comes from `rate(step)`, where `step` is the global one that the inner loss sees too.
    """

    # Number of buffers in a state.
    fields: ClassVar[int]
    # Whether `pullback` is the derivative of `step`. Where it is not, adjoints that differentiate `step` itself refuse.
    exact: ClassVar[bool] = True

    lr: float
    lr_schedule: Callable[[int], float] | None

    def rate(self, step: int) -> float:
        """The learning rate of a global step: `lr`, times `lr_schedule(step)` where there is a schedule."""
        return self.lr if self.lr_schedule is None else self.lr * self.lr_schedule(step)

    @abstractmethod
    def init(self, w: Tensor) -> State:
        """The state before the first step: `w` itself, every accumulator zero."""

    @abstractmethod
    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        """The state after step `t` with loss gradient `g`, written over `out` if given, else new and differentiable."""

    @abstractmethod
    def pullback(
        self, w: Tensor, accumulators: Sequence[Tensor], g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        """Carry `cotangent` from after step `t` to before it, in place, through the optimizer's arithmetic; return `dg`.

        `w` are the parameters before the step, `accumulators` the rest of the state after it. What is missing is the
        path through the network: the caller adds `H_ww·dg` to `dw` and `H_xw·dg` to `dx`.
        """

    # The same step in two parts, for arithmetic that can be undone (`farzi_hf.fixed_point`): every accumulator is a
    # decaying sum x_t = β x_{t-1} + c_t, and the parameters move by a function of the accumulators alone.

    @property
    @abstractmethod
    def decays(self) -> tuple[float, ...]:
        """β of each accumulator."""

    @abstractmethod
    def increments(self, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """c_t of each accumulator; `w` are the parameters before the step."""

    @abstractmethod
    def displacement(self, accumulators: Sequence[Tensor], t: int, lr: float) -> Tensor:
        """w_{t-1} − w_t, from the accumulators after step `t`. A new tensor."""

    @abstractmethod
    def accumulator_range(self, index: int, largest: float) -> tuple[int, float]:
        """For gradients up to 2^largest: bits that an accumulator needs below the binary point, and log2 of its size.

        Bits enough that what lies below changes the displacement by less than float32 would round it.
        """


@dataclass(frozen=True)
class InnerAdam(InnerOptimizer):
    r"""Adam (Kingma & Ba, 2015) in the form of `torch.optim.Adam`, which it equals step for step.

    With $a = \alpha\sqrt{1-\beta_2^t}/(1-\beta_1^t)$, $e = \epsilon\sqrt{1-\beta_2^t}$ and
    $r = \epsilon_{root}(1-\beta_2^t)$, one step is

    1. $g \leftarrow g + \lambda w$
    2. $m_t = \beta_1 m_{t-1} + (1-\beta_1) g$
    3. $v_t = \beta_2 v_{t-1} + (1-\beta_2) g^2$
    4. $w_t = w_{t-1} - a\, m_t / (s + e)$ with $s = \sqrt{v_t + r}$

    and its exact reverse (Farzi's Algorithm 2 with the path through $v$, the root and the signs put right) is

    5. $dm \mathrel{-}= a\, dw / (s+e)$
    6. $dv \mathrel{+}= a\, m_t\, dw / (2 s (s+e)^2)$, and $0$ where $s = 0$: there all gradients so far were zero
    7. $dg = (1-\beta_1)\, dm + 2 (1-\beta_2)\, g\, dv$
    8. $dm \leftarrow \beta_1 dm$, $dv \leftarrow \beta_2 dv$, $dw \leftarrow dw + \lambda\, dg$

    Args:
        lr: $\alpha$, the learning rate.
        betas: $(\beta_1, \beta_2)$, the decays of the two moments.
        eps: $\epsilon$, added to the root of the corrected second moment. The larger, the smoother the meta-gradient.
        eps_root: $\epsilon_{root}$, added to the corrected second moment under the root (optax's name; torch has none).
        weight_decay: $\lambda$, added to the gradient as in `torch.optim.Adam` (coupled, not AdamW).
        lr_schedule: maps the global step to a multiplier of `lr`, as the function of a `LambdaLR` does, but steps count
            from `unroll`'s `first_step` and not from 0.

    Raises:
        ValueError: a hyper-parameter is out of its range.
    """

    fields: ClassVar[int] = 3

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    eps_root: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        _check_common(self)
        if not (
            isinstance(self.betas, (tuple, list))
            and len(self.betas) == 2
            and all(_is_number(beta) and 0 <= beta < 1 for beta in self.betas)
        ):
            raise ValueError(
                f"betas must be two numbers in [0, 1), got {self.betas!r}; the usual choice is (0.9, 0.999)"
            )
        _check_at_least_zero(self, "eps", "eps_root")
        if self.eps == self.eps_root == 0:
            raise ValueError(
                "eps and eps_root are both 0.0, which makes 0/0 of a parameter without gradient; "
                "set one of them above zero, for example eps=1e-8"
            )

    def init(self, w: Tensor) -> State:
        return w, torch.zeros_like(w), torch.zeros_like(w)

    def _corrected(self, t: int, lr: float) -> tuple[float, float, float]:
        """`a, e, r`: the bias corrections of step t folded into the three scalars."""
        beta1, beta2 = self.betas
        c = 1 - beta2**t
        return lr * math.sqrt(c) / (1 - beta1**t), self.eps * math.sqrt(c), self.eps_root * c

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        (w, m, v), (w_out, m_out, v_out) = state, out or (None, None, None)
        (beta1, beta2), (a, e, r) = self.betas, self._corrected(t, lr)
        g = _decayed(g, w, self.weight_decay)  # (1)
        m = torch.lerp(m, g, 1 - beta1, out=m_out)  # (2)
        v = torch.addcmul(torch.mul(v, beta2, out=v_out), g, g, value=1 - beta2, out=v_out)  # (3)
        s = _sqrt(v + r if r else v)
        w = torch.addcdiv(w, m, s + e, value=-a, out=w_out)  # (4)
        return w, m, v

    def pullback(
        self, w: Tensor, accumulators: Sequence[Tensor], g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        (m, v), (dw, dm, dv) = accumulators, cotangent
        (beta1, beta2), (a, e, r) = self.betas, self._corrected(t, lr)
        g = _decayed(g, w, self.weight_decay)  # (1)
        s = (v + r).sqrt_()
        u = (dw * a).div_(s + e)
        dm.sub_(u)  # (5)
        dv.addcmul_(u, _ratio(m, s).div_(s + e), value=0.5)  # (6), m/s first: it is of order one, s³ could underflow
        dg = (dm * (1 - beta1)).addcmul_(g, dv, value=2 * (1 - beta2))  # (7)
        dm.mul_(beta1)  # (8)
        dv.mul_(beta2)
        dw.add_(dg, alpha=self.weight_decay)
        return dg

    @property
    def decays(self) -> tuple[float, ...]:
        return tuple(self.betas)

    def increments(self, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        g = _decayed(g, w, self.weight_decay)  # (1)
        return g * (1 - self.betas[0]), g.square().mul_(1 - self.betas[1])  # (2), (3)

    def displacement(self, accumulators: Sequence[Tensor], t: int, lr: float) -> Tensor:
        (m, v), (a, e, r) = accumulators, self._corrected(t, lr)
        return (m * a).div_((v + r).sqrt_().add_(e))  # (4)

    def accumulator_range(self, index: int, largest: float) -> tuple[int, float]:
        # The least denominator is that of v = 0 in the first step. With q bits below it in m and 2q in v, both change
        # m / (s + e) by about 2^-q, as |m| is of the order of s.
        least = -math.log2((self.eps + math.sqrt(self.eps_root)) * math.sqrt(1 - self.betas[1]))
        q = max(0, math.ceil(least)) + _FLOAT32_BITS + 1
        return (q, largest) if index == 0 else (2 * q - _FLOAT32_BITS, 2 * largest + math.log2(1 - self.betas[1]))


@dataclass(frozen=True)
class PaperAdam(InnerAdam):
    r"""`InnerAdam` with the reverse rule of Farzi's Algorithm 2, for comparison only: *not* the exact derivative.

    The paper keeps one cotangent for both moments (line 13 of the algorithm). Mended here are the signs of its
    Hessian-vector products and the missing root over $\hat v$. With $\beta' = (1-\beta_2)/(1-\beta_1)$ it says

    1. $dm \mathrel{+}= a\, (\beta' m_t g / (s (s+e)^2) - 1/(s+e))\, dw$
    2. $dg = (1-\beta_1)\, dm$
    3. $dm \leftarrow \beta_1 dm$

    so that the path through $v_t$ decays with $\beta_1$ in place of $\beta_2$ and keeps the factor $g_t$ where step j
    should put in $g_j$: exact at T = 1, ever further from the meta-gradient as T grows. Only adjoints that call
    `pullback` can use it (not `Direct`). Same arguments and same forward steps as `InnerAdam`.
    """

    exact: ClassVar[bool] = False

    def pullback(
        self, w: Tensor, accumulators: Sequence[Tensor], g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        (m, v), (dw, dm, _) = accumulators, cotangent
        (beta1, beta2), (a, e, r) = self.betas, self._corrected(t, lr)
        g = _decayed(g, w, self.weight_decay)
        s = (v + r).sqrt_()
        u = (dw * a).div_(s + e)
        dm.addcmul_(u, _ratio(m, s).div_(s + e).mul_(g), value=(1 - beta2) / (1 - beta1)).sub_(u)  # (1)
        dg = dm * (1 - beta1)  # (2)
        dm.mul_(beta1)  # (3)
        dw.add_(dg, alpha=self.weight_decay)
        return dg


@dataclass(frozen=True)
class InnerSGD(InnerOptimizer):
    r"""Stochastic gradient descent with momentum in the form of `torch.optim.SGD`, which it equals step for step.

    One step and its exact reverse are

    1. $g \leftarrow g + \lambda w$
    2. $m_t = \mu m_{t-1} + g$
    3. $w_t = w_{t-1} - \alpha m_t$
    4. $dm \mathrel{-}= \alpha\, dw$
    5. $dg = dm$
    6. $dm \leftarrow \mu\, dm$, $dw \leftarrow dw + \lambda\, dg$

    Args:
        lr: $\alpha$, the learning rate.
        momentum: $\mu$, in [0, 1).
        weight_decay: $\lambda$, added to the gradient.
        lr_schedule: maps the global step to a multiplier of `lr`.

    Raises:
        ValueError: a hyper-parameter is out of its range.
    """

    fields: ClassVar[int] = 2

    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    lr_schedule: Callable[[int], float] | None = None

    def __post_init__(self) -> None:
        _check_common(self)
        if not (_is_number(self.momentum) and 0 <= self.momentum < 1):
            raise ValueError(f"momentum must be a number in [0, 1), got {self.momentum!r}; 0.0 turns it off")

    def init(self, w: Tensor) -> State:
        return w, torch.zeros_like(w)

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        (w, m), (w_out, m_out) = state, out or (None, None)
        g = _decayed(g, w, self.weight_decay)  # (1)
        m = torch.add(g, m, alpha=self.momentum, out=m_out)  # (2)
        w = torch.add(w, m, alpha=-lr, out=w_out)  # (3)
        return w, m

    def pullback(
        self, w: Tensor, accumulators: Sequence[Tensor], g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        dw, dm = cotangent
        dm.sub_(dw, alpha=lr)  # (4)
        dg = dm.clone()  # (5)
        dm.mul_(self.momentum)  # (6)
        dw.add_(dg, alpha=self.weight_decay)
        return dg

    @property
    def decays(self) -> tuple[float, ...]:
        return (self.momentum,)

    def increments(self, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        return (_decayed(g, w, self.weight_decay),)  # (1)

    def displacement(self, accumulators: Sequence[Tensor], t: int, lr: float) -> Tensor:
        return accumulators[0] * lr  # (3)

    def accumulator_range(self, index: int, largest: float) -> tuple[int, float]:
        # In multiples of α m, the move itself.
        return 2 * _FLOAT32_BITS + max(0, math.ceil(math.log2(self.lr))), largest - math.log2(1 - self.momentum)


def _decayed(g: Tensor, w: Tensor, weight_decay: float) -> Tensor:
    return g.add(w, alpha=weight_decay) if weight_decay else g


def _sqrt(x: Tensor) -> Tensor:
    """The root, with derivative 0 at 0: autograd's would be inf · 0 = NaN for a parameter that never had a gradient."""
    if not x.requires_grad:
        return x.sqrt()
    positive = x > 0
    return torch.where(positive, x, 1.0).sqrt().where(positive, 0.0)


def _ratio(m: Tensor, s: Tensor) -> Tensor:
    """`m / s`, and 0 where `s` is 0 (no gradient yet, or squares too small for the dtype). A new tensor."""
    return (m / s).masked_fill_(s == 0, 0.0)


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _check_at_least_zero(optimizer: InnerOptimizer, *names: str) -> None:
    for name in names:
        value = getattr(optimizer, name)
        if not (_is_number(value) and value >= 0):
            raise ValueError(f"{name} must be a finite number >= 0, got {value!r}; 0.0 turns it off")


def _check_common(optimizer: InnerOptimizer) -> None:
    if not (_is_number(optimizer.lr) and optimizer.lr > 0):
        raise ValueError(
            f"lr must be a finite number > 0, got {optimizer.lr!r} (YAML reads 1e-2 as text: write 1.0e-2)"
        )
    _check_at_least_zero(optimizer, "weight_decay")
    if optimizer.lr_schedule is not None and not callable(optimizer.lr_schedule):
        raise ValueError(
            f"lr_schedule must map a step to a multiplier of lr, got {optimizer.lr_schedule!r}; pass a function or None"
        )
