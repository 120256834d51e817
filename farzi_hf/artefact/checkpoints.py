"""The checkpoints in a run's output folder, and the record that each of them holds of its run.

Trainer tells a checkpoint by its name alone: its rotation deletes whatever folder is called `checkpoint-…`, and a new run writes
into it. Here a checkpoint is a folder `checkpoint-STEP` with a record, `farzi_run.json`: nothing else is ever removed, and a run
that would write into something else is refused. The record says with which settings the run was made, so that a resume can tell
what has changed since.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from farzi_hf.artefact.atomic_folder import replace_file

logger = logging.getLogger(__name__)

RECORD, HISTORY = "farzi_run.json", "history"
KEPT = (
    "num_sequences", "sequence_length", "latent_dim", "tau", "latent_std", "initialization", "concentration", "seed", "optim",
    "learner", "train_dataset",
)  # fmt: skip
"""Settings that a run keeps: they made its start, its shape, or what the checkpoint remembers of each step."""

RENAMED = {"sharpness": "concentration", "fresh_starts": "fresh_start_fraction"}
"""New names of settings, by the names that older recipes and checkpoints have."""

_STAGING = ".farzi-checkpoint"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")

# -- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """What a checkpoint says of its run.

    Attributes:
        settings: as they are now, by name. Plain JSON.
        history: one entry per resume that changed some of them, `{"step": …, "changed": {field: [old, new]}}`.
    """

    settings: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]] = ()

    def resumed(self, settings: Mapping[str, Any], checkpoint: str | os.PathLike, step: int) -> RunRecord:
        """The record of the run that goes on from `checkpoint`, which is of this record, with `settings`.

        Raises:
            ValueError: one of the settings that a run keeps has another value.
        """
        changed = changes(self.settings, settings)
        check_kept(changed, checkpoint, KEPT)
        entry = [{"step": step, "changed": changed}] if changed else []
        return RunRecord(settings, [*self.history, *entry])

    @property
    def recipe_entry(self) -> dict[str, Any]:
        """What a recipe says beside its settings: the history, where there is one."""
        return {HISTORY: [dict(entry) for entry in self.history]} if self.history else {}


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that an older version has written, under the names that they have now."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """`{field: [old, new]}` of the fields that both have; of a field that is a mapping, `field.key` of those inside.

    A field that only one of them has came or went with a version of the package, which is no change of the user's.
    """
    changed = {}
    for name in [name for name in before if name in now]:
        old, new = before[name], now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed |= {f"{name}.{key}": pair for key, pair in changes(old, new).items()}
        elif old != new:
            changed[name] = [old, new]
    return changed


def described(changed: Mapping[str, Sequence[Any]]) -> str:
    """Changes in one line."""
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())


def check_kept(changed: Mapping[str, Sequence[Any]], checkpoint: str | os.PathLike, kept: Sequence[str]) -> None:
    """Raises ValueError if a field of `kept` is among those that have `changed` since `checkpoint`."""
    for name, (old, new) in changed.items():
        if name.split(".")[0] in kept:
            raise ValueError(
                f"{name}={new!r} cannot be changed on the way: {checkpoint} was made with {old!r}; give that to go on from it, "
                "or choose another output_dir to start anew"
            )


def read_record(checkpoint: str | os.PathLike) -> RunRecord:
    """The record of a checkpoint.

    Raises:
        ValueError: it has none that can be read.
    """
    try:
        record = json.loads((Path(checkpoint) / RECORD).read_text(encoding="utf-8"))
        record["settings"] = with_new_names(record["settings"])
        return RunRecord(**record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"resume_from_checkpoint={str(checkpoint)!r} has no readable {RECORD} ({error}), so it is no checkpoint of a FarziTrainer; "
            "name one, or start anew"
        ) from None


def begin_checkpoint(folder: Path, record: RunRecord) -> None:
    """Makes the folder of a checkpoint, with the record in it; one of ours that is there counts as incomplete from now on.

    Raises:
        ValueError: something of that name is there which this library did not write.
    """
    if os.path.lexists(folder):
        _check_ours(folder)
        (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
        _write_record(folder, record)
        return
    staging = folder.with_name(_STAGING)  # there is no moment at which a folder of ours lacks its record
    shutil.rmtree(staging, ignore_errors=True)  # left by a crash
    staging.mkdir(parents=True)
    _write_record(staging, record)
    staging.rename(folder)


def _write_record(folder: Path, record: RunRecord) -> None:
    text = json.dumps(asdict(record), indent=1, ensure_ascii=False)
    replace_file(folder / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


# -- folders ---------------------------------------------------------------------------------------------------------


def last_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest complete checkpoint of ours in an output folder, None if there is none.

    A process that is killed while it writes one leaves a folder without the trainer's state, which goes last.
    """
    complete = [path for path in own_checkpoints(folder) if is_complete(path)]
    return str(complete[-1]) if complete else None


def own_checkpoints(folder: str | os.PathLike) -> list[Path]:
    """Those in an output folder that have a record, complete or not, by step."""
    return [path for path in _named(folder) if _is_ours(path)]


def is_complete(checkpoint: Path) -> bool:
    """Whether the trainer's state is there and whole."""
    with suppress(OSError, ValueError):
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        return True
    return False


def check_no_foreign(folder: str | os.PathLike) -> None:
    """Raises ValueError if something in `folder` has a checkpoint's name and is none of ours."""
    for path in _named(folder):
        _check_ours(path)


def check_new_run(folder: str | os.PathLike) -> None:
    """Raises ValueError if `folder` holds checkpoints of another run: those of a new one would mix with them."""
    checkpoint = last_checkpoint(folder)
    if checkpoint is not None:
        raise ValueError(
            f"output_dir={str(folder)!r} holds {Path(checkpoint).name} of an earlier run, which a new one would overwrite; go on from it with "
            "train(resume_from_checkpoint=True), choose another output_dir, or remove it with "
            "farzi_hf.checkpoints.discard_checkpoints(output_dir)"
        )


def discard_checkpoints(folder: str | os.PathLike) -> list[str]:
    """Removes our checkpoints in an output folder and returns their names; everything else there stays."""
    found = own_checkpoints(folder)
    for path in found:
        _remove(path)
    return [path.name for path in found]


def keep_last(folder: str | os.PathLike, limit: int, best: str | None) -> None:
    """Removes all but the `limit` latest of our checkpoints; `best` is kept in any case, and counts."""
    latest_first = own_checkpoints(folder)[::-1]
    best_first = sorted(latest_first, key=lambda path: best is None or path.resolve() != Path(best).resolve())
    kept = {latest_first[0], *best_first[:limit]} if latest_first else set()
    for path in latest_first:
        if path not in kept:
            try:
                _remove(path)
            except OSError as error:  # the run is worth more than the space
                logger.warning("%s: not removed: %s", path, error)


def _named(folder: str | os.PathLike) -> list[Path]:
    """What has the name of a checkpoint, by step."""
    found = [path for path in Path(folder).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(_NAME.fullmatch(path.name)[1]))


def _is_ours(path: Path) -> bool:
    return not path.is_symlink() and (path / RECORD).is_file()


def _check_ours(path: Path) -> None:
    if not _is_ours(path):
        raise ValueError(
            f"output_dir={str(path.parent)!r} holds {path.name}, which has no {RECORD} and so was not written by a FarziTrainer; "
            "choose another output_dir, or move it away"
        )


def _remove(checkpoint: Path) -> None:
    """The record goes last: a removal that is interrupted leaves an incomplete checkpoint of ours."""
    (checkpoint / TRAINER_STATE_NAME).unlink(missing_ok=True)
    for path in checkpoint.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != RECORD:
            path.unlink()
    (checkpoint / RECORD).unlink()
    checkpoint.rmdir()
