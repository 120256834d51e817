"""What a run says of itself: how its summary came about, from what, at what cost, and how it looks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _common import environment
from _comparison import Comparison
from datasets import load_dataset

from farzi_hf.artefact.card import TABLES
from farzi_hf.evaluation import popularity
from farzi_hf.plots import plot_entropy, plot_popularity, plot_tokens


def run_facts(c: Comparison, dataset: str) -> dict[str, Any]:
    """How the summary came about. The time is that of outer steps, over all resumed runs, without evaluations."""
    args, previous, seconds = c.trainer.args, 0, 0.0
    for entry in c.trainer.state.log_history:
        if "seconds_per_step" in entry:
            seconds += entry["seconds_per_step"] * (entry["step"] - previous)
            previous = entry["step"]
    return {
        "dataset": dataset,
        "vocabulary": c.trainer.learner.vocab_size,
        "learner_parameters": sum(p.numel() for p in c.trainer.learner.model.parameters()),
        "summary_parameters": sum(p.numel() for p in c.trainer.model.parameters()),
        "tokens_per_inner_step": c.tokens_per_step,
        "inner_steps": args.inner_steps,
        "outer_steps": c.trainer.state.global_step,
        "distillation_seconds": round(seconds, 1),
        "seed": args.seed,
        **environment(args),
    }


@dataclass(frozen=True)
class Source:
    """A data set as a card names it, its licence as the Hub names it, and that in a sentence."""

    title: str
    licence: str
    text: str


_MOVIELENS = "The source, MovieLens, may be used for research; GroupLens forbids to redistribute it."
SOURCES = {
    "ptb": Source(
        "Penn Treebank", "other",
        "The source, Penn Treebank, is licensed by the Linguistic Data Consortium (LDC99T42): ask there before publishing what "
        "is distilled from it.",
    ),
    "ml-100k": Source("MovieLens-100k", "other", _MOVIELENS),
    "ml-1m": Source("MovieLens-1M", "other", _MOVIELENS),
    "magazine": Source(
        "Amazon Magazine Subscriptions", "other",
        "The source, Amazon reviews of magazine subscriptions, was collected for research and states no licence.",
    ),
    "netflix": Source(
        "the Netflix Prize data", "other", "The source was for the contest and for research, and may not be redistributed."
    ),
    "sample": Source(
        "the sample data of farzi_hf", "apache-2.0",
        "The source is made up by farzi_hf itself, whose licence is Apache-2.0; it speaks of no real people.",
    ),
}  # fmt: skip


def provenance(c: Comparison, dataset: str, split: str, script: str) -> dict[str, Any]:
    """What the card says of the source: see `farzi_hf.card.render_card`."""
    facts = {
        "dataset": dataset,
        "data_bytes": c.nbytes(c.splits["train"]),
        "data_sequences": len(c.splits["train"]),
        "split": f"{split}; seed of the distillation {c.seed}",
        "command": f"accelerate launch recipes/{script} --config recipe.yaml",
    }
    if source := SOURCES.get(dataset):
        facts |= {"dataset": source.title, "licence": source.licence, "licence_text": source.text}
    return facts


def cost(c: Comparison) -> dict[str, float]:
    """Seconds of a training on the summary, and of one on the full data that does as well on the validation split.

    The latter takes T, 2 T, 4 T, … steps, up to `long_steps`; where none of them does as well, nothing is said of it.
    """
    start = time.perf_counter()
    student = c.student(c.trainer.train_student(0))
    facts = {"student_seconds": round(time.perf_counter() - start, 2)}
    error, steps = c.validation_error(student), c.steps
    while steps <= max(c.steps, c.long_steps):
        start = time.perf_counter()
        student = c.train_on_real(c.splits["train"], steps, c.seeds[0])
        seconds = round(time.perf_counter() - start, 2)
        if c.validation_error(student) <= error:
            return {**facts, "full_data_seconds": seconds, "full_data_steps": steps}
        steps *= 2
    return facts


def draw_summary(c: Comparison, folder: Path) -> list[Path]:
    """The figures of the summary itself."""
    farzi, size, entries = c.trainer.model, c.trainer.learner.vocab_size, c.entries
    paths = [folder / f"{name}.png" for name in ("tokens", "entropy", "popularity")]
    decoded, counts = farzi.decode(5), popularity(c.splits["train"], size)
    plot_tokens(decoded, paths[0])
    plot_entropy(decoded, paths[1], vocab_size=size)
    plot_popularity(
        {"summary": farzi.frequencies().cpu().numpy(), "real data": counts}, counts, paths[2], entries=entries
    )
    return paths


def listed(facts: Mapping[str, Any]) -> str:
    """Facts as Markdown."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def check_loadable(folder: Path) -> None:
    """The proof that anyone can load it, past the cache of earlier runs."""
    with tempfile.TemporaryDirectory() as cache:
        for name in TABLES:
            load_dataset(str(folder), name, split="train", cache_dir=cache)


def how_to_load(folder: Path) -> str:
    """What a user types."""
    return (
        "Load the summary:\n\n    from datasets import load_dataset\n    from farzi_hf import FarziData\n"
        f"    rows, farzi = load_dataset({str(folder)!r}), FarziData.from_pretrained({str(folder)!r})\n"
    )
