"""Integer states: they follow the optimizer in floating point, come back bit for bit, and keep
little to do so.
"""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from farzi_hf.engine import InnerAdam, InnerOptimizer, InnerSGD
from farzi_hf.engine.adjoints.fixed_point import (
    LARGEST_GRADIENT,
    Bounds,
    DecayingSum,
    FixedPointState,
)
from farzi_hf.engine.devices import PORTIONS


def normal(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def there(state: FixedPointState, gradients: list[Tensor], taken: int = 0) -> None:
    for t, g in enumerate(gradients[taken:], start=state.before + taken + 1):
        state.step(g, t, state.optimizer.lr)


def back(state: FixedPointState, gradients: list[Tensor]) -> None:
    for t in range(state.before + len(gradients), state.before, -1):
        state.unstep(t, state.optimizer.lr)
        state.restore(gradients[t - state.before - 1], t)


def integers(state: FixedPointState) -> list[Tensor]:
    return [state.u.clone(), *(x.clone() for total in state.sums for x in total.limbs)]


decays = st.one_of(st.floats(1 / 16, 0.9999), st.sampled_from([1 / 16, 0.5, 0.9, 0.99, 0.999]))
rates = st.floats(1e-5, 0.1)
optimizers = st.one_of(
    st.builds(
        InnerAdam,
        lr=rates,
        betas=st.tuples(decays, decays),
        eps=st.sampled_from([1e-3, 1e-8, 1e-12]),
        eps_root=st.sampled_from([0.0, 1e-8]),
        weight_decay=st.sampled_from([0.0, 0.1]),
    ),
    st.builds(InnerSGD, lr=rates, momentum=decays, weight_decay=st.sampled_from([0.0, 0.1])),
)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    optimizer=optimizers,
    size=st.integers(1, 50),
    steps=st.integers(1, 60),
    before=st.integers(0, 9),
    magnitude=st.floats(-12, 3),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 1000),
)
def test_comes_back_bit_for_bit(optimizer, size, steps, before, magnitude, dtype, seed) -> None:
    """From any start, accumulators that hold something among them, as at the edge of a window."""
    start = tuple(x.abs().to(dtype) for x in normal(optimizer.fields, size, seed=seed))
    gradients = [(10**magnitude * g).to(dtype) for g in normal(steps, size, seed=seed + 1)]
    state = FixedPointState(optimizer, start, before, Bounds())
    expected = integers(state)
    there(state, gradients)
    if magnitude > -6:  # less may be too small to see
        assert not all(map(torch.equal, integers(state), expected))
    back(state, gradients)
    assert all(map(torch.equal, integers(state), expected))
    assert not any(total.remainders for total in state.sums)


def changing(steps: int, size: int) -> list[Tensor]:
    """Gradients that are zero, all but zero, huge, ordinary, and that grow and shrink by 10^8."""
    kinds = [
        lambda t: 0.0,
        lambda t: 1e-30,
        lambda t: 1e-12,
        lambda t: 1e-8,
        lambda t: 1e-2,
        lambda t: 1e6,
        lambda t: 10 ** (8 * t / steps - 4),
        lambda t: 10 ** (4 - 8 * t / steps),
        lambda t: 1e4 if t == steps // 2 else 1e-4,
    ]
    scales = torch.tensor([[kind(t) for kind in kinds] for t in range(steps)], dtype=torch.float64)
    noise = normal(steps, len(kinds), size, seed=0) + 0.3
    return list((scales[:, :, None] * noise).flatten(1).float())


FOLLOWED: dict[str, InnerOptimizer] = {
    "adam": InnerAdam(lr=0.01),
    "adam_forgetful": InnerAdam(lr=0.01, betas=(0.5, 0.9), eps=1e-4),
    "adam_eps_root": InnerAdam(lr=0.01, betas=(0.95, 0.99), eps=0.0, eps_root=1e-12),
    "adam_decay": InnerAdam(lr=0.01, eps=1e-5, weight_decay=0.01),
    "sgd": InnerSGD(lr=1e-7, momentum=0.9),
}


@pytest.mark.parametrize("name", FOLLOWED)
def test_follows_floating_point_to_float32_rounding(name: str) -> None:
    optimizer = FOLLOWED[name]
    gradients = changing(400, 20)
    start = normal(len(gradients[0]), seed=1).float()
    state = FixedPointState(optimizer, optimizer.init(start), 0, Bounds())
    exact = optimizer.init(start.double())
    single = optimizer.init(start)
    for t, g in enumerate(gradients, start=1):
        state.step(g, t, optimizer.lr)
        exact = optimizer.step(exact, g.double(), t, optimizer.lr)
        single = optimizer.step(single, g, t, optimizer.lr)
    ulp = torch.finfo(torch.float32).eps * exact[0].abs().clamp(min=1.0)
    error = ((state.weights.double() - exact[0]).abs() / ulp).max()
    assert error <= 4, "four roundings of a float32, after hundreds of steps"
    assert error <= ((single[0].double() - exact[0]).abs() / ulp).nan_to_num(math.inf).max() + 1, (
        "as float32"
    )


@pytest.mark.parametrize(("beta", "expected"), [(0.9, 0.152), (0.5, 1.0), (0.999, 0.0015)])
def test_keeps_the_bits_that_a_decay_forgets(beta: float, expected: float) -> None:
    size = 64
    steps = 2000
    total = DecayingSum(torch.zeros(size), beta, resolution=40, bound=0.0)
    terms = normal(steps, size, seed=0)
    for t in range(1, steps + 1):
        total.reserve(10.0)
        total.shrink(t)
        total.add(slice(None), terms[t - 1], t)
    bits = 8 * sum(x.nbytes for x in total.remainders)
    assert bits / size / steps <= 1.02 * expected + 8 / steps


def test_chunks_make_no_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    optimizer = InnerAdam(lr=0.01, betas=(0.5, 0.9))
    gradients = changing(20, 11)
    states = []
    for chunk in (1 << 18, 7):
        monkeypatch.setitem(PORTIONS, "cpu", PORTIONS["cpu"]._replace(integers=chunk))
        states.append(
            FixedPointState(optimizer, optimizer.init(torch.ones(len(gradients[0]))), 0, Bounds())
        )
        there(states[-1], gradients)
    assert all(map(torch.equal, *map(integers, states)))


@pytest.mark.parametrize("optimizer", [InnerAdam(lr=0.01), InnerSGD(lr=1e-39, momentum=0.9)])
def test_the_largest_gradients_have_room_at_every_step(optimizer: InnerOptimizer) -> None:
    """Their sum would wrap around without a sign of it."""
    exact = state = optimizer.init(torch.zeros(3, dtype=torch.float64))
    held = FixedPointState(optimizer, state, 0, Bounds())
    for t in range(1, 1201):
        g = torch.tensor(
            [LARGEST_GRADIENT, -LARGEST_GRADIENT, LARGEST_GRADIENT * (-1) ** t], dtype=torch.float64
        )
        held.step(g, t, optimizer.lr)
        exact = optimizer.step(exact, g, t, optimizer.lr)
    for found, expected in zip(held.accumulators(slice(None), 1200), exact[1:], strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1.0)


def test_limbs_are_added_when_gradients_need_them_and_all_comes_back() -> None:
    optimizer = InnerAdam(lr=0.01, eps=1e-2)
    size = 40
    scales = [1e-3] * 50 + [1e12] + [1e30] * 9
    gradients = [scale * g for scale, g in zip(scales, normal(60, size, seed=0), strict=True)]
    state = FixedPointState(optimizer, optimizer.init(normal(size, seed=1)), 0, Bounds())
    start = integers(state)
    there(state, gradients[:50])
    assert [len(total.limbs) for total in state.sums] == [1, 1], (
        "16 bytes in all, for ordinary gradients"
    )
    there(state, gradients, taken=50)
    assert [len(total.limbs) for total in state.sums] == [3, 5]
    back(state, gradients)
    assert len(integers(state)) == 3
    assert all(map(torch.equal, integers(state), start))


@pytest.mark.parametrize(("room", "limbs"), [(1.0, 1), (1e10, 2), (1e30, 3), (1e60, 5), (1e90, 6)])
def test_small_numbers_of_either_sign_keep_their_value_beside_any_room(
    room: float, limbs: int
) -> None:
    """A negative X was -1 and two limbs of almost 2^62, which cancelled where they became
    floating-point numbers.
    """
    x = torch.tensor([-1e-3, 1e-3, -1e-12, 1e-12, -0.3, 0.0, -1.0]).double()
    total = DecayingSum(torch.zeros(len(x)), 0.9, resolution=50, bound=0.0)
    total.reserve(room)
    assert len(total.limbs) == limbs
    for t in range(1, 60):
        total.shrink(t)
        total.add(slice(None), x * 0.1, t)
    expected = x * (1 - 0.9**59)
    torch.testing.assert_close(total.value(slice(None), 59), expected, rtol=1e-12, atol=2.0**-44)
    for t in range(59, 0, -1):
        total.add(slice(None), x * -0.1, t)
        total.grow(t)
    assert not any(limb.any() for limb in total.limbs)
