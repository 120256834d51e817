"""The engine beside plain autograd and torch.utils.checkpoint, on any device, with torch alone: no
transformers, no data, no network.

    python recipes/benchmark/gpu_engine.py results.jsonl --device cuda        # again and again until it says that all is measured

A row of the file is a method at one T: seconds of a meta-gradient (the fastest of three), peak
memory (of a GPU), and the error against `Tape` in float64. A row that is there is not measured
again. The problem is like that of `benchmark.py`: a Transformer of one layer learns a summary of
soft tokens, and the outer loss is the cross-entropy of fixed ids.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from farzi_hf.engine import (
    Adjoint,
    Checkpoint,
    GradientGraphs,
    InnerAdam,
    Reversible,
    Tape,
    compiled_loop,
    unroll,
)

ADAM = InnerAdam(lr=0.01, eps=1e-4)
Params = dict[str, Tensor]


class Problem:
    """A start, a summary (μ, ξ, d) with its decoder (d, V), and ids (b, ξ) of the outer loss, all
    drawn on the CPU.
    """

    def __init__(self, size: argparse.Namespace, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(0)

        def normal(*shape: int, scale: float = 0.1) -> Tensor:
            return (scale * torch.randn(*shape, generator=generator)).to(size.device, dtype)

        h = size.width
        n = size.vocabulary
        self.start = {
            "embedding": normal(n, h),
            "positions": normal(size.length, h),
            "qkv": normal(h, 3 * h),
            "mix": normal(h, h),
            "up": normal(h, 4 * h),
            "down": normal(4 * h, h),
            "head": normal(n, h),
        }
        self.summary = (
            normal(size.sequences, size.length, 8, scale=0.5).requires_grad_(),
            normal(8, n).requires_grad_(),
        )
        self.ids = torch.randint(n, (64, size.length), generator=generator).to(size.device)
        self.later = torch.ones(
            size.length, size.length, device=size.device, dtype=torch.bool
        ).triu(1)

    def logits(self, p: Params, x: Tensor) -> Tensor:
        x = x + p["positions"]
        q, k, v = (F.layer_norm(x, x.shape[-1:]) @ p["qkv"]).chunk(3, -1)
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(self.later, -torch.inf)
        x = x + scores.softmax(-1) @ v @ p["mix"]
        x = x + F.gelu(F.layer_norm(x, x.shape[-1:]) @ p["up"], approximate="tanh") @ p["down"]
        return F.layer_norm(x, x.shape[-1:]) @ p["head"].T

    def loss(self, p: Params, inputs: tuple[Tensor, ...], step: int = 0) -> Tensor:
        """Of the soft tokens, each predicted by those before."""
        latents, decoder = inputs
        q = (latents @ decoder).softmax(-1)
        return (
            -(q[:, 1:] * self.logits(p, q @ p["embedding"])[:, :-1].log_softmax(-1)).sum(-1).mean()
        )

    def gradient(self, method: Method, steps: int) -> Tensor:
        """Of the outer loss in the summary, as one vector."""
        theta = method(self, steps)
        logits = self.logits(theta, theta["embedding"][self.ids])[:, :-1]
        loss = F.cross_entropy(logits.flatten(0, 1), self.ids[:, 1:].flatten())
        for x in self.summary:
            x.grad = None
        loss.backward()  # torch.utils.checkpoint has no other way
        return torch.cat([x.grad.flatten() for x in self.summary])


Method = Callable[[Problem, int], Params]


def ours(adjoint: Adjoint, torch_compile: bool | str, problem: Problem, steps: int) -> Params:
    how = {"optimizer": ADAM, "steps": steps, "adjoint": adjoint, "torch_compile": torch_compile}
    return unroll(problem.loss, problem.start, problem.summary, **how)


def loop(recomputed: bool, problem: Problem, steps: int) -> Params:
    """The loop that a user would write; each step recomputed on the way back, if asked for."""
    names = list(problem.start)
    count = len(problem.start)

    def step(t: int, latents: Tensor, decoder: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        w = state[:count]
        m = state[count : 2 * count]
        v = state[2 * count :]
        graph = torch.is_grad_enabled()
        with torch.enable_grad():
            w = w if graph else [x.detach().requires_grad_() for x in w]
            loss = problem.loss(dict(zip(names, w, strict=True)), (latents, decoder))
            g = torch.autograd.grad(loss, w, create_graph=graph)
        each = [
            ADAM.step(s, d, t, ADAM.lr) for s, d in zip(zip(w, m, v, strict=True), g, strict=True)
        ]
        return tuple(x for part in zip(*each, strict=True) for x in part)

    w = [x.clone().requires_grad_() for x in problem.start.values()]
    state = (*w, *(torch.zeros_like(x) for x in w * 2))
    for t in range(1, steps + 1):
        run = partial(checkpoint, step, use_reentrant=True) if recomputed else step
        state = run(t, *problem.summary, *state)
    return dict(zip(names, state, strict=False))


METHODS: dict[str, Method] = {
    "autograd": partial(loop, False),
    "torch.utils.checkpoint": partial(loop, True),
    **{
        type(a).__name__: partial(ours, a, False)
        for a in (GradientGraphs(), Tape(), Checkpoint(), Reversible())
    },
    **{f"{type(a).__name__}, compiled": partial(ours, a, True) for a in (Tape(), Reversible())},
    **{
        f"{type(a).__name__}, captured": partial(ours, a, "reduce-overhead")
        for a in (Tape(), Reversible())
    },
}


def measured(method: Method, size: argparse.Namespace, steps: int) -> dict[str, float]:
    """Seconds, peak bytes and error of one method."""
    problem = Problem(size, torch.float32)
    is_gpu = size.device == "cuda"
    wait = torch.cuda.synchronize if is_gpu else lambda: None
    problem.gradient(method, 2)  # the first time, kernels are loaded and compiled
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated() if is_gpu else 0
    seconds = []
    while len(seconds) < 3 and sum(seconds) < 60:
        wait()
        started = time.perf_counter()
        found = problem.gradient(method, steps)
        wait()
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() - before if is_gpu else None
    expected = Problem(size, torch.float64).gradient(METHODS["Tape"], steps)
    error = float((found.double() - expected).norm() / expected.norm())
    return {"seconds": min(seconds), "peak_bytes": peak, "error": error}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="file of rows, which is added to")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--steps", type=int, nargs="+", default=[50, 100, 400], help="values of T")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument(
        "--minutes", type=float, default=7.0, help="no row is begun later than this"
    )
    for name, default in (("sequences", 50), ("length", 50), ("vocabulary", 2000), ("width", 32)):
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    until = time.monotonic() + 60 * args.minutes
    rows = (
        [json.loads(line) for line in args.results.read_text().splitlines()]
        if args.results.exists()
        else []
    )
    where = torch.cuda.get_device_name() if args.device == "cuda" else "CPU"
    sizes = {name: getattr(args, name) for name in ("sequences", "length", "vocabulary", "width")}
    for steps in args.steps:
        for name in args.methods:
            key = {
                "method": name,
                "steps": steps,
                "device": where,
                "torch": torch.__version__,
                **sizes,
            }
            if any(key.items() <= row.items() for row in rows):
                continue
            if time.monotonic() > until:
                sys.exit("gpu_engine.py: not all is measured yet, call it again")
            try:
                row = measured(METHODS[name], args, steps)
            except (
                RuntimeError,
                torch.OutOfMemoryError,
            ) as error:  # out of memory, or not compiled: a row, too
                row = {
                    "failed": (
                        f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')[:200]}"
                    )
                }
            if "captured" in name:
                row["graphs_left_out"] = (
                    len(compiled_loop._FAILED)
                    + torch._dynamo.utils.counters["inductor"]["cudagraph_skips"]
                )
            with args.results.open("a") as file:
                print(json.dumps({**key, **row}), file=file, flush=True)
            print(name, steps, row, flush=True)


if __name__ == "__main__":
    main()
