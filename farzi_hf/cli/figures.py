"""The figures of one distillation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from farzi_hf.report import Comparison
from farzi_hf.report.plots import plot_comparison, plot_distillation, plot_entropy, plot_popularity, plot_tokens
from farzi_hf.tasks import Row, popularity

FIGURES = ("distillation", "comparison", "tokens", "entropy", "popularity")

History = Sequence[Mapping[str, Any]]
"""What a trainer has logged."""


def draw(c: Comparison, history: History, rows: Sequence[Row], folder: Path) -> list[Path]:
    """Draws all figures into a folder. Returns their files."""
    task = c.task
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.png" for name in FIGURES}
    if any(entry.keys() & {"loss", f"eval_{task.metric}"} for entry in history):
        draw_distillation(c, history, paths["distillation"])
    else:
        del paths["distillation"]  # the run was so short that nothing was logged
    plot_comparison(rows, paths["comparison"], task.metric, metric_label=task.metric_label)
    farzi, size = c.farzi, c.learner.vocab_size
    decoded, counts = farzi.contents().decoded, popularity(c.splits["train"], size)
    plot_tokens(decoded, paths["tokens"])
    plot_entropy(decoded, paths["entropy"], vocab_size=size)
    frequencies = {"summary": farzi.frequencies().cpu().numpy(), "real data": counts}
    plot_popularity(frequencies, counts, paths["popularity"], entries=task.entries)
    return list(paths.values())


def draw_distillation(c: Comparison, history: History, path: Path) -> None:
    """The curve of the outer loop, with horizontal lines to compare with, all on the validation split."""
    task = c.task
    student = c.real_student(c.splits["train"], c.steps, c.seeds[0])
    full_data = task.metrics(c.statistics(student, c.splits["validation"]))
    plot_distillation(
        history, path, metric=f"eval_{task.metric}", norm="grad_norm",
        metric_label=f"Validation {task.metric_label.removeprefix('Test ')} of fresh students",
        full_data_same_steps=full_data[task.metric], **task.reference_lines(c.splits, c.learner.vocab_size),
    )  # fmt: skip
