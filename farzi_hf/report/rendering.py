"""Facts about a run, for its table and its card: versions, the source data and its licence, and the
cost of training.
"""

import math
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from transformers import TrainingArguments

import farzi_hf
from farzi_hf.report.comparison import Comparison
from farzi_hf.report.provenance import PROVENANCES
from farzi_hf.report.task_data import TaskData
from farzi_hf.tasks import Recommendation, Task


def environment(args: TrainingArguments) -> dict[str, Any]:
    """The facts on which a result depends beside its recipe and seeds: versions and hardware."""
    return {
        "world_size": args.world_size,
        "device": args.device.type,
        "farzi_hf": farzi_hf.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        **commit_of(Path(__file__)),
    }


def commit_of(path: Path) -> dict[str, str]:
    """The fact `commit` of the repository that this file belongs to. There is none without git, or
    for a copy that a repository ignores.

    It ends with -dirty where files differ from the commit. Texts do not count, nor results, which
    the program itself may have written.
    """

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(path.parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    code = (":(top)", ":(top,exclude)model_cards", ":(top,exclude)*.md")
    try:
        git("ls-files", "--error-unmatch", path.name)
        changed = git("diff", "--name-only", "HEAD", "--", *code)
        commit = git("describe", "--always")
    except (OSError, subprocess.CalledProcessError):
        return {}
    return {"commit": f"{commit}-dirty" if changed else commit}


def distillation_seconds(log_history: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of the start and of all outer steps, without evaluations. The steps before each
    resume are counted too.
    """
    seconds = 0.0
    previous_step = 0
    for entry in log_history:
        seconds += entry.get("start_seconds", 0.0)
        if "seconds_per_step" in entry:
            steps = entry["step"] - previous_step
            seconds += entry["seconds_per_step"] * steps
            previous_step = entry["step"]
    return seconds


def provenance(c: Comparison, data: TaskData, seed: int) -> dict[str, Any]:
    """Facts about the source data, for the card: see `farzi_hf.summary.store.card.render_card`."""
    settings = data.settings
    split = data.task.split_label
    if data.task_class.splits_differ:
        split += f", seed {seed}"
    facts = {
        "dataset": settings.dataset,
        "data_sequences": len(c.splits["train"]),
        "split": f"{split}; seed of the distillation {c.seed}",
        "command": "farzi distil recipe.yaml",
    }
    if settings.licence is not None:
        facts["licence"] = settings.licence
    if settings.language is not None:
        facts["language"] = settings.language
    return {**facts, **PROVENANCES.get(settings.dataset, {})}


_MOST_HALVINGS = 4
"""Of the steps of a training on the full data."""


def cost(c: Comparison) -> dict[str, float]:
    """Seconds of two trainings: one on the summary, and one on the full data that is as good on the
    validation split.

    The second training is that of the row "full data, long" with fewer steps: a sixteenth of its
    steps, an eighth, …, all. If none is as good, its facts are left out.
    """
    start = time.perf_counter()
    student = c.summary_student(0)
    facts = {"student_seconds": _seconds_since(start)}
    error = c.validation_error(student)
    if not math.isfinite(error):  # any training would be as good as one that diverged
        return facts
    for halvings in range(_MOST_HALVINGS, -1, -1):
        steps = max(1, c.long_training.steps >> halvings)
        start = time.perf_counter()
        student, steps_taken = c.long_student(c.seeds[0], steps)
        seconds = _seconds_since(start)
        if c.validation_error(student) <= error:
            return {**facts, "full_data_seconds": seconds, "full_data_steps": steps_taken}
    return facts


def _seconds_since(start: float) -> float:
    return round(time.perf_counter() - start, 2)


def ratios(
    task: Task, seeds: Sequence[Sequence[Mapping[str, Any]]], ours: str, other: str
) -> dict[str, str]:
    """A recommender's metrics of one row divided by those of another one, in per cent, with
    intervals paired over users. `seeds` are the rows of each seed, as `Measured.to_json` gives
    them.
    """
    students: dict[str, list[np.ndarray]] = {ours: [], other: []}
    for rows in seeds:
        for row in rows:
            if row["method"] in students:
                students[row["method"]].append(np.asarray(row["students"]))
    if any(len(of_seeds) != len(seeds) for of_seeds in students.values()):
        return {}
    parts = []
    for name in Recommendation.shown:
        share, interval = task.ratio(students[ours], students[other], name)
        parts.append(f"{name.upper()} {_percent(share, interval)}")
    short_name = ours.partition(" [")[0]
    return {f"{short_name} / {other}": ", ".join(parts)}


def _percent(share: float, interval: tuple[float, float]) -> str:
    """A share with its interval in per cent; a dash where it is not known."""
    if not math.isfinite(share):
        return "–"
    low, high = interval
    return f"{100 * share:.1f} % ({100 * low:.1f}–{100 * high:.1f})"
