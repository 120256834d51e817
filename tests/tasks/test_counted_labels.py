"""What n-grams predict for a teacher to learn: by models that have not counted the row."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from datasets import Dataset

from farzi_hf.data import SequenceCollator
from farzi_hf.distillation.rows import RealData
from farzi_hf.tasks import KneserNey, LanguageModeling, Recommendation
from farzi_hf.tasks import counted_labels as module
from farzi_hf.tasks.counted_labels import NGramLabels

V = 20


def chain(rows: int, seed: int, length: int = 9) -> list[list[int]]:
    """Rows in which an entry v is mostly followed by v + 1, and now and then by any."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(rows):
        row = [int(rng.integers(V))]
        while len(row) < length:
            follows = (row[-1] + 1) % V
            row.append(follows if rng.random() < 0.7 else int(rng.integers(V)))
        made.append(row[: int(rng.integers(2, length + 1))])
    return made


@pytest.fixture(scope="module")
def rows() -> list[list[int]]:
    return chain(300, 0)


@pytest.fixture(scope="module")
def labels(rows) -> NGramLabels:
    return NGramLabels(Dataset.from_dict({"input_ids": rows}), V)


def all_but_first(rows: list[list[int]]) -> np.ndarray:
    """(b, L): every entry that has one before it."""
    longest = max(map(len, rows))
    return np.array([[0 < place < len(row) for place in range(longest)] for row in rows])


def test_labels_are_those_of_a_model_that_has_not_counted_the_row(rows, labels):
    assert len(labels.models) == 5
    some = rows[:40]
    found = labels(some, all_but_first(some))
    expected = []
    for row in some:
        part = module._part_of(row, 5)
        others = [each for each in rows if module._part_of(each, 5) != part]
        model = KneserNey.longest(Dataset.from_dict({"input_ids": others}), V, module.HIGHEST)
        expected.append(model.distribution([row[:end] for end in range(1, len(row))]))
    np.testing.assert_allclose(found, np.concatenate(expected), rtol=0, atol=1e-6)
    np.testing.assert_allclose(found.sum(1), 1, rtol=0, atol=1e-5)


def test_a_row_does_not_find_its_own_tokens(rows):
    """One that stands there three times neither: copies are in one part."""
    odd = [0, 13, 5, 17, 2, 11]
    everything = Dataset.from_dict({"input_ids": [*rows, odd, odd, odd]})
    of_others = NGramLabels(everything, V)([odd], all_but_first([odd]))
    of_all = KneserNey.longest(everything, V, module.HIGHEST)
    own = np.exp(of_all.log_probabilities([odd])[0])
    assert of_others[np.arange(5), odd[1:]].mean() < 0.5 * own.mean()


def test_entries_that_are_not_predicted_have_no_label(rows, labels):
    predicted = all_but_first(rows[:7])
    whole = labels(rows[:7], predicted)
    some = predicted & (np.arange(predicted.shape[1]) % 2 == 0)
    np.testing.assert_array_equal(labels(rows[:7], some), whole[some[predicted]])


def test_a_large_text_has_fewer_parts(rows, monkeypatch):
    monkeypatch.setattr(module, "_COUNTED", 100)
    assert len(NGramLabels(Dataset.from_dict({"input_ids": rows}), V).models) == 2


def test_rows_that_are_all_alike_are_counted_all_the_same():
    labels = NGramLabels(Dataset.from_dict({"input_ids": [[1, 2, 3]] * 4}), V)
    found = labels([[1, 2, 3]], all_but_first([[1, 2, 3]]))
    assert found.shape == (2, V)
    assert found[0, 2] > 0.3


def test_what_is_learnt_is_the_next_token_and_what_n_grams_predict(rows):
    data = RealData(
        Dataset.from_dict({"input_ids": rows}),
        SequenceCollator(),
        count=lambda dataset: NGramLabels(dataset, V),
        counted_share=0.4,
    )
    some = [{"input_ids": row} for row in rows[:6]]
    batch = data.training_batch(some)
    predicted = all_but_first(rows[:6])
    expected = 0.4 * torch.from_numpy(NGramLabels(data.dataset, V)(rows[:6], predicted))
    came = torch.tensor([token for row in rows[:6] for token in row[1:]])
    expected[torch.arange(len(came)), came] += 0.6
    torch.testing.assert_close(batch["targets"].probabilities, expected, rtol=0, atol=1e-6)
    assert "targets" not in data.batch(some)


def test_a_task_counts_the_same_rows_once(rows):
    task = LanguageModeling(None)
    dataset = Dataset.from_dict({"input_ids": rows})
    assert task.counted_labels(dataset, V) is task.counted_labels(dataset.select(range(300)), V)
    assert task.counted_labels(dataset, V) is not task.counted_labels(dataset, V + 1)
    with pytest.raises(ValueError, match="teacher_counted_share: Recommendation has no n-grams"):
        Recommendation([f"item {i}" for i in range(V)]).counted_labels(dataset, V)
