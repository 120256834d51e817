"""Metrics of text against plain loops, and as an `evaluate` module; count models against tables
written out.
"""

from __future__ import annotations

import math
import os
from itertools import pairwise
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    EvalPrediction,
)

from farzi_hf.data import load_ptb, tokenize, word_tokenizer
from farzi_hf.metrics import (
    language_modeling_metrics,
    pad_statistics,
    perplexity_interval,
    sentence_totals,
    token_metrics,
    token_statistics,
)
from farzi_hf.tasks import InterpolatedBigram, Unigram
from farzi_hf.tasks import text as text_task

MODULE = Path(text_task.__file__)


def by_hand(logits: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
    """The definitions, token by token."""
    sentences, right, count = [], 0, 0
    for row, targets in zip(logits.double(), labels, strict=True):
        nll = []
        for j in range(len(targets) - 1):
            target = int(targets[j + 1])
            if target != -100:
                nll.append(-math.log(torch.softmax(row[j], -1)[target].item()))
                right += int(row[j].argmax()) == target
        count += len(nll)
        sentences.append(nll)
    return {
        "perplexity": math.exp(sum(map(sum, sentences)) / count),
        "sentence_perplexity": float(np.mean([math.exp(sum(nll) / len(nll)) for nll in sentences])),
        "accuracy": right / count,
    }


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 7, (5, 6), generator=generator)
    labels[1, 4:] = -100
    labels[3, 2:] = -100
    return torch.randn(5, 6, 7, generator=generator) * 2, labels


def test_metrics_equal_their_definitions(batch):
    statistics = token_statistics(*batch)
    assert statistics.shape == (5, 5, 3)
    assert statistics.dtype == torch.float32
    assert token_metrics(statistics.numpy()) == pytest.approx(by_hand(*batch), rel=1e-5)
    padded = np.pad(
        statistics.numpy(), ((0, 0), (0, 3), (0, 0)), constant_values=-100
    )  # as a Trainer pads
    assert token_metrics(padded) == token_metrics(statistics.numpy())
    half = batch[0].bfloat16()
    torch.testing.assert_close(
        token_statistics((half, None), batch[1]), token_statistics(half.float(), batch[1])
    )


def test_a_diverged_model_has_infinite_perplexity():
    infinite = {"perplexity": math.inf, "sentence_perplexity": math.inf, "accuracy": 0.0}
    assert token_metrics(np.array([[[2000.0, 0.0, 1.0]]])) == infinite


@pytest.mark.parametrize(
    ("statistics", "message"),
    [
        (np.zeros((2, 3, 7)), r"shape \(2, 3, 7\).*preprocess_logits_for_metrics"),
        (np.zeros((2, 4, 3)), "no predicted token"),
    ],
)
def test_metrics_bad_input(statistics, message):
    with pytest.raises(ValueError, match=message):
        language_modeling_metrics(EvalPrediction(predictions=statistics, label_ids=None))


def test_evaluate_module(batch):
    metric = evaluate.load(str(MODULE))
    statistics = token_statistics(*batch)
    expected = token_metrics(statistics.numpy())
    assert metric.compute(predictions=statistics) == pytest.approx(expected)
    metric.add_batch(predictions=statistics[:2])
    metric.add_batch(
        predictions=[row[row[:, 2] > 0] for row in statistics[2:].numpy()]
    )  # as long as each sentence is
    assert metric.compute() == pytest.approx(expected)


def test_statistics_are_in_the_order_of_the_sequences():
    """The model reads them by length."""
    sequences = Dataset.from_dict({"input_ids": [[1] * 3, [2] * 4, [3] * 5, [4] * 2]})
    read = []

    def outputs(rows, statistic):
        read.extend(len(row["input_ids"]) for row in rows)
        tensors = [torch.tensor(row["input_ids"])[None] for row in rows]
        return [
            statistic(torch.zeros(*ids.shape, 7), {"labels": ids})[0].numpy() for ids in tensors
        ]

    statistics = text_task.LanguageModeling(None).statistics(outputs, sequences, 5)
    assert read == [2, 3, 4, 5]
    assert statistics.shape == (4, 1, 3)
    assert statistics[:, 0, 2].tolist() == [2, 3, 4, 1]  # predicted tokens


def test_pad_statistics_of_ragged_rows():
    padded = pad_statistics([[[1.0, 0.0, 1.0]], [], [[2.0, 1.0, 1.0], [3.0, 0.0, 1.0]]])
    assert padded.shape == (3, 2, 3)
    assert sentence_totals(padded).tolist() == [[1.0, 0.0, 1.0], [5.0, 1.0, 2.0]]


def test_perplexity_interval_resamples_sentences():
    nll = np.random.default_rng(0).gamma(4.0, 1.0, size=(100, 1, 1))
    statistics = np.concatenate(
        [np.repeat(nll, 8, axis=1), np.ones((100, 8, 2))], axis=-1
    )  # 8 equal tokens a sentence
    low, high = perplexity_interval(statistics, resamples=300)
    assert low < token_metrics(statistics)["perplexity"] < high
    # eight copies of a token say no more than one
    assert (low, high) == pytest.approx(perplexity_interval(statistics[:, :1], resamples=300))
    # Two students on the same sentences: the interval of their mean, not of twice as many
    # sentences.
    assert (low, high) == perplexity_interval(np.stack([statistics, statistics]), resamples=300)


# -- models that only count ------------------------------------------------------------------------

V = 6
SEQUENCES = st.lists(
    st.lists(st.integers(0, V - 1), min_size=2, max_size=6), min_size=1, max_size=6
)


def dataset(ids: list[list[int]]) -> Dataset:
    return Dataset.from_dict({"input_ids": ids})


def table(model: Unigram | InterpolatedBigram) -> np.ndarray:
    """(V, V): p(next | previous) for every pair, through the public method."""
    previous, following = np.divmod(np.arange(V * V), V)
    return model.probabilities(previous, following).reshape(V, V)


def dense(ids: list[list[int]], scale: float | None) -> np.ndarray:
    """(V, V): the same from dense tables; a unigram where ``scale`` is None."""
    counts = np.zeros((V, V))
    for row in ids:
        for previous, following in pairwise(row):
            counts[previous, following] += 1
    unigram = (counts.sum(0) + 1) / (counts.sum() + V)
    if scale is None:
        return np.tile(unigram, (V, 1))
    result = np.tile(unigram, (V, 1))
    for history in np.flatnonzero(counts.sum(1)):
        total, followers = counts[history].sum(), (counts[history] > 0).sum()
        weight = total / (total + scale * followers)
        result[history] = weight * counts[history] / total + (1 - weight) * unigram
    return result


@settings(max_examples=30, deadline=None)
@given(SEQUENCES, SEQUENCES)
def test_count_models_are_the_dense_ones(ids, held_out):
    model = InterpolatedBigram.fit(dataset(ids), V, dataset(held_out))
    expected = dense(ids, model.scale)
    np.testing.assert_allclose(table(model), expected)
    np.testing.assert_allclose(table(model).sum(1), 1.0)
    assert np.array_equal(np.stack([model.after(history) for history in range(V)]), table(model))
    top = expected[np.arange(V), model.predictions(np.arange(V))]
    np.testing.assert_allclose(top, expected.max(1))  # which of two equals, rounding decides
    unigram = dense(ids, None)
    np.testing.assert_allclose(table(model.unigram), unigram)
    assert (model.unigram.predictions(np.arange(V)) == unigram.argmax(1)).all()


def test_bigram_scale_is_chosen_on_validation(sequences, tokenizer):
    def perplexity(scale: float) -> float:
        model.scale = scale
        return token_metrics(model.token_statistics(sequences["validation"]))["perplexity"]

    model = InterpolatedBigram.fit(sequences["train"], len(tokenizer), sequences["validation"])
    chosen = model.scale
    assert 1 / 32 < chosen < 16
    assert perplexity(chosen) < min(perplexity(chosen * 1.5), perplexity(chosen / 1.5))


@pytest.mark.parametrize("bigram", [False, True])
def test_metrics_predict_all_but_the_first_token(bigram):
    train, test = [[2, 4, 4, 3], [2, 5, 3]], [[2, 4, 3], [2, 5, 4, 5, 3]]
    model = (
        InterpolatedBigram.fit(dataset(train), V, dataset(test))
        if bigram
        else Unigram.fit(dataset(train), V)
    )
    expected = dense(train, model.scale if bigram else None)
    logs = [[np.log(expected[p, n]) for p, n in pairwise(row)] for row in test]
    right = [expected[p].argmax() == n for row in test for p, n in pairwise(row)]
    assert model.token_statistics(dataset(test)).shape == (2, 4, 3)
    assert token_metrics(model.token_statistics(dataset(test))) == pytest.approx(
        {
            "perplexity": np.exp(-np.concatenate(logs).mean()),
            "sentence_perplexity": np.mean([np.exp(-np.mean(row)) for row in logs]),
            "accuracy": np.mean(right),
        }
    )


def test_ids_outside_the_vocabulary_are_refused(sequences, tokenizer):
    with pytest.raises(ValueError, match="vocab_size=10"):
        Unigram.fit(sequences["train"], 10)
    with pytest.raises(ValueError, match="holds id 99"):
        Unigram.fit(sequences["train"], len(tokenizer)).token_statistics(dataset([[2, 99]]))


@pytest.mark.skipif(
    "FARZI_PTB_DIR" not in os.environ, reason="FARZI_PTB_DIR names no folder with Penn Treebank"
)
def test_published_figures_on_ptb():
    text = load_ptb(os.environ["FARZI_PTB_DIR"])
    tokenizer = word_tokenizer(text["train"]["text"])
    splits = tokenize(text, tokenizer)
    unigram = Unigram.fit(splits["train"], len(tokenizer))
    bigram = InterpolatedBigram.fit(splits["train"], len(tokenizer), splits["validation"])
    for model, perplexity in ((unigram, 196.6), (bigram, 72.4)):
        found = token_metrics(model.token_statistics(splits["test"]))
        assert found["perplexity"] == pytest.approx(perplexity, abs=0.1)


def test_a_diverged_model_gets_nothing_right():
    """The largest of NaN is the first one, and so the padding or <s> were right."""
    found = token_metrics(
        token_statistics(torch.full((1, 5, 4), torch.nan), torch.tensor([[0, 0, 0, 1, 0]])).numpy()
    )
    assert found["accuracy"] == 0.0
