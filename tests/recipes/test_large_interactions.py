"""The recipe that measures interactions of Netflix's size, on a hundredth of them."""

from __future__ import annotations

import json

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
def test_each_stage_is_measured_up_to_the_first_outer_step(tmp_path) -> None:
    main(["--share", "0.01", "--inputs", "tokens", "--json", str(tmp_path / "stages.json")])
    rows = json.loads((tmp_path / "stages.json").read_text(encoding="utf-8"))
    assert [row["stage"].split()[0].rstrip(":") for row in rows] == [
        "libraries", "arrays", "histories", "split", "trainer", "teacher",
    ]  # fmt: skip
    peaks = [row["peak_mib"] for row in rows]
    assert 0 < peaks[0] < peaks[-1] < 4096
    assert peaks == sorted(peaks)
    assert all(0 < row["resident_mib"] <= row["peak_mib"] + 16 for row in rows)  # Linux counts pages in batches
