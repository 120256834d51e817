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
    versions = {
        "farzi_hf": farzi_hf.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    return {
        "world_size": args.world_size,
        "device": args.device.type,
        **versions,
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

    try:
        git("ls-files", "--error-unmatch", path.name)
        changed = git(
            "diff",
            "--name-only",
            "HEAD",
            "--",
            ":(top)",
            ":(top,exclude)model_cards",
            ":(top,exclude)*.md",
        )
        return {"commit": git("describe", "--always") + ("-dirty" if changed else "")}
    except (OSError, subprocess.CalledProcessError):
        return {}


def distillation_seconds(log_history: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of the start and of all outer steps, without evaluations. The steps before each
    resume are counted too.
    """
    previous, seconds = 0, 0.0
    for entry in log_history:
        seconds += entry.get("start_seconds", 0.0)
        if "seconds_per_step" in entry:
            seconds += entry["seconds_per_step"] * (entry["step"] - previous)
            previous = entry["step"]
    return seconds


def provenance(c: Comparison, data: TaskData, seed: int) -> dict[str, Any]:
    """Facts about the source data, for the card: see `farzi_hf.summary.store.card.render_card`."""
    name = data.settings.dataset
    seed_of_split = f", seed {seed}" if data.task_class.splits_differ else ""
    return {
        "dataset": name,
        "data_sequences": len(c.splits["train"]),
        "split": f"{data.task.split_label}{seed_of_split}; seed of the distillation {c.seed}",
        "command": "farzi distil recipe.yaml",
        **({} if data.settings.licence is None else {"licence": data.settings.licence}),
        **PROVENANCES.get(name, {}),
    }


def cost(c: Comparison) -> dict[str, float]:
    """Seconds of two trainings: one on the summary, and one on the full data that is as good on the
    validation split.

    The second training is that of the row "full data, long" with fewer steps: a sixteenth of its
    steps, an eighth, …, all. If none is as good, its facts are left out.
    """
    start = time.perf_counter()
    student = c.summary_student(0)
    facts = {"student_seconds": round(time.perf_counter() - start, 2)}
    error = c.validation_error(student)
    if not math.isfinite(error):  # any training would be as good as one that diverged
        return facts
    for halvings in range(4, -1, -1):
        steps = max(1, c.long_training.steps >> halvings)
        start = time.perf_counter()
        student, taken = c.long_student(c.seeds[0], steps)
        seconds = round(time.perf_counter() - start, 2)
        if c.validation_error(student) <= error:
            return {**facts, "full_data_seconds": seconds, "full_data_steps": taken}
    return facts


def ratios(
    task: Task, seeds: Sequence[Sequence[Mapping[str, Any]]], ours: str, other: str
) -> dict[str, str]:
    """A recommender's metrics of one row divided by those of another one, in per cent, with
    intervals paired over users. `seeds` are the rows of each seed, as `Measured.to_json` gives
    them.
    """
    found = [row for rows in seeds for row in rows]
    mine, theirs = (
        [np.asarray(row["students"]) for row in found if row["method"] == method]
        for method in (ours, other)
    )
    if not len(mine) == len(theirs) == len(seeds):
        return {}
    shares = []
    for name in Recommendation.shown:
        share, (low, high) = task.ratio(mine, theirs, name)
        known = (
            f"{100 * share:.1f} % ({100 * low:.1f}–{100 * high:.1f})"
            if math.isfinite(share)
            else "–"
        )
        shares.append(f"{name.upper()} {known}")
    return {f"{ours.partition(' [')[0]} / {other}": ", ".join(shares)}
