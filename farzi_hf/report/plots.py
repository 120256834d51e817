"""The figures of recipes and cards: of a distillation, of its summary, and of tables.

Figures are built without pyplot, so there is no global state and no display. They are safe in
threads and in notebooks.
"""

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter

from farzi_hf.common.files import replace_file
from farzi_hf.common.text import number

INK, MUTED = "#333333", "#9aa5b1"
SUMMARY, REAL, SOME_REAL, TEACHER, COUNTED = "#0072b2", "#d55e00", "#e69f00", "#009e73", "#6b7680"
KINDS = {
    SUMMARY: ("a summary", ()),
    REAL: ("all real data", ("full data", "all real", "students of all real")),
    SOME_REAL: ("some real data", ("random", "head", "so many bytes", "as many")),
    TEACHER: ("the teacher", ("teacher", "the packed teacher", "same inputs")),
    COUNTED: (
        "counted",
        (
            "unigram",
            "interpolated",
            "Kneser-Ney",
            "popularity",
            "item bigram",
            "rules of sequences",
            "counted",
            "the paper",
        ),
    ),
}
"""The same colour for the same thing in every figure: what it stands for, and how names of such
rows begin. Any other row is of a summary. Colour-blind readers can tell them apart (Okabe & Ito,
2008).
"""
FAR = 2.0
"""Values of so many times the median are not drawn to scale, but written at the edge: they would
squash all others.
"""

Rows = Sequence[Mapping[str, Any]]
File = str | os.PathLike

# -- of a table ------------------------------------------------------------------------------------


def plot_comparison(
    rows: Rows, path: File, metric: str, *, metric_label: str | None = None
) -> None:
    """Methods as points with their intervals, in the colours of `KINDS`. What is far above the
    others is an arrow with its value at the edge. Raises ValueError if no row has the metric.

    Args:
        rows: the results' table: `method`, the metric, and optionally `{metric}_interval`, a (low,
            high) pair. Rows whose metric is missing or not finite are left out.
    """
    rows = [row for row in rows if finite(row.get(metric))]
    if not rows:
        raise ValueError(
            f"rows has no finite {metric!r}; pass rows such as {{'method': 'Farzi', {metric!r}:"
            " 1.0}"
        )
    values, drawn = [float(row[metric]) for row in rows], {color_of(row["method"]) for row in rows}
    edge = FAR * abs(median_low(values))
    figure, (axes,) = new_panels(7.5, 1.2 + 0.36 * len(rows))
    plain_numbers(axes.xaxis)
    for i, (row, value) in enumerate(zip(rows, values, strict=True)):
        color, interval = color_of(row["method"]), row.get(f"{metric}_interval") or (value, value)
        low, high, at = (min(x, edge) for x in (*interval, value))
        axes.plot(
            [low, high], [i, i], color=color, linewidth=1.6, marker="|", solid_capstyle="butt"
        )
        axes.plot(at, i, color=color, marker=">" if value > edge else "o")
        axes.annotate(
            number(value),
            (max(high, at), i),
            (8, 0),
            textcoords="offset points",
            va="center",
            color=INK,
        )
    axes.margins(x=0.12)
    axes.set_yticks(range(len(rows)), [str(row["method"]) for row in rows])
    axes.invert_yaxis()
    axes.set_xlabel((metric_label or metric) + (" (▸ off the axis)" if max(values) > edge else ""))
    kinds = {
        kind: Line2D([], [], color=color, marker="o")
        for color, (kind, _) in KINDS.items()
        if color in drawn
    }
    figure.legend(
        kinds.values(), kinds, loc="outside upper center", ncols=5, frameon=False, fontsize=9
    )
    save(figure, path)


# -- of one distillation ---------------------------------------------------------------------------


def plot_distillation(
    log_history: Rows, path: File, *, metric: str, metric_label: str, **baselines: float
) -> None:
    """The curves of a distillation against outer steps: student metric, outer loss, norm of the
    meta-gradient. Raises ValueError if none of the quantities was logged.

    A quantity that was never logged has no panel. Values that are not finite are left out.

    Args:
        log_history: `trainer.state.log_history`: rows with `step` and any of the quantities.
        metric: the name of the student metric in these rows. `{metric}_std` is drawn as a band, if
            rows have it.
        baselines: horizontal lines in the metric's panel, by name: `full_data=82.0, unigram=196.6`.
    """
    drawn = {name: _series(log_history, name) for name in (metric, "loss", "grad_norm")}
    drawn = {name: points for name, points in drawn.items() if len(points)}
    if not drawn:
        raise ValueError(
            f"log_history has no {metric}, loss or grad_norm; pass trainer.state.log_history of"
            " a run"
        )
    heights = [1.6 if name == metric else 1.0 for name in drawn]
    figure, panels = new_panels(
        7.5, 0.6 + 1.9 * sum(heights), len(drawn), sharex=True, height_ratios=heights
    )
    for axes, (name, points) in zip(panels, drawn.items(), strict=True):
        plain_numbers(axes.yaxis)
        steps, values = points.T
        if name == metric:
            axes.plot(
                steps,
                values,
                color=SUMMARY,
                marker="o",
                markersize=4,
                label="student on the summary",
            )
            spread = _series(log_history, f"{metric}_std")[:, 1]
            if len(spread) == len(values):
                axes.fill_between(
                    steps, values - spread, values + spread, color=SUMMARY, alpha=0.18, linewidth=0
                )
            draw_lines(axes, baselines, within=(values.min() / 1.25, values.max() * 1.25))
            axes.legend(
                ncols=3, frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0)
            )
            axes.set_ylabel(metric_label)
        else:
            half = len(values) // 40
            median = [
                np.median(values[max(0, i - half) : i + half + 1]) for i in range(len(values))
            ]
            axes.plot(steps, values, color=MUTED, linewidth=0.8, alpha=0.8)
            axes.plot(
                steps, median, color=INK, linewidth=1.6
            )  # in front: the running median, which outliers do not move
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


def plot_tokens(decoded: Sequence[Rows], path: File, shown: str = "Synthetic sequence 0") -> None:
    """The first decoded synthetic sequence. Each position shows its likeliest tokens with their
    probabilities, and its entropy.

    Where positions have labels of their own, these are the tokens of the label, and the likeliest
    input stands above, in another colour.

    Args:
        decoded: `farzi.decode(top_k)`.
        shown: what the first of them is called.
    """
    positions, columns, own = (
        decoded[0],
        min(10, len(decoded[0])),
        "label_" * ("label_tokens" in decoded[0][0]),
    )
    starts, top_k = range(0, len(positions), columns), len(positions[0][f"{own}tokens"])
    figure = Figure(figsize=(14, 0.5 + len(starts) * (0.36 * top_k + 0.5)), layout="constrained")
    panels = figure.subplots(len(starts), squeeze=False)[:, 0]
    how = {
        "ha": "center",
        "va": "center",
        "parse_math": False,
    }  # tokens may hold dollar signs, which would start a formula
    for axes, first in zip(panels, starts, strict=True):
        strip, shades = positions[first : first + columns], np.full((top_k, columns), np.nan)
        shades[:, : len(strip)] = np.array(
            [position[f"{own}probabilities"] for position in strip]
        ).T
        image = axes.imshow(
            shades, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto"
        )  # most probabilities are small
        for x, position in enumerate(strip):
            for y, (token, probability) in enumerate(
                zip(position[f"{own}tokens"], position[f"{own}probabilities"], strict=True)
            ):
                color = "white" if probability > 0.35 else INK
                axes.text(x, y - 0.14, _short(token), fontsize=8.5, color=color, **how)
                axes.text(x, y + 0.25, f"{probability:.2f}", fontsize=6.5, color=color, **how)
            if own:
                axes.text(
                    x,
                    -0.75,
                    _short(position["tokens"][0]),
                    fontsize=8.5,
                    fontweight="bold",
                    color=REAL,
                    **how,
                )
        names = [
            f"{first + x}\n{position[f'{own}entropy']:.1f} nats" for x, position in enumerate(strip)
        ]
        axes.set_xticks(range(len(strip)), names, fontsize=7.5)
        axes.set_yticks(range(top_k), [str(rank + 1) for rank in range(top_k)], fontsize=7.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(panels), label="Probability", aspect=30, pad=0.01)
    what = (
        "in orange what a student reads, below it what it should predict next"
        if own
        else "likeliest tokens per position"
    )
    figure.suptitle(f"{shown}: {what}", fontsize=11)
    save(figure, path)


def _short(token: Any) -> str:
    return (
        str(token) if len(str(token)) <= 12 else str(token)[:11] + "…"
    )  # a cell has no room for more


# -- the style -------------------------------------------------------------------------------------


def finite(value: Any) -> bool:
    """Whether the value exists and is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def plain_numbers(axis: Axis) -> None:
    """Labels an axis without offsets and powers of ten."""
    axis.set_major_formatter(lambda value, position: number(value))


class _PlainTicks(LogLocator):
    """Ticks at 1, 2 and 5 times the powers of ten, or fewer on a long axis; as on a linear one
    within one power.
    """

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        if vmax < 10 * vmin:
            ticks = AutoLocator().tick_values(vmin, vmax)
            return ticks[ticks > 0]
        self.set_params(
            subs=(
                (1.0,) if vmax > 1e4 * vmin else (1.0, 3.0) if vmax > 50 * vmin else (1.0, 2.0, 5.0)
            )
        )
        return super().tick_values(vmin, vmax)


def logarithmic(axes: Axes, which: str) -> None:
    """Makes the axis "x" or "y" logarithmic; ticks are written as plain numbers."""
    axes.set(**{f"{which}scale": "log"})
    axis = {"x": axes.xaxis, "y": axes.yaxis}[which]
    axis.set_major_locator(_PlainTicks())
    plain_numbers(axis)
    axis.set_minor_formatter(NullFormatter())


def new_panels(
    width: float, height: float, *grid: int, **options: Any
) -> tuple[Figure, list[Axes]]:
    """A figure of so many inches and its panels, from left to right and from top to bottom: without
    a frame, with a faint grid.
    """
    figure = Figure(figsize=(width, height), layout="constrained")
    found = list(figure.subplots(*grid, squeeze=False, **options).flat)
    for axes in found:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e9ed", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, found


def color_of(method: Any) -> str:
    """The colour of a row, or of a line, by how its name begins."""
    return next(
        (color for color, (_, begins) in KINDS.items() if str(method).startswith(begins)), SUMMARY
    )


def draw_lines(
    axes: Axes, lines: Mapping[str, float], within: tuple[float, float] = (-math.inf, math.inf)
) -> None:
    """Draws horizontal lines, with their names in the legend; of those that are not `within` an
    interval the legend alone.
    """
    for i, (name, value) in enumerate(lines.items()):
        name, drawn = name.replace("_", " "), within[0] <= value <= within[1]
        look = {"color": color_of(name), "linestyle": ("--", ":", "-.")[i % 3], "linewidth": 1.6}
        draw = axes.axhline if drawn else lambda y, **look: axes.plot([], [], **look)
        draw(value, label=f"{name} ({number(value)}{'' if drawn else ', off the axis'})", **look)


def save(figure: Figure, path: File) -> None:
    """Writes the figure and then replaces the file `path` in one step. The suffix of `path` sets
    the format.
    """
    path = Path(path)
    replace_file(
        path,
        lambda new: figure.savefig(new, dpi=150, format=path.suffix.removeprefix(".") or "png"),
    )
