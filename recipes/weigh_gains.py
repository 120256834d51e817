"""What each way to choose rows, or shares, gains over the best cheap one, in one run or over several.

    python recipes/weigh_gains.py FOLDER [FOLDER …]                 # each folder, then all together
    python recipes/weigh_gains.py FOLDER --most 210                 # ways that keep at most 210 rows

FOLDER is one in which `weigh.py` or `mixture.py` kept what the ways have chosen.
The best cheap way is the one with the lowest mean loss on the dev part; ways that nobody can take
(an oracle) are left out. A gain is the difference of losses of two models, in nats per token: the
k-th training of each way has the same start. Intervals are Student's, of 95 %, over pairs.
"""

from __future__ import annotations

import json
import math
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from farzi_hf.attribution.choice import interval
from farzi_hf.attribution.choosers import (
    AllRows,
    Chooser,
    CrossEntropyDifference,
    GradientCosine,
    NGramImportance,
)
from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.mixtures import mixtures_of
from farzi_hf.attribution.row_shares import shares_of_rows
from farzi_hf.cli.program import run
from farzi_hf.common.tensors import load_tensors
from farzi_hf.report import markdown

_WAYS: tuple[Chooser, ...] = (
    AllRows(),
    NGramImportance(),
    CrossEntropyDifference(),
    GradientCosine(),
    *mixtures_of(Groups(["any"]), steps=1),
    *shares_of_rows((NGramImportance(), CrossEntropyDifference(), GradientCosine())),
)
_CHEAP = (*(way.name for way in _WAYS if way.is_cheap), "random rows")
"""Ways that take no training that is differentiated."""


@dataclass(frozen=True)
class Measured:
    """A way, as a run has kept it."""

    rows: int
    """That stay."""
    dev: list[float]
    """The loss on the target's dev part after each training, in nats per token."""
    test: list[float]
    """The same on its test part."""
    seconds: float
    """Of the choice."""
    began_with: str = ""
    """The way that it began with, where its name does not say which of several that was."""


@dataclass(frozen=True)
class Gain:
    """Of a way over the best cheap one of the same run."""

    over: str
    """The cheap way."""
    dev: list[float]
    """By how many nats the loss of each training is lower on the dev part."""
    test: list[float]
    """The same on the test part."""


def main(argv: Sequence[str] | None = None) -> None:
    """A table for each folder, and one of all ways that every folder has."""
    args = parse(argv)
    gains = []
    for folder in args.folders:
        measured = read(folder, args)
        of_folder = gains_of(measured, args.over)
        gains.append(of_folder)
        rows = [{**row_of(name, x), **row_of_gain(of_folder[name])} for name, x in measured.items()]
        print(f"\n{folder}, over '{next(iter(of_folder.values())).over}':\n\n{markdown(rows)}")
    if len(gains) > 1:
        common = [name for name in gains[0] if all(name in each for each in gains)]
        rows = [
            {"way": name, **row_of_gain(together([each[name] for each in gains]))}
            for name in common
        ]
        print(f"\n{len(gains)} folders together, each over its best cheap way:\n\n{markdown(rows)}")


def read(folder: Path, args: Namespace) -> dict[str, Measured]:
    """The ways that a folder has kept, by name.

    Args:
        args: with `most` and `without`.

    Raises:
        ValueError: it has none.
    """
    found = {}
    for file in sorted(folder.glob("choice-*.safetensors")):
        tensors, facts = load_tensors(file)
        count = int((tensors["weights"] > 0).sum())
        known = Measured(rows=count, **json.loads(facts["known"]))
        name = _spaced(file.stem.removeprefix("choice-"))
        if count <= args.most and name not in map(_spaced, args.without):
            found[name] = known
    if not found:
        raise ValueError(f"{str(folder)!r} has no choice-*.safetensors; name a folder of a run")
    return found


def _spaced(name: str) -> str:
    """A name as files have it, in which blanks and commas are lost."""
    return name.replace(", ", " ").replace("-", " ")


def gains_of(measured: dict[str, Measured], over: str | None = None) -> dict[str, Gain]:
    """Of each way.

    Args:
        over: the name of the way to compare with; None takes the best cheap one.

    Raises:
        ValueError: there is no such way.
    """
    names = map(_spaced, _CHEAP if over is None else [over])
    known = [name for name in names if name in measured]
    if not known:
        raise ValueError(
            f"no way to compare with among {', '.join(measured)}; name one of them by --over"
        )
    best = min(known, key=lambda name: np.mean(measured[name].dev))
    of_best = measured[best]
    return {
        name: Gain(
            best,
            np.subtract(of_best.dev, each.dev).tolist(),
            np.subtract(of_best.test, each.test).tolist(),
        )
        for name, each in measured.items()
    }


def together(gains: Sequence[Gain]) -> Gain:
    """The pairs of several runs as one."""
    return Gain(
        "the best cheap way of each",
        [x for each in gains for x in each.dev],
        [x for each in gains for x in each.test],
    )


def row_of(name: str, measured: Measured) -> dict[str, str]:
    """What a table says of a way."""
    low, high = map(math.exp, interval(measured.test))
    return {
        "way": name,
        "rows": f"{measured.rows:,}",
        "dev": f"{math.exp(np.mean(measured.dev)):.1f}",
        "test": f"{math.exp(np.mean(measured.test)):.1f} ({low:.1f}–{high:.1f})",
        "seconds": f"{measured.seconds:.0f}",
    }


def row_of_gain(gain: Gain) -> dict[str, str]:
    """What a table says of a gain: on both parts the mean with its interval, and the verdict."""
    return {"gain on dev": said_of(gain.dev), "gain on test": said_of(gain.test)}


def said_of(gains: Sequence[float]) -> str:
    """The mean, its interval, in how many pairs it is more than 0, and whether the interval is
    beyond 0, below it or around it.
    """
    low, high = interval(gains)
    word = "level"
    if low > 0:
        word = "beyond"
    elif high < 0:
        word = "worse"
    won = sum(x > 0 for x in gains)
    return f"{np.mean(gains):+.3f} ({low:+.3f} to {high:+.3f}), {won} of {len(gains)}, {word}"


def parse(argv: Sequence[str] | None) -> Namespace:
    """The options."""
    parser = ArgumentParser("weigh_gains.py", description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument(
        "--most", type=float, default=math.inf, help="ways that keep more rows are left out"
    )
    parser.add_argument("--over", help="the way to compare with (default: the best cheap one)")
    parser.add_argument(
        "--without",
        nargs="*",
        default=["oracle", "its own source alone"],
        help="ways that are left out (default: those that nobody can take)",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
