"""What the recipes of the paper's tables and figures share: their settings and where their cards go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from _cells import card_folder, shared_facts, write_table
from _common import environment
from _comparison import Row
from _tasks import CONFIGS, Task, TrajectoryArguments, parse_task
from objectives import DATASETS, choose

from farzi_hf import FarziConfig


@dataclass
class PaperArguments:
    """What the comparisons need beside a recipe's settings; each takes what concerns it, so that one file serves all."""

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "of each row"})
    budgets: list[int] = field(default_factory=lambda: [10, 25, 50], metadata={"help": "μ of sample_efficiency.py"})
    latent_dims: list[int] = field(default_factory=lambda: [4, 8, 16], metadata={"help": "d of regularization.py"})
    sgd_learning_rate: float = field(default=1.0, metadata={"help": "of the inner SGD of inner_optimizers.py"})
    momentum_learning_rate: float = field(default=0.3, metadata={"help": "of its inner SGD with momentum"})
    sgd_momentum: float = field(default=0.9, metadata={"help": "of the same"})
    cost_steps: list[int] = field(
        default_factory=lambda: [10, 20, 40, 80], metadata={"help": "T at which inner_optimizers.py measures time"}
    )
    card_dir: str | None = field(default=None, metadata={"help": "folder of the table"})

    def __post_init__(self) -> None:
        for name in ("seeds", "budgets", "latent_dims", "cost_steps"):
            values, least = getattr(self, name), 0 if name == "seeds" else 1
            if not values or min(values) < least or len(set(values)) < len(values):
                raise ValueError(f"{name}={values} is not usable: give different numbers of at least {least}")


@dataclass(frozen=True)
class Experiment:
    """A recipe's task and settings, and the folder of its card."""

    name: str
    title: str
    dataset: str
    scale: str
    task: Task
    how: TrajectoryArguments
    asked: PaperArguments
    folder: Path

    @classmethod
    def parse(cls, name: str, title: str, argv: Sequence[str] | None, files: Sequence[str] = ()) -> Experiment:
        """From `--dataset`, `--scale`, the YAML file `paper_DATASET_SCALE.yaml` and the command line.

        Args:
            files: what the recipe writes into the card's folder beside the table.

        Raises:
            ValueError: unknown or unusable settings, or a file in the card's folder that no recipe wrote.
        """
        dataset, scale, rest = choose(argv)
        kinds = (TrajectoryArguments, PaperArguments)
        task, (how, asked) = parse_task(DATASETS[dataset], kinds, CONFIGS / f"paper_{dataset}_{scale}.yaml", rest)
        folder = card_folder(name, dataset, scale, asked.card_dir, files)
        return cls(name, title, dataset, scale, task, how, asked, folder)

    @property
    def args(self) -> FarziConfig:
        return self.task.args

    def write(
        self, rows: Sequence[Row], findings: Sequence[str], more: str = "", columns: Mapping[str, str] | None = None
    ) -> None:
        """The card, which it prints as well. See `_cells.write_table`."""
        facts = {
            **shared_facts(self.task, self.args, self.asked.seeds, self.how),
            "scale": self.scale,
            "inner optimizer": self.args.inner_settings(),
            "seconds of all cells": round(sum(row.get("seconds", 0) for row in rows)),
            **environment(self.args),
        }
        if self.args.trajectories is None:
            del facts["Ω"]
        title = f"{self.title}, {self.dataset}, {self.scale} scale"
        text = write_table(self.task, rows, facts, self.folder, title, more, findings, columns)
        print(f"\n{text}\nTable: {self.folder / 'table.md'}")
