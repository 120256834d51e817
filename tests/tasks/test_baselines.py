"""Count models against tables written out in full, and the choice of sequences."""

from __future__ import annotations

import os
from itertools import pairwise

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given, settings
from hypothesis import strategies as st

from farzi_hf.data import head_sequences, load_ptb, random_sequences, tokenize, word_tokenizer
from farzi_hf.tasks import InterpolatedBigram, Unigram

V = 6
SEQUENCES = st.lists(st.lists(st.integers(0, V - 1), min_size=2, max_size=6), min_size=1, max_size=6)


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
@given(SEQUENCES)
def test_unigram_is_the_dense_one(ids: list[list[int]]) -> None:
    model = Unigram.fit(dataset(ids), V)
    np.testing.assert_allclose(table(model), dense(ids, None))
    assert (model.predictions(np.arange(V)) == dense(ids, None).argmax(1)).all()


@settings(max_examples=30, deadline=None)
@given(SEQUENCES, SEQUENCES)
def test_bigram_is_the_dense_one(ids: list[list[int]], held_out: list[list[int]]) -> None:
    model = InterpolatedBigram.fit(dataset(ids), V, dataset(held_out))
    expected = dense(ids, model.scale)
    np.testing.assert_allclose(table(model), expected)
    np.testing.assert_allclose(table(model).sum(1), 1.0)
    top = expected[np.arange(V), model.predictions(np.arange(V))]
    np.testing.assert_allclose(top, expected.max(1))  # which of two equals, rounding decides


def test_bigram_scale_is_chosen_on_validation(sequences: DatasetDict, tokenizer) -> None:
    def perplexity(scale: float) -> float:
        model.scale = scale
        return model.metrics(sequences["validation"])["perplexity"]

    model = InterpolatedBigram.fit(sequences["train"], len(tokenizer), sequences["validation"])
    chosen = model.scale
    assert 1 / 32 < chosen < 16
    assert perplexity(chosen) < min(perplexity(chosen * 1.5), perplexity(chosen / 1.5))


@pytest.mark.parametrize("bigram", [False, True])
def test_metrics_predict_all_but_the_first_token(bigram: bool) -> None:
    train, test = [[2, 4, 4, 3], [2, 5, 3]], [[2, 4, 3], [2, 5, 4, 5, 3]]
    model = InterpolatedBigram.fit(dataset(train), V, dataset(test)) if bigram else Unigram.fit(dataset(train), V)
    expected = dense(train, model.scale if bigram else None)
    logs = [[np.log(expected[p, n]) for p, n in pairwise(row)] for row in test]
    right = [expected[p].argmax() == n for row in test for p, n in pairwise(row)]
    assert model.token_statistics(dataset(test)).shape == (2, 4, 3)
    assert model.metrics(dataset(test)) == pytest.approx({
        "perplexity": np.exp(-np.concatenate(logs).mean()),
        "sentence_perplexity": np.mean([np.exp(-np.mean(row)) for row in logs]),
        "accuracy": np.mean(right),
    })  # fmt: skip


def test_order_of_difficulty(sequences: DatasetDict, tokenizer) -> None:
    unigram = Unigram.fit(sequences["train"], len(tokenizer)).metrics(sequences["test"])
    bigram = InterpolatedBigram.fit(sequences["train"], len(tokenizer), sequences["validation"]).metrics(
        sequences["test"]
    )
    assert bigram["perplexity"] < 0.6 * unigram["perplexity"] < 0.6 * len(tokenizer)
    assert bigram["accuracy"] > unigram["accuracy"]


def test_ids_outside_the_vocabulary_are_refused(sequences: DatasetDict, tokenizer) -> None:
    with pytest.raises(ValueError, match="vocab_size=10"):
        Unigram.fit(sequences["train"], 10)
    with pytest.raises(ValueError, match="holds id 99"):
        Unigram.fit(sequences["train"], len(tokenizer)).metrics(dataset([[2, 99]]))


def test_random_sequences(sequences: DatasetDict) -> None:
    rows = [tuple(ids) for ids in sequences["train"]["input_ids"]]
    drawn, again, other = (
        [tuple(ids) for ids in random_sequences(sequences["train"], 30, s)["input_ids"]] for s in (0, 0, 1)
    )
    assert drawn == again != other
    assert len(drawn) == 30
    assert not set(drawn) - set(rows)
    assert len(random_sequences(sequences["train"], len(rows), 0)) == len(rows)


def test_head_sequences_are_the_longest_in_order() -> None:
    picked = head_sequences(dataset([[1, 1], [2] * 4, [3] * 3, [4] * 4, [5] * 3]), 3)
    assert [ids[0] for ids in picked["input_ids"]] == [2, 4, 3]


@pytest.mark.parametrize("count", [0, 161])
def test_counts_outside_the_data_set(sequences: DatasetDict, count: int) -> None:
    with pytest.raises(ValueError, match=f"count={count}.*from 1 to 160"):
        random_sequences(sequences["train"], count, seed=0)
    with pytest.raises(ValueError, match=f"count={count}"):
        head_sequences(sequences["train"], count)


@pytest.mark.skipif("FARZI_PTB_DIR" not in os.environ, reason="FARZI_PTB_DIR names no folder with Penn Treebank")
def test_published_figures_on_ptb() -> None:
    text = load_ptb(os.environ["FARZI_PTB_DIR"])
    tokenizer = word_tokenizer(text["train"]["text"])
    splits = tokenize(text, tokenizer)
    unigram = Unigram.fit(splits["train"], len(tokenizer))
    bigram = InterpolatedBigram.fit(splits["train"], len(tokenizer), splits["validation"])
    assert unigram.metrics(splits["test"])["perplexity"] == pytest.approx(196.6, abs=0.1)
    assert bigram.metrics(splits["test"])["perplexity"] == pytest.approx(72.4, abs=0.1)
