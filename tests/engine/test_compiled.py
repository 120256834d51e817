"""Compiled steps give the same gradient."""

from __future__ import annotations

import meta_problems as mp
import pytest
import torch
from adjoint_checks import assert_exact, meta_gradient, reference
from meta_problems import ADAM, OPTIMIZERS, PROBLEMS

from farzi_hf.engine import Adjoint, Checkpoint, Direct, Reversible, Tape, unroll


@pytest.mark.slow
@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("default")
def test_compiled_steps_give_the_same_gradient_and_are_compiled_once() -> None:
    name, stats = "adamw_clipped", torch._dynamo.utils.counters["stats"]
    for steps, adjoint in ((7, Tape()), (9, Reversible())):
        problem, compiled = mp.mlp(), stats["unique_graphs"]  # another loss function, of the same code, every time
        found = meta_gradient(problem, OPTIMIZERS[name], steps, adjoint=adjoint, torch_compile=True)
        assert_exact(problem, found, reference("mlp", name, steps), adjoint)
    assert compiled, "there was something to compile"
    twice = torch.__version__.startswith("2.8.")  # it compiles one part of the first training twice
    assert stats["unique_graphs"] <= compiled + twice, "other tensors and more steps need no new code"


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
    with pytest.raises(ValueError, match=r"adjoint=Direct\(\) needs autograd's graphs.*torch_compile=True.*Tape\(\)"):
        unroll(*mp.mlp().arguments, optimizer=ADAM, steps=2, adjoint=Direct(), torch_compile=True)
