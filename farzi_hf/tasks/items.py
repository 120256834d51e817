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
from farzi_hf.common.checks import check_size
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
from farzi_hf.data.vocabulary import is_list
from farzi_hf.models.base import check_fields
from farzi_hf.tasks.base import (
    Outputs,
    Paired,
    ResultRow,
    Statistics,
    Task,
    bootstrap_interval,
    count_cells,
    shown_name,
)
from farzi_hf.tasks.counted_items import SequenceRules
from farzi_hf.tasks.ranks import candidates, rank_statistics
from farzi_hf.tasks.text import InterpolatedBigram

_FEW_ITEMS = 500
"""Of so many entries, HR@10 is the main metric in place of HR@100."""
_TEN_ITEMS = 11
"""Of so many entries, nDCG@10 is, because all items are among the first ten of any model."""

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
    if isinstance(ks, int) or not ks:
        raise ValueError(f"ks={ks!r} are no lengths of lists: give some, such as (10, 100)")
    for k in ks:
        check_size("ks", k)
    if negatives is not None:
        check_size("negatives", negatives)
        scores = _with_negatives(
            torch.as_tensor(scores), torch.as_tensor(targets), seen, negatives, seed
        )
    statistics = rank_statistics(scores, targets, seen).numpy(force=True)
    metrics = rank_metrics(statistics, ks)
    if mrr:
        ranks = statistics[:, 0]
        metrics["mrr"] = float(np.mean(1 / ranks))
    return metrics


def _with_negatives(
    scores: torch.Tensor, targets: torch.Tensor, seen: Any, negatives: int, seed: int
) -> torch.Tensor:
    """The scores (B, V), with −∞ in place of those of all items but the target and the negatives
    that are drawn.
    """
    # Each candidate has a random key in [0, 1), and the largest are drawn; the target has 2.
    keys = torch.from_numpy(stream(seed, Purpose.NEGATIVES).random(tuple(scores.shape)))
    keys = keys.to(scores.device)
    keys = keys.masked_fill(~candidates(scores, seen), -1)
    keys = keys.scatter(1, targets[:, None], 2)
    kept = keys.topk(min(1 + negatives, keys.shape[1])).indices
    nothing = torch.full_like(scores, -torch.inf)
    return nothing.scatter(1, kept, scores.gather(1, kept))


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
    """Each metric of each user (N,), from statistics (N, 2)."""
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
    all_scores = logits[0] if isinstance(logits, tuple) else logits
    if isinstance(labels, tuple | list):
        labels, seen = labels
    else:
        seen = labels[:, :-1]
    rows = torch.arange(len(labels), device=labels.device)
    items_so_far = (labels != IGNORED).cumsum(1)
    is_too_short = items_so_far[:, -1] < 2
    if is_too_short.any():
        first = int(is_too_short.nonzero()[0])
        raise ValueError(
            f"labels[{first}] has no item before the target: give histories of at least two items"
        )
    place = items_so_far.argmax(1)  # of the target: the first place where all items have been
    targets = labels[rows, place]
    scores = all_scores[rows, place - 1].float()
    scores[:, 0] = -torch.inf
    return rank_statistics(scores, targets, seen)


def recommendation_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `rank_metrics` of predictions that went through
    `target_ranks`.
    """
    return rank_metrics(eval_prediction.predictions)


class RankMetrics(evaluate.Metric):
    """`rank_metrics` as a metric of `evaluate`, which gathers statistics batch by batch.

    ```python
    metric = RankMetrics()
    for batch in batches:
        scores = model.scores(batch)
        metric.add_batch(predictions=rank_statistics(scores, batch["targets"], batch["seen"]))
    metric.compute(ks=(10, 100))
    ```
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
    ids, _ = flatten_sequences(dataset)
    return np.bincount(ids, minlength=vocab_size).astype(np.float64)


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
        seen = [history[:-1] for history in batch]
        targets = torch.tensor([history[-1] for history in batch])
        table = torch.from_numpy(np.stack([scores(history) for history in seen]))
        table[:, 0] = -torch.inf
        statistics.append(rank_statistics(table, targets, seen).numpy())
    return np.concatenate(statistics)


# -- the task --------------------------------------------------------------------------------------

HELD_OUT: dict[str, tuple[str, Callable[[Interactions, int], DatasetDict]]] = {
    "users": ("users 80 / 10 / 10 %", Interactions.strong_generalization_split),
    "last_items": ("the last item of each user", lambda data, seed: data.leave_one_out_split()),
    "own": ("the data set's own train, validation and test", lambda data, seed: data.own_split()),
}
"""What validation and test hold: in words, and the split of a seed."""


class Recommendation(Task):
    """Users' histories: the last item of each. Data sets are whole histories.

    Each seed has its own split of the users, because a test on a tenth of the users is noisy.

    ```python
    histories = interactions.strong_generalization_split(seed=0)
    trainer = FarziTrainer(
        model_init=SASRecConfig(…),
        args=args,
        task=Recommendation(interactions.vocabulary),
        train_dataset=histories["train"],
        eval_dataset=histories["validation"],
    )
    ```

    Args:
        processing_class: the names of padding and items, `Interactions.vocabulary`.
    """

    label_names = ("labels", "seen")  # the ranking leaves out items that the user has had
    metric = "hr@100"
    metric_label = "Test HR@100"
    ratio_label = "our HR@100 over its"
    figures = (
        "HR@10 is the share of users whose next item is among the first ten that a model"
        " recommends, HR@100 among the first hundred: higher is better"
    )
    in_headline: tuple[str, ...] = ("hr@10", "hr@100")
    """The metrics that a line about a model names."""
    unit_of_loss = "in mean log rank"
    percent = True
    ranked = True
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
    more_settings = ("splits",)
    splits_differ = True
    split_label = "users 80 / 10 / 10 %"
    collator = SequenceCollator(padding_id=0)

    def __init__(self, processing_class: Any) -> None:
        if processing_class is not None and not is_list(processing_class):
            raise ValueError(
                f"processing_class={processing_class!r:.200} holds no names of items: give"
                " Interactions.vocabulary"
            )
        super().__init__(processing_class)
        if processing_class is None:
            return
        if len(processing_class) <= _TEN_ITEMS:
            self._compare_by("ndcg@10", "nDCG@10")
            self.in_headline = ("ndcg@10", "auc")
            self.figures = (
                "nDCG@10 is higher the further up a model ranks a user's next item, HR@10 is 100 %"
                " for any model, because there are no more than ten items"
            )
        elif len(processing_class) <= _FEW_ITEMS:
            # Of few items, any model has most among its first hundred.
            self._compare_by("hr@10", "HR@10")

    def _compare_by(self, metric: str, title: str) -> None:
        """Makes a metric the main one."""
        self.metric = metric
        self.metric_label = f"Test {title}"
        self.ratio_label = f"our {title} over its"

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
        default data with splits of their own keep these, and of others users are held out.
        """
        if dataset == SAMPLE_INTERACTIONS:
            data = load_sample_interactions()
        else:
            data = load_interactions(dataset, data_dir, subset=name, **settings)
        if data.num_items < 2:
            raise ValueError(
                f"{dataset!r} has a single item, so there is nothing to choose from: give data of"
                " more items, or name another column with item_column (--item_column)"
            )
        held_out = held_out or ("users" if data.own_ends is None else "own")
        split_label, split = HELD_OUT[held_out]
        task = cls(data.vocabulary)
        task.split_label = split_label
        task.splits_differ = held_out == "users"
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

        def ranks(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return target_ranks(logits, (batch["labels"], batch["seen"]))

        return np.stack(outputs(self.evaluation_rows(sequences, length), ranks))

    def intervals(self, students: Statistics) -> dict[str, tuple[float, float]]:
        """Intervals are computed over the users of all splits, and the spread over splits and
        students.

        A user may be among the test users of several splits, and counts as another one each time.
        So intervals over many splits are a little too narrow: in simulations with 943 users, those
        of 95 % covered 93 % for one split and 90 % for five.
        """
        of_seeds = [np.asarray(seed) for seed in students]  # (students, users, 2) each
        return ranking_intervals(np.concatenate(of_seeds, axis=1))

    def counting(
        self, train: Dataset, validation: Dataset, vocab_size: int
    ) -> Iterator[tuple[str, Callable[[Dataset], np.ndarray], int | None]]:
        """Popularity, an interpolated bigram of items, and rules of sequences."""

        def ranks(scores: Callable[[Sequence[int]], np.ndarray]) -> Callable[[Dataset], np.ndarray]:
            return lambda rows: ranks_of_scores(scores, rows["input_ids"])

        counts = popularity(train, vocab_size)
        yield "popularity", ranks(lambda history: counts), None
        bigram = InterpolatedBigram.fit(train, vocab_size, validation)

        def followers(history: Sequence[int]) -> np.ndarray:
            return bigram.after(history[-1])

        yield "item bigram", ranks(followers), None
        rules = SequenceRules.fit(train, vocab_size, validation)
        yield rules.name, rules.statistics, rules.nbytes

    def mixed(self, *given: Any) -> None:
        """None: ranks of rules and of a network have no common unit."""

    def nats(self, statistics: np.ndarray) -> float | None:
        return None

    def headline(self, row: ResultRow) -> str:
        named = (
            f"{self.shown[name].removesuffix(', %')} {100 * row[name]:.1f} %"
            for name in self.in_headline
        )
        return ", ".join(named)

    def readable(self, row: ResultRow) -> dict[str, str]:
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

        def of_users(students: Sequence[Any]) -> np.ndarray:
            """(N,): the mean of all students of a seed."""
            of_students = [_per_user(np.asarray(each), (10, 100))[metric] for each in students]
            return np.mean(of_students, axis=0)

        def of_all_users(group: Statistics) -> np.ndarray:
            return np.concatenate([of_users(seed) for seed in group])

        def quotient(values: np.ndarray) -> float:
            our_mean, their_mean = values.mean(axis=0)
            # Theirs may be 0, as in a resample of few users.
            with np.errstate(divide="ignore", invalid="ignore"):
                return float(np.divide(our_mean, their_mean))

        values = np.stack([of_all_users(ours), of_all_users(theirs)], axis=1)
        return values, quotient
