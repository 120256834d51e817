"""One error for a full disk: torch, safetensors and Arrow each report it in their own way, and torch does not name the cause."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NEXT_TO_NOTHING = 2**16  # bytes: a write fails when no block is free, a little before the last byte is used


class DiskFullError(OSError):
    """The disk had no room for a file that was being written. `errno` is `ENOSPC`."""


@contextmanager
def names_the_disk(folder: str | os.PathLike) -> Iterator[None]:
    """Inside this block, any error that comes from a full disk under `folder` becomes a `DiskFullError`.

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
            f"the disk is full ({disk.free:,} of its {disk.total:,} bytes are free now); make room and start again; files that "
            "were complete are still there"
        )
        raise DiskFullError(errno.ENOSPC, message, str(folder)) from error


def _tells_of_a_full_disk(error: Exception, free: int) -> bool:
    """By the error's number or text; an error with neither counts if the disk is full now."""
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno in _FULL
    return os.strerror(errno.ENOSPC) in str(error) or free < _NEXT_TO_NOTHING


def _existing(folder: Path) -> Path:
    """The folder, or the one in which it would be made."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.exists())
