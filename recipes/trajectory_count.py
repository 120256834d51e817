"""How many pretrained trajectories are worth having: |Ω| against the summary's quality at equal numbers of outer steps.

    python recipes/trajectory_count.py --dataset ml-100k --data_dir FOLDER --counts 0 1 2 5 10 20
    python recipes/trajectory_count.py --dataset sample

|Ω| = 0 starts every inner loop from a fresh random initialisation. With Ω a share `--fresh_start_fraction` of them still does: 0 is the
paper's way. All else is as in `objectives.py`, whose configs it takes; tables go to `model_cards/trajectory_count_DATASET/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from _cells import Cell, card_folder, results, shared_facts, write_table
from _common import ends_in_one_line, environment, keep_freed_memory, run
from _evidence import Claim, Evidence
from _tasks import CONFIGS, Task, TrajectoryArguments, parse_task
from objectives import DATASETS, ObjectiveArguments, choose

from farzi_hf.plots import plot_trajectory_count

FEW = 5  # from so many on, the paper sees its curve level off


@dataclass
class CountArguments:
    """The curve's points."""

    counts: list[int] = field(default_factory=lambda: [0, 1, 2, 5, 10, 20], metadata={"help": "|Ω| of each point"})

    def __post_init__(self) -> None:
        if not self.counts or min(self.counts) < 0:
            raise ValueError(f"counts={self.counts} makes no curve: give numbers of trajectories, 0 for none")


def main(argv: Sequence[str] | None = None) -> None:
    """The curve of one data set."""
    keep_freed_memory()
    dataset, scale, rest = choose(argv)
    with ends_in_one_line("trajectory_count.py"):
        config = CONFIGS / f"objectives_{dataset}_{scale}.yaml"
        kinds = (TrajectoryArguments, ObjectiveArguments, CountArguments)
        task, (how, asked, counted) = parse_task(DATASETS[dataset], kinds, config, rest)
        folder = card_folder("trajectory_count", dataset, scale, asked.card_dir, ("trajectory_count.png",))
        how = replace(how, num_recorded=max(counted.counts))
        evidence = Evidence(task, results(task, cells(task, counted.counts), asked.seeds, how))
    rows = [{**row, "trajectories": count} for row, count in zip(evidence.rows.values(), counted.counts, strict=True)]
    facts = {
        **shared_facts(task, task.args, asked.seeds, how),
        "inner optimizer": task.args.inner_settings(),
        "scale": scale,
        **environment(task.args),
    }
    title = f"Number of trajectories, {dataset}, {scale} scale"
    text = write_table(task, rows, facts, folder, title, findings=evidence.verdicts(claims(counted.counts)))
    plot_trajectory_count(rows, folder / "trajectory_count.png", task.metric, metric_label=task.metric_label)
    print(f"\n{text}\nTable: {folder / 'table.md'}")


def cells(task: Task, counts: Sequence[int]) -> list[Cell]:
    """One per |Ω|."""
    omega = {"trajectories": f"{task.args.output_dir}/trajectories/count"}
    return [Cell(name_of(count), {**omega, "num_trajectories": count} if count else {}) for count in counts]


def name_of(count: int) -> str:
    """Of a row."""
    return f"trajectories: {count}"


def claims(counts: Sequence[int]) -> list[Claim]:
    """The paper's: a few trajectories are much better than none, and many hardly better than a few."""
    some = sorted(count for count in counts if count)
    made = [
        Claim(f"{count} trajectories are better than none, at equal numbers of outer steps", name_of(count), name_of(0))
        for count in some
        if 0 in counts
    ]
    if some and some[0] < FEW < some[-1] and FEW in some:
        made.append(Claim(f"{FEW} are at least 98 % as good as {some[-1]}", name_of(FEW), name_of(some[-1]), 0.98))
    return made


if __name__ == "__main__":
    run(main)
