"""Measures time and memory of an inner step against the size of the vocabulary and the length of
the sequences.

    python recipes/benchmark/scaling.py                      # all cells, about an hour; goes on where it was stopped
    python recipes/benchmark/scaling.py --vocabularies 2000 --lengths 20 50 --output_dir outputs/scaling

A cell is one meta-gradient through T = 4 steps of a GPT-2 of one layer, on a summary of ten
sequences with ids as inputs and labels of their own, with `Tape`. "ours" has the loss of `Learner`,
which never holds logits or labels of all positions. "textbook" has the formula on the logits of the
model, differentiated by autograd; all else is the same. Each cell has its own process. The estimate
is what `unroll` chooses an adjoint by.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path

import harness
import torch
from harness import (
    Facts,
    Limits,
    PeakMemory,
    Report,
    Timer,
    code_hash,
    complete,
    in_process,
    processor,
    read_rows,
)
from methods import Size, learner_config
from torch import Tensor

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.engine import InnerAdam, InnerLoss, Tape, unroll
from farzi_hf.engine.adjoints.base import graph_bytes
from farzi_hf.engine.inner_loop import InnerLoop, Layout
from farzi_hf.report import listed, markdown, save_csv, save_text
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.soft_tokens import SoftTokens

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))
from curves import Panel, plot_curves

FILES = ("results.json", "results.csv", "table.md", "scaling.png")
COLUMNS = (
    "loss",
    "vocabulary",
    "length",
    "status",
    "seconds",
    "memory_bytes",
    "estimated_bytes",
    "note",
    "commit",
    "code",
)
STEPS = 4
SEQUENCES = 10
WIDTH = 32
BATCH = 8


def ours(learner: Learner, params: Parameters, ids: Tensor, targets: SoftTokens) -> Tensor:
    """The loss of `Learner`."""
    return learner.soft_loss(params, ids, targets)


def textbook(learner: Learner, params: Parameters, ids: Tensor, targets: SoftTokens) -> Tensor:
    """−Σ q log p / n, with logits and labels (b, ξ, V) in memory."""
    z = learner.logits(params, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return -(targets.probabilities() * z.log_softmax(-1)).sum() / ids.numel()


LOSSES: dict[str, Callable[[Learner, Parameters, Tensor, SoftTokens], Tensor]] = {
    "ours": ours,
    "textbook": textbook,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the cells, and writes the table and the figure."""
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--vocabularies", type=int, nargs="+", default=[2_000, 10_000, 24_000, 50_000]
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 50, 256, 1024])
    parser.add_argument("--memory_limit", type=float, default=16.0, help="GiB of a process")
    parser.add_argument("--time_limit", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--output_dir", default="model_cards/scaling")
    args = parser.parse_args(argv)
    output = Path(args.output_dir)
    with ends_in_one_line("scaling.py"):
        rows = read_rows(output, FILES)
    settings = {
        "processor": processor(),
        "memory_limit": args.memory_limit,
        "time_limit": args.time_limit,
    }
    limits = Limits(args.memory_limit, args.time_limit)
    asked = product(args.vocabularies, args.lengths, LOSSES)
    cells = [{"loss": loss, "vocabulary": size, "length": length} for size, length, loss in asked]
    run_cell = lambda cell: in_process(measure, cell, limits)  # noqa: E731
    rows = complete(
        output / FILES[0], rows, cells, run_cell, settings, code_hash("scaling", "methods")
    )
    write(sorted(rows, key=lambda row: (row["vocabulary"], row["length"], row["loss"])), output)


def measure(report: Report, loss: str, vocabulary: int, length: int) -> None:
    """First peak memory, then seconds of the processor, which other work on the machine changes
    little.
    """
    learner = Learner(
        learner_config(Size(vocab_size=vocabulary, sequence_length=length, hidden_size=WIDTH))
    )
    torch.manual_seed(0)
    form = {"inputs": "tokens", "labels": "own", "label_dim": WIDTH}
    farzi = FarziData(FarziDataConfig(SEQUENCES, length, 1, vocabulary, **form))
    names, inputs = zip(*farzi.tensors.items(), strict=True)
    start = learner.initial_parameters(0)
    real = torch.randint(vocabulary, (BATCH, min(length, 50)))

    def inner_loss(params: Parameters, tensors: tuple[Tensor, ...], step: int) -> Tensor:
        summary = dict(zip(names, tensors, strict=True))
        return LOSSES[loss](learner, params, *farzi.forms.batch(summary, slice(None)))

    def meta_gradient(steps: int) -> None:
        theta = unroll(
            inner_loss,
            start,
            inputs,
            optimizer=InnerAdam(0.02, eps=1e-4),
            steps=steps,
            adjoint=Tape(),
        )
        learner.hard_loss(theta, {"input_ids": real, "labels": real}).backward()

    report({"estimated_bytes": estimated(inner_loss, start, inputs)})
    harness.return_freed_memory()
    meta_gradient(1)
    peak = PeakMemory()
    meta_gradient(STEPS)
    report({"memory_bytes": peak.read()})
    keep_freed_memory()
    meta_gradient(1)
    report({"seconds": min(Timer()(lambda: meta_gradient(STEPS))[1] for _ in range(2)) / STEPS})


def estimated(inner_loss: InnerLoss, start: Parameters, inputs: tuple[Tensor, ...]) -> int:
    """The peak memory that `unroll` expects of `Tape`."""
    optimizer = InnerAdam(0.02, eps=1e-4)
    layout = Layout.of(start, optimizer)
    w = layout.flatten(start)
    loop = InnerLoop(inner_loss, optimizer, layout, STEPS, STEPS, 1, {})
    return Tape().memory(loop, w, inputs, graph_bytes(loop, w, inputs))


def write(rows: Sequence[Facts], output: Path) -> None:
    """results.csv, table.md and scaling.png."""
    save_csv([{name: row.get(name) for name in COLUMNS} for row in rows], output / FILES[1])
    table = markdown([readable(row) for row in rows], ("commit",))
    facts = listed(
        {
            **{k: rows[-1].get(k) for k in ("processor", "malloc")},
            "T": STEPS,
            "sequences": SEQUENCES,
            "h": WIDTH,
        }
    )
    save_text(
        f"# An inner step over the vocabulary and the length\n\n{table}\n\n{facts}\n",
        output / FILES[2],
    )
    if any(row["status"] == "ok" for row in rows):
        draw(rows, output)
    print((output / FILES[2]).read_text(encoding="utf-8"))


def draw(rows: Sequence[Facts], output: Path) -> None:
    """scaling.png: seconds and memory over the vocabulary, a curve for each loss and length."""
    kinds = {"textbook": "peer"}
    drawn = [
        {**row, "method": f"{row['loss']}, ξ = {row['length']}", "kind": kinds.get(row["loss"])}
        for row in rows
    ]
    size = "Entries of the vocabulary, V"
    seconds = Panel(drawn, "vocabulary", "seconds", size, "CPU seconds per inner step", "xy")
    memory = Panel(drawn, "vocabulary", "memory_bytes", size, "Peak memory (MB)", "xy", 1e-6)
    plot_curves(output / FILES[3], seconds, memory)


def readable(row: Facts) -> dict[str, str]:
    """One line of the table."""
    shown = {
        "loss": row["loss"],
        "V": f"{row['vocabulary']:,}",
        "ξ": f"{row['length']:,}",
        "commit": row.get("commit", ""),
    }
    names = ("CPU seconds per step", "peak, MB", "estimate / peak")
    if row["status"] != "ok":
        return {**shown, **dict(zip(names, (row["status"], "", ""), strict=True))}
    peak, estimate = (row[name] / 1e6 for name in ("memory_bytes", "estimated_bytes"))
    numbers = (f"{row['seconds']:.3f}", f"{peak:,.0f}", f"{estimate / peak:.2f}")
    return {**shown, **dict(zip(names, numbers, strict=True))}


if __name__ == "__main__":
    run(main)
