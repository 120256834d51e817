"""What the tests of the trainer share."""

from __future__ import annotations

from functools import partial

import pytest
from tiny_trainer import tiny_trainer


@pytest.fixture
def make(tmp_path, sequences, tokenizer):
    """`tiny_trainer` in a folder of its own."""
    return partial(tiny_trainer, tmp_path / "out", sequences, tokenizer)
