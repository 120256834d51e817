"""Figures of one distillation: its curves, and the likeliest tokens of its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.report.plots import style
from farzi_hf.report.plots.style import File, Rows

_COLUMNS = 10  # positions in one strip of plot_tokens
_LONGEST_TOKEN = 12  # characters of a token that a cell of plot_tokens shows


def plot_distillation(log_history: Rows, path: File, *, metric: str, metric_label: str, **baselines: float) -> None:
    """The curves of a distillation against outer steps: student metric, outer loss, norm of the meta-gradient.

    A quantity that was never logged has no panel. Values that are not finite are left out.

    Args:
        log_history: `trainer.state.log_history`: rows with `step` and any of the quantities.
        metric: the name of the student metric in these rows. `{metric}_std` is drawn as a band, if rows have it.
        baselines: horizontal lines in the metric's panel, by name: `full_data=82.0, unigram=196.6`.

    Raises:
        ValueError: none of the quantities was logged.
    """
    drawn = {name: _series(log_history, name) for name in (metric, "loss", "grad_norm")}
    drawn = {name: points for name, points in drawn.items() if len(points)}
    if not drawn:
        raise ValueError(f"log_history has no {metric}, loss or grad_norm; pass trainer.state.log_history of a run")
    heights = [1.6 if name == metric else 1.0 for name in drawn]
    height = 0.6 + 1.9 * sum(heights)
    figure, panels = style.panels(7.5, height, len(drawn), sharex=True, height_ratios=heights)
    for axes, (name, points) in zip(panels, drawn.items(), strict=True):
        style.plain_numbers(axes.yaxis)
        if name == metric:
            steps, values = points.T
            axes.plot(steps, values, color=style.ACCENT, marker="o", markersize=4, label="student on the summary")
            spread = _series(log_history, f"{metric}_std")[:, 1]
            if len(spread) == len(values):
                band = {"color": style.ACCENT, "alpha": 0.18, "linewidth": 0}
                axes.fill_between(steps, values - spread, values + spread, **band)
            style.draw_lines(axes, baselines)
            axes.legend(ncols=3, **style.ABOVE)
            axes.set_ylabel(metric_label)
        else:
            _draw_noisy(axes, points)
            axes.set_ylabel("Outer loss (nats)" if name == "loss" else "Meta-gradient norm")
            if name == "grad_norm":
                style.logarithmic(axes, "y")
    style.plain_numbers(panels[-1].xaxis)
    panels[-1].set_xlabel("Outer step")
    figure.align_ylabels()
    style.save(figure, path)


def _series(log_history: Rows, name: str) -> np.ndarray:
    """(n, 2): outer step and value of every row that logged a finite `name`."""
    points = [(row["step"], row[name]) for row in log_history if style.finite(row.get(name))]
    return np.array(points, dtype=float).reshape(-1, 2)


def _draw_noisy(axes: Axes, points: np.ndarray) -> None:
    """Draws every value in the background, and in front the running median, which outliers do not move."""
    steps, values = points.T
    half = len(values) // 40
    median = [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    axes.plot(steps, values, color=style.MUTED, linewidth=0.8, alpha=0.8)
    axes.plot(steps, median, color=style.INK, linewidth=1.6)


def plot_tokens(decoded: Sequence[Rows], path: File, shown: str = "Synthetic sequence 0") -> None:
    """The first decoded synthetic sequence. Each position shows its likeliest tokens with their probabilities, and its entropy.

    Where positions have labels of their own, these are the tokens of the label, and the likeliest input stands below.

    Args:
        decoded: `farzi.decode(top_k)`.
        shown: what the first of them is called.
    """
    positions, columns = decoded[0], min(_COLUMNS, len(decoded[0]))
    strips = [positions[start : start + columns] for start in range(0, len(positions), columns)]
    top_k = len(_told(positions[0])["tokens"])
    figure = Figure(figsize=(14, 0.5 + len(strips) * (0.36 * top_k + 0.5)), layout="constrained")
    panels = figure.subplots(len(strips), squeeze=False)[:, 0]
    for i, (axes, strip) in enumerate(zip(panels, strips, strict=True)):
        image = _draw_strip(axes, strip, i * columns, columns)
    figure.colorbar(image, ax=list(panels), label="Probability", aspect=30, pad=0.01)
    own = "label_tokens" in positions[0]
    what = "likeliest tokens after each position, whose input stands below" if own else "likeliest tokens per position"
    figure.suptitle(f"{shown}: {what}", fontsize=11)
    style.save(figure, path)


def _told(position: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a decoded position tells a student: its label if it has one of its own, otherwise the position itself."""
    if "label_tokens" not in position:
        return position
    return {name: position[f"label_{name}"] for name in ("tokens", "probabilities", "entropy")}


def _draw_strip(axes: Axes, strip: Rows, first: int, columns: int):
    """Draws one strip of up to `columns` positions, from number `first` on, with the likeliest tokens at the top.

    Returns:
        The image, for a colorbar.
    """
    told = [_told(position) for position in strip]
    top_k = len(told[0]["tokens"])
    shades = np.full((top_k, columns), np.nan)
    shades[:, : len(strip)] = np.array([position["probabilities"] for position in told]).T
    image = axes.imshow(shades, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    for x, position in enumerate(told):
        for y, (token, probability) in enumerate(zip(position["tokens"], position["probabilities"], strict=True)):
            color = "white" if probability > 0.55 else style.INK
            # Tokens may hold dollar signs, which would start a formula.
            axes.text(x, y - 0.14, _short(token), ha="center", va="center", fontsize=8.5, color=color, parse_math=False)
            axes.text(x, y + 0.25, f"{probability:.2f}", ha="center", va="center", fontsize=6.5, color=color)
    inputs = [f"{_short(position['tokens'][0])}\n" if "label_tokens" in position else "" for position in strip]
    names = [f"{inputs[x]}{first + x}\n{position['entropy']:.1f} nats" for x, position in enumerate(told)]
    for label in axes.set_xticks(range(len(strip)), names, fontsize=7.5):
        label.label1.set_parse_math(False)
    axes.set_yticks(range(top_k), [str(rank + 1) for rank in range(top_k)], fontsize=7.5)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return image


def _short(token: Any) -> str:
    return str(token) if len(str(token)) <= _LONGEST_TOKEN else str(token)[: _LONGEST_TOKEN - 1] + "…"
