"""Replacing a file, or the files of an artefact together in a folder that may hold other files too.

Everything is first written to a hidden folder inside the target. Renaming that folder is the commit: a crash before it
leaves the old files untouched, and after it `finish_commit`, which every reader and writer calls first, moves what is
left into place. Renaming the target itself would be simpler, and would take a checkpoint's optimizer state with it.

The file TENSORS goes last and its metadata list all others: it says what belongs to the artefact, and so what to remove.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

TENSORS = "farzi.safetensors"

_STAGING, _COMMITTED = ".farzi-writing", ".farzi-committed"


def replace_files(folder: Path, write: Callable[[Path], None], tensors: dict[str, Tensor]) -> None:
    """Puts what `write(empty_folder)` writes, and `tensors`, into `folder` in place of the artefact that was there.

    Raises:
        ValueError: see `check_destination`.
    """
    check_destination(folder)
    folder.mkdir(parents=True, exist_ok=True)
    finish_commit(folder)
    staging = folder / _STAGING
    shutil.rmtree(staging, ignore_errors=True)  # left by a crash
    staging.mkdir()
    try:
        write(staging)
        files = json.dumps([path.relative_to(staging).as_posix() for path in _files(staging)])
        # One entry: safetensors writes several in any order, and the same summary should be the same bytes.
        save_file(tensors, staging / TENSORS, metadata={"files": files})
        for path in [*_files(staging), staging]:
            _flush(path)
        staging.rename(folder / _COMMITTED)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    finish_commit(folder)


def replace_file(path: Path, write: Callable[[Path], None]) -> None:
    """Puts what `write(new_path)` writes in place of the file `path`: a crash leaves the old one, or none, never half of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    staging = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write(staging)
        _flush(staging)
        os.replace(staging, path)
    finally:
        staging.unlink(missing_ok=True)
    _flush(path.parent)


def check_destination(folder: Path) -> None:
    """Raises ValueError if an artefact written to `folder` would overwrite what is not one.

    Worth calling before a long distillation rather than at its end.
    """
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"folder={str(folder)!r} is a file; name a folder to save the summary in")
    if (folder / TENSORS).exists() or (folder / _COMMITTED).exists():
        return
    for name in ("config.json", "README.md"):
        if (folder / name).exists():
            raise ValueError(
                f"folder={str(folder)!r} has a {name} but no {TENSORS}: it holds something else, which saving would "
                "overwrite; choose another folder"
            )


def finish_commit(folder: Path) -> None:
    """Moves the files of a committed but interrupted save into place; does nothing where there is none.

    Safe to repeat and to run in several processes: the tensors, whose metadata name the files of the artefact, go last.
    """
    source = folder / _COMMITTED
    with suppress(FileNotFoundError):  # no commit, or another process has just finished it
        new = artefact_files(source)
        old = artefact_files(folder) if (folder / TENSORS).exists() else []
        for name in set(old) - set(new):
            (folder / name).unlink(missing_ok=True)
        for name in [*new, TENSORS]:
            (folder / name).parent.mkdir(exist_ok=True)
            with suppress(FileNotFoundError):  # moved before the interruption
                os.replace(source / name, folder / name)
    for emptied in (*source.glob("*/"), source):
        with suppress(OSError):
            emptied.rmdir()


def artefact_files(folder: Path) -> list[str]:
    """Relative paths of the artefact's files beside `farzi.safetensors`, from the latter's metadata.

    Raises:
        ValueError: a path leads out of the folder, which no honest artefact says: these files get moved and removed.
    """
    with safe_open(folder / TENSORS, framework="pt") as file:
        names = json.loads((file.metadata() or {}).get("files", "[]"))
    for name in names:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(
                f"{folder / TENSORS} claims the file {name!r} outside its folder; do not trust this folder"
            )
    return names


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _flush(path: Path) -> None:
    """Makes `path` survive a power cut, so that the rename which follows cannot outlive what it names."""
    with suppress(PermissionError):  # Windows cannot open folders
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
