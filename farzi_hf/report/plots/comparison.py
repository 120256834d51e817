"""Figures of tables: methods side by side as bars, and as curves over a size, a number of steps or a length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from matplotlib.axes import Axes

from farzi_hf.report.plots import style
from farzi_hf.report.plots.style import File, Rows


def plot_comparison(rows: Rows, path: File, metric: str, *, metric_label: str | None = None) -> None:
    """Methods as bars, in one colour for ours, whose names start with "Farzi" or "packed teacher", and another for the rest.

    Intervals are drawn as whiskers.

    Args:
        rows: the results' table: `method`, the metric, and optionally `{metric}_interval`, a (low, high) pair. Rows
            whose metric is missing or not finite are left out.

    Raises:
        ValueError: no row has the metric.
    """
    rows = [row for row in rows if style.finite(row.get(metric))]
    if not rows:
        raise ValueError(f"rows has no finite {metric!r}; pass rows such as {{'method': 'Farzi', {metric!r}: 1.0}}")
    values = [float(row[metric]) for row in rows]
    figure, (axes,) = style.panels(7.5, 0.9 + 0.42 * len(rows))
    ours = ("Farzi", "packed teacher")
    colors = [style.ACCENT if str(row["method"]).startswith(ours) else style.MUTED for row in rows]
    bars = axes.barh([str(row["method"]) for row in rows], values, color=colors, height=0.68)
    style.plain_numbers(axes.xaxis)
    wide = min(values) > 0 and max(values) > 30 * min(values)
    if wide:
        style.logarithmic(axes, "x")
    for i, (row, value, bar) in enumerate(zip(rows, values, bars, strict=True)):
        interval = row.get(f"{metric}_interval")
        if interval is not None:
            axes.plot(interval, [i, i], color=style.INK, linewidth=1.4, solid_capstyle="butt", marker="|")
        end = max(value, *(interval or [value])), bar.get_y() + bar.get_height() / 2
        axes.annotate(style.number(value), end, xytext=(6, 0), textcoords="offset points", va="center", color=style.INK)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel((metric_label or metric) + (" (log scale)" if wide else ""))
    axes.grid(visible=False, axis="y")
    style.save(figure, path)


@dataclass(frozen=True)
class Panel:
    """One panel of `plot_curves`.

    Args:
        rows: each has `method` and the columns `x` and `y`. `{y}_interval`, a (low, high) pair, is optional and becomes a band. Rows whose
            `y` is missing or not finite are left out, so a curve ends where a method ran out of memory. `kind` may be "peer".
        logarithmic: the axes that are logarithmic: "", "x", "y" or "xy".
        scale: values of `y` and their intervals are multiplied by it.
        lines: values that do not depend on `x`, by name: `{"full data": 82.3}`.
        title: says in words what is shown.
        joined: whether the points of a method are joined: not where their trainings differ in more than `x`.
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


def plot_curves(path: File, *given: Panel) -> None:
    """Panels side by side with a curve per method, which looks the same in all of them. Peers are dashed and grey.

    A linear axis of values starts at 0, unless some are negative.

    Raises:
        ValueError: no row of a panel has its value.
    """
    looks = _looks(row for panel in given for row in panel.rows)
    figure, panels = style.panels(2.5 + 4.0 * len(given), 4.8, 1, len(given))
    legend = {}
    for axes, panel in zip(panels, given, strict=True):
        rows = sorted((r for r in panel.rows if style.finite(r.get(panel.y))), key=lambda row: row[panel.x])
        if not rows:
            raise ValueError(f"rows has no finite {panel.y!r}; pass rows such as {{{panel.x!r}: 50, {panel.y!r}: 1.0}}")
        for method in dict.fromkeys(row["method"] for row in rows):
            _draw_curve(axes, panel, [row for row in rows if row["method"] == method], looks[method])
        style.draw_lines(axes, panel.lines)
        axes.set(xlabel=panel.x_label, ylabel=panel.y_label)
        axes.set_title(panel.title, fontsize=10, loc="left", parse_math=False)
        for which, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            style.logarithmic(axes, which) if which in panel.logarithmic else style.plain_numbers(axis)
        if "y" not in panel.logarithmic and min(row[panel.y] for row in rows) >= 0:
            axes.set_ylim(bottom=0)
        handles, labels = axes.get_legend_handles_labels()
        legend |= dict(zip(labels, handles, strict=True))
    figure.legend(
        legend.values(),
        legend.keys(),
        loc="outside lower center",
        ncols=min(3, 1 + len(given)),
        frameon=False,
        fontsize=9,
    )
    style.save(figure, path)


def _looks(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """How the curve of each method looks."""
    kinds = {row["method"]: row.get("kind") for row in rows}
    looks = {}
    for i, (method, kind) in enumerate(kinds.items()):
        marker = "osD^vP*"[i % 7]  # beside the colour, for those who see colours alike
        color = style.MUTED if kind == "peer" else style.OURS[i % len(style.OURS)]
        looks[method] = {
            "color": color,
            "linestyle": "--" if kind == "peer" else "-",
            "marker": marker,
            "markersize": 4,
        }
    return looks


def _draw_curve(axes: Axes, panel: Panel, rows: Rows, look: Mapping[str, Any]) -> None:
    places = [row[panel.x] for row in rows]
    marker = look["marker"] if len(rows) <= 50 else ""  # more markers would hide the curve
    values = [panel.scale * row[panel.y] for row in rows]
    line = look["linestyle"] if panel.joined else ""
    axes.plot(places, values, label=rows[0]["method"], **{**look, "marker": marker, "linestyle": line})
    if any(row.get(f"{panel.y}_interval") for row in rows):
        edges = [row.get(f"{panel.y}_interval") or (row[panel.y], row[panel.y]) for row in rows]
        low, high = ([panel.scale * edge for edge in side] for side in zip(*edges, strict=True))
        if len(rows) == 1 or not panel.joined:
            axes.vlines(places, low, high, color=look["color"], linewidth=1.4)
        else:
            axes.fill_between(places, low, high, color=look["color"], alpha=0.15, linewidth=0)
