"""Compares what the outer loop may minimise: DC, MM, MTT and Farzi, each with SGD and Adam inside.

    python recipes/objectives.py --dataset ml-100k --data_dir FOLDER
    python recipes/objectives.py --dataset ptb --data_dir FOLDER
    python recipes/objectives.py --dataset sample                    # embedded: text, or sample_interactions
    python recipes/objectives.py --dataset ptb --scale paper         # for a GPU

All rows have the same start of the summary, the same number of outer steps and students of the same number of steps. Each
(method, seed) is kept in `output_dir`: started again, what is done stays done. The table goes to
`model_cards/objectives_DATASET/`, `--card_dir` says otherwise. The settings are in `configs/objectives_DATASET_SCALE.yaml`.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from _cells import (
    Cell,
    Students,
    card_folder,
    on_everything,
    on_everything_long,
    on_random,
    on_summary,
    results,
    shared_facts,
    write_table,
)
from _common import ends_in_one_line, environment, keep_freed_memory, markdown, run
from _evidence import Claim, Evidence
from _tasks import CONFIGS, Task, TextTask, TrajectoryArguments, described, parse_task

from farzi_hf.plots import plot_comparison

DATASETS = {
    "ptb": "ptb", "ml-100k": "recsys", "ml-1m": "recsys", "magazine": "recsys", "netflix": "recsys", "sample": "ptb",
    "sample_interactions": "recsys",
}  # fmt: skip
"""The script whose settings a data set takes."""
SCALES = ("quick", "paper")
OBJECTIVES = {
    "DC": {"objective": "gradient_matching"},
    "MM": {"objective": "meta_matching"},
    "MTT": {"objective": "trajectory_matching"},
    "Farzi": {"objective": "meta_matching"},
}
FROM_TRAJECTORIES = ("MTT", "Farzi")
UNDISTILLED: dict[str, Students] = {
    "no outer step": on_summary,
    "random sampling": on_random,
    "full data": on_everything,
}
DISTILLED, START = [f"{name}, Adam" for name in OBJECTIVES], "no outer step, Adam"
LONG = "full data, long"  # as well as this learner gets: for `long_steps` steps, with the recipe's own settings
METHODS = (*OBJECTIVES, *UNDISTILLED, LONG)
# The paper's comparison of objectives: one run each, no intervals. Random sampling and full data are not said to be of SGD or Adam.
PAPER = {
    "ml-100k": ("ML-100k [50×150]", ("HR@10", "HR@100", "nDCG@10", "nDCG@100"), {
        "random sampling": (7.74, 39.13, 3.83, 9.61), "DC, SGD": (7.95, 41.88, 3.44, 9.84), "DC, Adam": (11.77, 49.52, 5.6, 12.51),
        "MM, SGD": (9.65, 42.31, 4.72, 10.85), "MM, Adam": (16.86, 58.43, 8.35, 16.47), "MTT, SGD": (12.19, 50.37, 6.12, 13.03),
        "MTT, Adam": (14.52, 56.94, 6.73, 14.66), "Farzi, Adam": (19.61, 61.50, 9.91, 17.91), "full data": (18.23, 60.65, 9.33, 17.69),
    }),
    "ptb": ("PTB [400×50]", ("perplexity", "accuracy"), {
        "random sampling": (218.66, 20.42), "DC, SGD": (203.23, 20.64), "DC, Adam": (131.07, 22.35), "MM, SGD": (180.61, 21.60),
        "MM, Adam": (115.84, 23.47), "MTT, SGD": (202.98, 21.00), "MTT, Adam": (129.72, 23.00), "Farzi, Adam": (91.92, 25.16),
        "full data": (72.10, 26.03),
    }),
}  # fmt: skip


@dataclass
class ObjectiveArguments:
    """What the comparison needs beside a recipe's settings."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "of each row"})
    methods: list[str] = field(default_factory=lambda: list(METHODS), metadata={"help": "rows"})
    sgd_learning_rate: float = field(default=1.0, metadata={"help": "of the inner SGD"})
    sgd_momentum: float = field(default=0.9, metadata={"help": "of the inner SGD"})
    card_dir: str | None = field(default=None, metadata={"help": "folder of the table"})

    def __post_init__(self) -> None:
        for name in self.methods:
            if name not in METHODS:
                raise ValueError(f"methods: {name!r} is unknown; choose from {'; '.join(METHODS)}")
        if not self.seeds:
            raise ValueError("seeds is empty: give at least one, for instance 0")


def main(argv: Sequence[str] | None = None) -> None:
    """The table of one data set."""
    keep_freed_memory()
    dataset, scale, rest = choose(argv)
    with ends_in_one_line("objectives.py"):
        config = CONFIGS / f"objectives_{dataset}_{scale}.yaml"
        task, (how, asked) = parse_task(DATASETS[dataset], (TrajectoryArguments, ObjectiveArguments), config, rest)
        folder = card_folder("objectives", dataset, scale, asked.card_dir, ("comparison.png",))
        evidence = Evidence(task, results(task, cells(task, asked), asked.seeds, how))
    rows = list(evidence.rows.values())
    facts = {
        **shared_facts(task, task.args, asked.seeds, how), "scale": scale, **inner_optimizers(task, asked),
        "MTT": f"{task.args.synthetic_steps or task.args.inner_steps} synthetic against {task.args.expert_steps} real steps",
        **environment(task.args),
    }  # fmt: skip
    there = set(evidence.rows)
    findings = evidence.verdicts([claim for claim in claims(task) if {claim.ours, claim.other} <= there])
    findings += [evidence.finding(name, START) for name in DISTILLED if {name, START} <= there]
    title = f"Objectives on {dataset}, {scale} scale"
    text = write_table(task, rows, facts, folder, title, paper_table(dataset), findings)
    plot_comparison(rows, folder / "comparison.png", task.metric, metric_label=task.metric_label)
    print(f"\n{text}\nTable: {folder / 'table.md'}")


def choose(argv: Sequence[str] | None, default: str = "sample") -> tuple[str, str, list[str]]:
    """The data set, the scale, and the arguments that are left."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--dataset", choices=DATASETS, default=default)
    parser.add_argument("--scale", choices=SCALES, default="quick")
    known, rest = parser.parse_known_args(argv)
    return known.dataset, known.scale, rest


def cells(task: Task, asked: ObjectiveArguments) -> list[Cell]:
    """In the order of the table. Ω is recorded once per optimizer and seed, with that optimizer."""
    inner = {
        "SGD": sgd(asked.sgd_learning_rate, asked.sgd_momentum),
        "Adam": {"inner_optimizer": "adam"},
    }
    made = []
    for method in asked.methods:
        if method == LONG:
            made.append(Cell(LONG, students=on_everything_long, distils=False))
            continue
        for optimizer, settings in inner.items():
            name, omega = f"{method}, {optimizer}", f"{task.args.output_dir}/trajectories/{optimizer.lower()}"
            if method in UNDISTILLED:
                made.append(Cell(name, settings, UNDISTILLED[method], distils=False))
            else:
                starts = {"trajectories": omega} if method in FROM_TRAJECTORIES else {}
                made.append(Cell(name, {**settings, **starts, **OBJECTIVES[method]}))
    return made


def sgd(learning_rate: float, momentum: float) -> dict[str, Any]:
    """Settings of an inner loop."""
    return {"inner_optimizer": "sgd", "inner_learning_rate": learning_rate, "inner_momentum": momentum}


def claims(task: Task) -> list[Claim]:
    """The paper's: Adam inside whatever the objective, Ω rather than none, and that only recommendation reaches full data."""
    made = [
        Claim(f"{name} is better with Adam inside than with SGD", f"{name}, Adam", f"{name}, SGD")
        for name in OBJECTIVES
    ]
    made += [
        Claim(f"With Adam inside, Farzi is better than {name}", "Farzi, Adam", f"{name}, Adam")
        for name in OBJECTIVES
        if name != "Farzi"
    ]
    made.append(Claim("Farzi is better than random sampling", "Farzi, Adam", "random sampling, Adam"))
    if isinstance(task, TextTask):
        return [*made, Claim("In text, full data is better than Farzi", LONG, "Farzi, Adam")]
    return [*made, Claim("Farzi does at least 98 % as well as full data", "Farzi, Adam", LONG, 0.98)]


def inner_optimizers(task: Task, asked: ObjectiveArguments) -> dict[str, str]:
    """Both, in words."""
    adam = {"α": task.args.inner_learning_rate, "β": tuple(task.args.inner_betas), "ε": task.args.inner_epsilon}
    sgd = {"α": asked.sgd_learning_rate, "momentum": asked.sgd_momentum}
    return {"inner Adam": described(adam), "inner SGD": described(sgd)}


def paper_table(dataset: str) -> str:
    """What the paper reports, to compare the order of the rows: its sizes and numbers of steps are other ones."""
    if dataset not in PAPER:
        return ""
    size, metrics, rows = PAPER[dataset]
    table = [
        {"the paper": name, **{m: f"{v:.2f}" for m, v in zip(metrics, row, strict=True)}} for name, row in rows.items()
    ]
    return f"\nThe paper's figures are of {size} (its comparison of objectives):\n\n{markdown(table)}\n"


if __name__ == "__main__":
    run(main)
