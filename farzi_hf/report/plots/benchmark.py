"""Time and memory of a meta-gradient."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.report.plots.style import INK, OURS, clean, finite, logarithmic, plain_numbers, save

_PEER_MARKERS = "sD^vP*"


def plot_benchmark(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Time and peak memory of a meta-gradient, against T: our methods as solid coloured lines, peers as dashed grey lines.

    The left panel shows time per inner step, on an axis that starts at 0. The right panel shows peak memory on a logarithmic
    axis. A compiled method has the colour of its eager twin and hollow markers. A cross at the memory limit means that methods
    ran out of memory at this T.

    Args:
        rows: one per method and T: `method` (compiled ones end in ", compiled"), `kind` ("ours" or "peer"), `steps`,
            `status`, `memory_limit_gib`, and `seconds` and `memory_bytes`, which may be None.

    Raises:
        ValueError: no row has a time.
    """
    if not any(finite(row["seconds"]) for row in rows):
        raise ValueError(f"rows has no finite 'seconds' among {len(rows)}: no cell of the benchmark was measured")
    figure = Figure(figsize=(10.5, 4.6), layout="constrained")
    panels = figure.subplots(1, 2)
    for axes in map(clean, panels):
        axes.set(xscale="log", xlabel="Inner steps T")
    plain_numbers(panels[0].yaxis)
    logarithmic(panels[1], "y")
    styles = _benchmark_styles(rows)
    for method, style in styles.items():
        cells = sorted((row for row in rows if row["method"] == method), key=lambda row: row["steps"])
        timed = [row for row in cells if finite(row["seconds"])]
        held = [row for row in cells if finite(row["memory_bytes"]) and row["status"] != "out of memory"]
        panels[0].plot([r["steps"] for r in timed], [1e3 * r["seconds"] / r["steps"] for r in timed], **style)
        panels[1].plot([r["steps"] for r in held], [r["memory_bytes"] / 1e6 for r in held], label=method, **style)
    _label_benchmark(panels, rows)
    figure.legend(*panels[1].get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    save(figure, path)


def _benchmark_styles(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Line style, colour and marker of each method."""
    kinds = {row["method"]: row["kind"] for row in rows}
    peers = [method for method, kind in kinds.items() if kind == "peer"]
    families = list(dict.fromkeys(m.removesuffix(", compiled") for m, kind in kinds.items() if kind == "ours"))
    greys = np.linspace(0.35, 0.65, max(len(peers), 1))
    styles: dict[str, dict[str, Any]] = {}
    for i, method in enumerate(peers):
        marker = _PEER_MARKERS[i % len(_PEER_MARKERS)]
        styles[method] = {
            "color": str(greys[i]),
            "linestyle": "--",
            "linewidth": 1.2,
            "marker": marker,
            "markersize": 4.5,
        }
    for method in kinds:
        if kinds[method] == "ours":
            color = OURS[families.index(method.removesuffix(", compiled")) % len(OURS)]
            fill = "white" if method.endswith(", compiled") else color
            styles[method] = {"color": color, "markerfacecolor": fill, "linewidth": 1.8, "marker": "o", "markersize": 5}
    return styles


def _label_benchmark(panels: Sequence[Axes], rows: Sequence[Mapping[str, Any]]) -> None:
    steps = sorted({row["steps"] for row in rows})
    panels[0].set_ylabel("Milliseconds per inner step")
    panels[1].set_ylabel("Peak memory (MB, log scale)")
    for axes in panels:
        axes.set_xticks(steps, [str(t) for t in steps])
        axes.set_xticks([], minor=True)
        axes.set_xlim(steps[0] / 1.2, steps[-1] * 1.2)
    panels[0].set_ylim(bottom=0)
    lost = {
        row["steps"]: float(row["memory_limit_gib"]) * 2**30 / 1e6 for row in rows if row["status"] == "out of memory"
    }
    if lost:
        panels[1].plot(lost.keys(), lost.values(), color=INK, marker="x", markersize=7, linestyle="")
        first = min(lost)
        text = {"xytext": (-8, 0), "textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 9}
        panels[1].annotate("out of memory", (first, lost[first]), color=INK, **text)
