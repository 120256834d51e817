"""`farzi attribute MODEL DATA --test TEST`: which rows of a text, or users' histories, made a model
good, or bad, at others; and which groups of them.
"""

from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from datasets import Dataset
from transformers import Trainer

from farzi_hf.attribution import Attribution, attribute
from farzi_hf.attribution.attribution import ScoredRow
from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.own_rows import histories, say, texts
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
from farzi_hf.engine import ADJOINTS
from farzi_hf.report import markdown

__all__ = ["command", "histories", "texts"]
_SMALL_EPSILON = 1e-4  # of Adam, below which scores hold for small changes alone


def command(argv: Sequence[str]) -> None:
    """Scores all rows, saves the scores, and prints the rows that helped and harmed the most."""
    args, rest = _parser().parse_known_args(argv)
    keep_freed_memory()
    show_log()
    with ends_in_one_line("farzi attribute", OSError, FloatingPointError):
        for name, least in (("max_length", 2), ("queries", 1), ("top", 1), ("trainings", 1)):
            check_size(f"--{name}", getattr(args, name), least)
        if args.trainings > 1 and (args.check or args.per_token):
            raise ValueError(
                f"--trainings {args.trainings} cannot be combined with --check or --per_token,"
                " which need one training"
            )
        output = free_folder(args.output_dir)
        setup = Setup.of(args, rest, [args.data, *args.test])
        groups = setup.groups(args)
        found, trainer, parts = _attributed(setup, args, groups, output)
    if trainer.is_world_process_zero():
        found.save(output)
        _remove(parts)
    _print_rows(found, args)
    if groups is not None:
        _print_groups(found)
    _print_end(found, trainer, args)


def _parser() -> CommandParser:
    parser = CommandParser("farzi attribute", description=COMMANDS["attribute"], epilog=STOCK)
    add_arguments(parser, "outputs/attribution")
    parser.add_argument(
        "--test",
        required=True,
        action="append",
        help="the queries, in the form of the data; if given several times, each data set is one"
        " query, the mean loss over its rows",
    )
    parser.add_argument(
        "--mean", action="store_true", help="treat a single --test as one query too, its mean loss"
    )
    parser.add_argument(
        "--queries",
        type=int,
        default=16,
        help="rows taken from each test (default: 16)",
    )
    add_group_arguments(parser, "also score groups of rows")
    parser.add_argument(
        "--trainings",
        type=int,
        default=1,
        help="average over this many orders of the rows; groups then have intervals over them"
        " (default: 1)",
    )
    parser.add_argument(
        "--per_token",
        action="store_true",
        help="also score each token of a row; the first ones are printed",
    )
    parser.add_argument(
        "--damping",
        type=float,
        default=0.0,
        help="1: less exact, but a better guide to leaving out many rows (default: 0)",
    )
    parser.add_argument(
        "--adjoint", choices=ADJOINTS, help="by default a fast one that needs little memory"
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="afterwards train with the Trainer too, and compare the weights",
    )
    parser.add_argument(
        "--top", type=int, default=10, help="rows of each kind to print (default: 10)"
    )
    return parser


def _tests(setup: Setup, args: Namespace) -> Dataset | Mapping[str, Dataset]:
    """The rows of one test, each of which is a query, or several tests by their names."""
    tests = [rows[: args.queries].dataset() for rows in setup.rows[1:]]
    if len(tests) == 1 and not args.mean:
        return tests[0]
    return dict(zip(_different([Path(name).name for name in args.test]), tests, strict=True))


def _different(names: Sequence[str]) -> list[str]:
    """Names, with a number where one is there again."""
    return [name if name not in names[:i] else f"{name} ({i})" for i, name in enumerate(names)]


def _attributed(
    setup: Setup, args: Namespace, groups: list[str] | None, output: Path
) -> tuple[Attribution, Trainer, list[Path]]:
    """The attribution to one training, or to several in the mean; the Trainer of the last one, and
    the folders of the parts.
    """
    tests = _tests(setup, args)
    first_seed = setup.how.data_seed or setup.how.seed
    found = []
    parts = []
    for number in range(args.trainings):
        several = {"data_seed": first_seed + number} if args.trainings > 1 else {}
        trainer = setup.trainer(**several)
        parts.append(output.with_name(f".{output.name}-parts{number or ''}"))
        found.append(
            attribute(
                trainer,
                tests,
                args.adjoint and ADJOINTS[args.adjoint](),
                parts[-1],
                args.per_token,
                args.damping,
                groups,
            )
        )
    whole = found[0] if len(found) == 1 else Attribution.pooled(found)
    return whole, trainer, parts


def _remove(parts: Sequence[Path]) -> None:
    for folder in parts:
        for part in folder.glob("queries-*.safetensors"):
            part.unlink()
        folder.rmdir()


def _print_rows(found: Attribution, args: Namespace) -> None:
    """The rows that lowered the loss the most, and those that raised it."""
    columns = "number of the row from 0, without blank rows; score in nats per token; text"
    count = len(found.queries)
    for title, sign, shown in (
        ("lowered", 1, found.top(args.top)),
        ("raised", -1, found.bottom(args.top)),
    ):
        say(f"\nThe rows that {title} the mean loss of {count} queries the most ({columns}):")
        for row in shown:
            say(_line(row, sign))


def _line(row: ScoredRow, sign: int) -> str:
    """A row, and its first tokens of that sign."""
    first = sorted(row.tokens, key=lambda token: -sign * token.score)[:4]
    marked = "".join(f"  [{token.text.strip()} {token.score:+.1e}]" for token in first)
    text = terminal_text(row.text, most=100)
    return f"{row.row:>7} {row.score:>+11.3e}  {text}{terminal_text(marked)}"


def _print_groups(found: Attribution) -> None:
    """The mean score of a row of each group."""
    say(
        "\nThe mean score of a row of each group, in standard deviations of a row's score, with 95 %"
        " intervals:\n"
    )
    say(markdown(found.table_of_groups()))


def _print_end(found: Attribution, trainer: Trainer, args: Namespace) -> None:
    """How far the scores hold, where they are, and the check that was asked for."""
    how = trainer.args
    if not args.damping and "adam" in how.optim and how.adam_epsilon < _SMALL_EPSILON:
        say(
            f"\nWith --adam_epsilon {how.adam_epsilon:g} these scores predict small changes only. To"
            " learn what happens if many rows are left out, train with --adam_epsilon 1e-2; if the"
            " training is given, take --damping 1"
        )
    say(f"\nAll scores are in {terminal_text(args.output_dir)}")
    say(f"In Python: farzi_hf.attribution.Attribution.load({args.output_dir!r})")
    if args.check:
        trainer.train()
        say(
            "The stock Trainer's weights differ from the replay's by"
            f" {found.check(trainer.model):.1e} of their size"
        )
