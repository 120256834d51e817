"""No call of `unroll` leaves memory behind, and an adjoint is chosen by estimates that are roughly
right.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import meta_problems as mp
import psutil
import pytest
import torch
from adjoint_checks import meta_gradient
from live_bytes import LiveBytes
from meta_problems import ADAM
from torch import Tensor

from farzi_hf import engine
from farzi_hf.engine import (
    Adjoint,
    Checkpoint,
    InnerAdam,
    InnerOptimizer,
    InnerSGD,
    Reversible,
    Tape,
    unroll,
)
from farzi_hf.engine.adjoints.base import graph_bytes
from farzi_hf.engine.inner_loop import InnerLoop, Layout

ROWS = 32
WIDTH = 256
GRAPH = 5 * ROWS * WIDTH * 4  # bytes, at least, that autograd keeps of a step of the loss below


def _loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
    return -(inputs[0] @ params["w"]).softmax(-1).square().sum()


def _growth(calls: int, adjoint: Adjoint | None, torch_compile: bool = False) -> int:
    """Bytes by which the process grows in so many calls, after ten."""
    x = torch.randn(ROWS, 64, requires_grad=True)
    process = psutil.Process()
    options = {
        "optimizer": InnerAdam(lr=0.01),
        "steps": 2,
        "adjoint": adjoint,
        "torch_compile": torch_compile,
    }
    for call in range(10 + calls):
        if call == 10:
            before = process.memory_info().rss
        unroll(_loss, {"w": torch.zeros(64, WIDTH)}, (x,), **options)["w"].square().sum().backward()
    gc.collect()
    return process.memory_info().rss - before


ADJOINTS = [None, *(kind() for kind in engine.ADJOINTS.values())]


@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
@pytest.mark.parametrize(
    ("calls", "torch_compile"),
    [
        (50, False),
        pytest.param(1000, False, marks=pytest.mark.slow),
        pytest.param(1000, True, marks=pytest.mark.slow),
    ],
)
def test_many_calls_use_the_memory_of_ten(
    calls: int, torch_compile: bool, adjoint: Adjoint | None
) -> None:
    if torch_compile and adjoint and adjoint.needs_graphs:
        pytest.skip("it keeps graphs, which compiled code does without")
    assert _growth(calls, adjoint, torch_compile) < calls * GRAPH / (5 if calls == 50 else 10)


@pytest.mark.parametrize("steps", [4, 12])
@pytest.mark.parametrize(
    "adjoint", [kind() for kind in engine.ADJOINTS.values() if kind.share], ids=repr
)
@pytest.mark.parametrize(
    "rows", [2, 32, 128], ids=["large weights", "as large activations", "large activations"]
)
def test_the_estimated_memory_is_roughly_right(adjoint: Adjoint, rows: int, steps: int) -> None:
    x = torch.randn(rows, 32, requires_grad=True)
    w = {"w": torch.randn(32, 1024, requires_grad=True)}
    optimizer = InnerAdam(lr=0.01, weight_decay=0.1)
    layout = Layout.of(w, optimizer)
    loop = InnerLoop(_loss, optimizer, layout, steps, steps, 1, {})
    flat = layout.flatten(w)
    estimate = adjoint.memory(loop, flat, (x,), graph_bytes(loop, flat, (x,)))
    with LiveBytes() as used:
        theta = unroll(_loss, w, (x,), optimizer=optimizer, steps=steps, adjoint=adjoint)
        theta["w"].sum().backward()
    assert 0.55 <= estimate / used.peak <= 1.25


@pytest.mark.parametrize(
    ("optimizer", "room", "expected"),
    [
        (ADAM, 1e9, "GradientGraphs"),
        (ADAM, 1e5, "Tape"),
        (ADAM, 1.2e4, "Reversible"),
        (InnerSGD(lr=0.1), 1.2e4, "Checkpoint"),
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
    known = {
        name: engine.ADJOINTS[name]
        for name in ("gradient_graphs", "tape", "reversible", "checkpoint")
    }
    monkeypatch.setitem(unroll.__globals__, "ADJOINTS", known)  # whatever else there is
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=4 * room))
    unroll.__globals__["_log_once"].cache_clear()
    problem = mp.mlp()
    with caplog.at_level("INFO"):
        found = meta_gradient(problem, optimizer, 40)
        unroll(*problem.arguments, optimizer=optimizer, steps=40)
    (record,) = caplog.records
    assert record.levelname == ("WARNING" if room == 10 else "INFO")
    assert record.message.startswith(f"adjoint={expected}(")
    assert "estimates: " in record.message
    adjoint = getattr(engine, expected)()
    assert all(map(torch.equal, found, meta_gradient(problem, optimizer, 40, adjoint=adjoint)))


class Fast(Tape):
    """Needs the bytes of a test."""

    bytes_needed = 0

    def memory(self, *_: object) -> int:
        return self.bytes_needed


class Lean(Tape):
    """Needs a hundred bytes."""

    def memory(self, *_: object) -> int:
        return 100


@pytest.mark.parametrize(("need", "of_many"), [(400, "Fast"), (401, "Lean")])
def test_for_many_losses_a_faster_adjoint_may_need_four_times_the_memory_of_the_leanest(
    need: int, of_many: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Fast, "bytes_needed", need)
    monkeypatch.setitem(unroll.__globals__, "ADJOINTS", {"fast": Fast, "lean": Lean})
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(total=10_000))
    unroll.__globals__["_log_once"].cache_clear()
    problem = mp.mlp()
    settings = {"optimizer": ADAM, "steps": 2}
    with caplog.at_level("INFO"):
        engine.gradients(lambda theta: [mp.outer_loss(theta)], *problem.arguments, **settings)
        unroll(*problem.arguments, **settings)
    chosen = [record.message.partition("(")[0] for record in caplog.records]
    assert chosen == [f"adjoint={of_many}", "adjoint=Fast"], "the bound is for many losses alone"


@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(), Reversible()], ids=repr)
def test_parts_of_a_loss_take_the_memory_of_one(adjoint: Adjoint) -> None:
    """Two graphs of eight: a part's, and its derivative's."""
    inputs = tuple(torch.randn(8, 256, 32, requires_grad=True))
    w = {"w": torch.randn(32, 256, requires_grad=True)}

    def parts(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Iterator[Tensor]:
        return (_loss(params, (x,), step) for x in inputs)

    def peak(loss: Callable) -> int:
        with LiveBytes() as used:
            theta = unroll(loss, w, inputs, optimizer=ADAM, steps=3, adjoint=adjoint)
            theta["w"].sum().backward()
        return used.peak

    assert peak(parts) < 0.5 * peak(lambda *args: sum(parts(*args)))
