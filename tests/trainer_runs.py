"""Runs of the tiny trainer in processes of their own, forked from one that has imported everything:
that takes longer than a run.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import pytest
import tiny_trainer

TESTS = Path(__file__).parent


@cache
def forked() -> ForkServerContext:
    """Makes processes that begin with all imports of `kill_jobs` and `tiny_trainer` done."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["kill_jobs"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOKENIZERS_PARALLELISM", "false")  # tokenizers warns after a fork
        # Before Python 3.12 the process that forks the others knows no other path.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TESTS), str(TESTS.parent)]))
        forkserver.ensure_running()
    return context


def run(
    folder: Path,
    settings: dict[str, Any],
    processes: int = 1,
    die_while_saving: int | None = None,
    target: Callable = tiny_trainer.run,
) -> list[int]:
    """Distils into `folder`, in so many processes that share the work; their exit codes. What went
    wrong is in `folder`.RANK.log.

    `target` is what each process does, a function with the arguments of `tiny_trainer.run`.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        shared = {
            "MASTER_ADDR": "localhost",
            "MASTER_PORT": str(free.getsockname()[1]),
            "WORLD_SIZE": str(processes),
        }
    started = []
    for rank in range(processes):
        environment = (
            {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if processes > 1 else {}
        )
        log = folder.with_suffix(f".{rank}.log")
        arguments = ({"output_dir": str(folder), **settings}, environment, log, die_while_saving)
        started.append(forked().Process(target=target, args=arguments))
        started[-1].start()
    try:
        for process in started:
            process.join(110)
        return [process.exitcode for process in started]
    finally:
        for process in started:
            process.kill()
            process.join()
