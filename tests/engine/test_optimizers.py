"""Inner optimizers: forward against their torch twins, in reverse against autograd of one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import meta_problems as mp
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from meta_problems import TWINS
from torch import Tensor

from farzi_hf import engine
from farzi_hf.engine import (
    InnerAdam,
    InnerAdamW,
    InnerOptimizer,
    InnerSGD,
    PaperAdam,
    State,
    unroll,
)


def rosenbrock(w: Tensor) -> Tensor:
    return (1 - w[:-1]).square().sum() + 10 * (w[1:] - w[:-1].square()).square().sum()


def run(optimizer: InnerOptimizer, start: Tensor, steps: int, *, in_place: bool) -> Tensor:
    state = optimizer.init(start.clone())
    for t in range(1, steps + 1):
        w = state[0].detach().requires_grad_()
        (g,) = torch.autograd.grad(rosenbrock(w), w)
        state = optimizer.step(state, g, t, optimizer.rate(t), out=state if in_place else None)
    return state[0]


def test_every_optimizer_that_a_config_can_name_is_tried() -> None:
    """`meta_problems.OPTIMIZERS` is what the tests of adjoints take, `TWINS` what is compared with
    torch.
    """
    differentiated = {kind for kind in engine.OPTIMIZERS.values() if kind.elementwise}
    for tried in (mp.OPTIMIZERS.values(), [optimizer for optimizer, _, _ in TWINS.values()]):
        assert {type(optimizer) for optimizer in tried} >= differentiated
    assert set(engine.OPTIMIZERS.values()) - differentiated == {
        engine.InnerSoap
    }  # tests/engine/test_soap.py


@pytest.mark.parametrize("optimizer", [InnerAdam(lr=0.1), InnerSGD(lr=0.1)], ids=repr)
def test_parameters_without_a_gradient_stay_unless_they_decay_or_a_norm_is_taken(
    optimizer: InnerOptimizer,
) -> None:
    """A norm is a sum over all parameters, and its last bits depend on how many zeros it sums."""
    assert optimizer.keeps_unused
    assert not replace(optimizer, weight_decay=0.1).keeps_unused
    assert not replace(optimizer, max_grad_norm=1.0).keeps_unused


@pytest.mark.parametrize("name", TWINS)
def test_forward_equals_the_torch_twin(name: str) -> None:
    """With the same bits in place, or a replay from recorded gradients would not end where the
    forward pass did.
    """
    optimizer, twin, options = TWINS[name]
    start = torch.linspace(-1, 1, 6, dtype=torch.float64)
    w = start.clone().requires_grad_()
    torch_optimizer = twin([w], lr=optimizer.lr, **options)
    schedule = optimizer.lr_schedule or (lambda step: 1.0)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        torch_optimizer, lambda epoch: schedule(epoch + 1)
    )
    for _ in range(50):
        torch_optimizer.zero_grad()
        rosenbrock(w).backward()
        torch_optimizer.step()
        scheduler.step()
    found = run(optimizer, start, 50, in_place=False)
    torch.testing.assert_close(found, w.detach(), rtol=1e-12, atol=1e-12)
    assert torch.equal(found, run(optimizer, start, 50, in_place=True))


def test_groups_and_clipping_equal_those_of_torch() -> None:
    """In unclipped steps, too. `rtol`: torch has the norm of each tensor first."""
    problem = mp.mlp()
    largest = 1.2
    optimizer = InnerAdamW(
        lr=0.05, weight_decay=0.5, no_decay=("bias", "dead"), max_grad_norm=largest
    )
    found = unroll(*problem.arguments, optimizer=optimizer, steps=20)
    trained = {
        name: x.detach().clone().requires_grad_()
        for name, x in problem.params.items()
        if x.requires_grad
    }
    plain = [x for name, x in trained.items() if name in optimizer.no_decay]
    decaying = [x for name, x in trained.items() if name not in optimizer.no_decay]
    twin = torch.optim.AdamW(
        [{"params": decaying, "weight_decay": 0.5}, {"params": plain, "weight_decay": 0.0}], 0.05
    )
    norms = []
    for step in range(1, 21):
        twin.zero_grad()
        problem.inner_loss({**problem.params, **trained}, problem.inputs, step).backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(trained.values(), largest)))
        twin.step()
    assert min(norms) < largest < max(norms)
    for name, x in trained.items():
        torch.testing.assert_close(found[name], x, rtol=1e-12, atol=1e-12)


# --- one step in reverse --------------------------------------------------------------------------


def pullbacks(
    optimizer: InnerOptimizer, w: Tensor, gradients: list[Tensor], after: State
) -> tuple[State, State]:
    """(dw, dm, …, dg) before the last step from those after it: by `pullback`, and by autograd
    through `step`.
    """
    *past, g = gradients
    t = len(gradients)
    before = optimizer.init(w)
    for earlier, gradient in enumerate(past, 1):
        before = optimizer.step(before, gradient, earlier, optimizer.rate(earlier))
    cotangent = tuple(x.clone() for x in after)
    _, *accumulators = optimizer.step(before, g, t, optimizer.lr)
    dg = optimizer.pullback(before[0], accumulators, g, cotangent, t, optimizer.lr)

    leaves = [x.clone().requires_grad_() for x in (*before, g)]
    stepped = optimizer.step(tuple(leaves[:-1]), leaves[-1], t, optimizer.lr)
    expected = torch.autograd.grad(stepped, leaves, after, materialize_grads=True)
    return (*cotangent, dg), expected


unit = st.floats(0, 0.99)
positive = st.floats(1e-4, 1.0)
decay = st.sampled_from([0.0, 0.1])
adams = st.builds(
    lambda kind, **settings: kind(**settings),
    st.sampled_from([InnerAdam, InnerAdamW]),
    lr=positive,
    betas=st.tuples(unit, unit),
    eps=positive,
    eps_root=st.sampled_from([0.0, 0.01]),
    weight_decay=decay,
)
sgds = st.builds(InnerSGD, lr=positive, momentum=unit, weight_decay=decay)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    optimizer=st.one_of(adams, sgds, st.sampled_from([*mp.OPTIMIZERS.values()])),
    size=st.integers(1, 40),
    t=st.integers(1, 5),
    seed=st.integers(0, 1000),
)
def test_pullback_is_the_derivative_of_a_step(
    optimizer: InnerOptimizer, size: int, t: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    w, *rest = torch.randn(1 + t + optimizer.fields, size, dtype=torch.float64, generator=generator)
    found, expected = pullbacks(optimizer, w, rest[:t], tuple(rest[t:]))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-12 + 1e-9 * float(b.abs().max()))


@pytest.mark.parametrize("kind", [InnerAdam, InnerAdamW])
def test_damping_is_a_larger_epsilon_of_the_reverse_step_alone(kind: type[InnerAdam]) -> None:
    w, g, *cotangent = torch.randn(
        5, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    damped = kind(lr=0.1, eps=1e-3, damping=0.5)
    other = kind(lr=0.1, eps=0.501)
    state = kind(lr=0.1, eps=1e-3).step(damped.init(w), g, 1, 0.1)
    for a, b in zip(damped.step(damped.init(w), g, 1, 0.1), state, strict=True):
        assert torch.equal(a, b)
    ours, theirs = ([x.clone() for x in cotangent] for _ in range(2))
    torch.testing.assert_close(
        damped.pullback(w, state[1:], g, ours, 1, 0.1),
        other.pullback(w, state[1:], g, theirs, 1, 0.1),
    )
    torch.testing.assert_close(ours, theirs)
    assert not damped.exact
    assert other.exact


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_zero_and_vanishing_gradients_leave_derivatives_finite(dtype: torch.dtype) -> None:
    g = torch.tensor(
        [0.0, 1e-30, 1e-18, 1.0], dtype=dtype
    )  # in float32 the square of the second underflows to 0
    w = torch.ones_like(g)
    ones = torch.ones_like(g)
    found, expected = pullbacks(InnerAdam(lr=0.1), w, [g, g], (ones, ones, ones))
    assert all(x.isfinite().all() for x in (*found, *expected))
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[-1][0], expected[-1][0])


def test_the_norm_of_millions_of_numbers_is_right() -> None:
    """One sum of squares in float32 stops to grow: for as many it is wrong by three parts in a
    thousand.
    """
    g = (torch.randn(40_000_000, generator=torch.Generator().manual_seed(0)),)
    (found,) = InnerSGD(lr=0.1, max_grad_norm=1.0).clip(g)
    assert float(found[:1000].norm()) == pytest.approx(
        float(g[0][:1000].norm() / g[0].double().norm()), rel=1e-5
    )


def test_a_gradient_of_zero_is_clipped_to_zero() -> None:
    optimizer = InnerSGD(lr=0.1, max_grad_norm=1e-7)
    g = (torch.zeros(3),)
    assert not optimizer.clip(g)[0].any()
    assert bool(optimizer.clip_pullback(g, (torch.ones(3),))[0].isfinite().all())


# --- hyper-parameters -----------------------------------------------------------------------------


BAD: dict[str, tuple[Callable[[], InnerOptimizer], str]] = {
    "lr zero": (lambda: InnerAdam(lr=0.0), r"lr must be a finite number > 0, got 0\.0"),
    "lr text": (
        lambda: InnerSGD(lr="1e-2"),
        r"lr must .* got '1e-2' \(in YAML write 1\.0e-2, not 1e-2\)",
    ),
    "lr tensor": (
        lambda: InnerSGD(lr=torch.tensor(0.1, requires_grad=True)),
        r"lr must be a number, got a tensor of shape \(\).*multiply the loss",
    ),
    "beta": (
        lambda: InnerAdam(lr=0.1, betas=(0.9, 1.0)),
        r"betas must be two numbers .* got \(0\.9, 1\.0\)",
    ),
    "eps negative": (
        lambda: InnerAdam(lr=0.1, eps=-1e-8),
        r"eps must be a finite number >= 0, got -1e-08",
    ),
    "no eps": (lambda: PaperAdam(lr=0.1, eps=0.0), r"eps and eps_root are both 0\.0.*set eps=1e-8"),
    "decay": (
        lambda: InnerAdam(lr=0.1, weight_decay=-0.1),
        r"weight_decay must be a finite number >= 0, got -0\.1",
    ),
    "clipping": (
        lambda: InnerSGD(lr=0.1, max_grad_norm=0.0),
        r"max_grad_norm must be None or .* > 0, got 0\.0; None turns it off",
    ),
    "no memory": (
        lambda: InnerAdamW(lr=0.5, weight_decay=2),
        r"lr=0\.5 times weight_decay=2 must be below 1.*lower one",
    ),
    "momentum": (
        lambda: InnerSGD(lr=0.1, momentum=1.0),
        r"momentum must be a number in \[0, 1\), got 1\.0",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_hyper_parameters_are_one_clear_error(case: str) -> None:
    build, message = BAD[case]
    with pytest.raises(ValueError, match=message):
        build()
