"""The tests of this folder in processes of their own, on a CUDA device without hardware;
`make test-device` runs all of them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import fake_cuda
import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(
    not fake_cuda.is_needed(), reason="this build of torch has GPUs of its own: make test-device"
)
@pytest.mark.skipif(
    not fake_cuda.is_built(), reason="the fake device is not compiled yet: make test-device"
)
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("which", ["not slow", "slow"])
def test_what_a_gpu_would_do(which):
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "fake_cuda",
        "-p",
        "no:cacheprovider",
        "-m",
        f"gpu and {which}",
        "tests/device",
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "tests/device"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert " passed" in done.stdout
