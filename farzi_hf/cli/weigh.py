"""`farzi weigh MODEL DATA --target TARGET --keep 10%`: which rows to train a model on, so that it
predicts a target well.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset

from farzi_hf.attribution.choice import Choice, Chosen, choose, losses
from farzi_hf.attribution.choosers import (
    AllRows,
    BestOf,
    CalibratedScores,
    Chooser,
    CrossEntropyDifference,
    EqualWeights,
    GradientCosine,
    InfluenceOfOne,
    NGramImportance,
    OuterSteps,
    RandomRows,
    SelectionProblem,
)
from farzi_hf.attribution.feature_shares import SharesByFeatures
from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.mixtures import mixtures_of
from farzi_hf.attribution.row_shares import BestChoice, shares_of_rows
from farzi_hf.attribution.smoothness import smooth_enough
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.attribution.weighing import number_kept
from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.own_rows import OwnRows, say
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.cli.stock_training import (
    STOCK,
    Setup,
    add_arguments,
    add_group_arguments,
    free_folder,
    show_log,
)
from farzi_hf.common.checks import check_size
from farzi_hf.common.text import terminal_text
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.report import markdown
from farzi_hf.summary import FarziData

_SHOWN_GROUPS = 20
_STEPS_OF_A_CUT = 4  # more make shares that begin with few rows worse
_FEWEST = 6  # rows of a target, two for each of its parts


def command(argv: Sequence[str]) -> None:
    """Compares all ways to choose rows, and writes what the best of them chose."""
    args, rest = _parser().parse_known_args(argv)
    keep_freed_memory()
    show_log()
    with ends_in_one_line("farzi weigh", OSError, FloatingPointError):
        for name, least in (("max_length", 2), ("outer_steps", 1), ("trainings", 2)):
            check_size(f"--{name}", getattr(args, name), least)
        output = free_folder(args.output_dir)
        tests = [] if args.target_test is None else [args.target_test]
        setup = Setup.of(args, rest, [args.data, args.target, *tests])
        groups = setup.groups(args)
        share = args.keep or ("10%" if groups is None else "100%")
        count = len(setup.rows[0])
        keep = number_kept(_share(share), count)
        parts = _parts(setup.rows[1], setup.rows[2:], args.seed)
        _tell_of_copies(*setup.rows)
        trainings = Trainings.of(setup.trainer(), args.seed)
        target = {"target": parts["target"]}
        say("How smooth this training is, by one influence and two trainings for each ε:")
        smooth, said = smooth_enough(trainings, target, not args.cold)
        for line in said:
            say(f"  {line}")
        folder = output.with_name(f".{output.name}-parts")
        found = choose(
            SelectionProblem(trainings, target, keep, smooth, folder),
            _ways(args.outer_steps, groups, cuts=keep < count),
            {"target": parts["dev"]},
            {"target": parts["test"]},
            trainings=args.trainings,
            folder=folder,
        )
    table = [_row(each) for each in found.tried]
    say(f"\n{markdown(table)}\n")
    say(
        f"Perplexity of {len(parts['test'])} rows of the target, with 95 % intervals over"
        f" {args.trainings} trainings of {trainings.replay.steps} steps; seconds of the choice."
    )
    say(f"\n{found.verdict}")
    mixture = None
    if groups is not None:
        mixture = _mixture(found, groups)
        first = list(mixture.items())[:_SHOWN_GROUPS]
        shares = ", ".join(f"{terminal_text(name, 40)} {share:.1%}" for name, share in first)
        say(f"\nThe shares of groups: {shares}")
    if setup.how.should_save:
        farzi = _summary(setup, found, mixture, trainings, args)
        farzi.save_pretrained(output)
        for part in folder.glob("*"):
            _remove(part)
        folder.rmdir()
    of_smooth = _in_the_smooth_training(found, trainings, smooth, parts, args.trainings)
    if of_smooth is not None:
        say(f"\n{of_smooth}")
    say(f"\nThe rows with their weights: load_dataset({str(output)!r}, split='train')")


def _parser() -> CommandParser:
    parser = CommandParser("farzi weigh", description=COMMANDS["weigh"], epilog=STOCK)
    add_arguments(parser, "outputs/weighed")
    parser.add_argument(
        "--target", required=True, help="rows of what the model should be good at, as DATA"
    )
    parser.add_argument(
        "--target_test",
        metavar="DATA",
        help="other rows of the target, for the table (default: a quarter of --target)",
    )
    parser.add_argument(
        "--keep",
        help="rows that stay: a number or a share (default: 10%%; all if there are groups)",
    )
    add_group_arguments(parser, "learns a share of reading for each group too, a mixture")
    parser.add_argument(
        "--outer_steps",
        type=int,
        default=8,
        help="outer steps; each costs six trainings (default: 8)",
    )
    parser.add_argument(
        "--trainings",
        type=int,
        default=3,
        help=(
            "fresh models that are trained on the choice of each way, to compare them (default: 3)"
        ),
    )
    parser.add_argument(
        "--cold",
        action="store_true",
        help="learn weights from the model's own start, not after a training on all rows; for a"
        " model that knows its language",
    )
    parser.add_argument("--revision", help="of a data set of the Hub")
    parser.add_argument("--licence", help="of the data, as the Hub names it, for the card")
    parser.add_argument("--seed", type=int, default=0, help="of orders and parts (default: 0)")
    return parser


def _share(text: str) -> float:
    """The number of rows, or the share of them, that a user has typed: 1 is one row, 1.0 and 100%
    are all.
    """
    is_share = text.endswith("%")
    try:
        number = float(text.removesuffix("%"))
    except ValueError:
        raise ValueError(f"--keep {text!r} is not a number; give 500, 0.1 or 10%") from None
    if not is_share:
        return int(text) if text.isdecimal() else number
    if number > 100:
        raise ValueError(f"--keep {text!r} is more than all rows; give at most 100%")
    return number / 100


def _parts(target: OwnRows, test: Sequence[OwnRows], seed: int) -> dict[str, Dataset]:
    """The rows of a target to choose by, those by which one way is chosen, and those of the table.

    Raises:
        ValueError: there are very few.
    """
    if len(target) < _FEWEST:
        raise ValueError(
            f"--target has {len(target)} rows; give at least {_FEWEST}, better some hundred"
        )
    order = stream(seed, Purpose.CHOSEN_ROWS, 2).permutation(len(target)).tolist()
    rows = target.dataset()
    quarter = max(2, len(target) // 4)
    held_out = [each.dataset() for each in test] or [rows.select(order[:quarter])]
    rest = order if test else order[quarter:]
    return {
        "test": held_out[0],
        "dev": rows.select(rest[:quarter]),
        "target": rows.select(rest[quarter:]),
    }


def _tell_of_copies(pool: OwnRows, *of_target: OwnRows) -> None:
    """Says how many rows of the target are rows of the pool."""
    known = set(map(tuple, pool.ids))
    copies = sum(tuple(ids) in known for rows in of_target for ids in rows.ids)
    if copies:
        say(
            f"{copies} of {sum(map(len, of_target))} rows of the target are rows of DATA too. They"
            " would be chosen first, and prove nothing: leave them out of one of the two."
        )


def _ways(outer_steps: int, groups: list[str] | None, *, cuts: bool) -> list[Chooser]:
    """All ways to choose, the cheap ones first; with groups, mixtures of these too.

    Args:
        cuts: whether rows are left out. If all stay, ways that only rank them say nothing, and
            shares of rows are compared in their place.
    """
    mixtures = [] if groups is None else mixtures_of(Groups(groups), outer_steps)
    cheap = (NGramImportance(), CrossEntropyDifference(), GradientCosine())
    if not cuts:
        shares = shares_of_rows(cheap)
        priors = (None, BestChoice(tuple(shares)))
        by_features = [SharesByFeatures(cheap, outer_steps, prior) for prior in priors]
        return [AllRows(), *mixtures, *shares, *by_features, OuterSteps(outer_steps)]
    learnt = (OuterSteps(outer_steps), OuterSteps(outer_steps, BestOf(cheap)))
    return [
        AllRows(),
        *mixtures,
        RandomRows(),
        *cheap,
        InfluenceOfOne(),
        CalibratedScores(cheap),
        *(each for way in learnt for each in (way, EqualWeights(way))),
        SharesByFeatures(cheap, min(outer_steps, _STEPS_OF_A_CUT), BestChoice(cheap)),
    ]


def _in_the_smooth_training(
    found: Choice,
    trainings: Trainings,
    smooth: Trainings,
    parts: dict[str, Dataset],
    count: int,
) -> str | None:
    """How good models are that are trained on the choice as smoothly as weights were learnt; None
    where that is the user's own training. A training of few rows that is too rough learns them by
    heart, and nobody would know.
    """
    optimizer = smooth.replay.optimizer
    if optimizer == trainings.replay.optimizer:
        return None
    of_parts = [{"target": parts[name]} for name in ("dev", "test")]
    said = (
        f"Weights were learnt with --learning_rate {optimizer.lr:g} --adam_epsilon"
        f" {optimizer.eps:g} in place of your own."
    )
    try:
        measured = losses(trainings.with_optimizer(optimizer), found.best.weights, of_parts, count)
    except FloatingPointError:
        return f"{said} Models that are trained so on the same rows diverge: keep your own."
    dev, test = (math.exp(float(np.mean(each))) for each in measured)
    own = math.exp(float(np.mean(found.best.dev)))
    advice = "use these" if dev < own else "keep your own"
    return (
        f"{said} Models that are trained so on the same rows have perplexity {dev:.4g} on the dev"
        f" part ({test:.4g} on the test part), with your own {own:.4g}: {advice}."
    )


def _mixture(found: Choice, groups: list[str]) -> dict[str, float]:
    """The shares of the groups in what was chosen, the largest first."""
    of_rows = Groups(groups)
    read = found.best.weights.double()
    sums = torch.zeros(len(of_rows.names), dtype=torch.float64).index_add(0, of_rows.members, read)
    shares = dict(zip(of_rows.names, (sums / sums.sum()).tolist(), strict=True))
    return {name: shares[name] for name in sorted(shares, key=shares.__getitem__, reverse=True)}


def _row(chosen: Chosen) -> dict[str, str]:
    """Of the table."""
    row = chosen.row()
    low, high = row["test_interval"]
    return {
        "method": row["method"],
        "rows": f"{row['rows']:,}",
        "dev": f"{row['dev']:.4g}",
        "test": f"{row['test']:.4g} ({low:.4g} to {high:.4g})",
        "seconds": f"{row['seconds']:.0f}",
    }


def _summary(
    setup: Setup,
    found: Choice,
    mixture: dict[str, float] | None,
    trainings: Trainings,
    args: Namespace,
) -> FarziData:
    """The rows that the best way chose, with what is known of them."""
    best = found.best
    rows = setup.rows[0]
    revision = "" if args.revision is None else f" at {args.revision}"
    metrics: dict[str, Any] = {
        "dataset": f"{Path(args.data).name if Path(args.data).exists() else args.data}{revision}",
        "data_sequences": len(rows),
        "licence": args.licence,
        "table": [_finite(each.row()) for each in found.tried],
        "verdict": found.verdict,
        "chosen by": best.method,
        "target": Path(args.target).name,
        "mixture": mixture,
    }
    return FarziData.from_rows(
        rows.own,
        best.weights,
        setup.names,
        vocab_size=trainings.replay.learner.vocab_size,
        sequence_length=max(2, *map(len, rows.ids)),
        metrics={name: x for name, x in metrics.items() if x is not None},
        recipe={
            "method": best.method,
            "keep": best.rows,
            "outer_steps": args.outer_steps,
            "training_steps": trainings.replay.steps,
            "optimizer": str(trainings.replay.optimizer).split(", lr_schedule=")[0] + ")",
            "seed": args.seed,
        },
    )


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """A row without an interval that nobody knows."""
    low, _ = row["test_interval"]
    return row if math.isfinite(low) else {k: x for k, x in row.items() if k != "test_interval"}


def _remove(path: Path) -> None:
    """Removes a file of ours, or a folder of them."""
    if path.is_dir():
        for part in path.glob("*.safetensors"):
            part.unlink()
        path.rmdir()
    else:
        path.unlink()
