"""Every adjoint gives the exact meta-gradient: against an independent reference, that against
finite differences.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import meta_problems as mp
import pytest
import torch
from adjoint_checks import assert_exact, every_adjoint, meta_gradient, reference, skip_irreversible
from meta_problems import ADAM, OPTIMIZERS, PROBLEMS, gradients, outer_loss, relative_error
from torch import Tensor

from farzi_hf import engine
from farzi_hf.engine import (
    Adjoint,
    Checkpoint,
    Direct,
    InnerAdam,
    PaperAdam,
    Reversible,
    Tape,
    unroll,
)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_reference_against_finite_differences(name: str, optimizer: str) -> None:
    problem = PROBLEMS[name]()
    h = 1e-6
    torch.manual_seed(3)
    directions = [torch.randn_like(x) for x in problem.leaves]

    def value(h: float) -> float:
        moved = [
            (x.detach() + h * d).requires_grad_()
            for x, d in zip(problem.leaves, directions, strict=True)
        ]
        theta = mp.reference_unroll(problem.with_leaves(moved), OPTIMIZERS[optimizer], 5)
        return outer_loss(theta).item()

    slope = sum(
        float((g * d).sum()) for g, d in zip(reference(name, optimizer, 5), directions, strict=True)
    )
    assert (value(h) - value(-h)) / (2 * h) == pytest.approx(slope, rel=1e-5, abs=1e-5)


OFTEN = ("adam_decay_schedule", "sgd_momentum")
QUICK = {("mlp", optimizer, steps) for optimizer in OPTIMIZERS for steps in (1, 2, 9)}
QUICK |= {(problem, optimizer, 7) for problem in PROBLEMS for optimizer in OFTEN}
SLOW = {
    (problem, optimizer, steps)
    for problem in PROBLEMS
    for optimizer in OPTIMIZERS
    for steps in (7, 20, 100)
}
CASES = [
    *sorted(QUICK),
    *(pytest.param(*case, marks=pytest.mark.slow) for case in sorted(SLOW - QUICK)),
]


@every_adjoint
@pytest.mark.parametrize(("name", "optimizer", "steps"), CASES)
def test_against_reference(name: str, optimizer: str, steps: int, adjoint: Adjoint) -> None:
    skip_irreversible(OPTIMIZERS[optimizer], adjoint)
    problem = PROBLEMS[name]()
    found = meta_gradient(problem, OPTIMIZERS[optimizer], steps, adjoint=adjoint)
    assert_exact(problem, found, reference(name, optimizer, steps), adjoint)


@every_adjoint
@pytest.mark.parametrize("optimizer", ["adam_decay_schedule", "sgd_momentum"])
@pytest.mark.parametrize("window", [1, 4, 9])
def test_window_differentiates_the_last_steps_only(
    optimizer: str, window: int, adjoint: Adjoint
) -> None:
    problem = mp.mlp()
    found = meta_gradient(problem, OPTIMIZERS[optimizer], 9, window=window, adjoint=adjoint)
    assert_exact(problem, found, reference("mlp", optimizer, 9, window), adjoint)
    assert any(x.any() for x in found[:4]) == (window == 9), (
        "truncation leaves no gradient in the start"
    )


@every_adjoint
def test_a_window_of_all_steps_but_one_leaves_no_gradient_in_the_start(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    found = meta_gradient(problem, ADAM, 4, window=3, adjoint=adjoint)
    assert_exact(problem, found, reference("mlp", "adam", 4, 3), adjoint)
    assert not any(x.any() for x in found[:4])


@every_adjoint
@pytest.mark.parametrize("optimizer", ["adam_decay_schedule", "sgd_decay_schedule"])
def test_first_step_numbers_minibatches_and_schedule(optimizer: str, adjoint: Adjoint) -> None:
    problem = mp.mlp()
    found = meta_gradient(problem, OPTIMIZERS[optimizer], 4, first_step=6, adjoint=adjoint)
    assert_exact(problem, found, reference("mlp", optimizer, 4, None, 6), adjoint)


@every_adjoint
def test_parameters_without_decay(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    optimizer = replace(OPTIMIZERS["adamw_clipped"], no_decay=("bias", "frozen"))
    expected = gradients(outer_loss(mp.reference_unroll(problem, optimizer, 9)), problem.leaves)
    assert_exact(problem, meta_gradient(problem, optimizer, 9, adjoint=adjoint), expected, adjoint)
    decayed = reference("mlp", "adamw_clipped", 9)
    assert relative_error(expected, decayed) > 1e-3

    with pytest.raises(ValueError, match=r"no_decay names 'norm', which is none of in, count, "):
        meta_gradient(problem, replace(optimizer, no_decay=("norm",)), 1, adjoint=adjoint)


@every_adjoint
@pytest.mark.parametrize("optimizer", ["adamw_clipped", "sgd_momentum"])
def test_a_loss_in_parts_is_their_sum(optimizer: str, adjoint: Adjoint) -> None:
    problem = mp.mlp()

    def parts(*args) -> Iterator[Tensor]:
        for share in (0.5, 0.2, 0.3):
            yield share * problem.inner_loss(*args)

    found = meta_gradient(
        replace(problem, inner_loss=parts), OPTIMIZERS[optimizer], 9, adjoint=adjoint
    )
    assert_exact(problem, found, reference("mlp", optimizer, 9), adjoint)


def test_a_loss_without_parts_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"inner_loss must return a scalar tensor .* got None at step 1"
    ):
        meta_gradient(replace(mp.mlp(), inner_loss=lambda *args: []), ADAM, 2)


@every_adjoint
def test_several_outer_losses_share_the_graphs_of_one_training(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    calls = 0
    scales = (1.0, -2.0, 0.5)

    def inner_loss(*args) -> Tensor:
        nonlocal calls
        calls += 1
        return problem.inner_loss(*args)

    def losses(theta: dict[str, Tensor]) -> Iterator[Tensor]:
        for scale in scales:
            yield outer_loss({name: scale * x for name, x in theta.items()})

    def found(count: int) -> tuple[list[Tensor], list[tuple[Tensor, ...]], int]:
        nonlocal calls
        calls = 0
        several = lambda theta: itertools.islice(losses(theta), count)  # noqa: E731
        settings = {"optimizer": OPTIMIZERS["adamw_clipped"], "steps": 9, "adjoint": adjoint}
        return *engine.gradients(
            several, inner_loss, problem.params, problem.inputs, **settings
        ), calls

    theta = unroll(
        *problem.arguments, optimizer=OPTIMIZERS["adamw_clipped"], steps=9, adjoint=adjoint
    )
    values, derivatives, evaluations = found(3)
    assert evaluations == found(1)[2], "no step is evaluated again for another loss"
    inputs = problem.inputs[:2]
    for loss, value, derivative in zip(losses(theta), values, derivatives, strict=True):
        torch.testing.assert_close(value, loss.detach())
        assert (
            relative_error(
                list(derivative), list(torch.autograd.grad(loss, inputs, retain_graph=True))
            )
            <= 1e-12
        )


def test_paper_rule_is_exact_at_one_step_only_and_direct_refuses_it() -> None:
    problem = mp.gpt2()
    rules = [
        PaperAdam(lr=0.02, eps=1e-3, weight_decay=0.1),
        InnerAdam(lr=0.02, eps=1e-3, weight_decay=0.1),
    ]
    one, exact_one = (meta_gradient(problem, rule, 1) for rule in rules)
    assert relative_error(one, exact_one) <= 1e-12
    many, exact_many = (
        torch.cat([x.flatten() for x in meta_gradient(problem, rule, 20)]) for rule in rules
    )
    assert torch.cosine_similarity(many, exact_many, dim=0) < 0.99

    with pytest.raises(ValueError, match=r"adjoint=Direct\(\).*PaperAdam.*use adjoint=Tape\(\)"):
        meta_gradient(mp.mlp(), PaperAdam(lr=0.1), 2, adjoint=Direct())


@every_adjoint
def test_gradient_in_the_start_alone_and_in_the_inputs_alone(adjoint: Adjoint) -> None:
    problem = mp.gpt2()
    both = meta_gradient(problem, ADAM, 4, adjoint=adjoint)
    soft = problem.inputs[0]
    start = mp.MetaProblem(problem.inner_loss, problem.params, (soft.detach(),))
    assert relative_error(meta_gradient(start, ADAM, 4, adjoint=adjoint), both[:-1]) <= 1e-12
    detached = {name: x.detach() for name, x in problem.params.items()}
    theta = unroll(problem.inner_loss, detached, (soft,), optimizer=ADAM, steps=4, adjoint=adjoint)
    assert relative_error(gradients(outer_loss(theta), [soft]), both[-1:]) <= 1e-12


@every_adjoint
def test_a_linear_loss_has_no_second_derivatives(adjoint: Adjoint) -> None:
    w = torch.ones(2, requires_grad=True)
    x = torch.ones(2, requires_grad=True)
    theta = unroll(
        lambda p, i, step: p["w"].sum() + 0 * step,
        {"w": w},
        (x,),
        optimizer=ADAM,
        steps=3,
        adjoint=adjoint,
    )
    dw, dx = gradients(theta["w"].sum(), [w, x])
    assert torch.equal(dw, torch.ones(2))
    assert not dx.any()


@every_adjoint
def test_parameters_of_two_dtypes(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    mixed = mp.mlp()
    mixed.params["bias"] = problem.params["bias"].detach().float().requires_grad_()
    mixed.params["dead"] = problem.params["dead"].detach().float().requires_grad_()
    found = meta_gradient(mixed, ADAM, 7, adjoint=adjoint)
    assert [x.dtype for x in found[:4]] == [
        torch.float64,
        torch.float32,
        torch.float32,
        torch.float64,
    ]
    assert relative_error([x.double() for x in found], reference("mlp", "adam", 7)) < 1e-5


@pytest.mark.parametrize("adjoint", [Direct(), Checkpoint(slots=2), Reversible()])
def test_a_loss_that_differentiates_in_its_input_sees_only_its_own_step(adjoint: Adjoint) -> None:
    """A gradient penalty: the derivative inside the loss is that at fixed parameters."""
    torch.manual_seed(0)
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    start = torch.randn(3, dtype=torch.float64)

    def loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
        x = inputs[0].requires_grad_()
        (g,) = torch.autograd.grad((x @ params["w"]).tanh().sum(), x, create_graph=True)
        return (g.norm(dim=1) - 1).square().mean()

    def trained(adjoint: Adjoint) -> tuple[Tensor, Tensor]:
        params = {"w": start.clone().requires_grad_()}
        w = unroll(loss, params, (x,), optimizer=InnerAdam(lr=0.1), steps=6, adjoint=adjoint)["w"]
        return w.detach(), torch.autograd.grad(w.square().sum(), x)[0]

    for found, expected in zip(trained(adjoint), trained(Tape()), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-9)
