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

from filelock import FileLock, Timeout

LOCK = ".farzi-lock"


def find_file(root: Path, name: str) -> Path | None:
    """The plain file `name` under the folder `root`; None if it does not exist.

    Only one kind of link is followed: huggingface_hub's own, from a snapshot in its cache to a file
    of the same repository.

    Raises:
        ValueError: something else is there.
    """
    *folders, path = [root / part for part in accumulate(PurePosixPath(name).parts, PurePosixPath)]
    for folder in folders:
        status = status_of(folder)
        if status is None:
            return None
        if not stat.S_ISDIR(status.st_mode):
            raise ValueError(
                f"{folder} is a link or a file where a folder is due; put the folder there, or"
                " remove it"
            )
    status = status_of(path)
    if status is None:
        return None
    if stat.S_ISLNK(status.st_mode):
        blob = _blob(root, path)
        if blob is not None:
            return blob
        raise ValueError(
            f"{path} is a link, which is not followed; put the file itself there, or load it by its"
            " name"
        )
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise ValueError(
            f"{path} is no plain file; a hard link may be a private one: put a copy there, or"
            " remove it"
        )
    return path


def _blob(root: Path, link: Path) -> Path | None:
    """The file that `link` leads to, if it is a blob of the data set in the Hub's cache of which
    `root` is a snapshot.
    """
    snapshot = root.resolve()
    repository = snapshot.parent.parent
    is_cached = snapshot.parent.name == "snapshots" and repository.name.startswith("datasets--")
    target = Path(os.path.realpath(link))
    if is_cached and target.parent == repository / "blobs" and target.is_file():
        return target
    return None


def status_of(path: Path) -> os.stat_result | None:
    """Facts of `path` itself, even if it is a link; None if there is nothing."""
    with suppress(FileNotFoundError, NotADirectoryError):
        return os.lstat(path)
    return None


@contextmanager
def exclusive(folder: str | os.PathLike) -> Iterator[None]:
    """Locks `folder`, which is made if there is none, for this thread alone.

    The thread may lock it a second time. It is a lock of the operating system on a file that is
    removed at the end. A process that dies loses its lock.

    Raises:
        ValueError: another thread or process has locked it.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    find_file(folder, LOCK)  # raises where it leads elsewhere
    path = folder.resolve() / LOCK
    # One object per path, or a thread would wait for itself.
    lock = FileLock(path, is_singleton=True)
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


def is_taken(folder: Path) -> bool:
    """Whether a new folder would overwrite something: a file, or a folder that is not empty."""
    if folder.is_dir():
        return any(folder.iterdir())
    return folder.exists()


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces the file `path` by the one that `write(new_path)` writes.

    A crash leaves the old file or none, never half a file.
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
    """Makes `path` survive a power cut.

    A rename that follows must not reach the disk before the file's content.
    """
    with suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
