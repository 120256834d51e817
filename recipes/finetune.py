"""Trains a model on a published summary with the stock Trainer, and on the real data that it stands for, and compares.

    python recipes/finetune.py --summary outputs/ptb_quick/summary --data_dir FOLDER       # a folder, or user/farzi-… of the Hub
    python recipes/finetune.py --summary user/farzi-ptb --learner '{"model_type": "llama", "hidden_size": 16, …}'
    python recipes/finetune.py --summary user/farzi-ptb --model NAME                       # pretrained weights, a folder or of the Hub

The model is any causal language model or recommender of transformers over the summary's vocabulary; by default the summary's
own learner, untrained. Real data are those that the summary's `recipe.yaml` names. Every model is trained with the settings that
the summary carries, on about as many tokens per step. `output_dir` gets `table.md`, `table.csv` and `comparison.png`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import _language_modeling
import _recommendation
import ptb
import recsys
import torch
from _common import ends_in_one_line, keep_freed_memory, markdown, run, save_csv, save_text
from _comparison import Comparison, Row, Student, stock_arguments, train_stock
from _runs import check_outputs, write_recipe
from datasets import Dataset
from transformers import AutoConfig, AutoModelForCausalLM, HfArgumentParser, PreTrainedConfig, default_data_collator

from farzi_hf import FarziConfig, FarziData, FarziTrainer
from farzi_hf.data import InteractionCollator, random_sequences
from farzi_hf.data.vocabulary import is_text
from farzi_hf.plots import plot_comparison


@dataclass
class FinetuneArguments:
    """What is trained, on which summary, and where the real data are."""

    summary: str = field(metadata={"help": "folder or dataset repository of the summary"})
    revision: str | None = field(default=None, metadata={"help": "branch, tag or commit of the repository"})
    data_dir: str | None = field(default=None, metadata={"help": "folder with the real data"})
    learner: str | None = field(default=None, metadata={"help": "arguments of AutoConfig.for_model, as JSON"})
    model: str | None = field(
        default=None, metadata={"help": "pretrained weights to start from, in place of a learner"}
    )
    steps: int | None = field(default=None, metadata={"help": "training steps; by default those of the summary"})
    long_steps: int = field(default=2000, metadata={"help": "training steps of the row 'full data, long'"})
    num_students: int = field(default=3, metadata={"help": "models per row, each with a seed of its own"})
    output_dir: str = field(default="outputs/finetune", metadata={"help": "where the results go"})
    use_cpu: bool = field(default=False, metadata={"help": "even where there is a GPU"})

    def __post_init__(self) -> None:
        if self.learner is not None and self.model is not None:
            raise ValueError(f"learner={self.learner!r} and model={self.model!r} are both given: name one of them")
        if min(self.num_students, self.long_steps, self.steps or 1) < 1:
            raise ValueError("num_students, long_steps and steps have to be at least 1")


def main(argv: Sequence[str] | None = None) -> None:
    """The whole recipe, in one process."""
    keep_freed_memory()
    with ends_in_one_line("finetune.py", FileNotFoundError):
        (args,) = HfArgumentParser(FinetuneArguments).parse_args_into_dataclasses(argv, look_for_args_file=False)
        check_outputs(Path(args.output_dir), ("recipe.yaml", "table.md", "table.csv", "comparison.png"))
        farzi = FarziData.from_pretrained(args.summary, args.revision)
        c = comparison_of(args, farzi)
    write_recipe(Path(args.output_dir), asdict(args))
    task, metric = (
        (_language_modeling, "perplexity") if is_text(farzi.processing_class) else (_recommendation, "hr@100")
    )
    print(f"{args.summary}: {c.config.model_type}, {c.steps} steps", flush=True)
    rows = [*summary_rows(c, args), *real_rows(c, args), *task.count_rows(c)]
    report(rows, task, metric, Path(args.output_dir))


# -- data and model --------------------------------------------------------------------------------------------------


def comparison_of(args: FinetuneArguments, farzi: FarziData) -> Comparison:
    """The summary, the real data that it was distilled from, and the model's config.

    Raises:
        ValueError: the summary has no recipe or inner settings, or the real data have another vocabulary.
    """
    recipe, inner = farzi.results.recipe, farzi.config.inner
    if "dataset" not in recipe or not inner or inner.get("optimizer") != "adam":
        raise ValueError(
            f"summary={args.summary!r} has no recipe.yaml that names its dataset, or no inner settings of Adam: take one "
            "that ptb.py or recsys.py wrote, or train on yours as its card says"
        )
    build = _language_model if is_text(farzi.processing_class) else _recommender
    return build(args, farzi, recipe)


def _language_model(args: FinetuneArguments, farzi: FarziData, recipe: Mapping[str, Any]) -> Comparison:
    known = {name: recipe[name] for name in ("dataset", "vocab_size", "max_length", "learner") if name in recipe}
    text = ptb.RecipeArguments(data_dir=args.data_dir, **known)
    if args.learner is not None:
        text.learner = json.loads(args.learner)
    tokenizer, splits = ptb.load_splits(text)
    config = AutoConfig.from_pretrained(args.model) if args.model else ptb.learner_config(text, tokenizer)
    trainer = _trainer(
        args,
        farzi,
        config,
        processing_class=tokenizer,
        train_dataset=splits["train"],
        eval_dataset=splits["validation"],
    )
    return _language_modeling.LanguageModelComparison(trainer, splits, config, args.num_students, args.long_steps)


def _recommender(args: FinetuneArguments, farzi: FarziData, recipe: Mapping[str, Any]) -> Comparison:
    known = {name: recipe[name] for name in ("dataset", "min_interactions", "learner") if name in recipe}
    items = recsys.RecipeArguments(data_dir=args.data_dir, splits=recipe["splits"], **known)
    if args.learner is not None:
        items.learner = json.loads(args.learner)
    interactions = recsys.load(items)
    histories = interactions.strong_generalization_split(items.splits[0])
    size = {"num_items": interactions.num_items, "max_length": farzi.config.sequence_length}
    config = AutoConfig.from_pretrained(args.model) if args.model else AutoConfig.for_model(**{**items.learner, **size})
    trainer = _trainer(
        args, farzi, config, processing_class=interactions.vocabulary, data_collator=InteractionCollator()
    )
    return _recommendation.RecommendationComparison(
        trainer, histories, config, args.num_students, args.long_steps, long_learner={}, long_training={}
    )


def _trainer(args: FinetuneArguments, farzi: FarziData, config: PreTrainedConfig, **data: Any) -> FarziTrainer:
    """Holds summary, model and data together for a `Comparison`; it is never run."""
    shape, inner = farzi.config, farzi.config.inner
    settings = FarziConfig(
        args.output_dir, num_sequences=shape.num_sequences, sequence_length=shape.sequence_length,
        latent_dim=shape.latent_dim, tau=shape.tau, inner_steps=args.steps or inner["steps"],
        synthetic_batch_size=inner["synthetic_batch_size"], use_cpu=args.use_cpu,
    )  # fmt: skip
    return FarziTrainer(config, settings, farzi_data=farzi, **data)


# -- rows ------------------------------------------------------------------------------------------------------------


def row(
    c: Comparison, args: FinetuneArguments, method: str, rows: Callable[[int], Dataset], collator: Callable, nbytes: int,
    **settings: Any,
) -> Row:  # fmt: skip
    """The row of models that the stock Trainer trains on `rows(seed)`."""

    def train(seed: int) -> Student:
        data = rows(seed)
        torch.manual_seed(seed)
        model = (
            AutoModelForCausalLM.from_pretrained(args.model)
            if args.model
            else AutoModelForCausalLM.from_config(c.config)
        )
        changes = {"max_steps": c.steps, **settings}
        if "per_device_train_batch_size" not in changes and collator is c.trainer.data_collator:
            changes["per_device_train_batch_size"] = c.real_batch_size(data)
        return train_stock(model, data, collator, stock_arguments(c, args.output_dir, seed, **changes))

    return c.student_row(method, train, c.seeds, nbytes, settings.get("max_steps", c.steps))


def summary_rows(c: Comparison, args: FinetuneArguments) -> list[Row]:
    """Soft tokens, ids drawn anew for each time that a sequence comes up, and the likeliest ids."""
    farzi, inner = c.trainer.model, c.trainer.model.config.inner
    visits = math.ceil(c.steps * inner["synthetic_batch_size"] / farzi.config.num_sequences)
    token_bytes = farzi.config.num_sequences * farzi.config.sequence_length * c.token_bytes
    soft, collator = farzi.as_dataset(), farzi.collator()
    return [
        row(c, args, "Farzi, soft tokens", lambda seed: soft, collator, farzi.nbytes),
        row(c, args, f"Farzi, {visits} samples each", lambda seed: farzi.as_hard_dataset(visits, seed), default_data_collator,
            visits * token_bytes),
        row(c, args, "Farzi, likeliest tokens", lambda seed: farzi.as_hard_dataset(), default_data_collator, token_bytes),
    ]  # fmt: skip


def real_rows(c: Comparison, args: FinetuneArguments) -> list[Row]:
    """All real data, for as many steps and for long, and as many random sequences or bytes as the summary has."""
    train, collator, nbytes = c.splits["train"], c.trainer.data_collator, c.nbytes(c.splits["train"])
    farzi = c.trainer.model
    same_bytes = farzi.nbytes // c.token_bytes
    few = {
        "random, same sequences": lambda seed: random_sequences(train, farzi.config.num_sequences, seed),
        "random, same bytes": lambda seed: c.draw_tokens(same_bytes, seed),
    }
    return [
        row(c, args, "full data", lambda seed: c.training_rows(train), collator, nbytes),
        row(
            c, args, "full data, long", lambda seed: c.training_rows(train), collator, nbytes, max_steps=args.long_steps
        ),
        *(
            row(
                c, args, name, lambda seed, draw=draw: c.training_rows(draw(seed)), collator, c.nbytes(draw(c.seeds[0]))
            )
            for name, draw in few.items()
        ),
    ]


def report(rows: Sequence[Row], task: Any, metric: str, folder: Path) -> None:
    """Table and figure, on disk and on the terminal."""
    rows = [{name: value for name, value in row.items() if name != "ranks"} for row in rows]
    folder.mkdir(parents=True, exist_ok=True)
    table = markdown([task.readable(row) for row in rows])
    save_text(table + "\n", folder / "table.md")
    save_csv(rows, folder / "table.csv")
    plot_comparison(rows, folder / "comparison.png", metric, metric_label=f"Test {metric}")
    print(f"\n{table}\n\nTable: {folder / 'table.md'}")


if __name__ == "__main__":
    run(main)
