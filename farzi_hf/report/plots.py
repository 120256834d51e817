"""The figures of recipes and cards: of a distillation, of its summary, and of tables.

Figures are built without pyplot, so there is no global state and no display. They are safe in threads and in notebooks.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter

from farzi_hf.summary.store.folder import replace_file

INK, ACCENT, MUTED = "#333333", "#1f6fb4", "#9aa5b1"
LINES = ("#c0392b", "#27834a", "#8e5ea2", "#b8860b")
"""Colours of horizontal lines to compare with."""
ABOVE = {"frameon": False, "fontsize": 9, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
"""A legend above its panel."""
DPI = 150

Rows = Sequence[Mapping[str, Any]]
File = str | os.PathLike
_COLUMNS = 10  # positions in one strip of plot_tokens
_LONGEST_TOKEN = 12  # characters of a token that a cell of plot_tokens shows

# -- of a table -------------------------------------------------------------------------------------------------------


def plot_comparison(rows: Rows, path: File, metric: str, *, metric_label: str | None = None) -> None:
    """Methods as bars, in one colour for ours, whose names start with "Farzi" or "packed teacher", and another for the rest. Raises ValueError if no
    row has the metric.

    Intervals are drawn as whiskers.

    Args:
        rows: the results' table: `method`, the metric, and optionally `{metric}_interval`, a (low, high) pair. Rows
            whose metric is missing or not finite are left out.
    """
    rows = [row for row in rows if finite(row.get(metric))]
    if not rows:
        raise ValueError(f"rows has no finite {metric!r}; pass rows such as {{'method': 'Farzi', {metric!r}: 1.0}}")
    values = [float(row[metric]) for row in rows]
    figure, (axes,) = new_panels(7.5, 0.9 + 0.42 * len(rows))
    ours = ("Farzi", "packed teacher")
    colors = [ACCENT if str(row["method"]).startswith(ours) else MUTED for row in rows]
    bars = axes.barh([str(row["method"]) for row in rows], values, color=colors, height=0.68)
    plain_numbers(axes.xaxis)
    wide = min(values) > 0 and max(values) > 30 * min(values)
    if wide:
        logarithmic(axes, "x")
    for i, (row, value, bar) in enumerate(zip(rows, values, bars, strict=True)):
        interval = row.get(f"{metric}_interval")
        if interval is not None:
            axes.plot(interval, [i, i], color=INK, linewidth=1.4, solid_capstyle="butt", marker="|")
        end = max(value, *(interval or [value])), bar.get_y() + bar.get_height() / 2
        axes.annotate(number(value), end, xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel((metric_label or metric) + (" (log scale)" if wide else ""))
    axes.grid(visible=False, axis="y")
    save(figure, path)


# -- of one distillation ---------------------------------------------------------------------------------------------


def plot_distillation(log_history: Rows, path: File, *, metric: str, metric_label: str, **baselines: float) -> None:
    """The curves of a distillation against outer steps: student metric, outer loss, norm of the meta-gradient. Raises ValueError if none of the
    quantities was logged.

    A quantity that was never logged has no panel. Values that are not finite are left out.

    Args:
        log_history: `trainer.state.log_history`: rows with `step` and any of the quantities.
        metric: the name of the student metric in these rows. `{metric}_std` is drawn as a band, if rows have it.
        baselines: horizontal lines in the metric's panel, by name: `full_data=82.0, unigram=196.6`.
    """
    drawn = {name: _series(log_history, name) for name in (metric, "loss", "grad_norm")}
    drawn = {name: points for name, points in drawn.items() if len(points)}
    if not drawn:
        raise ValueError(f"log_history has no {metric}, loss or grad_norm; pass trainer.state.log_history of a run")
    heights = [1.6 if name == metric else 1.0 for name in drawn]
    height = 0.6 + 1.9 * sum(heights)
    figure, panels = new_panels(7.5, height, len(drawn), sharex=True, height_ratios=heights)
    for axes, (name, points) in zip(panels, drawn.items(), strict=True):
        plain_numbers(axes.yaxis)
        if name == metric:
            steps, values = points.T
            axes.plot(steps, values, color=ACCENT, marker="o", markersize=4, label="student on the summary")
            spread = _series(log_history, f"{metric}_std")[:, 1]
            if len(spread) == len(values):
                band = {"color": ACCENT, "alpha": 0.18, "linewidth": 0}
                axes.fill_between(steps, values - spread, values + spread, **band)
            draw_lines(axes, baselines)
            axes.legend(ncols=3, **ABOVE)
            axes.set_ylabel(metric_label)
        else:
            _draw_noisy(axes, points)
            axes.set_ylabel("Outer loss (nats)" if name == "loss" else "Meta-gradient norm")
            if name == "grad_norm":
                logarithmic(axes, "y")
    plain_numbers(panels[-1].xaxis)
    panels[-1].set_xlabel("Outer step")
    figure.align_ylabels()
    save(figure, path)


def _series(log_history: Rows, name: str) -> np.ndarray:
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
    save(figure, path)


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
            color = "white" if probability > 0.55 else INK
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


# -- the style -------------------------------------------------------------------------------------------------------


def finite(value: Any) -> bool:
    """Whether the value exists and is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def number(value: float, digits: int = 4) -> str:
    """The value with `digits` significant digits, but with all digits before the point. Never a power of ten: 0.00052, 520, 1,200."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return np.format_float_positional(value, precision=digits, unique=False, fractional=False, trim="-")


def plain_numbers(axis: Axis) -> None:
    """Labels an axis without offsets and powers of ten."""
    axis.set_major_formatter(lambda value, position: number(value))


class _PlainTicks(LogLocator):
    """Ticks at 1, 2 and 5 times the powers of ten; only at the powers on an axis of more than four, and as on a linear one within one."""

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        if vmax < 10 * vmin:
            ticks = AutoLocator().tick_values(vmin, vmax)
            return ticks[ticks > 0]
        self.set_params(subs=(1.0,) if vmax > 1e4 * vmin else (1.0, 2.0, 5.0))
        return super().tick_values(vmin, vmax)


def logarithmic(axes: Axes, which: str) -> None:
    """Makes the axis "x" or "y" logarithmic; ticks are written as plain numbers."""
    axes.set(**{f"{which}scale": "log"})
    axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    axis.set_major_locator(_PlainTicks())
    plain_numbers(axis)
    axis.set_minor_formatter(NullFormatter())


def new_panels(width: float, height: float, *grid: int, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches and its panels, from left to right and from top to bottom: without a frame, with a faint grid."""
    figure = Figure(figsize=(width, height), layout="constrained")
    found = list(figure.subplots(*grid, squeeze=False, **options).flat)
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e9ed", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, found


def draw_lines(axes: Axes, lines: Mapping[str, float]) -> None:
    """Draws dashed horizontal lines, with their names in the legend."""
    for i, (name, value) in enumerate(lines.items()):
        label = f"{name.replace('_', ' ')} ({number(value)})"
        axes.axhline(value, color=LINES[i % len(LINES)], linestyle="--", linewidth=1.3, label=label)


def save(figure: Figure, path: File) -> None:
    """Writes the figure and then replaces the file `path` in one step. The suffix of `path` sets the format."""
    path = Path(path)
    kind = path.suffix.removeprefix(".") or "png"
    replace_file(path, lambda new: figure.savefig(new, dpi=DPI, format=kind))
