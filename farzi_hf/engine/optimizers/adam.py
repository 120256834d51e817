"""Adam and AdamW with the exact reverse of their step; and `PaperAdam`, with the reverse rule that
the paper prints, for comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.optimizers.base import (
    FLOAT32_BITS,
    InnerOptimizer,
    InvertibleOptimizer,
    State,
    check_fields,
    decayed,
    described,
    is_number,
    learning_rate,
    max_grad_norm,
    moves_root,
    root,
    weight_decay,
)


@dataclass(frozen=True)
class InnerAdam(InvertibleOptimizer):
    r"""Adam (Kingma & Ba, 2015). Every step equals a step of `torch.optim.Adam`.

    With $a = \alpha\sqrt{1-\beta_2^t}/(1-\beta_1^t)$, $e = \epsilon\sqrt{1-\beta_2^t}$ and
    $r = \epsilon_{root}(1-\beta_2^t)$, one step is

    1. $g \leftarrow g + \lambda w$
    2. $m_t = \beta_1 m_{t-1} + (1-\beta_1) g$
    3. $v_t = \beta_2 v_{t-1} + (1-\beta_2) g^2$
    4. $w_t = w_{t-1} - a\, m_t / (s + e)$ with $s = \sqrt{v_t + r}$, or the root of the least
       normal number if that is larger

    The exact reverse of this step is Farzi's Algorithm 2, with corrections of the path through $v$,
    the root and the signs:

    5. $dm \mathrel{-}= a\, dw / (s+e)$
    6. $dv \mathrel{+}= a\, m_t\, dw / (2 s (s+e)^2)$; the summand is $0$ where $s$ is constant
    7. $dg = (1-\beta_1)\, dm + 2 (1-\beta_2)\, g\, dv$
    8. $dm \leftarrow \beta_1 dm$, $dv \leftarrow \beta_2 dv$, $dw \leftarrow dw + \lambda\, dg$

    Raises:
        ValueError: a hyper-parameter is out of its range.
    """

    fields: ClassVar[int] = 3
    unused_stay: ClassVar[bool] = True
    # The Trainer's Adam is AdamW.
    without_stock_twin: ClassVar[tuple[str, ...]] = ("weight_decay", "eps_root")

    lr: float = learning_rate()
    r"""$\alpha$, the learning rate."""
    betas: tuple[float, float] = described(
        (0.9, 0.999),
        "β1 β2 of the inner Adam; in a few hundred steps, β1 = 0.9 overshoots",
        name="inner_betas",
        start=None,
    )
    r"""$(\beta_1, \beta_2)$, the decays of the two moments."""
    eps: float = described(
        1e-8,
        "ε of the inner Adam; a larger one, such as 1e-4, keeps the meta-gradient of a long unroll"
        " smooth",
        name="inner_epsilon",
        start=1e-6,
    )
    r"""$\epsilon$, added to the root of the corrected second moment. A larger value makes the
    meta-gradient smoother.
    """
    eps_root: float = 0.0
    r"""$\epsilon_{root}$, added to the corrected second moment under the root. The name is optax's;
    torch lacks it.
    """
    weight_decay: float = weight_decay()
    r"""$\lambda$; $\lambda w$ is added to the gradient as in `torch.optim.Adam` (coupled, not
    AdamW).
    """
    lr_schedule: Callable[[int], float] | None = None
    """Maps the global step to a multiplier of `lr`, like the function of a `LambdaLR`. Steps count
    from `unroll`'s `first_step` and not from 0.
    """
    max_grad_norm: float | None = max_grad_norm()
    """$C$, see `InnerOptimizer`; None does not clip."""
    damping: float = 0.0
    r"""Added to $\epsilon$ in (5) and (6) alone. Above 0, the result is not the derivative of this
    training but that of a smoother one, which tells more about large changes
    (docs/attribution.md). `Direct`, which has no (5), refuses it.
    """

    def __post_init__(self) -> None:
        check_fields(self, "eps", "eps_root", "damping")
        is_pair = isinstance(self.betas, (tuple, list)) and len(self.betas) == 2
        if not (is_pair and all(is_number(beta) and 0 <= beta < 1 for beta in self.betas)):
            raise ValueError(
                f"betas must be two numbers in [0, 1), got {self.betas!r}; give for example (0.9,"
                " 0.999)"
            )
        if self.eps == self.eps_root == 0:
            raise ValueError(
                "eps and eps_root are both 0.0, which makes 0/0 where there is no gradient; set"
                " eps=1e-8"
            )

    @property
    def exact(self) -> bool:
        return self.damping == 0

    @property
    def coupled(self) -> float:
        """The λ of (1)."""
        return self.weight_decay

    def stock_settings(self) -> dict[str, Any]:
        beta1, beta2 = self.betas
        return {
            "optim": "adamw_torch",
            "learning_rate": self.lr,
            "adam_beta1": beta1,
            "adam_beta2": beta2,
            "adam_epsilon": self.eps,
            "weight_decay": self.weight_decay,
        }

    def init(self, w: Tensor) -> State:
        return w, torch.zeros_like(w), torch.zeros_like(w)

    def _corrected(self, t: int, lr: float, damping: float = 0.0) -> tuple[float, float, float]:
        """a, e and r: the bias corrections of step t folded into the three scalars."""
        beta1, beta2 = self.betas
        c = 1 - beta2**t
        a = lr * math.sqrt(c) / (1 - beta1**t)
        e = (self.eps + damping) * math.sqrt(c)
        r = self.eps_root * c
        return a, e, r

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        w, m, v = state
        w_out, m_out, v_out = out or (None, None, None)
        beta1, beta2 = self.betas
        a, e, r = self._corrected(t, lr)
        g = decayed(g, w, self.coupled)  # (1)
        m = torch.lerp(m, g, 1 - beta1, out=m_out)  # (2)
        v = torch.addcmul(torch.mul(v, beta2, out=v_out), g, g, value=1 - beta2, out=v_out)  # (3)
        s = root(v + r if r else v)
        w = torch.addcdiv(w, m, s + e, value=-a, out=w_out)  # (4)
        return w, m, v

    def pullback(
        self, w: Tensor, accumulators: State, g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        m, v = accumulators
        dw, dm, dv = cotangent
        beta1, beta2 = self.betas
        a, e, r = self._corrected(t, lr, self.damping)
        g = decayed(g, w, self.coupled)  # (1)
        x = v + r if r else v
        s = root(x)
        denominator = s + e
        u = (dw * a).div_(denominator)
        dm.sub_(u)  # (5)
        # m/s first: it is of order one, and s³ could underflow. Where v is 0, m need not be: the
        # integers of `Reversible` round v.
        ratio = (m / s).mul_(moves_root(x)).div_(denominator)
        dv.addcmul_(u, ratio, value=0.5)  # (6)
        dg = (dm * (1 - beta1)).addcmul_(g, dv, value=2 * (1 - beta2))  # (7)
        dm.mul_(beta1)  # (8)
        dv.mul_(beta2)  # (8)
        if self.coupled:
            dw.add_(dg, alpha=self.coupled)  # (8)
        return dg

    @property
    def decays(self) -> tuple[float, ...]:
        return tuple(self.betas)

    def increments(self, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        beta1, beta2 = self.betas
        g = decayed(g, w, self.coupled)  # (1)
        of_m = g * (1 - beta1)  # (2)
        of_v = g.square().mul_(1 - beta2)  # (3)
        return of_m, of_v

    def displacement(self, accumulators: State, t: int, lr: float) -> Tensor:
        m, v = accumulators
        a, e, r = self._corrected(t, lr)
        s = root(v.add_(r) if r else v)
        return m.mul_(a).div_(s.add_(e))  # (4)

    def resolution(self, index: int) -> int:
        # The least denominator is that of v = 0 in the first step. With q bits below it in m and 2q
        # in v, both change m / (s + e) by about 2^-q, as |m| is of the order of s.
        _, beta2 = self.betas
        least = (self.eps + math.sqrt(self.eps_root)) * math.sqrt(1 - beta2)
        q = max(0, math.ceil(-math.log2(least))) + FLOAT32_BITS + 1
        of_m = q
        of_v = 2 * q - FLOAT32_BITS
        return (of_m, of_v)[index]


@dataclass(frozen=True)
class InnerAdamW(InnerAdam):
    r"""AdamW (Loshchilov & Hutter, 2019). Every step equals a step of `torch.optim.AdamW`.

    It is `InnerAdam` with two changes. (1) is $w \leftarrow (1 - \alpha\lambda)\, w$ in place of a
    summand of the gradient; and at the end of its reverse, (8) has $dw \leftarrow (1 -
    \alpha\lambda)\, dw$ in place of the summand $\lambda\, dg$.

    Raises:
        ValueError: a hyper-parameter is out of its range; in `unroll`, `no_decay` names no
            parameter.
    """

    coupled: ClassVar[float] = 0.0
    without_stock_twin: ClassVar[tuple[str, ...]] = ("eps_root",)

    weight_decay: float = described(
        0.01, "λ of the inner optimizer", name="inner_weight_decay", start=0.0
    )
    r"""$\lambda$. The class has the default of torch, 0.01, and a config that of the stock Trainer,
    0.
    """
    no_decay: tuple[str, ...] = ()
    r"""Names of parameters with $\lambda = 0$. The stock Trainer has all biases and norms there; a
    config's inner loop, too.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lr * self.weight_decay >= 1:
            raise ValueError(
                f"lr={self.lr!r} times weight_decay={self.weight_decay!r} must be below 1;"
                " lower one"
            )

    def by_parameter(self, shapes: Mapping[str, torch.Size]) -> dict[str, InnerOptimizer]:
        unknown = set(self.no_decay) - set(shapes)
        if unknown:
            raise ValueError(
                f"no_decay names {min(unknown)!r}, which is none of {', '.join(shapes):.200}"
            )
        plain = replace(self, weight_decay=0.0, no_decay=())
        return {name: plain if name in self.no_decay else self for name in shapes}

    def without_decay(self, names: Iterable[str]) -> InnerAdamW:
        return replace(self, no_decay=tuple(dict.fromkeys((*self.no_decay, *names))))

    def shrinkage(self, lr: float) -> float:
        return 1 - lr * self.weight_decay

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        w, *accumulators = state
        w = torch.mul(w, self.shrinkage(lr), out=None if out is None else out[0])  # (1)
        return super().step((w, *accumulators), g, t, lr, out)

    def pullback(
        self, w: Tensor, accumulators: State, g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        dw, _, _ = cotangent
        dg = super().pullback(w, accumulators, g, cotangent, t, lr)
        dw.mul_(self.shrinkage(lr))  # (8)
        return dg


@dataclass(frozen=True)
class PaperAdam(InnerAdam):
    r"""`InnerAdam` with the reverse rule of Farzi's Algorithm 2. It is *not* the exact derivative
    and serves for comparison only.

    The paper keeps one cotangent for both moments (line 13 of the algorithm). Two errors of the
    paper are corrected here: the signs of its Hessian-vector products, and the missing root over
    $\hat v$. With $\beta' = (1-\beta_2)/(1-\beta_1)$ the rule is

    1. $dm \mathrel{+}= a\, (\beta' m_t g / (s (s+e)^2) - 1/(s+e))\, dw$
    2. $dg = (1-\beta_1)\, dm$
    3. $dm \leftarrow \beta_1 dm$

    In this rule, the path through $v_t$ decays with $\beta_1$ in place of $\beta_2$. It also keeps
    the factor $g_t$, where step j should use $g_j$. The rule is exact at T = 1, and its error grows
    with T. Only adjoints that call `pullback` can use this optimizer, so `Direct` cannot. Arguments
    and forward steps are those of `InnerAdam`.
    """

    exact: ClassVar[bool] = False

    def pullback(
        self, w: Tensor, accumulators: State, g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        m, v = accumulators
        dw, dm, _ = cotangent
        beta1, beta2 = self.betas
        a, e, r = self._corrected(t, lr, self.damping)
        g = decayed(g, w, self.coupled)
        x = v + r
        s = root(x)
        u = (dw * a).div_(s + e)
        ratio = (m / s).mul_(moves_root(x)).div_(s + e).mul_(g)
        dm.addcmul_(u, ratio, value=(1 - beta2) / (1 - beta1)).sub_(u)  # (1)
        dg = dm * (1 - beta1)  # (2)
        dm.mul_(beta1)  # (3)
        if self.coupled:
            dw.add_(dg, alpha=self.coupled)
        return dg
