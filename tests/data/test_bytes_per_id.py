"""Large interactions: bytes per interaction that each step from arrays to checked rows needs beside
its input, by tracemalloc.

A hundred million interactions must fit into 4 GiB, so no step may make several int64 copies (8
bytes per id each) or Python lists.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tiny_models import tiny_model

from farzi_hf.data import (
    SequenceCollator,
    evaluation_windows,
    load_interactions,
    sequences_fingerprint,
    training_windows,
)
from farzi_hf.data import sequences as sequences_module
from farzi_hf.data.sequences import sampled_sequences
from farzi_hf.distillation import Learner
from farzi_hf.distillation.rows import check_rows

COUNT, USERS, ITEMS = 1_000_000, 5_000, 12


@pytest.fixture(scope="module")
def table() -> pa.Table:
    generator = np.random.default_rng(0)
    return pa.table(
        {
            "user": generator.integers(USERS, size=COUNT, dtype=np.int32),
            "item": generator.integers(ITEMS, size=COUNT, dtype=np.int16),
            "timestamp": generator.integers(2000, size=COUNT, dtype=np.int16),
        }
    )


@pytest.fixture(scope="module")
def histories(table):
    return load_interactions(table).strong_generalization_split(seed=0)["train"]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """Of a size that stands to these data as the real one to a hundred million interactions."""
    monkeypatch.setattr(sequences_module, "_BLOCK", 1 << 15)


def bytes_per_id(work: Callable[[], Any], ids: int) -> float:
    work()  # imports and caches
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / ids
    finally:
        tracemalloc.stop()


def test_reading(table):
    """Numbers of users and items, an order (8 bytes) and its sort, and the items in this order."""
    assert bytes_per_id(lambda: load_interactions(table), COUNT) < 26


@pytest.mark.parametrize(
    ("work", "most"),
    [
        (lambda data: training_windows(data, 50), 10),  # the windows themselves have 4 and a little
        (lambda data: evaluation_windows(data, 50), 10),
        (sequences_fingerprint, 2),
        (lambda data: sampled_sequences(data, seed=0, limit=20_000), 2),
    ],
    ids=["training windows", "evaluation windows", "fingerprint", "sample for the start"],
)
def test_rows(histories, work, most):
    assert bytes_per_id(lambda: work(histories), 4 * COUNT // 5) < most


def test_checks(histories):
    """Some bits per id, and no copy of the ids."""
    windows, learner = training_windows(histories, 50), Learner(tiny_model("sasrec", ITEMS + 1))
    assert (
        bytes_per_id(lambda: check_rows(windows, learner, SequenceCollator(0)), 4 * COUNT // 5) < 5
    )
