"""Draws figures of cards again from their tables: after a change of how figures look, nothing is
measured anew.

    python recipes/redraw.py model_cards/size model_cards/gcide_carried_128

A folder says by its files which recipe made it. Folders that no recipe of this list has made are an
error. Of the card of a summary the first figure is drawn, as exactly as its table is rounded, and
those of single metrics.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE / "paper"), str(HERE / "benchmark")]

import benchmark  # noqa: E402
import carried  # noqa: E402
import packing  # noqa: E402
import sample_efficiency  # noqa: E402
import scaling  # noqa: E402
import seconds  # noqa: E402
import size  # noqa: E402
import trajectory_count  # noqa: E402
from card_again import CardText, for_each_folder, number_of  # noqa: E402

from farzi_hf.cli.program import run  # noqa: E402
from farzi_hf.report.plots import plot_comparison  # noqa: E402
from farzi_hf.tasks import LanguageModeling, Recommendation, Task  # noqa: E402

Found = list[dict[str, Any]]


def main(argv: Sequence[str] | None = None) -> None:
    """Draws the figures of each folder."""
    for_each_folder("redraw.py", __doc__, draw, argv)


def draw(folder: Path) -> None:
    """The figures of one card.

    Raises:
        ValueError: the folder has no figure that this recipe can draw.
    """
    for name, (table, drawn) in FIGURES.items():
        if (folder / name).exists() and (folder / table).exists():
            drawn(rows_of(folder / table), folder)
            print(f"{folder / name}: drawn again", flush=True)
            return
    raise ValueError(
        f"{folder} has no figure that can be drawn again; name a folder with one of"
        f" {', '.join(FIGURES)} and its table"
    )


def rows_of(table: Path) -> Found:
    """The rows of a table in JSON, or those of the card of a summary, as it rounds them."""
    text = table.read_text(encoding="utf-8")
    if table.suffix == ".md":
        return [figures_of(row) for row in CardText(str(table.parent), text, {}).results]
    found = json.loads(text)
    return found if isinstance(found, list) else found["rows"]


CELL = re.compile(r"([\d.,]+)(?: ± [\d.,]+)?(?: \(([\d.,]+) to ([\d.,]+)\))?")
"""A figure in the table of a card: its mean, its spread and its interval."""


def figures_of(row: dict[str, str]) -> dict[str, Any]:
    """A row of a card with its figures as numbers."""
    figures: dict[str, Any] = {}
    for name, cell in row.items():
        match = CELL.fullmatch(cell)
        figures[name] = cell if match is None else number_of(match[1])
        if match is not None and match[2]:
            figures[f"{name}_interval"] = [number_of(edge) for edge in match.groups()[1:]]
    return figures


def task_of(rows: Found) -> type[Task]:
    """What the students of a table do, by its metrics."""
    return LanguageModeling if LanguageModeling.metric in rows[0] else Recommendation


def title_of(folder: Path) -> str:
    """The title of a card that is a table."""
    title = (folder / "table.md").read_text(encoding="utf-8").splitlines()[0]
    return title.removeprefix("# ")


def of_summary(rows: Found, folder: Path) -> None:
    """The first figure of the card of a summary, and those of single metrics over all splits."""
    task = task_of(rows)
    plot_comparison(rows, folder / COMPARISON, task.metric, metric_label=task.metric_label)
    for path in sorted(folder.glob("comparison_*.png")):
        metric = path.stem.removeprefix("comparison_").replace("_", "@")
        found = rows_of_all_splits(folder / "table.csv", metric)
        plot_comparison(found, path, metric, metric_label=f"Test {metric.upper()}")


def rows_of_all_splits(table: Path, metric: str) -> Found:
    """The rows of a table of CSV that have a metric, with its interval."""
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row[metric]]
    interval = f"{metric}_interval"
    return [
        {
            "method": row["method"],
            metric: float(row[metric]),
            interval: json.loads(row[interval]) if row[interval] else None,
        }
        for row in rows
    ]


def of_rows(figure: str, rows: Found, folder: Path) -> None:
    """All rows of a table of the paper's questions."""
    task = task_of(rows)
    plot_comparison(rows, folder / figure, task.metric, metric_label=task.metric_label)


def of_seconds(rows: Found, folder: Path) -> None:
    """The best counted model is the one with the best figure."""
    task = task_of(rows)
    counted = [row for row in rows if row.get("steps") is None and row["method"] != "teacher"]
    best = max if task.ranked else min
    name = best(counted, key=lambda row: row[task.metric])["method"]
    seconds.draw(rows, name, task, folder / seconds.FIGURE, title_of(folder))


def of_sample_efficiency(rows: Found, folder: Path) -> None:
    """A row belongs to the family whose title its name has, with a number of sequences in it."""
    by_name = {row["method"]: row for row in rows}
    curves = []
    for family, (_, _, title) in sample_efficiency.FAMILIES.items():
        pattern = re.escape(title).replace(r"\{size\}", r"(\d+)").replace(r"\{length\}", r"\d+")
        for name, row in by_name.items():
            if match := re.fullmatch(pattern, name):
                curves.append({**row, "method": family, "μ": int(match[1])})
    lines = {name: by_name[name] for name in (sample_efficiency.FULL, sample_efficiency.LONG)}
    sample_efficiency.draw(curves, lines, task_of(rows), folder)


def of_trajectories(rows: Found, folder: Path) -> None:
    """The number of trajectories is a column of the table."""
    trajectory_count.draw(rows, task_of(rows), folder)


def of_carried(rows: Found, folder: Path) -> None:
    """The rows of students have the tokens that they read, the others a curve. All were compared by
    perplexity.
    """
    read = [row for row in rows if "tokens" in row]
    compared = [row for row in rows if "curve" in row]
    lines = {}
    for row in compared:
        if row["method"] == "teacher":
            lines["the packed teacher itself"] = row["perplexity"]
        elif row["method"] == carried.LONG:
            lines.setdefault(f"all real data, {row['steps']:,} steps", row["perplexity"])
    data = title_of(folder).partition(":")[0]
    metric = ("perplexity", "Test perplexity")
    carried.draw(read, compared, lines, metric, data, folder)


def of_packing(rows: Found, folder: Path) -> None:
    """All metrics that tables of packing compare are shares."""
    packing.draw(rows, ("hr@10", "hr@100", "ndcg@10"), True, folder)


COMPARISON = "plots/comparison.png"
FIGURES: dict[str, tuple[str, Callable[[Found, Path], None]]] = {
    carried.TOKENS: ("table.json", of_carried),
    packing.FIGURE: ("table.json", of_packing),
    COMPARISON: ("README.md", of_summary),
    **{
        name: ("table.json", partial(of_rows, name))
        for name in ("privacy.png", "inputs.png", "cross_architecture.png")
    },
    seconds.FIGURE: ("table.json", of_seconds),
    sample_efficiency.FIGURE: ("table.json", of_sample_efficiency),
    trajectory_count.FIGURE: ("table.json", of_trajectories),
    "scaling.png": ("results.json", scaling.draw),
    "size.png": ("results.json", size.draw),
    "benchmark.png": ("results.json", benchmark.draw),
}
"""The table of a figure, and what draws it, by the figure's file."""


if __name__ == "__main__":
    run(main)
