"""Adam with the reverse rule that the paper prints, for comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from farzi_hf.engine.optimizers.adam import InnerAdam
from farzi_hf.engine.optimizers.base import State, decayed, moves_root, root


@dataclass(frozen=True)
class PaperAdam(InnerAdam):
    r"""`InnerAdam` with the reverse rule of Farzi's Algorithm 2. It is *not* the exact derivative and serves for comparison only.

    The paper keeps one cotangent for both moments (line 13 of the algorithm). Two errors of the paper are corrected here: the
    signs of its Hessian-vector products, and the missing root over $\hat v$. With $\beta' = (1-\beta_2)/(1-\beta_1)$ the rule is

    1. $dm \mathrel{+}= a\, (\beta' m_t g / (s (s+e)^2) - 1/(s+e))\, dw$
    2. $dg = (1-\beta_1)\, dm$
    3. $dm \leftarrow \beta_1 dm$

    In this rule, the path through $v_t$ decays with $\beta_1$ in place of $\beta_2$. It also keeps the factor $g_t$, where step j
    should use $g_j$. The rule is exact at T = 1, and its error grows with T. Only adjoints that call `pullback` can use this
    optimizer, so `Direct` cannot. Arguments and forward steps are those of `InnerAdam`.
    """

    exact: ClassVar[bool] = False

    def pullback(
        self, w: Tensor, accumulators: Sequence[Tensor], g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        (m, v), (dw, dm, _) = accumulators, cotangent
        (beta1, beta2), (a, e, r) = self.betas, self._corrected(t, lr)
        g = decayed(g, w, self.weight_decay)
        x = v + r
        s = root(x)
        u = (dw * a).div_(s + e)
        dm.addcmul_(u, (m / s).mul_(moves_root(x)).div_(s + e).mul_(g), value=(1 - beta2) / (1 - beta1)).sub_(u)  # (1)
        dg = dm * (1 - beta1)  # (2)
        dm.mul_(beta1)  # (3)
        if self.weight_decay:
            dw.add_(dg, alpha=self.weight_decay)
        return dg
