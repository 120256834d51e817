"""The learning rate and momentum of an inner SGD, by validation: what the configs of `objectives.py` were set from.

    python recipes/inner_sgd.py --dataset ptb --data_dir FOLDER

For each setting a student takes T steps on full data, and another one on the summary before any outer step; both are measured
on the validation split. Adam, with the config's settings, stands beside them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from _common import ends_in_one_line, keep_freed_memory, markdown, run
from _comparison import Comparison
from _tasks import CONFIGS, Task, changed, parse_task
from objectives import DATASETS, ObjectiveArguments, TrajectoryArguments, choose, sgd


@dataclass
class GridArguments:
    """What is tried."""

    learning_rates: list[float] = field(default_factory=lambda: [0.03, 0.1, 0.3, 1.0, 3.0], metadata={"help": "α"})
    momenta: list[float] = field(default_factory=lambda: [0.0, 0.5, 0.9], metadata={"help": "of SGD"})


def main(argv: Sequence[str] | None = None) -> None:
    """Prints the grid as it is measured, then as a table."""
    keep_freed_memory()
    dataset, scale, rest = choose(argv)
    with ends_in_one_line("inner_sgd.py"):
        config = CONFIGS / f"objectives_{dataset}_{scale}.yaml"
        task, (_, asked, grid) = parse_task(
            DATASETS[dataset], (TrajectoryArguments, ObjectiveArguments, GridArguments), config, rest
        )
        rows = [measured(task, asked.seeds, "Adam", inner_optimizer="adam")]
        for momentum in grid.momenta:
            for rate in grid.learning_rates:
                rows.append(measured(task, asked.seeds, f"SGD {rate:g}, momentum {momentum:g}", **sgd(rate, momentum)))
    print(f"\n{markdown(rows)}")


def measured(task: Task, seeds: Sequence[int], name: str, **settings) -> dict[str, str]:
    """Validation errors (`Comparison.validation_error`: the least is best) of each seed's two students."""
    comparisons = [task.comparison(changed(task.args, seed=seed, **settings), seed) for seed in seeds]
    row = {
        "inner optimizer": name,
        "full data": _listed(comparisons, lambda c: c.train_on_real(c.splits["train"], c.steps, c.seeds[0])),
        "summary before any outer step": _listed(comparisons, lambda c: c.student(c.trainer.train_student())),
    }
    print(", ".join(row.values()), flush=True)
    return row


def _listed(comparisons: Sequence[Comparison], student) -> str:
    return " ".join(f"{c.validation_error(student(c)):.4g}" for c in comparisons)


if __name__ == "__main__":
    run(main)
