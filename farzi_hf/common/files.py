"""Files that are written whole or not at all, by one writer at a time, and found without
following links.
"""

import os
import stat
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from filelock import FileLock, Timeout

LOCK = ".farzi-lock"

# Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def find_file(root: Path, name: str) -> Path | None:
    """The plain file `name` under the folder `root`; None if it does not exist, ValueError if
    something else is there. Only one kind of link is followed: huggingface_hub's own, from a
    snapshot in its cache to a file of the same repository.
    """
    *folders, path = [root / part for part in accumulate(PurePosixPath(name).parts, PurePosixPath)]
    for folder in folders:
        if (found := status_of(folder)) is None:
            return None
        if not stat.S_ISDIR(found.st_mode):
            raise ValueError(
                f"{folder} is a link or a file where a folder is due; put the folder there, or"
                " remove it"
            )
    if (found := status_of(path)) is None:
        return None
    if stat.S_ISLNK(found.st_mode):
        if (blob := _blob(root, path)) is not None:
            return blob
        raise ValueError(
            f"{path} is a link, which is not followed; put the file itself there, or load it by its"
            " name"
        )
    if not stat.S_ISREG(found.st_mode) or found.st_nlink > 1:
        raise ValueError(
            f"{path} is no plain file; a hard link may be a private one: put a copy there, or"
            " remove it"
        )
    return path


def _blob(root: Path, link: Path) -> Path | None:
    """The file that `link` leads to, if `root` is a snapshot of a dataset or a model in the Hub's
    cache and the file is one of its blobs.
    """
    snapshot, target = root.resolve(), Path(os.path.realpath(link))
    blobs = snapshot.parent.parent / "blobs"
    repository = blobs.parent.name
    cached = snapshot.parent.name == "snapshots" and repository.startswith(
        ("datasets--", "models--")
    )
    return target if cached and target.parent == blobs and target.is_file() else None


def status_of(path: Path) -> os.stat_result | None:
    """Facts of `path` itself, even if it is a link; None if there is nothing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path)
    return None


@contextmanager
def exclusive(folder: str | os.PathLike) -> Iterator[None]:
    """Locks `folder`, which is made if there is none, for this thread alone, or raises ValueError.
    The thread may lock it a second time. It is a lock of the operating system on a file that is
    removed at the end. A process that dies loses its lock.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    find_file(folder, LOCK)  # raises where it leads elsewhere
    path = folder.resolve() / LOCK
    lock = FileLock(
        path, is_singleton=True
    )  # one object per path, or a thread would wait for itself
    try:
        lock.acquire(blocking=False)
    except Timeout:
        raise ValueError(
            f"folder={str(folder)!r} is in use: another process or thread writes to it"
        ) from None
    try:
        yield
    finally:
        if lock.lock_counter == 1:
            # Before the release: after it, the file may be another process's lock. Windows cannot
            # remove an open file; there the release does it.
            with suppress(OSError):
                path.unlink()
        lock.release()


@contextmanager
def opened_plain(path: Path, most: int | None = None, follow: bool = False) -> Iterator[BinaryIO]:
    """The plain file `path`, open for reading. Raises ValueError if it is a pipe, a device or a
    folder, or has more than `most` bytes.

    Args:
        follow: whether `path`, which the user has named, may be a link.
    """
    flags = _FLAGS if follow else _FLAGS | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path} is no plain file; put the file there, or remove it")
        if most is not None and status.st_size > most:
            raise ValueError(
                f"{path} is larger than the {most:,} bytes that are read; remove or shrink it"
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(descriptor)


def read_plain_file(path: Path, most: int) -> bytes:
    """The content of a plain file that the user has named; see `opened_plain`."""
    with opened_plain(path, most, follow=True) as file:
        return file.read(most)


def is_taken(folder: Path) -> bool:
    """Whether something is there that a new folder would overwrite: a file, or a folder that is not
    empty.
    """
    return folder.exists() and (not folder.is_dir() or any(folder.iterdir()))


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces the file `path` by the one that `write(new_path)` writes. A crash leaves the old
    file or none, never half a file.
    """
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
    """Makes `path` survive a power cut: the rename that follows must not reach the disk before the
    file's content.
    """
    with suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
