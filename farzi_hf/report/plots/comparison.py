"""Figures of tables: methods side by side, against the size of a summary, against |Ω|, and in tenths of items and users."""

from __future__ import annotations

import numpy as np

from farzi_hf.report.plots import style
from farzi_hf.report.plots.style import File, Rows


def plot_comparison(rows: Rows, path: File, metric: str, *, metric_label: str | None = None) -> None:
    """Methods as bars, in one colour for ours, whose names start with "Farzi", and another for the rest. Intervals are drawn as whiskers.

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
    colors = [style.ACCENT if str(row["method"]).startswith("Farzi") else style.MUTED for row in rows]
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


def plot_budget(rows: Rows, path: File, metric: str, *, metric_label: str | None = None, **lines: float) -> None:
    """A metric against the budget, with a curve and a band per method.

    The lower axis shows the number of synthetic sequences, logarithmic. The upper axis shows the bytes.

    Args:
        rows: one per method and budget: `method`, `num_sequences`, `bytes` and the metric. `{metric}_interval`, a (low, high)
            pair, is optional and becomes the band. Rows whose metric is missing or not finite are left out.
        lines: values that do not depend on the budget, by name: `full_data=82.3, unigram=196.5`.

    Raises:
        ValueError: no row has the metric.
    """
    rows = sorted((row for row in rows if style.finite(row.get(metric))), key=lambda row: row["num_sequences"])
    if not rows:
        raise ValueError(
            f"rows has no finite {metric!r}; pass rows such as {{'num_sequences': 50, {metric!r}: 1.0, …}}"
        )
    figure, (axes,) = style.panels(7.5, 4.6)
    axes.set(xscale="log", xlabel="Synthetic sequences μ", ylabel=metric_label or metric)
    style.curves(axes, rows, "num_sequences", metric, style.OURS, size=5, alpha=0.18)
    style.draw_lines(axes, lines)
    style.plain_numbers(axes.yaxis)
    values = [row[metric] for row in rows] + list(lines.values())
    if min(values) > 0 and max(values) > 10 * min(values):
        style.logarithmic(axes, "y")
    sizes = {row["num_sequences"]: row["bytes"] for row in rows}
    style.ticks(axes, sizes)
    above = axes.secondary_xaxis("top")
    style.ticks(above, sizes, map(_bytes, sizes.values()))
    above.set_xlabel("Bytes of a summary")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    style.save(figure, path)


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{style.number(size / scale, 3)} {unit}"
    return f"{size:.0f} bytes"


def plot_trajectory_count(rows: Rows, path: File, metric: str, *, metric_label: str) -> None:
    """A metric against |Ω|, with one tick per count. The band is the standard deviation over students.

    Args:
        rows: `trajectories`, the metric and `{metric}_std`, in the order in which they are drawn.
    """
    figure, (axes,) = style.panels(6.5, 4.0)
    points, spread = (np.array([*enumerate(row[name] for row in rows)], float) for name in (metric, f"{metric}_std"))
    style.draw_metric(axes, points, spread, {})
    axes.set_xticks(range(len(rows)), [str(row["trajectories"]) for row in rows])
    axes.set(xlabel="|Ω|, pretrained trajectories (0: random initialisation alone)", ylabel=metric_label)
    style.plain_numbers(axes.yaxis)
    style.save(figure, path)


def plot_deciles(rows: Rows, path: File, *, metric_label: str) -> None:
    """HR@100 in each tenth: a panel for items and a panel for users, with a line per method. Intervals are drawn as bars.

    Args:
        rows: one per `method`, `by` ("items" or "users") and `tenth`. Tenth 1 has the most popular items or the longest
            histories. Each row has `n`, the number of test users in the tenth. If `n` is above 0, it also has `hr@100` and
            `hr@100_interval`.
    """
    figure, panels = style.panels(10.5, 4.2, 1, 2, sharey=True)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    order = {"items": "most popular first", "users": "longest histories first"}
    for axes, by in zip(panels, order, strict=True):
        for i, method in enumerate(methods):
            curve = [row for row in rows if (row["method"], row["by"]) == (method, by) and row["n"]]
            values = np.array([row["hr@100"] for row in curve])
            edges = np.array([row["hr@100_interval"] for row in curve]).reshape(-1, 2)
            places = np.array([row["tenth"] for row in curve]) + 0.12 * (i - (len(methods) - 1) / 2)
            look = {"color": style.OURS[i % len(style.OURS)], "marker": "o", "markersize": 4, "linewidth": 1.2}
            axes.errorbar(places, values, np.abs(edges.T - values), label=method, **look)
        counts = {row["tenth"]: row["n"] for row in rows if row["by"] == by}
        axes.set_xticks(list(counts), [f"{tenth}\nn = {n}" for tenth, n in counts.items()], fontsize=7.5)
        axes.set_xlabel(f"Tenths of the {by}, {order[by]}")
    panels[0].set_ylabel(metric_label)
    style.plain_numbers(panels[0].yaxis)
    panels[0].legend(frameon=False, fontsize=9)
    style.save(figure, path)
