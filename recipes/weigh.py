"""Which rows of a pool to train on: all ways to choose them, compared on held-out rows of a target.

    python recipes/weigh.py --pool ptb --data_dir FOLDER              # Penn Treebank among other rows
    python recipes/weigh.py --pool instructions --data_dir FOLDER --target gsm8k --spoilt .5 \\
        --of_each 2000 --keep 600 --max_length 96 --width 64 --layers 2 --steps 200 \\
        --learning_rate 3e-3 --pretrain_steps 1500                    # answers, a pretrained GPT-2
    python recipes/weigh.py --pool sample                             # embedded, a minute

`ptb`: 1,500 sentences of Penn Treebank, 1,500 others with their words shuffled, 1,500 rows of a
dictionary; the target is Penn Treebank. FOLDER has `ptb` and `gcide`. `instructions`: prompts and
completions of many sources, of which the completions are predicted; the target is one kind of them.
FOLDER has `instructions`. Rows of it that are not in the pool pretrain the model; a share of the
pool can be spoilt: a third of those rows has another row's answer, of a third the words of the
answer are shuffled, of a third the answer is cut. `sample`: as `ptb`, of the embedded sentences, of
which two thirds are spoilt.

Each way chooses rows; fresh models are then trained on them, each as long as the others. What a way
has chosen is kept in `output_dir`, so a run that was stopped goes on.
Sources of rows are used to count what was chosen, never to choose.
"""

from __future__ import annotations

import copy
import gzip
import json
import time
from argparse import ArgumentParser, Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)

from farzi_hf.attribution.choice import Choice, Chosen, choose
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
from farzi_hf.attribution.clusters import clusters
from farzi_hf.attribution.feature_shares import SharesByFeatures
from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.mixtures import mixtures_of
from farzi_hf.attribution.row_shares import BestChoice, shares_of_rows
from farzi_hf.attribution.smoothness import smoothness
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.cli.own_rows import OwnRows, text_rows
from farzi_hf.cli.program import keep_freed_memory, run
from farzi_hf.cli.stock_training import model_of
from farzi_hf.data import SequenceCollator, load_ptb, load_sample_text, word_tokenizer
from farzi_hf.data.seeds import seeded
from farzi_hf.data.text import bpe_tokenizer, ids_of
from farzi_hf.report import markdown, save_json, save_text

_SPOILT = ("another answer", "shuffled", "cut")
"""What can be wrong with an answer."""


@dataclass(frozen=True)
class Pool:
    """Rows to choose from, and rows of the target."""

    rows: OwnRows
    """To choose from."""
    sources: list[str]
    """Of each of them; for counting what was chosen."""
    wanted: str
    """What the sources begin with that an oracle would choose."""
    target: OwnRows
    """Rows to choose by."""
    dev: OwnRows
    """Rows by which one way is chosen."""
    test: OwnRows
    """Rows that nothing is chosen by."""
    tokenizer: Any
    """Of all of them."""
    pretrained: Path | None = None
    """The model that trainings begin with; None: one of random weights, for each another."""

    @property
    def is_wanted(self) -> list[bool]:
        """Of each row."""
        return [source.startswith(self.wanted) for source in self.sources]

    @property
    def is_spoilt(self) -> list[bool]:
        """Of each row that would be wanted if it were not spoilt."""
        return [f") {self.wanted}" in source for source in self.sources]


def ptb(args: Namespace, draw: Any, folder: Path) -> Pool:
    """Sentences of Penn Treebank among spoilt ones and rows of a dictionary."""
    splits = load_ptb(Path(args.data_dir, "ptb"))
    train, valid, test = (list(splits[name]["text"]) for name in ("train", "validation", "test"))
    chosen = draw.permutation(len(train))[: 2 * args.of_each]
    sentences = [train[i] for i in chosen]
    with gzip.open(Path(args.data_dir, "gcide", "gcide.txt.gz"), "rt", encoding="utf-8") as file:
        rows = [line.strip().lower() for line in file]
    rows = [row for row in rows if 5 <= len(row.split()) <= 40]
    dictionary = [rows[i] for i in draw.permutation(len(rows))[: args.of_each]]
    held_out = [valid[i] for i in draw.permutation(len(valid))]
    return spoilt(sentences, dictionary, held_out, test[: args.test_rows], args, draw)


def sample(args: Namespace, draw: Any, folder: Path) -> Pool:
    """The embedded sentences among spoilt ones, and among sentences in reverse."""
    splits = load_sample_text(4 * args.of_each + 2 * args.target_rows + args.test_rows)
    train = [text for split in splits.values() for text in split["text"]]
    sentences, rest = train[: 2 * args.of_each], train[2 * args.of_each :]
    reverse = [" ".join(reversed(text.split())) for text in rest[: args.of_each]]
    held_out = rest[args.of_each :]
    test = held_out[2 * args.target_rows :][: args.test_rows]
    return spoilt(sentences, reverse, held_out, test, args, draw)


def spoilt(
    sentences: list[str],
    others: list[str],
    held_out: list[str],
    test: list[str],
    args: Namespace,
    draw: Any,
) -> Pool:
    """The first half of the sentences, the other half with its words shuffled, and other rows."""
    clean, shuffled = sentences[: args.of_each], sentences[args.of_each :]
    shuffled = [" ".join(draw.permutation(text.split())) for text in shuffled]
    target = held_out[: args.target_rows]
    dev = held_out[args.target_rows : 2 * args.target_rows]
    texts = [*clean, *shuffled, *others]
    sources = [
        name
        for name, rows in (("clean", clean), ("shuffled", shuffled), ("others", others))
        for _ in rows
    ]
    tokenizer = word_tokenizer([*texts, *target], args.vocab_size)
    parts = (_texts(tokenizer, part, args.max_length) for part in (texts, target, dev, test))
    rows, *of_target = parts
    return Pool(rows, sources, "clean", *of_target, tokenizer)


def _texts(tokenizer: Any, texts: Sequence[str], most: int) -> OwnRows:
    """Rows that are predicted from their first id to their last."""
    ids = ids_of(tokenizer, list(texts))
    return OwnRows([row[:most] for row in ids], None, [{"text": text} for text in texts])


def instructions(args: Namespace, draw: Any, folder: Path) -> Pool:
    """Prompts and completions of many sources."""
    everything = _lines(args, "pool")
    order = draw.permutation(len(everything))
    chosen = [everything[i] for i in order[: 3 * args.of_each]]
    others = [everything[i] for i in order[3 * args.of_each :]]
    tokenizer = bpe_tokenizer([_text(row) for row in others or chosen], args.vocab_size)
    dev = _lines(args, f"{args.target}_dev")
    test = _lines(args, f"{args.target}_test")[: args.test_rows]
    half = len(dev) // 2
    parts = {
        "pool": with_spoilt_answers(chosen, args.spoilt, draw),
        "target": dev[:half],
        "dev": dev[half:],
        "test": test,
    }
    rows = {
        name: rows_in_file(part, folder / f"{name}.jsonl", tokenizer, args.max_length)
        for name, part in parts.items()
    }
    pretrained = None
    if args.pretrain_steps:
        pretrained = Path(args.output_dir, f"pretrained-{args.seed}")
        texts = [*(_text(row) for row in others), *_lines_of_text(args.pretrain_text)]
        pretrain(_texts(tokenizer, texts, args.max_length), tokenizer, args, pretrained)
    return Pool(
        rows["pool"],
        [row["source"] for row in rows["pool"].own],
        args.target,
        rows["target"],
        rows["dev"],
        rows["test"],
        tokenizer,
        pretrained,
    )


def _lines(args: Namespace, name: str) -> list[dict[str, str]]:
    """The rows of a file."""
    path = Path(args.data_dir, "instructions", f"{name}.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def _text(row: Mapping[str, str]) -> str:
    return f"{row['prompt']}\n{row['completion']}"


def _lines_of_text(path: str | None) -> list[str]:
    """The lines of a gzipped text that are not empty; None: none."""
    if path is None:
        return []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def with_spoilt_answers(
    rows: Sequence[Mapping[str, str]], share: float, draw: np.random.Generator
) -> list[dict[str, str]]:
    """Rows of which a share has a spoilt answer, and says so in its source. An answer of one word
    can neither be shuffled nor cut, so it gets another row's.
    """
    of_source: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        of_source[row["source"]].append(row["completion"])
    everything = [row["completion"] for row in rows]
    count = round(share * len(rows))
    places = draw.permutation(len(rows))[:count]
    found = [dict(row) for row in rows]
    for number, place in enumerate(places):
        row = found[place]
        answer = row["completion"]
        words = answer.split()
        kind = _SPOILT[number % len(_SPOILT)] if len(words) > 1 else _SPOILT[0]
        if kind == "shuffled":
            row["completion"] = " ".join(draw.permutation(words))
        elif kind == "cut":
            row["completion"] = " ".join(words[: len(words) // 2])
        else:
            same = of_source[row["source"]]
            others = [each for each in same if each != answer] or everything
            row["completion"] = others[draw.integers(len(others))]
        row["source"] = f"spoilt ({kind}) {row['source']}"
    return found


def rows_in_file(
    rows: Sequence[Mapping[str, str]], file: Path, tokenizer: Any, most: int
) -> OwnRows:
    """Prompts and completions as `farzi weigh` reads them. Rows whose completion is not among the
    first ids are left out.
    """
    save_text("".join(json.dumps(row) + "\n" for row in rows), file)
    return text_rows(str(file), None, tokenizer, most)


POOLS = {"ptb": ptb, "instructions": instructions, "sample": sample}


def pretrain(rows: OwnRows, tokenizer: Any, args: Namespace, folder: Path) -> None:
    """Trains a small GPT-2 on whole texts and saves it, unless the folder has one."""
    if folder.exists():
        return
    how = {
        "learning_rate": args.pretrain_learning_rate,
        "adam_beta2": 0.99,
        "disable_tqdm": args.quiet,
        "lr_scheduler_type": "cosine",
    }
    long = Namespace(
        **{**vars(args), "steps": args.pretrain_steps, "batch_size": args.pretrain_batch_size}
    )
    begin = time.perf_counter()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with seeded(args.seed), TemporaryDirectory(dir=folder.parent) as unfinished:
        place = Path(unfinished)
        trainer = small_gpt2(rows.dataset(), tokenizer, args.layers, long, place, **how)
        loss = trainer.train().training_loss
        trainer.save_model(str(place / "model"))
        if not folder.exists():  # another run may have been sooner
            (place / "model").rename(folder)
    seconds = time.perf_counter() - begin
    print(f"pretrained on {len(rows):,} rows in {seconds:.0f} s, mean loss {loss:.2f}", flush=True)


def plain_arguments(args: Namespace, folder: Path, **how: Any) -> TrainingArguments:
    """Arguments of a stock Trainer: a constant rate, nothing clipped, nothing saved.

    Args:
        args: with `batch_size`.
        how: more of `TrainingArguments`.
    """
    plain = {
        "per_device_train_batch_size": args.batch_size,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "save_strategy": "no",
        "report_to": "none",
        "dataloader_pin_memory": False,
    }
    return TrainingArguments(str(folder), **{**plain, **how})


def small_gpt2(
    rows: Dataset,
    tokenizer: Any,
    layers: int,
    args: Namespace,
    folder: Path,
    pretrained: Path | None = None,
    **how: Any,
) -> Trainer:
    """A stock Trainer of a small GPT-2.

    Args:
        args: with `max_length`, `width`, `steps` and `batch_size`.
        pretrained: the folder of the model to start from; None: from scratch.
        how: more of `TrainingArguments`.
    """
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_positions=args.max_length,
        n_embd=args.width,
        n_layer=layers,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    return trainer_from(config, rows, tokenizer, args, folder, pretrained, **how)


def small_llama(
    rows: Dataset, tokenizer: Any, layers: int, args: Namespace, folder: Path, **how: Any
) -> Trainer:
    """A stock Trainer of a small Llama from scratch; arguments as of `small_gpt2`."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        max_position_embeddings=args.max_length,
        hidden_size=args.width,
        intermediate_size=2 * args.width,
        num_hidden_layers=layers,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=None,
        initializer_range=0.1,
        attn_implementation="eager",
    )
    return trainer_from(config, rows, tokenizer, args, folder, **how)


def trainer_from(
    config: PretrainedConfig,
    rows: Dataset,
    tokenizer: Any,
    args: Namespace,
    folder: Path,
    pretrained: Path | None = None,
    **how: Any,
) -> Trainer:
    """A stock Trainer of a model of this config; arguments as of `small_gpt2`."""
    settings = plain_arguments(args, folder / "trainer", **{"max_steps": args.steps, **how})
    trained = None if pretrained is None else model_of(str(pretrained), None)

    def start() -> PreTrainedModel:
        if trained is None:
            return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        return copy.deepcopy(trained)

    return Trainer(
        model_init=start,
        args=settings,
        data_collator=SequenceCollator(),
        train_dataset=rows,
        processing_class=tokenizer,
    )


def trainer_of(pool: Pool, args: Namespace, folder: Path) -> Trainer:
    """The training in which weights are learnt."""
    return small_gpt2(
        pool.rows.dataset(),
        pool.tokenizer,
        args.layers,
        args,
        folder,
        pool.pretrained,
        learning_rate=args.smooth_learning_rate,
        adam_epsilon=args.smooth_epsilon,
        adam_beta2=0.99,
        disable_tqdm=args.quiet,
    )


class Oracle(Chooser):
    """Rows of the source that is wanted, which no other way may look at."""

    name = "oracle"
    is_cheap = True

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def weights(self, problem: SelectionProblem) -> torch.Tensor:
        is_wanted = torch.tensor(self.pool.is_wanted)
        allowed = is_wanted & (is_wanted.cumsum(0) <= problem.keep)
        return allowed.float()


class AsBefore(Chooser):
    """What a way has chosen with another model."""

    def __init__(self, chosen: Chosen) -> None:
        self.name = chosen.method
        self.is_cheap = chosen.is_cheap
        self.chosen = chosen

    def begins_with(self, problem: SelectionProblem) -> str:
        return self.chosen.began_with

    def weights(self, problem: SelectionProblem) -> torch.Tensor:
        return self.chosen.weights


def verdict_of(found: Choice) -> str:
    """The verdict, or a line that says why there is none."""
    if all(each.rows > found.keep for each in found.tried):
        return "No verdict: --only names no way that keeps as few rows as --keep asks for."
    return found.verdict


def transferred(
    oracle: Sequence[Chosen],
    chosen: Sequence[Chosen],
    problem: SelectionProblem,
    held_out: Sequence[Mapping[str, Dataset]],
    pool: Pool,
    args: Namespace,
    folder: Path,
) -> None:
    """The same choices, by models that did not choose: a GPT-2 four times as wide, and a Llama
    twice as wide.

    Args:
        oracle: its rows, which the verdict is not about.
        chosen: what each way has chosen.
        problem: which they were chosen for.
        held_out: the dev part and the test part of the target.
    """
    models = {"GPT-2": (small_gpt2, 4 * args.width), "Llama": (small_llama, 2 * args.width)}
    tables = {}
    for kind, (make, width) in models.items():
        begin = time.perf_counter()
        name = f"{kind} of width {width}"
        place = folder / f"transfer-{kind}-{args.transfer_learning_rate:g}"
        wide = Namespace(**{**vars(args), "width": width})
        with seeded(args.seed):
            trainer = make(
                pool.rows.dataset(),
                pool.tokenizer,
                args.layers,
                wide,
                place,
                learning_rate=args.transfer_learning_rate,
                adam_epsilon=args.epsilon,
                adam_beta2=0.99,
                disable_tqdm=args.quiet,
            )
        how = {
            "trainings": args.trainings,
            "measured_in": Trainings.of(trainer, args.seed),
            "folder": place,
        }
        far = choose(problem, [AsBefore(each) for each in oracle], *held_out, **how)
        found = choose(problem, [AsBefore(each) for each in chosen], *held_out, **how)
        tables[name] = [
            {
                "method": row["method"],
                "rows": f"{row['rows']:,}",
                "dev": f"{row['dev']:.1f}",
                "test": "{:.1f} ({:.1f}–{:.1f})".format(row["test"], *row["test_interval"]),
            }
            for row in (each.row() for each in [*far.tried, *found.tried])
        ]
        seconds = time.perf_counter() - begin
        print(f"\n{name}, {seconds:.0f} s:\n\n{markdown(tables[name])}\n", flush=True)
        print(verdict_of(found), flush=True)
    save_json(tables, folder / "transfer.json")


def choosers_of(args: Namespace, groups: Groups | None) -> list[Chooser]:
    """All ways, the cheap ones first; of groups mixtures, too."""
    steps = max(args.outer_steps)
    mixtures = [] if groups is None else mixtures_of(groups, steps)
    cheap = (NGramImportance(), CrossEntropyDifference(), GradientCosine())
    learnt = [
        OuterSteps(number, prior)
        for prior in (None, BestOf(cheap), CalibratedScores(cheap))
        for number in args.outer_steps
    ]
    return [
        AllRows(),
        *mixtures,
        RandomRows(),
        *cheap,
        *shares_of_rows(cheap),
        InfluenceOfOne(),
        CalibratedScores(cheap),
        *(each for way in learnt for each in (way, EqualWeights(way))),
        *(
            SharesByFeatures(cheap, number, prior)
            for prior in (None, BestChoice((*cheap, *shares_of_rows(cheap))))
            for number in args.outer_steps
        ),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """The table of one pool."""
    args = parse(argv)
    keep_freed_memory()
    spoilt_share = f"-spoilt-{args.spoilt:g}" if args.spoilt else ""
    folder = Path(args.output_dir, f"{args.pool}-{args.target}-{args.seed}{spoilt_share}")
    folder.mkdir(parents=True, exist_ok=True)
    pool = POOLS[args.pool](args, np.random.default_rng(args.seed), folder)
    with seeded(args.seed):
        trainer = trainer_of(pool, args, folder)
    smooth = Trainings.of(trainer, args.seed)
    final = smooth.with_optimizer(
        replace(smooth.replay.optimizer, eps=args.epsilon, lr=args.learning_rate)
    )
    if not args.cold:
        smooth = replace(smooth, warm=final)
    parts = {
        name: {args.target: rows.dataset()}
        for name, rows in (("target", pool.target), ("dev", pool.dev), ("test", pool.test))
    }
    problem = SelectionProblem(final, parts["target"], args.keep, smooth, folder)
    print(
        f"the training in which weights are learnt: {smoothness(smooth, problem.targets)}",
        flush=True,
    )
    rows: list[dict[str, str]] = []
    begin = time.perf_counter()

    def tell(chosen: Chosen) -> None:
        taken = [i for i, w in enumerate(chosen.weights) if w > 0]
        row = chosen.row()
        rows.append(
            {
                "method": row["method"],
                "rows": f"{row['rows']:,}",
                "of the wanted kind": f"{sum(pool.is_wanted[i] for i in taken):,}",
                "spoilt ones of it": f"{sum(pool.is_spoilt[i] for i in taken):,}",
                "dev": f"{row['dev']:.1f}",
                "test": "{:.1f} ({:.1f}–{:.1f})".format(row["test"], *row["test_interval"]),
                "seconds": f"{row['seconds']:.0f}",
            }
        )
        said = " ".join(rows[-1].values())
        print(f"{time.perf_counter() - begin:.0f} s: {said}", flush=True)
        save_json({"settings": vars(args), "rows": rows}, folder / "table.json")

    groups = Groups(clusters(trainer, args.clusters, seed=args.seed)) if args.clusters else None
    ways = [each for each in choosers_of(args, groups) if not args.only or each.name in args.only]
    held_out = (parts["dev"], parts["test"])
    how = {"trainings": args.trainings, "folder": folder, "tell": tell}
    # No way to choose, but how far one could come.
    oracle = choose(problem, [Oracle(pool)], *held_out, **how)
    found = choose(problem, ways, *held_out, **how)
    print(f"\n{markdown(rows)}\n\n{verdict_of(found)}", flush=True)
    if args.again:
        ways = [AsBefore(each) for each in found.tried]
        again = {"trainings": args.again, "folder": folder / f"again-{args.again}"}
        print(f"\n{args.again} trainings: {verdict_of(choose(problem, ways, *held_out, **again))}")
    if args.transfer:
        transferred(oracle.tried, found.tried, problem, held_out, pool, args, folder)


def parse(argv: Sequence[str] | None) -> Namespace:
    """The options."""
    parser = ArgumentParser("weigh.py", description=__doc__.splitlines()[0])
    parser.add_argument("--pool", choices=POOLS, default="sample")
    parser.add_argument("--data_dir", help="the folder with the data sets")
    parser.add_argument("--target", default="target", help="of the instructions: their kind")
    parser.add_argument("--output_dir", default="outputs/weigh")
    parser.add_argument("--seed", type=int, default=0, help="of pool, starts and orders")
    parser.add_argument("--of_each", type=int, default=1500, help="rows of each third of the pool")
    parser.add_argument("--target_rows", type=int, default=256)
    parser.add_argument("--test_rows", type=int, default=1000)
    parser.add_argument("--keep", type=int, default=1000)
    parser.add_argument("--vocab_size", type=int, default=2000)
    parser.add_argument("--max_length", type=int, default=48)
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--epsilon", type=float, default=1e-4, help="of Adam")
    parser.add_argument("--smooth_learning_rate", type=float, default=3e-3)
    parser.add_argument(
        "--smooth_epsilon", type=float, default=1e-2, help="these two where weights are learnt"
    )
    parser.add_argument("--outer_steps", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument(
        "--spoilt", type=float, default=0.0, help="of instructions: the share of bad answers"
    )
    parser.add_argument(
        "--pretrain_steps",
        type=int,
        default=0,
        help="of instructions: the model is first trained so long on texts that are not in the pool",
    )
    parser.add_argument("--pretrain_batch_size", type=int, default=16)
    parser.add_argument("--pretrain_learning_rate", type=float, default=1e-2)
    parser.add_argument(
        "--pretrain_text", help="a gzipped text whose lines pretrain the model, too"
    )
    parser.add_argument(
        "--clusters", type=int, help="mixtures of so many groups of rows that the model finds alike"
    )
    parser.add_argument("--trainings", type=int, default=3, help="fresh models for each way")
    parser.add_argument(
        "--again",
        type=int,
        metavar="N",
        help="afterwards measure each choice by N trainings; weigh_gains.py shows them",
    )
    parser.add_argument(
        "--cold", action="store_true", help="weights are learnt in models that begin from nothing"
    )
    parser.add_argument(
        "--transfer",
        action="store_true",
        help="afterwards train a wider GPT-2 and a Llama from scratch on each choice",
    )
    parser.add_argument("--transfer_learning_rate", type=float, default=5e-3)
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--only", nargs="*", default=[], help="names of ways; all by default")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
