"""The engine on a CUDA device: every adjoint with every optimizer gives the gradients
of the CPU.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache

import fake_cuda
import meta_problems as mp
import pytest
import torch
from adjoint_checks import CLOSE, every_adjoint, skip_irreversible
from meta_problems import OPTIMIZERS, PROBLEMS, gradients, relative_error
from on_device import moved, needs_device

from farzi_hf.engine import Checkpoint, GradientGraphs, Reversible, Tape, train, unroll
from farzi_hf.engine.adjoints.base import graph_bytes
from farzi_hf.engine.compiled_loop import row_of_step
from farzi_hf.engine.unroll import choose_adjoint

pytestmark = needs_device

QUICK = (("gpt2", "adamw_clipped"), ("mlp", "adam"), ("mlp", "sgd_clipped"))
"""Tried by `make test` too; all others by `make test-device` alone."""


def meta_gradient(problem: mp.MetaProblem, optimizer, **how) -> list[torch.Tensor]:
    theta = unroll(*problem.arguments, optimizer=optimizer, **how)
    trained = (x.flatten() for x in theta.values() if x.requires_grad)
    loss = sum(
        (x + torch.arange(len(x), device=x.device, dtype=x.dtype).cos()).square().mean()
        for x in trained
    )
    return gradients(loss, problem.leaves)


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        pytest.param(name, rule, marks=() if (name, rule) in QUICK else pytest.mark.slow)
        for name in PROBLEMS
        for rule in OPTIMIZERS
    ],
)
@every_adjoint
def test_gradients_are_those_of_the_cpu(name, optimizer, adjoint):
    optimizer = OPTIMIZERS[optimizer]
    skip_irreversible(optimizer, adjoint)
    problem = PROBLEMS[name]()
    found = meta_gradient(moved(problem), optimizer, steps=6, window=4, adjoint=adjoint)
    assert all(x.is_cuda for x in found)
    expected = meta_gradient(problem, optimizer, steps=6, window=4, adjoint=Checkpoint())
    assert relative_error([x.cpu() for x in found], expected) <= (
        CLOSE if isinstance(adjoint, Reversible) else 1e-9
    )


@pytest.mark.skipif(
    fake_cuda.is_needed(), reason="the fake device compiles nothing, and has no CUDA graphs"
)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("mode", [True, "reduce-overhead"])
@pytest.mark.parametrize("adjoint", [Tape(), Checkpoint(), Reversible()], ids=repr)
def test_compiled_and_captured_steps_give_the_same_gradient(adjoint, mode, caplog):
    caplog.set_level(logging.WARNING, "farzi_hf")
    problem, optimizer = moved(PROBLEMS["mlp"]()), OPTIMIZERS["adamw_clipped"]
    x, y, order = problem.inputs

    def inner_loss(params, inputs, step):
        rows = row_of_step(order.view(5, 2), step)
        hidden = torch.tanh(inputs[0][rows] @ params["in"] + params["bias"]) * params["frozen"]
        return (hidden @ params["out"] - inputs[1][rows]).square().mean()

    problem = replace(problem, inner_loss=inner_loss, inputs=(x, y))
    found, expected = (
        meta_gradient(problem, optimizer, steps=5, adjoint=adjoint, torch_compile=how)
        for how in (mode, False)
    )
    assert relative_error(found, expected) <= (CLOSE if isinstance(adjoint, Reversible) else 1e-9)
    assert [
        record.getMessage() for record in caplog.records if record.name.startswith("farzi_hf")
    ] == []
    assert torch._dynamo.utils.counters["inductor"]["cudagraph_skips"] == 0


def test_what_costs_nothing_more_on_a_gpu_is_chosen_there(monkeypatch, caplog):
    """Graphs may take a quarter of its memory, and an eighth of a CPU's."""
    problem = moved(mp.mlp())
    loop, w = unroll.__globals__["_loop"](
        *problem.arguments, OPTIMIZERS["adam"], 40, None, 1, False
    )
    need = GradientGraphs().memory(loop, w, problem.inputs, graph_bytes(loop, w, problem.inputs))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 6 * need))
    assert choose_adjoint(loop, w, problem.inputs) == GradientGraphs()
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (0, 3 * need))
    assert choose_adjoint(loop, w, problem.inputs) == Tape()


def test_a_warning_says_once_that_tf32_rounds(monkeypatch, caplog):
    monkeypatch.setitem(
        unroll.__globals__, "_log_once", cache(unroll.__globals__["_log_once"].__wrapped__)
    )
    before, how = (
        torch.get_float32_matmul_precision(),
        {"optimizer": OPTIMIZERS["adam"], "steps": 1},
    )
    train(*moved(mp.mlp()).arguments, **how)
    assert not caplog.records
    try:
        torch.set_float32_matmul_precision("high")
        for _ in range(2):
            train(*moved(mp.mlp()).arguments, **how)
    finally:
        torch.set_float32_matmul_precision(before)
    (record,) = caplog.records
    assert "allow_tf32 = False" in record.getMessage()


def test_a_training_goes_on_where_it_stopped():
    problem, how = moved(mp.mlp()), {"optimizer": OPTIMIZERS["adam"], "steps": 3}
    halves = train(problem.inner_loss, train(*problem.arguments, **how), problem.inputs, **how)
    whole = train(*problem.arguments, **{**how, "steps": 6})
    assert all(torch.equal(x, halves.params[name]) for name, x in whole.params.items())
