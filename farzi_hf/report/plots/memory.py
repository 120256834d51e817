"""Figure of a process over time: its memory and its open files."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import ACCENT, INK, clean, plain_numbers, save


def plot_memory(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, *, line: tuple[float, float]) -> None:
    """Resident memory and open files of one process against outer steps, with a straight line through the memory.

    Args:
        rows: one per measurement: `step`, `resident_mib` and `open_files`.
        line: the line's slope in MiB per outer step, and its value at step 0 in MiB.
    """
    steps = np.array([row["step"] for row in rows])
    slope, origin = line
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    above, below = map(clean, figure.subplots(2, sharex=True, height_ratios=(2, 1)))
    for axis in (above.yaxis, below.xaxis, below.yaxis):
        plain_numbers(axis)
    above.plot(steps, [row["resident_mib"] for row in rows], color=ACCENT, linewidth=1.0, label="measured")
    label = f"straight line: {1000 * slope:+.2f} MiB per 1,000 outer steps"
    above.plot(steps, origin + slope * steps, color=INK, linestyle="--", linewidth=1.2, label=label)
    above.set_ylim(bottom=0)
    above.set_ylabel("Resident memory (MiB)")
    above.legend(frameon=False, fontsize=9, loc="lower right")
    below.plot(steps, [row["open_files"] for row in rows], color=ACCENT, linewidth=1.0)
    below.set_ylim(bottom=0)
    below.set(xlabel="Outer step", ylabel="Open files")
    save(figure, path)
