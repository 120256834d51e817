"""The figures that recipes and cards show. Needs matplotlib (`pip install farzi-hf[plots]`).

Figures are built without pyplot: no global state, no display, safe in threads and notebooks alike.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from farzi_hf.plots.memory import plot_memory
from farzi_hf.plots.style import ACCENT, INK, LINES, MUTED, clean, finite, number, save
from farzi_hf.plots.summary import plot_entropy, plot_popularity, plot_tokens

__all__ = [
    "plot_benchmark", "plot_budget", "plot_comparison", "plot_deciles", "plot_distillation", "plot_entropy", "plot_memory", "plot_popularity",
    "plot_tokens", "plot_trajectory_count",
]  # fmt: skip

_OURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")  # apart for the colour-blind (Okabe & Ito, 2008)
_PEER_MARKERS = "sD^vP*"


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
    """How a distillation went, against outer steps: student metric, outer loss, norm of the meta-gradient.

    A quantity that was never logged gets no panel; values that are not finite are left out.

    Args:
        log_history: `trainer.state.log_history`: rows with `step` and any of the quantities.
        metric, loss, norm: their names there. Where rows have `{metric}_std`, it is drawn as a band.
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
        clean(axes)
        if name == metric:
            _draw_metric(axes, points, _series(log_history, f"{metric}_std"), baselines)
            axes.set_ylabel(metric_label)
        else:
            _draw_noisy(axes, points)
            axes.set_ylabel("Outer loss (nats)" if name == loss else "Meta-gradient norm")
            if name == norm:
                axes.set_yscale("log")
    panels[-1].set_xlabel("Outer step")
    figure.align_ylabels()
    save(figure, path)


def plot_comparison(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike,
    metric: str,
    *,
    metric_label: str | None = None,
    highlight: str = "Farzi",
) -> None:
    """Methods side by side as bars, with intervals where there are any; one colour for ours, one for the rest.

    Args:
        rows: the results' table: `method`, the metric, and optionally `{metric}_interval`, a (low, high) pair. Rows
            whose metric is missing or not finite are left out.
        highlight: methods whose name starts so are ours.

    Raises:
        ValueError: no row has the metric.
    """
    rows = [row for row in rows if finite(row.get(metric))]
    if not rows:
        raise ValueError(f"rows has no finite {metric!r}; pass rows such as {{'method': 'Farzi', {metric!r}: 1.0}}")
    values = [float(row[metric]) for row in rows]
    figure = Figure(figsize=(7.5, 0.9 + 0.42 * len(rows)), layout="constrained")
    axes = clean(figure.subplots())
    colors = [ACCENT if str(row["method"]).startswith(highlight) else MUTED for row in rows]
    bars = axes.barh([str(row["method"]) for row in rows], values, color=colors, height=0.68)
    for i, row in enumerate(rows):
        if row.get(f"{metric}_interval") is not None:
            axes.plot(row[f"{metric}_interval"], [i, i], color=INK, linewidth=1.4, solid_capstyle="butt", marker="|")
    edges = [max(value, *(row.get(f"{metric}_interval") or [value])) for value, row in zip(values, rows, strict=True)]
    logarithmic = min(values) > 0 and max(values) > 30 * min(values)
    axes.set_xscale("log" if logarithmic else "linear")
    for bar, value, edge in zip(bars, values, edges, strict=True):
        middle = bar.get_y() + bar.get_height() / 2
        axes.annotate(number(value), (edge, middle), xytext=(6, 0), textcoords="offset points", va="center", color=INK)
    axes.margins(x=0.12)
    axes.invert_yaxis()
    axes.set_xlabel((metric_label or metric) + (" (log scale)" if logarithmic else ""))
    axes.grid(visible=False, axis="y")
    save(figure, path)


def plot_budget(
    rows: Sequence[Mapping[str, Any]],
    path: str | os.PathLike,
    metric: str,
    *,
    metric_label: str | None = None,
    **lines: float,
) -> None:
    """A metric against the budget: synthetic sequences below (log), bytes above; a curve and a band per method.

    Args:
        rows: one per method and budget: `method`, `num_sequences`, `bytes`, the metric, and optionally
            `{metric}_interval`, a (low, high) pair, the band. Rows whose metric is missing or not finite are left out.
        lines: what does not depend on the budget, by name: `full_data=82.3, unigram=196.5`.

    Raises:
        ValueError: no row has the metric.
    """
    rows = sorted((row for row in rows if finite(row.get(metric))), key=lambda row: row["num_sequences"])
    if not rows:
        raise ValueError(
            f"rows has no finite {metric!r}; pass rows such as {{'num_sequences': 50, {metric!r}: 1.0, …}}"
        )
    figure = Figure(figsize=(7.5, 4.6), layout="constrained")
    axes = clean(figure.subplots())
    axes.set(xscale="log", xlabel="Synthetic sequences μ", ylabel=metric_label or metric)
    for i, method in enumerate(dict.fromkeys(row["method"] for row in rows)):
        curve = [row for row in rows if row["method"] == method]
        budgets, color = [row["num_sequences"] for row in curve], _OURS[i % len(_OURS)]
        axes.plot(budgets, [row[metric] for row in curve], color=color, marker="o", markersize=5, label=method)
        edges = [row.get(f"{metric}_interval") or (row[metric], row[metric]) for row in curve]
        axes.fill_between(budgets, *zip(*edges, strict=True), color=color, alpha=0.18, linewidth=0)
    _draw_lines(axes, lines)
    values = [row[metric] for row in rows] + list(lines.values())
    if min(values) > 0 and max(values) > 10 * min(values):
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, position: number(value))
    _label_budgets(axes, {row["num_sequences"]: row["bytes"] for row in rows})
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    save(figure, path)


def plot_benchmark(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike) -> None:
    """Time per inner step, from zero, and peak memory, logarithmic, of a meta-gradient over T: ours solid in colours, peers dashed in grey.

    A compiled method has the colour of its eager twin and hollow markers. A cross says that methods ran out of
    memory there, at the limit that they were given.

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
    panels[1].set_yscale("log")
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


def _series(log_history: Sequence[Mapping[str, Any]], name: str) -> np.ndarray:
    """(n, 2): outer step and value of every row that logged a finite `name`."""
    points = [(row["step"], row[name]) for row in log_history if finite(row.get(name))]
    return np.array(points, dtype=float).reshape(-1, 2)


def _draw_metric(axes: Axes, points: np.ndarray, spread: np.ndarray, baselines: Mapping[str, float]) -> None:
    steps, values = points.T
    axes.plot(steps, values, color=ACCENT, marker="o", markersize=4, label="student on the summary")
    if len(spread) == len(points):
        axes.fill_between(steps, values - spread[:, 1], values + spread[:, 1], color=ACCENT, alpha=0.18, linewidth=0)
    _draw_lines(axes, baselines)
    axes.legend(frameon=False, fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _draw_lines(axes: Axes, lines: Mapping[str, float]) -> None:
    for i, (name, value) in enumerate(lines.items()):
        label = f"{name.replace('_', ' ')} ({number(value)})"
        axes.axhline(value, color=LINES[i % len(LINES)], linestyle="--", linewidth=1.3, label=label)


def _label_budgets(axes: Axes, sizes: Mapping[int, float]) -> None:
    """Ticks at the budgets alone: sequences below, their bytes above."""
    axes.set_xticks(list(sizes), [f"{budget:,}" for budget in sizes])
    axes.set_xticks([], minor=True)
    above = axes.secondary_xaxis("top")
    above.set_xticks(list(sizes), [_bytes(size) for size in sizes.values()])
    above.set_xticks([], minor=True)
    above.set_xlabel("Latents and decoder")


def _bytes(size: float) -> str:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"


def _draw_noisy(axes: Axes, points: np.ndarray) -> None:
    """Every value in the background and their running median, which outliers do not move, in front."""
    steps, values = points.T
    half = len(values) // 40
    median = [np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))]
    axes.plot(steps, values, color=MUTED, linewidth=0.8, alpha=0.8)
    axes.plot(steps, median, color=INK, linewidth=1.6)


def _benchmark_styles(rows: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """How each method is drawn, in the order in which they appear."""
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
            color = _OURS[families.index(method.removesuffix(", compiled")) % len(_OURS)]
            fill = "white" if method.endswith(", compiled") else color
            styles[method] = {"color": color, "markerfacecolor": fill, "linewidth": 1.8, "marker": "o", "markersize": 5}
    return styles


def _label_benchmark(panels: Sequence[Axes], rows: Sequence[Mapping[str, Any]]) -> None:
    steps = sorted({row["steps"] for row in rows})
    panels[0].set_ylabel("Milliseconds per inner step")
    panels[1].set_ylabel("Peak memory (MB)")
    for axes in panels:
        axes.set_xticks(steps, [str(t) for t in steps])
        axes.set_xticks([], minor=True)
        axes.set_xlim(steps[0] / 1.2, steps[-1] * 1.2)
        axes.yaxis.set_major_formatter(lambda value, position: number(value))
    panels[0].set_ylim(bottom=0)
    lost = {
        row["steps"]: float(row["memory_limit_gib"]) * 2**30 / 1e6 for row in rows if row["status"] == "out of memory"
    }
    if lost:
        panels[1].plot(lost.keys(), lost.values(), color=INK, marker="x", markersize=7, linestyle="")
        first = min(lost)
        text = {"xytext": (-8, 0), "textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 9}
        panels[1].annotate("out of memory", (first, lost[first]), color=INK, **text)


def plot_trajectory_count(
    rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, metric: str, *, metric_label: str, **baselines: float
) -> None:
    """A metric against |Ω|, one tick per count, with the standard deviation over students as a band.

    Args:
        rows: `trajectories`, the metric and `{metric}_std`, in the order in which they are drawn.
        baselines: horizontal lines by name.
    """
    figure = Figure(figsize=(6.5, 4.0), layout="constrained")
    axes = clean(figure.subplots())
    points = np.array([(i, row[metric]) for i, row in enumerate(rows)], dtype=float)
    _draw_metric(axes, points, np.array([(i, row[f"{metric}_std"]) for i, row in enumerate(rows)]), baselines)
    axes.set_xticks(range(len(rows)), [str(row["trajectories"]) for row in rows])
    axes.set_xlabel("|Ω|, pretrained trajectories (0: random initialisation alone)")
    axes.set_ylabel(metric_label)
    save(figure, path)


def plot_deciles(rows: Sequence[Mapping[str, Any]], path: str | os.PathLike, *, metric_label: str) -> None:
    """HR@100 in tenths by popularity: a panel for items and one for users, a line per method, intervals as bars.

    Args:
        rows: one per method, `by` ("items" or "users") and `tenth` from 1, the most popular or longest histories: `n`, the number of test users in
            it, and where there are any `hr@100` and `hr@100_interval`.
    """
    figure = Figure(figsize=(10.5, 4.2), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    order = {"items": "most popular first", "users": "longest histories first"}
    for axes, by in zip(map(clean, panels), order, strict=True):
        for i, method in enumerate(methods):
            curve = [row for row in rows if (row["method"], row["by"]) == (method, by) and row["n"]]
            values = np.array([row["hr@100"] for row in curve])
            edges = np.array([row["hr@100_interval"] for row in curve]).reshape(-1, 2)
            places = np.array([row["tenth"] for row in curve]) + 0.12 * (i - (len(methods) - 1) / 2)
            errors = np.abs(edges.T - values)
            color = _OURS[i % len(_OURS)]
            axes.errorbar(places, values, errors, color=color, marker="o", markersize=4, linewidth=1.2, label=method)
        counts = {row["tenth"]: row["n"] for row in rows if row["by"] == by}
        axes.set_xticks(list(counts), [f"{tenth}\nn = {n}" for tenth, n in counts.items()], fontsize=7.5)
        axes.set_xlabel(f"Tenths of the {by}, {order[by]}")
    panels[0].set_ylabel(metric_label)
    panels[0].legend(frameon=False, fontsize=9)
    save(figure, path)
