"""What `unroll` takes and gives: parameters that train, autograd's rules, autocast,
memory, errors.
"""

from __future__ import annotations

import weakref

import meta_problems as mp
import numpy as np
import pytest
import torch
from adjoint_checks import every_adjoint, reference
from meta_problems import ADAM, gradients, outer_loss, relative_error
from torch import Tensor, nn

from farzi_hf.engine import Adjoint, Checkpoint, Direct, Reversible, Tape, unroll


@every_adjoint
def test_result_has_the_keys_shapes_and_passive_tensors_of_params(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    theta = unroll(*problem.arguments, optimizer=ADAM, steps=3, adjoint=adjoint)
    assert list(theta) == list(problem.params)
    assert all(
        theta[name].shape == x.shape and theta[name].dtype == x.dtype
        for name, x in problem.params.items()
    )
    assert all(theta[name] is problem.params[name] for name in ("count", "frozen"))


def test_plain_tensors_train_unless_some_other_requires_grad() -> None:
    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        return sum((x * inputs[0]).square().sum() for x in params.values())

    def moved(**params: Tensor) -> set[str]:
        theta = unroll(inner_loss, params, (torch.ones(2),), optimizer=ADAM, steps=1)
        return {name for name in params if theta[name] is not params[name]}

    plain = torch.ones(2)
    leaf = torch.ones(2, requires_grad=True)
    parameter = nn.Parameter(torch.ones(2))
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    assert moved(a=plain, b=plain) == {"a", "b"}
    assert moved(a=plain, b=leaf) == {"b"}
    assert moved(a=plain, b=parameter) == {"b"}
    assert moved(a=plain, b=frozen) == {"a"}


@pytest.mark.parametrize("quiet", [torch.no_grad, torch.inference_mode])
def test_forward_without_gradients(quiet: type) -> None:
    problem = mp.mlp()
    expected = mp.reference_unroll(problem, ADAM, 5)
    with quiet():
        theta = unroll(*problem.arguments, optimizer=ADAM, steps=5)
    assert not any(x.requires_grad for x in theta.values())
    torch.testing.assert_close(
        theta, {name: x.detach() for name, x in expected.items()}, rtol=1e-12, atol=1e-14
    )


@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(), Reversible()])
def test_second_derivatives_are_refused_by_recordings_and_given_by_direct(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    x = problem.inputs[0]
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=2, adjoint=adjoint))
    with pytest.raises(
        RuntimeError, match=r"adjoint=[A-Z][a-z]+\(\) has first derivatives only.*=Direct\(\)"
    ):
        torch.autograd.grad(loss, x, create_graph=True)
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=2, adjoint=Direct()))
    (dx,) = torch.autograd.grad(loss, x, create_graph=True)
    assert gradients(dx.square().sum(), [x])[0].isfinite().all()


@every_adjoint
def test_backward_twice_over_a_retained_graph_also_after_an_interrupt(adjoint: Adjoint) -> None:
    problem = mp.mlp()
    stop = []

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        if stop:
            raise KeyboardInterrupt
        return problem.inner_loss(params, inputs, step)

    theta = unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=7, adjoint=adjoint)
    before = {name: x.detach().clone() for name, x in theta.items()}
    loss = outer_loss(theta)
    first = torch.autograd.grad(loss, problem.leaves, retain_graph=True)
    if not isinstance(adjoint, Direct):  # it does not evaluate the loss again
        stop.append(True)
        with pytest.raises(KeyboardInterrupt):
            torch.autograd.grad(loss, problem.leaves, retain_graph=True)
        stop.clear()
    assert all(map(torch.equal, first, torch.autograd.grad(loss, problem.leaves)))
    assert all(torch.equal(x, before[name]) for name, x in theta.items()), (
        "the result stays as it was"
    )


@pytest.mark.parametrize("victim", ["input", "constant"])
def test_overwriting_what_the_backward_pass_needs_is_an_error(victim: str) -> None:
    problem = mp.mlp()
    loss = outer_loss(unroll(*problem.arguments, optimizer=ADAM, steps=2, adjoint=Tape()))
    with torch.no_grad():
        (problem.inputs[0] if victim == "input" else problem.params["frozen"]).add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@every_adjoint
def test_bf16_autocast_covers_the_loss_forward_and_backward(adjoint: Adjoint) -> None:
    problem = mp.mlp(torch.float32)
    dtypes = []

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        dtypes.append((inputs[0] @ params["in"]).dtype)
        return problem.inner_loss(params, inputs, step).float()

    with torch.autocast("cpu", torch.bfloat16):
        theta = unroll(
            inner_loss, problem.params, problem.inputs, optimizer=ADAM, steps=5, adjoint=adjoint
        )
    found = gradients(outer_loss(theta), problem.leaves)  # outside: the backward pass must remember
    assert set(dtypes) == {torch.bfloat16}
    assert all(x.dtype == torch.float32 for name, x in theta.items() if name != "count")
    expected = reference("mlp", "adam", 5)
    assert 1e-4 < relative_error([x.double() for x in found], expected) < 0.1


@pytest.mark.parametrize(
    ("adjoint", "evaluations"), [(Tape(), 24), (Checkpoint(), 32), (Reversible(), 24)]
)
def test_recordings_keep_one_graph_at_a_time(adjoint: Adjoint, evaluations: int) -> None:
    problem = mp.gpt2()
    alive = []
    most = 0

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        nonlocal most
        most = max(most, sum(ref() is not None for ref in alive))
        loss = problem.inner_loss(params, inputs, step)
        alive.append(weakref.ref(loss))
        return loss

    loss = outer_loss(
        unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=12, adjoint=adjoint)
    )
    loss.backward()
    assert len(alive) == evaluations
    assert most == 0, "when a step is evaluated, the graphs of all others are gone"


BAD_INPUT = {
    "loss": (
        {"inner_loss": None},
        TypeError,
        r"^inner_loss must be a function, got None; pass inner_loss\(params, inputs, step\)",
    ),
    "steps": ({"steps": 2.5}, ValueError, r"steps must be an integer >= 1, got 2\.5"),
    "window beyond steps": (
        {"window": 4},
        ValueError,
        r"window .* from 1 to steps=3, got 4; None means all",
    ),
    "module": ({"params": nn.Linear(1, 1)}, TypeError, r"params must be a dict .* got Linear"),
    "module of several lines": (
        {"params": nn.Sequential(nn.Linear(1, 1), nn.Tanh())},
        TypeError,
        r"^params must be a dict of tensors, got Sequential; pass dict\(module",
    ),
    "nothing trains": (
        {"params": {"n": torch.arange(2)}},
        ValueError,
        r"params has no tensor to train.*requires_grad=True",
    ),
    "complex": (
        {
            "params": {
                "w": torch.ones(2),
                "c": torch.ones(1, dtype=torch.cfloat, requires_grad=True),
            }
        },
        ValueError,
        r"params\['c'\] is torch.complex64, in which",
    ),
    "half": (
        {"params": {"w": torch.ones(2, dtype=torch.float16)}},
        ValueError,
        r"params\['w'\] is torch.float16, in which squares of gradients vanish .*; train float32",
    ),
    "bare input": (
        {"inputs": torch.ones(2)},
        TypeError,
        r"inputs must be a tuple of tensors, got tensor.*pass \(x,\)",
    ),
    "torch optimizer": (
        {"optimizer": torch.optim.Adam},
        TypeError,
        r"optimizer must .* got <class .*Adam'>.*InnerAdam",
    ),
    "compile mode": (
        {"torch_compile": "reduce-overheads"},
        ValueError,
        r"torch_compile='reduce-overheads' is unknown; .* reduce-overhead, max",
    ),
    "adjoint name": (
        {"adjoint": "tape"},
        TypeError,
        r"adjoint must be an Adjoint or None, got 'tape'.*Tape\(\)",
    ),
    "vector loss": (
        {"inner_loss": lambda p, i, s: p["w"]},
        ValueError,
        r"inner_loss .* of shape \(2,\) at step 1",
    ),
    "detached": (
        {"inner_loss": lambda p, i, s: p["w"].detach().sum()},
        ValueError,
        r"inner_loss .*without detach",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_clear_error(case: str) -> None:
    change, error, message = BAD_INPUT[case]
    good = {
        "inner_loss": lambda params, inputs, step: (params["w"] * inputs[0]).square().sum(),
        "params": {"w": torch.ones(2)},
        "inputs": (torch.ones(2, requires_grad=True),),
        "optimizer": ADAM,
        "steps": 3,
    }
    assert unroll(**good)["w"].requires_grad
    with pytest.raises(error, match=message):
        unroll(**(good | change))


@every_adjoint
def test_tensors_without_elements_and_counts_of_numpy_are_fine(adjoint: Adjoint) -> None:
    params = {
        "w": torch.ones(2, requires_grad=True),
        "none": torch.zeros(0, dtype=torch.float64, requires_grad=True),
    }
    x = torch.ones(2, requires_grad=True)

    def loss(params: dict, inputs: tuple, step: int) -> Tensor:
        return (params["w"] * inputs[0]).square().sum()

    theta = unroll(loss, params, (x,), optimizer=ADAM, steps=np.int64(3), adjoint=adjoint)
    assert theta["none"].shape == (0,)
    assert torch.autograd.grad(theta["w"].sum(), x)[0].all()


def test_a_loss_without_second_derivatives_is_an_error_with_its_remedy() -> None:
    """Fused attention is such a loss, and the default of models of transformers."""
    start = {"tokens": torch.randn(1, 2, 6, 8, requires_grad=True)}

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        tokens = params["tokens"]
        return nn.functional.scaled_dot_product_attention(tokens, tokens, tokens).square().mean()

    trained = unroll(inner_loss, start, (), optimizer=ADAM, steps=2, adjoint=Tape())
    with pytest.raises(RuntimeError, match=r'second derivative.*attn_implementation="eager"'):
        trained["tokens"].sum().backward()


@pytest.mark.parametrize("is_pure", [True, False])
def test_a_tape_warns_of_a_loss_that_is_not_pure(is_pure: bool, caplog) -> None:
    rows = torch.randn(20, 3)

    def inner_loss(params: dict, inputs: tuple, step: int) -> Tensor:
        generator = torch.Generator().manual_seed(step) if is_pure else None
        chosen = torch.randint(20, (4,), generator=generator)
        return (rows[chosen] @ params["w"] - 1).square().mean()

    start = {"w": torch.zeros(3, requires_grad=True)}
    trained = unroll(inner_loss, start, (), optimizer=ADAM, steps=5, adjoint=Tape())
    trained["w"].sum().backward()
    assert ("module.eval()" in caplog.text) == (not is_pure)
