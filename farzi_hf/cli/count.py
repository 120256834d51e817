"""`farzi count DATA`: the strongest model that only counts, in seconds; and what it is good for.

`farzi count DATA --output_dir OUT` reads data as `farzi distil` does, with the same split and the
same tokenizer, prints what each model has, and saves the best one on the validation part. `farzi
count OUT` uses it: `--score FILE`, `--generate N` or `--recommend FILE`.
"""

import sys
from argparse import Namespace
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import datasets

from farzi_hf.cli import COMMANDS
from farzi_hf.cli.arguments import CommandParser
from farzi_hf.cli.program import ends_in_one_line
from farzi_hf.common.checks import check_size, did_you_mean
from farzi_hf.common.files import is_taken
from farzi_hf.common.text import count_of, terminal_text
from farzi_hf.data import Interactions, load_interactions
from farzi_hf.data.seeds import check_seed
from farzi_hf.report.counted import CountedItems, CountedText, Counts, count
from farzi_hf.report.suggestion import to_stderr
from farzi_hf.report.task_data import RunSettings

_OF_DATA = (
    "data_dir",
    "task",
    "name",
    "split",
    "revision",
    "text_column",
    "tokenizer",
    "rows",
    "vocab_size",
    "max_length",
    "user_column",
    "item_column",
    "time_column",
    "min_interactions",
    "min_item_interactions",
    "held_out",
)
"""The settings of `RunSettings` that say how data are read."""
_INTEGERS = ("vocab_size", "max_length", "min_interactions", "min_item_interactions")
_USES = ("score", "generate", "recommend")
_LAST = 3  # items of a history that are shown beside what is recommended


def command(argv: Sequence[str]) -> None:
    """Counts data, or uses what was counted."""
    args = _parser().parse_args(argv)
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with ends_in_one_line(
        "farzi count", FileNotFoundError, FileExistsError, NotADirectoryError, PermissionError
    ):
        uses = [name for name in _USES if getattr(args, name) is not None]
        if uses and Path(args.data).is_file():
            raise ValueError(
                f"{args.data!r} is a file of data: count it first, with farzi count DATA"
                f" --output_dir OUT; then farzi count OUT --{uses[0]} …"
            )
        if len(uses) > 1:
            raise ValueError(f"--{' and --'.join(uses)} are both given: give one of them")
        if not uses:
            _count(args)
            return
        if args.output_dir is not None:
            raise ValueError(
                f"--output_dir {args.output_dir!r} is for counting: give the folder that it wrote"
                f" as the first word, and --{uses[0]}"
            )
        check_seed(args.seed, "--seed")
        check_size("--top_k", args.top_k)
        check_size("--tokens", args.tokens, 2)
        with redirect_stdout(sys.stderr):
            counted = Counts.from_pretrained(args.data, args.revision)
        {"score": _score, "generate": _generate, "recommend": _recommend}[uses[0]](counted, args)


def _parser() -> CommandParser:
    parser = CommandParser(
        "farzi count",
        description=COMMANDS["count"],
        epilog="A model that was counted is used by farzi count OUT with --score, --generate or"
        " --recommend.",
    )
    parser.add_argument(
        "data",
        help="what to count: a file, a folder, a data set of the Hub, or one of the library;"
        " or a folder that was counted",
    )
    parser.add_argument(
        "--output_dir", help="a new folder for the model; by default it is not kept"
    )
    parser.add_argument(
        "--order", type=int, help="text: length of the n-grams; by default the best of 1 to 5"
    )
    parser.add_argument(
        "--score", metavar="FILE", help="measure the model on other rows of text, or other users"
    )
    parser.add_argument("--generate", type=int, metavar="N", help="generate N texts")
    parser.add_argument("--prompt", default="", help="beginning of each of these texts")
    parser.add_argument(
        "--tokens", type=int, default=128, help="most tokens of such a text (default: 128)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of these texts (default: 0)")
    parser.add_argument(
        "--recommend", metavar="FILE", help="recommend items to each user of these interactions"
    )
    parser.add_argument(
        "--user",
        action="append",
        default=[],
        metavar="NAME",
        help="only to this user; may be given several times",
    )
    parser.add_argument("--top_k", type=int, default=10, help="number of these items (default: 10)")
    known = {field.name: field for field in fields(RunSettings)}
    for name in _OF_DATA:
        kind = int if name in _INTEGERS else str
        parser.add_argument(f"--{name}", type=kind, help=known[name].metadata["help"])
    parser.add_argument(
        "--split_seed", type=int, default=0, help="seed of the split of the users (default: 0)"
    )
    return parser


def _count(args: Namespace) -> None:
    """Counts, prints a table, and saves the best model."""
    output = None if args.output_dir is None else Path(args.output_dir)
    if output is not None and is_taken(output):
        raise ValueError(
            f"--output_dir {args.output_dir!r} exists already and is not empty: choose another"
            " folder"
        )
    given = {name: getattr(args, name) for name in _OF_DATA}
    settings = RunSettings(
        dataset=args.data,
        **{name: value for name, value in given.items() if value is not None},
    )
    if args.split_seed:
        if not settings.task_class.splits_differ:
            raise ValueError(
                f"--split_seed {args.split_seed} is for interactions, but {args.data!r} holds"
                f" {settings.task}; leave it out"
            )
        settings = replace(settings, splits=[args.split_seed])
    choice: dict[str, Any] = {}
    if args.order is not None:
        if settings.task_class is not CountedText.tasks:
            raise ValueError(
                f"--order {args.order} is for text, but {args.data!r} holds items; leave it out"
            )
        choice["orders"] = [check_size("--order", args.order)]
    with redirect_stdout(sys.stderr):
        data = settings.load()
        if args.split_seed and not data.task.splits_differ:
            raise ValueError(
                f"--split_seed {args.split_seed}, but what is held out of {args.data!r}"
                f" ({data.task.split_label}) is the same for all seeds; leave it out, or give"
                " --held_out users"
            )
        seed = data.seeds(args.split_seed)[0]
        splits = data.splits(seed)
        to_stderr(data.description)
        counted = count(splits, data.task, show=to_stderr, **choice)
    counted.metrics |= {"dataset": settings.dataset, "split": data.task.split_label}
    print(counted.table())
    print(
        f"\nBest on the validation part: {counted.model.name} ({counted.model.choice})."
        f" The data need {counted.metrics['data_bytes']:,} bytes."
    )
    if output is None:
        print("Nothing was saved: --output_dir OUT keeps the model.")
        return
    counted.save_pretrained(output)
    print(f"Saved. Use it: farzi count {output} with {counted.uses}")


def _score(counted: Counts, args: Namespace) -> None:
    columns = {name: getattr(args, name) for name in counted.columns}
    with redirect_stdout(sys.stderr):
        rows = counted.sequences_of(args.score, **columns)
        rows = rows.filter(lambda row: len(row["input_ids"]) > 1)
        if not len(rows):
            raise ValueError(
                f"--score {args.score!r} has no row with something to predict; give rows of two"
                " tokens, or of two items that were counted"
            )
        metrics = counted.metrics_on(rows)
    print(f"{counted.model.name}: {counted.task.headline(metrics)}, on {len(rows):,} rows")
    print("\n".join(f"{name}: {value:.4g}" for name, value in metrics.items()))


def _generate(counted: Counts, args: Namespace) -> None:
    if not isinstance(counted, CountedText):
        raise ValueError(
            f"--generate is for text, but {args.data!r} counts items; give --recommend FILE"
        )
    texts = counted.generate(
        check_size("--generate", args.generate),
        prompt=args.prompt,
        max_length=args.tokens,
        seed=args.seed,
    )
    for text in texts:
        print(terminal_text(text, most=10_000))


def _recommend(counted: Counts, args: Namespace) -> None:
    if not isinstance(counted, CountedItems):
        raise ValueError(
            f"--recommend is for items, but {args.data!r} counts text; give --generate N"
        )
    columns = {name: getattr(args, name) for name in counted.columns}
    with redirect_stdout(sys.stderr):
        found = load_interactions(args.recommend, min_interactions=1, **columns)
        if args.user:
            found = _of_users(found, args.user)
        histories = counted.histories_of(found)
    if lost := sum(map(len, found.sequences)) - sum(map(len, histories)):
        rows = count_of(lost, "interaction")
        to_stderr(f"{rows} with items that were not counted, left out")
    names = counted.names

    def shown(items: Sequence[int]) -> str:
        return " | ".join(terminal_text(names[item], 40) for item in items)

    recommended = counted.model.recommend(histories, args.top_k)
    for user, history, items in zip(found.user_ids, histories, recommended, strict=True):
        answer = shown(items) if items else "no item is left: this user has had all"
        print(f"{terminal_text(user, 40)}: {shown(history[-_LAST:])} -> {answer}")


def _of_users(found: Interactions, users: Sequence[str]) -> Interactions:
    """The histories of these users, in the order of the file.

    Raises:
        ValueError: one of them has none.
    """
    names = [str(name) for name in found.user_ids]
    for user in users:
        if user not in names:
            raise ValueError(
                f"--user {user!r} has no interactions in the file"
                f"{did_you_mean(user, names)}; name one of its {len(names):,} users"
            )
    wanted = set(users)
    kept = [place for place, name in enumerate(names) if name in wanted]
    return replace(
        found,
        sequences=[found.sequences[place] for place in kept],
        user_ids=[found.user_ids[place] for place in kept],
        own_ends=None,
    )
