"""What every recipe needs around a distillation: its settings, its last checkpoint, its table of results."""

from __future__ import annotations

import csv
import ctypes
import difflib
import io
import json
import os
import platform
import signal
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import transformers
import yaml
from datasets import disable_progress_bars
from transformers import HfArgumentParser, TrainingArguments

import farzi_hf
from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.atomic_folder import check_destination, replace_file
from farzi_hf.card import yaml_text
from farzi_hf.checkpoints import (
    HISTORY,
    changes,
    check_kept,
    check_no_foreign,
    described,
    discard_checkpoints,
    last_checkpoint,
    read_record,
)
from farzi_hf.data import DataUnavailableError
from farzi_hf.disk import DiskFullError, names_the_disk

ROOT = Path(__file__).resolve().parent
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of <malloc.h>


def keep_freed_memory() -> None:
    """Tells glibc's malloc to keep what is freed instead of handing it back to the system.

    An inner loop allocates and frees the same large tensors at every step; by default each of them is a new mapping, whose
    pages the system has to clear and map again: a tenth of the time of a PTB run on one core. Other C libraries are left alone.
    """
    _malloc_options(1 << 30, -1)  # the heap never shrinks


def return_freed_memory() -> None:
    """The opposite: every large tensor is a mapping of its own, which goes back when it is freed.

    Slower, but the memory in use is then that of the tensors there are, without the holes of a heap.
    """
    _malloc_options(1 << 20, 1 << 20)


def _malloc_options(mmap_threshold: int, trim_threshold: int) -> None:
    """Bytes from which an allocation becomes a mapping of its own, and bytes free at the heap's end from which it shrinks."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, mmap_threshold)
        libc.mallopt(M_TRIM_THRESHOLD, trim_threshold)


# -- settings --------------------------------------------------------------------------------------------------------


def parse_arguments(types: Sequence[type], default_config: Path, argv: Sequence[str] | None = None) -> tuple[Any, ...]:
    """One instance per dataclass: its defaults, overridden by the YAML file that `--config` names, then by the command line.

    The file's values become the parser's defaults, so that text such as 1e-2, which YAML does not take for a number, is
    converted like a command-line argument. Outputs go to outputs/NAME for a file NAME.yaml unless told otherwise.

    Raises:
        ValueError: the file cannot be read, or has keys that no dataclass has.
    """
    first = ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--config", type=Path, default=default_config)
    config = first.parse_known_args(argv)[0].config
    parser = HfArgumentParser(types, usage="%(prog)s [--config FILE.yaml] [--FIELD VALUE …]", allow_abbrev=False)
    known = {field.name for kind in types for field in fields(kind) if field.init}
    values = read_yaml(config, known | {HISTORY})
    if values.pop(HISTORY, None) and os.environ.get("RANK", "0") == "0":
        print(
            f"{config}: some settings were changed on the way; a new run has the last ones from its first step on.",
            file=sys.stderr,
        )
    parser.set_defaults(**{"config": str(config), "output_dir": f"outputs/{config.stem}", **values})
    parsed = parser.parse_args_into_dataclasses(argv, look_for_args_file=False)
    if any(getattr(part, "disable_tqdm", False) for part in parsed):
        disable_progress_bars()  # those of `datasets` too
    return parsed


def read_yaml(path: Path, known: set[str]) -> dict[str, Any]:
    """The mapping in a YAML file, whose keys must be `known`."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"config={str(path)!r} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ValueError(f"config={str(path)!r} holds a {type(values).__name__}: write lines of `field: value`")
    for key in values:
        if key not in known:
            close = difflib.get_close_matches(str(key), known, n=1)
            remedy = f"did you mean {close[0]}?" if close else "see --help for the fields there are"
            raise ValueError(f"config={str(path)!r} has an unknown key {key!r}: {remedy}")
    return values


@contextmanager
def ends_in_one_line(script: str, *more: type[Exception]) -> Iterator[None]:
    """Within it, what a user can get wrong ends the program with one line: ValueError, missing data, and `more`.

    Of several processes the first one says it.
    """
    try:
        yield
    except (ValueError, DataUnavailableError, *more) as error:
        sys.exit(f"{script}: {error}" if os.environ.get("RANK", "0") == "0" else 1)


def run(main: Callable[[], None]) -> None:
    """`main()` as a program: a full disk, and Ctrl-C where there is nothing to save, end it with one line."""
    script = Path(sys.argv[0]).name
    try:
        main()
    except DiskFullError as error:
        sys.exit(f"{script}: {error}")
    except KeyboardInterrupt:
        print(f"{script}: interrupted; started again, it goes on from what is saved", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


# -- run -------------------------------------------------------------------------------------------------------------


HEADER = "# Written by a recipe of farzi_hf: here it goes on, and replaces results of its own.\n"
_SIGNATURES = {"table.json": "findings", "cell.json": "asked"}  # a key of each
PLOTS = ("distillation", "comparison", "tokens", "entropy", "popularity")


def check_outputs(folder: Path, names: Iterable[str]) -> None:
    """Refuses a folder in which a recipe would overwrite what no recipe has written: worth calling before any work.

    Args:
        folder: need not be there.
        names: files that will be written, as paths below it.

    Raises:
        ValueError: one of them is there and the folder has no file that a recipe left, or a file is where a folder has to be.
    """
    ours = written_by_a_recipe(folder)
    for path in (folder / name for name in names):
        for place in (folder, path.parent):
            if place.exists() and not place.is_dir():
                raise ValueError(f"{str(place)!r} is a file, where a folder has to be: choose another folder")
        if not ours and os.path.lexists(path):
            raise ValueError(
                f"{str(path)!r} is there, which no recipe has written, and would be overwritten: choose another folder, or move it away"
            )


def written_by_a_recipe(folder: Path) -> bool:
    """Whether a file in the folder says so."""
    with suppress(OSError, UnicodeDecodeError):
        if (folder / "recipe.yaml").read_text(encoding="utf-8").startswith(HEADER):
            return True
    for name, key in _SIGNATURES.items():
        with suppress(OSError, ValueError):
            content = json.loads((folder / name).read_text(encoding="utf-8"))
            if isinstance(content, dict) and key in content:
                return True
    return False


def find_checkpoint(
    args: FarziConfig, recipe: Mapping[str, Any], resume: bool, outputs: Iterable[str] = (), exactly: bool = False
) -> str | None:
    """The checkpoint to go on from, None for a new run. Writes nothing; `begin_run` follows, once the trainer is there.

    Args:
        recipe: all settings, those of `args` among them.
        resume: whether to go on from the last checkpoint in `args.output_dir`.
        outputs: files that the run will write there, beside `recipe.yaml` and `summary/`.
        exactly: whether no setting at all may have changed since the checkpoint.

    Raises:
        ValueError: the run would overwrite what no recipe has written, or go on with settings that cannot be changed.
    """
    folder = Path(args.output_dir)
    check_outputs(folder, ["recipe.yaml", *outputs])
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
    before = yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else {}
    names = [name for name in {**before, **recipe} if name != HISTORY] if before else []
    changed = changes({name: before.get(name) for name in names}, {name: recipe.get(name) for name in names})
    may_change = set() if exactly else args.to_recipe().keys()
    check_kept(changed, checkpoint, [name for name in names if name not in may_change])


def begin_run(trainer: FarziTrainer, recipe: Mapping[str, Any], checkpoint: str | None) -> None:
    """Discards checkpoints of ours where the run is a new one, and writes its `recipe.yaml`, with what this resume changes.

    Raises:
        ValueError: see `FarziTrainer.check_run`.
    """
    args = trainer.args
    with args.main_process_first(desc="checkpoints"):
        if checkpoint is None and args.process_index == 0:
            discard_checkpoints(args.output_dir)
        trainer.check_run(checkpoint)
        if args.process_index == 0:
            write_recipe(Path(args.output_dir), with_history(recipe, trainer))


def with_history(recipe: Mapping[str, Any], trainer: FarziTrainer) -> dict[str, Any]:
    """The recipe of a run, with what was changed on the way."""
    return {**recipe, HISTORY: trainer.history} if trainer.history else dict(recipe)


def write_recipe(folder: Path, recipe: Mapping[str, Any]) -> None:
    """`recipe.yaml`, by which a recipe knows the folder again."""
    text = HEADER + yaml_text(recipe)
    replace_file(folder / "recipe.yaml", lambda path: path.write_text(text, encoding="utf-8"))


def print_start(trainer: FarziTrainer, checkpoint: str | None) -> None:
    """Where a run begins, in one line."""
    args, start = (
        trainer.args,
        f"going on from {checkpoint}" if checkpoint else "a new run, no checkpoint to go on from",
    )
    changed = f", with other settings: {described(trainer.changed)}" if trainer.changed else ""
    print(f"{args.output_dir}: {start}{changed}; world size {args.world_size}, {args.device.type}", flush=True)


def environment(args: TrainingArguments) -> dict[str, Any]:
    """What a result depends on beside its recipe and seeds."""
    facts = {
        "world_size": args.world_size,
        "device": args.device.type,
        "farzi_hf": farzi_hf.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.CalledProcessError):  # no git, or a copy without its history
        facts["commit"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return facts


# -- table -----------------------------------------------------------------------------------------------------------


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table whose columns also line up on a terminal; every row has the keys of the first."""
    lines = [list(rows[0]), *(list(row.values()) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first, *others = widths
    rule = "|-" + "-" * first + "-|" + "".join("-" * width + "-:|" for width in others)

    def line(cells: Sequence[str]) -> str:
        right = [cell.rjust(width) for cell, width in zip(cells[1:], others, strict=True)]
        return "| " + " | ".join([cells[0].ljust(first), *right]) + " |"

    return "\n".join([line(lines[0]), rule, *map(line, lines[1:])])


def save_csv(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Rows as they are; a column that a row lacks stays empty, an interval is written as JSON."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows({k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows)
    save_text(text.getvalue(), path)


def save_text(text: str, path: Path) -> None:
    """Replaces the file: a program that is killed, or a full disk, leaves the old one."""
    with names_the_disk(path.parent):
        replace_file(path, lambda new: new.write_bytes(text.encode()))
