"""Settings from a YAML file and the command line."""

from __future__ import annotations

import difflib
import os
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import yaml
from datasets import disable_progress_bars
from transformers import HfArgumentParser

from farzi_hf.artefact.checkpoints import HISTORY, with_new_names


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
