"""The time of an outer step over a large vocabulary, on tiny ones."""

from __future__ import annotations

import many_items
import pytest
import torch

TINY = (
    "--entries",
    "30",
    "--sequences",
    "4",
    "--length",
    "6",
    "--steps",
    "3",
    "--window",
    "2",
    "--hidden",
    "4",
    "--label_dim",
    "3",
    "--real",
    "5",
)


@pytest.mark.parametrize(
    "more", [("video",), ("gpt2", "--adjoint", "tape"), ("gpt2", "--shared_head")], ids=" ".join
)
def test_a_case_is_timed(more: tuple[str, ...], capsys, monkeypatch) -> None:
    monkeypatch.setattr(many_items, "keep_freed_memory", lambda: None)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    many_items.main([*more, *TINY, "--runs", "2"])
    *runs, last = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in runs] == ["run 0", "run 1"]
    assert last.startswith("outer step: ")
    assert last.endswith("MiB")
