"""The recipe that measures interactions of Netflix's size, on a hundredth of them."""

from __future__ import annotations

import re

import numpy as np
import pytest
from large_interactions import generated, main


def test_the_interactions_are_skewed_and_have_narrow_types() -> None:
    table = generated(users=100, items=50, interactions=5000)
    assert {str(kind) for kind in table.schema.types} == {"int32", "int16"}
    for name, size in (("user", 100), ("item", 50)):
        counts = np.bincount(table[name].to_numpy(), minlength=size)
        assert len(counts) == size
        assert counts.max() > 1.5 * counts.mean()


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
