"""How all figures look."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.atomic_folder import replace_file

INK, ACCENT, MUTED = "#333333", "#1f6fb4", "#9aa5b1"
LINES = ("#c0392b", "#27834a", "#8e5ea2", "#b8860b")
"""Colours of lines to compare with."""
DPI = 150


def finite(value: Any) -> bool:
    """Whether there is a value, and it is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def number(value: float) -> str:
    """Four digits, or all those before the point."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def clean(axes: Axes) -> Axes:
    """The same axes, without a frame and with a faint grid."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#e6e9ed", linewidth=0.8)
    axes.set_axisbelow(True)
    return axes


def save(figure: Figure, path: str | os.PathLike) -> None:
    """Replaces the file `path`, whose suffix says the format, once the new one is complete."""
    path = Path(path)
    kind = path.suffix.removeprefix(".") or "png"
    replace_file(path, lambda new: figure.savefig(new, dpi=DPI, format=kind))
