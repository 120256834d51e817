"""Tables whose rows are distillations: each (method, seed) is a cell that is run once, kept, and found again."""

from __future__ import annotations

import gc
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from _common import ROOT, markdown, save_csv, save_text
from _comparison import Comparison, Row, Student
from _report import listed
from _runs import begin_run, check_outputs, find_checkpoint
from _tasks import Task, TrajectoryArguments, changed, record
from safetensors.torch import load_file, save_file

from farzi_hf import FarziConfig
from farzi_hf.artefact.atomic_folder import replace_file
from farzi_hf.evaluation.metrics.resampling import mean_and_spread
from farzi_hf.summary import INITIALIZATIONS
from farzi_hf.summary.initialization import spectral

Done = dict[str, Any]
"""What a cell of one seed leaves: `students`, what `Task.compact` leaves of each one's statistics; `bytes`, `seconds`, `facts`, …"""

Students = Callable[[Comparison], tuple[list[Student], int]]
"""Trained students, and the bytes that they were trained on."""


def on_summary(c: Comparison) -> tuple[list[Student], int]:
    """Students on the summary as it is now."""
    return [c.student(c.trainer.train_student(i)) for i in range(c.num_students)], c.trainer.model.nbytes


def on_random(c: Comparison) -> tuple[list[Student], int]:
    """Each on μ random real sequences."""
    return c.real_students(c.draw_sequences, c.steps, c.seeds)


def on_head(c: Comparison) -> tuple[list[Student], int]:
    """On the μ longest real sequences."""
    return c.real_students(c.longest_sequences, c.steps, c.seeds)


def on_everything(c: Comparison) -> tuple[list[Student], int]:
    """On all real data, for as many steps as the others."""
    return c.real_students(c.all_sequences, c.steps, c.seeds)


def on_everything_long(c: Comparison) -> tuple[list[Student], int]:
    """For `long_steps` steps."""
    return [c.long_student(seed) for seed in c.seeds], c.nbytes(c.splits["train"])


@dataclass(frozen=True)
class Cell:
    """One row's recipe.

    Args:
        method: its name.
        settings: of `FarziConfig`, over those that all rows share.
        students: what is measured in the end.
        distils: whether there is a distillation before.
        learner: of the students and of the distillation; None is the task's.
        source: the cell on whose summary the students are trained; it is run first. None: this one.
        prepare: changes the trainer before it trains.
        facts: numbers to be measured beside the students' metrics.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    students: Students = on_summary
    distils: bool = True
    learner: Mapping[str, Any] | None = None
    source: Cell | None = None
    prepare: Callable[[Comparison], None] | None = None
    facts: Callable[[Comparison, Sequence[Student]], Mapping[str, float]] | None = None

    @property
    def slug(self) -> str:
        """The name as a folder."""
        return re.sub(r"[^a-z0-9]+", "-", self.method.lower()).strip("-")


def results(task: Task, cells: Sequence[Cell], seeds: Sequence[int], how: TrajectoryArguments) -> dict[str, list[Done]]:
    """What each cell left, by method, one entry per seed. Cells in `output_dir` that were run with the same settings are not run again."""
    found: dict[str, list[Done]] = {cell.method: [] for cell in cells}
    for cell, seed in product(cells, seeds):  # before any work
        check_outputs(_folder(task, cell, seed), (CELL, SUMMARY))
    for cell in cells:
        for seed in seeds:
            found[cell.method].append(_run(task, cell, seed, how))
            gc.collect()  # a Trainer refers to itself, and its summary and learner would stay for a while
    return found


def cell_row(task: Task, method: str, done: Sequence[Done]) -> Row:
    """The row of a cell's seeds; of its facts, mean and spread over them."""
    row = task.row(method, [part["students"] for part in done], round(np.mean([part["bytes"] for part in done])))
    row |= {"steps": done[0]["steps"], "students": sum(len(part["students"]) for part in done)}
    row |= mean_and_spread([part["facts"] for part in done]) if "facts" in done[0] else {}
    return {**row, "seconds": round(sum(part["seconds"] for part in done), 1)}


def _run(task: Task, cell: Cell, seed: int, how: TrajectoryArguments) -> Done:
    if cell.source is not None:
        _run(task, cell.source, seed, how)
    folder, args, asked = _folder(task, cell, seed), _arguments(task, cell, seed), _asked(task, cell, seed, how)
    path = folder / CELL
    if path.exists():
        done = json.loads(path.read_text(encoding="utf-8"))
        if done["asked"] == asked:
            return done
    resume = task.recipe.resume
    checkpoint = find_checkpoint(args, asked, resume, (CELL, SUMMARY), exactly=True) if cell.distils else None
    begin = time.perf_counter()
    if args.trajectories is not None:
        record(task, args, seed, how)
    c = task.comparison(args, seed, cell.learner)
    if cell.prepare is not None:
        cell.prepare(c)
    if cell.distils:
        begin_run(c.trainer, asked, checkpoint)
        c.trainer.train(resume_from_checkpoint=checkpoint)
        replace_file(folder / SUMMARY, lambda new: save_file(c.trainer.model.state_dict(), new))
    elif cell.source is not None:
        c.trainer.model.load_state_dict(load_file(_folder(task, cell.source, seed) / SUMMARY))
    elif cell.students is on_summary:
        c.trainer.tune_initialization()
    done = {"asked": asked, **_measured(task, cell, c), "history": c.trainer.state.log_history}
    done["seconds"] = time.perf_counter() - begin
    headline = c.headline(task.row(cell.method, [done["students"]], done["bytes"]))
    print(f"{cell.method}, seed {seed}: test {headline}, {done['seconds']:.0f} s", flush=True)
    save_text(json.dumps(done), path)
    return done


def _measured(task: Task, cell: Cell, c: Comparison) -> Done:
    students, nbytes = cell.students(c)
    statistics = [task.compact(c.statistics(student, c.splits["test"])) for student in students]
    steps = c.long_steps if cell.students is on_everything_long else c.steps
    done = {"bytes": nbytes, "steps": steps, "students": [values.tolist() for values in statistics]}
    return {**done, "facts": dict(cell.facts(c, students))} if cell.facts is not None else done


CELL, SUMMARY = "cell.json", "summary.safetensors"  # the latter: latents and decoder of a cell that distils


TABLE = ("table.json", "table.md", "table.csv")


def _folder(task: Task, cell: Cell, seed: int) -> Path:
    return Path(task.args.output_dir) / cell.slug / f"seed-{seed}"


def _arguments(task: Task, cell: Cell, seed: int) -> FarziConfig:
    return changed(task.args, **cell.settings, seed=seed, output_dir=str(_folder(task, cell, seed)))


def _asked(task: Task, cell: Cell, seed: int, how: TrajectoryArguments) -> dict[str, Any]:
    """All settings on which a cell depends: only with these is it the same cell."""
    args = _arguments(task, cell, seed)
    asked = {**task.recipe.to_recipe(), **args.to_recipe(), "num_students": task.recipe.num_students}
    if cell.learner is not None:
        asked["learner"] = cell.learner
    if args.trajectories is not None:
        asked |= {**asdict(how), "num_recorded": args.num_trajectories or how.num_recorded}
    if cell.source is not None:
        asked["source"] = _asked(task, cell.source, seed, how)
    if cell.prepare is not None:
        asked["prepare"] = cell.prepare.__name__
    return json.loads(json.dumps(asked))


def card_folder(name: str, dataset: str, scale: str, told: str | None, files: Sequence[str] = ()) -> Path:
    """Where a table and `files` go unless `told`: each scale has a folder of its own, so that a long run does not replace the quick one's card.

    Raises:
        ValueError: one of them is there already, and no recipe wrote it.
    """
    suffix = "" if scale == "quick" else f"_{scale}"
    folder = Path(told or ROOT.parent / "model_cards" / f"{name}_{dataset}{suffix}")
    check_outputs(folder, (*TABLE, *files))
    return folder


def write_table(
    task: Task,
    rows: Sequence[Row],
    facts: Mapping[str, Any],
    folder: Path,
    title: str,
    more: str = "",
    findings: Sequence[str] = (),
    columns: Mapping[str, str] | None = None,
) -> str:
    """`table.json`, `table.csv` and `table.md` in `folder`; returns the Markdown.

    Args:
        more: Markdown after the table.
        findings: sentences that come first.
        columns: numbers of the rows that the task does not show: title by name.
    """
    folder.mkdir(parents=True, exist_ok=True)
    table = markdown([_readable(task, row, columns or {}) for row in rows])
    first = "".join(f"{finding}\n\n" for finding in findings)
    text = f"# {title}\n\n{first}{table}\n\n{listed(facts)}\n{more}"
    kept = {"findings": list(findings), "rows": rows, **facts}
    save_text(json.dumps(kept, indent=1, ensure_ascii=False), folder / "table.json")
    save_text(text, folder / "table.md")
    save_csv(rows, folder / "table.csv")
    return text


def _readable(task: Task, row: Row, columns: Mapping[str, str]) -> dict[str, str]:
    more = {title: f"{row[name]:,.4g}" if name in row else "" for name, title in columns.items()}
    return {**task.readable(row), **more, "seconds": f"{row['seconds']:,.0f}" if "seconds" in row else ""}


def shared_facts(task: Task, args: FarziConfig, seeds: Sequence[int], how: TrajectoryArguments) -> dict[str, Any]:
    """What all rows have in common."""
    kappa = {"κ": "chosen by trial" if args.concentration is None else args.concentration}
    return {
        "data set": task.recipe.dataset,
        "size": f"[{args.num_sequences}×{args.sequence_length}], d = {args.latent_dim}",
        "start of the summary": args.initialization,
        **(kappa if INITIALIZATIONS[args.initialization] is spectral else {}),
        "inner steps T": args.inner_steps,
        "differentiated": f"the last {args.window}" if args.window else "all",
        "synthetic sequences per inner step": args.synthetic_batch_size or args.num_sequences,
        "outer steps": args.max_steps,
        "Ω": f"{how.num_recorded} trainings of {how.trajectory_steps} steps, a checkpoint every {how.save_every}; share of fresh "
        f"starts {args.fresh_start_fraction}, latest start {args.last_start}",
        "seeds": list(seeds),
        "students per seed": task.recipe.num_students,
    }
