"""The common style of all figures, and the parts that several figures draw."""

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
from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter, ScalarFormatter

from farzi_hf.summary.store.folder import replace_file

INK, ACCENT, MUTED = "#333333", "#1f6fb4", "#9aa5b1"
LINES = ("#c0392b", "#27834a", "#8e5ea2", "#b8860b")
"""Colours of horizontal lines to compare with."""
OURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")
"""Colours of our methods. Colour-blind readers can tell them apart (Okabe & Ito, 2008)."""
ABOVE = {"frameon": False, "fontsize": 9, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0)}
"""A legend above its panel."""
DPI = 150

Rows = Sequence[Mapping[str, Any]]
File = str | os.PathLike


def finite(value: Any) -> bool:
    """Whether the value exists and is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def number(value: float, digits: int = 4) -> str:
    """The value with `digits` significant digits, but with all digits before the point. Never a power of ten: 0.00052, 520, 1,200."""
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}"
    return np.format_float_positional(value, precision=digits, unique=False, fractional=False, trim="-")


class _PlainNumbers(ScalarFormatter):
    """Tick labels with as many decimals as the ticks need, and commas between thousands."""

    def __call__(self, x: float, pos: int | None = None) -> str:
        decimals = len(super().__call__(x, pos).partition(".")[2])
        return f"{x:,.{decimals}f}".replace("-", "−")


def plain_numbers(axis: Axis) -> None:
    """Labels a linear axis without offsets and powers of ten."""
    plain = _PlainNumbers(useOffset=False, useMathText=False)
    plain.set_scientific(False)
    axis.set_major_formatter(plain)


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
    axis.set_major_formatter(lambda value, position: number(value))
    axis.set_minor_formatter(NullFormatter())


def panels(width: float, height: float, *grid: int, **options: Any) -> tuple[Figure, list[Axes]]:
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
