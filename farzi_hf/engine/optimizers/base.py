"""The interface of the inner loop's optimizers, and the arithmetic that they share.

An optimizer here holds hyper-parameters only. It works on *states*: tuples of flat buffers of equal
shape `(P,)` that start with the parameters `w` (Adam: `w, m, v`; SGD: `w, m`). `step` goes forward
through one update, `pullback` carries the derivative of the loss in the state (`dw, dm, dv`: the
*cotangent*, shaped like the state) back through it. Equation numbers in parentheses refer to the
docstring of the class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.engine.devices import portions

State = tuple[Tensor, ...]
"""The parameters and their accumulators."""

FLOAT32_BITS = 24
"""Bits of the significand of a float32."""

_CLIP_EPS = 1e-6  # of torch.nn.utils.clip_grad_norm_


def described(default: Any, help: str, **metadata: Any) -> Any:
    """A hyper-parameter that a config may offer: a field of a dataclass with words about it.

    Args:
        default: of the dataclass; `MISSING` where it must be given.
        help: what it is.
        metadata: `name` and `start`, the name and the default in a config, where they differ.
    """
    return field(default=default, metadata={"help": help, **metadata})


def learning_rate() -> Any:
    """The hyper-parameter `lr` of every optimizer."""
    help = "α, the learning rate of the inner optimizer"
    return described(MISSING, help, name="inner_learning_rate", start=None)


def weight_decay() -> Any:
    """The hyper-parameter `weight_decay` of optimizers."""
    return described(0.0, "λ of the inner optimizer", name="inner_weight_decay")


def max_grad_norm() -> Any:
    """The hyper-parameter `max_grad_norm` of optimizers."""
    help = (
        "C, to which an inner gradient's norm is clipped, as `max_grad_norm` of the stock Trainer"
        " clips; by default it is not"
    )
    return described(None, help, name="inner_max_grad_norm")


class InnerOptimizer(ABC):
    r"""The interface that `unroll` needs.

    Before the step, the gradient of all parameters together is clipped as by
    `torch.nn.utils.clip_grad_norm_`, if `max_grad_norm` is a number $C$. With the norm $n = \|g\|$,
    this and its exact reverse are

    1. $g \leftarrow c\, g$ with $c = \min(1,\, C / (n + 10^{-6}))$
    2. $dg \leftarrow c\, dg - c\, \langle g, dg\rangle\, g / (n\, (n + 10^{-6}))$ with the $g$
       before (1); the second part is $0$ where $c = 1$

    At $n = C$ the clipped gradient has a kink: there the meta-gradient is the one from below.

    `t` counts the steps since the state was zero (1, 2, …), as bias corrections need it. The
    learning rate of a step is `rate(step)`, where `step` is the global step, which the inner loss
    also gets.

    A subclass is a frozen dataclass of its hyper-parameters. Those that are `described` can be set
    by a config; the others, in Python alone.
    """

    fields: ClassVar[int]
    """Number of buffers in a state."""
    exact: ClassVar[bool] = True
    """Whether `pullback` is the derivative of `step`. If it is not, adjoints that differentiate
    `step` itself refuse the optimizer.
    """
    elementwise: ClassVar[bool] = True
    """Whether each number of a parameter has its update alone. If not, a step gets whole
    parameters, and `unroll` does not differentiate.
    """
    without_stock_twin: ClassVar[tuple[str, ...]] = ()
    """Hyper-parameters that transformers' optimizer lacks or treats differently. At 0 there is no
    difference.
    """
    unused_stay: ClassVar[bool] = False
    """Whether parameters without a gradient stay as they are, if they do not decay. It counts for
    the class that states it alone: one that is derived may do otherwise.
    """

    lr: float
    """α, the learning rate."""
    lr_schedule: Callable[[int], float] | None
    """Maps the global step to a multiplier of `lr`."""
    max_grad_norm: float | None = None
    """C of (1) and (2); None does not clip."""

    @property
    def keeps_unused(self) -> bool:
        """Whether a parameter whose gradient is zero in every step stays as it is, bit for bit, and
        changes nothing of the others.
        """
        stays = vars(type(self)).get("unused_stay", False)
        # The last bits of a norm depend on how many zeros it sums.
        return stays and self.weight_decay == 0 and self.max_grad_norm is None

    def by_parameter(self, shapes: Mapping[str, torch.Size]) -> dict[str, InnerOptimizer]:
        """The optimizer of each parameter. They may differ in hyper-parameters of `step` and
        `pullback` alone.
        """
        return dict.fromkeys(shapes, self)

    def without_decay(self, names: Iterable[str]) -> InnerOptimizer:
        """The same optimizer that does not decay these parameters, if it can make a difference
        between parameters.
        """
        return self

    def of_stacks(self) -> InnerOptimizer | None:
        """The optimizer of several learners, each with its own update, whose parameters are stacked
        along a new first dimension; or None.
        """
        return self if self.elementwise and self.max_grad_norm is None else None

    def clip(self, g: State) -> State:
        """The clipped gradient, differentiable; `g` are the flat buffers of all parameters."""
        if self.max_grad_norm is None:
            return g
        c, _ = self._clipping(g)
        c = c.clamp(max=1)
        return tuple(x * c.to(x) for x in g)  # (1)

    def clip_pullback(self, g: State, dg: State) -> State:
        """The cotangent of the gradient `g` from that of the clipped one, `dg`, which is
        overwritten.
        """
        if self.max_grad_norm is None:
            return dg
        c, n = self._clipping(g)
        pairs = zip(_parts(g), _parts(dg), strict=True)
        inner = torch.stack([torch.dot(x, dx).to(n) for x, dx in pairs]).sum()
        denominator = (n * (n + _CLIP_EPS)).clamp_min(torch.finfo(n.dtype).tiny)
        along = torch.where(c <= 1, inner / denominator, 0.0)
        c = c.clamp(max=1)
        for x, dx in zip(g, dg, strict=True):
            dx.addcmul_(x, along.to(x), value=-1).mul_(c.to(x))  # (2)
        return dg

    def _clipping(self, g: State) -> tuple[Tensor, Tensor]:
        """C / (n + 1e-6), and n."""
        # Of parts first: on a CPU, one sum of squares over millions of float32 is wrong by per
        # mille.
        norms = [torch.linalg.vector_norm(x) for x in _parts(g)]
        n = torch.linalg.vector_norm(torch.stack([x.to(norms[0].device) for x in norms]))
        return self.max_grad_norm / (n + _CLIP_EPS), n

    def stock_settings(self) -> dict[str, Any] | None:
        """This optimizer and its hyper-parameters under the names of
        `transformers.TrainingArguments`; None if Trainer has no such optimizer.
        """
        return None

    @property
    def stock_class(self) -> tuple[type[torch.optim.Optimizer], dict[str, Any]] | None:
        """A class of ours and its arguments, for Trainer's `optimizer_cls_and_kwargs`; None where
        `stock_settings` say all.
        """
        return None

    def rate(self, step: int) -> float:
        """The learning rate of a global step: `lr`, times `lr_schedule(step)` where there is a
        schedule. It is a number: to differentiate in a learning rate, put it into the loss.
        """
        if self.lr_schedule is None:
            return self.lr
        return self.lr * float(self.lr_schedule(step))

    @abstractmethod
    def init(self, w: Tensor) -> State:
        """The state before the first step: `w` itself, every accumulator zero."""

    @abstractmethod
    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        """The state after step `t` with loss gradient `g`, written over `out` if given, else new
        and differentiable.
        """

    @abstractmethod
    def pullback(
        self, w: Tensor, accumulators: State, g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        """Carry `cotangent` back through the optimizer's arithmetic in step `t`, in place; return
        `dg`.

        `w` are the parameters before the step, `accumulators` the rest of the state after it. The
        path through the network is not included: the caller adds `H_ww·dg` to `dw` and `H_xw·dg` to
        `dx`.
        """


class InvertibleOptimizer(InnerOptimizer):
    """An optimizer whose step `Reversible` can undo, because integers can follow it exactly
    (`adjoints.fixed_point`).

    The step has two parts: every accumulator is a decaying sum x_t = β x_{t-1} + c_t, and the
    parameters are multiplied by a number and moved by a function of the accumulators alone.
    """

    def shrinkage(self, lr: float) -> float:
        """The number by which a step multiplies the parameters, not 0."""
        return 1.0

    @property
    @abstractmethod
    def decays(self) -> tuple[float, ...]:
        """β of each accumulator."""

    @abstractmethod
    def increments(self, w: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """c_t of each accumulator; `w` are the parameters before the step. |c_t| may not fall where
        |w| and |g| rise together.
        """

    @abstractmethod
    def displacement(self, accumulators: State, t: int, lr: float) -> Tensor:
        """shrinkage · w_{t-1} − w_t, from the accumulators after step `t`. These may be
        overwritten, also with the result.
        """

    @abstractmethod
    def resolution(self, index: int) -> int:
        """The bits that an accumulator needs below the binary point: so many that the rest changes
        the displacement by less than float32's rounding.
        """


def _parts(g: State) -> list[Tensor]:
    """The elements of all buffers, so many at a time as a device is fast with."""
    return [part for flat in g for part in flat.split(portions(flat).update)]


def decayed(g: Tensor, w: Tensor, weight_decay: float) -> Tensor:
    """g + λ w."""
    return g.add(w, alpha=weight_decay) if weight_decay else g


def root(x: Tensor) -> Tensor:
    """The root of the larger of x and the least normal number of its type, as a new tensor.

    A parameter that never had a gradient has x = 0. There, autograd's derivative of a plain root
    would be inf · 0 = NaN, and math libraries take twenty times as long for the root of 0 as for
    that of another number.
    """
    return x.clamp_min(torch.finfo(x.dtype).tiny).sqrt_()


def moves_root(x: Tensor) -> Tensor:
    """1 where `root` grows with x, 0 where it is constant."""
    return torch.threshold(x, torch.finfo(x.dtype).tiny, 0.0).sign_()


def is_number(value: object) -> bool:
    """Whether `value` is a finite number and no bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def check_fields(optimizer: InnerOptimizer, *names: str) -> None:
    """Raises ValueError unless the fields that every optimizer has are usable, and these others are
    finite numbers from 0 on.
    """
    if isinstance(optimizer.lr, Tensor):
        raise ValueError(
            f"lr must be a number, got a tensor of shape {tuple(optimizer.lr.shape)}, which would"
            " get no gradient; to learn a rate, take InnerSGD(lr=1.0) and multiply the loss by it"
        )
    if not (is_number(optimizer.lr) and optimizer.lr > 0):
        raise ValueError(
            f"lr must be a finite number > 0, got {optimizer.lr!r} (in YAML write 1.0e-2, not 1e-2)"
        )
    for name in ("weight_decay", *names):
        value = getattr(optimizer, name)
        if not (is_number(value) and value >= 0):
            raise ValueError(
                f"{name} must be a finite number >= 0, got {value!r}; 0.0 turns it off"
            )
    norm = optimizer.max_grad_norm
    if norm is not None and not (is_number(norm) and norm > 0):
        raise ValueError(
            f"max_grad_norm must be None or a finite number > 0, got {norm!r}; None turns it off"
        )
