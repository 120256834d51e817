"""Which rows of a pool to train on: all ways to choose them, compared on held-out rows of a target.

    python recipes/weigh.py --pool ptb --data_dir FOLDER              # Penn Treebank among other rows
    python recipes/weigh.py --pool instructions --data_dir FOLDER --target gsm8k
    python recipes/weigh.py --pool sample                             # embedded, a minute

`ptb`: 1,500 sentences of Penn Treebank, 1,500 others with their words shuffled, 1,500 rows of a
dictionary; the target is Penn Treebank. FOLDER has `ptb` and `gcide`. `instructions`: prompts and
completions of many sources; the target is one kind of them. FOLDER has `instructions`. `sample`: as
`ptb`, of the embedded sentences, of which two thirds are spoilt.

Each way chooses rows; fresh models are then trained on them, each as long as the others. What a way
has chosen is kept in `output_dir`, so a run that was stopped goes on.
Sources of rows are used to count what was chosen, never to choose.
"""

from __future__ import annotations

import gzip
import json
import time
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, GPT2Config, Trainer, TrainingArguments

from farzi_hf.attribution.choice import Chosen, choose
from farzi_hf.attribution.choosers import (
    AllRows,
    CalibratedScores,
    Chooser,
    CrossEntropyDifference,
    GradientCosine,
    InfluenceOfOne,
    NGramImportance,
    OuterSteps,
    RandomRows,
    Task,
)
from farzi_hf.attribution.smoothness import smoothness
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.cli.program import keep_freed_memory, run
from farzi_hf.data import SequenceCollator, load_ptb, load_sample_text, word_tokenizer
from farzi_hf.data.seeds import seeded
from farzi_hf.data.text import bpe_tokenizer, ids_of
from farzi_hf.report import markdown, save_json


@dataclass(frozen=True)
class Pool:
    """Rows to choose from, and rows of the target."""

    texts: list[str]
    """Of the pool."""
    sources: list[str]
    """Of each row of the pool; for counting what was chosen."""
    wanted: str
    """The source that an oracle would choose."""
    target: list[str]
    """Rows to choose by."""
    dev: list[str]
    """Rows by which one way is chosen."""
    test: list[str]
    """Rows that nothing is chosen by."""
    tokenizer: Any
    """Of all of them."""


def ptb(args: Namespace, draw: Any) -> Pool:
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


def sample(args: Namespace, draw: Any) -> Pool:
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
    return Pool(texts, sources, "clean", target, dev, test, tokenizer)


def instructions(args: Namespace, draw: Any) -> Pool:
    """Prompts and completions of many sources."""
    folder = Path(args.data_dir, "instructions")

    def rows_of(name: str) -> list[dict[str, str]]:
        with gzip.open(folder / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
            return [json.loads(line) for line in file]

    def texts_of(rows: Sequence[Mapping[str, str]]) -> list[str]:
        return [f"{row['prompt']}\n{row['completion']}" for row in rows]

    pool = rows_of("pool")
    pool = [pool[i] for i in draw.permutation(len(pool))[: 3 * args.of_each]]
    dev = texts_of(rows_of(f"{args.target}_dev"))
    test = texts_of(rows_of(f"{args.target}_test"))[: args.test_rows]
    half = len(dev) // 2
    texts = texts_of(pool)
    tokenizer = bpe_tokenizer(texts, args.vocab_size)
    sources = [row["source"] for row in pool]
    return Pool(texts, sources, args.target, dev[:half], dev[half:], test, tokenizer)


POOLS = {"ptb": ptb, "instructions": instructions, "sample": sample}


def rows_of(pool: Pool, texts: Sequence[str], most: int) -> Dataset:
    """The ids of texts."""
    ids = ids_of(pool.tokenizer, list(texts))
    return Dataset.from_dict({"input_ids": [row[:most] for row in ids]})


def small_gpt2(
    rows: Dataset, tokenizer: Any, layers: int, args: Namespace, folder: Path, **how: Any
) -> Trainer:
    """A stock Trainer of a small GPT-2 from scratch.

    Args:
        args: with `max_length`, `width`, `steps` and `batch_size`.
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
    settings = TrainingArguments(
        str(folder / "trainer"),
        max_steps=args.steps,
        per_device_train_batch_size=args.batch_size,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        dataloader_pin_memory=False,
        train_sampling_strategy="random",
        **how,
    )
    return Trainer(
        model_init=lambda: AutoModelForCausalLM.from_config(config, trust_remote_code=False),
        args=settings,
        data_collator=SequenceCollator(),
        train_dataset=rows,
        processing_class=tokenizer,
    )


def trainer_of(pool: Pool, args: Namespace, folder: Path) -> Trainer:
    """The training in which weights are learnt."""
    return small_gpt2(
        rows_of(pool, pool.texts, args.max_length),
        pool.tokenizer,
        args.layers,
        args,
        folder,
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

    def weights(self, task: Task) -> torch.Tensor:
        is_wanted = torch.tensor([self.pool.wanted in source for source in self.pool.sources])
        allowed = is_wanted & (is_wanted.cumsum(0) <= task.keep)
        return allowed.float()


def choosers_of(pool: Pool, args: Namespace) -> list[Chooser]:
    """All ways, the cheap ones first."""
    cheap = NGramImportance()
    return [
        AllRows(),
        RandomRows(),
        cheap,
        CrossEntropyDifference(),
        GradientCosine(),
        InfluenceOfOne(),
        CalibratedScores((cheap, CrossEntropyDifference(), GradientCosine())),
        *(OuterSteps(steps) for steps in args.outer_steps),
        *(OuterSteps(steps, CrossEntropyDifference()) for steps in args.outer_steps),
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """The table of one pool."""
    args = parse(argv)
    keep_freed_memory()
    folder = Path(args.output_dir, f"{args.pool}-{args.target}-{args.seed}")
    folder.mkdir(parents=True, exist_ok=True)
    pool = POOLS[args.pool](args, np.random.default_rng(args.seed))
    with seeded(args.seed):
        trainer = trainer_of(pool, args, folder)
    smooth = Trainings.of(trainer, args.seed)
    final = smooth.with_optimizer(
        replace(smooth.replay.optimizer, eps=args.epsilon, lr=args.learning_rate)
    )
    if not args.cold:
        smooth = replace(smooth, warm=final)
    parts = {
        name: {args.target: rows_of(pool, texts, args.max_length)}
        for name, texts in (("target", pool.target), ("dev", pool.dev), ("test", pool.test))
    }
    task = Task(final, parts["target"], args.keep, smooth, folder)
    print(
        f"the training in which weights are learnt: {smoothness(smooth, task.targets)}", flush=True
    )
    rows: list[dict[str, str]] = []
    begin = time.perf_counter()

    def tell(chosen: Chosen) -> None:
        taken = Counter(
            source for source, w in zip(pool.sources, chosen.weights, strict=True) if w > 0
        )
        row = chosen.row()
        rows.append(
            {
                "method": row["method"],
                "rows": f"{row['rows']:,}",
                "of the wanted kind": f"{sum(n for s, n in taken.items() if pool.wanted in s):,}",
                "dev": f"{row['dev']:.1f}",
                "test": "{:.1f} ({:.1f}–{:.1f})".format(row["test"], *row["test_interval"]),
                "seconds": f"{row['seconds']:.0f}",
            }
        )
        said = " ".join(rows[-1].values())
        print(f"{time.perf_counter() - begin:.0f} s: {said}", flush=True)
        save_json({"settings": vars(args), "rows": rows}, folder / "table.json")

    ways = [each for each in choosers_of(pool, args) if not args.only or each.name in args.only]
    held_out = (parts["dev"], parts["test"])
    how = {"trainings": args.trainings, "folder": folder, "tell": tell}
    choose(task, [Oracle(pool)], *held_out, **how)  # no way to choose, but how far one could come
    found = choose(task, ways, *held_out, **how)
    print(f"\n{markdown(rows)}\n\n{found.verdict}")


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
    parser.add_argument("--trainings", type=int, default=3, help="fresh models for each way")
    parser.add_argument(
        "--cold", action="store_true", help="weights are learnt in models that begin from nothing"
    )
    parser.add_argument("--quiet", action="store_true", help="no bar")
    parser.add_argument("--only", nargs="*", default=[], help="names of ways; all by default")
    return parser.parse_args(argv)


if __name__ == "__main__":
    run(main)
