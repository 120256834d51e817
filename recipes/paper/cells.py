"""Tables whose rows are distillations. Each (method, seed) is a cell: it is run once and stored,
and later runs find it again.
"""

from __future__ import annotations

import copy
import gc
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from evidence import Evidence
from experiment import PAPER_FORM, Experiment, Forms, changed, record
from torch import Tensor

from farzi_hf import FarziConfig, FarziTrainer
from farzi_hf.cli.distil import comparison_of, trainer_of
from farzi_hf.cli.program import ends_in_one_line, keep_freed_memory
from farzi_hf.cli.run_folder import begin_run, check_outputs, find_checkpoint, kept
from farzi_hf.common.tensors import load_tensors, save_tensors
from farzi_hf.distillation.run import discard_checkpoints
from farzi_hf.metrics import mean_and_spread
from farzi_hf.report import Comparison, Measured, rows
from farzi_hf.report.full_data import FULL, LONG
from farzi_hf.report.rendering import distillation_seconds
from farzi_hf.summary.forms import LABELS
from farzi_hf.tasks import ResultRow, Task

CELL = "cell.json"
SUMMARY = "summary.safetensors"
"""Files of a cell; the second one holds the tensors of the summary, if the cell distils."""

Done = dict[str, Any]
"""The results of a cell for one seed: `students` (the statistics of each student), `bytes`,
`steps`, `seconds`, `facts`, …
"""

# -- students --------------------------------------------------------------------------------------


Students = Callable[[FarziTrainer, Comparison, str], Measured]
"""Trains the students of the row of that name, and measures them on the test split."""


def on_summary(trainer: FarziTrainer, c: Comparison, method: str) -> Measured:
    """Students on the present summary."""
    return rows.on_summary(c, method)


def on_start(trainer: FarziTrainer, c: Comparison, method: str) -> Measured:
    """Students on the summary before any outer step."""
    trainer.tune_initialization()
    trainer.model.store_as(trainer.args.storage)
    return rows.on_summary(c, method)


def on_real(draw: Callable[[Comparison, int], Dataset]) -> Students:
    """Students on real sequences: `draw(comparison, seed)`, those of each student."""
    return lambda trainer, c, method: c.trained_on_real(method, partial(draw, c), c.steps)


on_random = on_real(Comparison.draw_sequences)  # as many as the summary has
on_random_bytes = on_real(Comparison.draw_bytes)
on_head = on_real(Comparison.longest_sequences)
on_everything = on_real(Comparison.all_sequences)  # with as many steps as the others


def on_everything_long(trainer: FarziTrainer, c: Comparison, method: str) -> Measured:
    """Students on all real data, trained for as long as helps."""
    return replace(rows.full_long(c), method=method)


# -- cells -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """One row.

    Args:
        method: the row's name.
        settings: settings of `FarziConfig` that override the settings of all rows.
        students: makes the students to measure.
        distils: whether the cell distils first.
        learner: the learner of the students and of the distillation; None takes the learner of the
            run's settings.
        source: the cell whose summary the students train on; that cell is run first. None means
            this cell.
        facts: a function that measures more numbers beside the students' metrics.
    """

    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    students: Students = on_summary
    distils: bool = True
    learner: Mapping[str, Any] | None = None
    source: Cell | None = None
    facts: Callable[[FarziTrainer, Comparison], Mapping[str, float]] | None = None

    @property
    def slug(self) -> str:
        """The cell's name as the name of a folder."""
        return re.sub(r"[^a-z0-9]+", "-", self.method.lower()).strip("-")


def compared(
    name: str,
    title: str,
    argv: Sequence[str] | None,
    cells: Callable[[Experiment], Sequence[Cell]],
    files: Sequence[str] = (),
    forms: Forms = PAPER_FORM,
) -> tuple[Experiment, Evidence]:
    """The experiment of the script `name`.py, and its rows: see `Experiment.parse`. A wrong setting
    ends the program with one line.
    """
    keep_freed_memory()
    with ends_in_one_line(f"{name}.py"):
        e = Experiment.parse(name, title, argv, files, forms)
        return e, evidence_of(e, cells(e))


def full_cells(learner: Mapping[str, Any] | None = None, suffix: str = "") -> list[Cell]:
    """Cells on all real data: one with as many steps as the others, and one trained for as long as
    helps.
    """
    both = ((FULL, on_everything), (LONG, on_everything_long))
    return [
        Cell(f"{name}{suffix}", students=students, distils=False, learner=learner)
        for name, students in both
    ]


def evidence_of(e: Experiment, cells: Sequence[Cell]) -> Evidence:
    """The rows of all cells. A cell in `output_dir` that was run with the same settings is not run
    again.
    """
    for cell, seed in product(cells, e.seeds):  # before any work
        check_outputs(_folder(e, cell, seed), ("recipe.yaml", CELL, SUMMARY))
    found: dict[str, list[Done]] = {cell.method: [] for cell in cells}
    for cell, seed in product(cells, e.seeds):
        found[cell.method].append(_run(e, cell, seed))
        # a Trainer refers to itself, so its summary and learner would stay in memory for a while
        gc.collect()
    table = {method: cell_row(e.task, method, done) for method, done in found.items()}
    return Evidence(
        e.task,
        table,
        {method: [part["students"] for part in done] for method, done in found.items()},
    )


def cell_row(task: Task, method: str, done: Sequence[Done]) -> ResultRow:
    """The row of a cell over all its seeds, with mean and spread of its facts."""
    row = task.row(
        method,
        [part["students"] for part in done],
        round(np.mean([part["bytes"] for part in done])),
    )
    row |= {"steps": done[0]["steps"], "students": sum(len(part["students"]) for part in done)}
    row |= mean_and_spread([part["facts"] for part in done]) if "facts" in done[0] else {}
    return {**row, "seconds": round(sum(part["seconds"] for part in done), 1)}


def _run(e: Experiment, cell: Cell, seed: int) -> Done:
    """The results of a cell for one seed. An earlier start with the same settings has kept them, or
    they are made now.
    """
    if cell.source is not None:
        _run(e, cell.source, seed)
    folder = _folder(e, cell, seed)
    done = kept(folder / CELL, _settings(e, cell, seed), lambda: _made(e, cell, seed))
    # Of a start that a signal ended: other settings would be refused because of it.
    discard_checkpoints(folder)
    return done


def _made(e: Experiment, cell: Cell, seed: int) -> Done:
    begin = time.perf_counter()
    trainer, checkpoint = _trained(e, cell, seed)
    history = trainer.state.log_history
    before = (
        []
        if checkpoint is None
        else [x for x in history if x["step"] <= int(checkpoint.rpartition("-")[2])]
    )
    c = comparison_of(trainer, e.data, seed)
    measured = cell.students(trainer, c, cell.method)
    return {
        "bytes": measured.nbytes,
        "steps": measured.steps,
        "students": measured.to_json()["students"],
        **({} if cell.facts is None else {"facts": dict(cell.facts(trainer, c))}),
        "history": history,
        "seconds": distillation_seconds(before) + time.perf_counter() - begin,
    }


def _trained(e: Experiment, cell: Cell, seed: int) -> tuple[FarziTrainer, str | None]:
    """The trainer of a cell, whose summary is the one on which the students will train, and the
    checkpoint from which it went on.
    """
    folder = _folder(e, cell, seed)
    args = _arguments(e, cell, seed)
    settings = _settings(e, cell, seed)
    checkpoint = None
    if cell.distils:
        checkpoint = find_checkpoint(args, (CELL, SUMMARY))
    if args.trajectories is not None:
        record(e.data, args, seed, e.recording)
    summary = None if cell.source is None else _loaded(_folder(e, cell.source, seed) / SUMMARY)
    form = LABELS[args.labels]
    if summary and "label_dim" in form.fields:  # by default the width of the learner's head
        args = changed(args, label_dim=len(summary["label_decoder"]))
    data = copy.copy(e.data)
    # A teacher of the kind that the source has distilled with.
    if summary and form.carries_teacher:
        data.settings = replace(data.settings, teacher=cell.source.learner)
    trainer = trainer_of(data, args, seed, cell.learner)
    if cell.distils:
        begin_run(trainer, settings, checkpoint)
        trainer.train(resume_from_checkpoint=checkpoint)
        tensors = {name: x.cpu().contiguous() for name, x in trainer.model.state_dict().items()}
        save_tensors(folder / SUMMARY, tensors)
    elif summary is not None:
        trainer.model.load_state_dict(summary)
        trainer.model.store_as(args.storage)
    return trainer, checkpoint


def _loaded(path: Path) -> dict[str, Tensor]:
    """The tensors of a summary that another cell has left."""
    try:
        return load_tensors(path)[0]
    except ValueError as error:
        raise ValueError(
            f"{str(path)!r} is damaged ({error}): remove its folder, and the same command makes it"
            " again"
        ) from None


def _folder(e: Experiment, cell: Cell, seed: int) -> Path:
    return Path(e.args.output_dir) / cell.slug / f"seed-{seed}"


def _arguments(e: Experiment, cell: Cell, seed: int) -> FarziConfig:
    return changed(e.args, **cell.settings, seed=seed, output_dir=str(_folder(e, cell, seed)))


def _settings(e: Experiment, cell: Cell, seed: int) -> dict[str, Any]:
    """All settings on which a cell depends. Two cells are the same only if these are equal."""
    args = _arguments(e, cell, seed)
    run = e.data.settings
    settings = {**e.data.identity(seed), **args.to_recipe(), "num_students": run.num_students}
    long = {name: getattr(run, name) for name in ("long_steps", "long_batch_size")}
    settings |= {name: value for name, value in long.items() if value is not None}
    if cell.learner is not None:
        settings["learner"] = cell.learner
    if args.trajectories is not None:
        settings |= {
            **asdict(e.recording),
            "num_recorded": args.num_trajectories or e.recording.num_recorded,
        }
    if cell.source is not None:
        settings["source"] = _settings(e, cell.source, seed)
    return json.loads(json.dumps(settings))
