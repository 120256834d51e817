"""Figures of time and memory: of a meta-gradient, of an influence, of a large vocabulary, and of a process over time."""

from __future__ import annotations

from itertools import cycle

import numpy as np

from farzi_hf.report.plots import style
from farzi_hf.report.plots.style import File, Rows


def plot_benchmark(rows: Rows, path: File) -> None:
    """Time and peak memory of a meta-gradient, against T: our methods as solid coloured lines, peers as dashed grey lines.

    The left panel shows time per inner step, on an axis that starts at 0. The right panel shows peak memory on a logarithmic
    axis. A compiled method has the colour of its eager twin and hollow markers. A cross at the memory limit means that methods
    ran out of memory at this T.

    Args:
        rows: one per method and T: `method` (compiled ones end in ", compiled"), `kind` ("ours" or "peer"), `steps`,
            `status`, `memory_limit_gib`, and `seconds` and `memory_bytes`, which may be None.
    """
    figure, (left, right) = style.panels(10.5, 4.6, 1, 2)
    left.set(xscale="log", xlabel="Inner steps T", ylabel="Milliseconds per inner step")
    right.set(xscale="log", xlabel="Inner steps T", ylabel="Peak memory (MB, log scale)")
    style.plain_numbers(left.yaxis)
    style.logarithmic(right, "y")
    peers, ours = (
        list(dict.fromkeys(row["method"] for row in rows if row["kind"] == kind)) for kind in ("peer", "ours")
    )
    peer = {"linestyle": "--", "linewidth": 1.2, "markersize": 4.5}
    greys = np.linspace(0.35, 0.65, max(len(peers), 1))
    looks = {m: {"color": str(greys[i]), "marker": "sD^vP*"[i % 6], **peer} for i, m in enumerate(peers)}
    families = list(dict.fromkeys(method.removesuffix(", compiled") for method in ours))
    for method in ours:
        color = style.OURS[families.index(method.removesuffix(", compiled")) % len(style.OURS)]
        fill = "white" if method.endswith(", compiled") else color
        looks[method] = {"color": color, "markerfacecolor": fill, "linewidth": 1.8, "marker": "o", "markersize": 5}
    for method, look in looks.items():
        cells = sorted((row for row in rows if row["method"] == method), key=lambda row: row["steps"])
        timed = [row for row in cells if style.finite(row["seconds"])]
        held = [row for row in cells if style.finite(row["memory_bytes"]) and row["status"] != "out of memory"]
        left.plot([r["steps"] for r in timed], [1e3 * r["seconds"] / r["steps"] for r in timed], **look)
        right.plot([r["steps"] for r in held], [r["memory_bytes"] / 1e6 for r in held], label=method, **look)
    steps = sorted({row["steps"] for row in rows})
    for axes in (left, right):
        style.ticks(axes, steps, map(str, steps))
        axes.set_xlim(steps[0] / 1.2, steps[-1] * 1.2)
    left.set_ylim(bottom=0)
    lost = {r["steps"]: float(r["memory_limit_gib"]) * 2**30 / 1e6 for r in rows if r["status"] == "out of memory"}
    if lost:
        right.plot(lost.keys(), lost.values(), color=style.INK, marker="x", markersize=7, linestyle="")
        text = {"xytext": (-8, 0), "textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 9}
        right.annotate("out of memory", (min(lost), lost[min(lost)]), color=style.INK, **text)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", frameon=False, fontsize=9)
    style.save(figure, path)


def plot_attribution(scores: Rows, costs: Rows, path: File) -> None:
    """Two panels over the number of training steps: the linear datamodelling score per method, and the peak memory per way to differentiate.

    Args:
        scores: one per method and T: `method`, `steps`, `lds` and `lds_interval`, a (low, high) pair.
        costs: one per way and T: `method`, `steps` and `memory_bytes`. Rows without memory, such as those that had too little of it,
            are left out.
    """
    figure, (left, right) = style.panels(9.5, 4.4, 1, 2)
    colors = (*style.OURS, style.MUTED, style.INK)
    style.curves(left, scores, "steps", "lds", colors, size=4, alpha=0.15)
    left.axhline(0, color=style.MUTED, linewidth=0.8)
    left.set(ylabel="Linear datamodelling score", ylim=(min(-0.25, *left.get_ylim()), 1.05))
    held = [row for row in costs if style.finite(row.get("memory_bytes"))]
    style.curves(right, held, "steps", "memory_bytes", colors, size=4, alpha=0.15, unit=2.0**20)
    right.set(ylabel="Peak memory above the start (MiB)")
    style.logarithmic(right, "y")
    for axes, rows in ((left, scores), (right, costs)):
        axes.set(xscale="log", xlabel="Training steps T")
        style.ticks(axes, sorted({row["steps"] for row in rows}))
        axes.legend(ncols=2, **{**style.ABOVE, "fontsize": 8})
    style.save(figure, path)


def plot_scaling(rows: Rows, path: File) -> None:
    """CPU seconds per inner step (left) and peak memory (right) against V, both axes logarithmic; a colour for each ξ.

    Our loss has solid lines, the textbook's formula dashed ones. A line ends where a process ran out of memory or time.

    Args:
        rows: one per cell: `loss` ("ours" or another), `vocabulary`, `length`, and `seconds` and `memory_bytes`, which may be missing.
    """
    figure, panels = style.panels(10.5, 4.6, 1, 2)
    colors = dict(zip(sorted({row["length"] for row in rows}), cycle(style.OURS), strict=False))
    for axes, column, scale in zip(panels, ("seconds", "memory_bytes"), (1.0, 1e-6), strict=True):
        for loss in dict.fromkeys(row["loss"] for row in rows):
            for length, color in colors.items():
                cells = [r for r in rows if (r["loss"], r["length"]) == (loss, length) and style.finite(r.get(column))]
                points = sorted((row["vocabulary"], scale * row[column]) for row in cells)
                line = {"linestyle": "-" if loss == "ours" else "--", "color": color, "marker": "o", "markersize": 4}
                axes.plot(*zip(*points, strict=True), **line) if points else None
        style.logarithmic(axes, "x")
        style.logarithmic(axes, "y")
        axes.set_xlabel("Entries of the vocabulary, V")
    panels[0].set_ylabel("CPU seconds per inner step, forward and backward")
    panels[1].set_ylabel("Peak memory (MB)")
    looks = [{"color": color, "label": f"ξ = {length:,}"} for length, color in colors.items()]
    looks += [{"color": style.INK, "linestyle": s, "label": t} for s, t in (("-", "ours"), ("--", "textbook"))]
    handles = [panels[0].plot([], [], **look)[0] for look in looks]
    figure.legend(handles=handles, loc="outside right center", frameon=False, fontsize=9)
    style.save(figure, path)


def plot_memory(rows: Rows, path: File, *, line: tuple[float, float]) -> None:
    """Resident memory and open files of one process against outer steps, with a straight line through the memory.

    Args:
        rows: one per measurement: `step`, `resident_mib` and `open_files`.
        line: the line's slope in MiB per outer step, and its value at step 0 in MiB.
    """
    steps = np.array([row["step"] for row in rows])
    slope, origin = line
    figure, (above, below) = style.panels(7.5, 4.6, 2, sharex=True, height_ratios=(2, 1))
    for axes, name, label in ((above, "resident_mib", "Resident memory (MiB)"), (below, "open_files", "Open files")):
        axes.plot(steps, [row[name] for row in rows], color=style.ACCENT, linewidth=1.0, label="measured")
        axes.set_ylabel(label)
        style.plain_numbers(axes.yaxis)
    label = f"straight line: {1000 * slope:+.2f} MiB per 1,000 outer steps"
    above.plot(steps, origin + slope * steps, color=style.INK, linestyle="--", linewidth=1.2, label=label)
    above.legend(frameon=False, fontsize=9, loc="lower right")
    below.set_xlabel("Outer step")
    style.plain_numbers(below.xaxis)
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    style.save(figure, path)
