"""How programs end when they are stopped, or when the disk is full."""

from __future__ import annotations

import errno
import sys

import pytest

from farzi_hf.cli.program import run


def test_ctrl_c_and_a_full_disk_end_a_program_with_one_line(monkeypatch, capsys):
    def main():
        raise errors.pop()

    errors = [OSError(errno.ENOSPC, "the disk is full", "outputs"), KeyboardInterrupt()]
    monkeypatch.setattr(sys, "argv", ["recipes/ptb.py"])
    with pytest.raises(SystemExit, match=r"^130$"):
        run(main)
    assert (
        capsys.readouterr().err
        == "ptb.py: interrupted; start it again to go on from the last saved state\n"
    )
    with pytest.raises(
        SystemExit,
        match=r"^ptb.py: \[Errno 28\] the disk is full: 'outputs'; make room and start it again$",
    ):
        run(main)
