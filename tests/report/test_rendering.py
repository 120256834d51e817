"""Facts of a run: none of them is somebody else's, and none follows from a training
that diverged.
"""

from __future__ import annotations

import math
import subprocess
from types import SimpleNamespace

import torch

from farzi_hf.report import rendering as report
from farzi_hf.report.comparison import Measured, pooled_rows


def git(folder, *arguments: str) -> None:
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True
    )


def test_the_commit_is_that_of_our_own_code(tmp_path):
    """A copy of the package in another project's repository, as in its .venv, has no commit, and
    results do not make one dirty.
    """
    for name in ("report.py", "LOG.md", "model_cards/run/results.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("old", encoding="utf-8")
    git(tmp_path, "init")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "one")
    (tmp_path / "copy.py").write_text("", encoding="utf-8")
    assert report.commit_of(tmp_path / "copy.py") == {}
    commit = report.commit_of(tmp_path / "report.py")["commit"]
    for name, ending in (
        ("LOG.md", ""),
        ("model_cards/run/results.csv", ""),
        ("report.py", "-dirty"),
    ):
        (tmp_path / name).write_text("new", encoding="utf-8")
        assert report.commit_of(tmp_path / "report.py")["commit"] == commit + ending


def test_no_full_training_is_as_good_as_one_that_diverged():
    def never(*_: object) -> None:
        raise AssertionError

    comparison = SimpleNamespace(
        summary_student=lambda seed: None,
        validation_error=lambda student: math.inf,
        long_student=never,
        long_training=SimpleNamespace(steps=16),
        seeds=[0],
    )
    assert list(report.cost(comparison)) == ["student_seconds"]


def test_splits_that_lack_a_method_are_pooled_without_it(capsys):
    """Students of the stock Trainer are trained by one process alone."""
    task = SimpleNamespace(
        row=lambda method, students, nbytes: {"method": method, "students": len(students)}
    )
    measured = {
        name: Measured(name, [torch.zeros(3)], 8).to_json() for name in ("ours", "stock", "all")
    }
    rows = pooled_rows(task, [list(measured.values()), [measured["ours"], measured["all"]]])
    assert [row["method"] for row in rows] == ["ours", "all"]
    assert "some splits lack it" in (printed := capsys.readouterr().out)
    assert "stock" in printed
