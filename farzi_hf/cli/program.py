"""What every program of this package needs: memory that is kept, and errors of the user's that end it with one line."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from farzi_hf.artefact.disk import DiskFullError
from farzi_hf.data import DataUnavailableError

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def keep_freed_memory() -> None:
    """Tells glibc's malloc to keep what is freed instead of handing it back to the system.

    An inner loop allocates and frees the same large tensors at every step; by default each of them is a new mapping, whose
    pages the system has to clear and map again: a tenth of the time of a PTB run on one core. Other C libraries are left alone.
    """
    _malloc_options(1 << 30, -1)  # the heap never shrinks


def return_freed_memory() -> None:
    """The opposite: every large tensor is a mapping of its own, which goes back when it is freed.

    Slower, but the memory in use is then that of the tensors there are, without the holes of a heap.
    """
    _malloc_options(1 << 20, 1 << 20)


def _malloc_options(mmap_threshold: int, trim_threshold: int) -> None:
    """Bytes from which an allocation becomes a mapping of its own, and bytes free at the heap's end from which it shrinks."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, mmap_threshold)
        libc.mallopt(M_TRIM_THRESHOLD, trim_threshold)


@contextmanager
def ends_in_one_line(script: str, *more: type[Exception]) -> Iterator[None]:
    """Within it, what a user can get wrong ends the program with one line: ValueError, missing data, and `more`.

    Of several processes the first one says it.
    """
    try:
        yield
    except (ValueError, DataUnavailableError, *more) as error:
        lines = " ".join(str(error).split("\n"))  # the Hub's errors have several
        sys.exit(f"{script}: {lines}" if os.environ.get("RANK", "0") == "0" else 1)


def run(main: Callable[[], None], name: str | None = None) -> None:
    """`main()` as a program: a full disk, and Ctrl-C where there is nothing to save, end it with one line."""
    script = name or Path(sys.argv[0]).name
    try:
        main()
    except DiskFullError as error:
        sys.exit(f"{script}: {error}")
    except KeyboardInterrupt:
        print(f"{script}: interrupted; started again, it goes on from what is saved", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
