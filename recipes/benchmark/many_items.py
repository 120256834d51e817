"""Time and memory of an outer step over a large vocabulary: of Amazon Video's size, or GPT-2's.

    python recipes/benchmark/many_items.py                   # Video, about a minute on one core
    python recipes/benchmark/many_items.py --threads 2
    python recipes/benchmark/many_items.py gpt2              # --shared_head: the head is the embedding, as in GPT-2 itself
    python recipes/benchmark/many_items.py gpt2 --adjoint tape

A learner trains for T steps on a summary of ids, chosen at random, with labels of their own, and the last steps are differentiated; the
outer loss is that of random sequences. Times are processor time and wall-clock time of the training, the outer loss and the backward pass,
the fastest of some runs: other work on the machine makes both longer.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import GPT2Config, PretrainedConfig

from farzi_hf.cli.program import keep_freed_memory
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.distillation.callbacks import peak_memory
from farzi_hf.engine import ADJOINTS, InnerAdam
from farzi_hf.models import SASRecConfig
from farzi_hf.summary import FarziData, FarziDataConfig

CASES: dict[str, dict[str, Any]] = {
    "video": {
        "entries": 23_698, "sequences": 50, "length": 20, "batch": 10, "steps": 100, "window": 40, "hidden": 16, "label_dim": 17, "real": 128,
    },
    "gpt2": {
        "entries": 50_257, "sequences": 10, "length": 20, "batch": 10, "steps": 10, "window": 10, "hidden": 64, "label_dim": 16, "real": 64,
    },
}  # fmt: skip


PARTS = ("training", "outer loss", "backward")


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each run, and the fastest times."""
    args = arguments(argv)
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    learner = Learner(config_of(args))
    form = {"inputs": "tokens", "labels": "own", "label_dim": args.label_dim}
    farzi = FarziData(FarziDataConfig(args.sequences, args.length, latent_dim=1, vocab_size=learner.vocab_size, **form))
    real = torch.randint(1, args.entries, (args.real, args.length))
    optimizer, compiled = InnerAdam(0.02, (0.7, 0.999), 1e-6), args.torch_compile
    adjoint = None if args.adjoint is None else ADJOINTS[args.adjoint]()
    training = SyntheticTraining(optimizer, 1.0, args.batch, args.window, adjoint, torch_compile=compiled)
    start = learner.initial_parameters(0)
    found = []
    for run in range(args.runs):
        found.append(
            outer_step(learner, lambda: training(learner, farzi.tensors, start=start, steps=args.steps, seed=0), real)
        )
        cells = "; ".join(
            f"{name} {cpu:.2f} s CPU, {wall:.2f} s wall" for name, (cpu, wall) in zip(PARTS, found[-1], strict=True)
        )
        print(f"run {run}: {cells}", flush=True)
    totals = [tuple(map(sum, zip(*times, strict=True))) for times in found]
    cpu, wall = (min(total[i] for total in totals) for i in range(2))
    peak = peak_memory(torch.device("cpu")) / 2**20
    print(
        f"outer step: {cpu:.2f} s CPU, {wall:.2f} s wall ({args.threads} thread(s)); peak of the process {peak:,.0f} MiB"
    )


def arguments(argv: Sequence[str] | None) -> Namespace:
    """The settings of a case, with those that are given in their place."""
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("case", nargs="?", choices=CASES, default="video", help="a SASRec, or a GPT-2 of two layers")
    parser.add_argument("--entries", type=int, help="V, or items")
    parser.add_argument("--sequences", type=int, help="μ")
    parser.add_argument("--length", type=int, help="ξ")
    parser.add_argument("--batch", type=int, help="b_syn")
    parser.add_argument("--steps", type=int, help="T")
    parser.add_argument("--window", type=int, help="steps that are differentiated")
    parser.add_argument("--hidden", type=int, help="h")
    parser.add_argument("--label_dim", type=int, help="numbers of a label")
    parser.add_argument("--real", type=int, help="sequences of the outer loss")
    parser.add_argument("--shared_head", action="store_true", help="of GPT-2; a SASRec's is always shared")
    parser.add_argument("--adjoint", choices=ADJOINTS, help="by default, unroll chooses one")
    parser.add_argument("--torch_compile", action="store_true", help="the first run compiles")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=3)
    first, _ = parser.parse_known_args(argv)
    parser.set_defaults(**CASES[first.case])
    return parser.parse_args(argv)


def config_of(args: Namespace) -> PretrainedConfig:
    """The learner of a case."""
    if args.case == "video":
        return SASRecConfig(num_items=args.entries, hidden_size=args.hidden, max_length=args.length)
    return GPT2Config(
        vocab_size=args.entries, n_embd=args.hidden, n_layer=2, n_head=2, n_positions=args.length, tie_word_embeddings=args.shared_head,
        embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip


def outer_step(learner: Learner, train: Callable[[], dict[str, Tensor]], real: Tensor) -> list[tuple[float, float]]:
    """Seconds of the processor and of the clock of each of the `PARTS`."""
    theta, training = timed(train)
    loss, outer = timed(lambda: learner.hard_loss(theta, {"input_ids": real, "labels": real}))
    _, backward = timed(loss.backward)
    return [training, outer, backward]


def timed(run: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
    """The result, and seconds of the processor and of the clock."""
    cpu, wall = time.process_time(), time.perf_counter()
    result = run()
    return result, (time.process_time() - cpu, time.perf_counter() - wall)


if __name__ == "__main__":
    main()
