"""The checkpoints of a run on the disk: which are whole, from which one a run goes on, and which
are removed.

Trainer knows a checkpoint by its name alone: it deletes old folders that are called `checkpoint-…`,
and a new run writes into them. Here a checkpoint is a folder `checkpoint-STEP` with a record,
`farzi_run.json`, that has the settings of the run and the checksum of each of the checkpoint's
files. The record is written twice: first without checksums, which is a checkpoint that is not
complete, and at last with them. Files of others are never removed, and a run that would write into
a folder of others is refused.

Nothing goes on from a checkpoint of which a file is gone or has changed, or to which one was added
that Trainer would read. The latest one that is whole is taken.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from farzi_hf.common.files import (
    differences,
    load_record,
    names_of,
    save_record,
    status_of,
)

logger = logging.getLogger(__name__)

RECORD = "farzi_run.json"
_NOT_COMPLETE = "it was not written to its end"

_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
# What `replace_file` writes first: .NAME.PROCESS-NUMBER
_UNFINISHED = re.compile(r"\..+\.(\d+)-[0-9a-f]{32}")
_READ = re.compile(
    r"(adapter_|pytorch_model|model\.|optimizer|scheduler|scaler|rng_state|state_of_process"
    r"|config\.json|rank\d).*"
)
"""Names of files and folders in a checkpoint that Trainer reads where they are."""
_WRITTEN = re.compile(
    _READ.pattern + r"|train.*|tokenizer.*|special_tokens_map.*|added_tokens.*|chat_template.*"
    r"|vocab.*|merges.*"
)
"""Names of files that Trainer writes."""


# -- records ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Record:
    """What a checkpoint says of itself."""

    settings: Mapping[str, Any]
    """Of the run."""
    files: Mapping[str, str | None] | None = None
    """The checksum of each file of the checkpoint; None of those that an older version has written.
    None in place of all: the checkpoint is not complete.
    """
    others: Collection[str] = ()
    """Names of files that were in the folder before."""

    def save(self, checkpoint: Path) -> None:
        """Writes it into the folder of the checkpoint."""
        save_record(checkpoint / RECORD, vars(self))


def read_record(checkpoint: str | os.PathLike, warn: bool = True) -> Record:
    """The record of a checkpoint. Raises ValueError if there is none that can be read. One of an
    older version has no checksums, and by default that is said.
    """
    try:
        content = load_record(Path(checkpoint, RECORD), warn)
        files = content["files"]
        if isinstance(files, list):
            files = dict.fromkeys(files)
        others = content.get("others", ())
        return Record(dict(content["settings"]), None if files is None else dict(files), others)
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"resume_from_checkpoint={str(checkpoint)!r} has no readable {RECORD} ({error}): name a"
            " checkpoint of a FarziTrainer"
        ) from None


# -- which a run goes on from ----------------------------------------------------------------------


def last_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest whole checkpoint of ours in an output folder, None if there is none.

    transformers' `get_last_checkpoint` does not do: it returns the latest folder even if it is
    incomplete, damaged or somebody else's.
    """
    return newest_whole(folder)[0]


def newest_whole(folder: str | os.PathLike) -> tuple[str | None, dict[str, str]]:
    """The latest whole checkpoint of ours in an output folder, None if there is none; and by the
    names of later ones, why a run does not go on from them.
    """
    flaws = {}
    for path in reversed(_named(folder)):
        if not is_ours(path):
            continue
        flaw = flaw_of(path)
        if not flaw:
            return str(path), flaws
        flaws[path.name] = flaw
    return None, flaws


def flaw_of(checkpoint: str | os.PathLike) -> str:
    """Why a run cannot go on from a checkpoint, in words; nothing if the checkpoint is whole. The
    best one so far counts as a part of it, where that is what the run will result in.
    """
    checkpoint = Path(checkpoint)
    if status_of(checkpoint / RECORD) is None:
        return _NOT_COMPLETE
    try:
        record = read_record(checkpoint)
    except ValueError:
        return f"{RECORD} is damaged"
    flaw = _flaw_of_files(checkpoint, record)
    if flaw or not record.settings.get("load_best_model_at_end"):
        return flaw
    best = best_beside(checkpoint)
    if best is None or best == checkpoint:
        return ""
    try:
        flaw = _flaw_of_files(best, read_record(best))
    except ValueError:
        flaw = f"{RECORD} is gone or damaged"
    return f"of {best.name}, which was the best one, {flaw}" if flaw else ""


def _flaw_of_files(checkpoint: Path, record: Record) -> str:
    """The same of a checkpoint alone, whose files are to be those of its record."""
    if record.files is None:
        return _NOT_COMPLETE
    checksums = {name: checksum for name, checksum in record.files.items() if checksum is not None}
    different = differences(checkpoint, checksums)
    if not checksums:  # of an older version
        try:
            best_beside(checkpoint)
        except ValueError as error:
            return str(error)
    added = tuple(name for name in strangers(checkpoint, record) if _READ.fullmatch(name))
    return str(replace(different, added=added))


def strangers(checkpoint: str | os.PathLike, record: Record) -> list[str]:
    """Files and folders in a checkpoint that are not of it."""
    names = {name.partition("/")[0] for name in names_of(Path(checkpoint))}
    return sorted(names - {RECORD, *(record.files or ())})


def best_beside(checkpoint: Path) -> Path | None:
    """The checkpoint that was the best one so far: the folder with its name beside this one. They
    may have been moved together. Raises ValueError if the state cannot be read.
    """
    try:
        state = json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        best = state.get("best_model_checkpoint")
    except (OSError, ValueError, AttributeError):
        raise ValueError(f"{TRAINER_STATE_NAME} cannot be read") from None
    return checkpoint.parent / Path(best).name if best else None


# -- folders ---------------------------------------------------------------------------------------


def check_no_foreign(folder: str | os.PathLike) -> None:
    """Raises ValueError if something in `folder` has a checkpoint's name but was not written by
    this library.
    """
    for path in _named(folder):
        check_ours(path)


def discard_checkpoints(folder: str | os.PathLike) -> list[str]:
    """Removes our checkpoints from an output folder, complete or not, and returns their names.
    Everything else stays.
    """
    ours = [path for path in _named(folder) if is_ours(path)]
    for path in ours:
        remove(path)
    return [path.name for path in ours]


def keep_last(
    folder: str | os.PathLike,
    limit: int,
    best: str | None,
    step: int,
    flawed: Collection[str] = (),
) -> None:
    """Removes all but the `limit` latest of our checkpoints up to `step`, the present one.

    Args:
        best: one of those that are kept.
        flawed: names of those that are not whole, of which none is kept. A later one than `step`
            stays until the run comes there: it is all that is left of an earlier start.
    """

    def is_not_best(path: Path) -> bool:
        return best is None or path.resolve() != Path(best).resolve()

    ours = [path for path in _named(folder) if is_ours(path) and _step(path) <= step]
    latest_first = [path for path in ours[::-1] if is_complete(path) and path.name not in flawed]
    best_first = sorted(latest_first, key=is_not_best)
    kept = {*latest_first[:1], *best_first[:limit]}
    for path in ours:
        if path not in kept:
            remove(path)


def _named(folder: str | os.PathLike) -> list[Path]:
    """Everything with the name of a checkpoint, sorted by step."""
    named = [path for path in Path(folder).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(named, key=_step)


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rsplit("-", 1)[1])


def is_ours(path: Path) -> bool:
    """Whether it has a record. A process that is killed before the record is there leaves a folder
    without any file of others.
    """
    if path.is_symlink() or not path.is_dir():
        return False
    return (path / RECORD).is_file() or all(
        _UNFINISHED.fullmatch(inside.name) for inside in path.iterdir()
    )


def check_ours(path: Path) -> None:
    """Raises ValueError if something with the name of a checkpoint was not written by
    this library.
    """
    if not is_ours(path):
        raise ValueError(
            f"output_dir={str(path.parent)!r} holds {path.name}, which no FarziTrainer has written:"
            " choose another output_dir, or move it away"
        )


def is_complete(checkpoint: Path) -> bool:
    """Whether the checkpoint was written to its end. It may have been damaged since."""
    try:
        return read_record(checkpoint, warn=False).files is not None
    except ValueError:
        return False


def files_of(folder: Path) -> set[str]:
    """The names of the files in a folder. A link counts as a file."""
    return {path.name for path in folder.iterdir() if path.is_symlink() or not path.is_dir()}


def remove(checkpoint: Path) -> None:
    """Removes the files of a checkpoint. Files and folders of others stay, and with them the
    record, which says that the folder is ours.

    The record is removed last: an interrupted removal leaves a checkpoint of ours that is not
    whole.
    """
    ours = files_of(checkpoint) - {RECORD}
    if status_of(checkpoint / RECORD) is not None:
        try:
            record = read_record(checkpoint, warn=False)
            ours -= set(record.others)
            if record.files is not None:
                ours &= set(record.files)
        except ValueError:  # it is damaged, and nothing else says whose the files are
            ours = {name for name in ours if _WRITTEN.fullmatch(name)}
    for name in ours:
        (checkpoint / name).unlink()
    others = sorted(path.name for path in checkpoint.iterdir() if path.name != RECORD)
    if not others:
        (checkpoint / RECORD).unlink(missing_ok=True)
        checkpoint.rmdir()
    elif ours:  # once
        logger.warning(
            "%s holds files that are not of the checkpoint and stay: %s.",
            checkpoint,
            ", ".join(others),
        )
