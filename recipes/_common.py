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
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from farzi_hf.artefact.atomic_folder import replace_file
from farzi_hf.artefact.checkpoints import HISTORY, with_new_names
from farzi_hf.artefact.disk import DiskFullError, names_the_disk
from farzi_hf.data import DataUnavailableError

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
    values = with_new_names(values)
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


# -- environment -----------------------------------------------------------------------------------------------------


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
