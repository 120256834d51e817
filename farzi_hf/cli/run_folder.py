"""The folder of a run: its last checkpoint, its recipe and its results, and checks that a run overwrites no other files."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import yaml

from farzi_hf.distillation.checkpoints import (
    HISTORY,
    changes,
    check_kept,
    check_no_foreign,
    described,
    discard_checkpoints,
    last_checkpoint,
    read_record,
    with_new_names,
)
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.trainer import FarziTrainer
from farzi_hf.report.tables import save_text
from farzi_hf.summary.store.atomic_folder import check_destination, exclusive
from farzi_hf.summary.store.text import as_written, json_text, numbers_of, yaml_text

HEADER = "# Written by a recipe of farzi_hf: here it goes on, and replaces results of its own.\n"
_SIGNATURES = {
    "table.json": ("findings", "scores"),
    "cell.json": ("settings", "asked"),
}  # our files have one of these keys
_OF_RUNS = ("results.json", "start.json", "summary")  # of a distillation
PLOTS = ("distillation", "comparison", "tokens", "entropy", "popularity")


def check_outputs(folder: Path, names: Iterable[str], of_run: bool = False) -> None:
    """Refuses a folder in which a recipe would overwrite files that no recipe has written, or another one. Call this before any long work.

    Args:
        folder: the folder; it need not exist.
        names: the files that will be written, as paths inside the folder.
        of_run: whether they belong to a distillation. It replaces no files of another recipe's folder, and no other recipe those of its own.

    Raises:
        ValueError: one of the files exists and no recipe has written to the folder, or one that makes other results; or a file has
            the name of a needed folder.
    """
    check_files(folder, names, written_by_a_recipe(folder) and _is_of_run(folder) in (None, of_run))


def check_files(folder: Path, names: Iterable[str], ours: bool) -> None:
    """Refuses a folder whose files `names` would be overwritten, unless they are `ours`. The arguments are as in `check_outputs`.

    Raises:
        ValueError: see `check_outputs`.
    """
    for path in (folder / name for name in names):
        for place in (folder, path.parent):
            if place.exists() and not place.is_dir():
                raise ValueError(f"{str(place)!r} is a file, where a folder has to be: choose another folder")
        if not ours and os.path.lexists(path):
            raise ValueError(
                f"{str(path)!r} exists already and would be overwritten; only the run that made it may do that when it goes on: choose another "
                "folder, or move it away"
            )


def _is_of_run(folder: Path) -> bool | None:
    """Whether a folder is that of a distillation; None if neither its files nor those of a table are there."""
    if any((folder / name).exists() for name in _OF_RUNS):
        return True
    return False if (folder / "table.json").exists() else None


def written_by_a_recipe(folder: Path) -> bool:
    """Whether a recipe has written to this folder. Some of its files show it."""
    with suppress(OSError, UnicodeDecodeError):
        if (folder / "recipe.yaml").read_text(encoding="utf-8").startswith(HEADER):
            return True
    for name, keys in _SIGNATURES.items():
        with suppress(OSError, ValueError):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            if isinstance(content, dict) and any(key in content for key in keys):
                return True
    return False


def find_checkpoint(
    args: FarziConfig, recipe: Mapping[str, Any], resume: bool, outputs: Iterable[str] = (), exactly: bool = False
) -> str | None:
    """The checkpoint to go on from, or None for a new run. This writes nothing. Call `begin_run` when the trainer exists.

    Args:
        recipe: all settings, including the settings in `args`.
        resume: whether to go on from the last checkpoint in `args.output_dir`.
        outputs: the files that the run will write there, beside `recipe.yaml` and `summary/`.
        exactly: whether any change of settings since the checkpoint is an error.

    Raises:
        ValueError: the run would overwrite files that no recipe has written, or would change settings that cannot change.
    """
    folder = Path(args.output_dir)
    check_outputs(folder, ["recipe.yaml", *outputs], of_run=True)
    check_destination(folder / "summary")
    check_no_foreign(folder)
    checkpoint = args.resume_from_checkpoint or (last_checkpoint(folder) if resume else None)
    if checkpoint is not None:
        try:
            _check_recipe(args, recipe, checkpoint, exactly)
        except ValueError as error:
            raise ValueError(f"{error}; --no_resume discards the checkpoints in {args.output_dir}") from None
    return checkpoint


def _check_recipe(args: FarziConfig, recipe: Mapping[str, Any], checkpoint: str, exactly: bool) -> None:
    read_record(checkpoint).resumed(args.to_recipe(), checkpoint, step=0)
    path = Path(checkpoint).parent / "recipe.yaml"
    before = with_new_names(yaml.safe_load(path.read_text(encoding="utf-8"))) if path.exists() else {}
    names = [name for name in {**before, **recipe} if name != HISTORY] if before else []
    earlier = {**_defaults(), **before}
    changed = changes({name: earlier.get(name) for name in names}, {name: recipe.get(name) for name in names})
    may_change = set() if exactly else args.to_recipe().keys()
    check_kept(changed, checkpoint, [name for name in names if name not in may_change])


def kept(
    path: Path, settings: Mapping[str, Any], make: Callable[[], Any], unless: Callable[[Any], bool] | None = None
) -> Any:
    """The value of `make()`, or what an earlier start with the same settings has kept of it in the file `path`.

    The file is JSON, `{"settings": …, "value": …}`, and the value is returned as it is read from there. A file of other settings is removed
    before the work begins, which may change what lies beside it.

    Args:
        unless: a value of which it is true is returned, and not kept.

    Raises:
        ValueError: see `stored`.
    """
    if (found := stored(path, settings)) is not None:
        return found
    path.unlink(missing_ok=True)
    value = as_written(make())
    if unless is None or not unless(value):
        save_text(json_text({"settings": settings, "value": value}, indent=None), path)
    return numbers_of(value)


def stored(path: Path, settings: Mapping[str, Any]) -> Any | None:
    """What `kept` has written into the file `path` with the same settings, or None.

    Raises:
        ValueError: the file cannot be read, or something else has written it, and `kept` would overwrite it.
    """
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        before = numbers_of(found["settings"]).items()
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} exists already, and no recipe has written it: choose another output_dir, or move it away ({error!r})"
        ) from None
    return numbers_of(found.get("value")) if same_settings(dict(before), settings) else None


def same_settings(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a result that was made with the settings `before` is one of `now`.

    Settings of `FarziConfig` that an older version did not have count as their defaults, so the default of a new setting has to be
    what was done before. The settings of a `source`, on whose result this one depends, are compared alike. How the run was started makes no
    difference, nor where its config and its data were: `data` has a hash of them.
    """
    before, now = (as_written(_independent_of_place(settings)) for settings in (before, now))
    if "source" in before and "source" in now and not same_settings(before.pop("source"), now.pop("source")):
        return False
    defaults = _defaults()
    return set(before) <= set(now) and all(before.get(name, defaults.get(name)) == now[name] for name in now)


def _independent_of_place(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in ("config", "resume", "data_dir")}


def _defaults() -> dict[str, Any]:
    """The defaults of `FarziConfig`, as a recipe has them."""
    return {
        f.name: f.default if f.default_factory is MISSING else f.default_factory()
        for f in fields(FarziConfig)
        if f.default is not MISSING or f.default_factory is not MISSING
    }


def begin_run(trainer: FarziTrainer, recipe: Mapping[str, Any], checkpoint: str | None) -> None:
    """Writes `recipe.yaml`, with the changes of this resume. If the run is new, our old checkpoints in its folder are discarded.

    Raises:
        ValueError: see `FarziTrainer.check_run`; another run writes to the folder.
    """
    args = trainer.args
    # The lock fails while another run writes there, so its files stay.
    with args.main_process_first(desc="checkpoints"), locked(args):
        if checkpoint is None and args.process_index == 0:
            discard_checkpoints(args.output_dir)
        trainer.check_run(checkpoint)
        if args.process_index == 0:
            write_recipe(Path(args.output_dir), with_history(recipe, trainer))


def locked(args: FarziConfig) -> AbstractContextManager[None]:
    """The run's folder for the first process alone. The other processes of the run write into it too."""
    return exclusive(args.output_dir) if args.process_index == 0 else nullcontext()


def with_history(recipe: Mapping[str, Any], trainer: FarziTrainer) -> dict[str, Any]:
    """The recipe of a run, with the changes that resumes have made."""
    return {**recipe, HISTORY: trainer.history} if trainer.history else dict(recipe)


def write_recipe(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Writes `recipe.yaml`. Its first line marks the folder as written by a recipe."""
    save_text(HEADER + yaml_text(recipe), folder / "recipe.yaml")


def print_start(trainer: FarziTrainer, checkpoint: str | None) -> None:
    """Prints one line: whether the run is new or goes on from a checkpoint."""
    args, start = (
        trainer.args,
        f"going on from {checkpoint}" if checkpoint else "a new run, no checkpoint to go on from",
    )
    changed = f", with other settings: {described(trainer.changed)}" if trainer.changed else ""
    print(f"{args.output_dir}: {start}{changed}; world size {args.world_size}, {args.device.type}", flush=True)
