"""Draws what a saved summary is worth: quality over the bytes that one must keep, and over what a
student reads and takes.

    python recipes/paper/carried.py outputs/ptb/summary --data_dir FOLDER --tables model_cards/ptb_*/table.csv

The first figure has the rows of the summary's own table, and of the tables of other runs on the
same test split. For the second one, students train for several numbers of steps T on the summary,
and on real data with as many tokens a step. Each (method, T) is kept in the folder of the card,
`model_cards/DATASET_carried/` by default, and a later start does not repeat it.
"""

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median_low
from typing import Any

from curves import Panel, plot_curves
from experiment import CARDS

from farzi_hf import FarziData
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, kept
from farzi_hf.report import Comparison, Measured, TaskData, markdown, save_csv, save_json, save_text
from farzi_hf.report.full_data import LONG
from farzi_hf.report.rendering import commit_of
from farzi_hf.report.rows import BASELINES, on_summary
from farzi_hf.tasks import ResultRow

BYTES = "quality_over_bytes.png"
TOKENS = "quality_over_tokens.png"
# how the names of rows begin, and their curve; other rows have diverged, or say the same again
CURVES = {
    "Farzi [": "distilled summary",
    "same inputs, teacher's labels": "summary, no outer step",
    "packed teacher": "students of a packed teacher",
    "teacher": "the packed teacher itself",
    "full data": "all real data",
    "random, same bytes, stopped early": None,
    "random, same bytes": "so many bytes of real data",
    "interpolated bigram": "counted bigram",
    "item bigram": "counted bigram",
    "Kneser-Ney": "counted n-grams",
    "rules of sequences": "counted rules",
}
REAL = ("full data", "random", "interpolated bigram", "item bigram")


def main(argv: Sequence[str] | None = None) -> None:
    """The table and both figures of one summary."""
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("summary", help="folder or dataset repository")
    parser.add_argument("--data_dir", help="folder with the real data")
    parser.add_argument("--tables", nargs="*", default=[], help="table.csv of other runs")
    parser.add_argument(
        "--steps", type=int, nargs="+", default=[30, 100, 300, 1000, 2000], help="T of students"
    )
    parser.add_argument("--num_students", type=int, default=3, help="of each row")
    parser.add_argument("--card_dir", help="folder of the table and figures")
    args = parser.parse_args(argv)
    keep_freed_memory()
    with ends_in_one_line("carried.py", OSError):
        farzi = FarziData.from_pretrained(args.summary)
        data = TaskData.of_summary(farzi, args.data_dir)
        folder = Path(args.card_dir or CARDS / f"{data.settings.dataset}_carried")
        check_outputs(folder, ("table.json", "table.md", "table.csv", BYTES, TOKENS))
        c = Comparison.of_summary(farzi, data, num_students=args.num_students)
        own = farzi.results.metrics.get("table", [])
        tables = [own, *map(rows_of, args.tables)]
    settings = {
        "data": data.fingerprint(data.seeds(42)[0]),
        "summary": farzi.fingerprint(),
        "students": c.num_students,
    }
    rows = list(by_steps(c, args.steps, folder, settings))
    compared = list(by_bytes(c, tables))
    table = [{**c.task.readable(row), "seconds": f"{row['seconds']:,.1f}"} for row in rows]
    parts = [
        f"# {data.settings.dataset}: students by their steps of {c.tokens_per_step:,} tokens",
        markdown(table),
    ]
    parts += (
        ["# Students by bytes", markdown([c.task.readable(row) for row in compared])]
        if compared
        else []
    )
    save_text("\n\n".join(parts) + "\n", folder / "table.md")
    save_csv([*rows, *compared], folder / "table.csv")
    save_json(
        {"findings": [], "rows": [*rows, *compared], **commit_of(Path(__file__))},
        folder / "table.json",
    )
    itself = BASELINES["teacher"](c, None)
    lines = {"the packed teacher itself": c.row(itself)[c.task.metric]} if itself else {}
    lines |= {
        f"all real data, {row['steps']:,} steps": row[c.task.metric]
        for row in own
        if row["method"] == LONG
    }
    draw(rows, compared, lines, (c.task.metric, c.task.metric_label), data_name(farzi), folder)
    print("\n\n".join(parts))


def by_steps(
    c: Comparison, numbers: Sequence[int], folder: Path, settings: Mapping[str, Any]
) -> Iterator[ResultRow]:
    """Students of the summary, and of all real data with as many tokens, for these numbers of
    steps.
    """
    measures = {
        f"students of the summary, {c.farzi.nbytes:,} bytes": on_summary,
        f"students of all real data, {c.nbytes(c.splits['train']):,} bytes": lambda c, name: (
            c.trained_on_real(name, c.all_sequences, c.steps)
        ),
    }
    for number, (name, measure) in enumerate(measures.items()):
        for steps in numbers:
            at = replace(c, steps=steps)
            now = {**settings, "method": name, "steps": steps}
            found = kept(
                folder / f"{number}_{steps}.json",
                now,
                lambda: measure(at, name).to_json(),  # noqa: B023
            )
            yield {**c.row(Measured.from_json(found)), "tokens": steps * c.tokens_per_step}


def by_bytes(c: Comparison, tables: Iterable[Sequence[ResultRow]]) -> Iterator[ResultRow]:
    """The rows that have a curve, each once. Ids of the data are counted as today: rows of real
    data in older tables have fewer bytes now.
    """
    nbytes = c.nbytes(c.splits["train"])
    seen = set()
    for table in tables:
        all_data = next((row["bytes"] for row in table if row["method"] == "full data"), nbytes)
        for row in table:
            curve = next(
                (curve for start, curve in CURVES.items() if row["method"].startswith(start)), None
            )
            size = (
                round(row["bytes"] * nbytes / all_data)
                if row["method"].startswith(REAL)
                else row["bytes"]
            )
            # Tables may differ in the size of a step.
            place = (
                curve,
                size,
                row.get("steps"),
                row[c.task.metric],
            )
            if curve and "stock" not in row["method"] and place not in seen:
                seen.add(place)
                yield {
                    **row,
                    "bytes": size,
                    "curve": f"{curve}, T = {row['steps']:,}" if row.get("steps") else curve,
                }


def data_name(farzi: FarziData) -> str:
    """Of the data set, as the figures' titles have it."""
    return farzi.results.metrics.get("dataset", "the data")


def draw(
    rows: Sequence[ResultRow],
    compared: Sequence[ResultRow],
    lines: Mapping[str, float],
    metric: tuple[str, str],
    data: str,
    folder: Path,
) -> None:
    """Both figures.

    Args:
        rows: of `by_steps`.
        compared: of `by_bytes`.
        lines: values of the second figure that do not depend on what a student reads: the
            teacher's, and that of real data for long.
        metric: its name in the rows, and in words.
        data: their name.
    """
    name, label = metric
    points = [{**row, "method": row["curve"]} for row in compared]
    title = f"Students after T steps on {data}, by bytes"
    if points:
        size = "Bytes that one must keep to train"
        top = 3 * median_low(row[name] for row in points)
        plot_curves(
            folder / BYTES,
            Panel(points, "bytes", name, size, label, "xy", title=title, joined=False, top=top),
        )
    a_step = round(rows[0]["tokens"] / rows[0]["steps"])
    read = Panel(
        rows,
        "tokens",
        name,
        f"Tokens that a student reads ({a_step:,} a step)",
        label,
        "xy",
        1.0,
        lines,
    )
    title = f"Students on {data}, by what they read"
    time = replace(
        read,
        x="seconds",
        x_label="Seconds of a student's training",
        title="The same students, by time",
    )
    plot_curves(folder / TOKENS, replace(read, title=title), time)


def rows_of(path: str) -> list[ResultRow]:
    """The rows of a table.csv."""
    with open(path, encoding="utf-8") as file:
        return [
            {k: v if k == "method" else json.loads(v) for k, v in row.items() if v}
            for row in csv.DictReader(file)
        ]


if __name__ == "__main__":
    run(main)
