"""What the tests of `unroll` share: the adjoints, a reference, and how exact a meta-gradient has to
be.
"""

from __future__ import annotations

from functools import cache

import meta_problems as mp
import pytest
from meta_problems import OPTIMIZERS, PROBLEMS, MetaProblem, gradients, outer_loss, relative_error
from torch import Tensor

from farzi_hf import engine
from farzi_hf.engine import (
    Adjoint,
    Checkpoint,
    InnerOptimizer,
    InvertibleOptimizer,
    Reversible,
    unroll,
)

ADJOINTS: dict[str, Adjoint] = {
    **{name: kind() for name, kind in engine.ADJOINTS.items()},
    "three_slots": Checkpoint(slots=3),
    "one_slot": Checkpoint(slots=1),
}
"""All that a config can name, and some with other settings."""
EXACT = 1e-9
CLOSE = 1e-5  # integers round the trajectory to 2^-44

every_adjoint = pytest.mark.parametrize("adjoint", ADJOINTS.values(), ids=ADJOINTS)


def meta_gradient(
    problem: MetaProblem, optimizer: InnerOptimizer, steps: int, **options
) -> list[Tensor]:
    theta = unroll(*problem.arguments, optimizer=optimizer, steps=steps, **options)
    return gradients(outer_loss(theta), problem.leaves)


@cache
def reference(
    name: str, optimizer: str, steps: int, window: int | None = None, first_step: int = 1
) -> list[Tensor]:
    problem = PROBLEMS[name]()
    theta = mp.reference_unroll(problem, OPTIMIZERS[optimizer], steps, window, first_step)
    return gradients(outer_loss(theta), problem.leaves)


def assert_exact(
    problem: MetaProblem, found: list[Tensor], expected: list[Tensor], adjoint: Adjoint
) -> None:
    """In the start and in the inputs separately, so that neither hides behind the other's size."""
    start = sum(x.requires_grad for x in problem.params.values())
    tolerance = CLOSE if isinstance(adjoint, Reversible) else EXACT
    assert relative_error(found[:start], expected[:start]) <= tolerance
    assert relative_error(found[start:], expected[start:]) <= tolerance


def skip_irreversible(optimizer: InnerOptimizer, adjoint: Adjoint) -> None:
    if isinstance(adjoint, Reversible) and not (
        isinstance(optimizer, InvertibleOptimizer) and all(optimizer.decays)
    ):
        pytest.skip("the optimizer keeps nothing to come back from, as SGD without momentum")
