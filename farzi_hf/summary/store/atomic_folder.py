"""Replacing a file, or the files of an artefact together in a folder that may hold other files too; and one error for a full disk.

All files are first written to a hidden folder inside the target. Renaming that folder is the commit. A crash before the rename
leaves the old files untouched. After the rename readers find the new files (see `store.folder`), and the next save moves those
that are not in place yet. Renaming the target itself would be simpler, but a checkpoint's optimizer state in it would be lost.

The file TENSORS is moved last. Its metadata list all other files of the artefact, and so say which files a new save removes.
"""

from __future__ import annotations

import errno
import filecmp
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import Tensor

from farzi_hf.summary.store.folder import (
    CARD,
    COMMITTED,
    CONFIG,
    FOLDERS,
    TENSORS,
    VIEWER,
    committed_folder,
    find_file,
    is_known,
    mode_of,
    size_limit,
)
from farzi_hf.summary.store.tensor_file import FILES_LIMIT, read_header, write_tensors

LOCK = ".farzi-lock"
_STAGING = ".farzi-writing"
_STAGINGS = re.compile(rf"{re.escape(_STAGING)}(-[0-9a-f]{{32}})?")  # the first version's name had no number
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
    except (
        OSError,
        RuntimeError,
        SafetensorError,
    ) as error:  # torch does not name the cause, safetensors and Arrow do it in their own words
        folders = (Path(folder).absolute(), *Path(folder).absolute().parents)
        disk = shutil.disk_usage(next(path for path in folders if path.exists()))
        if isinstance(error, OSError) and error.errno is not None:
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        else:
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
    if mode_of(folder) is not None and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder.resolve() / LOCK
    if mode_of(path) is not None and not (stat.S_ISREG(os.lstat(path).st_mode) and os.lstat(path).st_nlink == 1):
        raise ValueError(
            f"{path} is a link or a device, and no lock of this library; remove it, and do not trust this folder"
        )
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


def replace_files(folder: Path, write: Callable[[Path], None], tensors: dict[str, Tensor]) -> None:
    """Replaces the artefact in `folder` by the files that `write(empty_folder)` writes, and by `tensors`.

    Raises:
        ValueError: see `check_destination`; a file that an artefact has no place for; somebody else writes to `folder`.
        OSError: for instance a full disk. The old artefact is then unchanged.
    """
    with names_the_disk(folder), exclusive(folder):
        check_destination(folder)
        _remove_stale(folder)
        _finish_commit(folder)
        staging = folder / f"{_STAGING}-{uuid.uuid4().hex}"
        try:
            staging.mkdir()
            write(staging)
            names = [path.relative_to(staging).as_posix() for path in _files(staging)]
            _check_names(staging, names)
            same = [name for name in names if stat.S_ISREG(mode_of(folder / name) or 0)]
            same = filecmp.cmpfiles(staging, folder, same, shallow=False)[0]
            check_destination(folder, set(names) - set(same))
            write_tensors(staging / TENSORS, tensors, names)
            for path in [*_files(staging), staging]:
                _flush(path)
            staging.rename(folder / COMMITTED)
        finally:
            shutil.rmtree(staging, ignore_errors=True)
        _finish_commit(folder)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Replaces the file `path` by the one that `write(new_path)` writes. A crash leaves the old file or none, never half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}-{uuid.uuid4().hex}")
    try:
        write(staging)
        _flush(staging)
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)
    _flush(path.parent)


def check_destination(folder: Path, names: Collection[str] = (CONFIG, CARD, VIEWER)) -> None:
    """Raises ValueError if writing an artefact with the files `names` to `folder` would overwrite files of something else.

    By default `names` are the files that every artefact has. Call it before a long distillation rather than at its end.
    """
    if folder.is_symlink():
        raise ValueError(
            f"folder={str(folder)!r} is a link, which is not written through; name the folder {str(folder.resolve())!r} itself"
        )
    if mode_of(folder) is not None and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder to save the summary in")
    for path in (folder / name for name in FOLDERS):
        if not stat.S_ISDIR(mode_of(path) or stat.S_IFDIR):
            raise ValueError(
                f"{path} is a link or a file where the summary has a folder; remove it, or choose another folder"
            )
    _check_no_folders(folder, names)
    committed, owned = committed_folder(folder), set()
    for path in (find_file(folder, TENSORS), committed and find_file(committed, TENSORS)):
        owned |= set() if path is None else {CONFIG, CARD, VIEWER, *(read_header(path).files or ())}
    for name in names:
        if mode_of(folder / name) is not None and name not in owned:
            raise ValueError(
                f"folder={str(folder)!r} has a {name} but no {TENSORS} that claims it: it holds something else, which saving would "
                "overwrite; choose another folder"
            )


def _check_no_folders(folder: Path, names: Collection[str]) -> None:
    """Raises ValueError where a folder has the name of a file."""
    for name in names:
        if stat.S_ISDIR(mode_of(folder / name) or 0):
            raise ValueError(
                f"{folder / name} is a folder where the summary has a file; remove it, or choose another folder"
            )


def _check_names(staging: Path, names: list[str]) -> None:
    """Raises ValueError for files that `from_pretrained` would refuse."""
    if len(names) > FILES_LIMIT:
        raise ValueError(
            f"an artefact would have {len(names):,} files, more than the {FILES_LIMIT:,} that it can have; give fewer plots"
        )
    for name in names:
        if not is_known(name):
            raise ValueError(
                f"an artefact has no place for {name!r}: give plots as images, and as processing_class a fast tokenizer, which saves "
                "itself as tokenizer.json"
            )
        size, limit = (staging / name).stat().st_size, size_limit(name)
        if limit is not None and size > limit:
            raise ValueError(
                f"{name} would have {size:,} bytes, more than the {limit:,} that are read of it; make it smaller"
            )


def _finish_commit(folder: Path) -> None:
    """Moves the files of a committed but interrupted save into place, if there is one. The caller holds the lock.

    It can be interrupted and repeated, because the tensors, whose metadata name the artefact's files, are moved last.
    """
    committed = committed_folder(folder)
    if committed is not None:
        new = [name for name in read_header(committed / TENSORS).files or () if is_known(name)]
        _check_no_folders(folder, new)
        tensors = find_file(folder, TENSORS)
        old = [] if tensors is None else [name for name in read_header(tensors).files or () if is_known(name)]
        for name in set(old) - set(new):
            with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError):
                (folder / name).unlink()
        for name in [*new, TENSORS]:
            if (source := find_file(committed, name)) is not None:  # else it was moved before the interruption
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                os.replace(source, folder / name)
    _remove_empty(folder / COMMITTED)
    if mode_of(folder / COMMITTED) is not None:
        raise ValueError(f"{folder / COMMITTED} holds files that no save of this library leaves; remove it")


def _remove_stale(folder: Path) -> None:
    """Removes the files of processes that died while they wrote. The caller holds the lock, so nobody writes now.

    Only files that an artefact can have are removed. A folder that holds other files is not ours, and stays.
    """
    for staging in (path for path in folder.iterdir() if _STAGINGS.fullmatch(path.name)):
        if stat.S_ISDIR(mode_of(staging) or 0):
            for path in _files(staging):
                if is_known(path.relative_to(staging).as_posix()):
                    path.unlink()
            _remove_empty(staging)


def _remove_empty(folder: Path) -> None:
    """Removes the empty ones of `folder` and the folders in it."""
    for emptied in (*(folder / name for name in FOLDERS), folder):
        with suppress(OSError):
            emptied.rmdir()


def _files(folder: Path) -> list[Path]:
    """The plain files under `folder`, without those behind links."""
    found = (Path(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sorted(path for path in found if stat.S_ISREG(mode_of(path) or 0))


def _flush(path: Path) -> None:
    """Makes `path` survive a power cut: the rename that follows must not reach the disk before the file's content."""
    with suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
