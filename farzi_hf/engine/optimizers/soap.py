"""SOAP, for students: Adam in coordinates that follow the gradient. It trains; `unroll` does not differentiate through it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.optimizers.adam import InnerAdamW
from farzi_hf.engine.optimizers.base import InnerOptimizer, State, root

_EVERY = 10  # steps between two turns of the coordinates
_RIDGE = 0.1  # without it, rounding alone would choose coordinates where a gradient has few ranks
_MOST = 1024  # columns: a turn costs their number cubed


@dataclass(frozen=True)
class InnerSoap(InnerAdamW):
    r"""SOAP (Vyas et al., 2024), one-sided: `InnerAdamW` in the eigenvectors of a mean of $G^\top G$.

    Labels of a teacher have little noise. What limits a student then is that the numbers of a matrix do not learn alone, and on text these
    coordinates teach in 600 steps what Adam does in 1,000 or more (recipes/LOG.md). A matrix $W$ is taken with at most as many columns as rows,
    transposed if need be; with $a$ and $e$ of `InnerAdam`, one step is

    1. $C_t = \beta_2 C_{t-1} + (1-\beta_2)\, G^\top G$, and $C_1 = G^\top G$
    2. $Q_0 = I$; in the first ten steps and in each tenth $Q_t R = (C_t + \rho I)\, Q_{t-1}$ (QR), with $\rho = \mathrm{tr}(C_t) / 10 n$;
       else $Q_t = Q_{t-1}$
    3. $M_t = \beta_1 M_{t-1} + (1-\beta_1)\, G$
    4. $V_t = \beta_2 V_{t-1} + (1-\beta_2)\, (G Q_t)^2$
    5. $W_t = (1 - \alpha\lambda) W_{t-1} - a\, (M_t Q_t / (\sqrt{V_t} + e))\, Q_t^\top$

    Vectors, and matrices of one column or of more than 1,024, have the step of `InnerAdamW`. A tensor of more dimensions is a matrix of its last
    one. With more than 1,024 columns, a turn would cost more than a step.

    Args:
        shape: of the one parameter, (rows, columns) with the last dimension alone; see `by_parameter`, which gives it.
    """

    fields: ClassVar[int] = 5
    elementwise: ClassVar[bool] = False

    shape: tuple[int, ...] = ()

    keeps_unused: ClassVar[bool] = False

    def by_parameter(self, shapes: Mapping[str, torch.Size]) -> dict[str, InnerOptimizer]:
        adam = InnerAdamW(**{each.name: getattr(self, each.name) for each in fields(InnerAdamW)})
        found: dict[str, InnerOptimizer] = {}
        for name, own in adam.by_parameter(shapes).items():
            rows, columns = math.prod(shapes[name][:-1]), math.prod(shapes[name][-1:])
            if 1 < min(rows, columns) <= _MOST:
                own = replace(self, weight_decay=own.weight_decay, no_decay=(), shape=(rows, columns))
            found[name] = own
        return found

    @property
    def stock_class(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        return Soap, {"lr": self.lr, "betas": self.betas, "eps": self.eps}

    def init(self, w: Tensor) -> State:
        n, dtype = min(self.shape), torch.promote_types(w.dtype, torch.float32)
        return *super().init(w), *torch.zeros(2, n, n, dtype=dtype, device=w.device)

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        w, m, v, C, Q = state
        w_out, m_out, v_out, C_out, Q_out = out or tuple(map(torch.empty_like, state))
        (beta1, beta2), (a, e, _) = self.betas, self._corrected(t, lr)
        G = self._tall(g).to(C)
        C = torch.lerp(C, G.mT @ G, 1 - beta2 if t > 1 else 1.0, out=C_out)  # (1)
        if t <= _EVERY or t % _EVERY == 0:  # (2)
            Q = torch.eye(len(C)).to(C) if t == 1 else Q
            Q = torch.linalg.qr(C @ Q + (_RIDGE / len(C)) * C.trace() * Q).Q
        m = torch.lerp(m, g, 1 - beta1, out=m_out)  # (3)
        v = torch.addcmul(v.view(G.shape).to(C) * beta2, rotated := G @ Q, rotated, value=1 - beta2)  # (4)
        move = (self._tall(m).to(C) @ Q).div_(root(v).add_(e)) @ Q.mT  # (5)
        w = torch.mul(w, self.shrinkage(lr), out=w_out)
        self._tall(w).sub_(move.to(w), alpha=a)
        v_out.view(G.shape).copy_(v)
        return w, m, v_out, C, Q_out.copy_(Q)

    def pullback(self, *_: Any) -> Tensor:
        raise NotImplementedError("InnerSoap has no pullback")

    def _tall(self, x: Tensor) -> Tensor:
        """A view of a flat tensor as a matrix with at most as many columns as rows."""
        x = x.view(self.shape)
        return x if x.shape[0] >= x.shape[1] else x.mT


class Soap(torch.optim.Optimizer):
    """`InnerSoap` for the stock Trainer, which takes it as `FarziData.optimizer_cls_and_kwargs`. Arguments are those of `torch.optim.AdamW`."""

    def __init__(
        self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8, weight_decay: float = 0.0
    ) -> None:
        self.inner = InnerSoap(lr, tuple(betas), eps, weight_decay=weight_decay)
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            own = replace(self.inner, betas=tuple(group["betas"]), eps=group["eps"], weight_decay=group["weight_decay"])
            for p in group["params"]:
                if p.grad is None:
                    continue
                [inner], state = own.by_parameter({"p": p.shape}).values(), self.state[p]
                flat = p.detach().reshape(-1)
                if not state:
                    state.update(step=0, accumulators=inner.init(flat)[1:])
                state["step"] += 1
                w, *state["accumulators"] = inner.step(
                    (flat, *state["accumulators"]), p.grad.reshape(-1), state["step"], float(group["lr"])
                )  # fmt: skip
                p.copy_(w.view_as(p))
        return loss
