"""Rows of a recommender's table: hit rate, nDCG and AUC over all items, of several splits of the users together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from _comparison import Comparison, Row, Student, model_student
from datasets import Dataset
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, Trainer, TrainingArguments

from farzi_hf.data import InteractionCollator, evaluation_windows, training_windows
from farzi_hf.evaluation import InterpolatedBigram, popularity
from farzi_hf.evaluation.metrics.ranking import rank_metrics, rank_statistics, ranking_intervals, target_ranks
from farzi_hf.evaluation.metrics.resampling import mean_and_spread

METRICS = ("hr@10", "hr@100", "ndcg@10", "auc")
# Tables 1 and 5 of the paper, SASRec: HR@10, HR@100, nDCG@10, AUC. One split, no intervals.
PAPER = {
    "magazine": {
        "10×10": (0.233, 0.523, 0.158, 0.8428), "25×20": (0.239, 0.523, 0.165, 0.8307),
        "50×20": (0.245, 0.521, 0.171, 0.8291), "full data": (0.232, 0.520, 0.169, 0.8223),
    },
    "ml-100k": {
        "10×150": (0.173, 0.612, 0.092, 0.8957), "25×150": (0.193, 0.616, 0.099, 0.902), "50×50": (0.196, 0.629, 0.099, 0.9016),
        "100×100": (0.195, 0.619, 0.101, 0.9016), "full data": (0.182, 0.606, 0.093, 0.9011),
    },
    "ml-1m": {"200×50": (0.254, 0.618, 0.141, 0.9315), "full data": (0.262, 0.628, 0.144, 0.9291)},
    "netflix": {"500×200": (0.178, 0.407, 0.116, 0.9449), "full data": (0.181, 0.419, 0.118, 0.947)},
}  # fmt: skip


@dataclass(frozen=True)
class RecommendationComparison(Comparison):
    """Splits are whole histories; statistics are ranks and AUCs of the last items, as `farzi_hf.metrics.target_ranks`.

    Args:
        long_learner: what the learner of the row "full data, long" has other than the distillation's.
        long_training: its `TrainingArguments`; it is trained by the stock Trainer.
    """

    entries: ClassVar[str] = "items"
    long_learner: Mapping[str, Any]
    long_training: Mapping[str, Any]

    def training_rows(self, sequences: Dataset) -> Dataset:
        return training_windows(sequences, self.config.max_length)

    def statistics(self, student: Student, sequences: Dataset) -> np.ndarray:
        """(N, 2)."""
        windows = evaluation_windows(sequences, self.config.max_length)

        def ranks(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
            return target_ranks(logits, (batch["labels"], batch["seen"]))

        return np.stack(self.outputs(student, windows, ranks))

    def row(self, method: str, statistics: Sequence[np.ndarray], nbytes: int) -> Row:
        return ranking_row(method, np.stack(statistics), nbytes)

    def headline(self, row: Row) -> str:
        return ", ".join(f"{name.upper()} {100 * row[name]:.1f} %" for name in ("hr@10", "hr@100"))

    def validation_error(self, student: Student) -> float:
        return -rank_metrics(self.statistics(student, self.splits["validation"]))["hr@100"]

    def long_student(self, seed: int) -> Student:
        """As a user would train on the real data, with dropout: settings chosen on validation users."""
        torch.manual_seed(seed)
        config = {**self.config.to_diff_dict(), **self.long_learner}
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
        ours = self.trainer.args
        args = TrainingArguments(
            f"{ours.output_dir}/long", max_steps=self.long_steps, seed=seed % 2**32, save_strategy="no", logging_strategy="no",
            report_to="none", disable_tqdm=True, use_cpu=ours.use_cpu, dataloader_pin_memory=ours.dataloader_pin_memory,
            **self.long_training,
        )  # fmt: skip
        rows = self.training_rows(self.splits["train"])
        Trainer(model=model, args=args, train_dataset=rows, data_collator=InteractionCollator()).train()
        return model_student(model)


def ranking_row(method: str, statistics: np.ndarray, nbytes: int) -> Row:
    """Of students on the same users, (students, N, 2). `ranks` keeps them, so that splits can be put together."""
    results = [rank_metrics(values) for values in statistics]
    intervals = {f"{name}_interval": list(v) for name, v in ranking_intervals(statistics).items()}
    metrics = mean_and_spread(results) if len(results) > 1 else results[0]
    return {"method": method, **metrics, **intervals, "bytes": nbytes, "ranks": statistics.tolist()}


def count_rows(c: RecommendationComparison) -> list[Row]:
    """Popularity, and an interpolated bigram of items: counted, not trained."""
    train, validation = c.splits["train"], c.splits["validation"]
    size, test = c.trainer.learner.vocab_size, c.splits["test"]["input_ids"]
    counts, bigram = popularity(train, size), InterpolatedBigram.fit(train, size, validation)
    items = np.arange(size)
    methods = {
        "popularity": lambda history: counts,
        "item bigram": lambda history: bigram.probabilities(np.full(size, history[-1]), items),
    }
    return [
        ranking_row(name, count_statistics(scores, test)[None], c.nbytes(train)) for name, scores in methods.items()
    ]


def count_statistics(
    scores: Callable[[Sequence[int]], np.ndarray], histories: Sequence[Sequence[int]], batch_size: int = 256
) -> np.ndarray:
    """(N, 2) of the last item of each history, where `scores` gives what is before it (V,) scores."""
    statistics = []
    for start in range(0, len(histories), batch_size):
        batch = histories[start : start + batch_size]
        seen, targets = [history[:-1] for history in batch], torch.tensor([history[-1] for history in batch])
        table = torch.from_numpy(np.stack([scores(history) for history in seen]))
        table[:, 0] = -torch.inf
        statistics.append(rank_statistics(table, targets, seen).numpy())
    return np.concatenate(statistics)


def pooled(splits: Sequence[Sequence[Row]]) -> list[Row]:
    """The rows of several splits as one table: mean and spread over splits and students, intervals over all their users."""
    if len(splits) == 1:
        return list(splits[0])
    rows = []
    for parts in zip(*splits, strict=True):
        row = ranking_row(parts[0]["method"], np.concatenate([part["ranks"] for part in parts], axis=1), 0)
        spread = mean_and_spread([rank_metrics(np.array(ranks)) for part in parts for ranks in part["ranks"]])
        counts = {name: parts[0][name] for name in ("steps", "students", "seconds") if name in parts[0]}
        rows.append({**row, **spread, "bytes": round(np.mean([part["bytes"] for part in parts])), **counts})
    return rows


def paper_rows(dataset: str, size: str) -> list[Row]:
    """What the paper reports for this size, [μ×ξ], if any, and for the whole data, for comparison."""
    known = {name: values for name, values in PAPER.get(dataset, {}).items() if name in (size[1:-1], "full data")}
    return [
        {"method": f"the paper, {name}", **dict(zip(METRICS, values, strict=True))} for name, values in known.items()
    ]


def ratios(rows: Sequence[Row], ours: str, full: str = "full data, long") -> dict[str, str]:
    """Ours over full data per metric, in per cent; the paper's beside it where it has one."""
    by_method = {row["method"]: row for row in rows}
    facts = {}
    if ours in by_method and full in by_method:
        facts["Farzi / full data, long"] = _ratio(by_method[ours], by_method[full])
    reported = [row for row in rows if row["method"].startswith("the paper")]
    if len(reported) == 2:
        facts["the paper's"] = _ratio(*reported)
    return facts


def _ratio(row: Row, full: Row) -> str:
    return ", ".join(f"{name.upper()} {100 * row[name] / full[name]:.1f} %" for name in METRICS)


def readable(row: Row) -> dict[str, str]:
    """A row as the table shows it."""

    def percent(name: str) -> str:
        if name not in row:
            return ""
        spread = f" ± {100 * row[f'{name}_std']:.1f}" if f"{name}_std" in row else ""
        edges = row.get(f"{name}_interval")
        return f"{100 * row[name]:.1f}{spread}" + (f" ({100 * edges[0]:.1f}–{100 * edges[1]:.1f})" if edges else "")

    titles = dict(zip(METRICS, ("HR@10, %", "HR@100, %", "nDCG@10, %", "AUC, %"), strict=True))
    return {
        "trained on": row["method"],
        **{title: percent(name) for name, title in titles.items()},
        "bytes": f"{row['bytes']:,}" if "bytes" in row else "",
        "steps": f"{row['steps']:,}" if "steps" in row else "",
        "students": str(row.get("students", "")),
    }
