"""Figures: they are drawn from what the trainer logs and what summaries decode to, and say so when
they cannot be.
"""

from __future__ import annotations

import importlib
import math
import re
import struct
import sys

import pytest

pytest.importorskip("matplotlib")

from matplotlib.figure import Figure

from farzi_hf.report.plots import (
    PAPER,
    REAL,
    SOME_REAL,
    SUMMARY,
    TEACHER,
    color_of,
    logarithmic,
    plain_numbers,
    plot_comparison,
    plot_distillation,
    plot_tokens,
)

LOG = [
    *({"step": s, "loss": 5 / s, "grad_norm": float("nan") if s == 3 else s} for s in range(1, 9)),
    {"step": 4, "eval_perplexity": 200.0, "eval_perplexity_std": 3.0},
    {"step": 8, "eval_perplexity": float("inf"), "eval_perplexity_std": 3.0},
    {"step": 8, "train_runtime": 1.0},
]
ROWS = [
    {"method": "Farzi [4×5]", "perplexity": 120.0, "perplexity_interval": [110.0, 131.0]},
    {"method": "random", "perplexity": 30000},
    {"method": "diverged", "perplexity": float("inf")},
    {"method": "not measured"},
]


def size_of(path) -> tuple[int, int]:
    """Width and height that a PNG file declares."""
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", content[16:24])


def position(*tokens):
    share = 0.9 / len(tokens)
    return {"tokens": list(tokens), "probabilities": [share] * len(tokens), "entropy": 1.25}


def test_distillation_draws_a_panel_per_quantity_that_was_logged(tmp_path):
    metric = {"metric": "eval_perplexity", "metric_label": "Perplexity of a fresh student"}
    plot_distillation(LOG, tmp_path / "all.png", **metric, full_data=82.0, unigram=196.6)
    plot_distillation([row for row in LOG if "loss" in row], tmp_path / "training.png", **metric)
    plot_distillation(
        [row for row in LOG if "loss" not in row],
        tmp_path / "student.png",
        **metric,
        full_data=82.0,
    )
    heights = [size_of(tmp_path / f"{name}.png")[1] for name in ("all", "training", "student")]
    assert heights == sorted(heights, reverse=True)
    assert len(set(heights)) == 3
    with pytest.raises(ValueError, match="log_history has no eval_perplexity, loss or grad_norm"):
        plot_distillation([{"step": 1, "loss": math.nan}], tmp_path / "none.png", **metric)


def test_tokens_wrap_into_strips_and_are_shown_as_they_are(tmp_path):
    decoded = [
        [position("$x$", "<unk>"), position("unmanageably-long-token", "a_b")] * 6,
        [position(3, 14)] * 4,
    ]
    plot_tokens(decoded, tmp_path / "words.png")
    plot_tokens(decoded[1:], tmp_path / "ids.png")
    assert size_of(tmp_path / "words.png")[1] > size_of(tmp_path / "ids.png")[1]
    plot_tokens(decoded[1:], tmp_path / "made.png", "First row that is made")
    assert (tmp_path / "made.png").read_bytes() != (tmp_path / "ids.png").read_bytes()


def test_labels_of_their_own_are_shown_in_place_of_inputs(tmp_path):
    """The input stands below its column: the picture depends on both."""

    def picture(given: str, label: str) -> bytes:
        told = {f"label_{name}": value for name, value in position(label, "z").items()}
        plot_tokens([[{**position(given, "y"), **told}] * 4] * 2, tmp_path / "tokens.png")
        return (tmp_path / "tokens.png").read_bytes()

    plain = [[position("$x", "z")] * 4] * 2
    plot_tokens(plain, tmp_path / "plain.png")
    assert (
        len(
            {
                picture("a", "b"),
                picture("a", "c"),
                picture("d", "b"),
                (tmp_path / "plain.png").read_bytes(),
            }
        )
        == 4
    )


def test_comparison_leaves_out_what_has_no_value(tmp_path):
    plot_comparison(ROWS, tmp_path / "two.png", "perplexity")
    plot_comparison(ROWS[:1], tmp_path / "one.png", "perplexity", metric_label="Corpus perplexity")
    assert size_of(tmp_path / "two.png")[1] > size_of(tmp_path / "one.png")[1]
    with pytest.raises(ValueError, match="rows has no finite 'accuracy'"):
        plot_comparison(ROWS, tmp_path / "none.png", "accuracy")
    assert not (tmp_path / "none.png").exists()


def test_one_far_value_squashes_no_other(tmp_path, monkeypatch):
    """It is written at the edge, in the comparison and among the lines of a distillation."""
    drawn = []
    monkeypatch.setattr("farzi_hf.report.plots.save", lambda figure, path: drawn.append(figure))
    plot_comparison(ROWS, tmp_path / "a.png", "perplexity")
    metric = {"metric": "eval_perplexity", "metric_label": "Perplexity"}
    plot_distillation(LOG, tmp_path / "b.png", **metric, full_data=190.0, unigram=1e6)
    (compared,), (student, *_) = (figure.axes for figure in drawn)
    assert compared.get_xlim()[1] < 500
    assert "30,000" in [text.get_text() for text in compared.texts]
    assert student.get_ylim()[1] < 500
    assert "unigram (1,000,000, off the axis)" in student.get_legend_handles_labels()[1]


def test_shares_are_all_drawn_to_scale(tmp_path, monkeypatch):
    """A summary with 0.22 stood beyond the edge, because counted models have 0.06."""
    drawn = []
    monkeypatch.setattr("farzi_hf.report.plots.save", lambda figure, path: drawn.append(figure))
    values = {"packed teacher": 0.2159, "popularity": 0.05521, "item bigram": 0.07197}
    rows = [{"method": name, "hr@100": value} for name, value in values.items()]
    plot_comparison(rows, tmp_path / "a.png", "hr@100")
    (axes,) = drawn[0].axes
    points = [line.get_xdata()[0] for line in axes.lines if line.get_marker() == "o"]
    assert points == list(values.values())
    assert axes.get_xlabel() == "hr@100"


@pytest.mark.parametrize(("low", "high"), [(0.065, 0.083), (1e-7, 2e5), (900, 2500)])
def test_axes_have_no_powers_of_ten(low, high):
    for draw in (lambda axes: logarithmic(axes, "y"), lambda axes: plain_numbers(axes.yaxis)):
        figure = Figure()
        axes = figure.subplots()
        axes.plot([0, 1], [low, high])
        draw(axes)
        figure.draw_without_rendering()
        labels = [
            tick.label1.get_text()
            for tick in (*axes.yaxis.get_major_ticks(), *axes.yaxis.get_minor_ticks())
        ]
        labels = [label for label in labels if label]
        assert len(labels) >= (
            4 if high < 10 * low else 2
        )  # a short axis has enough of them to read a value
        assert all(re.fullmatch(r"-?\d{1,3}(,\d{3})*(\.\d+)?", label) for label in labels)


def test_no_global_state_is_touched(tmp_path, monkeypatch):
    """Pyplot has a current figure and a backend; here nobody can import it."""
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for name in [name for name in sys.modules if name.startswith("farzi_hf.report.plots")]:
        monkeypatch.delitem(sys.modules, name)
    importlib.import_module("farzi_hf.report.plots").plot_comparison(
        ROWS, tmp_path / "a.png", "perplexity"
    )
    assert (tmp_path / "a.png").exists()


@pytest.mark.parametrize(
    ("method", "color"),
    [
        ("packed teacher, drawn ids, warm start", SUMMARY),
        ("full data, same seconds", REAL),
        ("10 % of the rows, stopped early", SOME_REAL),
        ("100 % of the rows, teacher's labels", SOME_REAL),
        ("5-gram and teacher, mixed", TEACHER),
        ("the packed teacher itself", TEACHER),
        ("the paper, full data", PAPER),
    ],
)
def test_a_row_has_the_colour_of_what_it_was_trained_on(method, color):
    """Real rows with hard labels had that of a summary."""
    assert color_of(method) == color


def test_tokens_of_any_script_are_drawn_without_warnings(tmp_path):
    plot_tokens([[position("天地", "🎉", "a")] * 3], tmp_path / "tokens.png")
    assert size_of(tmp_path / "tokens.png")[0] > 100
