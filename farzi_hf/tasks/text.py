"""Text: the next token of each sentence. Its metrics, its count models and its task.

Metrics are computed from three numbers per predicted token, so evaluation never stores the logits
of a whole data set: `token_statistics` is a Trainer's ``preprocess_logits_for_metrics`` and
`language_modeling_metrics` its ``compute_metrics``. Between them travels one array of shape
(sequences, length − 1, 3): negative log-likelihood, correct, valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import datasets
import evaluate
import numpy as np
import torch
from datasets import Dataset, DatasetDict
from numpy.typing import ArrayLike
from torch.nn import functional as F
from transformers import AutoConfig, EvalPrediction, PreTrainedConfig

from farzi_hf.data.own import load_text
from farzi_hf.data.sequences import (
    IGNORED,
    SequenceCollator,
    check_ids,
    flatten_sequences,
    pieces,
    sequences_fingerprint,
)
from farzi_hf.data.text import TEXTS, TOKENIZERS, tokenize, word_tokenizer
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
from farzi_hf.tasks.counted_labels import NGramLabels
from farzi_hf.tasks.counted_text import KneserNey
from farzi_hf.tasks.mixture import SHARES, Mixture

# -- metrics ---------------------------------------------------------------------------------------


def token_statistics(
    logits: torch.Tensor | tuple[torch.Tensor, ...], labels: torch.Tensor
) -> torch.Tensor:
    """Per predicted token: negative log-likelihood in nats, 1 if the top prediction is right, 1 if
    the token counts.

    Args:
        logits: (B, L, V), or a tuple that starts with them. The logits at position j predict the
            label at j + 1.
        labels: (B, L) ids, −100 where nothing is to be predicted.

    Returns:
        float32 (B, L − 1, 3); ignored positions are all zero.
    """
    all_scores = logits[0] if isinstance(logits, tuple) else logits
    scores = all_scores[:, :-1].float()
    targets = labels[:, 1:]
    valid = targets != IGNORED
    nll = F.cross_entropy(scores.transpose(1, 2), targets, ignore_index=IGNORED, reduction="none")
    # Among scores that are NaN, torch takes the first one for the largest.
    right = (scores.argmax(-1) == targets) & valid & ~nll.isnan()
    return torch.stack([nll, right.float(), valid.float()], dim=-1)


def sentence_totals(statistics: np.ndarray) -> np.ndarray:
    """Sums per sequence, (N, 3) float64: negative log-likelihood, correct tokens, tokens. Rows
    without a token are left out.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them. A valid flag ≤ 0 is padding: the
            Trainer pads with −100.
    """
    statistics = np.asarray(statistics, dtype=np.float64)
    if statistics.ndim != 3 or statistics.shape[-1] != 3:
        remedy = "give the Trainer preprocess_logits_for_metrics=token_statistics."
        raise ValueError(
            f"statistics has shape {statistics.shape}, not (sequences, length − 1, 3): {remedy}"
        )
    totals = np.where(statistics[..., 2:] > 0, statistics, 0.0).sum(axis=1)
    totals = totals[totals[:, 2] > 0]
    if len(totals) == 0:
        raise ValueError("statistics holds no predicted token: every label is −100.")
    return totals


def pad_statistics(statistics: Sequence[ArrayLike], dtype: type = np.float32) -> np.ndarray:
    """Statistics of sentences of different lengths, each (L_i − 1, 3), as one array (N, L − 1, 3)
    with valid = 0 as padding.
    """
    rows = [np.asarray(row, dtype=dtype).reshape(-1, 3) for row in statistics]
    padded = np.zeros((len(rows), max(map(len, rows), default=0), 3), dtype=dtype)
    for place, row in zip(padded, rows, strict=True):
        place[: len(row)] = row
    return padded


def corpus_perplexity(totals: np.ndarray) -> np.ndarray | float:
    """exp(mean negative log-likelihood over all tokens), from `sentence_totals`: (N, 3), or (N, …,
    3) with one perplexity for each ….
    """
    sums = totals.sum(axis=0)
    # The perplexity of a model that has diverged is infinite: no reason for a warning.
    with np.errstate(over="ignore"):
        return np.exp(sums[..., 0] / sums[..., 2])


def token_metrics(statistics: np.ndarray) -> dict[str, float]:
    """``perplexity`` of the corpus, ``sentence_perplexity`` (mean of the sentences' perplexities),
    ``accuracy`` over tokens.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them.
    """
    totals = sentence_totals(statistics)
    of_sentences = corpus_perplexity(totals[None])  # each sentence as a corpus
    return {
        "perplexity": float(corpus_perplexity(totals)),
        "sentence_perplexity": float(np.mean(of_sentences)),
        "accuracy": float(totals[:, 1].sum() / totals[:, 2].sum()),
    }


def language_modeling_metrics(eval_prediction: EvalPrediction) -> dict[str, float]:
    """A Trainer's ``compute_metrics``: `token_metrics` of predictions that went through
    `token_statistics`.
    """
    return token_metrics(eval_prediction.predictions)


def perplexity_interval(statistics: np.ndarray, **settings: Any) -> tuple[float, float]:
    """Bootstrap interval of the corpus perplexity, resampling sentences: tokens of one sentence are
    not independent.

    Args:
        statistics: (N, L − 1, 3) as `token_statistics` gives them, or (students, N, L − 1, 3) for
            several models on the same sentences; the interval is then that of their mean.
        settings: confidence, resamples and seed of `bootstrap_interval`.
    """
    statistics = np.asarray(statistics)
    students = statistics.reshape(-1, *statistics.shape[-3:])
    totals = np.stack([sentence_totals(student) for student in students], axis=1)

    def mean_perplexity(sentences: np.ndarray) -> float:
        """Of the students, from (N, students, 3)."""
        return np.mean(corpus_perplexity(sentences))

    return bootstrap_interval(totals, mean_perplexity, **settings)


_MIXED = 300  # rows of the validation part that choose the share of a mixture


class TokenMetrics(evaluate.Metric):
    """`token_metrics` as a metric of `evaluate`, which gathers statistics batch by batch. Sentences
    may differ in length.

    ```python
    metric = TokenMetrics()
    for batch in batches:
        logits = model(**batch).logits
        metric.add_batch(predictions=token_statistics(logits, batch["labels"]))
    metric.compute()
    ```
    """

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=(
                "Perplexity over all tokens, mean of the sentences' perplexities, and share of"
                " tokens predicted right."
            ),
            citation="",
            features=datasets.Features(
                {"predictions": datasets.List(datasets.List(datasets.Value("float64")))}
            ),
        )

    def _compute(self, predictions: list[list[list[float]]]) -> dict[str, float]:
        return token_metrics(pad_statistics(predictions, np.float64))


# -- models that only count: a good summary trains students that are better ------------------------


class _Pairs(NamedTuple):
    """All pairs of neighbours in a data set, in one long list."""

    previous: np.ndarray
    """(P,) ids."""
    following: np.ndarray
    """(P,): the ids after them."""
    rows: np.ndarray
    """(P,): the row of each pair."""
    places: np.ndarray
    """(P,): its place in that row, from 0 on."""

    @classmethod
    def of(cls, sequences: Dataset, vocab_size: int) -> _Pairs:
        """Those of a data set. Raises ValueError for an id outside the vocabulary."""
        check_ids(sequences, vocab_size)
        ids, lengths = flatten_sequences(sequences)
        starts = np.cumsum(lengths) - lengths
        pairs = lengths - 1  # of each row; none of a history of one item
        pairs_before = starts - np.arange(len(lengths))  # those of earlier rows
        rows = np.repeat(np.arange(len(lengths)), pairs)
        places = np.arange(len(rows)) - np.repeat(pairs_before, pairs)
        position = starts[rows] + places
        return cls(ids[position], ids[position + 1], rows, places)


class Unigram:
    """Word frequencies, with one added to every count so that a word unseen in training is not
    impossible.

    A count model predicts every token but the first (BOS), EOS included, and reports the same
    metrics as a language model.

    Args:
        distribution: (V,) probabilities.
    """

    def __init__(self, distribution: np.ndarray) -> None:
        self.distribution = distribution
        self.vocab_size = len(distribution)

    @classmethod
    def fit(cls, sequences: Dataset, vocab_size: int) -> Unigram:
        """Counts the predicted tokens of ``sequences``. BOS is never predicted and not counted."""
        pairs = _Pairs.of(sequences, vocab_size)
        counts = np.bincount(pairs.following, minlength=vocab_size) + 1
        return cls(counts / counts.sum())

    def probabilities(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        """p(following | previous), all (P,)."""
        return self.distribution[following]

    def predictions(self, previous: np.ndarray) -> np.ndarray:
        """The most likely next id after each of ``previous`` (P,). Among equally likely ids, the
        lowest one.
        """
        return np.full_like(previous, self.distribution.argmax())

    def token_statistics(self, sequences: Dataset) -> np.ndarray:
        """(N, longest − 1, 3) float32, as `farzi_hf.metrics.token_statistics` gives for a language
        model.
        """
        pairs = _Pairs.of(sequences, self.vocab_size)
        nll = -np.log(self.probabilities(pairs.previous, pairs.following))
        right = self.predictions(pairs.previous) == pairs.following
        valid = np.ones_like(nll)
        statistics = np.zeros((len(sequences), pairs.places.max() + 1, 3), dtype=np.float32)
        statistics[pairs.rows, pairs.places] = np.stack([nll, right, valid], axis=-1)
        return statistics


class InterpolatedBigram(Unigram):
    """w(h) · p(next | h) + (1 − w(h)) · p(next): relative frequencies, mixed with a `Unigram`.

    w(h) = count(h) / (count(h) + scale · followers(h)); with scale = 1 this is Witten & Bell
    (1991). The weight is 0 if h was never seen. The pairs are stored sorted and sparse; there is no
    V × V table.

    Args:
        unigram: the model of lower order.
        pairs: (K,) distinct sorted keys ``previous · V + next``.
        counts: (K,) how often each pair was seen.
        scale: positive; `fit` chooses it.
    """

    def __init__(
        self, unigram: Unigram, pairs: np.ndarray, counts: np.ndarray, scale: float
    ) -> None:
        super().__init__(unigram.distribution)
        self.unigram = unigram
        self.pairs = pairs
        self.scale = scale
        histories = pairs // self.vocab_size
        self._totals = np.bincount(histories, weights=counts, minlength=self.vocab_size)
        self._followers = np.bincount(histories, minlength=self.vocab_size)
        self._conditionals = counts / self._totals[histories]

    @classmethod
    def fit(cls, sequences: Dataset, vocab_size: int, validation: Dataset) -> InterpolatedBigram:
        """Counts on ``sequences`` and tries 28 scales from 1/32 to 16. It keeps the scale with the
        lowest perplexity on ``validation``.
        """
        seen = _Pairs.of(sequences, vocab_size)
        held_out = _Pairs.of(validation, vocab_size)
        keys = seen.previous * vocab_size + seen.following
        pairs, counts = np.unique(keys, return_counts=True)
        unigram = Unigram.fit(sequences, vocab_size)
        scales = np.geomspace(1 / 32, 16, 28)
        models = [cls(unigram, pairs, counts, float(scale)) for scale in scales]

        def likelihood(model: InterpolatedBigram) -> float:
            return np.log(model.probabilities(held_out.previous, held_out.following)).sum()

        return max(models, key=likelihood)

    def probabilities(self, previous: np.ndarray, following: np.ndarray) -> np.ndarray:
        keys = previous * self.vocab_size + following
        index = np.minimum(np.searchsorted(self.pairs, keys), len(self.pairs) - 1)
        bigram = np.where(self.pairs[index] == keys, self._conditionals[index], 0.0)
        total = self._totals[previous]
        denominator = total + self.scale * self._followers[previous]
        weight = total / np.maximum(denominator, 1)  # 0 / 0 after a token never seen
        return weight * bigram + (1 - weight) * self.distribution[following]

    def after(self, previous: int) -> np.ndarray:
        """p(· | previous), (V,): the same, without a search for each entry of the vocabulary."""
        entries = self.vocab_size
        first, last = np.searchsorted(self.pairs, [previous * entries, (previous + 1) * entries])
        total = self._totals[previous]
        weight = total / max(total + self.scale * self._followers[previous], 1)
        found = (1 - weight) * self.distribution
        found[self.pairs[first:last] % entries] += weight * self._conditionals[first:last]
        return found

    def predictions(self, previous: np.ndarray) -> np.ndarray:
        # The best token after a history is the best one that was seen there, or the most frequent
        # of all, whichever is likelier.
        best = np.full(self.vocab_size, self.distribution.argmax())
        scores = self.probabilities(np.arange(self.vocab_size), best)
        histories, following = np.divmod(self.pairs, self.vocab_size)
        pair_scores = self.probabilities(histories, following)
        best_first = np.lexsort((following, -pair_scores, histories))
        seen_histories, first = np.unique(histories[best_first], return_index=True)
        best_pairs = best_first[first]  # one for each history that was seen
        is_better = pair_scores[best_pairs] > scores[seen_histories]
        best[seen_histories[is_better]] = following[best_pairs[is_better]]
        return best[previous]


# -- the task --------------------------------------------------------------------------------------

_BITS_OF_PACKING = 4.0
"""Of a number of a packed teacher of text, with which it loses little (coded5, recipes/LOG.md)."""


class LanguageModeling(Task):
    """Text: the next token of each sentence. Seeds share the test split.

    ```python
    trainer = FarziTrainer(
        model_init=config,
        args=args,
        task=LanguageModeling(tokenizer),
        train_dataset=train,
        eval_dataset=valid,
    )
    ```

    Args:
        processing_class: the tokenizer.
    """

    label_names = ("labels",)
    metric = "perplexity"
    metric_label = "Test perplexity"
    ratio_label = "its perplexity over ours"
    figures = "perplexity: lower is better"
    unit_of_loss = "nats a token"
    percent = False
    compared = ()
    module = TokenMetrics
    counts = KneserNey
    counted_share = 0.5  # recipes/LOG.md, "A teacher that learns from n-grams, too"
    # Two settings matter (recipes/LOG.md). With tied embeddings, the learner stays on the unigram
    # plateau for hundreds of steps. With embeddings that start small, training is so chaotic that
    # its gradient is useless.
    learner: ClassVar = {
        "model_type": "gpt2",
        "n_embd": 16,
        "n_layer": 1,
        "n_head": 1,
        "n_positions": 128,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }
    learners: ClassVar = (
        learner,
        {**learner, "n_embd": 32},
        {**learner, "n_embd": 64, "n_layer": 2, "n_head": 2},
        {**learner, "n_embd": 128, "n_layer": 2, "n_head": 4},
    )
    tied: ClassVar = {**learners[2], "n_embd": 80, "tie_word_embeddings": True}
    """In place of the learner of width 64, where the summary has not the bits for it: wider, with a
    quarter fewer numbers. On a small text it is also better after as many seconds; on a larger one
    it is not (recipes/LOG.md).
    """
    widest_in: ClassVar = ((3.0, 32), (20.0, 64), (math.inf, 128))
    """Below so many minutes, the largest width that has time to learn."""
    data_settings = (
        "vocab_size",
        "max_length",
        "text_column",
        "tokenizer",
        "rows",
        "name",
        "split",
        "revision",
    )
    splits_differ = False
    split_label = "the data set's own train, validation and test"

    def __init__(self, processing_class: Any) -> None:
        if isinstance(processing_class, str | Path):
            raise ValueError(
                f"processing_class={str(processing_class)!r:.200} is the name of a tokenizer: load"
                " it with transformers, and give the tokenizer itself"
            )
        super().__init__(processing_class)
        self._labels: dict[Any, NGramLabels] = {}

    @classmethod
    def tried_in(cls, minutes: float, fits: Callable[..., bool]) -> Sequence[Mapping[str, Any]]:
        """One architecture, the widest that fits and has time to learn; where there is much time,
        the one before it too. Counting beats a network that had a few hundred steps, so few long
        trials are better than many short ones. Where the bytes would press a model of width 64 into
        so few bits that it loses by it, tied embeddings are tried in its place.
        """
        widest = next(width for most, width in cls.widest_in if minutes < most)
        narrow = [learner for learner in cls.learners if learner["n_embd"] <= widest]
        untied = cls.learners[2]
        if not fits(untied, _BITS_OF_PACKING) and fits(cls.tied, _BITS_OF_PACKING):
            narrow = [cls.tied if learner is untied else learner for learner in narrow]
        fitting = [learner for learner in narrow if fits(learner)] or narrow[:1]
        return fitting[-2:] if widest == cls.widest_in[-1][1] else fitting[-1:]

    @classmethod
    def load(
        cls,
        dataset: str,
        data_dir: str | None,
        *,
        vocab_size: int | None = None,
        max_length: int | None = None,
        text_column: str | None = None,
        **settings: Any,
    ) -> tuple[LanguageModeling, Callable[[int], DatasetDict], str]:
        """A text of `TEXTS`, as the tokens of its own tokenizer, of which training sequences alone
        are cut to `max_length` ids; or `load_text`, whose rows that are longer than `max_length`
        become several.
        """
        if dataset not in TEXTS:
            data = load_text(
                dataset, text_column, data_dir=data_dir, vocab_size=vocab_size, **settings
            )
            splits = DatasetDict({part: pieces(rows, max_length) for part, rows in data.items()})
            task = cls(data.tokenizer)
            task.split_label = data.split
            return task, lambda seed: splits, data.description
        text = TEXTS[dataset](data_dir)
        make_tokenizer = TOKENIZERS.get(dataset, word_tokenizer)
        tokenizer = make_tokenizer(text["train"]["text"], vocab_size)
        held_out = DatasetDict({split: rows for split, rows in text.items() if split != "train"})
        splits = DatasetDict(
            **tokenize(DatasetDict(train=text["train"]), tokenizer, max_length),
            **tokenize(held_out, tokenizer),
        )
        description = f"{len(text['train']):,} rows of text; {cls.split_label}"
        return cls(tokenizer), lambda seed: splits, description

    def learner_config(self, learner: Mapping[str, Any], length: int) -> PreTrainedConfig:
        tokenizer = self.processing_class
        check_fields(learner, "learner", vocab_size=len(tokenizer))
        special = {
            f"{name}_token_id": getattr(tokenizer, f"{name}_token_id")
            for name in ("pad", "bos", "eos")
        }
        return AutoConfig.for_model(**{**learner, "vocab_size": len(tokenizer), **special})

    @cached_property
    def collator(self) -> SequenceCollator:
        """Pads with the tokenizer's padding token, which is predicted if it has another role too,
        such as EOS. ValueError without a tokenizer.
        """
        tokenizer = self.processing_class
        if tokenizer is None:
            remedy = (
                "give the tokenizer, or a collator that returns input_ids, attention_mask and"
                " labels"
            )
            raise ValueError(f"processing_class, data_collator and task are all None; {remedy}")
        padding = getattr(tokenizer, "pad_token_id", None)
        others = {
            getattr(tokenizer, f"{role}_token_id", None)
            for role in ("bos", "eos", "unk", "sep", "cls", "mask")
        }
        return SequenceCollator(None if padding in others else padding)

    def training_rows(self, sequences: Dataset, length: int) -> Dataset:
        """Rows with a column `text`, and no `input_ids`, as the tokenizer's ids; others as they
        are.
        """
        names = sequences.column_names
        if "input_ids" in names or "text" not in names or self.processing_class is None:
            return sequences
        return tokenize(DatasetDict(text=sequences), self.processing_class)["text"]

    evaluation_rows = training_rows

    def counted_labels(self, rows: Dataset, vocab_size: int) -> NGramLabels:
        key = (sequences_fingerprint(rows), vocab_size)
        if key not in self._labels:
            self._labels = {key: NGramLabels(rows, vocab_size)}  # counts are large: one at a time
        return self._labels[key]

    preprocess_logits_for_metrics = staticmethod(token_statistics)
    compute_metrics = staticmethod(language_modeling_metrics)

    def statistics(self, outputs: Outputs, sequences: Dataset, length: int) -> np.ndarray:
        """(N, 1, 3): the sums of `token_statistics` for each sentence. The model reads them by
        length, so that little is padded.
        """

        def of_tokens(logits: torch.Tensor, batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
            return token_statistics(logits, batch["labels"])

        _, lengths = flatten_sequences(sequences)
        by_length = np.argsort(lengths, kind="stable")
        tokens = outputs(sequences.select(by_length), of_tokens)
        totals = sentence_totals(pad_statistics(tokens))
        if len(totals) < len(sequences):
            few = f"{len(sequences) - len(totals)} of {len(sequences)} sentences"
            raise ValueError(f"{few} have nothing to predict; filter them out")
        in_given_order = totals[np.argsort(by_length)]
        return in_given_order[:, None]

    def intervals(self, students: Statistics) -> dict[str, tuple[float, float]]:
        of_all_seeds = np.concatenate([np.asarray(seed) for seed in students])
        return {"perplexity": perplexity_interval(of_all_seeds)}

    def counting(
        self, train: Dataset, validation: Dataset, vocab_size: int
    ) -> Iterator[tuple[str, Callable[[Dataset], np.ndarray], int | None]]:
        """A unigram, an interpolated bigram, and Kneser-Ney of the best order."""

        def totals(model: Unigram) -> Callable[[Dataset], np.ndarray]:
            return lambda rows: sentence_totals(model.token_statistics(rows))[:, None]

        yield "unigram", totals(Unigram.fit(train, vocab_size)), None
        bigram = InterpolatedBigram.fit(train, vocab_size, validation)
        yield "interpolated bigram", totals(bigram), None
        ngrams = KneserNey.fit(train, vocab_size, validation)
        yield ngrams.name, ngrams.statistics, ngrams.nbytes

    def mixed(
        self,
        outputs: Outputs,
        train: Dataset,
        validation: Dataset,
        test: Dataset,
        vocab_size: int,
        length: int,
    ) -> tuple[str, np.ndarray]:
        ngrams = KneserNey.fit(train, vocab_size, validation)
        some = validation.select(range(min(_MIXED, len(validation))))

        def loss(mixture: Mixture) -> float:
            return self.nats(self.statistics(mixture.outputs(outputs), some, length))

        best = min((Mixture(ngrams, share) for share in SHARES), key=loss)
        return best.name, self.statistics(best.outputs(outputs), test, length)

    def nats(self, statistics: np.ndarray) -> float | None:
        return math.log(self.metrics(statistics)["perplexity"])

    def headline(self, row: ResultRow) -> str:
        perplexity = row["perplexity"]
        digits = 1 if perplexity >= 10 else 2
        return f"perplexity {perplexity:,.{digits}f}"

    def readable(self, row: ResultRow) -> dict[str, str]:
        def number(value: float, size: float) -> str:
            digits = 1 if size < 1000 else 0
            return f"{value:,.{digits}f}"

        def spread(name: str, scale: int = 1) -> str:
            values = [scale * row[key] for key in (name, f"{name}_std") if key in row]
            return " ± ".join(number(value, values[0]) for value in values)

        return {
            "trained on": shown_name(row),
            "perplexity": spread("perplexity"),
            "95 % interval": " – ".join(number(edge, edge) for edge in row["perplexity_interval"]),
            "sentence perplexity": spread("sentence_perplexity"),
            "accuracy, %": spread("accuracy", scale=100),
            **count_cells(row),
        }

    def paired(self, ours: Statistics, theirs: Statistics, metric: str) -> Paired:
        """The quotient is their perplexity divided by ours; other metrics have none."""
        our_students = np.concatenate([np.asarray(seed) for seed in ours])
        their_students = np.concatenate([np.asarray(seed) for seed in theirs])
        students = np.concatenate([our_students, their_students])[:, :, 0]  # (students, N, 3)
        count = len(our_students)

        def quotient(sentences: np.ndarray) -> float:
            perplexities = corpus_perplexity(sentences)
            return float(np.mean(perplexities[count:]) / np.mean(perplexities[:count]))

        return students.transpose(1, 0, 2), quotient
