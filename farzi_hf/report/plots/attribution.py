"""Figure of attribution: how well scores predict retrainings, and what the exact ones cost."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import INK, MUTED, OURS, clean, finite, logarithmic, save

_COLORS = (*OURS, MUTED, INK)


def plot_attribution(
    scores: Sequence[Mapping[str, Any]], costs: Sequence[Mapping[str, Any]], path: str | os.PathLike
) -> None:
    """Two panels over the number of training steps: the linear datamodelling score per method, and the peak memory per way to differentiate.

    Args:
        scores: one per method and T: `method`, `steps`, `lds` and `lds_interval`, a (low, high) pair.
        costs: one per way and T: `method`, `steps` and `memory_bytes`. Rows without memory, such as those that had too little of it,
            are left out.
    """
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    left, right = map(clean, figure.subplots(1, 2))
    _draw(left, scores, "lds", 1.0)
    left.axhline(0, color=MUTED, linewidth=0.8)
    left.set(xlabel="Training steps T", ylabel="Linear datamodelling score", ylim=(min(-0.25, *left.get_ylim()), 1.05))
    _draw(right, [row for row in costs if finite(row.get("memory_bytes"))], "memory_bytes", 2.0**20)
    right.set(xlabel="Training steps T", ylabel="Peak memory above the start (MiB)")
    logarithmic(right, "y")
    for axes in (left, right):
        steps = {row["steps"] for row in (scores if axes is left else costs)}
        axes.set(xscale="log")
        axes.set_xticks(sorted(steps), [f"{t:,}" for t in sorted(steps)])
        axes.set_xticks([], minor=True)
        axes.legend(frameon=False, fontsize=8, ncols=2, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save(figure, path)


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], name: str, unit: float) -> None:
    """A curve per method, with the interval as a band where there is one."""
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        curve = sorted((row for row in rows if row["method"] == method), key=lambda row: row["steps"])
        steps, color = [row["steps"] for row in curve], _COLORS[i % len(_COLORS)]
        axes.plot(steps, [row[name] / unit for row in curve], color=color, marker="o", markersize=4, label=method)
        if bands := [row[f"{name}_interval"] for row in curve if f"{name}_interval" in row]:
            axes.fill_between(steps, *zip(*bands, strict=True), color=color, alpha=0.15, linewidth=0)
