"""A metric against the number of pretrained trajectories."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import clean, draw_metric, plain_numbers, save


def plot_trajectory_count(
    rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, metric: str, *, metric_label: str, **baselines: float
) -> None:
    """A metric against |Ω|, with one tick per count. The band is the standard deviation over students.

    Args:
        rows: `trajectories`, the metric and `{metric}_std`, in the order in which they are drawn.
        baselines: horizontal lines by name.
    """
    figure = Figure(figsize=(6.5, 4.0), layout="constrained")
    axes = clean(figure.subplots())
    points = np.array([(i, row[metric]) for i, row in enumerate(rows)], dtype=float)
    draw_metric(axes, points, np.array([(i, row[f"{metric}_std"]) for i, row in enumerate(rows)]), baselines)
    axes.set_xticks(range(len(rows)), [str(row["trajectories"]) for row in rows])
    axes.set_xlabel("|Ω|, pretrained trajectories (0: random initialisation alone)")
    axes.set_ylabel(metric_label)
    plain_numbers(axes.yaxis)
    save(figure, path)
