"""Tables whose rows are distillations: each (method, seed) is a cell that is run once, kept, and found again."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from _common import markdown, prepare_run, save_csv
from _comparison import Comparison, Row, Student
from _report import listed
from _tasks import Task, TrajectoryArguments, changed, record

from farzi_hf import FarziConfig
from farzi_hf.atomic_folder import replace_file

Students = Callable[[Comparison], tuple[list[Student], int]]
"""Trained students, and the bytes that they were trained on."""


def on_summary(c: Comparison) -> tuple[list[Student], int]:
    """Students on the summary as it is now."""
    return [c.student(c.trainer.train_student(i)) for i in range(c.num_students)], c.trainer.model.nbytes


def on_random(c: Comparison) -> tuple[list[Student], int]:
    """Each on μ random real sequences."""
    subsets = {seed: c.draw_sequences(seed) for seed in _seeds(c)}
    students = [c.train_on_real(subset, c.steps, seed) for seed, subset in subsets.items()]
    return students, round(np.mean([c.nbytes(subset) for subset in subsets.values()]))


def on_everything(c: Comparison) -> tuple[list[Student], int]:
    """On all real data, for as many steps as the others."""
    train = c.splits["train"]
    return [c.train_on_real(train, c.steps, seed) for seed in _seeds(c)], c.nbytes(train)


def on_everything_long(c: Comparison) -> tuple[list[Student], int]:
    """For `long_steps` steps."""
    return [c.long_student(seed) for seed in _seeds(c)], c.nbytes(c.splits["train"])


def _seeds(c: Comparison) -> range:
    """Of students on real data: no two cells share one."""
    return range(1000 * c.seed, 1000 * c.seed + c.num_students)


@dataclass(frozen=True)
class Cell:
    """One row's recipe.

    Args:
        method: its name.
        settings: of `FarziConfig`, over those that all rows share.
        students: what is measured in the end.
        distils: whether there is a distillation before.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    students: Students = on_summary
    distils: bool = True

    @property
    def slug(self) -> str:
        """The name as a folder."""
        return re.sub(r"[^a-z0-9]+", "-", self.method.lower()).strip("-")


def run_cells(task: Task, cells: Sequence[Cell], seeds: Sequence[int], how: TrajectoryArguments) -> list[Row]:
    """One row per cell, over all seeds. Cells in `output_dir` that were run with the same settings are not run again."""
    rows = []
    for cell in cells:
        done = []
        for seed in seeds:
            done.append(_run(task, cell, seed, how))
            gc.collect()  # a Trainer refers to itself, and its summary and learner would stay for a while
        row = task.row(cell.method, [part["students"] for part in done], round(np.mean([x["bytes"] for x in done])))
        row |= {"steps": done[0]["steps"], "students": sum(len(part["students"]) for part in done)}
        rows.append({**row, "seconds": round(sum(part["seconds"] for part in done), 1)})
    return rows


def _run(task: Task, cell: Cell, seed: int, how: TrajectoryArguments) -> dict[str, Any]:
    folder = Path(task.args.output_dir) / cell.slug / f"seed-{seed}"
    args = changed(task.args, **cell.settings, seed=seed, output_dir=str(folder))
    asked = {**task.recipe.to_recipe(), **args.to_recipe(), "num_students": task.recipe.num_students}
    if args.trajectories is not None:
        asked |= {**asdict(how), "num_recorded": args.num_trajectories or how.num_recorded}
    path, asked = folder / "cell.json", json.loads(json.dumps(asked))
    if path.exists():
        done = json.loads(path.read_text(encoding="utf-8"))
        if done["asked"] == asked:
            return done
    begin = time.perf_counter()
    if args.trajectories is not None:
        record(task, args, seed, how)
    c = task.comparison(args, seed)
    if cell.distils:
        c.trainer.train(resume_from_checkpoint=prepare_run(args, asked, task.recipe.resume))
    students, nbytes = cell.students(c)
    statistics = [task.compact(c.statistics(student, c.splits["test"])) for student in students]
    seconds = time.perf_counter() - begin
    steps = c.long_steps if cell.students is on_everything_long else c.steps
    done = {"asked": asked, "bytes": nbytes, "steps": steps, "seconds": seconds, "history": c.trainer.state.log_history}
    done["students"] = [values.tolist() for values in statistics]
    row = task.row(cell.method, [statistics], nbytes)
    print(f"{cell.method}, seed {seed}: test {c.headline(row)}, {seconds:.0f} s", flush=True)
    replace_file(path, lambda new: new.write_text(json.dumps(done), encoding="utf-8"))
    return done


def write_table(
    task: Task, rows: Sequence[Row], facts: Mapping[str, Any], folder: Path, title: str, more: str = ""
) -> str:
    """`table.json`, `table.csv` and `README.md` in `folder`; returns the Markdown."""
    folder.mkdir(parents=True, exist_ok=True)
    seconds = [{"seconds": f"{row['seconds']:,.0f}" if "seconds" in row else ""} for row in rows]
    table = markdown([task.readable(row) | last for row, last in zip(rows, seconds, strict=True)])
    text = f"# {title}\n\n{table}\n\n{listed(facts)}\n{more}"
    (folder / "table.json").write_text(
        json.dumps({"rows": rows, **facts}, indent=1, ensure_ascii=False), encoding="utf-8"
    )
    (folder / "table.md").write_text(text, encoding="utf-8")
    save_csv(rows, folder / "table.csv")
    return text


def shared_facts(task: Task, args: FarziConfig, seeds: Sequence[int], how: TrajectoryArguments) -> dict[str, Any]:
    """What all rows have in common."""
    return {
        "data set": task.recipe.dataset,
        "size": f"[{args.num_sequences}×{args.sequence_length}], d = {args.latent_dim}",
        "start of the summary": args.initialization,
        "inner steps T": args.inner_steps,
        "synthetic sequences per inner step": args.synthetic_batch_size or args.num_sequences,
        "outer steps": args.max_steps,
        "Ω": f"{how.num_recorded} trainings of {how.trajectory_steps} steps, a checkpoint every {how.save_every}; share of fresh "
        f"starts {args.fresh_starts}, latest start {args.last_start}",
        "seeds": list(seeds),
        "students per seed": task.recipe.num_students,
    }
