"""The checkpoints in a run's output folder, and the record of the run in each of them.

Trainer knows a checkpoint by its name alone: it deletes old folders that are called `checkpoint-…`, and a new run writes into them.
Here a checkpoint is a folder `checkpoint-STEP` with a record, `farzi_run.json`, that has the settings of the run and the names of the
checkpoint's files. Files of others are never removed, and a run that would write into a folder of others is refused.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import psutil
from transformers import TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from farzi_hf.summary.store.atomic_folder import exclusive, replace_file
from farzi_hf.summary.store.text import as_written, json_text, numbers_of

logger = logging.getLogger(__name__)

RECORD = "farzi_run.json"
RENAMED = {"sharpness": "concentration", "fresh_starts": "fresh_start_fraction"}
"""New names of settings, by their names in older recipes and checkpoints."""

_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
_UNFINISHED = re.compile(r"\..+\.(\d+)-[0-9a-f]{32}")  # what `replace_file` writes first: .NAME.PROCESS-NUMBER

# -- records ---------------------------------------------------------------------------------------------------------


@dataclass
class RunRecord:
    """The record of a run in a checkpoint.

    Attributes:
        settings: of the run, by name. Plain JSON.
        non_finite_steps: the steps that were skipped so far.
        start_facts: figures of the start that no log has had yet.
        files: the files of the checkpoint, by their paths in it; None until it is complete.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    non_finite_steps: int = 0
    start_facts: Mapping[str, Any] = field(default_factory=dict)
    files: list[str] | None = None

    def write(self, checkpoint: Path) -> None:
        """Writes it into a checkpoint."""
        text = json_text(asdict(self), indent=1, ensure_ascii=False)
        replace_file(checkpoint / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


def read_record(checkpoint: str | os.PathLike) -> RunRecord:
    """The record of a checkpoint.

    Raises:
        ValueError: there is no record that can be read.
    """
    try:
        found = numbers_of(json.loads((Path(checkpoint) / RECORD).read_text(encoding="utf-8")))
        found["settings"] = with_new_names(found["settings"])
        return RunRecord(**{f.name: found[f.name] for f in fields(RunRecord) if f.name in found})
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"resume_from_checkpoint={str(checkpoint)!r} has no readable {RECORD} ({error}), so it is no checkpoint of a FarziTrainer; "
            "name one, or start anew"
        ) from None


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an older version under their present names."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """`{field: (old, new)}` of the fields that differ. Inside a field that is a mapping, names are `field.key`.

    A field that only one side has is left out: another version of the package added or removed it, not the user.
    """
    changed, before, now = {}, as_written(before), as_written(now)
    for name in [name for name in before if name in now]:
        old, new = before[name], now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed |= {f"{name}.{key}": pair for key, pair in changes(old, new).items()}
        elif old != new:
            changed[name] = (old, new)
    return changed


def described(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """The changes as one line of text."""

    def short(value: Any) -> str:
        return text if len(text := str(value)) <= 60 else f"{text[:60]}…"

    return ", ".join(f"{name} {short(old)} → {short(new)}" for name, (old, new) in changed.items())


# -- folders -----------------------------------------------------------------------------------------------------


def last_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest complete checkpoint of ours in an output folder, None if there is none.

    transformers' `get_last_checkpoint` does not do: it returns the latest folder even if it is incomplete or somebody else's. A
    process that is killed while it writes a checkpoint leaves one without the trainer's state, which is written last.
    """
    complete = [path for path in own_checkpoints(folder) if is_complete(path)]
    return str(complete[-1]) if complete else None


def own_checkpoints(folder: str | os.PathLike) -> list[Path]:
    """Our checkpoints in an output folder, complete or not, sorted by step."""
    return [path for path in _named(folder) if is_ours(path)]


def check_no_foreign(folder: str | os.PathLike) -> None:
    """Raises ValueError if something in `folder` has a checkpoint's name but was not written by this library."""
    for path in _named(folder):
        check_ours(path)


def discard_checkpoints(folder: str | os.PathLike) -> list[str]:
    """Removes our checkpoints from an output folder and returns their names. Everything else stays."""
    found = own_checkpoints(folder)
    for path in found:
        _remove(path)
    return [path.name for path in found]


def keep_last(folder: str | os.PathLike, limit: int, best: str | None) -> None:
    """Removes all but the `limit` latest of our checkpoints. `best` is one of those that are kept."""
    latest_first = [path for path in own_checkpoints(folder)[::-1] if is_complete(path)]
    best_first = sorted(latest_first, key=lambda path: best is None or path.resolve() != Path(best).resolve())
    kept = {*latest_first[:1], *best_first[:limit]}
    for path in own_checkpoints(folder):
        if path not in kept:
            try:
                _remove(path)
            except OSError as error:  # a full disk is a smaller loss than the run
                logger.warning("%s: not removed: %s", path, error)


def remove_unfinished(folder: str | os.PathLike) -> None:
    """Removes files that processes began to write in `folder` before they were killed. The caller holds its lock."""
    for path in Path(folder).glob(".*"):
        found = _UNFINISHED.fullmatch(path.name)
        if found and path.is_file() and not path.is_symlink() and not psutil.pid_exists(int(found[1])):
            path.unlink(missing_ok=True)


def _named(folder: str | os.PathLike) -> list[Path]:
    """Everything with the name of a checkpoint, sorted by step."""
    found = [path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=step_of)


def step_of(checkpoint: str | os.PathLike) -> int:
    """The step after which a checkpoint was saved."""
    return int(Path(checkpoint).name.rsplit("-", 1)[1])


def is_ours(path: Path) -> bool:
    """Whether it has a record. A process that is killed before the record is there leaves a folder without any file of others."""
    if path.is_symlink() or not path.is_dir():
        return False
    return (path / RECORD).is_file() or all(_UNFINISHED.fullmatch(inside.name) for inside in path.iterdir())


def check_ours(path: Path) -> None:
    """Raises ValueError if something with the name of a checkpoint was not written by this library."""
    if not is_ours(path):
        raise ValueError(
            f"output_dir={str(path.parent)!r} holds {path.name}, which has no {RECORD} and so was not written by a FarziTrainer; "
            "choose another output_dir, or move it away"
        )


def is_complete(checkpoint: Path) -> bool:
    """Whether the trainer's state exists and is whole."""
    with suppress(OSError, ValueError):
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        return True
    return False


def files_of(folder: Path) -> set[str]:
    """The files in a folder and in those inside it, by their paths in it. A link counts as a file."""
    inside = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix() for path in inside}


def _remove(checkpoint: Path) -> None:
    """Removes the files of a checkpoint. Files of others stay, and with them the record, which says that the folder is ours.

    The record is removed last: an interrupted removal leaves an incomplete checkpoint of ours.
    """
    found = files_of(checkpoint) - {RECORD}
    ours = found
    with suppress(ValueError):  # there is no record yet
        known = read_record(checkpoint).files
        ours = found if known is None else found & set(known)
    for name in sorted(ours, key=lambda name: name != TRAINER_STATE_NAME):  # without the state it is incomplete
        (checkpoint / name).unlink()
    folders = [path for path in checkpoint.rglob("*") if path.is_dir() and not path.is_symlink()]
    for folder in sorted(folders, reverse=True):
        with suppress(OSError):  # it is not empty
            folder.rmdir()
    if found == ours:
        (checkpoint / RECORD).unlink(missing_ok=True)
        checkpoint.rmdir()
    elif ours:  # once
        others = ", ".join(sorted(found - ours))
        logger.warning("%s holds files that are not of the checkpoint and stay: %s.", checkpoint, others)


@contextmanager
def locked(args: TrainingArguments) -> Iterator[None]:
    """The run's folder for its first process alone, without what killed processes left. The other processes of the run write into it too."""
    with exclusive(args.output_dir) if args.process_index == 0 else nullcontext():
        if args.process_index == 0:
            remove_unfinished(args.output_dir)
        yield
