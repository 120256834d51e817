"""Without an adjoint the fastest one is taken that there is room for."""

from __future__ import annotations

import meta_problems as mp
import pytest
import torch
from adjoint_checks import meta_gradient
from meta_problems import ADAM

from farzi_hf.engine import (
    Checkpoint,
    Direct,
    GradientGraphs,
    InnerOptimizer,
    InnerSGD,
    PaperAdam,
    Reversible,
    Tape,
    choice,
    unroll,
)


@pytest.mark.parametrize(
    ("optimizer", "room", "expected"),
    [
        (ADAM, 1e9, "GradientGraphs"),
        (ADAM, 2e5, "Tape"),
        (ADAM, 1e4, "Reversible"),
        (InnerSGD(lr=0.1), 1e4, "Checkpoint"),
        (PaperAdam(lr=0.1), 1e9, "GradientGraphs"),
        (ADAM, 10, "Reversible"),
    ],
)
def test_without_an_adjoint_the_fastest_that_fits_is_taken(
    optimizer: InnerOptimizer,
    room: float,
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    kinds = (GradientGraphs, Direct, Tape, Reversible, Checkpoint)
    monkeypatch.setattr(choice, "ADJOINTS", {kind.__name__: kind for kind in kinds})  # whatever else there is
    monkeypatch.setattr(choice, "_total_memory", lambda device: 4 * room)
    choice._log_once.cache_clear()
    problem = mp.mlp()
    with caplog.at_level("INFO"):
        found = meta_gradient(problem, optimizer, 40)
        unroll(*problem.arguments, optimizer=optimizer, steps=40)
    (record,) = caplog.records
    assert record.levelname == ("WARNING" if room == 10 else "INFO")
    assert record.message.startswith(f"adjoint={expected}(")
    assert "estimates: " in record.message
    adjoint = {kind.__name__: kind() for kind in kinds}[expected]
    assert all(map(torch.equal, found, meta_gradient(problem, optimizer, 40, adjoint=adjoint)))


def test_a_long_list_does_not_hide_what_comes_after_it() -> None:
    problem, seen = mp.mlp(), []

    def measured(width: int) -> object:
        batches, net = list(range(5000)), {"width": width}

        def inner_loss(params: dict, inputs: tuple, step: int) -> torch.Tensor:
            seen.append(torch.zeros(net["width"]).sum() * len(batches))
            return problem.inner_loss(params, inputs, step)

        return choice._Key().of((inner_loss,))

    assert measured(10) == measured(10) != measured(20)


def test_what_a_loss_holds_many_times_is_followed_once() -> None:
    """Followed along every path, this list would have 2^60 parts."""
    nested: list = []
    for _ in range(60):
        nested = [nested, nested]
    problem = mp.mlp()

    def inner_loss(params: dict, inputs: tuple, step: int) -> torch.Tensor:
        return problem.inner_loss(params, inputs, step) * len(nested)

    assert unroll(inner_loss, *problem.arguments[1:], optimizer=ADAM, steps=2)["in"].requires_grad
