"""Trains a model on a published summary and on the real data behind it, both with the stock Trainer, and compares the results.

    python recipes/finetune.py --summary outputs/ptb_50x50/summary --data_dir FOLDER       # a folder, or user/farzi-… of the Hub
    python recipes/finetune.py --summary user/farzi-ptb --learner '{"model_type": "llama", "hidden_size": 16, …}'
    python recipes/finetune.py --summary user/farzi-ptb --model NAME                       # pretrained weights, a folder or of the Hub

The model can be any causal language model or recommender of transformers with the vocabulary of the summary. By default it is the
untrained learner of the summary. The summary's `recipe.yaml` names the real data. Every model trains with the summary's settings, on
about as many tokens per step. `output_dir` gets `table.md`, `table.csv` and `comparison.png`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, default_data_collator

from farzi_hf import FarziData
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory, run
from farzi_hf.cli.run_folder import check_outputs, write_recipe
from farzi_hf.report import Comparison, Measured, Student, TaskData, markdown, save_csv, save_text
from farzi_hf.report.plots import plot_comparison
from farzi_hf.report.rows import stock_arguments, train_stock


@dataclass
class FinetuneArguments:
    """The summary, the real data, and the models to train."""

    summary: str = field(metadata={"help": "folder or dataset repository of the summary"})
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit of the repository"})
    data_dir: str | None = field(default=None, metadata={"help": "folder with the real data"})
    learner: str | None = field(default=None, metadata={"help": "arguments of AutoConfig.for_model, as JSON"})
    model: str | None = field(default=None, metadata={"help": "pretrained weights, in place of a learner"})
    steps: int | None = field(default=None, metadata={"help": "training steps; by default the summary's number"})
    long_steps: int = field(default=2000, metadata={"help": "training steps of the row 'full data, long'"})
    num_students: int = field(default=3, metadata={"help": "models per row, each with its own seed"})
    output_dir: str = field(default="outputs/finetune", metadata={"help": "folder of the results"})
    use_cpu: bool = field(default=False, metadata={"help": "use the CPU even if there is a GPU"})

    def __post_init__(self) -> None:
        if self.learner is not None and self.model is not None:
            raise ValueError(f"learner={self.learner!r} and model={self.model!r} are both given: name one of them")
        if min(self.num_students, self.long_steps, 1 if self.steps is None else self.steps) < 1:
            raise ValueError("num_students, long_steps and steps have to be at least 1")


def main(argv: Sequence[str] | None = None) -> None:
    """The whole recipe, in one process."""
    keep_freed_memory()
    with ends_in_one_line("finetune.py", OSError):
        (args,) = HfArgumentParser(FinetuneArguments).parse_args_into_dataclasses(argv, look_for_args_file=False)
        check_outputs(Path(args.output_dir), ("recipe.yaml", "table.md", "table.csv", "comparison.png"), asdict(args))
        farzi = FarziData.from_pretrained(args.summary, args.revision)
        data = TaskData.of_summary(farzi, args.data_dir, **({} if args.learner is None else {"learner": args.learner}))
        config = args.model and AutoConfig.from_pretrained(args.model, trust_remote_code=False)
        c = Comparison.of_summary(farzi, data, config, "cpu" if args.use_cpu else None, num_students=args.num_students)
        c = replace(c, steps=args.steps or c.steps, long_training=replace(c.long_training, steps=args.long_steps))
    write_recipe(Path(args.output_dir), asdict(args))
    print(f"{args.summary}: {c.config.model_type}, {c.steps} steps", flush=True)
    measured = [*on_summary(c, args), *on_real(c, args), *c.counted()]
    rows, folder = [c.row(part) for part in measured], Path(args.output_dir)
    table = markdown([c.task.readable(row) for row in rows])
    save_text(table + "\n", folder / "table.md")
    save_csv(rows, folder / "table.csv")
    plot_comparison(rows, folder / "comparison.png", c.task.metric, metric_label=c.task.metric_label)
    print(f"\n{table}\n\nTable: {folder / 'table.md'}")


def trained(
    c: Comparison, args: FinetuneArguments, method: str, rows: Callable[[int], Dataset], collator: Callable, nbytes: int,
    **settings: Any,
) -> Measured:  # fmt: skip
    """Models that the stock Trainer trains on `rows(seed)`."""

    def train(seed: int) -> Student:
        torch.manual_seed(seed)
        make = AutoModelForCausalLM.from_pretrained if args.model else AutoModelForCausalLM.from_config
        model = make(args.model or c.config, trust_remote_code=False)
        arguments = stock_arguments(c, args.output_dir, seed, **{"max_steps": c.steps, **settings})
        return train_stock(model, rows(seed), collator, arguments)

    return c.trained(method, train, c.seeds, nbytes, settings.get("max_steps", c.steps))


def on_summary(c: Comparison, args: FinetuneArguments) -> list[Measured]:
    """Three rows on the summary: soft tokens; ids, drawn anew each time that a sequence is read; and the likeliest ids."""
    farzi, inner = c.farzi, c.farzi.config.inner
    visits = math.ceil(c.steps * inner["synthetic_batch_size"] / farzi.config.num_sequences)
    token_bytes = c.token_bytes(farzi.config.num_sequences * farzi.config.sequence_length)
    soft, ids = farzi.collator(), default_data_collator
    return [
        trained(c, args, "Farzi, soft tokens", lambda seed: farzi.as_dataset(), soft, farzi.nbytes),
        trained(c, args, f"Farzi, {visits} samples each", lambda seed: farzi.as_hard_dataset(visits, seed), ids, visits * token_bytes),
        trained(c, args, "Farzi, likeliest tokens", lambda seed: farzi.as_hard_dataset(), ids, token_bytes),
    ]  # fmt: skip


def on_real(c: Comparison, args: FinetuneArguments) -> list[Measured]:
    """Rows on real data: all data, for as many steps and for long; and as many random sequences or bytes as the summary has."""
    draws: dict[str, tuple[Callable[[int], Dataset], dict[str, Any]]] = {
        "full data": (c.all_sequences, {}),
        "full data, long": (c.all_sequences, {"max_steps": args.long_steps, "lr_scheduler_type": "linear"}),
        "random, same sequences": (c.draw_sequences, {}),
        "random, same bytes": (c.draw_bytes, {}),
    }
    if c.farzi.is_endless:  # its number of sequences means nothing
        del draws["random, same sequences"]
    measured = []
    for method, (draw, settings) in draws.items():
        first = draw(c.seeds[0])
        settings = {"per_device_train_batch_size": c.real_batch_size(c.training_rows(first)), **settings}
        rows = lambda seed, draw=draw: c.training_rows(draw(seed))  # noqa: E731
        measured.append(trained(c, args, method, rows, c.task.collator, c.nbytes(first), **settings))
    return measured


if __name__ == "__main__":
    run(main)
