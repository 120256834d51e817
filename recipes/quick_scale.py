"""The settings of a recipe that has a config and a card for each data set."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from farzi_hf.cli.arguments import parse_arguments

CONFIGS = Path(__file__).resolve().parent / "configs" / "tables"
CARDS = Path(__file__).resolve().parents[1] / "model_cards"


def parse_settings(
    recipe: str, argv: Sequence[str] | None, datasets: Sequence[str], default: str, kinds: Sequence[type]
) -> tuple[str, tuple[Any, ...], Path]:
    """The data set's name, the settings, and the card's folder, from `--dataset`, the recipe's config and the other arguments.

    Args:
        datasets: those that `--dataset` may name.
        kinds: dataclasses of settings; the last one has `card_dir`.
    """
    first = ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--dataset", choices=datasets, default=default)
    known, rest = first.parse_known_args(argv)
    name = f"{recipe}_{known.dataset}"
    settings = tuple(parse_arguments(tuple(kinds), CONFIGS / f"{name}_quick.yaml", rest))
    return known.dataset, settings, Path(settings[-1].card_dir or CARDS / name)
