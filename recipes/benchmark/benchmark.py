"""Measures time and memory of one meta-gradient against the number of inner steps T, with our methods and with other libraries.

    make bench                                        # all cells, about two hours; goes on where it was stopped
    python recipes/benchmark/benchmark.py --scale quick         # minutes, small sizes
    python recipes/benchmark/benchmark.py --methods Tape autograd --steps 50 100

A cell is one method at one T. Each cell has its own process: a fresh interpreter, with the same threads and the same settings of
malloc. The process warms up at T = 2, measures the peak memory of one meta-gradient, and then times up to three. Its gradient is
compared with a reference in float64.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import platform
import random
import sys
from argparse import ArgumentParser
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from methods import (
    Method,
    Ours,
    Problem,
    Size,
    autograd,
    higher_adam,
    our_loss,
    plain_loss,
    step_checkpoint,
    torchopt_adam,
)
from process import Facts, end_with_parent, measure, run_limited, save, unfinished
from results import Row, check_folder, read_rows, write_results
from tqdm import tqdm
from transformers import HfArgumentParser

from farzi_hf.cli.program import keep_freed_memory, run
from farzi_hf.engine import Checkpoint, Direct, GradientGraphs, Reversible, Tape
from farzi_hf.report.rendering import commit_of

ROOT = Path(__file__).resolve().parent
REPOSITORY = ROOT.parents[1]
METHODS: dict[str, Method] = {
    "autograd": autograd(plain_loss),
    "autograd, our loss": autograd(our_loss),
    "higher": higher_adam,
    "TorchOpt": torchopt_adam,
    "torch.utils.checkpoint": step_checkpoint,
    "GradientGraphs": Ours(GradientGraphs),
    "Direct": Ours(Direct),
    "Tape": Ours(Tape),
    "Checkpoint": Ours(Checkpoint),
    "Reversible": Ours(Reversible),
    "Tape, compiled": Ours(Tape, torch_compile=True),
    "Checkpoint, compiled": Ours(Checkpoint, torch_compile=True),
    "Reversible, compiled": Ours(Reversible, torch_compile=True),
}
REFERENCE = "Tape"  # in float64
PACKAGES = {"higher": "higher", "TorchOpt": "torchopt"}  # what a method imports
SCALES: dict[str, dict[str, Any]] = {
    "full": {},
    "quick": {**asdict(Size(10, 20, 8, 200, 16, 16)), "steps": [5, 10, 20], "output_dir": "outputs/benchmark_quick"},
}


@dataclass
class BenchmarkArguments:
    """The cells to measure, and the limits of their processes."""

    scale: str = field(default="full", metadata={"help": f"{' | '.join(SCALES)}: defaults of the other arguments"})
    methods: list[str] = field(default_factory=lambda: list(METHODS), metadata={"help": "rows of the table"})
    steps: list[int] = field(default_factory=lambda: [10, 50, 100, 200, 400], metadata={"help": "values of T"})
    device: str = field(default="cpu", metadata={"help": "cpu | cuda"})
    threads: int = field(default=1, metadata={"help": "threads of each process"})
    memory_limit: float = field(default=20.0, metadata={"help": "GiB of a process; with more it is 'out of memory'"})
    time_limit: float = field(default=1800.0, metadata={"help": "seconds of a process; after these it is 'too slow'"})
    output_dir: str = field(default="model_cards/benchmark", metadata={"help": "folder of table and plot"})
    anew: bool = field(default=False, metadata={"help": "discard the results in output_dir"})

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise ValueError(f"methods: {name!r} is unknown; choose from {', '.join(map(repr, METHODS))}")
        for package in ["psutil", *(PACKAGES[name] for name in self.methods if name in PACKAGES)]:
            if importlib.util.find_spec(package) is None:
                raise ValueError(
                    f"methods={self.methods} needs the package {package}, which is not installed: "
                    "pip install farzi-hf[bench]"
                )
        if self.device not in ("cpu", "cuda") or (self.device == "cuda" and not torch.cuda.is_available()):
            raise ValueError(f"device={self.device!r} does not exist here: use cpu, or cuda on a machine with a GPU")
        if min(self.steps) < 1 or self.threads < 1:
            raise ValueError(f"steps={self.steps} and threads={self.threads} must be at least 1")

    def settings(self, size: Size) -> dict[str, Any]:
        """The settings that all results in one table must share."""
        gpu = torch.cuda.get_device_name() if self.device == "cuda" else ""
        machine = {"device": self.device, "gpu": gpu, "processor": processor(), "threads": self.threads}
        limits = {"memory_limit_gib": self.memory_limit, "time_limit_s": self.time_limit}
        return {**asdict(size), **machine, **limits, "torch": torch.__version__}


def main(argv: Sequence[str] | None = None) -> None:
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:1] == ["--cell"]:
        measure_cell(json.loads(argv[1]), Path(argv[2]))
        return
    try:
        args, size = parse(argv)
        check_folder(Path(args.output_dir))
        rows = previous_rows(args, size)
    except ValueError as error:
        sys.exit(f"benchmark.py: {error}")
    output = Path(args.output_dir)
    code = code_hash()
    facts = {**args.settings(size), **environment(), "code": code, "date": date.today().isoformat()}
    cells = [cell for cell in order(args) if rows.get(cell, {}).get("code") != code or unfinished(rows[cell])]
    for method, steps in (progress := tqdm(cells)):
        progress.set_description(f"{method}, T = {steps}")
        measured = run_cell(args, size, method, steps, reference_gradient(args, size, steps, output / "reference"))
        kind = "ours" if isinstance(METHODS[method], Ours) else "peer"
        rows[method, steps] = {"method": method, "kind": kind, "steps": steps, **measured, **facts}
        write_results(in_order(rows.values()), output)
    write_results(in_order(rows.values()), output)  # also without a new cell: the layout may be new
    print((output / "table.md").read_text(encoding="utf-8"), f"\nResults: {output}", sep="")
    if failed := [f"{name}, T = {steps}: {row['note']}" for (name, steps), row in rows.items() if unfinished(row)]:
        sys.exit("benchmark.py: failed cells, which the next run tries again:\n" + "\n".join(failed))


def parse(argv: Sequence[str]) -> tuple[BenchmarkArguments, Size]:
    """Arguments, with the defaults of `--scale`."""
    first = ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--scale", default="full")
    scale = first.parse_known_args(argv)[0].scale
    if scale not in SCALES:
        raise ValueError(f"scale={scale!r} is unknown; choose from {', '.join(SCALES)}")
    parser = HfArgumentParser((BenchmarkArguments, Size), allow_abbrev=False)
    parser.set_defaults(**SCALES[scale])
    return parser.parse_args_into_dataclasses(argv, look_for_args_file=False)


def previous_rows(args: BenchmarkArguments, size: Size) -> dict[tuple[str, int], Row]:
    """The rows of earlier runs in the output folder, by method and T. With `--anew`, an empty dict.

    Raises:
        ValueError: the rows were measured with other settings.
    """
    rows = [] if args.anew else read_rows(Path(args.output_dir) / "results.csv")
    for row in rows:
        changed = [key for key, value in args.settings(size).items() if row.get(key) != str(value)]
        if changed:
            raise ValueError(
                f"output_dir={args.output_dir!r} holds results with other {', '.join(changed)}: "
                "choose another --output_dir, or --anew to discard them"
            )
    return {(row["method"], row["steps"]): row for row in rows if row["method"] in METHODS}


def order(args: BenchmarkArguments) -> list[tuple[str, int]]:
    """All cells, small T first. The order of the methods differs at each T, so that a drift of the machine favours none of them."""
    shuffled = random.Random(0)
    return [(name, steps) for steps in sorted(args.steps) for name in shuffled.sample(args.methods, len(args.methods))]


def in_order(rows: Iterable[Row]) -> list[Row]:
    """The rows in the order of METHODS, and for each method by T."""
    return sorted(rows, key=lambda row: (list(METHODS).index(row["method"]), row["steps"]))


# -- one cell --------------------------------------------------------------------------------------------------------


def run_cell(
    args: BenchmarkArguments, size: Size, method: str, steps: int, reference: Path, dtype: str = "float32"
) -> Facts:
    """Runs one cell in its own process. In float64, it saves its gradient as the reference; in float32, it is measured."""
    cell = {"method": method, "steps": steps, "dtype": dtype, "device": args.device, "threads": args.threads}
    cell.update(size=asdict(size), reference=str(reference))
    variables = {
        **os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": str(args.threads), "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }  # fmt: skip
    command = [sys.executable, str(ROOT / "benchmark.py"), "--cell", json.dumps(cell)]
    return run_limited(command, variables, int(args.memory_limit * 2**30), args.time_limit)


def reference_gradient(args: BenchmarkArguments, size: Size, steps: int, folder: Path) -> Path:
    """The file of the float64 gradient. If it does not exist, this computes it."""
    problem = hashlib.sha256(f"{size} {args.device} {code_hash()}".encode()).hexdigest()[:12]
    path = folder / f"{problem}-{steps}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".new-{path.name}"
        facts = run_cell(args, size, REFERENCE, steps, new, "float64")
        if facts["status"] != "ok":
            sys.exit(f"benchmark.py: no float64 reference for T = {steps}: {facts['status']}, {facts['note']}")
        new.rename(path)
    return path


def measure_cell(cell: Facts, report: Path) -> None:
    """The process of one cell."""
    end_with_parent()
    torch.set_num_threads(cell["threads"])
    method, reference = METHODS[cell["method"]], Path(cell["reference"])
    problem = Problem.of(Size(**cell["size"]), getattr(torch, cell["dtype"]), cell["device"])
    if cell["dtype"] == "float64":
        keep_freed_memory()
        save(problem.meta_gradient(method, cell["steps"]), reference)
        return
    with report.open("a", encoding="utf-8") as file:
        measure(
            problem, method, cell["steps"], reference, lambda facts: print(json.dumps(facts), file=file, flush=True)
        )


# -- what a result depends on ----------------------------------------------------------------------------------------


def environment() -> dict[str, str]:
    """Facts about the machine and the software, for the table."""
    facts = {"malloc": "timed with freed memory kept" if platform.libc_ver()[0] == "glibc" else "default"}
    facts |= {"python": platform.python_version()}
    for package in ("transformers", *PACKAGES.values()):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return facts | commit_of(Path(__file__).resolve())


def processor() -> str:
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def code_hash(*more: Path) -> str:
    """A hash of the measured code and of `more` files. In contrast to the commit, it sees uncommitted changes and ignores all other files."""
    package = REPOSITORY / "farzi_hf"
    files = {*more, *package.rglob("*.py"), *(ROOT / f"{name}.py" for name in ("benchmark", "methods", "process"))}
    files -= {*(package / "plots").rglob("*.py")}
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[:12]


if __name__ == "__main__":
    run(main)
