"""Time and memory of an inner step over the size of the vocabulary."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from farzi_hf.report.plots.style import INK, OURS, clean, finite, logarithmic, save


def plot_scaling(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """CPU seconds per inner step (left) and peak memory (right) against V, both axes logarithmic; a colour for each ξ.

    Our loss has solid lines, the textbook's formula dashed ones. A line ends where a process ran out of memory or time.

    Args:
        rows: one per cell: `loss` ("ours" or another), `vocabulary`, `length`, and `seconds` and `memory_bytes`, which may be missing.

    Raises:
        ValueError: no row has a time.
    """
    if not any(finite(row.get("seconds")) for row in rows):
        raise ValueError(f"rows has no finite 'seconds' among {len(rows)}: no cell was measured")
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    panels = figure.subplots(1, 2)
    lengths = sorted({row["length"] for row in rows})
    for axes, column, scale in zip(map(clean, panels), ("seconds", "memory_bytes"), (1.0, 1e-6), strict=True):
        for loss in dict.fromkeys(row["loss"] for row in rows):
            for i, length in enumerate(lengths):
                cells = [r for r in rows if (r["loss"], r["length"]) == (loss, length) and finite(r.get(column))]
                style = {"linestyle": "-" if loss == "ours" else "--", "color": OURS[i % len(OURS)]}
                points = [(row["vocabulary"], scale * row[column]) for row in sorted(cells, key=_vocabulary)]
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, **style) if points else None
        logarithmic(axes, "x")
        logarithmic(axes, "y")
        axes.set_xlabel("Entries of the vocabulary, V")
    panels[0].set_ylabel("CPU seconds per inner step, forward and backward")
    panels[1].set_ylabel("Peak memory (MB)")
    handles = [
        *(panels[0].plot([], [], color=OURS[i % len(OURS)], label=f"ξ = {n:,}")[0] for i, n in enumerate(lengths)),
        *(panels[0].plot([], [], color=INK, linestyle=s, label=t)[0] for s, t in (("-", "ours"), ("--", "textbook"))),
    ]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)
    save(figure, path)


def _vocabulary(row: Mapping[str, Any]) -> int:
    return row["vocabulary"]
