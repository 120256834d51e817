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
    unroll,
)


@pytest.mark.parametrize(
    ("optimizer", "room", "expected"),
    [
        (ADAM, 1e9, "GradientGraphs"),
        (ADAM, 1e5, "Tape"),
        (ADAM, 1.2e4, "Reversible"),
        (InnerSGD(lr=0.1), 1.2e4, "Checkpoint"),
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
    monkeypatch.setitem(
        unroll.__globals__, "ADJOINTS", {kind.__name__: kind for kind in kinds}
    )  # whatever else there is
    monkeypatch.setitem(unroll.__globals__, "_total_memory", lambda device: 4 * room)
    unroll.__globals__["_log_once"].cache_clear()
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
