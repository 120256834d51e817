"""An optimizer's state in integers, which runs backwards bit for bit.

Adam and momentum forget: an accumulator x_t = β x_{t-1} + c_t multiplies its old value by β at
every step. In floating point the bits that are rounded off are lost, and on the way back the error
of x grows by 1/β per step. Integers lose bits too, unless the remainder of each division is kept:
log2(1/β) bits per number and step (Maclaurin, Duvenaud & Adams, 2015). `DecayingSum` is such an
accumulator, `FixedPointState` the whole state of one buffer of parameters.

Two things keep the cost low. First, between two divisions an integer X is only *added* to: with x_t
= β^(t-t0) X / 2^S, step t adds c_t β^(t0-t). Every K steps, when these terms have grown by four
bits, X is multiplied by β^K. Second, X is a number of limbs of 62 bits: so many as the gradients
need that were met, which is mostly one. The bits that are cut off do not change the parameters. So
the steps are those of the same optimizer in floating point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial, reduce
from typing import NamedTuple

import torch
from torch import Tensor

from farzi_hf.engine.devices import chunks, portions
from farzi_hf.engine.optimizers import InvertibleOptimizer, State

LARGEST_GRADIENT = torch.finfo(torch.float32).max
"""The largest element of a gradient: its square is a number of float64."""
LARGEST_WEIGHT = 2.0**18
"""The largest parameter that the integers have room for: 262,144."""
SMALLEST_DECAY = 2.0**-4
"""The smallest β: what it forgets in a step are the four bits of a remainder."""

EXPECTED = 64.0
"""The largest gradient, parameter or accumulator that the integers have room for where nobody looks
at them.
"""

# Bits of a parameter below the binary point: 6e-14, finer than a float32 from 1e-6 up.
_WEIGHT_BITS = 44
# Bits of a limb, and of the digits that it is divided and multiplied by.
_LIMB = 62
_HALF = 31
_LOW = (1 << _HALF) - 1  # all bits of a digit
# Bits by which c_t β^(t0-t) may grow between two divisions, and so bits of a remainder.
_GROWTH = 4
_REMAINDER = (1 << _GROWTH) - 1  # all bits of a remainder
# Of the fraction that stands for β^K. Times a digit, it fits into 63 bits.
_LARGEST_DENOMINATOR = 1 << 30


class NotFinite(ArithmeticError):
    """A training has left the finite numbers."""


class ReplayError(RuntimeError):
    """An inner loss gave another gradient than it did before."""


class Noted(NamedTuple):
    """A number to look at after the last step."""

    checked: Callable[[float], float]
    """Is called with it, see `Bounds.note`."""
    number: Tensor
    """A scalar on the device."""


class Bounds:
    """Looks for the largest |x| of tensors, by which integers get room.

    Where it may not `wait` for the device, what is `expected` stands for the number, and all are
    looked at together after the last step.
    """

    def __init__(self, wait: bool = True):
        self.expected = None if wait else EXPECTED
        self._noted: list[Noted] = []

    @property
    def waits_to_the_end(self) -> bool:
        """Whether numbers are looked at after the last step only."""
        return self.expected is not None

    def of(self, name: str, x: Tensor, limit: float, t: int, unit: float = 1.0) -> float:
        """That of x (P,) after step `t`, or a number above it.

        Args:
            name: of x, for an error.
            limit: the largest |x| / unit that is allowed.

        Raises (here, or in `check`):
            NotFinite: x is not finite.
            OverflowError: the integers have no room for x.
        """
        checked = partial(_check_range, name, limit, t)
        if self.expected is None:
            return unit * checked(largest(x) / unit)
        self.note(checked, torch.linalg.vector_norm(x, math.inf) / unit)
        return unit * self.expected

    def note(self, checked: Callable[[float], float], number: Tensor) -> None:
        """Let `check` call `checked` with a number on the device. It returns the number that has to
        be `expected`, or raises an error.
        """
        self._noted.append(Noted(checked, number))

    def check(self) -> bool:
        """Whether nothing was larger than expected. If something was, the steps have to be taken
        again, and more is expected then.
        """
        noted = self._noted
        self._noted = []
        if not noted:
            return True
        numbers = stack([each.number for each in noted]).tolist()
        for each, number in zip(noted, numbers, strict=True):
            needed = each.checked(number)
            if needed > self.expected:
                self.expected = 2 * needed
                return False
        return True


class DecayingSum:
    """x_t = β x_{t-1} + c_t for P numbers, in integers. To add −c_t is the inverse of adding c_t,
    `grow` that of `shrink`.

    Memory per number: the limbs, and half a byte for each division, which is about log2(1/β) bits
    per step.

    Args:
        start: x_0 (P,).
        decay: β, from `SMALLEST_DECAY` up to 1, exclusive.
        resolution: S, bits below the binary point.
        bound: |x_0| is not larger.

    Attributes:
        period: K, steps between two divisions.
        factor: n/d, which stands for β^K.
        limbs: X, the most significant limb first. The others have a sign too, −2^61 … 2^61 − 1: a
            small negative X is one limb with zeros above it, and not a difference of large ones,
            which would be lost where limbs become floating-point numbers.
        remainders: of the divisions, two in each byte.
        largest: the |x| that the limbs have room for.
        reserved: how many limbs there were before the start, and before each step.
    """

    def __init__(self, start: Tensor, decay: float, resolution: int, bound: float):
        self.decay = decay
        self.resolution = resolution
        self.period = math.floor(_GROWTH / math.log2(1 / decay))
        self.factor = Fraction(decay**self.period).limit_denominator(_LARGEST_DENOMINATOR)
        self.limbs = [torch.zeros_like(start, dtype=torch.int64)]
        self.remainders: list[Tensor] = []
        self.largest = bound
        self.reserved: list[int] = []
        self.reserve(0.0)
        for rows in _parts(start):
            self._accumulate(rows, start[rows].double(), 1.0)

    def reserve(self, c: float) -> None:
        """Make room for the next x, whose |c| is up to `c`. X stays the same number, perhaps with
        more limbs.
        """
        self.reserved.append(len(self.limbs))
        self.largest = max(self.largest, self.decay * self.largest + c)
        # As many limbs as the largest X at the end of a period needs, with one bit for its sign.
        _, magnitude = math.frexp(self.largest)
        growth = math.ceil(self.period * math.log2(1 / self.decay))
        bits = self.resolution + magnitude + growth + 1
        while bits > _LIMB * len(self.limbs):
            self.limbs.insert(0, _carry(self.limbs[0]))

    def release(self) -> None:
        """The inverse of `reserve`: what is rounded when limbs become a floating-point number
        depends on how many there are.
        """
        count = self.reserved.pop()
        while len(self.limbs) > count:
            carry = self.limbs.pop(0)
            self.limbs[0] += carry << _LIMB

    def add(self, rows: slice, c: Tensor, t: int) -> None:
        """x_t from x_{t-1}, for the elements `rows`; c is float64. Before the first rows of a step
        comes `shrink(t)`. With −c, x_{t-1} from x_t; after the last rows comes `grow(t)`.
        """
        self._accumulate(rows, c, self._growth(t))

    def value(self, rows: slice, t: int) -> Tensor:
        """x_t in float64, for the elements `rows`."""
        unit = 2.0 ** (_LIMB * len(self.limbs) - self.resolution) / self._growth(t)
        parts = []
        for limb in self.limbs:
            unit *= 2.0**-_LIMB
            parts.append(limb[rows].double().mul_(unit))
        return reduce(Tensor.add_, parts)

    def shrink(self, t: int) -> None:
        """At the first step of a period, multiply the integers by β^K and keep the remainders."""
        division = self._division(t)
        if division is None:
            return
        opens_a_byte = division % 2 == 1
        if opens_a_byte:
            self.remainders.append(torch.zeros_like(self.limbs[0], dtype=torch.uint8))
        n, d = self.factor.as_integer_ratio()
        # X ← ⌊X n/d⌋; which of the up to sixteen X with this result it was, is kept
        for rows in _parts(self.remainders[-1]):
            quotient, rest = self._divide(rows, d)
            digit = (rest * n).div_(d, rounding_mode="floor")  # ⌊X n/d⌋ = n ⌊X/d⌋ + ⌊n rest/d⌋
            self.remainders[-1][rows] <<= _GROWTH
            self.remainders[-1][rows] += rest.sub_(self._first(digit)).to(torch.uint8)
            self._multiply(rows, quotient, n, digit)

    def grow(self, t: int) -> None:
        """The inverse of `shrink(t)`."""
        division = self._division(t)
        if division is None:
            return
        n, d = self.factor.as_integer_ratio()
        for rows in _parts(self.remainders[-1]):
            quotient, digit = self._divide(rows, n)
            rest = self._first(digit).add_(self.remainders[-1][rows] & _REMAINDER)
            self.remainders[-1][rows] >>= _GROWTH
            self._multiply(rows, quotient, d, rest)
        opened_a_byte = division % 2 == 1
        if opened_a_byte:
            self.remainders.pop()

    def _division(self, t: int) -> int | None:
        """The number of the division before step t, from 1; None if there is none."""
        period, step = divmod(t - 1, self.period)
        is_first_of_a_later_period = step == 0 and period > 0
        return period if is_first_of_a_later_period else None

    def _growth(self, t: int) -> float:
        """β^(t0-t), where t0 is the step before the period of t."""
        return self.decay ** -((t - 1) % self.period + 1)

    def _accumulate(self, rows: slice, c: Tensor, growth: float) -> None:
        """X + 2^S c growth, rounded towards zero. All but the product with `growth` is exact, so
        the same with −c undoes it.
        """
        rest = c * (growth * 2.0 ** (self.resolution - _LIMB * (len(self.limbs) - 1)))
        digits = []
        for _ in self.limbs[1:]:
            digits.append(rest.trunc())
            rest = rest.sub_(digits[-1]).mul_(2.0**_LIMB)
        digits.append(rest)  # the conversion to integers rounds towards zero
        carry = None
        for limb, digit in zip(reversed(self.limbs), reversed(digits), strict=True):
            part = limb[rows].add_(digit.to(torch.int64))
            if carry is not None:
                part.add_(carry)
            if limb is not self.limbs[0]:
                carry = _carry(part)

    def _first(self, digit: Tensor) -> Tensor:
        """The smallest remainder r with ⌊r n/d⌋ = digit. There are about d/n of them."""
        n, d = self.factor.as_integer_ratio()
        return (digit * d).add_(n - 1).div_(n, rounding_mode="floor")

    def _divide(self, rows: slice, divisor: int) -> tuple[list[Tensor], Tensor]:
        """The digits of ⌊X / divisor⌋, top first, and the remainder."""
        digits = [self.limbs[0][rows].clone()]
        for limb in self.limbs[1:]:
            digits += [limb[rows] >> _HALF, limb[rows] & _LOW]
        rest: Tensor | int = 0
        quotient = []
        for digit in digits:
            part = digit.add_(rest << _HALF)
            quotient.append(part.div(divisor, rounding_mode="floor"))
            rest = part.sub_(quotient[-1] * divisor)
        return quotient, rest

    def _multiply(self, rows: slice, digits: list[Tensor], factor: int, carry: Tensor) -> None:
        """X ← factor · (the number with these digits) + carry."""
        for limb in reversed(self.limbs[1:]):
            low = digits.pop().mul_(factor).add_(carry)
            high = digits.pop().mul_(factor).add_(low >> _HALF)
            part = ((high & _LOW) << _HALF).add_(low.bitwise_and_(_LOW))
            carry = (high >> _HALF).add_(_carry(part))
            limb[rows] = part
        self.limbs[0][rows] = digits.pop().mul_(factor).add_(carry)


def _carry(limb: Tensor) -> Tensor:
    """What a limb has beyond 62 bits with a sign, which leaves it."""
    carry = (limb + (1 << (_LIMB - 1))) >> _LIMB
    limb.sub_(carry << _LIMB)
    return carry


class FixedPointState:
    """The state of one buffer of parameters in integers, after step `before`: `step` forward,
    `unstep` and `restore` back.

    `weights` (P,) are the parameters in floating point, and each step overwrites them. They are p
    u: p is the product of what all steps multiplied them by, and u are multiples of 2^-44, which
    move by a function of the accumulators alone. So no bit is lost in a product.

    Attributes:
        u: (P,) integers.
        products: p before the start, and after each step.
        bound: no parameter is larger.
        sums: of each accumulator.
    """

    def __init__(self, optimizer: InvertibleOptimizer, state: State, before: int, bounds: Bounds):
        self.optimizer = optimizer
        self.before = before
        self.bounds = bounds
        start, *accumulators = state
        self.weights = torch.empty_like(start)
        self.u = torch.zeros_like(start, dtype=torch.int64)
        self.products = [1.0]
        self.bound = bounds.of("parameter", start, LARGEST_WEIGHT, before)
        for rows in _parts(start):
            self._move(rows, start[rows].to(torch.float64, copy=True), 1.0)
        self.sums = []
        for i, (x, decay) in enumerate(zip(accumulators, optimizer.decays, strict=True)):
            bound = bounds.of("accumulator", x, math.inf, before)
            self.sums.append(DecayingSum(x, decay, optimizer.resolution(i), bound))

    def step(self, g: Tensor, t: int, lr: float) -> None:
        """Step `t` with the gradient `g` (P,). Raises what `Bounds.of` raises; float64 has no room
        for the square of a larger gradient.
        """
        bound = self.bounds.of("gradient", g, LARGEST_GRADIENT, t)
        # An increment is largest for the largest parameter and gradient.
        largest_w = torch.tensor([self.bound], dtype=torch.float64)
        largest_g = torch.tensor([bound], dtype=torch.float64)
        increments = self.optimizer.increments(largest_w, largest_g)
        for accumulator, c in zip(self.sums, increments, strict=True):
            accumulator.reserve(float(c))
            accumulator.shrink(t - self.before)
        self.products.append(self.products[-1] * self.optimizer.shrinkage(lr))
        for rows in _parts(g):
            self._accumulate(rows, g, t, 1)
            change = self.optimizer.displacement(self.accumulators(rows, t), t, lr).neg_()
            self._move(rows, change, self.products[-1])
        self.bound = self.bounds.of(
            "parameter", self.weights, LARGEST_WEIGHT, t, abs(self.products[-1])
        )

    def unstep(self, t: int, lr: float) -> None:
        """Take the parameters back to before step `t`."""
        product = self.products.pop()
        for rows in _parts(self.u):
            change = self.optimizer.displacement(self.accumulators(rows, t), t, lr)
            self._move(rows, change, product)

    def accumulators(self, rows: slice, t: int) -> State:
        """The accumulators after step `t`, in float64. Call it before `restore`."""
        return tuple(accumulator.value(rows, t - self.before) for accumulator in self.sums)

    def restore(self, g: Tensor, t: int) -> None:
        """Take the accumulators back to before step `t`, whose gradient was `g`. `unstep` has taken
        the parameters back already.
        """
        for rows in _parts(g):
            self._accumulate(rows, g, t, -1)
        for accumulator in self.sums:
            accumulator.grow(t - self.before)
            accumulator.release()

    def _accumulate(self, rows: slice, g: Tensor, t: int, sign: int) -> None:
        increments = self.optimizer.increments(self.weights[rows], g[rows].double())
        for accumulator, c in zip(self.sums, increments, strict=True):
            accumulator.add(rows, c.mul_(sign), t - self.before)

    def _move(self, rows: slice, change: Tensor, product: float) -> None:
        """Add a change (float64, overwritten) to the parameters where p is `product`; then make the
        floating-point numbers.
        """
        units = change.mul_(2.0**_WEIGHT_BITS / product).round_()
        self.u[rows] += units.to(torch.int64)
        self.weights[rows] = self.u[rows].double().mul_(2.0**-_WEIGHT_BITS * self.products[-1])


def _parts(x: Tensor) -> Iterator[slice]:
    return chunks(x, portions(x).integers)


def largest(x: Tensor) -> float:
    """The largest |x|; NaN if there is one."""
    if not len(x):
        return 0.0
    low, high = torch.aminmax(x)
    return max(abs(float(low)), abs(float(high)))


def stack(numbers: Sequence[Tensor]) -> Tensor:
    """Scalars as a vector, on the device of the first."""
    return torch.stack([x.to(numbers[0].device) for x in numbers])


def _check_range(name: str, limit: float, t: int, size: float) -> float:
    if not math.isfinite(size):
        raise NotFinite(f"a {name} is not finite after step {t}")
    if size > limit:
        raise OverflowError(
            f"adjoint=Reversible() holds its states in integers with room for {name}s of up to"
            f" {limit:.3g}, but after step {t} there is one of {size:.3g}; scale the problem,"
            " lower lr, or use adjoint=Checkpoint() or Tape()"
        )
    return size
