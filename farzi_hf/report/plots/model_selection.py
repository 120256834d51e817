"""Figure of model selection: what cheap trainings say of each configuration, against what long ones say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from farzi_hf.report.plots.style import MUTED, OURS, clean, plain_numbers, save

_COLUMNS = 4
_MARKERS = ("o", "^", "s", "D")


def plot_model_selection(
    points: Sequence[Mapping[str, Any]], titles: Mapping[str, str], path: str | os.PathLike, *, metric_label: str
) -> None:
    """A panel per way to train: its metric against that of the truth, with a point per configuration and split.

    Args:
        points: `way`, `architecture`, `split`, and the metrics `proxy` and `truth`, which are shares. Colours tell architectures apart,
            markers splits.
        titles: of the panels, by way, in their order.
    """
    lines = -(-(len(titles) + 1) // _COLUMNS)  # one place more, for the legend
    figure = Figure(figsize=(3.3 * _COLUMNS, 3.2 * lines), layout="constrained")
    panels = figure.subplots(lines, _COLUMNS, squeeze=False, sharey=True).flat
    colors = _kinds(points, "architecture", OURS)
    markers = _kinds(points, "split", _MARKERS)
    for (way, title), axes in zip(titles.items(), panels, strict=False):
        clean(axes)
        for row in (row for row in points if row["way"] == way):
            look = {"color": colors[row["architecture"]], "marker": markers[row["split"]]}
            axes.plot(100 * row["proxy"], 100 * row["truth"], linestyle="", markersize=5, alpha=0.75, **look)
        axes.set_title(title, fontsize=9)
        axes.set_xlabel(f"{metric_label} of the proxy, %", fontsize=8)
        for axis in (axes.xaxis, axes.yaxis):
            plain_numbers(axis)
    for axes in panels[len(titles) :]:
        axes.set_axis_off()
    for axes in panels[::_COLUMNS]:
        axes.set_ylabel(f"{metric_label} of the truth, %", fontsize=8)
    shown = [Line2D([], [], color=x, marker="o", linestyle="", label=name) for name, x in colors.items()]
    shown += [Line2D([], [], color=MUTED, marker=x, linestyle="", label=f"split {name}") for name, x in markers.items()]
    panels[len(titles)].legend(handles=shown, frameon=False, fontsize=9, loc="center")
    save(figure, path)


def _kinds(points: Sequence[Mapping[str, Any]], name: str, looks: Sequence[str]) -> dict[Any, str]:
    """The look of each value that the points have, in the order of their first."""
    values = dict.fromkeys(row[name] for row in points)
    return {value: looks[i % len(looks)] for i, value in enumerate(values)}
