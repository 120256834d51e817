"""What a run says of itself: how its summary came about, from what, and at what cost."""

from __future__ import annotations

import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import get_dataset_config_names, load_dataset
from transformers import TrainingArguments

import farzi_hf
from farzi_hf.evaluation.comparison import Comparison
from farzi_hf.evaluation.published import PAPER
from farzi_hf.evaluation.task_data import TaskData
from farzi_hf.evaluation.tasks import Recommendation, Row


def environment(args: TrainingArguments) -> dict[str, Any]:
    """What a result depends on beside its recipe and seeds."""
    facts = {
        "world_size": args.world_size,
        "device": args.device.type,
        "farzi_hf": farzi_hf.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    with suppress(OSError, subprocess.CalledProcessError):  # no git, or a copy without its history
        facts["commit"] = subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
    return facts


def distillation_seconds(log_history: Sequence[Mapping[str, Any]]) -> float:
    """The time of the outer steps, over all resumed runs, without evaluations."""
    previous, seconds = 0, 0.0
    for entry in log_history:
        if "seconds_per_step" in entry:
            seconds += entry["seconds_per_step"] * (entry["step"] - previous)
            previous = entry["step"]
    return seconds


@dataclass(frozen=True)
class Provenance:
    """A data set as a card names it, its licence as the Hub names it, and that in a sentence."""

    title: str
    licence: str
    text: str


_MOVIELENS = "The source, MovieLens, may be used for research; GroupLens forbids to redistribute it."
_OURS = Provenance(
    "the sample data of farzi_hf", "apache-2.0",
    "The source is made up by farzi_hf itself, whose licence is Apache-2.0; it speaks of no real people.",
)  # fmt: skip
PROVENANCES = {
    "ptb": Provenance(
        "Penn Treebank", "other",
        "The source, Penn Treebank, is licensed by the Linguistic Data Consortium (LDC99T42): ask there before publishing what "
        "is distilled from it.",
    ),
    "ml-100k": Provenance("MovieLens-100k", "other", _MOVIELENS),
    "ml-1m": Provenance("MovieLens-1M", "other", _MOVIELENS),
    "magazine": Provenance(
        "Amazon Magazine Subscriptions", "other",
        "The source, Amazon reviews of magazine subscriptions, was collected for research and states no licence.",
    ),
    "netflix": Provenance(
        "the Netflix Prize data", "other", "The source was for the contest and for research, and may not be redistributed."
    ),
    "sample": _OURS,
    "sample_interactions": _OURS,
}  # fmt: skip


def provenance(c: Comparison, data: TaskData, seed: int) -> dict[str, Any]:
    """What the card says of the source: see `farzi_hf.artefact.render_card`."""
    name = data.settings.dataset
    facts = {
        "dataset": name,
        "data_bytes": c.nbytes(c.splits["train"]),
        "data_sequences": len(c.splits["train"]),
        "split": f"{data.split_label(seed)}; seed of the distillation {c.seed}",
        "command": "farzi distil recipe.yaml",
    }
    if known := PROVENANCES.get(name):
        facts |= {"dataset": known.title, "licence": known.licence, "licence_text": known.text}
    return facts


def cost(c: Comparison) -> dict[str, float]:
    """Seconds of a training on the summary, and of one on the full data that does as well on the validation split.

    The latter takes T, 2 T, 4 T, … steps, up to `long_steps`; where none of them does as well, nothing is said of it.
    """
    start = time.perf_counter()
    student = c.summary_student(0)
    facts = {"student_seconds": round(time.perf_counter() - start, 2)}
    error, steps = c.validation_error(student), c.steps
    while steps <= max(c.steps, c.long_steps):
        start = time.perf_counter()
        student = c.real_student(c.splits["train"], steps, c.seeds[0])
        seconds = round(time.perf_counter() - start, 2)
        if c.validation_error(student) <= error:
            return {**facts, "full_data_seconds": seconds, "full_data_steps": steps}
        steps *= 2
    return facts


def paper_rows(dataset: str, size: str) -> list[Row]:
    """What the paper reports of a recommender for this size, "μ×ξ", if anything, and for the whole data."""
    known = {name: values for name, values in PAPER.get(dataset, {}).items() if name in (size, "full data")}
    names = tuple(Recommendation.shown)
    return [{"method": f"the paper, {name}", **dict(zip(names, values, strict=True))} for name, values in known.items()]


def ratios(rows: Sequence[Row], ours: str, full: str = "full data, long") -> dict[str, str]:
    """A recommender's metrics on the summary over those on full data, in per cent; the paper's beside it where it has some."""
    by_method = {row["method"]: row for row in rows}
    facts = {}
    if ours in by_method and full in by_method:
        facts["Farzi / full data, long"] = _ratio(by_method[ours], by_method[full])
    reported = [row for row in rows if row["method"].startswith("the paper")]
    if len(reported) == 2:
        facts["the paper's"] = _ratio(*reported)
    return facts


def _ratio(row: Row, full: Row) -> str:
    return ", ".join(f"{name.upper()} {100 * row[name] / full[name]:.1f} %" for name in Recommendation.shown)


def check_loadable(folder: Path) -> None:
    """The proof that anyone can load it, past the cache of earlier runs."""
    with tempfile.TemporaryDirectory() as cache:
        for name in get_dataset_config_names(str(folder)):
            load_dataset(str(folder), name, split="train", cache_dir=cache)


def how_to_load(folder: Path) -> str:
    """What a user types."""
    return (
        "Load the summary:\n\n    from datasets import get_dataset_config_names, load_dataset\n    from farzi_hf import FarziData\n"
        f"    rows, farzi = load_dataset({str(folder)!r}), FarziData.from_pretrained({str(folder)!r})\n"
    )
