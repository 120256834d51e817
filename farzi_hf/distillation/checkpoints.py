"""The checkpoints in a run's output folder, and the record of the run in each of them.

Trainer knows a checkpoint by its name alone: it deletes old folders that are called `checkpoint-…`, and a new run writes into
them. Here a checkpoint is a folder `checkpoint-STEP` with a record, `farzi_run.json`. No other folder is ever removed, and a run
that would write into another one is refused. The record holds the settings of the run, so that a resume knows which have changed.
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from farzi_hf.summary.store.atomic_folder import replace_file
from farzi_hf.summary.store.text import as_written, json_text, numbers_of

logger = logging.getLogger(__name__)

RECORD, HISTORY = "farzi_run.json", "history"
KEPT = (
    "num_sequences", "sequence_length", "latent_dim", "tau", "latent_std", "initialization", "concentration", "seed", "optim",
    "learner", "train_dataset", "inputs", "labels", "label_dim", "input_sequences", "teacher_steps", "teacher_learning_rate",
    "teacher_batch_size", "teacher_weight_decay", "num_teachers", "learner_pool",
    "privacy_noise_multiplier", "privacy_max_grad_norm", "privacy_delta",
)  # fmt: skip
"""Settings that cannot change at a resume: the start, the shape or the optimizer's state in the checkpoint depend on them."""

RENAMED = {"sharpness": "concentration", "fresh_starts": "fresh_start_fraction"}
"""New names of settings, by their names in older recipes and checkpoints."""

_STAGING = ".farzi-checkpoint"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")

# -- records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RunRecord:
    """The record of a run in a checkpoint.

    Attributes:
        settings: the present ones, by name. Plain JSON.
        history: one entry per resume that changed some of them, `{"step": …, "changed": {field: [old, new]}}`.
        non_finite_steps: the steps that were skipped so far, with these settings.
        start_facts: figures of the start that no log has had yet.
    """

    settings: Mapping[str, Any]
    history: Sequence[Mapping[str, Any]] = ()
    non_finite_steps: int = 0
    start_facts: Mapping[str, Any] = field(default_factory=dict)

    def resumed(self, settings: Mapping[str, Any], checkpoint: str | os.PathLike, step: int) -> RunRecord:
        """The record of a run that resumes with `settings` from `checkpoint`, whose record this is.

        Raises:
            ValueError: one of the settings `KEPT` has another value.
        """
        changed = changes(self.settings, settings)
        check_kept(changed, checkpoint, KEPT)
        entry = [{"step": step, "changed": changed}] if changed else []
        skipped = 0 if changed else self.non_finite_steps
        return RunRecord(settings, [*self.history, *entry], skipped, self.start_facts)

    @property
    def recipe_entry(self) -> dict[str, Any]:
        """The history as an entry of the recipe; empty if no settings were changed."""
        return {HISTORY: [dict(entry) for entry in self.history]} if self.history else {}


def with_new_names(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of an older version under their present names."""
    return {RENAMED.get(name, name): value for name, value in settings.items()}


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, list[Any]]:
    """`{field: [old, new]}` of the fields that differ. Inside a field that is a mapping, names are `field.key`.

    A field that only one side has is left out: another version of the package added or removed it, not the user.
    """
    changed, before, now = {}, as_written(before), as_written(now)
    for name in [name for name in before if name in now]:
        old, new = before[name], now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            changed |= {f"{name}.{key}": pair for key, pair in changes(old, new).items()}
        elif old != new:
            changed[name] = [old, new]
    return changed


def described(changed: Mapping[str, Sequence[Any]]) -> str:
    """The changes as one line of text."""
    return ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())


def check_kept(changed: Mapping[str, Sequence[Any]], checkpoint: str | os.PathLike, kept: Sequence[str]) -> None:
    """Raises ValueError if a field of `kept` has `changed` since `checkpoint`."""
    for name, (old, new) in changed.items():
        if name.split(".")[0] in kept:
            raise ValueError(
                f"{name}={new!r} cannot be changed on the way: {checkpoint} was made with {old!r}; give that to go on from it, "
                "or choose another output_dir to start anew"
            )


def read_record(checkpoint: str | os.PathLike) -> RunRecord:
    """The record of a checkpoint.

    Raises:
        ValueError: there is no record that can be read.
    """
    try:
        record = numbers_of(json.loads((Path(checkpoint) / RECORD).read_text(encoding="utf-8")))
        record["settings"] = with_new_names(record["settings"])
        return RunRecord(**record)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"resume_from_checkpoint={str(checkpoint)!r} has no readable {RECORD} ({error}), so it is no checkpoint of a FarziTrainer; "
            "name one, or start anew"
        ) from None


def begin_checkpoint(folder: Path, record: RunRecord) -> None:
    """Makes the folder of a checkpoint with the record in it. If it exists already, it becomes incomplete until it is written again.

    Raises:
        ValueError: the folder exists, and this library did not write it.
    """
    if os.path.lexists(folder):
        _check_ours(folder)
        (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
        _write_record(folder, record)
        return
    staging = folder.with_name(_STAGING)  # renamed into place, so that the folder never lacks its record
    shutil.rmtree(staging, ignore_errors=True)  # left by a crash
    staging.mkdir(parents=True)
    _write_record(staging, record)
    staging.rename(folder)


def _write_record(folder: Path, record: RunRecord) -> None:
    text = json_text(asdict(record), indent=1, ensure_ascii=False)
    replace_file(folder / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


# -- folders ---------------------------------------------------------------------------------------------------------


def last_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest complete checkpoint of ours in an output folder, None if there is none.

    transformers' `get_last_checkpoint` does not do: it returns the latest folder even if it is incomplete or somebody else's. A
    process that is killed while it writes a checkpoint leaves one without the trainer's state, which is written last.
    """
    complete = [path for path in own_checkpoints(folder) if is_complete(path)]
    return str(complete[-1]) if complete else None


def own_checkpoints(folder: str | os.PathLike) -> list[Path]:
    """The checkpoints with a record in an output folder, complete or not, sorted by step."""
    return [path for path in _named(folder) if _is_ours(path)]


def is_complete(checkpoint: Path) -> bool:
    """Whether the trainer's state exists and is whole."""
    with suppress(OSError, ValueError):
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        return True
    return False


def check_no_foreign(folder: str | os.PathLike) -> None:
    """Raises ValueError if something in `folder` has a checkpoint's name but was not written by this library."""
    for path in _named(folder):
        _check_ours(path)


def check_new_run(folder: str | os.PathLike) -> None:
    """Raises ValueError if `folder` holds checkpoints of another run, because those of a new run would mix with them."""
    checkpoint = last_checkpoint(folder)
    if checkpoint is not None:
        raise ValueError(
            f"output_dir={str(folder)!r} holds {Path(checkpoint).name} of an earlier run, which a new one would overwrite; go on from it with "
            "train(resume_from_checkpoint=True), choose another output_dir, or remove it with "
            "farzi_hf.distillation.checkpoints.discard_checkpoints(output_dir)"
        )


def discard_checkpoints(folder: str | os.PathLike) -> list[str]:
    """Removes our checkpoints from an output folder and returns their names. Everything else stays."""
    found = own_checkpoints(folder)
    for path in found:
        _remove(path)
    return [path.name for path in found]


def keep_last(folder: str | os.PathLike, limit: int, best: str | None) -> None:
    """Removes all but the `limit` latest of our checkpoints. `best` is one of those that are kept."""
    latest_first = own_checkpoints(folder)[::-1]
    best_first = sorted(latest_first, key=lambda path: best is None or path.resolve() != Path(best).resolve())
    kept = {latest_first[0], *best_first[:limit]} if latest_first else set()
    for path in latest_first:
        if path not in kept:
            try:
                _remove(path)
            except OSError as error:  # a full disk is a smaller loss than the run
                logger.warning("%s: not removed: %s", path, error)


def step_of(checkpoint: str | os.PathLike) -> int:
    """The step after which a checkpoint was saved, from its name."""
    return int(Path(checkpoint).name.rsplit("-", 1)[1])


def moved_along(best: str | None, checkpoint: str | os.PathLike) -> str | None:
    """Where the best checkpoint of a run lies now. Its state has an absolute path, and the folder of the run may have been moved."""
    beside = None if best is None else Path(checkpoint).parent / Path(best).name
    return str(beside) if beside is not None and _is_ours(beside) else best


def _named(folder: str | os.PathLike) -> list[Path]:
    """Everything with the name of a checkpoint, sorted by step."""
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
    """The record is removed last: an interrupted removal leaves an incomplete checkpoint of ours."""
    (checkpoint / TRAINER_STATE_NAME).unlink(missing_ok=True)
    for path in checkpoint.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        elif path.name != RECORD:
            path.unlink()
    (checkpoint / RECORD).unlink()
    checkpoint.rmdir()
