"""Settings of the tests that try random input: a few examples in `make test`, many in `make fuzz`.

@pytest.mark.fuzz
@fuzzed
@given(…)
def test_…
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

fuzzed = settings(
    max_examples=int(os.environ.get("FUZZ_EXAMPLES", "10")),
    deadline=None,  # files are written, on machines of any speed
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
