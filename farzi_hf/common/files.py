"""Files that are written whole or not at all, by one writer at a time, found without following
links, and known again by their checksums.
"""

import errno
import hashlib
import json
import logging
import os
import stat
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from farzi_hf.common.text import as_written, json_text, one_line

logger = logging.getLogger(__name__)

LOCK = ".farzi-lock"
CHECKSUM = "sha256"
"""The entry of a record, or of a file's metadata, with the checksum of all the rest."""

_AT_ONCE = 1 << 20  # bytes
_PROBE = 1 << 16  # bytes

# Without O_NONBLOCK, opening a pipe would wait for somebody at its other end.
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


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
            f"{path} is not a plain file; a hard link may be a private one: put a copy there, or"
            " remove it"
        )
    return path


def _blob(root: Path, link: Path) -> Path | None:
    """The file that `link` leads to, if `root` is a snapshot of a dataset or a model in the Hub's
    cache and the file is one of its blobs.
    """
    snapshot = root.resolve()
    repository = snapshot.parent.parent
    of_hub = repository.name.startswith(("datasets--", "models--"))
    is_cached = snapshot.parent.name == "snapshots" and of_hub
    target = Path(os.path.realpath(link))
    if is_cached and target.parent == repository / "blobs" and target.is_file():
        return target
    return None


def status_of(path: Path) -> os.stat_result | None:
    """Facts of `path` itself, even if it is a link; None if there is nothing, or no file can have
    so long a name.
    """
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
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
            f"folder={str(folder)!r} is in use: another process or thread writes to it; wait until"
            " it has ended, or choose another folder"
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
            raise ValueError(f"{path} is not a plain file; put the file there, or remove it")
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
    """Whether a new folder would overwrite something: a file, or a folder that is not empty."""
    if folder.is_dir():
        return any(folder.iterdir())
    return folder.exists()


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces the file `path` by the one that `write(new_path)` writes.

    A crash leaves the old file or none, never half a file. Raises OSError where the disk has no
    room, whatever error `write` has for that.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}")
    try:
        with names_full_disk(path.parent):
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


@contextmanager
def names_full_disk(folder: Path) -> Iterator[None]:
    """A context in which files are written to `folder`. Libraries say in their own ways that they
    could not write; if it is the disk that has no room, or takes no more, OSError says so.
    """
    try:
        yield
    except OSError:
        raise
    except Exception as error:
        try:
            _probe(folder)
        except OSError as refusal:
            raise OSError(refusal.errno, os.strerror(refusal.errno), str(folder)) from error
        raise


def _probe(folder: Path) -> None:
    """Writes a small file to `folder` and removes it. Raises OSError if that fails."""
    path = folder / f".probe.{os.getpid()}-{uuid.uuid4().hex}"
    try:
        with path.open("wb") as file:
            file.write(bytes(_PROBE))
        flush(path)
    finally:
        path.unlink(missing_ok=True)


# -- what somebody goes on from --------------------------------------------------------------------


class DamagedError(ValueError):
    """A file is not as it was written."""


@dataclass(frozen=True)
class Differences:
    """How the files of a folder differ from those that were written there. True if they do."""

    gone: tuple[str, ...] = ()
    """Names of files that are not there any more."""
    changed: tuple[str, ...] = ()
    """Names of files with other bytes, or of links and folders in their place."""
    added: tuple[str, ...] = ()
    """Names of files that were not written."""

    def __bool__(self) -> bool:
        return bool(self.gone or self.changed or self.added)

    def __str__(self) -> str:
        """In words, with three names at most."""
        said = [f"{one_line(name)} is gone" for name in self.gone]
        said += [f"{one_line(name)} has changed" for name in self.changed]
        said += [f"{one_line(name)} was added" for name in self.added]
        more = f", and {len(said) - 3} more" if len(said) > 3 else ""
        return ", ".join(said[:3]) + more


def checksum_of(path: Path) -> str:
    """SHA-256 of the bytes of a file, as hexadecimal digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while part := file.read(_AT_ONCE):
            digest.update(part)
    return digest.hexdigest()


def names_of(folder: Path) -> list[str]:
    """The files under `folder`, as relative paths with slashes. A link counts as a file, and a lock
    does not.
    """
    paths = []
    for parent, folders, files in os.walk(folder):
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        paths += [Path(parent, name) for name in (*files, *links) if name != LOCK]
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def checksums(folder: Path, names: Iterable[str] | None = None) -> dict[str, str]:
    """The checksum of each file under `folder`, or of those with these `names`."""
    return {name: checksum_of(folder / name) for name in names or names_of(folder)}


def differences(folder: Path, expected: Mapping[str, str]) -> Differences:
    """How the files under `folder` differ from those with the `expected` checksums, by name."""
    gone = []
    changed = []
    for name, checksum in expected.items():
        try:
            path = find_file(folder, name)
            if path is None:
                gone.append(name)
            elif checksum_of(path) != checksum:
                changed.append(name)
        except (ValueError, OSError):  # a link, a device, or a part of the disk that is damaged
            changed.append(name)
    added = [name for name in names_of(folder) if name not in expected]
    return Differences(tuple(gone), tuple(changed), tuple(added))


def save_record(path: Path, content: Mapping[str, Any], indent: int | None = 1) -> None:
    """Replaces the file `path` by `content`, anything JSON can hold, with a checksum of it."""
    content = as_written(dict(content))
    text = json_text({**content, CHECKSUM: _digest(content)}, indent)
    replace_file(path, lambda new: new.write_text(text, encoding="utf-8"))


def load_record(path: Path, warn: bool = True) -> dict[str, Any]:
    """What `save_record` has written, as `as_written` gives it. A file without a checksum, as older
    versions wrote it, is used too, by default with a warning.

    Raises:
        ValueError: the file cannot be read; DamagedError: it is not as it was written.
    """
    try:
        content = as_written(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"it cannot be read: {one_line(str(error))}") from None
    if not isinstance(content, dict):
        raise ValueError(f"it holds a {type(content).__name__}, where a mapping is due")
    checksum = content.pop(CHECKSUM, None)
    if checksum is None and warn:
        warn_unchecked(path)
    if checksum not in (None, _digest(content)):
        raise DamagedError("its content has another checksum than it was written with")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


@cache
def warn_unchecked(path: Path) -> None:
    """Says once that a file has no checksum."""
    logger.warning(
        "%s has no checksum, because an older version wrote it: it is used unchecked.", path
    )
