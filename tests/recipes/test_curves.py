"""Curves of tables: what they show, and that they differ for every reader."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from curves import Panel, plot_curves


@pytest.mark.slow
def test_curves_end_where_nothing_was_measured_and_peers_look_otherwise(tmp_path):
    rows = [
        {
            "method": method,
            "kind": kind,
            "T": steps,
            "seconds": factor * steps,
            "seconds_interval": [0.9 * factor * steps, 2 * factor * steps],
        }
        for method, kind, factor in (("Tape", "ours", 1.0), ("autograd", "peer", 2.0))
        for steps in (100, 10, 50)
    ]

    def picture(rows: list[dict], axes: str = "x", **lines: float) -> bytes:
        panel = Panel(rows, "T", "seconds", "Steps T", "Seconds", axes, lines=lines)
        plot_curves(tmp_path / "a.png", panel, panel)
        return (tmp_path / "a.png").read_bytes()

    whole = picture(rows)
    lost = [{**rows[0], "seconds": None}, {**rows[0], "T": 70, "seconds": math.inf}, *rows[1:]]
    without = [
        {name: value for name, value in row.items() if name != "seconds_interval"} for row in rows
    ]
    alike = [{**row, "kind": "ours"} for row in rows]
    others = [
        picture(lost),
        picture(without),
        picture(alike),
        picture(rows, "xy"),
        picture(rows, full_data=9.0),
    ]
    single = [picture(rows[:1]), picture(without[:1])]  # the interval of a single point is a line
    assert len({whole, *others, *single}) == 8
    assert picture(lost) == picture(rows[1:])
    with pytest.raises(ValueError, match="rows has no finite 'seconds'"):
        picture([{"method": "a", "T": 1}])


def test_curves_differ_in_more_than_their_colour(tmp_path, monkeypatch):
    """For readers who see colours alike, and in print."""
    drawn = []
    monkeypatch.setattr("curves.plots.save", lambda figure, path: drawn.append(figure))
    rows = [{"method": f"method {i}", "x": x, "y": x} for i in range(7) for x in (1, 2)]
    plot_curves(tmp_path / "a.png", Panel(rows, "x", "y", "x", "y", title="$x$ of all"))
    (axes,) = drawn[0].axes
    assert len({line.get_marker() for line in axes.lines}) == 7
    assert axes.get_title(loc="left") == "$x$ of all"
    looks = [(line.get_color(), line.get_linestyle()) for line in axes.lines]
    assert len(set(looks)) == 7
    plot_curves(tmp_path / "a.png", Panel(rows, "x", "y", "x", "y", joined=False))
    assert {line.get_linestyle() for line in drawn[1].axes[0].lines} == {"None"}  # points alone


def test_a_thing_has_one_colour_and_what_is_far_off_no_axis(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("curves.plots.save", lambda figure, path: drawn.append(figure))
    rows = [
        {"method": method, "x": x, "y": y}
        for method, y in (("Farzi", 80), ("random", 90), ("head (longest)", 1e6))
        for x in (1, 2)
    ]
    rows.append({"method": "random", "x": 3, "y": 1e5})
    plot_curves(
        tmp_path / "a.png",
        Panel(
            rows, "x", "y", "x", "y", "xy", lines={"full data": 70.0, "unigram": 100.0}, top=240.0
        ),
    )
    (axes,) = drawn[0].axes
    assert axes.get_ylim()[1] < 240
    looks = {line.get_label(): line.get_color() for line in axes.lines}
    assert list(looks) == [
        "Farzi",
        "random (1 above the axis)",
        "head (longest) (2 above the axis)",
        "full data (70)",
        "unigram (100)",
    ]
    assert list(looks.values()) == ["#0072b2", "#e69f00", "#e69f00", "#d55e00", "#6b7680"]


def test_two_peers_in_a_row_have_different_greys(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("curves.plots.save", lambda figure, path: drawn.append(figure))
    rows = [
        {"method": f"peer {i}", "kind": "peer", "x": x, "y": x} for i in range(5) for x in (1, 2)
    ]
    plot_curves(tmp_path / "a.png", Panel(rows, "x", "y", "x", "y"))
    looks = [(line.get_color(), line.get_linestyle()) for line in drawn[0].axes[0].lines]
    assert len(set(looks)) == 5
    assert all(one[0] != other[0] for one, other in pairwise(looks))
    assert "-" not in {line for _, line in looks}


def test_an_axis_of_quality_need_not_begin_at_zero(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("curves.plots.save", lambda figure, path: drawn.append(figure))
    rows = [{"method": "a", "x": x, "y": 10 + x} for x in (1, 2)]
    panel = Panel(rows, "x", "y", "x", "y")
    plot_curves(tmp_path / "a.png", panel, replace(panel, from_zero=False))
    assert [axes.get_ylim()[0] for axes in drawn[0].axes] == [0, pytest.approx(10.95)]


def test_ticks_of_less_than_a_power_of_ten_do_not_touch(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr("curves.plots.save", lambda figure, path: drawn.append(figure))
    rows = [{"method": "a", "x": x, "y": 1} for x in (70, 450)]
    plot_curves(tmp_path / "a.png", Panel(rows, "x", "y", "x", "y", "x"))
    ticks = drawn[0].axes[0].xaxis.get_major_locator()()
    low, high = drawn[0].axes[0].get_xlim()
    shown = [tick for tick in ticks if low <= tick <= high]
    assert 400 in shown
    assert 450 not in shown
    shares = [math.log(b / a) / math.log(high / low) for a, b in pairwise(shown)]
    assert min(shares) >= 0.085
