"""Draws quality over the seconds of a training, from tables of `farzi distil`: the figure of the
README.

    python recipes/hero.py model_cards/beauty_nine_minutes model_cards/ptb_ten_minutes --titles "Amazon Beauty" "Penn Treebank"

Each folder has a `table.csv` and is a panel: students of the summary, all data in as many seconds,
all data in the training of the teacher, the strongest model that only counts, and the teacher in
the summary, which needs no training and is a line. Lines through points are the table's intervals.
"""  # noqa: E501

from __future__ import annotations

import csv
import json
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes

from farzi_hf.cli.program import ends_in_one_line, run
from farzi_hf.report import plots
from farzi_hf.report.full_data import LONG, SAME_SECONDS

LABELS = {
    "hr@100": "Test HR@100, %: higher is better",
    "perplexity": "Test perplexity: lower is better",
}
"""Of the vertical axis, by the metric: a table is drawn by the first of them that it has."""


@dataclass(frozen=True)
class Drawn:
    """A point of every panel."""

    name: str
    """In the legend."""

    beginnings: tuple[str, ...]
    """How the name of its row begins."""

    marker: str
    side: str
    """Of the point, where its figures stand: "left" or "right"."""


POINTS = (
    Drawn("a student of the summary", ("packed teacher", "Farzi"), "o", "left"),
    Drawn("all data, tuned, in as many seconds", (SAME_SECONDS,), "s", "right"),
    Drawn("all data, the training of the teacher", (LONG,), "D", "left"),
    Drawn("a model that only counts", ("Kneser-Ney", "rules of sequences"), "^", "right"),
)
TEACHER = "teacher"


def main(argv: Sequence[str] | None = None) -> None:
    """The figure of the tables."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="each with a table.csv")
    parser.add_argument("--titles", nargs="+", help="of the panels; by default the folders' names")
    parser.add_argument("--output", type=Path, default=Path("docs/hero.png"))
    args = parser.parse_args(argv)
    titles = args.titles or [folder.name for folder in args.folders]
    if len(titles) != len(args.folders):
        parser.error(f"--titles has {len(titles)} titles; give one for each folder")
    with ends_in_one_line("hero.py", OSError):
        tables = [rows_of(folder / "table.csv") for folder in args.folders]
        draw(tables, titles, args.output)


def rows_of(path: Path) -> list[dict[str, Any]]:
    """The rows of a table.csv; cells are numbers, pairs of numbers, or text."""
    with open(path, encoding="utf-8") as file:
        return [
            {name: _value(cell) for name, cell in row.items() if cell}
            for row in csv.DictReader(file)
        ]


def _value(cell: str) -> Any:
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def draw(tables: Sequence[Sequence[dict[str, Any]]], titles: Sequence[str], path: Path) -> None:
    """A panel for each table, and one legend."""
    figure, panels = plots.new_panels(0.5 + 4.5 * len(tables), 4.2, 1, len(tables))
    legend = {}
    for axes, rows, title in zip(panels, tables, titles, strict=True):
        _draw_panel(axes, rows)
        axes.set_title(title, fontsize=10, loc="left")
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(
        legend.values(),
        legend.keys(),
        ncols=2,
        loc="outside lower center",
        frameon=False,
        fontsize=9,
    )
    plots.save(figure, path)


def _draw_panel(axes: Axes, rows: Sequence[dict[str, Any]]) -> None:
    metric = next(name for name in LABELS if name in rows[0])
    scale = 1.0 if metric == "perplexity" else 100.0
    line = None
    teacher = next((row for row in rows if row["method"] == TEACHER), None)
    if teacher:
        line = scale * teacher[metric]
        look = {"color": plots.TEACHER, "linestyle": "--", "linewidth": 1.4}
        axes.axhline(line, label="the teacher itself, no training", **look)
    for drawn in POINTS:
        row = next((row for row in rows if row["method"].startswith(drawn.beginnings)), None)
        if row:
            _draw_point(axes, row, metric, scale, drawn, line)
    axes.margins(x=0.12, y=0.1)
    plots.logarithmic(axes, "x")
    plots.plain_numbers(axes.yaxis)
    axes.set(xlabel="Seconds of a training, or of counting", ylabel=LABELS[metric])


def _draw_point(
    axes: Axes, row: dict[str, Any], metric: str, scale: float, drawn: Drawn, line: float | None
) -> None:
    """A row of the table with its interval, its value and its seconds: these stand on the side of
    the point that is away from the line.
    """
    below = line is not None and scale * row[metric] < line
    color = plots.color_of(row["method"])
    value = scale * row[metric]
    edges = [scale * edge for edge in row[f"{metric}_interval"]]
    seconds = row["seconds"]
    axes.plot([seconds, seconds], edges, color=color, linewidth=1.6)
    axes.plot(seconds, value, color=color, marker=drawn.marker, linestyle="", label=drawn.name)
    axes.annotate(
        f"{value:.1f}, {seconds:,.{0 if seconds >= 10 else 1}f} s",
        (seconds, value),
        (7 if drawn.side == "right" else -7, -3 if below else 3),
        textcoords="offset points",
        ha="left" if drawn.side == "right" else "right",
        va="top" if below else "bottom",
        fontsize=9,
        color=color,
    )


if __name__ == "__main__":
    run(main)
