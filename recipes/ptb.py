"""Distils a text data set end to end: data, distillation, comparison with real data, an artefact that anyone can load.

    accelerate launch recipes/ptb.py                                        # Penn Treebank, configs/ptb_quick.yaml
    accelerate launch recipes/ptb.py --config recipes/configs/demo.yaml     # the embedded corpus, a few minutes
    accelerate launch recipes/ptb.py --data_dir FOLDER --inner_steps 100    # any field of the YAML can be overridden

Started again, it goes on from the last checkpoint in `output_dir`. It writes there `table.md`, `table.csv`, `plots/` and
`summary/`, the artefact; the artefact's `recipe.yaml` is a config for this script.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import ends_in_one_line, keep_freed_memory, markdown, parse_arguments, run, save_csv, save_text
from _comparison import (
    BASELINES,
    Comparison,
    Row,
    stock_row,
    summary_row,
)
from _language_modeling import LanguageModelComparison, count_rows, readable
from _report import check_loadable, cost, draw_summary, how_to_load, listed, provenance, run_facts
from _runs import PLOTS, begin_run, find_checkpoint, print_start, with_history
from datasets import DatasetDict
from transformers import AutoConfig, PreTrainedConfig, PreTrainedTokenizerBase

import farzi_hf.models  # noqa: F401  registers the architectures that transformers does not have
from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.callbacks import phase
from farzi_hf.data import load_ptb, load_sample_text, tokenize, word_tokenizer
from farzi_hf.evaluation import Unigram
from farzi_hf.evaluation.metrics.language_modeling import token_metrics
from farzi_hf.plots import plot_comparison, plot_distillation

QUICK = Path(__file__).resolve().parent / "configs" / "ptb_quick.yaml"
DATASETS = {"ptb": load_ptb, "sample": lambda data_dir: load_sample_text()}
OUTPUTS = ("table.md", "table.csv", *(f"plots/{name}.png" for name in PLOTS))
# The paper's size. Two things matter (recipes/LOG.md): untied embeddings, or the learner stays on the unigram plateau for
# hundreds of steps; and embeddings that start large, or training is so chaotic that its gradient is useless.
LEARNER = {
    "model_type": "gpt2",
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 1,
    "n_positions": 128,
    "tie_word_embeddings": False,
    "initializer_range": 0.1,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "resid_pdrop": 0.0,
}


@dataclass
class RecipeArguments:
    """What the recipe needs beside a `FarziConfig`."""

    config: str = field(default=str(QUICK), metadata={"help": "YAML file with any of these fields"})
    dataset: str = field(default="ptb", metadata={"help": " | ".join(DATASETS)})
    data_dir: str | None = field(default=None, metadata={"help": "folder with ptb.{train,valid,test}.txt"})
    vocab_size: int = field(default=2000, metadata={"help": "words of the vocabulary, special tokens not counted"})
    max_length: int | None = field(default=None, metadata={"help": "cut real training sequences to so many ids"})
    learner: dict | str | None = field(
        default_factory=lambda: dict(LEARNER), metadata={"help": "arguments of AutoConfig.for_model, as JSON"}
    )
    num_students: int = field(default=3, metadata={"help": "students per row of the table, each from its own start"})
    baselines: list[str] = field(default_factory=lambda: list(BASELINES), metadata={"help": "rows on real data"})
    long_steps: int = field(default=2000, metadata={"help": "training steps of the row 'full data, long'"})
    resume: bool = field(default=True, metadata={"help": "go on from the last checkpoint in output_dir"})

    def __post_init__(self) -> None:
        if isinstance(self.learner, str):
            try:
                self.learner = json.loads(self.learner)
            except ValueError as error:
                raise ValueError(f"learner={self.learner!r} is not JSON: {error}") from None
        if not isinstance(self.learner, dict) or "model_type" not in self.learner:
            raise ValueError(f"learner={self.learner} has no model_type: name an architecture, for instance gpt2")
        if self.num_students < 1:
            raise ValueError(f"num_students={self.num_students} trains nothing: give at least 1")
        for name, values, known in (("dataset", [self.dataset], DATASETS), ("baselines", self.baselines, BASELINES)):
            for value in values:
                if value not in known:
                    raise ValueError(f"{name}: {value!r} is unknown; choose from {', '.join(known)}")

    def to_recipe(self) -> dict[str, Any]:
        """The settings that make the summary what it is."""
        return {name: getattr(self, name) for name in ("dataset", "vocab_size", "max_length", "learner")}


def main(argv: Sequence[str] | None = None) -> None:
    """The whole recipe. Every process distils; the first one compares, prints and writes."""
    keep_freed_memory()
    with ends_in_one_line("ptb.py"):
        recipe, args = parse_arguments((RecipeArguments, FarziConfig), QUICK, argv)
        settings = {**recipe.to_recipe(), **args.to_recipe()}
        with args.main_process_first(desc="data"):
            checkpoint = find_checkpoint(args, settings, recipe.resume, OUTPUTS)
            with phase(f"Data set {recipe.dataset}", disable=args.disable_tqdm or args.process_index > 0):
                tokenizer, splits = load_splits(recipe)
        comparison = comparison_of(recipe, args, tokenizer, splits)
        trainer = comparison.trainer
        begin_run(trainer, settings, checkpoint)
    first = trainer.is_world_process_zero()
    if first:
        print_start(trainer, checkpoint)
        trainer.tune_initialization()
        before = summary_row(comparison, "Farzi, 0 outer steps")
    trainer.train(resume_from_checkpoint=checkpoint)
    if first:
        finish(comparison, recipe, with_history(settings, trainer), before)


def load_splits(recipe: RecipeArguments) -> tuple[PreTrainedTokenizerBase, DatasetDict]:
    """The tokenizer of the training text, and the three splits as `input_ids`."""
    text = DATASETS[recipe.dataset](recipe.data_dir)
    tokenizer = word_tokenizer(text["train"]["text"], recipe.vocab_size)
    splits = tokenize(text, tokenizer)
    if recipe.max_length is not None:  # evaluation is on whole sequences
        splits["train"] = tokenize(DatasetDict(train=text["train"]), tokenizer, recipe.max_length)["train"]
    return tokenizer, splits


def learner_config(recipe: RecipeArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedConfig:
    """The learner's architecture, over the tokenizer's vocabulary."""
    vocabulary = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return AutoConfig.for_model(**{**recipe.learner, **vocabulary})


def comparison_of(
    recipe: RecipeArguments, args: FarziConfig, tokenizer: PreTrainedTokenizerBase, splits: DatasetDict
) -> LanguageModelComparison:
    """The trainer of a summary, and what it is compared with."""
    config = learner_config(recipe, tokenizer)
    trainer = FarziTrainer(
        learner_init=config, args=args, processing_class=tokenizer,
        train_dataset=splits["train"], eval_dataset=splits["validation"],
    )  # fmt: skip
    return LanguageModelComparison(trainer, splits, config, recipe.num_students, recipe.long_steps)


def finish(c: Comparison, recipe: RecipeArguments, settings: Mapping[str, Any], before: Row) -> None:
    """What follows the distillation: the artefact at once, then the comparison, then the artefact with its results."""
    args, farzi, output = c.trainer.args, c.trainer.model, Path(c.trainer.args.output_dir)
    folder, facts = output / "summary", run_facts(c, recipe.dataset)
    source = provenance(c, recipe.dataset, "the data set's own train, validation and test", Path(__file__).name)
    farzi.save_pretrained(folder, c.trainer.processing_class, metrics={**facts, **source}, recipe=settings)
    rows = [summary_row(c, f"Farzi [{args.num_sequences}×{args.sequence_length}]"), before]
    if args.inner_optimizer == "adam" and args.world_size == 1:  # one Trainer of several would wait for the others
        rows.append(stock_row(c, folder))
    rows += [BASELINES[name](c) for name in recipe.baselines]
    rows += count_rows(c)
    table = markdown([readable(row) for row in rows]) + "\n\n" + listed(facts)
    save_text(table + "\n", output / "table.md")
    save_csv(rows, output / "table.csv")
    plots = draw(c, rows, output / "plots")
    farzi.save_pretrained(folder, metrics={"table": rows, **facts, **source, **cost(c)}, recipe=settings, plots=plots)
    check_loadable(folder)
    print(f"\n{table}\n\nTable: {output / 'table.md'}\nPlots: {', '.join(map(str, plots))}\n{how_to_load(folder)}")


def draw(c: Comparison, rows: Sequence[Row], folder: Path) -> list[Path]:
    """The figures. The distillation's lines are of the validation split, as its curve is."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in ("distillation", "comparison")]
    train, validation = c.splits["train"], c.splits["validation"]
    full_data = c.statistics(c.train_on_real(train, c.steps, c.seeds[0]), validation)
    plot_distillation(
        c.trainer.state.log_history, paths[0], norm="grad_norm", metric_label="Validation perplexity of fresh students",
        full_data_same_steps=token_metrics(full_data)["perplexity"],
        unigram=Unigram.fit(train, c.trainer.learner.vocab_size).metrics(validation)["perplexity"],
    )  # fmt: skip
    plot_comparison(rows, paths[1], "perplexity", metric_label="Test perplexity")
    return [*paths, *draw_summary(c, folder)]


if __name__ == "__main__":
    run(main)
