"""A metric against the size of a summary."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import OURS, clean, draw_lines, finite, logarithmic, number, plain_numbers, save


def plot_budget(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike,
    metric: str,
    *,
    metric_label: str | None = None,
    **lines: float,
) -> None:
    """A metric against the budget, with a curve and a band per method.

    The lower axis shows the number of synthetic sequences, logarithmic. The upper axis shows the bytes.

    Args:
        rows: one per method and budget: `method`, `num_sequences`, `bytes` and the metric. `{metric}_interval`, a (low, high)
            pair, is optional and becomes the band. Rows whose metric is missing or not finite are left out.
        lines: values that do not depend on the budget, by name: `full_data=82.3, unigram=196.5`.

    Raises:
        ValueError: no row has the metric.
    """
    rows = sorted((row for row in rows if finite(row.get(metric))), key=lambda row: row["num_sequences"])
    if not rows:
        raise ValueError(
            f"rows has no finite {metric!r}; pass rows such as {{'num_sequences': 50, {metric!r}: 1.0, …}}"
        )
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = clean(figure.subplots())
    axes.set(xscale="log", xlabel="Synthetic sequences μ", ylabel=metric_label or metric)
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        curve = [row for row in rows if row["method"] == method]
        budgets, color = [row["num_sequences"] for row in curve], OURS[i % len(OURS)]
        axes.plot(budgets, [row[metric] for row in curve], color=color, marker="o", markersize=5, label=method)
        edges = [row.get(f"{metric}_interval") or (row[metric], row[metric]) for row in curve]
        axes.fill_between(budgets, *zip(*edges, strict=True), color=color, alpha=0.18, linewidth=0)
    draw_lines(axes, lines)
    plain_numbers(axes.yaxis)
    values = [row[metric] for row in rows] + list(lines.values())
    if min(values) > 0 and max(values) > 10 * min(values):
        logarithmic(axes, "y")
    _label_budgets(axes, {row["num_sequences"]: row["bytes"] for row in rows})
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save(figure, path)


def _label_budgets(axes: Axes, sizes: Mapping[int, float]) -> None:
    """Sets ticks at the budgets only: sequences on the lower axis, their bytes on the upper axis."""
    axes.set_xticks(list(sizes), [f"{budget:,}" for budget in sizes])
    axes.set_xticks([], minor=True)
    above = axes.secondary_xaxis("top")
    above.set_xticks(list(sizes), [_bytes(size) for size in sizes.values()])
    above.set_xticks([], minor=True)
    above.set_xlabel("Bytes of a summary")


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{number(size / scale, 3)} {unit}"
    return f"{size:.0f} bytes"
