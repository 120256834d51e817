"""How many pretrained trajectories are worth having: |Ω| against the summary's quality at equal numbers of outer steps.

    python recipes/trajectory_count.py --dataset ml-100k --data_dir FOLDER --counts 0 1 2 5 10 20
    python recipes/trajectory_count.py --dataset sample

|Ω| = 0 starts every inner loop from a fresh random initialisation. With Ω a share `--fresh_starts` of them still does: 0 is the
paper's way. All else is as in `objectives.py`, whose configs it takes; tables go to `model_cards/trajectory_count_DATASET/`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from _cells import Cell, run_cells, shared_facts, write_table
from _common import ROOT, ends_in_one_line, environment, keep_freed_memory
from _tasks import CONFIGS, Task, TrajectoryArguments, parse_task
from objectives import DATASETS, ObjectiveArguments, choose

from farzi_hf.plots import plot_trajectory_count


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
        how = replace(how, num_recorded=max(counted.counts))
        rows = run_cells(task, cells(task, counted.counts), asked.seeds, how)
    rows = [{**row, "trajectories": count} for row, count in zip(rows, counted.counts, strict=True)]
    folder = Path(asked.card_dir or ROOT.parent / "model_cards" / f"trajectory_count_{dataset}")
    facts = {
        **shared_facts(task, task.args, asked.seeds, how),
        "inner optimizer": task.args.inner_settings(),
        "scale": scale,
        **environment(task.args),
    }
    text = write_table(task, rows, facts, folder, f"Number of trajectories, {dataset}, {scale} scale")
    plot_trajectory_count(rows, folder / "trajectory_count.png", task.metric, metric_label=task.metric_label)
    print(f"\n{text}\nTable: {folder / 'table.md'}")


def cells(task: Task, counts: Sequence[int]) -> list[Cell]:
    """One per |Ω|."""
    omega = {"trajectories": f"{task.args.output_dir}/trajectories/count"}
    return [Cell(f"trajectories: {count}", {**omega, "num_trajectories": count} if count else {}) for count in counts]


if __name__ == "__main__":
    main()
