"""Seconds and memory of counting, of as many ids as you like.

    python recipes/benchmark/counting.py items                    # 10 million interactions, made up
    python recipes/benchmark/counting.py text --ids 10_000_000     # as many tokens, made up
    python recipes/benchmark/counting.py text --file gcide.txt --vocab_size 8000

Made-up ids follow Zipf's law, and of text each depends on the one before it. Times are processor
time and wall-clock time of counting with all choices on a validation part; the memory is the peak
of the process, the data included.
"""

import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence

import datasets
import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, DatasetDict

from farzi_hf.data.sequences import in_memory, stored_sequences
from farzi_hf.distillation.run import peak_memory
from farzi_hf.tasks import KneserNey, LanguageModeling, Recommendation, SequenceRules, Task
from farzi_hf.tasks.counted import CountedModel


def main(argv: Sequence[str] | None = None) -> None:
    """Prints a line of facts, and one of the result."""
    args = arguments(argv)
    datasets.disable_progress_bars()
    task, models, splits = KINDS[args.kind](args)
    train = splits["train"]
    size = len(stored_sequences(train)[0])
    print(f"{args.kind}: {size:,} ids in {len(train):,} rows; {args.entries:,} entries", flush=True)
    processor, clock = time.process_time(), time.perf_counter()
    model = models.fit(train, args.entries, splits["validation"])
    processor, clock = time.process_time() - processor, time.perf_counter() - clock
    figure = task.headline(task.metrics(model.statistics(splits["test"])))
    peak = peak_memory(torch.device("cpu")) / 2**20
    print(
        f"{model.name} ({model.choice}): test {figure}; {processor:.1f} s of processor time,"
        f" {clock:.1f} s by the clock, {peak:,.0f} MiB"
    )


def arguments(argv: Sequence[str] | None) -> Namespace:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--ids", type=int, default=10_000_000, help="made up (default 10 million)")
    parser.add_argument("--length", type=int, default=50, help="ids of a row (default 50)")
    parser.add_argument("--entries", type=int, default=50_000, help="V of made-up ids")
    parser.add_argument("--file", help="text: your own, in place of made-up ids")
    parser.add_argument("--vocab_size", type=int, help="of its tokenizer")
    return parser.parse_args(argv)


def of_text(args: Namespace) -> tuple[Task, type[CountedModel], DatasetDict]:
    if args.file is None:
        return LanguageModeling(None), KneserNey, made_up(args)
    settings = {"max_length": 128, "vocab_size": args.vocab_size}
    task, splits, _ = LanguageModeling.load(args.file, None, **settings)
    args.entries = len(task.processing_class)
    return task, KneserNey, splits(0)


def of_items(args: Namespace) -> tuple[Task, type[CountedModel], DatasetDict]:
    return Recommendation(None), SequenceRules, made_up(args)


KINDS: dict[str, Callable[[Namespace], tuple[Task, type[CountedModel], DatasetDict]]] = {
    "text": of_text,
    "items": of_items,
}


def made_up(args: Namespace) -> DatasetDict:
    """Rows in which every second id is a fixed function of the one before it."""
    generator = np.random.default_rng(0)
    partners = 1 + generator.permutation(args.entries - 1)
    parts = {"train": args.ids // args.length, "validation": 2000, "test": 2000}
    splits = DatasetDict()
    for name, rows in parts.items():
        drawn = np.exp(generator.random((rows, args.length)) * np.log(args.entries - 1))
        ids = drawn.astype(np.int32)  # a share of 1 / rank
        follows = generator.random((rows, args.length - 1)) < 0.5
        ids[:, 1:] = np.where(follows, partners[ids[:, :-1] - 1], ids[:, 1:])
        splits[name] = of_rows(ids)
    return splits


def of_rows(ids: np.ndarray) -> Dataset:
    """Rows of equal length, without a Python object for each id."""
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    return in_memory(input_ids=pa.LargeListArray.from_arrays(starts, ids.ravel()))


if __name__ == "__main__":
    main()
