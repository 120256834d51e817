"""Users' histories: the last item of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from datasets import Dataset
from torch import Tensor
from transformers import EvalPrediction

from farzi_hf.data import (
    InteractionCollator,
    SequenceCollator,
    evaluation_windows,
    training_windows,
)
from farzi_hf.data.sequences import check_unpadded
from farzi_hf.tasks.base import Outputs, Row, Statistics, Task, count_cells
from farzi_hf.tasks.baselines import (
    InterpolatedBigram,
    popularity,
    ranks_of_scores,
)
from farzi_hf.tasks.metrics import (
    mean_and_spread,
    ranking_intervals,
    recommendation_metrics,
    target_ranks,
)
from farzi_hf.tasks.modules import evaluate_module


class Recommendation(Task):
    """Users' histories: the last item of each. Data sets are whole histories. Each seed has its own split of the users.

    ```python
    histories = interactions.strong_generalization_split(seed=0)
    FarziTrainer(learner_init=SASRecConfig(…), args=args, task=Recommendation(interactions.vocabulary),
                 train_dataset=histories["train"], eval_dataset=histories["validation"])
    ```

    Args:
        processing_class: the names of padding and items, `Interactions.vocabulary`.
    """

    label_names = ("labels", "seen")  # the ranking leaves out items that the user has had
    metric = "hr@100"
    metric_label = "Test HR@100"
    percent = True
    ratio_label = "our HR@100 over its"
    compared = ("hr@10", "hr@100", "ndcg@10", "auc")
    entries = "items"
    shown: ClassVar[Mapping[str, str]] = {
        "hr@10": "HR@10, %", "hr@100": "HR@100, %", "ndcg@10": "nDCG@10, %", "auc": "AUC, %",
    }  # fmt: skip
    """The metrics of a table, with their titles."""

    @cached_property
    def collator(self) -> SequenceCollator:
        return InteractionCollator()

    def training_rows(self, sequences: Dataset, length: int) -> Dataset:
        """Windows: see `training_windows`."""
        check_unpadded(sequences)
        return training_windows(sequences, length)

    def evaluation_rows(self, sequences: Dataset, length: int) -> Dataset:
        """The last items of each history, and all items that the user has had: see `evaluation_windows`."""
        check_unpadded(sequences)
        return evaluation_windows(sequences, length)

    def preprocess_logits_for_metrics(self, logits: Tensor, labels: Any) -> Tensor:
        return target_ranks(logits, labels)

    def compute_metrics(self, eval_prediction: EvalPrediction) -> dict[str, float]:
        return recommendation_metrics(eval_prediction)

    def statistics(self, outputs: Outputs, sequences: Dataset, length: int) -> np.ndarray:
        """(N, 2): rank and AUC of each user's last item."""
        rows = self.evaluation_rows(sequences, length)
        return np.stack(outputs(rows, lambda logits, batch: target_ranks(logits, (batch["labels"], batch["seen"]))))

    def metrics(self, statistics: np.ndarray) -> dict[str, float]:
        return evaluate_module("ranking").compute(predictions=statistics)

    def row(self, method: str, students: Statistics, nbytes: int) -> Row:
        """Intervals are computed over the users of all splits, and the spread over splits and students.

        A user may be among the test users of several splits, and counts as another one each time. So intervals over many splits are
        a little too narrow: in simulations with 943 users, those of 95 % covered 93 % for one split and 90 % for five.
        """
        seeds = [np.asarray(seed) for seed in students]  # (students, N, 2) each
        users = np.concatenate(seeds, axis=1)
        results = [self.metrics(values) for seed in seeds for values in seed]
        metrics = mean_and_spread(results) if len(results) > 1 else results[0]
        intervals = {f"{name}_interval": list(edges) for name, edges in ranking_intervals(users).items()}
        return {"method": method, **metrics, **intervals, "bytes": nbytes}

    def error(self, statistics: np.ndarray) -> float:
        return -self.metrics(statistics)["hr@100"]

    def counted(self, train: Dataset, validation: Dataset, test: Dataset, vocab_size: int) -> dict[str, np.ndarray]:
        """Popularity and an interpolated bigram of items."""
        counts, items = popularity(train, vocab_size), np.arange(vocab_size)
        bigram = InterpolatedBigram.fit(train, vocab_size, validation)
        models = {
            "popularity": lambda history: counts,
            "item bigram": lambda history: bigram.probabilities(np.full(vocab_size, history[-1]), items),
        }
        return {name: ranks_of_scores(scores, test["input_ids"]) for name, scores in models.items()}

    def headline(self, row: Row) -> str:
        return ", ".join(f"{name.upper()} {100 * row[name]:.1f} %" for name in ("hr@10", "hr@100"))

    def readable(self, row: Row) -> dict[str, str]:
        def percent(name: str) -> str:
            if name not in row:
                return ""
            spread = f" ± {100 * row[f'{name}_std']:.1f}" if f"{name}_std" in row else ""
            edges = row.get(f"{name}_interval")
            interval = f" ({100 * edges[0]:.1f}–{100 * edges[1]:.1f})" if edges else ""
            return f"{100 * row[name]:.1f}{spread}{interval}"

        shown = {title: percent(name) for name, title in self.shown.items()}
        return {"trained on": row["method"], **shown, **count_cells(row)}

    def paired(self, ours: Statistics, theirs: Statistics) -> tuple[np.ndarray, Callable[[np.ndarray], float]]:
        """The quotient is our HR@100 divided by theirs, over the users of all seeds."""
        hits = [
            np.concatenate([(np.asarray(seed)[:, :, 0] <= 100).mean(axis=0) for seed in group])
            for group in (ours, theirs)
        ]

        def quotient(rows: np.ndarray) -> float:
            mine, others = rows.mean(axis=0)
            if not others:  # as in a resample of few users
                return float("inf") if mine else float("nan")
            return float(mine / others)

        return np.stack(hits, axis=1), quotient
