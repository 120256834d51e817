"""Measures time and memory of an inner step against the size of the vocabulary and the length of the sequences.

    python recipes/benchmark/scaling.py                      # all cells, about an hour; goes on where it was stopped
    python recipes/benchmark/scaling.py --vocabularies 2000 --lengths 20 50 --output_dir outputs/scaling

A cell is one meta-gradient through T = 4 steps of a GPT-2 of one layer, on a summary of ten sequences with ids as inputs and labels of
their own, with `Tape`. "ours" has the loss of `Learner`, which never holds logits or labels of all positions. "textbook" has the
formula on the logits of the model, differentiated by autograd; all else is the same. Each cell has its own process. The estimate is what
`unroll` chooses an adjoint by.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from benchmark import code_hash, environment, processor
from process import PeakMemory, Timer, end_with_parent, run_limited, unfinished
from torch import Tensor
from tqdm import tqdm
from transformers import GPT2Config

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, return_freed_memory, run
from farzi_hf.cli.run_folder import check_files
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.engine import InnerAdam, InnerLoss, Tape, unroll
from farzi_hf.engine.choice import graph_bytes
from farzi_hf.engine.inner_loop import InnerLoop, Layout
from farzi_hf.report import listed, markdown, save_csv, save_json, save_text
from farzi_hf.report.plots import plot_scaling
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.forms import batch_of
from farzi_hf.summary.store.escaping import numbers_of

ROOT = Path(__file__).resolve().parent
FILES = ("results.json", "results.csv", "table.md", "scaling.png")
STEPS, SEQUENCES, WIDTH, BATCH = 4, 10, 32, 8
SIGNATURE = {"loss", "vocabulary", "length", "status", "code"}  # each of our rows has these
Cell = tuple[str, int, int]
"""Loss, V and ξ."""


def ours(learner: Learner, params: Parameters, tensors: Mapping[str, Tensor]) -> Tensor:
    return learner.soft_loss(params, *batch_of(tensors, slice(None), 1.0))


def textbook(learner: Learner, params: Parameters, tensors: Mapping[str, Tensor]) -> Tensor:
    """−Σ q log p / n, with logits and labels (b, ξ, V) in memory."""
    ids, targets = batch_of(tensors, slice(None), 1.0)
    z = learner.logits(params, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    return -(targets.probabilities() * z.log_softmax(-1)).sum() / ids.numel()


LOSSES: dict[str, Callable[[Learner, Parameters, Mapping[str, Tensor]], Tensor]] = {"ours": ours, "textbook": textbook}


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["--cell"]:
        measure_cell(*json.loads(argv[1]), Path(argv[2]))
        return
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--vocabularies", type=int, nargs="+", default=[2_000, 10_000, 24_000, 50_000])
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 50, 256, 1024])
    parser.add_argument("--memory_limit", type=float, default=16.0, help="GiB of a process")
    parser.add_argument("--time_limit", type=float, default=600.0, help="seconds of a process")
    parser.add_argument("--output_dir", default="model_cards/scaling")
    args = parser.parse_args(argv)
    output = Path(args.output_dir)
    with ends_in_one_line("scaling.py"):
        rows = previous_rows(output)
    code = code_hash(Path(__file__))
    limits = {"processor": processor(), "memory_limit": args.memory_limit, "time_limit": args.time_limit}
    rows = [row for row in rows if not unfinished(row)]
    others = [row for row in rows if not limits.items() <= row.items()]  # with other limits: kept, and not shown
    known = {(row["loss"], row["vocabulary"], row["length"]): row for row in rows if row not in others}
    cells = [(loss, v, length) for v in args.vocabularies for length in args.lengths for loss in LOSSES]
    # Rows of other code stay until their cells are asked for. Their commits are in the table.
    for cell in (bar := tqdm([cell for cell in cells if known.get(cell, {}).get("code") != code])):
        bar.set_description("{}, V = {}, ξ = {}".format(*cell))
        names = dict(zip(("loss", "vocabulary", "length"), cell, strict=True))
        measured = run_cell(cell, args.memory_limit, args.time_limit)
        known[cell] = {**names, **measured, **environment(), **limits, "code": code}
        save_json([*known.values(), *others], output / FILES[0])
    write(in_order(known.values()), output)


def in_order(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows by V, by ξ and by loss."""
    return sorted(rows, key=lambda row: (row["vocabulary"], row["length"], row["loss"]))


def previous_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of earlier runs in the output folder.

    Raises:
        ValueError: the folder holds files that this program would overwrite and has not written.
    """
    rows: Any = []
    with suppress(OSError, ValueError):
        rows = numbers_of(json.loads((folder / FILES[0]).read_text(encoding="utf-8")))
    ours = isinstance(rows, list) and all(isinstance(row, dict) and row.keys() >= SIGNATURE for row in rows)
    check_files(folder, FILES, ours and bool(rows))
    return rows


def run_cell(cell: Cell, memory_limit: float, time_limit: float) -> dict[str, Any]:
    """Measures a cell in its own process, with one thread."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT.parents[1]), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "scaling.py"), "--cell", json.dumps(cell)]
    return run_limited(command, variables, int(memory_limit * 2**30), time_limit)


def measure_cell(loss: str, vocabulary: int, length: int, report: Path) -> None:
    """The process of a cell: first peak memory, then seconds of the processor, which other work on the machine changes little."""
    end_with_parent()
    torch.set_num_threads(1)
    config = GPT2Config(
        vocab_size=vocabulary, n_positions=length, n_embd=WIDTH, n_layer=1, n_head=1, tie_word_embeddings=False,
        initializer_range=0.1, embd_pdrop=0.0, attn_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    learner = Learner(config)
    torch.manual_seed(0)
    form = {"inputs": "tokens", "labels": "own", "label_dim": WIDTH}
    farzi = FarziData(FarziDataConfig(SEQUENCES, length, 1, vocabulary, **form))
    names, inputs = zip(*farzi.tensors.items(), strict=True)
    start, real = learner.initial_parameters(0), torch.randint(vocabulary, (BATCH, min(length, 50)))
    timer = Timer(torch.device("cpu"))

    def inner_loss(params: Parameters, tensors: tuple[Tensor, ...], step: int) -> Tensor:
        return LOSSES[loss](learner, params, dict(zip(names, tensors, strict=True)))

    def meta_gradient(steps: int) -> None:
        theta = unroll(inner_loss, start, inputs, optimizer=InnerAdam(0.02, eps=1e-4), steps=steps, adjoint=Tape())
        learner.hard_loss(theta, {"input_ids": real, "labels": real}).backward()

    estimate = estimated(inner_loss, start, inputs)
    return_freed_memory()
    meta_gradient(1)
    peak = PeakMemory(torch.device("cpu"))
    meta_gradient(STEPS)
    facts: dict[str, Any] = {"memory_bytes": peak.read(), "estimated_bytes": estimate}
    keep_freed_memory()
    meta_gradient(1)
    facts["seconds"] = min(timer(lambda: meta_gradient(STEPS))[1] for _ in range(2)) / STEPS
    save_text(json.dumps(facts) + "\n", report)


def estimated(inner_loss: InnerLoss, start: Parameters, inputs: tuple[Tensor, ...]) -> int:
    """The peak memory that `unroll` expects of `Tape`."""
    layout = Layout.of(start)
    w = layout.flatten(start)
    loop = InnerLoop(inner_loss, InnerAdam(0.02, eps=1e-4), layout, STEPS, STEPS, 1, {})
    return Tape().memory(loop, w, inputs, graph_bytes(loop, w, inputs))


def write(rows: Sequence[Mapping[str, Any]], output: Path) -> None:
    """results.csv, table.md and scaling.png."""
    columns = (
        "loss", "vocabulary", "length", "status", "seconds", "memory_bytes", "estimated_bytes", "note", "commit", "code",
    )  # fmt: skip
    save_csv([{name: row.get(name) for name in columns} for row in rows], output / "results.csv")
    text = f"# An inner step over the vocabulary and the length\n\n{markdown([readable(row) for row in rows], ('commit',))}\n\n"
    facts = {k: v for k, v in rows[-1].items() if k in ("processor", "malloc")}
    save_text(text + listed({**facts, "T": STEPS, "sequences": SEQUENCES, "h": WIDTH}) + "\n", output / "table.md")
    if any(row["status"] == "ok" for row in rows):
        plot_scaling(rows, output / "scaling.png")
    print((output / "table.md").read_text(encoding="utf-8"))


def readable(row: Mapping[str, Any]) -> dict[str, str]:
    """One line of the table."""
    shown = {
        "loss": row["loss"],
        "V": f"{row['vocabulary']:,}",
        "ξ": f"{row['length']:,}",
        "commit": row.get("commit", ""),
    }
    if row["status"] != "ok":
        return {**shown, "CPU seconds per step": row["status"], "peak, MB": "", "estimate / peak": ""}
    peak, estimate = (row[name] / 1e6 for name in ("memory_bytes", "estimated_bytes"))
    ratio = f"{estimate / peak:.2f}"
    return {
        **shown,
        "CPU seconds per step": f"{row['seconds']:.3f}",
        "peak, MB": f"{peak:,.0f}",
        "estimate / peak": ratio,
    }


if __name__ == "__main__":
    run(main)
