"""Kneser-Ney against a plain implementation of the paper's equations, and what is made of it."""

from __future__ import annotations

import math
import os
from collections import Counter

import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from farzi_hf.data import load_ptb, tokenize, word_tokenizer
from farzi_hf.tasks import KneserNey, LanguageModeling
from farzi_hf.tasks.counted import coded, decoded
from farzi_hf.tasks.counted_text import discounts_of

V = 6
SEQUENCES = st.lists(
    st.lists(st.integers(0, V - 1), min_size=2, max_size=7), min_size=1, max_size=12
)


def dataset(ids: list[list[int]]) -> Dataset:
    return Dataset.from_dict({"input_ids": ids})


def model_of(ids: list[list[int]], order: int) -> KneserNey:
    return list(KneserNey.counted(dataset(ids), V, order))[-1]


@given(SEQUENCES, st.integers(1, 5), st.integers(1, 5))
def test_models_from_an_order_on_are_those_of_all_orders(ids, lowest, more):
    """Of rows that are too short, the longest that they allow."""
    highest = lowest + more
    everything = list(KneserNey.counted(dataset(ids), V, highest))
    some = list(KneserNey.counted(dataset(ids), V, highest, lowest))
    expected = [model for model in everything if model.order >= lowest] or everything[-1:]
    assert [model.order for model in some] == [model.order for model in expected]
    longest = KneserNey.longest(dataset(ids), V, highest)
    for found, same in zip([*some, longest], [*expected, everything[-1]], strict=True):
        for ours, theirs in zip(found.levels, same.levels, strict=True):
            np.testing.assert_array_equal(ours.probabilities, theirs.probabilities)
            np.testing.assert_array_equal(ours.backoffs, theirs.backoffs)


class Plain:
    """Interpolated modified Kneser-Ney with dictionaries, n-gram by n-gram and token by token."""

    def __init__(self, rows: list[list[int]], order: int) -> None:
        self.order = order
        self.counts: list[Counter] = [Counter()]
        for n in range(1, order + 1):
            raw = Counter(
                tuple(row[end - n : end])
                for row in rows
                for end in range(max(n, 2), len(row) + 1)  # the first token is never predicted
            )
            if n == order:
                self.counts.append(raw)
                break
            different = Counter()
            longer = {
                tuple(row[end - n - 1 : end]) for row in rows for end in range(n + 1, len(row) + 1)
            }
            for gram in longer:  # one for each different token before the n-gram
                different[gram[1:]] += 1
            for row in rows:  # nothing is before it, so every time counts
                if n > 1 and len(row) >= n:
                    different[tuple(row[:n])] += 1
            self.counts.append(different)
        self.discounts = [(0.0, 0.0, 0.0, 0.0), *map(self.discounts_of, self.counts[1:])]

    @staticmethod
    def discounts_of(counts: Counter) -> tuple[float, ...]:
        n1, n2, n3, n4 = (sum(c == k for c in counts.values()) for k in (1, 2, 3, 4))
        default = (0.0, 0.5, 1.0, 1.5)
        if 0 in (n1, n2, n3):
            return default
        y = n1 / (n1 + 2 * n2)
        found = (0.0, 1 - 2 * y * n2 / n1, 2 - 3 * y * n3 / n2, 3 - 4 * y * n4 / n3)
        return found if all(0 < d <= k for k, d in enumerate(found[1:], 1)) else default

    def probability(self, history: tuple[int, ...], token: int) -> float:
        """p(token | history), from the order that the length of the history gives."""
        n = len(history) + 1
        lower = self.probability(history[1:], token) if n > 1 else 1 / V
        counts = self.counts[n]
        followers = [count for gram, count in counts.items() if gram[:-1] == history]
        if not followers:
            return lower
        discounts = self.discounts[n]
        count = counts[(*history, token)]
        freed = sum(discounts[min(c, 3)] for c in followers)
        return (count - discounts[min(count, 3)] + freed * lower) / sum(followers)

    def of_row(self, row: list[int]) -> list[float]:
        most = self.order - 1
        return [
            self.probability(tuple(row[max(0, place - most) : place]), row[place])
            for place in range(1, len(row))
        ]


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, SEQUENCES, st.integers(1, 5))
def test_it_is_what_the_equations_say(rows, held_out, order):
    model = model_of(rows, order)
    plain = Plain(rows, model.order)
    for row, logs in zip(held_out, model.log_probabilities(held_out), strict=True):
        np.testing.assert_allclose(np.exp(logs), plain.of_row(row), rtol=1e-12)


def test_discounts_of_many_counts_are_those_of_the_paper(sequences, tokenizer):
    """A corpus gives discounts of its own; the short rows above mostly have the default ones."""
    rows = sequences["train"]["input_ids"]
    model = list(KneserNey.counted(sequences["train"], len(tokenizer), 3))[-1]
    for level, counts in zip(model.levels, Plain(list(rows), 3).counts[1:], strict=True):
        assert discounts_of(level.counts) == pytest.approx(Plain.discounts_of(counts)[1:])
    assert discounts_of(model.levels[2].counts) != (0.5, 1.0, 1.5)


def test_no_discount_makes_a_token_impossible():
    """A text in which nothing occurs once has no discounts by the equations."""
    model = model_of([[0, 1, 2, 1, 2]] * 4, 3)
    found = model.distribution([[], [0], [1], [5, 4], [0, 1, 2]])
    assert (found > 0).all()
    np.testing.assert_allclose(found.sum(1), 1.0)


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, SEQUENCES, st.integers(1, 5))
def test_distributions_sum_to_one_and_agree_with_the_scores(rows, held_out, order):
    model = model_of(rows, order)
    for row, logs in zip(held_out, model.log_probabilities(held_out), strict=True):
        contexts = [row[:place] for place in range(1, len(row))]
        found = model.distribution(contexts)
        np.testing.assert_allclose(found.sum(1), 1.0, rtol=1e-12)
        np.testing.assert_allclose(found[range(len(row) - 1), row[1:]], np.exp(logs), rtol=1e-12)
        states = model.states([[]])
        for token, expected in zip(row[:-1], found, strict=True):  # token by token
            states = model.next_states(states, np.array([token]))
            np.testing.assert_array_equal(model.distribution_after(states)[0], expected)


@settings(max_examples=40, deadline=None)
@given(SEQUENCES, SEQUENCES, st.integers(1, 4))
def test_statistics_are_those_of_a_language_model(rows, held_out, order):
    model = model_of(rows, order)
    totals = model.statistics(dataset(held_out))
    assert totals.shape == (len(held_out), 1, 3)
    for row, (nats, right, tokens) in zip(held_out, totals[:, 0], strict=True):
        found = model.distribution([row[:place] for place in range(1, len(row))])
        best = found.max(1)
        chosen = found[range(len(row) - 1), row[1:]]
        assert nats == pytest.approx(-np.log(chosen).sum())
        assert tokens == len(row) - 1
        certain = (chosen == best) & ((found == best[:, None]).sum(1) == 1)
        near = np.isclose(chosen, best, rtol=1e-12)  # which of two equals, rounding decides
        assert certain.sum() <= right <= near.sum()


def test_rows_without_a_token_to_predict_are_left_out():
    model = model_of([[0, 1, 2]], 2)
    assert model.statistics(dataset([[1], [1, 2], [3]])).shape == (1, 1, 3)
    with pytest.raises(ValueError, match="predict nothing: give rows of at least two tokens"):
        model.statistics(dataset([[1], [2]]))
    with pytest.raises(ValueError, match="predict nothing: give rows of at least two tokens"):
        model_of([[1], [2]], 2)


def test_the_order_is_chosen_on_validation(sequences, tokenizer):
    parts = sequences["train"], len(tokenizer), sequences["validation"]
    candidates = list(KneserNey.candidates(*parts))
    assert [model.order for model in candidates] == [1, 2, 3, 4, 5]
    assert [model.seconds for model in candidates] == sorted(model.seconds for model in candidates)
    task = LanguageModeling(tokenizer)
    perplexities = [
        task.metrics(model.statistics(sequences["validation"]))["perplexity"]
        for model in candidates
    ]
    assert [math.exp(model.error) for model in candidates] == pytest.approx(perplexities)
    best = KneserNey.fit(*parts)
    assert best.order == 1 + int(np.argmin(perplexities))
    assert best.name == f"Kneser-Ney {best.order}-gram, counted"
    assert KneserNey.fit(*parts, orders=[2]).order == 2


def test_rows_too_short_for_an_order_have_lower_ones():
    parts = dataset([[0, 1, 2]] * 3), V, dataset([[0, 1, 2]])
    assert [model.order for model in KneserNey.candidates(*parts)] == [1, 2, 3]
    with pytest.raises(ValueError, match=r"orders=\[5\]: no row of the training part is as long"):
        KneserNey.fit(*parts, orders=[5])


def test_generated_rows_are_drawn_from_the_distribution():
    rows = [[0, 1, 3], [0, 1, 4], [0, 2, 3], [0, 2, 3]] * 10
    model = model_of(rows, 3)
    drawn = model.generate(4000, start=[0], max_length=2, seed=1)
    shares = np.bincount([row[1] for row in drawn], minlength=V) / 4000
    np.testing.assert_allclose(shares, model.distribution([[0]])[0], atol=0.03)
    ended = model.generate(200, start=[0], end=3, max_length=9)
    assert all(row[0] == 0 and 3 not in row[:-1] and len(row) <= 9 for row in ended)
    assert any(row[-1] == 3 and len(row) < 9 for row in ended)
    assert ended == model.generate(200, start=[0], end=3, max_length=9)
    assert ended != model.generate(200, start=[0], end=3, max_length=9, seed=1)
    assert ended[:7] == model.generate(7, start=[0], end=3, max_length=9)  # a row is its own
    assert model.generate(0) == []
    with pytest.raises(ValueError, match="max_length must be an integer of at least 3, got 2"):
        model.generate(1, start=[0, 1], max_length=2)


def test_ids_outside_the_vocabulary_are_refused():
    model = model_of([[0, 1, 2]], 2)
    with pytest.raises(ValueError, match="holds id 6, outside 0 … 5"):
        model.log_probabilities([[0, 6]])
    with pytest.raises(ValueError, match="holds id 9"):
        model_of([[0, 9]], 2)
    with pytest.raises(ValueError, match="contexts hold ids from -1 to 2, outside 0 … 5"):
        model.distribution([[2], [-1]])


# -- what is saved ---------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@given(SEQUENCES, st.integers(1, 5))
def test_a_saved_model_is_the_same_to_the_last_bit(rows, order):
    model = model_of(rows, order)
    sizes = KneserNey.sizes(model.settings())
    arrays = {name: decoded(coded(x), sizes[name], name) for name, x in model.arrays().items()}
    assert {name: len(x) for name, x in arrays.items()} == sizes
    loaded = KneserNey.restored(model.settings(), arrays)
    contexts = [[], *(row[:place] for row in rows for place in range(len(row)))]
    np.testing.assert_array_equal(loaded.distribution(contexts), model.distribution(contexts))
    np.testing.assert_array_equal(loaded.statistics(dataset(rows)), model.statistics(dataset(rows)))
    assert loaded.nbytes == model.nbytes == sum(len(coded(x)) for x in arrays.values())


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokens_2", lambda x: x + V, "followers_2 and tokens_2 do not fit"),
        ("followers_2", lambda x: x + 1, "followers_2 and tokens_2 do not fit"),
        ("tokens_2", lambda x: x[::-1].copy(), "tokens_2 are not sorted"),
        ("counts_2", lambda x: x * 0, "counts_2 holds numbers that are not counts"),
        ("counts_1", lambda x: x * 0, "counts_1 holds numbers that are not counts"),
        ("counts_3", lambda x: x + 2**62, "counts_3 holds numbers that are not counts"),
        ("tokens_3", lambda x: np.where(x == 3, 5, x), "tokens_3 end with tokens that tokens_2"),
    ],
)
def test_damaged_counts_are_refused(name, change, message):
    model = model_of([[0, 1, 2, 3], [0, 2, 3, 4], [0, 1, 3]], 3)
    arrays = {key: np.asarray(x).copy() for key, x in model.arrays().items()}
    arrays[name] = change(arrays[name])
    with pytest.raises(ValueError, match=message):
        KneserNey.restored(model.settings(), arrays)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"vocab_size": 0}, "vocab_size must be an integer of at least 1"),
        ({"ngrams": [3, "4"]}, r"ngrams\[1\] must be an integer"),
        ({"ngrams": 7}, "ngrams=7 is not a list"),
        ({"ngrams": [1] * 99}, "is not a list of at most 16"),
        ({"ngrams": [2**40]}, r"ngrams\[0\] must be an integer of at most"),
    ],
)
def test_settings_of_no_model_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        KneserNey.sizes({"vocab_size": 5, "ngrams": [3, 4], **wrong})


@pytest.mark.skipif(
    "FARZI_PTB_DIR" not in os.environ, reason="FARZI_PTB_DIR names no folder with Penn Treebank"
)
@pytest.mark.parametrize(
    ("words", "perplexities"),
    [(2000, [70.3, 57.0, 55.2, 54.5]), (10_000, [185.7, 148.3, 142.7, 141.2])],
)
def test_published_figures_on_ptb(words, perplexities):
    """141.2 is the figure of Mikolov's papers for a 5-gram with modified Kneser-Ney."""
    text = load_ptb(os.environ["FARZI_PTB_DIR"])
    tokenizer = word_tokenizer(text["train"]["text"], words)
    splits = tokenize(text, tokenizer)
    models = KneserNey.candidates(
        splits["train"], len(tokenizer), splits["validation"], orders=[2, 3, 4, 5]
    )
    task = LanguageModeling(tokenizer)
    found = [task.metrics(model.statistics(splits["test"]))["perplexity"] for model in models]
    assert found == pytest.approx(perplexities, abs=0.06)


@pytest.mark.parametrize("order", range(1, 6))
def test_states_of_all_tokens_are_those_of_their_contexts(order):
    rng = np.random.default_rng(0)
    rows, others = (
        [rng.integers(0, V, rng.integers(2, 8)).tolist() for _ in range(count)] for count in (30, 9)
    )
    model = model_of(rows, order)
    tested = [*others, *rows[:5]]
    contexts = [row[:end] for row in tested for end in range(len(row))]
    lengths = np.array([len(row) for row in tested])
    found = model.states_before(np.concatenate(tested), lengths)
    np.testing.assert_array_equal(found, model.states(contexts))
    single = model.distribution_after(found, np.float32)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, model.distribution(contexts), rtol=0, atol=1e-6)
