"""Tables in Markdown and as CSV, and files that are whole at any time."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path

import pytest

from farzi_hf.report import markdown, save_csv, save_json, save_text
from farzi_hf.report.tables import fitted

matplotlib = pytest.importorskip("matplotlib.figure")


def figure(path: Path) -> None:
    from farzi_hf.report.plots import save

    save(matplotlib.Figure(), path)


@pytest.mark.parametrize(
    ("write", "name", "begin"),
    [
        (lambda path: save_text("ü\r\n", path), "x.md", "ü\r\n".encode()),
        (figure, "x.svg", b"<?xml"),
    ],
)
def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path, monkeypatch, write, name, begin):
    path = tmp_path / "new folder" / name
    write(path)
    before = path.read_bytes()
    assert before.startswith(begin)

    def stopped(self, *args, **kwargs):
        with open(args[0] if isinstance(self, matplotlib.Figure) else self, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", stopped)
    monkeypatch.setattr(matplotlib.Figure, "savefig", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_the_table_lines_up():
    lines = markdown(
        [
            {"trained on": "a", "perplexity": "1.0"},
            {"trained on": "longer", "perplexity": "12,345.6"},
        ]
    )
    assert [len(line) for line in lines.splitlines()] == [27, 27, 27, 27]


ROWS = [
    {"place": "0", "entropy of the label": "2.54", "its label": "either 0.21, does 0.19, do 0.17"},
    {
        "place": "1",
        "entropy of the label": "0.1",
        "its label": "a_name_longer_than_its_column 1.00",
    },
]


def test_a_table_that_fits_is_the_same():
    assert fitted(ROWS, 80, ["its label"]) == markdown(ROWS, ["its label"])


def test_a_wide_table_goes_on_in_lines_below():
    assert fitted(ROWS, 52, ["its label"]).splitlines() == [
        "| place | entropy | its label                      |",
        "|       |  of the |                                |",
        "|       |   label |                                |",
        "|-------|--------:|--------------------------------|",
        "| 0     |    2.54 | either 0.21, does 0.19,        |",
        "|       |         | do 0.17                        |",
        "| 1     |     0.1 | a_name_longer_than_its_column  |",
        "|       |         | 1.00                           |",
    ]
    narrow = fitted(ROWS, 40, ["its label"]).splitlines()
    assert {len(line) for line in narrow} == {40}
    assert "| 1     |     0.1 | a_name_longer_than |" in narrow


@pytest.mark.parametrize("width", [1, 30, 50, 70])
def test_nothing_is_lost_in_a_narrow_table(width):
    table = fitted(ROWS, width, ["its label"])
    letters = [re.sub(r"[\s|:-]", "", text) for text in (table, markdown(ROWS, ["its label"]))]
    assert sorted(letters[0]) == sorted(letters[1])


def test_where_numbers_have_no_room_nothing_is_broken():
    rows = [{"method": "a b c d", "perplexity of it": "1,234,567.8"}] * 2
    assert fitted(rows, 20) == markdown(rows)
    assert "| a b c d | 1,234,567.8 |" in fitted(rows, 25)


def test_json_is_json_for_every_reader(tmp_path):
    """Also in the cells of a CSV file. Some readers know neither NaN nor infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not JSON")

    rows = [{"μ": 1, "ratio": math.nan, "interval": [0.5, math.inf]}, {"μ": 2, "more": 3}]
    save_json(rows, tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text(encoding="utf-8")
    expected = [0.5, "Infinity"]
    assert json.loads(text, parse_constant=refuse) == [
        {"μ": 1, "ratio": "NaN", "interval": expected},
        rows[1],
    ]
    save_csv(rows, tmp_path / "t.csv")
    first, second = csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())
    assert json.loads(first["interval"], parse_constant=refuse) == expected
    assert second == {"μ": "2", "ratio": "", "interval": "", "more": "3"}
