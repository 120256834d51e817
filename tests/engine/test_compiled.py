"""Compiled steps give the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import meta_problems as mp
import pytest
import torch
from adjoint_checks import assert_exact, meta_gradient, reference
from meta_problems import ADAM, OPTIMIZERS, PROBLEMS
from torch import Tensor

from farzi_hf.engine import Adjoint, Checkpoint, Direct, Reversible, Tape, compiled_loop, unroll
from farzi_hf.engine.compiled_loop import CompiledLoop, row_of_step


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_steps_give_the_same_gradient_and_are_compiled_once() -> None:
    name = "adamw_clipped"
    stats = torch._dynamo.utils.counters["stats"]
    for steps, adjoint in ((7, Tape()), (9, Reversible())):
        problem = mp.mlp()  # another loss function, of the same code, every time
        compiled = stats["unique_graphs"]
        found = meta_gradient(problem, OPTIMIZERS[name], steps, adjoint=adjoint, torch_compile=True)
        assert_exact(problem, found, reference("mlp", name, steps), adjoint)
    assert compiled, "there was something to compile"
    twice = torch.__version__.startswith("2.8.")  # it compiles one part of the first training twice
    assert stats["unique_graphs"] <= compiled + twice, (
        "other tensors and more steps need no new code"
    )


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(slots=3), Reversible()])
def test_a_compiled_network(adjoint: Adjoint) -> None:
    problem = PROBLEMS["gpt2"]()
    found = meta_gradient(problem, ADAM, 7, adjoint=adjoint, torch_compile=True)
    assert_exact(problem, found, reference("gpt2", "adam", 7), adjoint)


def test_direct_cannot_be_compiled() -> None:
    with pytest.raises(
        ValueError,
        match=r"adjoint=Direct\(\) needs autograd's graphs.*torch_compile=True.*Tape\(\)",
    ):
        unroll(*mp.mlp().arguments, optimizer=ADAM, steps=2, adjoint=Direct(), torch_compile=True)


# -- a mode of torch.compile, as for CUDA graphs ---------------------------------------------------


def table_problem() -> mp.MetaProblem:
    """Its loss reads the rows of a step from a table, as `torch_compile="reduce-overhead"` asks
    for.
    """
    problem = mp.mlp()
    x, y, _ = problem.inputs
    rows = torch.randint(len(x), (7, 4), generator=torch.Generator().manual_seed(0))

    def inner_loss(
        params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int | Tensor
    ) -> Tensor:
        chosen = row_of_step(rows, step)
        hidden = torch.tanh(inputs[0][chosen] @ params["in"] + params["bias"]) * params["frozen"]
        return (hidden @ params["out"] - inputs[1][chosen]).square().mean()

    return mp.MetaProblem(inner_loss, problem.params, (x, y))


ways = pytest.mark.parametrize(
    ("name", "adjoint"),
    [("adamw_clipped", Tape()), ("adam", Reversible()), ("sgd_momentum", Checkpoint(slots=2))],
)


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Those that are asked for, of each call. Nothing is compiled, because to import the compiler
    takes seconds; "lite" fails.
    """

    def call(loop: CompiledLoop, function: Callable, *args: Any, mode: str | None = None) -> Any:
        asked.append(mode)
        if mode == "lite":
            raise RuntimeError("no capture\nand why")
        return function(loop.inner_loss, loop.layout, *args)

    asked: list[str | None] = []
    monkeypatch.setattr(CompiledLoop, "_call", call)
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: None)
    monkeypatch.setattr(compiled_loop, "_FAILED", set())
    return asked


@ways
def test_a_mode_is_passed_on_and_gives_the_same_gradient(
    name: str, adjoint: Adjoint, modes: list
) -> None:
    problem = table_problem()
    expected = table_problem()
    found = meta_gradient(
        problem, OPTIMIZERS[name], 7, adjoint=adjoint, torch_compile="reduce-overhead"
    )
    assert_exact(
        problem, found, meta_gradient(expected, OPTIMIZERS[name], 7, adjoint=Tape()), adjoint
    )
    assert set(modes) == {"reduce-overhead"}


def test_a_mode_that_fails_is_said_once_and_steps_go_on_without_it(
    modes: list, caplog: pytest.LogCaptureFixture
) -> None:
    problem = table_problem()
    expected = table_problem()
    found = meta_gradient(problem, ADAM, 7, adjoint=Tape(), torch_compile="lite")
    assert_exact(problem, found, meta_gradient(expected, ADAM, 7, adjoint=Tape()), Tape())
    (record,) = caplog.records
    assert record.getMessage() == "torch_compile='lite' failed, steps go on without it: no capture"
    assert modes.count("lite") == 1


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
@ways
def test_steps_compiled_in_a_mode(name: str, adjoint: Adjoint) -> None:
    problem = table_problem()
    expected = table_problem()
    found = meta_gradient(
        problem, OPTIMIZERS[name], 7, adjoint=adjoint, torch_compile="reduce-overhead"
    )
    assert_exact(
        problem, found, meta_gradient(expected, OPTIMIZERS[name], 7, adjoint=Tape()), adjoint
    )
    assert not compiled_loop._FAILED
