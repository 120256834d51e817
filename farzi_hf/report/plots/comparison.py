"""Methods side by side."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from farzi_hf.report.plots.style import ACCENT, INK, MUTED, clean, finite, logarithmic, number, plain_numbers, save


def plot_comparison(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike,
    metric: str,
    *,
    metric_label: str | None = None,
    highlight: str = "Farzi",
) -> None:
    """Methods as bars, in one colour for ours and another for the rest. Intervals are drawn as whiskers.

    Args:
        rows: the results' table: `method`, the metric, and optionally `{metric}_interval`, a (low, high) pair. Rows
            whose metric is missing or not finite are left out.
        highlight: a method is ours if its name starts with this text.

    Raises:
        ValueError: no row has the metric.
    """
    rows = [row for row in rows if finite(row.get(metric))]
    if not rows:
        raise ValueError(f"rows has no finite {metric!r}; pass rows such as {{'method': 'Farzi', {metric!r}: 1.0}}")
    values = [float(row[metric]) for row in rows]
    figure = Figure(figsize=(7.5, 0.9 + 0.42 * len(rows)), layout="constrained")
    axes = clean(figure.subplots())
    colors = [ACCENT if str(row["method"]).startswith(highlight) else MUTED for row in rows]
    bars = axes.barh([str(row["method"]) for row in rows], values, color=colors, height=0.68)
    for i, row in enumerate(rows):
        if row.get(f"{metric}_interval") is not None:
            axes.plot(row[f"{metric}_interval"], [i, i], color=INK, linewidth=1.4, solid_capstyle="butt", marker="|")
    edges = [max(value, *(row.get(f"{metric}_interval") or [value])) for value, row in zip(values, rows, strict=True)]
    plain_numbers(axes.xaxis)
    wide = min(values) > 0 and max(values) > 30 * min(values)
    if wide:
        logarithmic(axes, "x")
    for bar, value, edge in zip(bars, values, edges, strict=True):
        middle = bar.get_y() + bar.get_height() / 2
        axes.annotate(number(value), (edge, middle), xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel((metric_label or metric) + (" (log scale)" if wide else ""))
    axes.grid(visible=False, axis="y")
    save(figure, path)
