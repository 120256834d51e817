"""The folder of a run: its last checkpoint, its recipe and its results, and checks that a run
overwrites no other files.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farzi_hf.common.files import (
    DamagedError,
    checksums,
    differences,
    find_file,
    load_record,
    names_of,
    read_plain_file,
    save_record,
    status_of,
)
from farzi_hf.common.text import (
    YAML_BYTES,
    as_written,
    numbers_of,
    read_plain,
    yaml_text,
)
from farzi_hf.data.tokenizer_file import TOKENIZER, TOKENIZER_CONFIG
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.run import changes, check_no_foreign, last_checkpoint, locked
from farzi_hf.distillation.trainer import FarziTrainer
from farzi_hf.report.tables import save_text
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.folder import (
    CONFIG,
    TENSORS,
    VOCABULARY,
    check_destination,
)

logger = logging.getLogger(__name__)

HEADER = "# Written by a recipe of farzi_hf: here it goes on, and replaces results of its own.\n"
_SUMMARY = "summary"
_BEFORE_RESULTS = ("recipe.yaml", "start.json")  # what a run has written that has not come far
# Of a summary, what a student on it depends on. The rest may be edited before it is published.
_NEEDED = (CONFIG, VOCABULARY, TOKENIZER, TOKENIZER_CONFIG)
# Folders may move, a table may be made again of more splits, and a card with rows or without them.
_ELSEWHERE = ("output_dir", "data_dir", "trajectories", "splits", "licence", "show_rows")


def check_outputs(
    folder: Path, names: Sequence[str], recipe: Mapping[str, Any] | None = None
) -> None:
    """Refuses a folder in which a recipe would overwrite files that it has not written itself. Call
    this before any long work.

    Args:
        folder: the folder; it need not exist.
        names: the files that will be written, as paths inside the folder. A recipe knows its folder
            by `recipe.yaml`, `table.json` or `cell.json`, if it is one of them.
        recipe: what `recipe.yaml` will say, if a run with other settings has to keep its folder.

    Raises:
        ValueError: one of the files exists and another recipe or a run with other settings has
            written it, or somebody else; or a file has the name of a needed folder.
    """
    # Our recipes begin with a line, and our JSON files have keys, that no others have.
    ours = False
    before = None
    if "recipe.yaml" in names:
        with suppress(OSError, ValueError):
            content = read_plain_file(folder / "recipe.yaml", YAML_BYTES)
            before = read_plain(content, "YAML")
            ours = content.startswith(HEADER.encode())
    for name in {"table.json", "cell.json"}.intersection(names):
        with suppress(OSError, ValueError):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            ours |= isinstance(content, dict) and not content.keys().isdisjoint(
                ("findings", "scores", "settings")
            )
    check_files(folder, names, ours)
    results = [
        name
        for name in (*names, "summary")
        if name not in _BEFORE_RESULTS and (folder / name).exists()
    ]
    if (
        ours
        and recipe is not None
        and results
        and (other := _difference(before, read_plain(yaml_text(recipe).encode(), "YAML")))
    ):
        raise ValueError(
            f"{str(folder)!r} has {results[0]} of a run with other settings ({other}): choose"
            " another folder"
        )


def _difference(before: Any, now: Mapping[str, Any]) -> str:
    """How two recipes differ, as text."""
    if not isinstance(before, Mapping):
        return "its recipe.yaml cannot be read"
    before, now = ({k: v for k, v in x.items() if k not in _ELSEWHERE} for x in (before, now))
    return changes(before, now) or ", ".join(sorted(before.keys() ^ now.keys()))


def check_files(folder: Path, names: Iterable[str], ours: bool) -> None:
    """Refuses a folder whose files `names` would be overwritten, unless they are `ours`. The rest
    is as in `check_outputs`.
    """
    for path in (folder / name for name in names):
        for place in (folder, path.parent):
            if place.exists() and not place.is_dir():
                raise ValueError(
                    f"{str(place)!r} is a file, where a folder has to be: choose another folder"
                )
        if not ours and os.path.lexists(path):
            raise ValueError(
                f"{str(path)!r} exists already and would be overwritten; choose another folder, or"
                " move it away"
            )


def find_checkpoint(
    args: FarziConfig, outputs: Iterable[str] = (), recipe: Mapping[str, Any] | None = None
) -> str | None:
    """The checkpoint to go on from, or None for a new run. This writes nothing. Call `begin_run`
    when the trainer exists. Raises ValueError if the run would overwrite files of others, or of a
    run with another recipe.

    Args:
        outputs: the files that the run will write into `args.output_dir`, beside `recipe.yaml` and
            `summary/`.
        recipe: see `check_outputs`.
    """
    folder = Path(args.output_dir)
    check_outputs(folder, ["recipe.yaml", *outputs], recipe)
    check_destination(folder / "summary")
    check_no_foreign(folder)
    return args.resume_from_checkpoint or last_checkpoint(folder)


def begin_run(trainer: FarziTrainer, recipe: Mapping[str, Any], checkpoint: str | None) -> None:
    """Checks the run's settings (`FarziTrainer.check_run`) and that no other run writes to the
    folder, and writes `recipe.yaml`.
    """
    args = trainer.args
    # The lock fails while another run writes there, so its files stay.
    with args.main_process_first(desc="checkpoints"), locked(args):
        trainer.check_run(checkpoint)
        if args.process_index == 0:
            write_recipe(Path(args.output_dir), recipe)


def write_recipe(folder: Path, recipe: Mapping[str, Any]) -> None:
    """Writes `recipe.yaml`, whose first line marks the folder as written by a recipe."""
    save_text(HEADER + yaml_text(recipe), folder / "recipe.yaml")


@dataclass(frozen=True)
class Left:
    """The summary and the figures that a finished run has left in its folder."""

    fingerprint: str = ""
    """Of the summary; empty where an older version has written the results."""
    files: Mapping[str, str] = field(default_factory=dict)
    """The checksum of each file, by its path in the run's folder."""

    @classmethod
    def by(cls, folder: Path, farzi: FarziData, figures: Iterable[Path]) -> Left:
        """What a run has just written."""
        names = [f"{_SUMMARY}/{name}" for name in names_of(folder / _SUMMARY)]
        names += [path.relative_to(folder).as_posix() for path in figures]
        return cls(farzi.fingerprint(), checksums(folder, names))

    def is_there(self, folder: Path) -> bool:
        """Whether the summary is still in the folder. What else has changed there is said.

        Raises:
            ValueError: there is another summary, or a damaged one.
        """
        summary = folder / _SUMMARY
        if find_file(summary, TENSORS) is None:
            return False
        found = differences(folder, self.files)
        changed = {*found.gone, *found.changed}
        if not changed:
            return True
        same = changed.isdisjoint(f"{_SUMMARY}/{name}" for name in _NEEDED)
        try:
            same = same and FarziData.from_pretrained(summary).fingerprint() == self.fingerprint
        except (OSError, ValueError):
            same = False
        said = replace(found, added=())
        if not same:
            raise ValueError(
                f"{str(summary)!r} has changed since this run wrote it ({said}): move it away,"
                " and the same command makes it again"
            )
        logger.warning("%s has changed since this run wrote it: %s.", folder, said)
        return True


def kept(
    path: Path,
    settings: Mapping[str, Any],
    make: Callable[[], Any],
    unless: Callable[[Any], bool] | None = None,
) -> Any:
    """The value of `make()`, or what an earlier start with the same settings has kept of it in the
    file `path`; see `stored`.

    The file is JSON, `{"settings": …, "value": …}`, and the value is returned as it is read from
    there. A file of other settings is removed before the work begins, which may change what lies
    beside it. A value of which `unless` is true is returned, and not kept.
    """
    if (found := stored(path, settings)) is not None:
        return found
    path.unlink(missing_ok=True)
    value = as_written(make())
    if unless is None or not unless(value):
        save_record(path, {"settings": settings, "value": value}, indent=None)
    return numbers_of(value)


def stored(path: Path, settings: Mapping[str, Any]) -> Any | None:
    """What `kept` has written into the file `path` with the same settings, or None. Raises
    ValueError if something else has written the file, or it is damaged.
    """
    if status_of(path) is None:
        return None
    without = (
        "config",
        "data_dir",
    )  # where they were makes no difference: `data` has a hash of them
    try:
        found = load_record(path)
        before = dict(numbers_of(found["settings"]).items())
    except DamagedError as error:
        raise ValueError(
            f"{str(path)!r} is damaged ({error}): move it away, and what it holds is made again"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{str(path)!r} is not a recipe's: choose another folder, or move it away ({error!r})"
        ) from None
    before, now = (
        {k: v for k, v in as_written(x).items() if k not in without} for x in (before, settings)
    )
    return numbers_of(found.get("value")) if before == now else None
