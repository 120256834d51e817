"""Text and recommendation behind one interface, for recipes that compare many distillations of one data set."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import ptb
import recsys
from _common import parse_arguments
from _comparison import Comparison, Row
from _language_modeling import count_rows as count_text
from _language_modeling import metrics_row
from _language_modeling import readable as readable_text
from _recommendation import count_rows as count_items
from _recommendation import pooled, ranking_row
from _recommendation import readable as readable_ranking
from datasets import DatasetDict
from transformers import PreTrainedTokenizerBase

from farzi_hf import FarziConfig, TrajectoryBank, record_trajectories
from farzi_hf.data import Interactions
from farzi_hf.evaluation.metrics.language_modeling import corpus_perplexity, sentence_totals
from farzi_hf.evaluation.metrics.resampling import bootstrap_interval

Students = Sequence[Sequence[Any]]
"""For each seed, what `Task.compact` has left of each student's statistics."""
CONFIGS = Path(__file__).resolve().parent / "configs"


@dataclass(frozen=True)
class Task(ABC):
    """What a recipe's script has parsed, with the data set loaded once for all seeds.

    Args:
        recipe: of `ptb.py` or `recsys.py`.
        args: of the distillations; each differs in what it is told.
    """

    recipe: Any
    args: FarziConfig

    recipe_type: ClassVar[type]
    metric: ClassVar[str]
    metric_label: ClassVar[str]
    ratio_label: ClassVar[str]

    @property
    @abstractmethod
    def seeds(self) -> list[int]:
        """What the script itself would run."""

    @abstractmethod
    def comparison(self, args: FarziConfig, seed: int, learner: Mapping[str, Any] | None = None) -> Comparison:
        """Data, trainer and students of one seed; Ω is that of `trajectory_folder`, `learner` the recipe's by default."""

    @abstractmethod
    def counted(self, seeds: Sequence[int]) -> list[Row]:
        """The rows of models that are counted, not trained: popularity or a unigram, and a bigram."""

    @abstractmethod
    def trajectory_folder(self, folder: str, seed: int) -> str:
        """Where the trajectories of one seed are, of those in `folder`."""

    @abstractmethod
    def row(self, method: str, students: Students, nbytes: int) -> Row:
        """Metrics of students, given for each seed what `compact` has left of each one's statistics."""

    @abstractmethod
    def readable(self, row: Row) -> dict[str, str]:
        """A row as the table shows it."""

    @abstractmethod
    def paired(self, ours: Students, full: Students) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
        """Of each test sequence what both achieve on it, (N, …), and how quality of ours over theirs comes of that, 1 where they are equal.

        Both are given as to `row`, of the same seeds. Each sequence's students stay together.
        """

    def share(self, ours: Students, full: Students) -> float:
        """Quality of ours over that of full data."""
        rows, quotient = self.paired(ours, full)
        return quotient(rows)

    def ratio(self, ours: Students, full: Students) -> tuple[float, tuple[float, float]]:
        """The share, and its paired bootstrap interval: sequences are resampled."""
        rows, quotient = self.paired(ours, full)
        return quotient(rows), bootstrap_interval(rows, quotient)

    def compact(self, statistics: np.ndarray) -> np.ndarray:
        """The least that `row` needs of a student's statistics."""
        return statistics

    def _recipe(self, learner: Mapping[str, Any] | None) -> Any:
        return self.recipe if learner is None else replace(self.recipe, learner=dict(learner))


@dataclass(frozen=True)
class TextTask(Task):
    """Seeds differ in the summary's start, in the learners and in the students; the split is the data set's own."""

    recipe_type: ClassVar[type] = ptb.RecipeArguments
    metric: ClassVar[str] = "perplexity"
    metric_label: ClassVar[str] = "Test perplexity"
    ratio_label: ClassVar[str] = "its perplexity over ours"

    @property
    def seeds(self) -> list[int]:
        return [self.args.seed]

    @cached_property
    def _data(self) -> tuple[PreTrainedTokenizerBase, DatasetDict]:
        return ptb.load_splits(self.recipe)

    def comparison(self, args: FarziConfig, seed: int, learner: Mapping[str, Any] | None = None) -> Comparison:
        if args.trajectories is not None:
            args = changed(args, trajectories=self.trajectory_folder(args.trajectories, seed))
        return ptb.comparison_of(self._recipe(learner), args, *self._data)

    def counted(self, seeds: Sequence[int]) -> list[Row]:
        return count_text(self.comparison(self.args, seeds[0]))  # of every seed the same

    def trajectory_folder(self, folder: str, seed: int) -> str:
        return f"{folder}/seed-{seed}"

    def compact(self, statistics: np.ndarray) -> np.ndarray:
        """(N, 1, 3): each sentence's sums."""
        return sentence_totals(statistics)[:, None]

    def row(self, method: str, students: Students, nbytes: int) -> Row:
        return metrics_row(method, [np.asarray(student) for part in students for student in part], nbytes)

    def paired(self, ours: Students, full: Students) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
        """Of perplexities, theirs over ours."""
        both = [np.concatenate([np.asarray(part) for part in group]) for group in (ours, full)]
        totals, count = np.concatenate(both)[:, :, 0], len(both[0])  # (students, N, 3)

        def quotient(rows: np.ndarray) -> float:
            perplexities = [corpus_perplexity(rows[:, student]) for student in range(rows.shape[1])]
            return float(np.mean(perplexities[count:]) / np.mean(perplexities[:count]))

        return totals.transpose(1, 0, 2), quotient

    def readable(self, row: Row) -> dict[str, str]:
        return readable_text(row)


@dataclass(frozen=True)
class RecommendationTask(Task):
    """Seeds differ in the split of the users as well: a test of a tenth of them is noisy."""

    recipe_type: ClassVar[type] = recsys.RecipeArguments
    metric: ClassVar[str] = "hr@100"
    metric_label: ClassVar[str] = "Test HR@100"
    ratio_label: ClassVar[str] = "our HR@100 over its"

    @property
    def seeds(self) -> list[int]:
        return self.recipe.splits

    @cached_property
    def _interactions(self) -> Interactions:
        return recsys.load(self.recipe)

    def comparison(self, args: FarziConfig, seed: int, learner: Mapping[str, Any] | None = None) -> Comparison:
        args = changed(args, label_names=["labels", "seen"])
        return recsys.comparison_of(self._recipe(learner), args, self._interactions, seed)

    def counted(self, seeds: Sequence[int]) -> list[Row]:
        splits = [count_items(self.comparison(self.args, seed)) for seed in seeds]
        return [recsys.without_ranks(row) for row in pooled(splits)]

    def trajectory_folder(self, folder: str, seed: int) -> str:
        return recsys.trajectory_folder(folder, seed)

    def row(self, method: str, students: Students, nbytes: int) -> Row:
        splits = [[ranking_row(method, np.asarray(part), nbytes)] for part in students]
        return recsys.without_ranks(pooled(splits)[0])

    def paired(self, ours: Students, full: Students) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
        """Of HR@100, ours over theirs; of all seeds' users."""
        hits = [
            np.concatenate([(np.asarray(part)[:, :, 0] <= 100).mean(axis=0) for part in group])
            for group in (ours, full)
        ]

        def quotient(rows: np.ndarray) -> float:
            mine, theirs = rows.mean(axis=0)
            return float(mine / theirs) if theirs else float("nan")

        return np.stack(hits, axis=1), quotient

    def readable(self, row: Row) -> dict[str, str]:
        return readable_ranking(row)


TASKS: dict[str, type[Task]] = {"ptb": TextTask, "recsys": RecommendationTask}
"""By the name of the script whose settings they take."""


@dataclass
class TrajectoryArguments:
    """How Ω is recorded."""

    num_recorded: int = field(default=10, metadata={"help": "|Ω|, trajectories to record"})
    trajectory_steps: int = field(default=100, metadata={"help": "of each"})
    save_every: int = field(default=10, metadata={"help": "steps from one checkpoint to the next"})
    trajectory_batch_size: int | None = field(
        default=None, metadata={"help": "real sequences per step; by default as many tokens as an inner step has"}
    )
    together: int = field(default=1, metadata={"help": "learners that train at once, on the same minibatches"})


def parse_task(
    script: str, more: Sequence[type], default_config: Path, argv: Sequence[str] | None
) -> tuple[Task, tuple[Any, ...]]:
    """The task of a script's settings, and those of `more`, from one YAML file and the command line."""
    kind = TASKS[script]
    recipe, args, *others = parse_arguments((kind.recipe_type, FarziConfig, *more), default_config, argv)
    return kind(recipe, args), tuple(others)


def changed(args: FarziConfig, **settings: Any) -> FarziConfig:
    """A copy with other settings."""
    args = copy.copy(args)
    for name, value in settings.items():
        setattr(args, name, value)
    return args


def record(task: Task, args: FarziConfig, seed: int, how: TrajectoryArguments) -> TrajectoryBank:
    """Records the trajectories of one seed in the folder that `args.trajectories` stands for, with the inner optimizer of `args`."""
    plain = changed(args, trajectories=None, objective="meta_matching", seed=seed)  # Ω is not there yet
    c = task.comparison(plain, seed)
    rows = c.training_rows(c.splits["train"])
    return record_trajectories(
        c.trainer.learner, args.make_inner_optimizer(), rows, c.trainer.data_collator,
        task.trajectory_folder(args.trajectories, seed), num=how.num_recorded, steps=how.trajectory_steps,
        save_every=how.save_every, batch_size=how.trajectory_batch_size or c.real_batch_size(rows), seed=seed,
        together=how.together, device=plain.device,
    )  # fmt: skip


def described(how: Mapping[str, Any]) -> str:
    """Settings in one line."""
    return ", ".join(f"{name} {value}" for name, value in how.items())
