"""A full disk, named: torch, safetensors and Arrow report it each in its own way, torch without saying what it is."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEXT_TO_NOTHING = 2**16  # bytes: a write fails when the blocks are used up, which is a little before the last byte


class DiskFullError(OSError):
    """There is no room left for what was being written; its `errno` is `ENOSPC`."""


@contextmanager
def names_the_disk(folder: str | os.PathLike) -> Iterator[None]:
    """Within it, whatever is raised because the disk of `folder` is full becomes an error that says so.

    Raises:
        DiskFullError: with the folder as `filename`.
    """
    try:
        yield
    except (OSError, RuntimeError, SafetensorError) as error:
        disk = shutil.disk_usage(_existing(Path(folder)))
        if not _tells_of_a_full_disk(error, disk.free):
            raise
        message = (
            f"the disk is full ({disk.free:,} of its {disk.total:,} bytes are free now); make room and start again, what was "
            "complete is still there"
        )
        raise DiskFullError(errno.ENOSPC, message, str(folder)) from error


def _tells_of_a_full_disk(error: Exception, free: int) -> bool:
    """By its number, by its words, or because an error without either was raised while nothing was free."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return os.strerror(errno.ENOSPC) in str(error) or free < _NEXT_TO_NOTHING


def _existing(folder: Path) -> Path:
    """The folder, or the one in which it would be made."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
