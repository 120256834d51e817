"""Runs of the tiny trainer as a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import tiny_trainer as program


def run(*command: str, timeout: int = 110) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(Path(program.__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    environment["PYTHONWARNINGS"] = "error"
    return subprocess.run([sys.executable, *command], env=environment, capture_output=True, text=True, timeout=timeout)
