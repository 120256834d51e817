"""Locking a folder for one writer, replacing a file whole, and one error for a full disk."""

from __future__ import annotations

import errno
import os
import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

LOCK = ".farzi-lock"
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
        folders = (Path(folder).absolute(), *Path(folder).absolute().parents)
        disk = shutil.disk_usage(next(path for path in folders if path.exists()))
        if isinstance(error, OSError) and error.errno is not None:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        else:  # torch does not name the cause, safetensors and Arrow do it in their own words
            full = os.strerror(errno.ENOSPC) in str(error) or disk.free < _NEXT_TO_NOTHING
        if not full:
            raise
        message = (
            f"the disk is full ({disk.free:,} of its {disk.total:,} bytes are free now); make room and start again; files that "
            "were complete are still there"
        )
        raise DiskFullError(errno.ENOSPC, message, str(folder)) from error


@contextmanager
def exclusive(folder: str | os.PathLike) -> Iterator[None]:
    """Locks `folder` for this thread alone, and makes the folder where there is none. The thread may lock it a second time.

    It is a lock of the operating system on a file that is removed at the end. A process that dies loses its lock, even if the
    file remains.

    Raises:
        ValueError: somebody else has locked the folder, or `folder` or the lock is something else than a folder or a plain file.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / LOCK
    if path.is_symlink() or (path.exists() and not (path.is_file() and path.stat().st_nlink == 1)):
        raise ValueError(f"{path} is a link or a device, and no lock of this library; remove it")
    lock = FileLock(path, is_singleton=True)  # one object per path, or a thread would wait for itself
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"folder={str(folder)!r} is in use: another process or thread writes to it; wait until that ends, or choose another "
            "folder"
        ) from None
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            # Before the release: after it, the file may be another process's lock. Windows cannot remove an open file; there
            # the release does it.
            with suppress(OSError):
                path.unlink()
        lock.release()


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces the file `path` by the one that `write(new_path)` writes. A crash leaves the old file or none, never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}")
    try:
        write(staging)
        flush(staging)
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)
    flush(path.parent)


def flush(path: Path) -> None:
    """Makes `path` survive a power cut: the rename that follows must not reach the disk before the file's content."""
    with suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
