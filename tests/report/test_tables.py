"""Tables in Markdown and as CSV, and files that are whole at any time."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path

import pytest

from farzi_hf.report import markdown, save_csv, save_json, save_text


def text(path: Path) -> None:
    save_text("ü\r\n", path)


def table(path: Path) -> None:
    save_csv([{"method": "a", "interval": [0.5, 1.0]}, {"method": "b", "bytes": 3}], path)


def figure(path: Path) -> None:
    from farzi_hf.report.plots.style import save

    save(pytest.importorskip("matplotlib.figure").Figure(), path)


WRITERS = [(text, "x.md"), (table, "x.csv"), (figure, "x.png"), (figure, "x.svg")]


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path, monkeypatch, write, name):
    path = tmp_path / "new folder" / name
    write(path)
    before = path.read_bytes()
    figure_class = pytest.importorskip("matplotlib.figure").Figure

    def stopped(self, *args, **kwargs):
        with open(args[0] if isinstance(self, figure_class) else self, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", stopped)
    monkeypatch.setattr(figure_class, "savefig", stopped)
    with pytest.raises(KeyboardInterrupt):
        write(path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_what_is_written_is_what_was_given(tmp_path):
    for write, name in WRITERS:
        write(tmp_path / name)
    assert (tmp_path / "x.md").read_bytes() == "ü\r\n".encode()
    assert (tmp_path / "x.csv").read_bytes() == b'method,interval,bytes\r\na,"[0.5, 1.0]",\r\nb,,3\r\n'
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")
    assert b"<svg" in (tmp_path / "x.svg").read_bytes()


def test_the_table_lines_up():
    lines = markdown([{"trained on": "a", "perplexity": "1.0"}, {"trained on": "longer", "perplexity": "12,345.6"}])
    assert [len(line) for line in lines.splitlines()] == [27, 27, 27, 27]


def test_json_is_json_for_every_reader(tmp_path):
    """Also in the cells of a CSV file. Some readers know neither NaN nor infinity."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is no JSON")

    rows = [{"μ": 1, "ratio": math.nan, "interval": [0.5, math.inf]}]
    save_json(rows, tmp_path / "t.json")
    text = (tmp_path / "t.json").read_text(encoding="utf-8")
    expected = [0.5, "Infinity"]
    assert json.loads(text, parse_constant=refuse) == [{"μ": 1, "ratio": "NaN", "interval": expected}]
    assert '"μ": 1' in text
    save_csv(rows, tmp_path / "t.csv")
    (row,) = csv.DictReader((tmp_path / "t.csv").read_text(encoding="utf-8").splitlines())
    assert json.loads(row["interval"], parse_constant=refuse) == expected
