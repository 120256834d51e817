"""SOAP, for students: Adam in coordinates that follow the gradient. It trains; `unroll` does not
differentiate through it.
"""

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
_MOST = 1024  # rows or columns: a turn costs their number cubed
_LONGER = 4  # times the other side, which limits the ranks of G


@dataclass(frozen=True)
class InnerSoap(InnerAdamW):
    r"""SOAP (Vyas et al., 2024): `InnerAdamW` in the eigenvectors of means of $G G^\top$ and
    $G^\top G$.

    Labels of a teacher have little noise. What limits a student then is that the numbers of a
    matrix do not learn alone: on text, 600 steps in these coordinates teach as much as 1,000 or
    more of Adam (recipes/LOG.md). With $a$ and $e$ of `InnerAdam`, a step of a matrix $W$ (r × c)
    is

    1. $R_t = \beta_2 R_{t-1} + (1-\beta_2)\, G^\top G$, and $R_1 = G^\top G$; the same for $L_t$
       with $G G^\top$
    2. $Q_0 = I$; in the first ten steps and in each tenth $Q_t X = (R_t + \rho I)\, Q_{t-1}$ (QR),
       $\rho = \mathrm{tr}(R_t) / 10 c$; else $Q_t = Q_{t-1}$; the same for $P_t$ with $L_t$
    3. $M_t = \beta_1 M_{t-1} + (1-\beta_1)\, G$
    4. $V_t = \beta_2 V_{t-1} + (1-\beta_2)\, (P_t^\top G\, Q_t)^2$
    5. $W_t = (1 - \alpha\lambda) W_{t-1} - a\, P_t\, (P_t^\top M_t Q_t / (\sqrt{V_t} + e))\,
       Q_t^\top$

    A side of more than 1,024 numbers, or of more than four times the other, is not turned. Vectors
    have the step of `InnerAdamW`, and so has a matrix of one row or column. The last dimension of a
    tensor is its columns, and all others are its rows.

    Args:
        shape: of the one parameter, (r, c), or (K, r, c) of K learners; see `by_parameter`, which
            gives it.
        stacked: whether parameters are those of K learners, stacked along the first dimension.
    """

    elementwise: ClassVar[bool] = False

    shape: tuple[int, ...] = ()
    stacked: bool = False

    def by_parameter(self, shapes: Mapping[str, torch.Size]) -> dict[str, InnerOptimizer]:
        adam = InnerAdamW(**{each.name: getattr(self, each.name) for each in fields(InnerAdamW)})
        found: dict[str, InnerOptimizer] = {}
        for name, own in adam.by_parameter(shapes).items():
            learners, each = shapes[name][: int(self.stacked)], shapes[name][int(self.stacked) :]
            rows, columns = math.prod(each[:-1]), math.prod(each[-1:])
            if 1 < min(rows, columns) <= _MOST:
                own = replace(
                    self,
                    weight_decay=own.weight_decay,
                    no_decay=(),
                    shape=(*learners, rows, columns),
                )
            found[name] = own
        return found

    def of_stacks(self) -> InnerOptimizer | None:
        return replace(self, stacked=True) if self.max_grad_norm is None else None

    @property
    def stock_class(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        return Soap, {"lr": self.lr, "betas": self.betas, "eps": self.eps}

    @property
    def fields(self) -> int:
        return 3 + 2 * len(self._sides)

    @property
    def _sides(self) -> list[int]:
        return [
            side
            for side in (-2, -1)
            if self.shape[side] <= min(_MOST, _LONGER * self.shape[-3 - side])
        ]

    def init(self, w: Tensor) -> State:
        how = {"dtype": torch.promote_types(w.dtype, torch.float32), "device": w.device}
        starts = [
            torch.eye(self.shape[side], **how).expand(*self.shape[:-2], -1, -1)
            for side in self._sides
        ]
        return *super().init(w), *(x for Q in starts for x in (torch.zeros_like(Q), Q.clone()))

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        (w, m, v, *turns), out = state, out or tuple(map(torch.empty_like, state))
        (beta1, beta2), (a, e, _), like = self.betas, self._corrected(t, lr), turns[0]
        G, bases = g.view(self.shape).to(like), {}
        for i, side in enumerate(self._sides):
            C, last, X = (
                turns[2 * i],
                turns[2 * i + 1],
                G if side == -1 else G.mT,
            )  # C is R or L, and Q is Q or P
            C = torch.lerp(C, X.mT @ X, 1 - beta2 if t > 1 else 1.0, out=out[3 + 2 * i])  # (1)
            if t <= _EVERY or t % _EVERY == 0:  # (2)
                ridge = _RIDGE * C.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
                last = torch.linalg.qr(C @ last + ridge * last).Q
            bases[side] = out[4 + 2 * i].copy_(last)
        m = torch.lerp(m, g, 1 - beta1, out=out[1])  # (3)
        P, Q = bases.get(-2), bases.get(-1)
        turned = _turned(G, P, Q)
        v = torch.addcmul(
            v.view(self.shape).to(like) * beta2, turned, turned, value=1 - beta2
        )  # (4)
        move = _turned(m.view(self.shape).to(like), P, Q).div_(root(v).add_(e))
        back = _turned(move, *(None if x is None else x.mT for x in (P, Q)))
        w = torch.mul(w, self.shrinkage(lr), out=out[0]).sub_(back.flatten().to(w), alpha=a)  # (5)
        out[2].copy_(v.flatten())
        return w, m, *out[2:]

    def pullback(self, *_: Any) -> Tensor:
        raise NotImplementedError("InnerSoap has no pullback")


def _turned(x: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """Lᵀ x R."""
    x = x if left is None else left.mT @ x
    return x if right is None else x @ right


class Soap(torch.optim.Optimizer):
    """`InnerSoap` for the stock Trainer, which takes it as `FarziData.optimizer_cls_and_kwargs`.
    Arguments are those of `torch.optim.AdamW`.
    """

    def __init__(
        self,
        params: Any,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        InnerSoap(lr, betas, eps, weight_decay=weight_decay)  # checks them
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:  # whose rate may be 0
            own = InnerSoap(
                self.defaults["lr"],
                group["betas"],
                group["eps"],
                weight_decay=group["weight_decay"],
            )
            for p in (p for p in group["params"] if p.grad is not None):
                [inner], state, w = (
                    own.by_parameter({"p": p.shape}).values(),
                    self.state[p],
                    p.detach().reshape(-1),
                )
                m, v, *turns = state["accumulators"] if state else inner.init(w)[1:]
                # `load_state_dict` has given them p's type.
                turns = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in turns]
                state["step"], before = state.get("step", 0) + 1, (w, m, v, *turns)
                w, *state["accumulators"] = inner.step(
                    before, p.grad.reshape(-1), state["step"], float(group["lr"])
                )
                p.copy_(w.view_as(p))
        return loss
