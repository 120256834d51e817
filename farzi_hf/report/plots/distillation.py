"""The curves of a distillation."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import INK, MUTED, clean, draw_metric, finite, logarithmic, plain_numbers, save


def plot_distillation(
    log_history: Sequence[Mapping[str, Any]],
    path: str | os.PathLike,
    *,
    metric: str = "eval_perplexity",
    metric_label: str = "Perplexity of a fresh student",
    loss: str = "loss",
    norm: str = "grad_norm",
    **baselines: float,
) -> None:
    """The curves of a distillation against outer steps: student metric, outer loss, norm of the meta-gradient.

    A quantity that was never logged has no panel. Values that are not finite are left out.

    Args:
        log_history: `trainer.state.log_history`: rows with `step` and any of the quantities.
        metric, loss, norm: the names of the quantities in these rows. `{metric}_std` is drawn as a band, if rows have it.
        baselines: horizontal lines in the metric's panel, by name: `full_data=82.0, unigram=196.6`.

    Raises:
        ValueError: none of the quantities was logged.
    """
    drawn = {name: _series(log_history, name) for name in (metric, loss, norm)}
    drawn = {name: points for name, points in drawn.items() if len(points)}
    if not drawn:
        raise ValueError(f"log_history has no {metric}, {loss} or {norm}; pass trainer.state.log_history of a run")
    heights = [1.6 if name == metric else 1.0 for name in drawn]
    figure = Figure(figsize=(7.5, 0.6 + 1.9 * sum(heights)), layout="constrained")
    panels = figure.subplots(len(drawn), sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, (name, points) in zip(panels, drawn.items(), strict=True):
        plain_numbers(clean(axes).yaxis)
        if name == metric:
            draw_metric(axes, points, _series(log_history, f"{metric}_std"), baselines)
            axes.set_ylabel(metric_label)
        else:
            _draw_noisy(axes, points)
            axes.set_ylabel("Outer loss (nats)" if name == loss else "Meta-gradient norm")
            if name == norm:
                logarithmic(axes, "y")
    plain_numbers(panels[-1].xaxis)
    panels[-1].set_xlabel("Outer step")
    figure.align_ylabels()
    save(figure, path)


def _series(log_history: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """(n, 2): outer step and value of every row that logged a finite `name`."""
    points = [(row["step"], row[name]) for row in log_history if finite(row.get(name))]
    return np.array(points, dtype=float).reshape(-1, 2)


def _draw_noisy(axes: Axes, points: np.ndarray) -> None:
    """Draws every value in the background, and in front the running median, which outliers do not move."""
    steps, values = points.T
    half = len(values) // 40
    median = [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    axes.plot(steps, values, color=MUTED, linewidth=0.8, alpha=0.8)
    axes.plot(steps, median, color=INK, linewidth=1.6)
