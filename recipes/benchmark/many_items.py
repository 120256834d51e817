"""Time of an outer step over a large vocabulary, by default of Amazon Video's size.

    python recipes/benchmark/many_items.py                   # about a minute on one core
    python recipes/benchmark/many_items.py --threads 2

A SASRec trains for T steps on a summary of ids, chosen at random, with labels of their own, and the last steps are differentiated; the
outer loss is that of random histories. Times are processor time and wall-clock time of the forward and of the backward pass, the fastest
of some runs: other work on the machine makes both longer.
"""

from __future__ import annotations

import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

import torch

from farzi_hf.cli.program import keep_freed_memory
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.engine import InnerAdam
from farzi_hf.models import SASRecConfig
from farzi_hf.summary import FarziData, FarziDataConfig

HISTORIES, LATENT_DIM = 128, 1


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each run, and the fastest times."""
    parser = ArgumentParser(description=__doc__, formatter_class=ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    parser.add_argument("--items", type=int, default=23_698)
    parser.add_argument("--sequences", type=int, default=50, help="μ")
    parser.add_argument("--length", type=int, default=20, help="ξ")
    parser.add_argument("--batch", type=int, default=10, help="b_syn")
    parser.add_argument("--steps", type=int, default=100, help="T")
    parser.add_argument("--window", type=int, default=40, help="steps that are differentiated")
    parser.add_argument("--hidden", type=int, default=16, help="h; labels have h + 1 numbers")
    parser.add_argument("--torch_compile", action="store_true", help="the first run compiles")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    args = parser.parse_args(argv)
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    learner = Learner(SASRecConfig(num_items=args.items, hidden_size=args.hidden, max_length=args.length))
    form = {"inputs": "tokens", "labels": "own", "label_dim": args.hidden + 1}
    farzi = FarziData(
        FarziDataConfig(args.sequences, args.length, latent_dim=LATENT_DIM, vocab_size=learner.vocab_size, **form)
    )
    real = torch.randint(1, args.items + 1, (HISTORIES, args.length))
    optimizer, compiled = InnerAdam(0.02, (0.7, 0.999), 1e-6), args.torch_compile
    training = SyntheticTraining(optimizer, 1.0, args.batch, args.window, torch_compile=compiled)
    start = learner.initial_parameters(0)
    found = []
    for run in range(args.runs):
        theta, forward = timed(lambda: training(learner, farzi.tensors, start=start, steps=args.steps, seed=0))
        loss = learner.hard_loss(theta, {"input_ids": real, "labels": real})
        _, backward = timed(loss.backward)
        found.append((*forward, *backward))
        cells = "forward {:.1f} s CPU, {:.1f} s wall; backward {:.1f} s CPU, {:.1f} s wall".format(*found[-1])
        print(f"run {run}: {cells}", flush=True)
    cpu, wall = (min(times[i] + times[i + 2] for times in found) for i in range(2))
    print(f"outer step: {cpu:.1f} s CPU, {wall:.1f} s wall ({args.threads} thread(s))")


def timed(run: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """The result, and seconds of the processor and of the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    return result, (time.process_time() - cpu, time.perf_counter() - wall)


if __name__ == "__main__":
    main()
