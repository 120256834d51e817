"""Cost over size: seconds and memory of reading data, of a teacher's step and of a student's, and
the bytes that are kept, beside what grows.

    python recipes/benchmark/size.py                         # all cells, about half an hour on one core; goes on where it was stopped
    python recipes/benchmark/size.py --axes items --largest 10000 --output_dir outputs/size

The data are generated. Interactions: activity of users and popularity of items are skewed, and an
item does not depend on those before. Text: made-up words by a law of Zipf, in lines of twenty. Each
cell has its own process. The last column of the table is the exponent of the fit y = a · xᵉ through
the two largest sizes of an axis; the last rows are what it says of sizes that were not run: 100
million interactions, and a billion tokens.
"""  # noqa: E501

from __future__ import annotations

import math
import sys
import tempfile
from argparse import ArgumentParser
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import harness
import numpy as np
import pyarrow as pa
from datasets import Dataset
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
from transformers import GPT2Config

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.data import load_interactions, word_tokenizer
from farzi_hf.models import SASRecConfig
from farzi_hf.report import listed, markdown, save_csv, save_text
from farzi_hf.tasks import LanguageModeling, Recommendation

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))
from curves import Panel, plot_curves

FILES = ("results.json", "results.csv", "table.md", "size.png")
AXES: dict[str, list[int]] = {
    "interactions": [100_000, 1_000_000, 10_000_000],
    "tokens": [100_000, 1_000_000, 10_000_000],
    "items": [1_000, 4_000, 16_000, 64_000],
    "entries of a text's vocabulary": [1_000, 4_000, 16_000],
    "width of a recommender": [16, 32, 64, 128],
    "width of a language model": [16, 32, 64, 128],
}
UNITS = {
    "Interactions or tokens that are read": ("interactions", "tokens"),
    "Items or entries, width 16": ("items", "entries of a text's vocabulary"),
    "Width, 4,000 items or entries": ("width of a recommender", "width of a language model"),
}
"""Axes whose sizes are counted in the same unit, by its label in the figure."""
WANTED = {"interactions": 100_000_000, "tokens": 1_000_000_000}
MEASURED = {
    "read": "s",
    "teacher's step": "s",
    "student's step": "s",
    "peak": "MB",
    "summary": "bytes",
}
_BLOCK = 1 << 20
_ROWS = 400
_STEPS = 10


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the cells, and writes the table and the figure."""
    parser = ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--axes", nargs="+", default=list(AXES), choices=list(AXES))
    parser.add_argument("--largest", type=int, default=10**9, help="leave out larger sizes")
    parser.add_argument("--memory_limit", type=float, default=16.0, help="GiB of a process")
    parser.add_argument("--time_limit", type=float, default=1200.0, help="seconds of a process")
    parser.add_argument("--output_dir", default="model_cards/size")
    args = parser.parse_args(argv)
    output = Path(args.output_dir)
    limits = Limits(args.memory_limit, args.time_limit)
    with ends_in_one_line("size.py"):
        rows = read_rows(output, FILES)
    cells = [
        {"axis": axis, "size": size}
        for axis in args.axes
        for size in AXES[axis]
        if size <= args.largest
    ]
    settings = {
        "processor": processor(),
        "memory_limit": args.memory_limit,
        "time_limit": args.time_limit,
    }
    rows = complete(
        output / FILES[0],
        rows,
        cells,
        lambda cell: in_process(measure, cell, limits),
        settings,
        code_hash("size"),
    )
    order = list(AXES)
    write(sorted(rows, key=lambda row: (order.index(row["axis"]), row["size"])), output)


def measure(report: Report, axis: str, size: int) -> None:
    """The cell of one size: data are read, or a summary is made of some."""
    harness.return_freed_memory()
    peak = PeakMemory()
    if axis in WANTED:
        read = {"interactions": read_interactions, "tokens": read_text}[axis]
        report({"read": read(size)[1], "peak": peak.read()})
        return
    keep_freed_memory()
    wide = size if axis.startswith("width") else 16
    entries = 4_000 if axis.startswith("width") else size
    text = axis in ("entries of a text's vocabulary", "width of a language model")
    report(steps(entries, wide, text))
    report({"peak": peak.read()})


def read_interactions(size: int) -> tuple[float, float]:
    """Wall and processor seconds from a table in memory to splits."""
    table = generated(size // 20, 10_000, size)
    return Timer()(lambda: load_interactions(table).strong_generalization_split(seed=0))


def generated(users: int, items: int, interactions: int, seed: int = 0) -> pa.Table:
    """Columns user (int32), item (int16) and timestamp (int16) in random order; 8 bytes per
    interaction.
    """
    generator = np.random.default_rng(seed)
    activity = np.cumsum(generator.lognormal(sigma=1.2, size=users))
    popularity = np.cumsum(1 / np.arange(20, items + 20))
    kinds = {"user": np.int32, "item": np.int16, "timestamp": np.int16}
    columns = {name: np.empty(interactions, kind) for name, kind in kinds.items()}
    for first in range(0, interactions, _BLOCK):
        block = slice(first, first + _BLOCK)
        size = len(columns["user"][block])
        columns["user"][block] = np.searchsorted(activity, generator.random(size) * activity[-1])
        columns["item"][block] = np.searchsorted(
            popularity, generator.random(size) * popularity[-1]
        )
        columns["timestamp"][block] = generator.integers(2000, size=size)
    return pa.table(columns)


def read_text(size: int) -> tuple[float, float]:
    """Wall and processor seconds from files to ids: a tokenizer is trained on them, too."""
    generator = np.random.default_rng(0)
    words = np.array(
        [
            "".join(map(chr, generator.integers(97, 123, generator.integers(2, 9))))
            for _ in range(20_000)
        ]
    )
    shares = np.cumsum(1 / np.arange(3, len(words) + 3))
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, size, _BLOCK):
            drawn = words[
                np.searchsorted(shares, generator.random(min(_BLOCK, size - first)) * shares[-1])
            ]
            lines = (" ".join(drawn[i : i + 20]) + "\n" for i in range(0, len(drawn), 20))
            save_text("".join(lines), Path(folder, f"{first}.txt"))
        return Timer()(lambda: LanguageModeling.load("*.txt", folder)[1](0))


def steps(entries: int, width: int, text: bool) -> Facts:
    """Processor seconds of a step of 16 real rows of 20 ids, and of one of 40 drawn rows of 20 ids
    with a teacher's labels; and bytes.
    """
    rows = Dataset.from_dict(
        {"input_ids": np.random.default_rng(0).integers(4, entries, (_ROWS, 21)).tolist()}
    )
    if text:
        tokenizer = word_tokenizer([" ".join(f"w{i}" for i in range(entries))], entries)
        config: Any = GPT2Config(
            vocab_size=len(tokenizer),
            n_positions=32,
            n_embd=width,
            n_layer=1,
            n_head=1,
            tie_word_embeddings=False,
            initializer_range=0.1,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            resid_pdrop=0.0,
            bos_token_id=None,
            eos_token_id=None,
        )
        task: Any = LanguageModeling(tokenizer)
    else:
        config = SASRecConfig(num_items=entries, hidden_size=width, max_length=20)
        task = Recommendation([str(i) for i in range(entries)])
    with tempfile.TemporaryDirectory() as folder:
        args = FarziConfig(
            folder,
            labels="teacher",
            inputs="drawn",
            storage="coded5",
            num_sequences=64,
            sequence_length=20,
            teacher_steps=_STEPS,
            packing_steps=0,
            inner_steps=_STEPS,
            synthetic_batch_size=40,
            max_steps=0,
            report_to="none",
            use_cpu=True,
            disable_tqdm=True,
        )
        trainer = FarziTrainer(config, args, rows, task=task)
        timer = Timer()
        training = args.make_teacher_training()
        taught = min(
            timer(lambda: training.train(trainer.learner, trainer.real_data, 0))[1]
            for _ in range(2)
        )
        trainer.tune_initialization()
        trainer.model.store_as(args.storage)
        learnt = min(timer(lambda: trainer.students.on_summary(0))[1] for _ in range(2))
        return {
            "teacher's step": taught / _STEPS,
            "student's step": learnt / _STEPS,
            "summary": trainer.model.nbytes,
        }


def exponent(rows: Sequence[Facts], name: str) -> float | None:
    """e of y = a · xᵉ through the two largest sizes that have the figure; None with fewer."""
    points = [(row["size"], row[name]) for row in rows if row.get(name)][-2:]
    if len(points) < 2:
        return None
    (x, y), (x2, y2) = points
    return math.log(y2 / y) / math.log(x2 / x)


def write(rows: Sequence[Facts], output: Path) -> None:
    """results.csv, table.md and size.png."""
    save_csv(
        [
            {name: row.get(name) for name in ("axis", "size", *MEASURED, "status", "commit")}
            for row in rows
        ],
        output / FILES[1],
    )
    lines = []
    for axis, group in groupby(rows, key=lambda row: row["axis"]):
        some = [row for row in group if row["status"] == "ok"]
        lines += [readable(axis, f"{row['size']:,}", row) for row in some]
        fits = {name: exponent(some, name) for name in MEASURED}
        known = {name: e for name, e in fits.items() if e is not None}
        lines.append(
            {
                **readable(axis, "exponent", {}),
                **{f"{name}, {MEASURED[name]}": f"{e:.2f}" for name, e in known.items()},
            }
        )
        if axis in WANTED and known:
            larger = {
                name: some[-1][name] * (WANTED[axis] / some[-1]["size"]) ** e
                for name, e in known.items()
            }
            lines.append(readable(axis, f"{WANTED[axis]:,} (from the fit)", larger))
    facts = listed({k: v for k, v in rows[-1].items() if k in ("processor", "commit")})
    save_text(f"# Cost over size\n\n{markdown(lines, ('size',))}\n\n{facts}\n", output / FILES[2])
    draw(rows, output)
    print((output / FILES[2]).read_text(encoding="utf-8"))


def draw(rows: Sequence[Facts], output: Path) -> None:
    """size.png: a panel for each unit in which a size is counted."""
    panels = []
    for label, axes in UNITS.items():
        drawn = [
            {**row, "method": f"{name}, {row['axis']}", "y": row[name]}
            for row in rows
            for name in ("read", "student's step")
            if row["axis"] in axes and row.get(name)
        ]
        if drawn:
            panels.append(Panel(drawn, "size", "y", label, "Seconds", "xy"))
    if panels:
        plot_curves(output / FILES[3], *panels)


def readable(axis: str, size: str, row: Facts) -> dict[str, str]:
    """One line of the table."""
    shown = {
        "read": ",.1f",
        "teacher's step": ".4f",
        "student's step": ".4f",
        "peak": ",.0f",
        "summary": ",.0f",
    }
    value = lambda name: row[name] / 1e6 if name == "peak" else row[name]  # noqa: E731
    cells = {
        f"{name}, {unit}": format(value(name), shown[name]) if row.get(name) else ""
        for name, unit in MEASURED.items()
    }
    return {"what grows": axis, "size": size, **cells}


if __name__ == "__main__":
    run(main)
