"""Train, validation and test of rows of text."""

from hashlib import blake2b

import numpy as np
import pytest

from farzi_hf.data.text_splits import split_texts


def falls_to_test(text: str) -> bool:
    """Whether the hash of a row is among the lowest twentieth of all."""
    digest = blake2b(text.encode(), digest_size=8).digest()
    return int(np.frombuffer(digest, np.uint64)[0]) < 0.05 * 2**64


@pytest.mark.parametrize("count", [3, 4])
def test_each_split_has_a_row_even_where_all_rows_fall_to_one(count, caplog):
    texts = [text for text in map("row {}".format, range(1000)) if falls_to_test(text)][:count]
    splits = split_texts({"train": texts}, "few.txt").texts
    assert sorted(text for rows in splits.values() for text in rows) == sorted(texts)
    assert all(splits[part] for part in ("train", "validation", "test"))
    assert f"few.txt holds only {count} different rows" in caplog.text
