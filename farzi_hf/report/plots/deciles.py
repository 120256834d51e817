"""Quality in tenths of items and of users."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import OURS, clean, plain_numbers, save


def plot_deciles(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, *, metric_label: str) -> None:
    """HR@100 in each tenth: a panel for items and a panel for users, with a line per method. Intervals are drawn as bars.

    Args:
        rows: one per `method`, `by` ("items" or "users") and `tenth`. Tenth 1 has the most popular items or the longest
            histories. Each row has `n`, the number of test users in the tenth. If `n` is above 0, it also has `hr@100` and
            `hr@100_interval`.
    """
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    order = {"items": "most popular first", "users": "longest histories first"}
    for axes, by in zip(map(clean, panels), order, strict=True):
        for i, method in enumerate(methods):
            curve = [row for row in rows if (row["method"], row["by"]) == (method, by) and row["n"]]
            values = np.array([row["hr@100"] for row in curve])
            edges = np.array([row["hr@100_interval"] for row in curve]).reshape(-1, 2)
            places = np.array([row["tenth"] for row in curve]) + 0.12 * (i - (len(methods) - 1) / 2)
            errors = np.abs(edges.T - values)
            color = OURS[i % len(OURS)]
            axes.errorbar(places, values, errors, color=color, marker="o", markersize=4, linewidth=1.2, label=method)
        counts = {row["tenth"]: row["n"] for row in rows if row["by"] == by}
        axes.set_xticks(list(counts), [f"{tenth}\nn = {n}" for tenth, n in counts.items()], fontsize=7.5)
        axes.set_xlabel(f"Tenths of the {by}, {order[by]}")
    panels[0].set_ylabel(metric_label)
    plain_numbers(panels[0].yaxis)
    panels[0].legend(frameon=False, fontsize=9)
    save(figure, path)
