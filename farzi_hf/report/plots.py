"""The figures of recipes and cards: of a distillation, of its summary, and of tables.

Figures are built without pyplot, so there is no global state and no display. They are safe in
threads and in notebooks.
"""

import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.lines import Line2D
from matplotlib.ticker import AutoLocator, LogLocator, NullFormatter

from farzi_hf.common.files import replace_file
from farzi_hf.common.fonts import fonts_of
from farzi_hf.common.text import number

INK = "#333333"
"""Of text, and of what stands in front."""

MUTED = "#9aa5b1"
"""Of what stands behind."""

SUMMARY = "#0072b2"
REAL = "#d55e00"
SOME_REAL = "#e69f00"
TEACHER = "#009e73"
COUNTED = "#6b7680"
PAPER = "#000000"


@dataclass(frozen=True)
class Kind:
    """A kind of rows of a table, which has a colour of its own in every figure."""

    color: str
    """Colour-blind readers can tell the colours apart (Okabe & Ito, 2008)."""

    name: str
    """In the legend."""

    beginnings: tuple[str, ...]
    """How the names of such rows begin."""


KINDS = (
    Kind(SUMMARY, "a summary", ()),
    Kind(REAL, "all real data", ("full data", "all real", "students of all real")),
    Kind(
        SOME_REAL,
        "some real data",
        ("random", "head", "so many bytes", "as many", "1 % of", "10 % of", "100 % of"),
    ),
    Kind(
        TEACHER,
        "the teacher",
        (
            "teacher",
            "the packed teacher",
            "same inputs",
            *(f"{n}-gram and teacher" for n in range(6)),
        ),
    ),
    Kind(
        COUNTED,
        "counted",
        (
            "unigram",
            "interpolated",
            "Kneser-Ney",
            "popularity",
            "item bigram",
            "rules of sequences",
            "counted",
        ),
    ),
    Kind(PAPER, "the paper", ("the paper",)),
)
"""In the order of the legend. A row that belongs to no other is of a summary."""

FAR = 2.0
"""Values of so many times the median are not drawn to scale, but written at the edge: they would
squash all others. Shares are all drawn to scale.
"""

DOTS_PER_INCH = 150
"""Of figures that are images."""

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
    values = [float(row[metric]) for row in rows]
    edge = math.inf if max(values) <= 1 else FAR * abs(median_low(values))
    figure, (axes,) = new_panels(7.5, 1.2 + 0.36 * len(rows))
    plain_numbers(axes.xaxis)
    for place, (row, value) in enumerate(zip(rows, values, strict=True)):
        interval = row.get(f"{metric}_interval") or (value, value)
        _draw_row(axes, place, value, interval, edge, color_of(row["method"]))
    axes.margins(x=0.12)
    axes.set_yticks(range(len(rows)), [str(row["method"]) for row in rows])
    axes.invert_yaxis()
    note = " (▸ off the axis)" if max(values) > edge else ""
    axes.set_xlabel((metric_label or metric) + note)
    _draw_legend(figure, {color_of(row["method"]) for row in rows})
    save(figure, path)


def _draw_row(
    axes: Axes,
    place: int,
    value: float,
    interval: tuple[float, float],
    edge: float,
    color: str,
) -> None:
    """A point with its interval and its value, at the height `place`; nothing beyond the edge."""
    low = min(interval[0], edge)
    high = min(interval[1], edge)
    point = min(value, edge)
    axes.plot(
        [low, high], [place, place], color=color, linewidth=1.6, marker="|", solid_capstyle="butt"
    )
    axes.plot(point, place, color=color, marker=">" if value > edge else "o")
    axes.annotate(
        number(value),
        (max(high, point), place),
        (8, 0),
        textcoords="offset points",
        va="center",
        color=INK,
    )


def _draw_legend(figure: Figure, colors: Collection[str]) -> None:
    """What these colours stand for, above the panels."""
    drawn = [kind for kind in KINDS if kind.color in colors]
    lines = [Line2D([], [], color=kind.color, marker="o") for kind in drawn]
    names = [kind.name for kind in drawn]
    figure.legend(lines, names, loc="outside upper center", ncols=5, frameon=False, fontsize=9)


# -- of one distillation ---------------------------------------------------------------------------


_LABELS = {"loss": "Outer loss (nats)", "grad_norm": "Meta-gradient norm"}
"""Of the vertical axes, by what is logged."""


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
    series = {name: _series(log_history, name) for name in (metric, "loss", "grad_norm")}
    logged = {name: points for name, points in series.items() if len(points)}
    if not logged:
        raise ValueError(
            f"log_history has no {metric}, loss or grad_norm; pass trainer.state.log_history of"
            " a run"
        )
    heights = [1.6 if name == metric else 1.0 for name in logged]
    figure, panels = new_panels(
        7.5, 0.6 + 1.9 * sum(heights), len(logged), sharex=True, height_ratios=heights
    )
    for axes, (name, points) in zip(panels, logged.items(), strict=True):
        plain_numbers(axes.yaxis)
        steps, values = points.T
        if name == metric:
            spread = _series(log_history, f"{metric}_std")[:, 1]
            _draw_metric(axes, steps, values, spread, baselines)
            axes.set_ylabel(metric_label)
        else:
            _draw_noisy(axes, steps, values)
            axes.set_ylabel(_LABELS[name])
        if name == "grad_norm":
            logarithmic(axes, "y")
    plain_numbers(panels[-1].xaxis)
    panels[-1].set_xlabel("Outer step")
    figure.align_ylabels()
    save(figure, path)


def _draw_metric(
    axes: Axes,
    steps: np.ndarray,
    values: np.ndarray,
    spread: np.ndarray,
    baselines: Mapping[str, float],
) -> None:
    """The curve of the student metric, with a band if each value has a spread, and horizontal lines
    to compare it with.
    """
    axes.plot(
        steps, values, color=SUMMARY, marker="o", markersize=4, label="student on the summary"
    )
    if len(spread) == len(values):
        band = {"color": SUMMARY, "alpha": 0.18, "linewidth": 0}
        axes.fill_between(steps, values - spread, values + spread, **band)
    draw_lines(axes, baselines, within=(values.min() / 1.25, values.max() * 1.25))
    axes.legend(ncols=3, frameon=False, fontsize=9, loc="lower center", bbox_to_anchor=(0.5, 1.0))


def _draw_noisy(axes: Axes, steps: np.ndarray, values: np.ndarray) -> None:
    """A quantity that jumps from step to step, and in front of it the running median, which
    outliers do not move.
    """
    reach = len(values) // 40
    windows = [values[max(0, i - reach) : i + reach + 1] for i in range(len(values))]
    medians = [np.median(window) for window in windows]
    axes.plot(steps, values, color=MUTED, linewidth=0.8, alpha=0.8)
    axes.plot(steps, medians, color=INK, linewidth=1.6)


def _series(log_history: Rows, name: str) -> np.ndarray:
    """(n, 2): outer step and value of every row that logged a finite `name`."""
    points = [(row["step"], row[name]) for row in log_history if finite(row.get(name))]
    return np.array(points, dtype=float).reshape(-1, 2)


_COLUMNS = 10
"""Positions of a strip of `plot_tokens`."""

_CENTRED = {"ha": "center", "va": "center", "parse_math": False}
"""Of tokens, which may hold dollar signs: these would start a formula."""


def plot_tokens(decoded: Sequence[Rows], path: File, shown: str = "Synthetic sequence 0") -> None:
    """The first decoded synthetic sequence. Each position shows its likeliest tokens with their
    probabilities, and its entropy.

    Where positions have labels of their own, these are the tokens of the label, and the likeliest
    input stands above, in another colour.

    The figure prints the sequence, whoever owns it: see `farzi_hf.summary.origins`.

    Args:
        decoded: `farzi.decode(top_k)`.
        shown: what the first of them is called.
    """
    positions = decoded[0]
    has_labels = "label_tokens" in positions[0]
    of = "label_" if has_labels else ""
    top_k = len(positions[0][f"{of}tokens"])
    columns = min(_COLUMNS, len(positions))
    starts = range(0, len(positions), columns)
    figure = Figure(figsize=(14, 0.5 + len(starts) * (0.36 * top_k + 0.5)), layout="constrained")
    panels = figure.subplots(len(starts), squeeze=False)[:, 0]
    for axes, first in zip(panels, starts, strict=True):
        strip = positions[first : first + columns]
        image = _draw_strip(axes, strip, of, (top_k, columns))
        if has_labels:
            _draw_inputs(axes, strip)
        names = [
            f"{place}\n{position[f'{of}entropy']:.1f} nats"
            for place, position in enumerate(strip, first)
        ]
        axes.set_xticks(range(len(strip)), names, fontsize=7.5)
        axes.set_yticks(range(top_k), [str(rank + 1) for rank in range(top_k)], fontsize=7.5)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=list(panels), label="Probability", aspect=30, pad=0.01)
    if has_labels:
        what = "in orange what a student reads, below it what it should predict next"
    else:
        what = "likeliest tokens per position"
    figure.suptitle(f"{shown}: {what}", fontsize=11)
    save(figure, path)


def _draw_strip(axes: Axes, strip: Rows, of: str, shape: tuple[int, int]) -> AxesImage:
    """The likeliest tokens of some positions, a column each, on a darker shade the likelier they
    are.

    Args:
        of: "label_" for tokens of labels, "" for those of inputs.
        shape: tokens of a column, and columns; those without a position stay empty.
    """
    shades = np.full(shape, np.nan)
    shades[:, : len(strip)] = np.array([position[f"{of}probabilities"] for position in strip]).T
    # Most probabilities are small: their roots tell them apart.
    image = axes.imshow(shades, cmap="Blues", norm=PowerNorm(0.5, 0, 1), aspect="auto")
    for x, position in enumerate(strip):
        likeliest = zip(position[f"{of}tokens"], position[f"{of}probabilities"], strict=True)
        for y, (token, probability) in enumerate(likeliest):
            color = "white" if probability > 0.35 else INK
            axes.text(x, y - 0.14, _short(token), fontsize=8.5, color=color, **_CENTRED)
            axes.text(x, y + 0.25, f"{probability:.2f}", fontsize=6.5, color=color, **_CENTRED)
    return image


def _draw_inputs(axes: Axes, strip: Rows) -> None:
    """The likeliest input of some positions, above their columns."""
    look = {"fontsize": 8.5, "fontweight": "bold", "color": REAL}
    for x, position in enumerate(strip):
        axes.text(x, -0.75, _short(position["tokens"][0]), **look, **_CENTRED)


def _short(token: Any) -> str:
    """The token, cut to what a cell has room for."""
    text = str(token)
    return text if len(text) <= 12 else f"{text[:11]}…"


# -- the style -------------------------------------------------------------------------------------


def finite(value: Any) -> bool:
    """Whether the value exists and is neither infinite nor NaN."""
    return value is not None and math.isfinite(value)


def plain_numbers(axis: Axis) -> None:
    """Labels an axis without offsets and powers of ten."""
    axis.set_major_formatter(lambda value, position: number(value))


_APART = 0.085
"""Share of a logarithmic axis between two ticks: their labels have room in a narrow panel."""


def _apart(ticks: Iterable[float], least: float) -> list[float]:
    """Those ticks, given from low to high, whose logarithm is `least` above that of the one
    before.
    """
    kept: list[float] = []
    for tick in ticks:
        if not kept or math.log(tick / kept[-1]) >= least:
            kept.append(tick)
    return kept


class _PlainTicks(LogLocator):
    """Ticks at 1, 2 and 5 times the powers of ten, or fewer on a long axis; within one power as on
    a linear one, but for those whose labels would touch.
    """

    def tick_values(self, vmin: float, vmax: float) -> np.ndarray:
        if vmax < 10 * vmin:
            ticks = AutoLocator().tick_values(vmin, vmax)
            return np.array(_apart(ticks[ticks > 0], _APART * math.log(vmax / vmin)))
        if vmax > 1e4 * vmin:
            multiples = (1.0,)
        elif vmax > 50 * vmin:
            multiples = (1.0, 3.0)
        else:
            multiples = (1.0, 2.0, 5.0)
        self.set_params(subs=multiples)
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
    panels = list(figure.subplots(*grid, squeeze=False, **options).flat)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(color="#e6e9ed", linewidth=0.8)
        axes.set_axisbelow(True)
    return figure, panels


def color_of(method: Any) -> str:
    """The colour of a row, or of a line, by how its name begins."""
    for kind in KINDS:
        if str(method).startswith(kind.beginnings):
            return kind.color
    return SUMMARY


_LINE_STYLES = ("--", ":", "-.")


def draw_lines(
    axes: Axes, lines: Mapping[str, float], within: tuple[float, float] = (-math.inf, math.inf)
) -> None:
    """Draws horizontal lines, with their names in the legend; of those that are not `within` an
    interval the legend alone.
    """
    low, high = within
    for i, (key, value) in enumerate(lines.items()):
        name = key.replace("_", " ")
        look = {
            "color": color_of(name),
            "linestyle": _LINE_STYLES[i % len(_LINE_STYLES)],
            "linewidth": 1.6,
        }
        if low <= value <= high:
            axes.axhline(value, label=f"{name} ({number(value)})", **look)
        else:
            axes.plot([], [], label=f"{name} ({number(value)}, off the axis)", **look)


def save(figure: Figure, path: File) -> None:
    """Writes the figure and then replaces the file `path` in one step. The suffix of `path` sets
    the format.
    """
    path = Path(path)
    form = path.suffix.removeprefix(".") or "png"
    with fonts_of(figure):
        replace_file(path, lambda new: figure.savefig(new, dpi=DOTS_PER_INCH, format=form))
