"""Figure of continual training: how well a recommender with each memory does after each block of time."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from farzi_hf.report.plots.style import INK, MUTED, OURS, clean, save

_COLORS = (*OURS[:3], MUTED, INK)


def plot_continual(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str], path: str | os.PathLike) -> None:
    """A panel per group of users, with HR@100 over the blocks: a line per memory, and its interval as a band.

    Args:
        rows: one per memory, block and group: `memory`, `block`, `users`, `hr@100` and `hr@100_interval`, a (low, high) pair.
        titles: of the panels, by the values of `users`.
    """
    figure = Figure(figsize=(9.5, 4.4), layout="constrained")
    panels = figure.subplots(1, len(titles), sharex=True, sharey=True)
    for axes, (group, title) in zip(map(clean, panels), titles.items(), strict=True):
        _draw(axes, [row for row in rows if row["users"] == group])
        axes.set(xlabel="Block of time", title=title)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set(ylabel="HR@100, %")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, frameon=False, fontsize=9, ncols=len(labels), loc="outside lower center")
    save(figure, path)


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]]) -> None:
    for i, memory in enumerate(dict.fromkeys(row["memory"] for row in rows)):
        curve, color = [row for row in rows if row["memory"] == memory], _COLORS[i % len(_COLORS)]
        blocks = [row["block"] for row in curve]
        low, high = zip(*(row["hr@100_interval"] for row in curve), strict=True)
        axes.plot(blocks, [100 * row["hr@100"] for row in curve], color=color, marker="o", markersize=4, label=memory)
        axes.fill_between(blocks, [100 * x for x in low], [100 * x for x in high], color=color, alpha=0.1, linewidth=0)
