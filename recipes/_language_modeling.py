"""Rows of a language model's table: perplexity, and models that are counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from _comparison import Comparison, Row, Student
from datasets import Dataset

from farzi_hf.data import flatten_sequences
from farzi_hf.evaluation import InterpolatedBigram
from farzi_hf.evaluation.metrics.language_modeling import (
    corpus_perplexity,
    pad_statistics,
    sentence_totals,
    token_metrics,
    token_statistics,
)
from farzi_hf.evaluation.metrics.resampling import bootstrap_interval, mean_and_spread


@dataclass(frozen=True)
class LanguageModelComparison(Comparison):
    """Statistics are those of each predicted token, as `farzi_hf.metrics.token_statistics`."""

    entries: ClassVar[str] = "tokens"

    def statistics(self, student: Student, sequences: Dataset) -> np.ndarray:
        """(N, L − 1, 3); sorted by length, so that little is padded."""
        by_length = sequences.select(np.argsort(flatten_sequences(sequences)[1], kind="stable"))
        return pad_statistics(self.outputs(student, by_length, lambda z, batch: token_statistics(z, batch["labels"])))

    def row(self, method: str, statistics: Sequence[np.ndarray], nbytes: int) -> Row:
        return metrics_row(method, statistics, nbytes)

    def headline(self, row: Row) -> str:
        return f"perplexity {row['perplexity']:,.1f}"

    def validation_error(self, student: Student) -> float:
        return token_metrics(self.statistics(student, self.splits["validation"]))["perplexity"]


def metrics_row(method: str, statistics: Sequence[np.ndarray], nbytes: int) -> Row:
    """Metrics as mean and spread over students, (N, L − 1, 3) each, and a bootstrap interval of that mean over sequences."""
    totals = np.stack([sentence_totals(values) for values in statistics], axis=1)

    def mean_perplexity(rows: np.ndarray) -> float:
        return float(np.mean([corpus_perplexity(rows[:, student]) for student in range(rows.shape[1])]))

    results = [token_metrics(values) for values in statistics]
    return {
        "method": method,
        **(mean_and_spread(results) if len(results) > 1 else results[0]),
        "perplexity_interval": list(bootstrap_interval(totals, mean_perplexity)),
        "bytes": nbytes,
    }


def count_rows(c: Comparison) -> list[Row]:
    """Unigram and interpolated bigram: counted, not trained."""
    train, validation, test = (c.splits[name] for name in ("train", "validation", "test"))
    bigram = InterpolatedBigram.fit(train, c.trainer.learner.vocab_size, validation)
    models = {"unigram": bigram.unigram, "interpolated bigram": bigram}
    return [metrics_row(method, [model.token_statistics(test)], c.nbytes(train)) for method, model in models.items()]


def readable(row: Row) -> dict[str, str]:
    """A row as the table shows it."""

    def digits(value: float) -> int:
        return 1 if value < 1000 else 0

    def spread(name: str, scale: int = 1) -> str:
        values = [scale * row[key] for key in (name, f"{name}_std") if key in row]
        return " ± ".join(f"{value:,.{digits(values[0])}f}" for value in values)

    return {
        "trained on": row["method"],
        "perplexity": spread("perplexity"),
        "95 % interval": " – ".join(f"{edge:,.{digits(edge)}f}" for edge in row["perplexity_interval"]),
        "sentence perplexity": spread("sentence_perplexity"),
        "accuracy, %": spread("accuracy", scale=100),
        "bytes": f"{row['bytes']:,}",
        "steps": f"{row['steps']:,}" if "steps" in row else "",
        "students": str(row.get("students", "")),
    }
