"""What each source of a pool of instructions does to each of several targets, and mixtures of the
sources that outer steps learn for a target.

    python recipes/mixture.py --data_dir FOLDER                     # the matrix, and mixtures
    python recipes/mixture.py --data_dir FOLDER --outer_steps 0     # the matrix alone
    python recipes/mixture.py --data_dir FOLDER --together gsm8k cosmos sciq --warm    # their mean
    python recipes/mixture.py … --trainings 8 --kept OUTPUT/mixtures-cosmos   # known shares again

FOLDER has `instructions`: a pool and five targets, each with a dev and a test part, as gzipped JSON
lines with `prompt`, `completion` and `source`. Templates of one data set are one source. Loss is on
completions alone. One training and one backward pass give the matrix. Learnt mixtures are compared
with equal shares, all rows (shares by size), the target's own source alone, and shares by the
scores of n-grams and of one training, by fresh trainings of equal length on the target's test part.
What each way has chosen is kept in `output_dir`, so a run that was stopped goes on.
"""

from __future__ import annotations

import gzip
import json
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from weigh import AsBefore, small_gpt2

from farzi_hf.attribution import attribute
from farzi_hf.attribution.choice import Chosen, choice_file, choose
from farzi_hf.attribution.choosers import AllRows, Chooser, SelectionProblem
from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.mixtures import Mixture, mixtures_of
from farzi_hf.attribution.smoothness import smoothness
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.cli.own_rows import OwnRows, text_rows
from farzi_hf.cli.program import keep_freed_memory, run
from farzi_hf.common.tensors import load_tensors
from farzi_hf.data.seeds import seeded
from farzi_hf.data.text import bpe_tokenizer
from farzi_hf.report import markdown, save_json

SOURCES = (
    "adversarial_qa",
    "ag_news",
    "amazon_polarity",
    "app_reviews",
    "codegen",
    "common_gen",
    "commonsense_qa",
    "cosmos",
    "dbpedia",
    "dream",
    "gigaword",
    "glue_mrpc",
    "glue_qqp",
    "gsm8k",
    "imdb",
    "kilt_tasks",
    "paws",
    "qasc",
    "quarel",
    "quartz",
    "ropes",
    "rotten_tomatoes",
    "samsum",
    "sciq",
    "social_i_qa",
    "trec",
    "wiki_bio",
    "wiki_qa",
    "wiqa",
    "xsum",
    "yelp",
)
"""What the names of sources begin with: the data set that a template is of."""

TARGETS = ("gsm8k", "codegen", "cosmos", "gigaword", "sciq")

_SHOWN = 6
"""How many of the largest shares are printed."""


def source_of(row: Mapping[str, str]) -> str:
    """The data set that a row is of, whatever template wrote it."""
    return next(name for name in SOURCES if row["source"].startswith(name))


def main(argv: Sequence[str] | None = None) -> None:
    """The matrix, then the mixtures of each target."""
    args = parse(argv)
    keep_freed_memory()
    folder = Path(args.output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.perf_counter()
    pool, parts, tokenizer = read(args)
    sources = [source_of(row) for row in pool.own]
    with seeded(args.seed):
        trainer = small_gpt2(
            pool.dataset(),
            tokenizer,
            1,
            args,
            folder,
            learning_rate=args.learning_rate,
            adam_epsilon=args.epsilon,
            disable_tqdm=True,
        )
    targets = {name: parts[name, "dev"].dataset() for name in args.targets}
    if not (folder / "matrix" / "README.md").exists():
        found = attribute(trainer, targets, groups=sources)
        found.save(folder / "matrix")
        print(f"{time.perf_counter() - begin:.0f} s: the matrix", flush=True)
        print(markdown(found.table_of_groups()), flush=True)
    trainings = Trainings.of(trainer, args.seed)
    goals = [args.together] if args.together else [[name] for name in args.targets]
    for names in goals if args.outer_steps else ():
        rows = mixtures(trainings, names, parts, sources, args, folder)
        said = "+".join(names)
        print(
            f"\n{time.perf_counter() - begin:.0f} s: target {said}\n\n{markdown(rows)}", flush=True
        )
        save_json(rows, folder / f"{said}.json")


def read(args: Namespace) -> tuple[OwnRows, dict[tuple[str, str], OwnRows], object]:
    """The pool, the parts of the targets, and the tokenizer."""
    data = Path(args.data_dir, "instructions")
    with gzip.open(data / "pool.jsonl.gz", "rt", encoding="utf-8") as file:
        texts = [json.loads(line) for line in file]
    tokenizer = bpe_tokenizer(
        [f"{row['prompt']} {row['completion']}" for row in texts[:: len(texts) // 4000 + 1]],
        args.vocab_size,
    )
    whole = text_rows(str(data / "pool.jsonl.gz"), None, tokenizer, args.max_length)
    order = np.random.default_rng(args.seed).permutation(len(whole))[: args.rows]
    pool = OwnRows(*([column[i] for i in order] for column in (whole.ids, whole.labels, whole.own)))
    parts = {
        (name, part): text_rows(
            str(data / f"{name}_{part}.jsonl.gz"), None, tokenizer, args.max_length
        )
        for name in dict.fromkeys([*args.targets, *(args.together or ())])
        for part in ("dev", "test")
    }
    return pool, parts, tokenizer


class OwnSources(Mixture):
    """Equal shares of the sources that the targets are of, which no other way may know."""

    name = "its own source alone"
    is_cheap = True

    def __init__(self, groups: Groups, names: Sequence[str]) -> None:
        self.groups = groups
        self.names = names

    @property
    def are_own(self) -> Tensor:
        """(G,): whether a source is one of them."""
        return torch.tensor([name in self.names for name in self.groups.names])

    def numbers(self, problem: SelectionProblem) -> Tensor:
        return torch.where(self.are_own, 0.0, -torch.inf)


def as_kept(ways: Sequence[Chooser], folder: Path) -> list[AsBefore]:
    """The ways of which another run has kept a choice in a folder, with that choice.

    Raises:
        ValueError: it has kept none of them.
    """
    found = []
    for way in ways:
        file = choice_file(folder, way.name)
        if file.exists():
            tensors, _ = load_tensors(file)
            chosen = Chosen(way.name, way.is_cheap, tensors["weights"], [], [], 0.0)
            found.append(AsBefore(chosen))
    if not found:
        raise ValueError(
            f"--kept: {str(folder)!r} has no choice of these ways; give a folder mixtures-TARGET of"
            " another run with as many --outer_steps"
        )
    return found


def mixtures(
    trainings: Trainings,
    names: Sequence[str],
    parts: Mapping[tuple[str, str], OwnRows],
    sources: Sequence[str],
    args: Namespace,
    folder: Path,
) -> list[dict[str, str]]:
    """The table of one target, or of the mean of several."""
    groups = Groups(sources)
    said = "+".join(names)
    target = {name: parts[name, "dev"].dataset() for name in names}
    test = {name: parts[name, "test"][: args.test_rows].dataset() for name in names}
    learning = trainings.warmed() if args.warm else trainings
    if not args.kept:
        print(f"{said}: {smoothness(learning, target)}", flush=True)
    folder = folder / f"mixtures-{said}{'-warm' if args.warm else ''}"
    problem = SelectionProblem(trainings, target, len(sources), learning, folder)
    own = OwnSources(groups, names)
    ways = [AllRows(), *mixtures_of(groups, args.outer_steps), own]
    ways = [each for each in ways if not args.only or each.name in args.only]
    if args.kept:
        ways = as_kept(ways, args.kept)
    is_own = own.are_own[groups.members]
    rows = []

    def tell(chosen: Chosen) -> None:
        row = chosen.row()
        shares = chosen.weights / chosen.weights.sum()
        rows.append(
            {
                "shares": row["method"],
                "dev": f"{row['dev']:.1f}",
                "test perplexity": "{:.1f} ({:.1f}–{:.1f})".format(
                    row["test"], *row["test_interval"]
                ),
                "share of its own source": f"{float(shares[is_own].sum()):.2f}",
                "seconds": f"{row['seconds']:.0f}",
            }
        )
        of_groups = groups.means(shares[None])[0] * groups.sizes
        first = of_groups.argsort(descending=True)[:_SHOWN]
        largest = ", ".join(f"{groups.names[i]} {of_groups[i]:.2f}" for i in first)
        print(f"{' '.join(rows[-1].values())}: {largest}", flush=True)

    # The rows that shares are learnt from choose the prior, too; the test part chooses nothing.
    found = choose(problem, ways, target, test, trainings=args.trainings, folder=folder, tell=tell)
    print(found.verdict, flush=True)
    return rows


def parse(argv: Sequence[str] | None) -> Namespace:
    """The options."""
    parser = ArgumentParser("mixture.py", description=__doc__.splitlines()[0])
    parser.add_argument("--data_dir", required=True, help="the folder with the data sets")
    parser.add_argument("--output_dir", default="outputs/mixture")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument(
        "--together", nargs="+", choices=TARGETS, help="the target is the mean of these"
    )
    parser.add_argument(
        "--warm", action="store_true", help="shares are learnt in models trained on all rows before"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=4000, help="of the pool")
    parser.add_argument("--test_rows", type=int, default=200)
    parser.add_argument("--vocab_size", type=int, default=2000)
    parser.add_argument("--max_length", type=int, default=128)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch_size", type=int, default=12)
    parser.add_argument("--learning_rate", type=float, default=5e-3)
    parser.add_argument("--epsilon", type=float, default=1e-2)
    parser.add_argument("--outer_steps", type=int, default=4)
    parser.add_argument("--trainings", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=[], help="names of ways; all by default")
    parser.add_argument(
        "--kept",
        type=Path,
        metavar="FOLDER",
        help="learn nothing: measure the shares that another run of the same rows has kept there",
    )
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
