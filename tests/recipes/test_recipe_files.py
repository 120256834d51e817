"""What recipes write is whole at any time, and how they end when they are stopped."""

from __future__ import annotations

import errno
import re
import sys
from pathlib import Path

import pytest
from _common import run, save_csv, save_text
from matplotlib.figure import Figure
from tiny_recipes import RECIPES

from farzi_hf.artefact.disk import DiskFullError
from farzi_hf.plots.style import save


def text(path: Path) -> None:
    save_text("ü\r\n", path)


def table(path: Path) -> None:
    save_csv([{"method": "a", "interval": [0.5, 1.0]}, {"method": "b", "bytes": 3}], path)


def figure(path: Path) -> None:
    save(Figure(), path)


WRITERS = [(text, "x.md"), (table, "x.csv"), (figure, "x.png"), (figure, "x.svg")]


@pytest.mark.parametrize(("write", "name"), WRITERS)
def test_a_file_is_replaced_when_the_new_one_is_complete(tmp_path, monkeypatch, write, name):
    path = tmp_path / "new folder" / name
    write(path)
    before = path.read_bytes()

    def stopped(self, *args, **kwargs):
        with open(args[0] if isinstance(self, Figure) else self, "wb") as file:
            file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "write_bytes", stopped)
    monkeypatch.setattr(Figure, "savefig", stopped)
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


def test_no_recipe_writes_a_result_in_place():
    """`recsys.py` wrote `results.json` so, from which it goes on."""
    in_place = re.compile(r"""\.write_text\(|\.write_bytes\(|open\(\s*["']w""")
    others = {"_common.py", "_benchmark_process.py"}  # `save_text` itself; /proc, and what a process says
    found = [
        f"{path.name}: {line.strip()}"
        for path in sorted(RECIPES.glob("*.py"))
        for line in path.read_text(encoding="utf-8").splitlines()
        if in_place.search(line) and path.name not in others
    ]
    assert not found


def test_ctrl_c_ends_a_recipe_with_one_line(monkeypatch, capsys):
    def main():
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["recipes/ptb.py"])
    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "ptb.py: interrupted; started again, it goes on from what is saved\n"


def test_a_full_disk_ends_a_recipe_with_one_line(monkeypatch):
    def main():
        raise DiskFullError(errno.ENOSPC, "the disk is full", "outputs")

    monkeypatch.setattr(sys, "argv", ["recipes/ptb.py"])
    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == "ptb.py: [Errno 28] the disk is full: 'outputs'"
