"""No call of `unroll` leaves memory behind, the choice of an adjoint measures a step once, and its estimates are right."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import psutil
import pytest
import torch
from torch import Tensor

from farzi_hf import Direct, GradientGraphs, InnerAdam, engine, unroll
from farzi_hf.engine import Adjoint, Tape, choice
from farzi_hf.engine.inner_loop import CHUNK, InnerLoop
from farzi_hf.engine.layout import Layout
from farzi_hf.engine.step_memory import LiveBytes

ROWS, WIDTH = 32, 256
GRAPH = 5 * ROWS * WIDTH * 4  # bytes, at least, that autograd keeps of a step of the loss below


def _loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
    return -(inputs[0] @ params["w"]).softmax(-1).square().sum()


def _call(loss: Callable, adjoint: Adjoint | None, x: Tensor, torch_compile: bool = False) -> None:
    params = {"w": torch.zeros(x.shape[1], WIDTH)}
    theta = unroll(
        loss, params, (x,), optimizer=InnerAdam(lr=0.01), steps=2, adjoint=adjoint, torch_compile=torch_compile
    )
    theta["w"].square().sum().backward()


def _growth(calls: int, adjoint: Adjoint | None, torch_compile: bool = False) -> int:
    """Bytes by which the process grows in so many calls, after ten."""
    x = torch.randn(ROWS, 64, requires_grad=True)
    process = psutil.Process()
    for _ in range(10):
        _call(_loss, adjoint, x, torch_compile)
    before = process.memory_info().rss
    for _ in range(calls):
        _call(_loss, adjoint, x, torch_compile)
    gc.collect()
    return process.memory_info().rss - before


ADJOINTS = [None, *(kind() for kind in engine.ADJOINTS.values())]


@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
def test_a_hundred_calls_use_the_memory_of_ten(adjoint: Adjoint | None) -> None:
    assert _growth(100, adjoint) < 100 * GRAPH / 5


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # the compiler's own
@pytest.mark.parametrize("torch_compile", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("adjoint", ADJOINTS, ids=repr)
def test_a_thousand_calls_use_the_memory_of_ten(adjoint: Adjoint | None, torch_compile: bool) -> None:
    if torch_compile and isinstance(adjoint, (Direct, GradientGraphs)):
        pytest.skip("they keep graphs, which compiled code does without")
    assert _growth(1_000, adjoint, torch_compile) < 1_000 * GRAPH / 10


@pytest.mark.parametrize("steps", [4, 30])
@pytest.mark.parametrize("adjoint", ADJOINTS[1:], ids=repr)
@pytest.mark.parametrize("rows", [2, 64], ids=["large weights", "large activations"])
def test_the_estimated_memory_is_right_within_a_fifth(adjoint: Adjoint, rows: int, steps: int) -> None:
    x, w, optimizer = torch.randn(rows, 64, requires_grad=True), {"w": torch.randn(64, 2048)}, InnerAdam(lr=0.01)
    layout = Layout.of(w)
    loop = InnerLoop(_loss, optimizer, layout, steps, steps, 1, {})
    flat = layout.flatten(w)
    estimate = adjoint.memory(loop, flat, (x,), loop.step_memory(flat, (x,)))
    with LiveBytes() as used:
        theta = unroll(_loss, w, (x,), optimizer=optimizer, steps=steps, adjoint=adjoint)
        theta["w"].sum().backward()
    assert 0.8 <= estimate / used.peak <= 1.25


def test_updates_that_a_tape_repeats_need_no_temporaries_as_large_as_the_parameters() -> None:
    n, optimizer = 8 * CHUNK, InnerAdam(lr=0.01)
    loop = InnerLoop(_loss, optimizer, Layout.of({"w": torch.zeros(1)}), 1, 1, 1, {})
    states, g = (optimizer.init(torch.randn(n)),), (torch.randn(n),)
    with LiveBytes() as used:
        after = loop.updated(states, g, 1)
    assert used.peak <= 4 * (optimizer.fields * n + 6 * CHUNK)
    assert all(map(torch.equal, after[0], loop.update(states, g, 1)[0]))


def _counted(rows: int) -> tuple[Callable, list[int]]:
    """A loss made anew, which captures a batch size and a list, and the steps at which it was evaluated."""
    steps: list[int] = []

    def loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
        steps.append(step)
        return _loss(params, (inputs[0][:rows],), step)

    return loss, steps


def test_the_step_of_a_loss_is_measured_once() -> None:
    x = torch.randn(ROWS, 64, requires_grad=True)
    evaluations = []
    for rows in (30, 30, 31, 30):
        loss, steps = _counted(rows)
        _call(loss, None, x)
        evaluations.append(len(steps))
    first, second, other, again = evaluations
    assert first == other == second + 2, "a new step is measured by two evaluations"
    assert again == second, "a graph that is known is not"


def test_what_is_made_anew_for_each_training_is_no_other_step() -> None:
    """The schedule of another number of steps, and a partial function."""
    x, evaluations = torch.randn(ROWS, 64, requires_grad=True), []
    for steps in (10, 20):
        loss, taken = _counted(29)
        optimizer = InnerAdam(lr=0.01, lr_schedule=partial(lambda steps, step: 1 - step / steps, steps))
        unroll(partial(loss), {"w": torch.zeros(64, WIDTH)}, (x,), optimizer=optimizer, steps=2)
        evaluations.append(len(taken))
    first, again = evaluations
    assert first == again + 2


def test_a_loss_may_capture_itself() -> None:
    def loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
        loss.calls += 1
        return _loss(params, inputs, step)

    loss.calls = 0
    _call(loss, None, torch.randn(ROWS, 64, requires_grad=True))
    assert loss.calls > 0


def test_what_was_measured_keeps_nothing_alive() -> None:
    class Model:
        pass

    model = Model()
    gone = weakref.ref(model)

    def loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int, model: Model = model) -> Tensor:
        return _loss(params, inputs, step)

    _call(loss, None, torch.randn(ROWS, 64, requires_grad=True))
    del model, loss
    gc.collect()
    assert gone() is None


def _of_mapping(n: int):
    data = {"x": torch.ones(n, 64)}
    return lambda params, inputs, step: _loss(params, inputs, step) + (data["x"] @ params["w"]).square().sum()


def _of_list(n: int):
    data = [torch.ones(n, 64)]
    return lambda params, inputs, step: _loss(params, inputs, step) + (data[0] @ params["w"]).square().sum()


_GLOBAL = torch.ones(1, 64)


def _of_global(n: int):
    global _GLOBAL
    _GLOBAL = torch.ones(n, 64)
    return lambda params, inputs, step: _loss(params, inputs, step) + (_GLOBAL @ params["w"]).square().sum()


@pytest.mark.parametrize("make", [_of_mapping, _of_list, _of_global])
def test_a_loss_with_other_data_in_it_is_measured_anew(make: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice, "_MEASURED", {})
    for n in (1, 10_000):
        _call(make(n), None, torch.randn(ROWS, 64, requires_grad=True))
    small, large = (step.peak for step in choice._MEASURED.values())
    assert large > 10 * small


@pytest.mark.parametrize("value", [torch.eye(3).to_sparse(), np.array(3.0), "unset cell", "unset field"])
def test_whatever_a_loss_captures_can_be_measured(value) -> None:
    @dataclass
    class Holder:
        held: object = field(init=False)
        itself: object = None

    holder = Holder()
    holder.itself = holder
    if not isinstance(value, str):
        holder.held = value

    def loss(params: dict[str, Tensor], inputs: tuple[Tensor, ...], step: int) -> Tensor:
        if step < 0:
            return later
        extra = torch.sparse.mm(value, params["w"][:3]).sum() if isinstance(value, Tensor) else 0
        return _loss(params, inputs, step) + extra + (0 if holder.itself is holder else 1)

    _call(loss, None, torch.randn(ROWS, 64, requires_grad=True))
    later = None


def test_the_estimate_is_right_with_weight_decay() -> None:
    """The optimizer's own reverse step makes no graph in a backward pass, so none may be counted."""
    x, w = torch.randn(2, 64, requires_grad=True), {"w": torch.randn(64, 2048, requires_grad=True)}
    optimizer, layout = InnerAdam(lr=0.01, weight_decay=0.1), Layout.of(w)
    loop = InnerLoop(_loss, optimizer, layout, 4, 4, 1, {})
    flat = layout.flatten(w)
    estimate = Tape().memory(loop, flat, (x,), loop.step_memory(flat, (x,)))
    with LiveBytes() as used:
        unroll(_loss, w, (x,), optimizer=optimizer, steps=4, adjoint=Tape())["w"].sum().backward()
    assert 0.8 <= estimate / used.peak <= 1.25
