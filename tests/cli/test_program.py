"""How programs end when they are stopped, or when the disk is full."""

from __future__ import annotations

import errno
import sys

import pytest

from farzi_hf.cli.program import run
from farzi_hf.summary.store.atomic_folder import DiskFullError


def test_ctrl_c_ends_a_program_with_one_line(monkeypatch, capsys):
    def main():
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["recipes/ptb.py"])
    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == 130
    assert capsys.readouterr().err == "ptb.py: interrupted; start it again to go on from the last saved state\n"


def test_a_full_disk_ends_a_program_with_one_line(monkeypatch):
    def main():
        raise DiskFullError(errno.ENOSPC, "the disk is full", "outputs")

    monkeypatch.setattr(sys, "argv", ["recipes/ptb.py"])
    with pytest.raises(SystemExit) as ended:
        run(main)
    assert ended.value.code == "ptb.py: [Errno 28] the disk is full: 'outputs'"
