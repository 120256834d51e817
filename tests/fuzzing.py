"""Tests that try random input: a few examples in `make test`, many in `make fuzz`.

@fuzzed
@given(…)
def test_…
"""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

_SETTINGS = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "10")),
    deadline=None,  # files are written, on machines of any speed
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def fuzzed(test):
    return pytest.mark.fuzz(_SETTINGS(test))
