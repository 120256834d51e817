"""Shared code of the scripts for the paper's tables and figures: settings, the recording of Ω, and
the folders of the cards.

Each row of each seed is stored in `--output_dir`, and a later start does not repeat it. The
settings are in `configs/tables/…_DATASET_SCALE.yaml`, for each `--form` of summaries. The card goes
to `model_cards/NAME_DATASET/`, with `--form paper` of a table whose default is another one to
`…_shared/`, or to `--card_dir`. `--scale paper` is for a GPU.
"""

from __future__ import annotations

import copy
from argparse import ArgumentParser
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from evidence import Claim

from farzi_hf import FarziConfig, TrajectoryBank, record_trajectories
from farzi_hf.cli.arguments import parse_arguments
from farzi_hf.cli.distil import comparison_of, trainer_of
from farzi_hf.cli.run_folder import check_outputs
from farzi_hf.common.checks import check_different
from farzi_hf.common.text import parse_mapping
from farzi_hf.report import (
    RunSettings,
    TaskData,
    listed,
    markdown,
    pooled_row,
    save_csv,
    save_json,
    save_text,
)
from farzi_hf.report.plots import plot_comparison
from farzi_hf.report.rendering import environment
from farzi_hf.summary.forms import INPUTS
from farzi_hf.tasks import Recommendation, ResultRow, Task

CONFIGS = Path(__file__).resolve().parents[1] / "configs" / "tables"
CARDS = Path(__file__).resolve().parents[2] / "model_cards"
PAPER = Path(__file__).with_name("paper.yaml")
TABLE = ("table.json", "table.md", "table.csv")
DATASETS = ("ptb", "ml-100k", "magazine", "sample", "sample_interactions")
SCALES = ("quick", "paper")
Forms = Mapping[str, str]
"""The values of `--form`, the default first, and how the names of their configs begin."""
PAPER_FORM: Forms = {"paper": "paper"}  # a position of a summary is input and target
OWN_FORM: Forms = {"own": "own"}  # labels of their own

# -- settings --------------------------------------------------------------------------------------


@dataclass
class PaperArguments:
    """Settings of the tables beside a run's settings. Each table uses only some of them, so that
    all tables can share one file.
    """

    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "of each row"})
    budgets: list[int] = field(
        default_factory=lambda: [10, 25, 50], metadata={"help": "μ of sample_efficiency.py"}
    )
    label_dims: list[int] = field(
        default_factory=lambda: [4, 8, 16], metadata={"help": "e of regularization.py"}
    )
    sgd_learning_rate: float = field(
        default=1.0, metadata={"help": "rate of inner_optimizers.py's inner SGD"}
    )
    momentum_learning_rate: float = field(
        default=0.3, metadata={"help": "rate of its inner SGD with momentum"}
    )
    sgd_momentum: float = field(default=0.9, metadata={"help": "of the same"})
    teachers: list[str] = field(
        default_factory=list, metadata={"help": "cross_architecture.py: by default all"}
    )
    methods: list[str] = field(
        default_factory=list, metadata={"help": "rows of objectives.py: by default all"}
    )
    counts: list[int] = field(
        default_factory=lambda: [0, 1, 2, 5, 10, 20],
        metadata={"help": "|Ω| of trajectory_count.py"},
    )
    noise_multipliers: list[float] = field(
        default_factory=lambda: [0.5, 1.0, 2.0], metadata={"help": "σ of privacy.py"}
    )
    card_dir: str | None = field(default=None, metadata={"help": "folder of the table"})

    def __post_init__(self) -> None:
        leasts = {"seeds": 0, "budgets": 1, "label_dims": 1, "counts": 0, "noise_multipliers": 1e-3}
        for name, least in leasts.items():
            check_different(name, getattr(self, name), least)


@dataclass
class TrajectoryArguments:
    """Settings of the recording of Ω."""

    num_recorded: int = field(default=10, metadata={"help": "|Ω|, trajectories to record"})
    trajectory_steps: int = field(default=100, metadata={"help": "of each"})
    save_every: int = field(default=10, metadata={"help": "steps between two checkpoints"})
    trajectory_batch_size: int | None = field(
        default=None, metadata={"help": "by default as many tokens as an inner step"}
    )


def changed(args: FarziConfig, **settings: Any) -> FarziConfig:
    """A copy of `args` with other settings, which are checked like those of a config."""
    args = copy.copy(args)
    for name, value in settings.items():
        setattr(args, name, value)
    args.check()
    return args


# -- Ω ---------------------------------------------------------------------------------------------


def record(
    data: TaskData, args: FarziConfig, seed: int, recording: TrajectoryArguments
) -> TrajectoryBank:
    """Records the trajectories of one seed below the folder `args.trajectories`, with the inner
    optimizer of `args`.
    """
    # Ω does not exist yet.
    plain = changed(args, trajectories=None, objective="meta_matching", seed=seed)
    trainer = trainer_of(data, plain, seed)
    c = comparison_of(trainer, data, seed)
    rows = c.real_data(c.splits["train"]).dataset
    return record_trajectories(
        trainer.learner,
        args.make_inner_optimizer(),
        rows,
        trainer.data_collator,
        f"{args.trajectories}/seed-{seed}",
        num=args.num_trajectories or recording.num_recorded,
        steps=recording.trajectory_steps,
        save_every=recording.save_every,
        batch_size=recording.trajectory_batch_size or c.real_batch_size(rows),
        seed=seed,
        device=plain.device,
    )


# -- a table ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Experiment:
    """One table of the paper on one data set."""

    title: str  # of the card
    dataset: str
    scale: str
    data: TaskData
    args: FarziConfig  # settings of the distillations; a row can override them
    recording: TrajectoryArguments
    settings: PaperArguments
    folder: Path  # of the card

    @classmethod
    def parse(
        cls,
        name: str,
        title: str,
        argv: Sequence[str] | None,
        files: Sequence[str] = (),
        forms: Forms = PAPER_FORM,
    ) -> Experiment:
        """Makes it from `--dataset`, `--scale`, `--form`, its YAML file in `configs/tables/` and
        the command line.

        Args:
            name: name of the card's folder.
            files: the files that the script writes into the card's folder, beside the table.
            forms: what `--form` may name.

        Raises:
            ValueError: unknown or unusable settings, or a file in the card's folder that no recipe
                wrote.
        """
        parser = ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--dataset", choices=DATASETS, default="sample")
        parser.add_argument("--scale", choices=SCALES, default="quick")
        parser.add_argument("--form", choices=forms, default=next(iter(forms)))
        known, rest = parser.parse_known_args(argv)
        config = CONFIGS / f"{forms[known.form]}_{known.dataset}_{known.scale}.yaml"
        if not config.exists() and not any(word.partition("=")[0] == "--config" for word in rest):
            where = f"{known.dataset} at scale {known.scale}"
            others = ", ".join(forms)
            raise ValueError(
                f"form={known.form!r} has no settings for {where}; choose another of {others}"
            )
        run, args, recording, own = parse_arguments(
            (RunSettings, FarziConfig, TrajectoryArguments, PaperArguments), config, rest
        )
        # Each scale and each form has its own folder, so that a long run does not replace the card
        # of a quick run.
        suffix = f"_{known.scale}" * (known.scale != "quick") + "_shared" * (
            known.form != next(iter(forms))
        )
        folder = Path(own.card_dir or CARDS / f"{name}_{known.dataset}{suffix}")
        check_outputs(folder, (*TABLE, *files))
        return cls(title, known.dataset, known.scale, run.load(), args, recording, own, folder)

    @property
    def task(self) -> Task:
        return self.data.task

    @property
    def seeds(self) -> list[int]:
        return self.settings.seeds

    def counted(self) -> list[ResultRow]:
        """The rows of count models, which are not trained."""
        # They depend on the split alone.
        seeds = self.seeds if self.data.task_class.splits_differ else self.seeds[:1]
        splits = [
            comparison_of(trainer_of(self.data, self.args, seed), self.data, seed).counted()
            for seed in seeds
        ]
        return [pooled_row(self.task, parts) for parts in zip(*splits, strict=True)]

    def of_paper(self, table: str) -> str:
        """The paper's figures for this table and data set, if it has some. Only the order of their
        rows can be compared: its sizes are others.
        """
        paper = parse_mapping(PAPER.read_bytes(), PAPER, "YAML")[table].get(self.dataset)
        if paper is None:
            return ""
        figures = [[f"{x:.2f}" for x in row] for row in paper["rows"].values()]
        rows = [dict(zip(paper["metrics"], row, strict=True)) for row in figures]
        shown = markdown(
            [{"the paper": name, **row} for name, row in zip(paper["rows"], rows, strict=True)]
        )
        return f"\nThe paper's figures are of {paper['size']}:\n\n{shown}\n"

    def omega(self) -> dict[str, str]:
        """The settings of Ω, as a fact for the card."""
        r = self.recording
        recorded = (
            f"{r.num_recorded} trainings of {r.trajectory_steps} steps, a checkpoint every"
            f" {r.save_every}"
        )
        starts = (
            f"share of fresh starts {self.args.fresh_start_fraction}, latest start"
            f" {self.args.last_start}"
        )
        return {"Ω": f"{recorded}; {starts}"}

    def plot(
        self,
        rows: Sequence[ResultRow],
        file: str,
        metric: str | None = None,
        label: str | None = None,
    ) -> None:
        """Draws the rows side by side into the card's folder; by default their main metric."""
        metric = metric or self.task.metric
        label = label or self.task.metric_label
        plot_comparison(rows, self.folder / file, metric, metric_label=label)

    def write(
        self,
        rows: Sequence[ResultRow],
        findings: Sequence[str],
        more: str = "",
        columns: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        """Writes the card: `table.json`, `table.csv` and `table.md`. It also prints `table.md`.

        Args:
            findings: sentences that come first.
            more: Markdown after the table.
            columns: more columns, which the task does not show: title by name.
            facts: facts of this table, beside the facts of all tables; by default those of the
                inner optimizer.
        """
        facts = {
            **shared_facts(self),
            **({"inner optimizer": self.args.inner_settings()} if facts is None else facts),
            "seconds of all cells": round(sum(row.get("seconds", 0) for row in rows)),
            **environment(self.args),
        }
        table = []
        for row in rows:
            own = {
                title: f"{row[name]:,.4g}" if name in row else ""
                for name, title in (columns or {}).items()
            }
            seconds = f"{row['seconds']:,.0f}" if "seconds" in row else ""
            table.append({**self.task.readable(row), **own, "seconds": seconds})
        first = "".join(f"{finding}\n\n" for finding in findings)
        title = f"{self.title}, {self.dataset}, {self.scale} scale"
        text = f"# {title}\n\n{first}{markdown(table)}\n\n{listed(facts)}\n{more}"
        save_json({"findings": list(findings), "rows": rows, **facts}, self.folder / "table.json")
        save_text(text, self.folder / "table.md")
        save_csv(rows, self.folder / "table.csv")
        print(f"\n{text}\nTable: {self.folder / 'table.md'}")


def shared_facts(e: Experiment) -> dict[str, Any]:
    """The settings that all rows share."""
    args = e.args
    return {
        "data set": e.data.settings.dataset,
        "size": f"[{args.num_sequences}×{args.sequence_length}]",
        **INPUTS[args.inputs].words_of_settings(args),
        "labels": args.labels,
        **({"teachers": e.data.settings.teachers} if e.data.settings.teacher is not None else {}),
        "inner steps T": args.inner_steps,
        "differentiated": f"the last {args.window}" if args.window else "all",
        "synthetic sequences per inner step": args.synthetic_batch_size or args.num_sequences,
        "outer steps": args.max_steps,
        **(e.omega() if args.trajectories is not None else {}),
        "seeds": list(e.seeds),
        "students per seed": e.data.settings.num_students,
        "scale": e.scale,
    }


def full_data_claim(task: Task, subject: str, ours: str, full: str) -> Claim:
    """The paper's claim of `subject`, the summary: in recommendation, it is as good as full data;
    in text, it is worse.
    """
    if isinstance(task, Recommendation):
        return Claim(
            f"{subject[0].upper()}{subject[1:]} does at least 98 % as well as full data",
            ours,
            full,
            0.98,
        )
    return Claim(f"In text, full data is better than {subject}", full, ours)
