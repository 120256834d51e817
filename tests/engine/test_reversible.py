"""Running backwards: to the start bit for bit, or an error."""

from __future__ import annotations

from dataclasses import replace

import meta_problems as mp
import pytest
import torch
from adjoint_checks import meta_gradient
from meta_problems import ADAM, outer_loss, relative_error
from torch import Tensor

from farzi_hf.engine import (
    Adjoint,
    Direct,
    InnerAdam,
    InnerOptimizer,
    InnerSGD,
    ReplayError,
    Reversible,
    State,
    Tape,
    unroll,
)
from farzi_hf.engine.adjoints import reversible
from farzi_hf.engine.adjoints.fixed_point import Bounds


def test_reversal_of_many_steps_ends_at_the_start() -> None:
    meta_gradient(
        mp.gpt2(torch.float32), ADAM, 80, adjoint=Reversible()
    )  # it raises if one bit is wrong


def test_a_gradient_that_cannot_be_reproduced_is_an_error() -> None:
    problem = mp.mlp()
    calls = 0

    def noisy(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(params, inputs, step) * (1 + 1e-6 * calls)

    loss = outer_loss(
        unroll(noisy, *problem.arguments[1:], optimizer=ADAM, steps=6, adjoint=Reversible())
    )
    with pytest.raises(ReplayError, match=r"did not come back .* before step 6: .*pure function"):
        loss.backward()


def test_a_first_gradient_that_differs_by_little_is_an_error() -> None:
    """The parameters come back to the start in any case: the accumulators alone show it, by their
    last bits.
    """
    problem = mp.mlp()
    steps_seen = []

    def noisy(params: dict, inputs: tuple, step: int) -> Tensor:
        is_first_in_reverse = step == 1 and 1 in steps_seen
        steps_seen.append(step)
        loss = problem.inner_loss(params, inputs, step)
        return loss * (1 + 1e-9) if is_first_in_reverse else loss

    loss = outer_loss(
        unroll(noisy, *problem.arguments[1:], optimizer=ADAM, steps=6, adjoint=Reversible())
    )
    with pytest.raises(ReplayError, match=r"did not come back .* before step 1: "):
        loss.backward()


@pytest.fixture(params=["looked at", "unseen"])
def looks(request, monkeypatch):
    """On a GPU nobody looks at numbers between the steps."""
    if request.param == "unseen":
        monkeypatch.setattr(reversible, "Bounds", lambda wait: Bounds(False))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e9])
@pytest.mark.usefixtures("looks")
def test_steps_are_taken_again_where_numbers_are_larger_than_expected(scale: float) -> None:
    problem = mp.mlp()
    problem = replace(
        problem, inner_loss=lambda *arguments: scale * mp.mlp().inner_loss(*arguments)
    )
    found, expected = (
        meta_gradient(problem, ADAM, 6, window=4, adjoint=adjoint)
        for adjoint in (Reversible(), Tape())
    )
    assert relative_error(found, expected) < 1e-4


def test_kernels_that_do_not_give_the_same_bits_again_are_met_at_the_start(
    monkeypatch, caplog
) -> None:
    monkeypatch.setattr(reversible, "Bounds", lambda wait: Bounds(False))
    problem = mp.mlp()
    calls = 0

    def noisy(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(params, inputs, step) * (1 + 1e-9 * calls)

    found = meta_gradient(replace(problem, inner_loss=noisy), ADAM, 6, adjoint=Reversible())
    assert relative_error(found, meta_gradient(problem, ADAM, 6, adjoint=Tape())) < 1e-4
    assert (
        "two gradients for the same parameters and the same step; adjoint=Tape() takes the place"
        in caplog.text
    )


@pytest.mark.parametrize("optimizer", [InnerSGD(lr=0.1), InnerAdam(lr=0.1, betas=(0.9, 0.06))])
def test_an_optimizer_without_memory_cannot_run_backwards(optimizer: InnerOptimizer) -> None:
    with pytest.raises(
        ValueError,
        match=r"adjoint=Reversible\(\) cannot run Inner.* backwards.*use adjoint=Tape\(\)",
    ):
        unroll(*mp.mlp().arguments, optimizer=optimizer, steps=2, adjoint=Reversible())
    assert unroll(*mp.mlp().arguments, optimizer=optimizer, steps=2)  # it is not chosen


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize(("scale", "what"), [(1e40, "gradient"), (1e6, "parameter")])
def test_numbers_beyond_the_integers_are_an_error(scale: float, what: str) -> None:
    w, x = (torch.ones(2, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with pytest.raises(
        OverflowError, match=rf"room for {what}s of up to .* but after step 1 there is one of"
    ):
        unroll(
            lambda p, i, t: (p["w"] * i[0] * scale).sum(),
            {"w": w},
            (x,),
            optimizer=InnerSGD(1.0, momentum=0.5),
            steps=2,
            adjoint=Reversible(),
        )


class PlainDescent(InnerOptimizer):
    """An optimizer of a user's own, without what integers need."""

    fields = 1
    lr = 0.1
    lr_schedule = None

    def init(self, w: Tensor) -> State:
        return (w,)

    def step(self, state: State, g: Tensor, t: int, lr: float, out: State | None = None) -> State:
        return (torch.add(state[0], g, alpha=-lr, out=None if out is None else out[0]),)

    def pullback(
        self, w: Tensor, accumulators: tuple, g: Tensor, cotangent: State, t: int, lr: float
    ) -> Tensor:
        return cotangent[0] * -lr


def test_an_optimizer_needs_no_inverse_unless_it_is_to_run_backwards() -> None:
    problem = mp.mlp()
    found, twin = (
        meta_gradient(problem, rule, 5, adjoint=Tape())
        for rule in (PlainDescent(), InnerSGD(lr=0.1))
    )
    assert relative_error(found, twin) < 1e-12
    with pytest.raises(
        ValueError,
        match=r"adjoint=Reversible\(\) cannot run .*PlainDescent.* no inverse in integers",
    ):
        meta_gradient(problem, PlainDescent(), 5, adjoint=Reversible())


@pytest.mark.usefixtures("looks")
@pytest.mark.parametrize("lost_at", [0, 2, 4])
@pytest.mark.parametrize("window", [None, 3])
def test_a_training_that_leaves_the_finite_numbers_is_nan_as_with_others(
    lost_at: int, window: int | None
) -> None:
    """Where the input has no part in the last step, too."""

    def loss(params: dict, inputs: tuple, step: int) -> Tensor:
        value = (params["w"] @ inputs[0]).square() if step < 6 else params["w"].sum().square()
        return value * (torch.nan if step == lost_at else 1.0)

    found = []
    for adjoint in (Direct(), Tape(), Reversible()):
        w = torch.ones(2, requires_grad=True)
        x = torch.ones(2, requires_grad=True)
        start = torch.where(torch.tensor([lost_at == 0, False]), torch.nan, w)
        theta = unroll(
            loss,
            {"w": start},
            (x,),
            optimizer=InnerAdam(lr=0.01),
            steps=6,
            window=window,
            adjoint=adjoint,
        )
        made = (theta["w"], *torch.autograd.grad(theta["w"].sum(), (w, x)))
        found.append([value.isnan().any() for value in made])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("eps", [1e-8, 1e-3])
@pytest.mark.parametrize("scale", [1e-14, 1e-12, 1e-9, 1e-7])
def test_a_second_moment_that_is_rounded_to_zero_has_no_derivative(
    scale: float, eps: float
) -> None:
    """Gradients far below eps: the first moment is not zero, and the second one is smaller than the
    least integer.
    """

    def derivative(adjoint: Adjoint) -> float:
        x = torch.ones(3, requires_grad=True)
        theta = unroll(
            lambda params, inputs, step: scale * (params["w"].sin() * inputs[0]).sum(),
            {"w": torch.full((3,), 0.5)},
            (x,),
            optimizer=InnerAdam(0.01, eps=eps),
            steps=3,
            adjoint=adjoint,
        )
        return torch.autograd.grad(theta["w"].sum(), x)[0][0].item()

    assert derivative(Reversible()) == pytest.approx(derivative(Direct()), rel=1e-3)
