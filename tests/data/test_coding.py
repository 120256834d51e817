"""Bytes of data against a coder that works id by id, and the least of three."""

from __future__ import annotations

import lzma
import math
from collections import defaultdict

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import example, given, settings
from hypothesis import strategies as st

from farzi_hf.data import coding
from farzi_hf.data.coding import coded_bytes, flat_bytes, stored_bytes

V = 7
BEGIN_ALIKE = [[0, first, second] for first in range(V) for second in range(V)]
"""Rows whose first id follows from the beginning, and not from the end of the row before."""
ROWS = st.lists(st.lists(st.integers(0, V - 1), min_size=0, max_size=9), min_size=1, max_size=12)


def id_by_id(rows: list[list[int]], order: int, scale: int) -> float:
    """Bits of a coder that knows the ids before each one, and nothing else."""
    counts = defaultdict(lambda: defaultdict(int))

    def probability(context: tuple, token: int) -> float:
        lower = probability(context[1:], token) if context else 1 / V
        followers = counts[context]
        if not followers:
            return lower
        weight = (scale if context else 1) * len(followers)
        return (followers.get(token, 0) + weight * lower) / (sum(followers.values()) + weight)

    bits = 0.0
    for row in rows:
        before = ("begin", *row)
        for place, token in enumerate(row):
            context = before[max(0, place + 1 - order) : place + 1]
            everything = [probability(context, other) for other in range(V)]
            assert math.isclose(sum(everything), 1.0)  # so a decoder knows the same code
            bits -= math.log2(everything[token])
            for length in range(order + 1):
                if place + 1 >= length:
                    counts[before[place + 1 - length : place + 1]][token] += 1
    return bits


@settings(max_examples=25, deadline=None)
@given(ROWS)
@example(BEGIN_ALIKE)
def test_coded_bytes_are_those_of_a_coder_that_can_be_undone(rows):
    ids = np.array([token for row in rows for token in row], dtype=np.int64)
    lengths = np.array([len(row) for row in rows])
    least = min(
        id_by_id(rows, order, scale)
        for order, scale in [(0, 1), *((n, s) for n in (1, 2) for s in (1, 2, 4, 8, 16, 32))]
    )
    assert coded_bytes(ids, lengths, V) == 8 + math.ceil(least / 8 - 1e-9)


def test_large_data_are_coded_with_one_scale(monkeypatch):
    rows = np.random.default_rng(0).integers(0, 3, (50, 12)).cumsum(1) % V
    sizes = (rows.ravel(), np.full(50, 12), V)
    best = coded_bytes(*sizes)
    monkeypatch.setattr(coding, "_MANY", 10)
    assert best <= coded_bytes(*sizes) < 1.1 * best


def test_the_least_of_three_ways_counts():
    generator = np.random.default_rng(0)
    uniform = Dataset.from_dict({"input_ids": generator.integers(0, 256, (20, 30)).tolist()})
    found = stored_bytes(uniform, 256)
    assert found.least == found.flat == 600
    skewed = (256 * generator.random((20, 100)) ** 6).astype(int).tolist()
    found = stored_bytes(Dataset.from_dict({"input_ids": skewed}), 256)
    assert found.least == found.coded < found.flat
    again = [generator.integers(0, 256, 400).tolist()] * 10
    found = stored_bytes(Dataset.from_dict({"input_ids": again}), 256)
    assert found.least == found.xz < found.coded
    content = np.array(again, dtype=np.uint8).tobytes()
    assert found.xz == len(lzma.compress(content, preset=9))


@pytest.mark.parametrize(("tokens", "vocab_size", "nbytes"), [(10, 54, 8), (0, 9, 0), (3, 2, 1)])
def test_flat_bits_are_those_that_tell_ids_apart(tokens, vocab_size, nbytes):
    assert flat_bytes(tokens, vocab_size) == nbytes


def test_equal_ids_are_measured_once(monkeypatch):
    rows = Dataset.from_dict({"input_ids": [[1, 2, 3], [3, 1]]})
    first = stored_bytes(rows, 4)
    monkeypatch.setattr(coding, "coded_bytes", None)
    assert stored_bytes(rows.select([0, 1]), 4) == first
    with pytest.raises(TypeError):
        stored_bytes(rows.select([1, 0]), 4)
