"""Figures of the paper's tables and of the benchmarks: curves over a size, a number of steps or a
length.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes

from farzi_hf.report import plots
from farzi_hf.report.plots import MUTED, SUMMARY, File, Rows, color_of, finite

OURS = (SUMMARY, "#cc79a7", "#56b4e9", "#000000", "#999933")
"""Colours of methods that have no colour of their own in `farzi_hf.report.plots.KINDS`;
colour-blind readers can tell them apart.
"""
PEERS = (MUTED, "#4f5b66")
"""Greys of the methods of others, by turns; two that share a grey differ in line and marker."""


@dataclass(frozen=True)
class Panel:
    """One panel of `plot_curves`.

    Args:
        rows: each has `method` and the columns `x` and `y`. `{y}_interval`, a (low, high) pair, is
            optional and becomes a band. Rows whose `y` is missing or not finite are left out, so a
            curve ends where a method ran out of memory. `kind` may be "peer".
        logarithmic: the axes that are logarithmic: "", "x", "y" or "xy".
        scale: values of `y` and their intervals are multiplied by it.
        lines: values that do not depend on `x`, by name: `{"full data": 82.3}`.
        title: says in words what is shown.
        joined: whether the points of a method are joined: not where their trainings differ in more
            than `x`.
        top: values above it are not drawn, and the legend says so; they would squash all others.
        from_zero: whether a linear axis of values starts at 0, if none is negative. Differences
            between metrics of quality would not be seen there.
    """

    rows: Rows
    x: str
    y: str
    x_label: str
    y_label: str
    logarithmic: str = ""
    scale: float = 1.0
    lines: Mapping[str, float] = field(default_factory=dict)
    title: str = ""
    joined: bool = True
    top: float = math.inf
    from_zero: bool = True


def plot_curves(path: File, *given: Panel) -> None:
    """Panels side by side with a curve per method, which looks the same in all of them. Peers are
    grey and not solid.

    Raises:
        ValueError: no row of a panel has its value.
    """
    looks = _looks(row for panel in given for row in panel.rows)
    figure, panels = plots.new_panels(2.5 + 4.0 * len(given), 4.8, 1, len(given))
    legend = {}
    lines = {}
    for axes, panel in zip(panels, given, strict=True):
        rows = sorted(
            (r for r in panel.rows if finite(r.get(panel.y))), key=lambda row: row[panel.x]
        )
        if not rows:
            raise ValueError(
                f"rows has no finite {panel.y!r}; pass rows such as {{{panel.x!r}: 50, {panel.y!r}:"
                " 1.0}"
            )
        for method in dict.fromkeys(row["method"] for row in rows):
            _draw_curve(
                axes, panel, [row for row in rows if row["method"] == method], looks[method]
            )
        plots.draw_lines(axes, panel.lines)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        axes.set_title(panel.title, fontsize=10, loc="left", parse_math=False)
        for which, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            (
                plots.logarithmic(axes, which)
                if which in panel.logarithmic
                else plots.plain_numbers(axis)
            )
        linear = "y" not in panel.logarithmic
        if panel.from_zero and linear and min(row[panel.y] for row in rows) >= 0:
            axes.set_ylim(bottom=0)
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
        for (
            name,
            value,
        ) in panel.lines.items():  # one entry for a line of several panels, with its value in each
            handle = legend.pop(f"{name.replace('_', ' ')} ({plots.number(value)})", None)
            lines.setdefault(name, (handle, []))[1].append(plots.number(value))
    legend |= {
        f"{name.replace('_', ' ')} ({', '.join(dict.fromkeys(values))})": handle
        for name, (handle, values) in lines.items()
    }
    columns = 1 if len(given) == 1 and max(map(len, legend)) > 36 else min(3, 1 + len(given))
    figure.set_figheight(4.2 + 0.2 * math.ceil(len(legend) / columns))
    figure.legend(
        legend.values(),
        legend.keys(),
        ncols=columns,
        loc="outside lower center",
        frameon=False,
        fontsize=9,
    )
    plots.save(figure, path)


def _looks(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """How the curve of each method looks."""
    kinds = {row["method"]: row.get("kind") for row in rows}
    looks = {}
    others = 0
    peers = 0
    used = Counter()
    for i, (method, kind) in enumerate(kinds.items()):
        marker = "osD^vP*X<>h"[i % 11]  # beside the colour, for those who see colours alike
        color = color_of(method)
        lines = ("-", "--", ":", "-.")
        if kind == "peer":
            color = PEERS[peers % len(PEERS)]
            lines = ("--", ":", "-.")
            peers = peers + 1
        elif color == SUMMARY:
            color = OURS[others % len(OURS)]
            others = others + 1
        line = lines[used[color] % len(lines)]
        used[color] += 1
        looks[method] = {"color": color, "linestyle": line, "marker": marker, "markersize": 4}
    return looks


def _draw_curve(axes: Axes, panel: Panel, rows: Rows, look: Mapping[str, Any]) -> None:
    method = rows[0]["method"]
    seen = [row for row in rows if panel.scale * row[panel.y] <= panel.top]
    label = (
        method if len(seen) == len(rows) else f"{method} ({len(rows) - len(seen)} above the axis)"
    )
    rows = seen
    places = [row[panel.x] for row in seen]
    marker = look["marker"] if len(rows) <= 50 else ""  # more markers would hide the curve
    values = [panel.scale * row[panel.y] for row in rows]
    line = look["linestyle"] if panel.joined else ""
    axes.plot(places, values, label=label, **{**look, "marker": marker, "linestyle": line})
    if any(row.get(f"{panel.y}_interval") for row in rows):
        edges = [row.get(f"{panel.y}_interval") or (row[panel.y], row[panel.y]) for row in rows]
        low, high = ([panel.scale * edge for edge in side] for side in zip(*edges, strict=True))
        if len(rows) == 1 or not panel.joined:
            axes.vlines(places, low, high, color=look["color"], linewidth=1.4)
        else:
            axes.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)
