"""What `attribute` costs beside plain training and beside bergson (EleutherAI; "MAGIC"), and whether the scores are exact.

    pip install --no-deps bergson==2.5.1 simple-parsing docstring-parser jaxtyping wadler-lindig torchopt optree natsort ml_dtypes petname graphviz scipy
    python recipes/benchmark/attribute_cost.py

Without the first line there are no rows of bergson. Its other dependencies, CUDA among them, are not needed here.

GPT-2 of two layers; rows of drawn ids, 16 a step in their order; AdamW, clipping, warm-up. Each cell has a process of its own, which trains for
two steps first. In other cells, of a small size and in float64, scores are compared with central differences of the plain loop.
"""  # noqa: E501

from __future__ import annotations

import ctypes
import tempfile
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from harness import (
    Facts,
    Limits,
    PeakMemory,
    Report,
    Timer,
    code_hash,
    complete,
    environment,
    in_process,
    processor,
    read_rows,
)
from torch import Tensor
from torch.nn.functional import cosine_similarity, cross_entropy
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    get_scheduler,
    set_seed,
)

from farzi_hf.attribution import attribute
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.data import IGNORED, SequenceCollator
from farzi_hf.engine import ADJOINTS
from farzi_hf.report import listed, markdown, save_csv, save_text

FILES = ("results.json", "results.csv", "table.md")
LIMITS = Limits(memory=6.0, seconds=3600.0)
RATE = 1e-3
WARMUP = 10
EPSILON = 1e-6
CLIP = 1.0
COMPARED = 100  # rows whose scores are kept
Found = tuple[Tensor | None, int]
"""Scores (queries, rows), and bytes on disk after the training."""


@dataclass(frozen=True)
class Problem:
    """A training and its queries, which are its first rows."""

    width: int = 48
    steps: int = 100
    queries: int = 1
    micro_batches: int = 1
    tied: bool = False
    vocabulary: int = 1000
    rows: int = 512
    length: int = 32
    batch: int = 16
    eps_root: float = 1e-17  # of bergson, whose default it is

    @cached_property
    def ids(self) -> Tensor:
        """(rows, length)"""
        frequencies = 1 / torch.arange(1.0, self.vocabulary + 1)
        generator = torch.Generator().manual_seed(0)
        drawn = torch.multinomial(
            frequencies, self.rows * self.length, replacement=True, generator=generator
        )
        return drawn.view(self.rows, self.length)

    def order(self, step: int) -> list[int]:
        """The rows of step 0, 1, …"""
        return [(step * self.batch + i) % self.rows for i in range(self.batch)]

    def factor(self) -> Callable[[int], float]:
        """The learning rate of step 0, 1, …, as a multiple of `RATE`."""
        return get_scheduler(
            "linear", torch.optim.SGD([torch.zeros(1)], RATE), WARMUP, self.steps
        ).lr_lambdas[0]

    def model(self) -> GPT2LMHeadModel:
        set_seed(0)
        sizes = {
            "vocab_size": self.vocabulary,
            "n_positions": self.length,
            "n_embd": self.width,
            "n_layer": 2,
            "n_head": 4,
        }
        rest = {
            "resid_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "attn_pdrop": 0.0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        return GPT2LMHeadModel(GPT2Config(**sizes, **rest, tie_word_embeddings=self.tied)).to(
            torch.get_default_dtype()
        )

    def trainer(self, folder: str) -> Trainer:
        args = TrainingArguments(
            folder,
            max_steps=self.steps,
            per_device_train_batch_size=self.batch // self.micro_batches,
            learning_rate=RATE,
            gradient_accumulation_steps=self.micro_batches,
            warmup_steps=WARMUP,
            adam_epsilon=EPSILON,
            max_grad_norm=CLIP,
            weight_decay=0.0,
            train_sampling_strategy="sequential",
            save_strategy="no",
            logging_strategy="no",
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
            dataloader_pin_memory=False,
        )
        # The Trainer divides by the number of labels, also of the first, which nothing predicts.
        ids = self.ids.tolist()
        rows = {"input_ids": ids, "labels": [[IGNORED, *row[1:]] for row in ids]}
        return Trainer(self.model(), args, SequenceCollator(), Dataset.from_dict(rows))


def plain(problem: Problem, weights: Tensor | None = None) -> Tensor:
    """An ordinary loop: (queries,), their losses after a training in which rows have
    these weights.
    """
    model = problem.model()
    ids = problem.ids
    w = torch.ones(len(ids)) if weights is None else weights
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATE, eps=EPSILON, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, problem.factor())

    def losses(rows: Tensor) -> Tensor:
        logits = model(rows).logits[:, :-1]
        return cross_entropy(logits.transpose(1, 2), rows[:, 1:], reduction="none").mean(1)

    for step in range(problem.steps):
        chosen = problem.order(step)
        (w[chosen] * losses(ids[chosen])).mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    with torch.no_grad():
        return losses(ids[: problem.queries])


def plain_loop(problem: Problem, folder: str) -> Found:
    """The training alone."""
    plain(problem)
    return None, 0


def stock_trainer(problem: Problem, folder: str) -> Found:
    """The training alone."""
    problem.trainer(folder).train()
    return None, 0


def ours(problem: Problem, folder: str, adjoint: str | None = None) -> Found:
    """By `attribute`."""
    test = Dataset.from_dict({"input_ids": problem.ids[: problem.queries].tolist()})
    return (
        attribute(
            problem.trainer(folder), test, None if adjoint is None else ADJOINTS[adjoint]()
        ).scores,
        0,
    )


def bergson(problem: Problem, folder: str, mode: str) -> Found:
    """What its command `magic` does: checkpoints on the way forward, then a pass back for each
    query.
    """
    import torchopt
    from bergson.magic.cli import compute_query_gradients
    from bergson.magic.data_stream import DataStream
    from bergson.magic.trainer import BackwardState
    from bergson.magic.trainer import Trainer as Magic
    from bergson.utils import weighted_causal_lm_ce
    from torchopt.pytree import tree_iter

    def stream(rows: Tensor, size: int, **columns: Any) -> DataStream:
        data = Dataset.from_dict({"input_ids": rows.tolist(), **columns})
        return DataStream(data, size, weight_shape=(problem.rows,) if columns else None)

    model = problem.model().eval()
    factor = problem.factor()
    model.set_attn_implementation("eager")  # both as its `prepare_trainer` does
    model.loss_function = partial(weighted_causal_lm_ce, reduction="mean")
    how = {"eps": EPSILON, "eps_root": problem.eps_root, "weight_decay": 0.0}
    magic, state = Magic.initialize(
        model, torchopt.adamw(lambda step: RATE * factor(int(step)), **how)
    )
    order = [i for step in range(problem.steps) for i in problem.order(step)]
    data = stream(problem.ids[order], problem.batch, doc_ids=[[i] * problem.length for i in order])
    steps = {
        "inplace": True,
        "save_mode": mode,
        "max_grad_norm": CLIP,
        "grad_accum_steps": problem.micro_batches,
    }
    state = magic.train(state, data, save_dir=folder, **steps)
    found = []
    disk = sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())
    final = state.to("cpu").detach_()
    for query in range(problem.queries):
        state.detach_()
        state.copy_(final)
        gradient, _ = compute_query_gradients(
            state, model, stream(problem.ids[query : query + 1], 1)
        )
        state.detach_()
        data.requires_grad = True
        zeros = [torch.zeros_like(x) for x in tree_iter(state.opt_state) if x.is_floating_point()]
        back = BackwardState(gradient, zeros, torch.zeros_like(data.weights))
        back = magic.backward(
            folder, data, back, state, cleanup=query + 1 == problem.queries, **steps
        )
        found.append(-back.weight_grads.detach())
    return torch.stack(found), disk


WAYS: dict[str, Callable[[Problem, str], Found]] = {
    "plain torch loop": plain_loop,
    "stock Trainer": stock_trainer,
    "ours, adjoint=None": ours,
    **{
        f"ours, {kind.__name__}": partial(ours, adjoint=name)
        for name, kind in ADJOINTS.items()
        if kind.share
    },
    "bergson, √T checkpoints": partial(bergson, mode="sqrt"),
    "bergson, log T checkpoints": partial(bergson, mode="log"),
}
FEW = ("plain torch loop", "ours, adjoint=None", "bergson, √T checkpoints")
EXACT = ("ours, Tape", "ours, Reversible", "bergson, √T checkpoints")
SMALL = Problem(width=8, steps=12, vocabulary=60, rows=24, length=10, batch=4)
TABLES: dict[str, tuple[Problem, Sequence[str]]] = {
    "Width 48, T = 100": (Problem(), tuple(WAYS)),
    "Width 48, T = 100, eight queries": (Problem(queries=8), FEW),
    "Width 48, T = 100, steps of four micro-batches": (Problem(micro_batches=4), FEW),
    "Width 48, T = 400": (Problem(steps=400), (*FEW, "ours, Reversible")),
    "Width 256, T = 25": (Problem(width=256, steps=25), tuple(WAYS)),
    "Beside central differences": (SMALL, EXACT),
    "Beside central differences, tied embeddings": (replace(SMALL, tied=True), EXACT),
    "Beside central differences, bergson's ε_root = 0": (replace(SMALL, eps_root=0.0), EXACT[2:]),
}


def measure(report: Report, way: str, is_small: bool, **problem: Any) -> None:
    """The process of a cell."""
    (exactness if is_small else cost)(report, WAYS[way], Problem(**problem))


def cost(report: Report, scores: Callable[[Problem, str], Found], problem: Problem) -> None:
    """CPU seconds, bytes of memory above the start, bytes on disk; and some scores of the first
    query, to compare.
    """
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        scores(replace(problem, steps=2, queries=1), folder)
    ctypes.CDLL(None).malloc_trim(0)  # what the first steps left behind, of one adjoint or another
    with tempfile.TemporaryDirectory() as folder:
        peak = PeakMemory()
        (found, disk), (_, seconds) = Timer().result(lambda: scores(problem, folder))
        report({"seconds": seconds, "memory_bytes": peak.read(), "disk_bytes": disk})
    report({"scores": None if found is None else found[0, :COMPARED].tolist()})


def exactness(report: Report, scores: Callable[[Problem, str], Found], problem: Problem) -> None:
    """The cosine with central differences, and the largest error over the largest score, in
    float64.
    """
    torch.set_default_dtype(torch.float64)
    h = 1e-4
    ones = torch.ones(problem.rows)
    changes = h * torch.eye(problem.rows)
    true = torch.cat(
        [(plain(problem, ones - x) - plain(problem, ones + x)) / (2 * h) for x in changes]
    )
    with tempfile.TemporaryDirectory() as folder:
        found = scores(problem, folder)[0][0].to(true)
    error = (found - true).abs().max() / true.abs().max()
    report({"cosine": float(cosine_similarity(found, true, dim=0)), "error": float(error)})


def main(argv: Sequence[str] | None = None) -> None:
    """Measures what is not in the card yet, and writes the card."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--tables", nargs="+", choices=TABLES, default=list(TABLES), help="by their titles"
    )
    parser.add_argument(
        "--output_dir", default="model_cards/attribution_cost", help="folder of the card"
    )
    args = parser.parse_args(argv)
    folder = Path(args.output_dir)
    code = code_hash("attribute_cost")
    there = find_spec("bergson") is not None
    if not there:
        print(
            "bergson is not installed, so it has no rows; the top of this file says how to"
            " install it"
        )
    with ends_in_one_line("attribute_cost.py"):
        rows = read_rows(folder, FILES)
    cells = {
        title: [
            {"way": way, "is_small": ways in (EXACT, EXACT[2:]), **asdict(problem)}
            for way in ways
            if there or "bergson" not in way
        ]
        for title, (problem, ways) in TABLES.items()
        if title in args.tables
    }
    run = partial(in_process, measure, limits=LIMITS)
    rows = complete(folder / FILES[0], rows, list(chain(*cells.values())), run, {}, code)
    parts = [
        f"**{title}**\n\n{table([row for cell in own for row in rows if cell.items() <= row.items()])}"
        for title, own in cells.items()
        if own
    ]
    facts = {name: x for name, x in environment().items() if name != "malloc"} | {
        "processor": processor(),
        "threads": 1,
    }
    text = "\n\n".join([f"# {__doc__.splitlines()[0]}", listed(facts), *parts, RULE]) + "\n"
    save_csv(
        [{name: x for name, x in row.items() if name != "scores"} for row in rows],
        folder / FILES[1],
    )
    save_text(text, folder / FILES[2])
    print(text)


RULE = (
    "s: CPU seconds. ×: of the first row's. MiB: the most memory above the start. disk: MiB of"
    " files after the training. cosine: with the first scores of the table, in float32; or, in"
    " float64, with central differences of the plain loop, which trains with torch.optim.AdamW."
    " error: the largest, over the largest score."
)


def table(rows: Sequence[Facts]) -> str:
    """A line for each way."""
    first = next((torch.tensor(row["scores"]) for row in rows if row.get("scores")), None)

    def line(row: Facts) -> dict[str, str]:
        if row["status"] != "ok":
            return {"s": row["status"], "×": "", "MiB": "", "disk": "", "cosine": ""}
        cosine = (
            first is not None
            and row["scores"]
            and cosine_similarity(first, torch.tensor(row["scores"]), dim=0)
        )
        return {
            "s": f"{row['seconds']:.1f}",
            "×": f"{row['seconds'] / rows[0]['seconds']:.1f}",
            "MiB": f"{row['memory_bytes'] / 2**20:,.0f}",
            "disk": f"{row['disk_bytes'] / 2**20:,.0f}",
            "cosine": f"{cosine:.6f}" if row["scores"] else "",
        }

    def exact(row: Facts) -> dict[str, str]:
        return {"cosine": f"{row['cosine']:.6f}", "error": f"{row['error']:.1e}"}

    return markdown([{"": row["way"], **(exact if row["is_small"] else line)(row)} for row in rows])


if __name__ == "__main__":
    main()
