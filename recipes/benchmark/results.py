"""The benchmark's files: results.csv with every number, table.md for readers, benchmark.png."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from farzi_hf.cli.run_folder import check_files
from farzi_hf.report import markdown, save_csv, save_text
from farzi_hf.report.plots import plot_benchmark

Row = dict[str, Any]

# Columns that are numbers, in the order of the file.
NUMBERS = {
    "steps": int, "repetitions": int, "seconds": float, "seconds_min": float, "cpu_seconds": float, "cpu_seconds_min": float,
    "memory_bytes": int, "relative_error": float, "warm_up_seconds": float, "G_seconds": float, "R_seconds": float,
    "R/G": float, "total/(T·G)": float,
}  # fmt: skip
SIGNATURE = ("method", "kind", "steps", "status", "note")
FIRST = (*SIGNATURE, *NUMBERS)
FILES = ("results.csv", "table.md", "benchmark.png")


def check_folder(folder: Path) -> None:
    """Refuses a folder whose files the benchmark would overwrite and has not written. Call this before any measurement.

    Raises:
        ValueError: one of the files is foreign.
    """
    check_files(folder, FILES, has_columns(folder / FILES[0], SIGNATURE))


def has_columns(path: Path, columns: Sequence[str]) -> bool:
    """Whether this is a CSV file whose first columns are these. This shows that a program here has written it."""
    with suppress(OSError, UnicodeDecodeError), path.open(encoding="utf-8", newline="") as file:
        return tuple(next(csv.reader(file), ()))[: len(columns)] == tuple(columns)
    return False


def read_rows(path: Path) -> list[Row]:
    """The rows of results.csv, or an empty list without the file. Numbers are numbers, empty cells None, settings text."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row.update({name: kind(row[name]) if row[name] else None for name, kind in NUMBERS.items()})
    return rows


def write_results(rows: Sequence[Row], folder: Path) -> None:
    """Replaces the three files. Each of them is complete at any time."""
    rows = [{**dict.fromkeys(FIRST), **row} for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    save_csv(rows, folder / "results.csv")
    save_text(tables(rows), folder / "table.md")
    if any(row["seconds"] is not None for row in rows):
        plot_benchmark(rows, folder / "benchmark.png")


def tables(rows: Sequence[Row]) -> str:
    """Markdown: first machine and problem, then time, memory and error against T, and the engine's own ratios."""
    ours = [row for row in rows if row["kind"] == "ours"]
    parts = [
        ("", "\n".join(f"- {line}" for line in circumstances(rows))),
        ("Seconds of one meta-gradient", by_steps(rows, "seconds", seconds)),
        ("CPU seconds (user + system)", by_steps(rows, "cpu_seconds", seconds)),
        ("Peak memory above that after the warm-up, MB", by_steps(rows, "memory_bytes", lambda x: f"{x / 1e6:,.0f}")),
        ("Relative error of the gradient against float64", by_steps(rows, "relative_error", lambda x: f"{x:.0e}")),
    ]
    if ours:
        parts.append(("Our seconds in units of T·G", by_steps(ours, "total/(T·G)", lambda x: f"{x:.2f}")))
        parts.append(("One inner gradient G and one reverse step R (medians over T)", engine_table(ours)))
    return "\n\n".join(f"**{title}**\n\n{table}" if title else table for title, table in parts) + "\n"


def seconds(value: float) -> str:
    return f"{value:,.2f}" if value < 100 else f"{value:,.0f}"


def circumstances(rows: Sequence[Row]) -> list[str]:
    """The circumstances of the measurement: machine, versions, problem, and settings that all methods share."""
    last, commits = rows[-1], sorted({str(row["commit"]) for row in rows if row.get("commit")})
    return [
        f"{last['date']}, commit {', '.join(commits) or 'unknown'}, {last.get('gpu') or last['processor']}, "
        f"{last['threads']} thread(s), torch {last['torch']}, float32",
        f"GPT-2 of one layer, h = {last['hidden_size']}, V = {last['vocab_size']}; summary {last['num_sequences']} × "
        f"{last['sequence_length']}, d = {last['latent_dim']}, whole in every inner step; Adam; gradient in latents and decoder",
        f"a process per cell, limited to {last['memory_limit_gib']} GiB and {last['time_limit_s']} s; median of up to three; "
        f"malloc for all methods: {last['malloc']}",
        "higher's Adam adds ε at another place, so it computes another gradient: its error is not a rounding error",
    ]


def by_steps(rows: Sequence[Row], column: str, shown: Callable[[float], str]) -> str:
    """A table with a row per method and a column per T. A cell without a number holds the reason."""
    cells = {(row["method"], row["steps"]): row for row in rows}
    steps = sorted({row["steps"] for row in rows})

    def cell(method: str, t: int) -> str:
        row = cells.get((method, t))
        if row is None:
            return ""
        return row["status"] if row["status"] != "ok" else shown(row[column]) if row[column] is not None else ""

    return markdown([{"": name, **{f"T = {t}": cell(name, t) for t in steps}} for name in _methods(rows)])


def engine_table(ours: Sequence[Row]) -> str:
    """A table with a row per method: G, R, their ratio, and the time of the warm-up, which includes the compilation."""

    def median(method: str, column: str, digits: int) -> str:
        values = [row[column] for row in ours if row["method"] == method and row[column] is not None]
        return f"{statistics.median(values):.{digits}f}" if values else ""

    columns = {"G_seconds": 4, "R_seconds": 4, "R/G": 2, "warm_up_seconds": 1}
    lines = [
        {"": name, **{column: median(name, column, columns[column]) for column in columns}} for name in _methods(ours)
    ]
    return markdown(
        [{column.replace("_seconds", ", s").replace("_", "-"): cell for column, cell in line.items()} for line in lines]
    )


def _methods(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row["method"] for row in rows))
