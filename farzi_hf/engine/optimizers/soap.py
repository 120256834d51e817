"""SOAP, for students: Adam in coordinates that follow the gradient. It trains; `unroll` does not
differentiate through it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.optimizers.adam import InnerAdamW
from farzi_hf.engine.optimizers.base import InnerOptimizer, State, root

_TURN_EVERY = 10  # steps
_FIRST_STEPS = 10  # of which each turns the coordinates
# Without it, rounding alone would choose coordinates where a gradient has few ranks.
_RIDGE = 0.1
# Rows or columns of a side that is turned: a turn costs their number cubed.
_LARGEST_SIDE = 1024
# Times the other side, which limits the ranks of G.
_LONGEST_SIDE = 4


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
    """

    elementwise: ClassVar[bool] = False

    shape: tuple[int, ...] = ()
    """Of the one parameter, (r, c), or (K, r, c) of K learners; `by_parameter` gives it."""
    stacked: bool = False
    """Whether parameters are those of K learners, stacked along the first dimension."""

    def by_parameter(self, shapes: Mapping[str, torch.Size]) -> dict[str, InnerOptimizer]:
        settings = {
            field.name: getattr(self, field.name) for field in dataclasses.fields(InnerAdamW)
        }
        optimizers = InnerAdamW(**settings).by_parameter(shapes)
        for name, adam in optimizers.items():
            of_learners = int(self.stacked)  # dimensions
            learners = shapes[name][:of_learners]
            shape = shapes[name][of_learners:]
            rows = math.prod(shape[:-1])
            columns = math.prod(shape[-1:])
            if 1 < min(rows, columns) <= _LARGEST_SIDE:
                optimizers[name] = replace(
                    self,
                    weight_decay=adam.weight_decay,
                    no_decay=(),
                    shape=(*learners, rows, columns),
                )
        return optimizers

    def of_stacks(self) -> InnerOptimizer | None:
        return replace(self, stacked=True) if self.max_grad_norm is None else None

    @property
    def stock_class(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
        return Soap, {"lr": self.lr, "betas": self.betas, "eps": self.eps}

    @property
    def fields(self) -> int:
        """w, M and V, and for each side that is turned, its mean (R or L) and its turn (Q or P)."""
        return 3 + 2 * len(self._sides)

    @property
    def _sides(self) -> list[int]:
        """The dimensions that are turned: −2 has L and P, −1 has R and Q."""
        *_, rows, columns = self.shape
        sides = []
        if rows <= min(_LARGEST_SIDE, _LONGEST_SIDE * columns):
            sides.append(-2)
        if columns <= min(_LARGEST_SIDE, _LONGEST_SIDE * rows):
            sides.append(-1)
        return sides

    def init(self, w: Tensor) -> State:
        state = list(super().init(w))
        dtype = torch.promote_types(w.dtype, torch.float32)
        learners = self.shape[:-2]
        for side in self._sides:
            eye = torch.eye(self.shape[side], dtype=dtype, device=w.device)
            Q = eye.expand(*learners, -1, -1)
            state += [torch.zeros_like(Q), Q.clone()]
        return tuple(state)

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        w, m, v, *means_and_turns = state
        if out is None:
            out = tuple(map(torch.empty_like, state))
        w_out, m_out, v_out, *means_and_turns_out = out
        beta1, beta2 = self.betas
        a, e, _ = self._corrected(t, lr)
        new_share = 1.0 if t == 1 else 1 - beta2  # of the means R and L
        is_turned_now = t <= _FIRST_STEPS or t % _TURN_EVERY == 0

        def matrix(x: Tensor) -> Tensor:
            """A flat buffer as a matrix, in the precision of the turns."""
            return x.view(self.shape).to(means_and_turns[0])

        G = matrix(g)
        turns = {}
        for i, side in enumerate(self._sides):
            # Those of the columns; those of the rows are L and P.
            R, Q = means_and_turns[2 * i : 2 * i + 2]
            R_out, Q_out = means_and_turns_out[2 * i : 2 * i + 2]
            X = G if side == -1 else G.mT
            R = torch.lerp(R, X.mT @ X, new_share, out=R_out)  # (1)
            if is_turned_now:
                ridge = _RIDGE * R.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
                Q = torch.linalg.qr(R @ Q + ridge * Q).Q  # (2)
            turns[side] = Q_out.copy_(Q)
        P = turns.get(-2)
        Q = turns.get(-1)
        m = torch.lerp(m, g, 1 - beta1, out=m_out)  # (3)
        turned = _product(_transposed(P), G, Q)
        V = torch.addcmul(matrix(v) * beta2, turned, turned, value=1 - beta2)  # (4)
        move = _product(_transposed(P), matrix(m), Q).div_(root(V).add_(e))
        move = _product(P, move, _transposed(Q)).flatten().to(w)
        w = torch.mul(w, self.shrinkage(lr), out=w_out).sub_(move, alpha=a)  # (5)
        v_out.copy_(V.flatten())
        return w, m, v_out, *means_and_turns_out

    def pullback(self, *_: Any) -> Tensor:
        raise NotImplementedError("InnerSoap has no pullback")


def _transposed(turn: Tensor | None) -> Tensor | None:
    return None if turn is None else turn.mT


def _product(left: Tensor | None, x: Tensor, right: Tensor | None) -> Tensor:
    """L x R. A side that is not turned has None."""
    if left is not None:
        x = left @ x
    if right is not None:
        x = x @ right
    return x


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
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            soap = InnerSoap(
                self.defaults["lr"],  # the group's may be 0, which `InnerSoap` refuses
                group["betas"],
                group["eps"],
                weight_decay=group["weight_decay"],
            )
            for p in group["params"]:
                if p.grad is not None:
                    self._step_of(p, soap, float(group["lr"]))
        return loss

    def _step_of(self, p: Tensor, soap: InnerSoap, lr: float) -> None:
        """One step of one parameter."""
        optimizer = soap.by_parameter({"p": p.shape})["p"]
        state = self.state[p]
        w = p.detach().reshape(-1)
        if not state:
            state["step"] = 0
            state["accumulators"] = list(optimizer.init(w)[1:])
        m, v, *others = state["accumulators"]
        # `load_state_dict` has given them p's type.
        others = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in others]
        state["step"] += 1
        w, *state["accumulators"] = optimizer.step(
            (w, m, v, *others), p.grad.reshape(-1), state["step"], lr
        )
        p.copy_(w.view_as(p))
