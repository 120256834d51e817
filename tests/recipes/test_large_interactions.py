"""The recipe that measures interactions of Netflix's size, on a hundredth of them."""

from __future__ import annotations

import re

import pytest
from large_interactions import main


@pytest.mark.slow
def test_each_stage_is_measured_up_to_the_first_outer_step(capsys) -> None:
    main(["--share", "0.01"])
    *lines, last = capsys.readouterr().out.splitlines()  # some are the trainer's
    found = [re.fullmatch(r"(\w+).*: \S+ s, (\d+) MiB, at most (\d+) MiB", line) for line in lines]
    stages = [stage for stage in found if stage]
    assert [stage[1] for stage in stages] == ["libraries", "arrays", "histories", "split", "trainer", "teacher"]
    peaks = [int(stage[3]) for stage in stages]
    assert 0 < peaks[0] < peaks[-1] < 4096
    assert peaks == sorted(peaks)
    assert last.startswith(f"Peak {peaks[-1]} MiB")
