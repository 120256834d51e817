"""Measures time and memory of one meta-gradient against the number of inner steps T, with our
methods and with other libraries.

    make bench                                        # all cells, about two hours; goes on where it was stopped
    python recipes/benchmark/benchmark.py --methods Tape autograd --steps 50 100
    python recipes/benchmark/benchmark.py --num_sequences 10 --sequence_length 20 --vocab_size 200 --steps 5 10 --output_dir outputs/benchmark

A cell is one method at one T, in a process of its own (`harness.py`). The process warms up at T =
2, measures the peak memory of one meta-gradient, and then times up to three. Its gradient is
compared with a reference in float64.
"""  # noqa: E501

import hashlib
import importlib.util
import random
import statistics
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
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
    unfinished,
)
from methods import METHODS, PACKAGES, REFERENCE, Ours, Problem, Size
from safetensors.torch import load_file, save_file

from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.report import markdown, save_csv, save_text

sys.path.append(str(Path(__file__).resolve().parents[1] / "paper"))
from curves import Panel, plot_curves

FILES = ("results.json", "results.csv", "table.md", "benchmark.png")
LONG_REPETITION = 20.0  # seconds; a cell that takes longer is not repeated
REPETITIONS = 3
WARM_UP_STEPS = 2
FIRST = (
    "method",
    "kind",
    "steps",
    "status",
    "note",
    "repetitions",
    "seconds",
    "seconds_min",
    "cpu_seconds",
    "cpu_seconds_min",
    "memory_bytes",
    "relative_error",
    "warm_up_seconds",
    "G_seconds",
    "R_seconds",
    "R/G",
    "total/(T·G)",
)
"""The first columns of results.csv."""


def arguments(argv: Sequence[str] | None) -> Namespace:
    """The cells to measure, the sizes of the problem, and the limits of the processes."""
    parser = ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument(
        "--methods", nargs="+", choices=METHODS, default=list(METHODS), help="rows of the table"
    )
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[10, 50, 100, 200, 400], help="values of T"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument(
        "--memory_limit",
        type=float,
        default=20.0,
        help="GiB of a process; with more it is 'out of memory'",
    )
    parser.add_argument(
        "--time_limit",
        type=float,
        default=1800.0,
        help="seconds of a process; after these it is 'too slow'",
    )
    parser.add_argument(
        "--output_dir", default="model_cards/benchmark", help="folder of table and plot"
    )
    for size in fields(Size):
        parser.add_argument(
            f"--{size.name}", type=int, default=size.default, help="see methods.Size"
        )
    args = parser.parse_args(argv)
    for package in ["psutil", *(PACKAGES[name] for name in args.methods if name in PACKAGES)]:
        if importlib.util.find_spec(package) is None:
            parser.error(
                f"--methods needs {package}, which is not installed: pip install farzi-hf[bench]"
            )
    args.size = Size(**{size.name: getattr(args, size.name) for size in fields(Size)})
    args.limits = Limits(args.memory_limit, args.time_limit, args.threads)
    return args


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the cells, and writes the tables and the figure."""
    args = arguments(argv)
    size = args.size
    output = Path(args.output_dir)
    with ends_in_one_line("benchmark.py"):
        rows = read_rows(output, FILES)
    settings = {
        **asdict(size),
        "device": args.device,
        "gpu": torch.cuda.get_device_name() if args.device == "cuda" else "",
        "processor": processor(),
        "threads": args.threads,
        "memory_limit_gib": args.memory_limit,
        "time_limit_s": args.time_limit,
        "torch": torch.__version__,
    }
    code = code_hash("benchmark", "methods")

    def run_cell(cell: Facts) -> Facts:
        reference = reference_gradient(args, cell["steps"], output / "reference", code)
        given = {"size": asdict(size), "device": args.device, "reference": str(reference)}
        kind = "ours" if isinstance(METHODS[cell["method"]], Ours) else "peer"
        return {"kind": kind, **in_process(measure, {**cell, **given}, args.limits)}

    rows = in_order(complete(output / FILES[0], rows, order(args), run_cell, settings, code))
    text = tables(rows)
    save_csv([{**dict.fromkeys(FIRST), **row} for row in rows], output / FILES[1])
    save_text(text, output / FILES[2])
    draw(rows, output)
    print(f"{text}\nResults: {output}")
    if failed := [
        f"{row['method']}, T = {row['steps']}: {row['note']}" for row in rows if unfinished(row)
    ]:
        sys.exit(
            "benchmark.py: failed cells, which the next run tries again:\n" + "\n".join(failed)
        )


def draw(rows: Sequence[Facts], output: Path) -> None:
    """benchmark.png: time and memory over T, without the rows that came to no end."""
    timed = [
        {**row, "per_step": row["seconds"] / row["steps"]} for row in rows if row.get("seconds")
    ]
    if not timed:
        return
    label = "Inner steps T"
    seconds = Panel(timed, "steps", "per_step", label, "Milliseconds per inner step", "x", 1e3)
    memory = Panel(timed, "steps", "memory_bytes", label, "Peak memory (MB, log scale)", "xy", 1e-6)
    plot_curves(output / FILES[3], seconds, memory)


def order(args: Namespace) -> list[Facts]:
    """All cells, small T first. The order of the methods differs at each T, so that a drift of the
    machine favours none of them.
    """
    shuffled = random.Random(0)
    drawn = (
        (steps, shuffled.sample(args.methods, len(args.methods))) for steps in sorted(args.steps)
    )
    return [{"method": name, "steps": steps} for steps, names in drawn for name in names]


def in_order(rows: Iterable[Facts]) -> list[Facts]:
    """The rows in the order of METHODS, and for each method by T."""
    return sorted(rows, key=lambda row: (list(METHODS).index(row["method"]), row["steps"]))


# -- one cell --------------------------------------------------------------------------------------


def reference_gradient(args: Namespace, steps: int, folder: Path, code: str) -> Path:
    """The file of the float64 gradient. If it does not exist, this computes it."""
    name = hashlib.sha256(f"{args.size} {args.device} {code}".encode()).hexdigest()[:12]
    path = folder / f"{name}-{steps}.safetensors"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        new = folder / f".new-{path.name}"
        cell = {"steps": steps, "size": asdict(args.size), "device": args.device, "path": str(new)}
        facts = in_process(save_reference, cell, args.limits)
        if facts["status"] != "ok":
            sys.exit(
                f"benchmark.py: no float64 reference for T = {steps}: {facts['status']},"
                f" {facts['note']}"
            )
        new.rename(path)
    return path


def save_reference(report: Report, steps: int, size: Facts, device: str, path: str) -> None:
    """Saves the gradient in float64."""
    keep_freed_memory()
    gradient = Problem.of(Size(**size), torch.float64, device).meta_gradient(
        METHODS[REFERENCE], steps
    )
    save_file(dict(zip(("latents", "decoder"), gradient, strict=True)), path)


def measure(
    report: Report, method: str, steps: int, size: Facts, device: str, reference: str
) -> None:
    """Reports the cost of one meta-gradient: memory, relative error, time and, for our methods, G
    and R. Each is reported at once.

    The first run measures memory, and its malloc returns freed memory to the system. The next runs
    measure time, and their malloc keeps freed memory.
    """
    problem = Problem.of(Size(**size), torch.float32, device)
    way = METHODS[method]
    timer = Timer(device)
    harness.return_freed_memory()
    _, warm_up = timer.result(lambda: problem.meta_gradient(way, WARM_UP_STEPS))
    report({"warm_up_seconds": warm_up[0]})
    peak = PeakMemory(device)
    gradient = problem.meta_gradient(way, steps)
    expected = load_file(reference)
    error = relative_error(gradient, [expected["latents"], expected["decoder"]])
    report({"memory_bytes": peak.read(), "relative_error": error})
    del gradient
    keep_freed_memory()
    problem.meta_gradient(way, WARM_UP_STEPS)
    if isinstance(way, Ours):
        way.step_seconds(problem, timer)
    times: list[tuple[float, float]] = []
    step_times: list[tuple[float, float]] = []
    while len(times) < REPETITIONS and (not times or times[0][0] < LONG_REPETITION):
        times.append(timer(lambda: problem.meta_gradient(way, steps)))
        if isinstance(way, Ours):
            step_times.append(way.step_seconds(problem, timer))
        report(summarised(times, step_times, steps))


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """‖found − expected‖ / ‖expected‖ over all tensors together, in float64."""
    found, expected = (
        torch.cat([x.flatten().cpu().double() for x in tensors]) for tensors in (found, expected)
    )
    return float((found - expected).norm() / expected.norm())


def summarised(
    times: Sequence[tuple[float, float]], step_times: Sequence[tuple[float, float]], steps: int
) -> Facts:
    """The columns of a cell, from the (wall, CPU) seconds of all repetitions and from the seconds
    of G and R.
    """
    wall, cpu = zip(*times, strict=True)
    facts = {
        "repetitions": len(times),
        "seconds": statistics.median(wall),
        "seconds_min": min(wall),
        "cpu_seconds": statistics.median(cpu),
        "cpu_seconds_min": min(cpu),
    }
    if not step_times:
        return facts
    gradient, reverse = map(statistics.median, zip(*step_times, strict=True))
    ratios = {"R/G": reverse / gradient, "total/(T·G)": facts["seconds"] / (steps * gradient)}
    return {**facts, "G_seconds": gradient, "R_seconds": reverse, **ratios}


# -- tables ----------------------------------------------------------------------------------------


def tables(rows: Sequence[Facts]) -> str:
    """Markdown: first machine and problem, then time, memory and error against T, and the engine's
    own ratios.
    """
    ours = [row for row in rows if row["kind"] == "ours"]
    parts = [
        ("", circumstances(rows)),
        ("Seconds of one meta-gradient", by_steps(rows, "seconds", seconds)),
        ("CPU seconds (user + system)", by_steps(rows, "cpu_seconds", seconds)),
        (
            "Peak memory above that after the warm-up, MB",
            by_steps(rows, "memory_bytes", lambda x: f"{x / 1e6:,.0f}"),
        ),
        (
            "Relative error of the gradient against float64",
            by_steps(rows, "relative_error", lambda x: f"{x:.0e}"),
        ),
    ]
    if ours:
        parts.append(
            ("Our seconds in units of T·G", by_steps(ours, "total/(T·G)", lambda x: f"{x:.2f}"))
        )
        parts.append(
            ("One inner gradient G and one reverse step R (medians over T)", engine_table(ours))
        )
    return (
        "\n\n".join(f"**{title}**\n\n{table}" if title else table for title, table in parts) + "\n"
    )


def seconds(value: float) -> str:
    """With two decimals below a hundred."""
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def circumstances(rows: Sequence[Facts]) -> str:
    """The circumstances of the measurement: machine, versions, problem, and settings that all
    methods share.
    """
    last = rows[-1]
    commits = sorted({str(row["commit"]) for row in rows if row.get("commit")})
    return (
        f"- {last['date']}, commit {', '.join(commits) or 'unknown'},"
        f" {last.get('gpu') or last['processor']}, {last['threads']} thread(s), torch"
        f" {last['torch']}, float32\n- GPT-2 of one layer, h = {last['hidden_size']}, V ="
        f" {last['vocab_size']}; summary {last['num_sequences']} × {last['sequence_length']}, d ="
        f" {last['latent_dim']}, whole in every inner step; Adam; gradient in latents and"
        f" decoder\n- a process per cell, limited to {last['memory_limit_gib']} GiB and"
        f" {last['time_limit_s']} s; median of up to three; malloc for all methods:"
        f" {last['malloc']}\n- higher's Adam adds ε at another place, so it computes another"
        " gradient: its error is not a rounding error"
    )


def by_steps(rows: Sequence[Facts], column: str, shown: Callable[[float], str]) -> str:
    """A table with a row per method and a column per T. A cell without a number holds
    the reason.
    """
    cells = {(row["method"], row["steps"]): row for row in rows}

    def cell(method: str, t: int) -> str:
        row = cells.get((method, t), {"status": ""})
        return (
            row["status"]
            if row["status"] != "ok"
            else shown(row[column])
            if row.get(column) is not None
            else ""
        )

    steps = sorted({row["steps"] for row in rows})
    methods = dict.fromkeys(row["method"] for row in rows)
    return markdown([{"": name, **{f"T = {t}": cell(name, t) for t in steps}} for name in methods])


def engine_table(ours: Sequence[Facts]) -> str:
    """A table with a row per method: G, R, their ratio, and the time of the warm-up, which includes
    the compilation.
    """
    columns = {
        "G, s": ("G_seconds", 4),
        "R, s": ("R_seconds", 4),
        "R/G": ("R/G", 2),
        "warm-up, s": ("warm_up_seconds", 1),
    }

    def median(method: str, column: str, digits: int) -> str:
        values = [
            row[column] for row in ours if row["method"] == method and row.get(column) is not None
        ]
        return f"{statistics.median(values):.{digits}f}" if values else ""

    methods = dict.fromkeys(row["method"] for row in ours)
    return markdown(
        [
            {"": m, **{title: median(m, *column) for title, column in columns.items()}}
            for m in methods
        ]
    )


if __name__ == "__main__":
    run(main)
