"""Time and memory of an outer step over a large vocabulary: of Amazon Video's size, or GPT-2's.

    python recipes/benchmark/many_items.py                   # Video, about a minute on one core
    python recipes/benchmark/many_items.py gpt2              # --shared_head: the head is the embedding, as in GPT-2 itself
    python recipes/benchmark/many_items.py gpt2 --adjoint tape

A learner trains for T steps on a summary of ids, chosen at random, with labels of their own, and
the last steps are differentiated; the outer loss is that of random sequences. Times are processor
time and wall-clock time of the training, the outer loss and the backward pass, the fastest of some
runs: other work on the machine makes both longer.
"""  # noqa: E501

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from typing import Any

import torch
from harness import Timer
from transformers import GPT2Config, PretrainedConfig

from farzi_hf.cli.program import keep_freed_memory
from farzi_hf.distillation import Learner, SyntheticTraining
from farzi_hf.distillation.run import peak_memory
from farzi_hf.engine import ADJOINTS, InnerAdam
from farzi_hf.models import SASRecConfig
from farzi_hf.summary import FarziData, FarziDataConfig

CASES: dict[str, dict[str, Any]] = {
    "video": {
        "entries": 23_698,
        "sequences": 50,
        "length": 20,
        "batch": 10,
        "steps": 100,
        "window": 40,
        "hidden": 16,
        "label_dim": 17,
        "real": 128,
    },
    "gpt2": {
        "entries": 50_257,
        "sequences": 10,
        "length": 20,
        "batch": 10,
        "steps": 10,
        "window": 10,
        "hidden": 64,
        "label_dim": 16,
        "real": 64,
    },
}
"""V, μ, ξ, b_syn, T, the steps that are differentiated, h, numbers of a label, and sequences of the
outer loss.
"""


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line for each run, and the fastest times."""
    args = arguments(argv)
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    learner = Learner(config_of(args))
    timer = Timer()
    form = {"inputs": "tokens", "labels": "own", "label_dim": args.label_dim}
    farzi = FarziData(
        FarziDataConfig(
            args.sequences, args.length, latent_dim=1, vocab_size=learner.vocab_size, **form
        )
    )
    real = torch.randint(1, args.entries, (args.real, args.length))
    adjoint = None if args.adjoint is None else ADJOINTS[args.adjoint]()
    adam = InnerAdam(0.02, (0.7, 0.999), 1e-6)
    training = SyntheticTraining(
        adam, farzi.forms, args.batch, args.window, adjoint, torch_compile=args.torch_compile
    )
    begin = {"start": learner.initial_parameters(0), "steps": args.steps, "seed": 0}
    totals = []
    for run in range(args.runs):
        theta, first = timer.result(lambda: training(learner, farzi.tensors, **begin))
        loss, outer = timer.result(
            lambda: learner.hard_loss(theta, {"input_ids": real, "labels": real})  # noqa: B023
        )
        parts = {"training": first, "outer loss": outer, "backward": timer(loss.backward)}
        cells = "; ".join(
            f"{name} {cpu:.2f} s CPU, {wall:.2f} s wall" for name, (wall, cpu) in parts.items()
        )
        print(f"run {run}: {cells}", flush=True)
        totals.append([sum(times) for times in zip(*parts.values(), strict=True)])
    wall, cpu = map(min, zip(*totals, strict=True))
    peak = peak_memory(torch.device("cpu")) / 2**20
    print(
        f"outer step: {cpu:.2f} s CPU, {wall:.2f} s wall ({args.threads} thread(s)); peak of the"
        f" process {peak:,.0f} MiB"
    )


def arguments(argv: Sequence[str] | None) -> Namespace:
    """The settings of a case, with those that are given in their place."""
    parser = ArgumentParser(
        description=__doc__, formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "case", nargs="?", choices=CASES, default="video", help="a SASRec, or a GPT-2 of two layers"
    )
    for name in CASES["video"]:
        parser.add_argument(f"--{name}", type=int, help="see CASES in this file")
    parser.add_argument(
        "--shared_head", action="store_true", help="of GPT-2; a SASRec's is always shared"
    )
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
        vocab_size=args.entries,
        n_embd=args.hidden,
        n_layer=2,
        n_head=2,
        n_positions=args.length,
        tie_word_embeddings=args.shared_head,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        resid_pdrop=0.0,
    )


if __name__ == "__main__":
    main()
