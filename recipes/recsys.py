"""Distils interaction histories end to end: data, distillation, comparison with real data, an artefact that anyone can load.

    accelerate launch recipes/recsys.py --dataset ml-100k --data_dir FOLDER             # configs/ml-100k_50x50.yaml
    accelerate launch recipes/recsys.py --config recipes/configs/magazine_50x20.yaml    # another data set or size
    accelerate launch recipes/recsys.py --config recipes/configs/ml-100k_full.yaml      # real data alone, no distillation
    accelerate launch recipes/recsys.py --splits 0 1 2                                  # several splits, one table

Each split of the users is distilled on its own, in `output_dir/split-N`, with `summary/`, the artefact. Started again, it goes
on from the last checkpoint; splits that are done stay done. `output_dir` gets `table.md`, `table.csv` and `plots/`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _common import ends_in_one_line, keep_freed_memory, markdown, parse_arguments, run, save_csv, save_text
from _comparison import (
    BASELINES,
    Row,
    stock_row,
    summary_row,
)
from _recommendation import METRICS, RecommendationComparison, count_rows, paper_rows, pooled, ratios, readable
from _report import check_loadable, cost, draw_summary, how_to_load, listed, provenance, run_facts
from _runs import PLOTS, begin_run, check_outputs, find_checkpoint, print_start, with_history, write_recipe
from transformers import AutoConfig

import farzi_hf.models  # noqa: F401  registers the architectures
from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.callbacks import phase
from farzi_hf.data import (
    InteractionCollator,
    Interactions,
    evaluation_windows,
    load_interactions,
    load_sample_interactions,
    training_windows,
)
from farzi_hf.evaluation.metrics.ranking import recommendation_metrics, target_ranks
from farzi_hf.plots import plot_comparison, plot_distillation

OUTPUTS = ("results.json", *(f"plots/{name}.png" for name in PLOTS))  # of a split
QUICK = Path(__file__).resolve().parent / "configs" / "ml-100k_50x50.yaml"
SAMPLE = "sample"
LEARNER = {"model_type": "sasrec", "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
LONG_TRAINING = {"learning_rate": 0.01, "per_device_train_batch_size": 64, "lr_scheduler_type": "constant"}


@dataclass
class RecipeArguments:
    """What the recipe needs beside a `FarziConfig`."""

    config: str = field(default=str(QUICK), metadata={"help": "YAML file with any of these fields"})
    dataset: str = field(default="ml-100k", metadata={"help": "as in load_interactions, or sample"})
    data_dir: str | None = field(default=None, metadata={"help": "folder with the data set's files"})
    min_interactions: int = field(default=3, metadata={"help": "users with fewer are left out"})
    splits: list[int] = field(default_factory=lambda: [0], metadata={"help": "seeds of the splits of the users"})
    distil: bool = field(default=True, metadata={"help": "False: only the rows on real data"})
    learner: dict | str | None = field(
        default_factory=lambda: dict(LEARNER), metadata={"help": "arguments of AutoConfig.for_model, as JSON"}
    )
    num_students: int = field(default=3, metadata={"help": "students per row of the table, each from its own start"})
    baselines: list[str] = field(default_factory=lambda: list(BASELINES), metadata={"help": "rows on real data"})
    long_steps: int = field(default=300, metadata={"help": "training steps of the row 'full data, long'"})
    long_learner: dict | str | None = field(
        default_factory=dict, metadata={"help": "what the learner of that row has other than `learner`, as JSON"}
    )
    long_training: dict | str | None = field(
        default_factory=lambda: dict(LONG_TRAINING), metadata={"help": "TrainingArguments of that row, as JSON"}
    )
    resume: bool = field(default=True, metadata={"help": "go on from the last checkpoint in output_dir"})

    def __post_init__(self) -> None:
        for name in ("learner", "long_learner", "long_training"):
            setattr(self, name, _mapping(name, getattr(self, name)))
        if "model_type" not in self.learner:
            raise ValueError(f"learner={self.learner} has no model_type: name an architecture, for instance sasrec")
        if self.num_students < 1:
            raise ValueError(f"num_students={self.num_students} trains nothing: give at least 1")
        if not self.splits:
            raise ValueError("splits is empty: give the seed of at least one split, for instance 0")
        for name in self.baselines:
            if name not in BASELINES:
                raise ValueError(f"baselines: {name!r} is unknown; choose from {', '.join(BASELINES)}")

    def to_recipe(self) -> dict[str, Any]:
        """The settings that make the summary what it is."""
        return {name: getattr(self, name) for name in ("dataset", "min_interactions", "learner")}


def _mapping(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise ValueError(f"{name}={value!r} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise ValueError(f"{name}={value!r} is no mapping: write fields with their values")
    return value


def main(argv: Sequence[str] | None = None) -> None:
    """The whole recipe. Every process distils; the first one compares, prints and writes."""
    keep_freed_memory()
    with ends_in_one_line("recsys.py"):
        recipe, args = parse_arguments((RecipeArguments, FarziConfig), QUICK, argv)
        args.label_names = ["labels", "seen"]  # the ranking leaves out what a user has had
        with args.main_process_first(desc="data"):
            check_places(recipe, args)
            with phase(f"Data set {recipe.dataset}", disable=args.disable_tqdm or args.process_index > 0):
                interactions = load(recipe)
        splits = [run_split(recipe, args, interactions, split) for split in recipe.splits]
    if args.process_index == 0:
        report(recipe, args, splits)


def load(recipe: RecipeArguments) -> Interactions:
    """The interactions that a recipe names."""
    if recipe.dataset == SAMPLE:
        return load_sample_interactions()
    return load_interactions(recipe.dataset, recipe.data_dir, min_interactions=recipe.min_interactions)


def check_places(recipe: RecipeArguments, args: FarziConfig) -> None:
    """All that will be written is checked before any work; `recipe.yaml` then marks the folder."""
    output = Path(args.output_dir)
    check_outputs(output, ["recipe.yaml", "table.md", "table.csv", *map(comparison_name, METRICS)])
    for split in recipe.splits:
        find_checkpoint(split_arguments(args, split), settings_of(recipe, args, [split]), recipe.resume, OUTPUTS)
    if args.process_index == 0:
        write_recipe(output, settings_of(recipe, args, recipe.splits))


def settings_of(recipe: RecipeArguments, args: FarziConfig, splits: list[int]) -> dict[str, Any]:
    """The recipe of a run over some splits."""
    return {**recipe.to_recipe(), "splits": splits, **args.to_recipe()}


def split_arguments(args: FarziConfig, split: int) -> FarziConfig:
    """Those of one split, whose results have a folder of their own."""
    args = copy.copy(args)
    args.output_dir = f"{args.output_dir}/split-{split}"
    return args


def comparison_name(metric: str) -> str:
    """The file of the figure of a metric."""
    return f"comparison_{metric.replace('@', '_')}.png"


def run_split(recipe: RecipeArguments, args: FarziConfig, interactions: Interactions, split: int) -> dict[str, Any]:
    """One split's rows and facts: distilled and compared, or from `results.json` where that was done before."""
    args, settings = split_arguments(args, split), settings_of(recipe, args, [split])
    path, asked = Path(args.output_dir) / "results.json", json.loads(json.dumps({**vars(recipe), **settings}))
    with args.main_process_first(desc="results and checkpoints"):
        done = json.loads(path.read_text(encoding="utf-8")) if path.exists() and recipe.resume else {}
        if done.get("asked") == asked:
            return done
        checkpoint = find_checkpoint(args, settings, recipe.resume, OUTPUTS)
    c = comparison_of(recipe, args, interactions, split)
    begin_run(c.trainer, settings, checkpoint)
    settings = with_history(settings, c.trainer)
    first = args.process_index == 0
    if first:
        print_start(c.trainer, checkpoint)
    rows = []
    if first and recipe.distil:
        c.trainer.tune_initialization()
        rows.append(summary_row(c, "Farzi, 0 outer steps"))
    if recipe.distil:
        c.trainer.train(resume_from_checkpoint=checkpoint)
    if not first:
        return {}
    facts, folder = run_facts(c, recipe.dataset), path.parent / "summary"
    if recipe.distil:
        source = provenance(c, recipe.dataset, f"users 80 / 10 / 10 %, seed {split}", Path(__file__).name)
        # At once: what follows takes a while.
        c.trainer.model.save_pretrained(folder, metrics={**facts, **source}, recipe=settings)
        rows = [summary_row(c, f"Farzi {size(args)}"), *rows]
        if args.inner_optimizer == "adam" and args.world_size == 1:  # one Trainer of several would wait for the others
            rows.append(stock_row(c, folder))
    rows += [*(BASELINES[name](c) for name in recipe.baselines), *count_rows(c)]
    if recipe.distil:
        plots = draw(c, rows, path.parent / "plots")
        table = [without_ranks(row) for row in rows]
        metrics = {"table": table, **facts, **source, **cost(c)}
        c.trainer.model.save_pretrained(folder, metrics=metrics, recipe=settings, plots=plots)
        check_loadable(folder)
    done = {"asked": asked, "rows": rows, "facts": facts}
    save_text(json.dumps(done), path)
    return done


def comparison_of(
    recipe: RecipeArguments, args: FarziConfig, interactions: Interactions, split: int
) -> RecommendationComparison:
    """The data of a split and the trainer of its summary. The learner reads as many items as a synthetic sequence has."""
    length = args.sequence_length
    if args.trajectories is not None:  # each split has its own: of another one, they have seen this one's test users
        args = copy.copy(args)
        args.trajectories = trajectory_folder(args.trajectories, split)
    config = AutoConfig.for_model(**{**recipe.learner, "num_items": interactions.num_items, "max_length": length})
    histories = interactions.strong_generalization_split(split)
    trainer = FarziTrainer(
        learner_init=config, args=args, processing_class=interactions.vocabulary, data_collator=InteractionCollator(),
        train_dataset=training_windows(histories["train"], length),
        eval_dataset=evaluation_windows(histories["validation"], length),
        preprocess_logits_for_metrics=target_ranks, compute_metrics=recommendation_metrics,
    )  # fmt: skip
    return RecommendationComparison(
        trainer, histories, config, recipe.num_students, recipe.long_steps, recipe.long_learner, recipe.long_training
    )


def trajectory_folder(folder: str, split: int) -> str:
    """Where the trajectories of a split are."""
    return f"{folder}/split-{split}"


def size(args: FarziConfig) -> str:
    """[μ×ξ]."""
    return f"[{args.num_sequences}×{args.sequence_length}]"


def without_ranks(row: Row) -> Row:
    """What belongs in a table: single users' ranks do not."""
    return {name: value for name, value in row.items() if name != "ranks"}


def draw(c: RecommendationComparison, rows: Sequence[Row], folder: Path) -> list[Path]:
    """The figures of one split. The distillation's lines are of the validation users, as its curve is."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.png" for name in ("distillation", "comparison")]
    full_data = c.train_on_real(c.splits["train"], c.steps, c.seeds[0])
    plot_distillation(
        c.trainer.state.log_history, paths[0], metric="eval_hr@100", norm="grad_norm",
        metric_label="Validation HR@100 of fresh students", full_data_same_steps=-c.validation_error(full_data),
    )  # fmt: skip
    plot_comparison(rows, paths[1], "hr@100", metric_label="Test HR@100")
    return [*paths, *draw_summary(c, folder)]


def report(recipe: RecipeArguments, args: FarziConfig, splits: Sequence[Mapping[str, Any]]) -> None:
    """One table of all splits, with the paper's figures."""
    output = Path(args.output_dir)
    rows = [without_ranks(row) for row in pooled([split["rows"] for split in splits])]
    rows += paper_rows(recipe.dataset, size(args) if recipe.distil else "")
    seconds = sum(split["facts"]["distillation_seconds"] for split in splits)
    facts = {**splits[0]["facts"], "distillation_seconds": round(seconds, 1), "splits": recipe.splits}
    facts |= ratios(rows, f"Farzi {size(args)}")
    table = markdown([readable(row) for row in rows]) + "\n\n" + listed(facts)
    save_text(table + "\n", output / "table.md")
    save_csv(rows, output / "table.csv")
    for metric in METRICS:
        plot_comparison(rows, output / comparison_name(metric), metric, metric_label=f"Test {metric}")
    print(f"\n{table}\n\nTable: {output / 'table.md'}")
    if recipe.distil:
        print(how_to_load(output / f"split-{recipe.splits[0]}" / "summary"))


if __name__ == "__main__":
    run(main)
