"""Users' histories: the last item of each. Its metrics, its count models and its task.

Hit rate, nDCG and AUC are computed from two numbers per user, so evaluation never stores scores of
size users × V: `target_ranks` is a Trainer's ``preprocess_logits_for_metrics`` and
`recommendation_metrics` its ``compute_metrics``. The first passes one array of shape (users, 2) to
the second: rank, AUC.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import datasets
import evaluate
import numpy as np
import torch
from datasets import Dataset, DatasetDict
from transformers import AutoConfig, EvalPrediction, PreTrainedConfig

import farzi_hf.models  # noqa: F401
from farzi_hf.data.interactions import (
    SAMPLE_INTERACTIONS,
    Interactions,
    load_interactions,
    load_sample_interactions,
)
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import (
    IGNORED,
    SequenceCollator,
    check_ids,
    evaluation_windows,
    flatten_sequences,
    training_windows,
)
from farzi_hf.models.base import check_fields
from farzi_hf.tasks.base import (
    Outputs,
    Paired,
    Row,
    Statistics,
    Task,
    bootstrap_interval,
    count_cells,
    shown_name,
)
from farzi_hf.tasks.counted_items import SequenceRules
from farzi_hf.tasks.ranks import candidates, rank_statistics
from farzi_hf.tasks.text import InterpolatedBigram

# -- metrics ---------------------------------------------------------------------------------------


def ranking_metrics(
    scores: torch.Tensor,
    targets: torch.Tensor,
    ks: Sequence[int] = (10, 100),
    seen: torch.Tensor | Sequence[Sequence[int]] | None = None,
    *,
    mrr: bool = False,
    negatives: int | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """``hr@k``, ``ndcg@k`` and ``auc`` over all items, as fractions; one target per user. See
    `rank_statistics` and `rank_metrics`.

    Args:
        mrr: whether to add the mean of 1 / rank.
        negatives: rank the target among so many other items, which are drawn for each user with
            `seed`, and not among all. Such figures are higher, and only comparable with those of as
            many negatives.
    """
    if negatives is not None:
        scores = _with_negatives(
            torch.as_tensor(scores), torch.as_tensor(targets), seen, negatives, seed
        )
    statistics = rank_statistics(scores, targets, seen).numpy(force=True)
    return {
        **rank_metrics(statistics, ks),
        **({"mrr": float(np.mean(1 / statistics[:, 0]))} if mrr else {}),
    }


def _with_negatives(
    scores: torch.Tensor, targets: torch.Tensor, seen: Any, negatives: int, seed: int
) -> torch.Tensor:
    """The scores, in which −∞ stands for all items but the target and the negatives
    that are drawn.
    """
    keys = torch.from_numpy(stream(seed, Purpose.NEGATIVES).random(tuple(scores.shape))).to(
        scores.device
    )
    keys = keys.masked_fill(~candidates(scores, seen), -1).scatter(
        1, targets[:, None], 2
    )  # the target first
    drawn = keys.topk(min(1 + negatives, keys.shape[1])).indices
    return torch.full_like(scores, -torch.inf).scatter(1, drawn, scores.gather(1, drawn))


def rank_metrics(statistics: np.ndarray, ks: Sequence[int] = (10, 100)) -> dict[str, float]:
    """Means over users: ``hr@k`` = [rank ≤ k], ``ndcg@k`` = [rank ≤ k] / log2(rank + 1), ``auc``.

    Args:
        statistics: (N, 2) as `rank_statistics` gives them.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    if statistics.ndim != 2 or statistics.shape[1] != 2 or len(statistics) == 0:
        remedy = "give the Trainer preprocess_logits_for_metrics=target_ranks."
        raise ValueError(f"statistics has shape {statistics.shape}, not (users, 2): {remedy}")
    return {name: float(values.mean()) for name, values in _per_user(statistics, ks).items()}


def _per_user(statistics: np.ndarray, ks: Sequence[int]) -> dict[str, np.ndarray]:
    rank, auc = statistics.T
    hits = {f"hr@{k}": (rank <= k).astype(float) for k in ks}
    gains = {f"ndcg@{k}": (rank <= k) / np.log2(rank + 1) for k in ks}
    return {**hits, **gains, "auc": auc}


def ranking_intervals(
    statistics: np.ndarray, ks: Sequence[int] = (10, 100), **settings: Any
) -> dict[str, tuple[float, float]]:
    """Bootstrap interval of each metric of `rank_metrics`, resampling users.

    Args:
        statistics: (N, 2), or (students, N, 2) for several models on the same users; the interval
            is then that of their mean.
        settings: confidence, resamples and seed of `bootstrap_interval`.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    per_student = [
        _per_user(values, ks) for values in statistics.reshape(-1, *statistics.shape[-2:])
    ]
    means = {
        name: np.mean([values[name] for values in per_student], axis=0) for name in per_student[0]
    }
    return {name: bootstrap_interval(values, **settings) for name, values in means.items()}


def target_ranks(
    logits: torch.Tensor | tuple[torch.Tensor, ...],
    labels: torch.Tensor | tuple[torch.Tensor, torch.Tensor],
) -> torch.Tensor:
    """(rank, AUC) of each user's last item, among the items that the user has not had: (B, 2).

    Args:
        logits: (B, L, V), or a tuple that starts with them. The logits at position j score the item
            at j + 1. Item 0 is the padding and never a candidate.
        labels: (B, L) ids, −100 at padding, on whichever side; the last id is the target. Or a
            pair: these labels, and all ids that the user has had before, (B, S), padded with 0.
            ``label_names=["labels", "seen"]`` gives the pair for
            `farzi_hf.data.evaluation_windows`.
    """
    scores = logits[0] if isinstance(logits, tuple) else logits
    labels, seen = labels if isinstance(labels, tuple | list) else (labels, labels[:, :-1])
    rows, items = torch.arange(len(labels), device=labels.device), (labels != IGNORED).cumsum(1)
    if (few := items[:, -1] < 2).any():
        raise ValueError(
            f"labels[{int(few.nonzero()[0])}] has no item before the target: give histories of at"
            " least two items"
        )
    last = items.argmax(1)  # the first place where all items have been
    targets = labels[rows, last]
    scores = scores[rows, last - 1].float()
    scores[:, 0] = -torch.inf
    return rank_statistics(scores, targets, seen)


def recommendation_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `rank_metrics` of predictions that went through
    `target_ranks`.
    """
    return rank_metrics(eval_prediction.predictions)


class RankMetrics(evaluate.Metric):
    """`rank_metrics` as a metric of `evaluate`, which gathers statistics batch by batch.

    metric = RankMetrics() for batch in batches:
        metric.add_batch(predictions=rank_statistics(scores, batch["targets"], batch["seen"]))
    metric.compute(ks=(10, 100))
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=(
                "Hit rate and nDCG at each k, and AUC, of one target per user among all items, as"
                " fractions."
            ),
            citation="",
            features=datasets.Features({"predictions": datasets.List(datasets.Value("float64"))}),
        )

    def _compute(
        self, predictions: list[list[float]], ks: tuple[int, ...] = (10, 100)
    ) -> dict[str, float]:
        return rank_metrics(predictions, ks)


# -- models that only count ------------------------------------------------------------------------


def popularity(dataset: Dataset, vocab_size: int) -> np.ndarray:
    """(V,): how often each item occurs in ``input_ids``. Used as scores, these counts recommend the
    same items to every user.
    """
    check_ids(dataset, vocab_size)
    return np.bincount(flatten_sequences(dataset)[0], minlength=vocab_size).astype(np.float64)


def ranks_of_scores(
    scores: Callable[[Sequence[int]], np.ndarray],
    histories: Sequence[Sequence[int]],
    batch_size: int = 256,
) -> np.ndarray:
    """(N, 2): rank and AUC of the last item of each history, for a recommender that is not a neural
    model.

    Args:
        scores: a function of the items before the last one; it returns (V,) scores. Item 0 is the
            padding and never a candidate.
    """
    statistics = []
    for start in range(0, len(histories), batch_size):
        batch = histories[start : start + batch_size]
        seen, targets = (
            [history[:-1] for history in batch],
            torch.tensor([history[-1] for history in batch]),
        )
        table = torch.from_numpy(np.stack([scores(history) for history in seen]))
        table[:, 0] = -torch.inf
        statistics.append(rank_statistics(table, targets, seen).numpy())
    return np.concatenate(statistics)


HELD_OUT: dict[str, tuple[str, Callable[[Interactions, int], DatasetDict]]] = {
    "users": ("users 80 / 10 / 10 %", Interactions.strong_generalization_split),
    "last_items": ("the last item of each user", lambda data, seed: data.leave_one_out_split()),
    "own": ("the data set's own train, validation and test", lambda data, seed: data.own_split()),
}
"""What validation and test hold: in words, and the split of a seed."""

# -- the task --------------------------------------------------------------------------------------


class Recommendation(Task):
    """Users' histories: the last item of each. Data sets are whole histories.

    Each seed has its own split of the users, because a test on a tenth of the users is noisy.

    ```python
    histories = interactions.strong_generalization_split(seed=0)
    FarziTrainer(learner_init=SASRecConfig(…), args=args, task=Recommendation(interactions.vocabulary),
                 train_dataset=histories["train"], eval_dataset=histories["validation"])
    ```

    Args:
        processing_class: the names of padding and items, `Interactions.vocabulary`.
    """

    label_names = ("labels", "seen")  # the ranking leaves out items that the user has had
    metric, metric_label, percent, ranked = "hr@100", "Test HR@100", True, True
    ratio_label = "our HR@100 over its"
    compared = ("hr@10", "hr@100", "ndcg@10", "auc")
    module = RankMetrics
    counts = SequenceRules
    shown: ClassVar[Mapping[str, str]] = {
        "hr@10": "HR@10, %",
        "hr@100": "HR@100, %",
        "ndcg@10": "nDCG@10, %",
        "auc": "AUC, %",
    }
    """The metrics of a table, with their titles."""
    learner: ClassVar = {
        "model_type": "sasrec",
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
    }
    # Dropout is what sparse catalogues need, tied embeddings halve the bytes, and which kind is
    # better depends on the data (recipes/LOG.md).
    learners: ClassVar = (
        learner,
        {**learner, "dropout": 0.3},
        {"model_type": "fmlp", "hidden_size": 16, "dropout": 0.3},
        {**learner, "hidden_size": 32, "dropout": 0.3, "tie_word_embeddings": True},
        {"model_type": "fmlp", "hidden_size": 32, "dropout": 0.3, "tie_word_embeddings": True},
        {
            **learner,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "dropout": 0.3,
            "tie_word_embeddings": True,
        },
        {
            "model_type": "fmlp",
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "dropout": 0.3,
            "tie_word_embeddings": True,
        },
    )
    data_settings = (
        "min_interactions",
        "min_item_interactions",
        "held_out",
        "user_column",
        "item_column",
        "time_column",
        "name",
        "split",
        "revision",
    )
    splits_differ, split_label = True, "users 80 / 10 / 10 %"
    collator = SequenceCollator(padding_id=0)

    def __init__(self, processing_class: Any) -> None:
        super().__init__(processing_class)
        if (
            processing_class is not None and len(processing_class) <= 500
        ):  # any model has most items among its first hundred
            self.metric, self.metric_label, self.ratio_label = (
                "hr@10",
                "Test HR@10",
                "our HR@10 over its",
            )

    @classmethod
    def load(
        cls,
        dataset: str,
        data_dir: str | None,
        *,
        name: str | None = None,
        held_out: str | None = None,
        **settings: Any,
    ) -> tuple[Recommendation, Callable[[int], DatasetDict], str]:
        """The embedded interactions, or those of `load_interactions`, split as `HELD_OUT` says. By
        default they keep splits of their own.
        """
        sample = dataset == SAMPLE_INTERACTIONS
        data = (
            load_sample_interactions()
            if sample
            else load_interactions(dataset, data_dir, subset=name, **settings)
        )
        task = cls(data.vocabulary)
        task.split_label, split = HELD_OUT[
            held_out or ("users" if data.own_ends is None else "own")
        ]
        return task, lambda seed: split(data, seed), data.description

    def learner_config(self, learner: Mapping[str, Any], length: int) -> PreTrainedConfig:
        entries = len(self.processing_class)
        check_fields(learner, "learner", vocab_size=entries, num_items=entries - 1)
        return AutoConfig.for_model(**{**learner, "num_items": entries - 1, "max_length": length})

    def training_rows(self, sequences: Dataset, length: int) -> Dataset:
        return training_windows(sequences, length)

    def evaluation_rows(self, sequences: Dataset, length: int) -> Dataset:
        return evaluation_windows(sequences, length)

    preprocess_logits_for_metrics = staticmethod(target_ranks)
    compute_metrics = staticmethod(recommendation_metrics)

    def statistics(self, outputs: Outputs, sequences: Dataset, length: int) -> np.ndarray:
        """(N, 2): rank and AUC of each user's last item."""
        rows = self.evaluation_rows(sequences, length)
        return np.stack(
            outputs(
                rows, lambda logits, batch: target_ranks(logits, (batch["labels"], batch["seen"]))
            )
        )

    def intervals(self, students: Statistics) -> dict[str, tuple[float, float]]:
        """Intervals are computed over the users of all splits, and the spread over splits and
        students.

        A user may be among the test users of several splits, and counts as another one each time.
        So intervals over many splits are a little too narrow: in simulations with 943 users, those
        of 95 % covered 93 % for one split and 90 % for five.
        """
        return ranking_intervals(
            np.concatenate([np.asarray(seed) for seed in students], axis=1)
        )  # (students, N, 2)

    def counting(
        self, train: Dataset, validation: Dataset, vocab_size: int
    ) -> Iterator[tuple[str, Callable[[Dataset], np.ndarray], int | None]]:
        """Popularity, an interpolated bigram of items, and rules of sequences."""

        def ranks(scores: Callable[[Sequence[int]], np.ndarray]) -> Callable[[Dataset], np.ndarray]:
            return lambda rows: ranks_of_scores(scores, rows["input_ids"])

        counts, items = popularity(train, vocab_size), np.arange(vocab_size)
        yield "popularity", ranks(lambda history: counts), None
        bigram = InterpolatedBigram.fit(train, vocab_size, validation)

        def followers(history: Sequence[int]) -> np.ndarray:
            return bigram.probabilities(np.full(vocab_size, history[-1]), items)

        yield "item bigram", ranks(followers), None
        rules = SequenceRules.fit(train, vocab_size, validation)
        yield rules.name, rules.statistics, rules.nbytes

    def nats(self, statistics: np.ndarray) -> float | None:
        return None

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
        return {"trained on": shown_name(row), **shown, **count_cells(row)}

    def paired(self, ours: Statistics, theirs: Statistics, metric: str) -> Paired:
        """The quotient is our mean of the metric, one of `shown`, divided by theirs, over the users
        of all seeds.
        """

        def of_users(seed: np.ndarray) -> np.ndarray:  # the mean of all students
            return np.mean(
                [_per_user(student, (10, 100))[metric] for student in np.asarray(seed)], axis=0
            )

        values = [np.concatenate([of_users(seed) for seed in group]) for group in (ours, theirs)]

        def quotient(rows: np.ndarray) -> float:
            with np.errstate(
                divide="ignore", invalid="ignore"
            ):  # theirs may be 0, as in a resample of few users
                return float(np.divide(*rows.mean(axis=0)))

        return np.stack(values, axis=1), quotient
