"""Sequences of ids: checks, subsets, minibatches, windows and batches."""

from __future__ import annotations

from itertools import pairwise

import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from hypothesis import given
from hypothesis import strategies as st

from farzi_hf.data import (
    SequenceCollator,
    check_sequences,
    evaluation_windows,
    head_sequences,
    minibatches,
    random_sequences,
    training_windows,
)
from farzi_hf.data.sequences import pieces
from farzi_hf.tasks import Recommendation


def rows(*ids: list[int]) -> Dataset:
    return Dataset.from_dict(
        {"input_ids": list(ids)}, features=Features({"input_ids": List(Value("int64"))})
    )


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        (rows(), "dataset is empty"),
        (rows([2, 3], [2], []), r"\['input_ids'\]\[2\] has 0 ids \(2 rows are as short\)"),
        (
            rows([2, 3], [2, 4, 5]),
            r"\['input_ids'\]\[1\] holds id 5, outside 0 … 4 for vocab_size=5",
        ),
        (rows([2, -1]), "holds id -1"),
        (Dataset.from_dict({"text": ["a"]}), r"has columns \['text'\], but no 'input_ids'"),
        (
            Dataset.from_dict({"input_ids": [[0.5, 1.0]]}),
            r"has type list<.*: double>: it must hold a list of integers",
        ),
        (Dataset.from_dict({"input_ids": [1, 2]}), "has type int"),
        (Dataset.from_dict({"input_ids": [[1, 2], None]}), "null values"),
        (Dataset.from_dict({"input_ids": [[1, None]]}), "null values"),
        (DatasetDict(train=rows([1, 2])), "is a DatasetDict"),
    ],
)
def test_check_sequences_bad_input(dataset, message):
    with pytest.raises(ValueError, match=message):
        check_sequences(dataset, vocab_size=5)


def test_minibatches_are_epochs_in_random_order_without_the_last_incomplete_one():
    batches = minibatches(7, 3, 5, seed=1)
    assert batches.shape == (5, 3)
    assert all(len(set(epoch.flatten().tolist())) == 6 for epoch in (batches[:2], batches[2:4]))
    assert batches[:2].tolist() != batches[2:4].tolist()  # each epoch has an order of its own
    assert (
        batches.tolist()
        == minibatches(7, 3, 8, seed=1)[:5].tolist()
        != minibatches(7, 3, 5, seed=2).tolist()
    )
    assert minibatches(7, 7, 5, seed=1) is minibatches(7, None, 5, seed=1) is None


@pytest.mark.parametrize(
    ("rows", "batch_size", "steps"), [(7, 3, 0), (7, 0, 5), (0, 3, 5), (7, None, -1)]
)
def test_minibatches_of_nothing_are_refused(rows, batch_size, steps):
    message = (
        rf"rows={rows}, batch_size={batch_size} and steps={steps} are no training: give 1 or more"
    )
    with pytest.raises(ValueError, match=message):
        minibatches(rows, batch_size, steps, seed=0)


def test_random_and_longest_sequences(sequences):
    train = sequences["train"]
    drawn, again, other = (random_sequences(train, 30, seed)["input_ids"][:] for seed in (0, 0, 1))
    assert drawn == again != other
    assert sorted(random_sequences(train, len(train), 0)["input_ids"]) == sorted(train["input_ids"])
    picked = head_sequences(rows(*[[1, 1], [2] * 4, [3] * 3, [4] * 4, [5] * 3]), 3)
    assert [ids[0] for ids in picked["input_ids"]] == [2, 4, 3]


@pytest.mark.parametrize("count", [0, 161])
def test_counts_outside_the_data_set(sequences, count):
    with pytest.raises(ValueError, match=f"count={count}.*from 1 to 160"):
        random_sequences(sequences["train"], count, seed=0)
    with pytest.raises(ValueError, match=f"count={count}"):
        head_sequences(sequences["train"], count)


# -- windows


@given(
    st.lists(st.lists(st.integers(1, 99), min_size=1, max_size=20), min_size=1, max_size=4),
    st.integers(2, 8),
)
def test_windows_hold_every_pair_once(histories, max_length):
    windows = training_windows(Dataset.from_dict({"input_ids": histories}), max_length)["input_ids"]
    assert all(2 <= len(window) <= max_length for window in windows)
    pairs = [pair for window in windows for pair in pairwise(window)]
    assert pairs == [pair for history in histories for pair in pairwise(history)]
    assert len(windows) == sum(-(-(len(history) - 1) // (max_length - 1)) for history in histories)


@pytest.mark.parametrize("max_length", [1, 0, -3])
def test_pieces_hold_a_pair(max_length):
    assert pieces(rows([1, 2, 3], [4, 5]), 2)["input_ids"][:] == [[1, 2], [2, 3], [4, 5]]
    with pytest.raises(
        ValueError, match=f"max_length={max_length} leaves nothing to predict: pass 2 or more"
    ):
        pieces(rows([1, 2, 3], [4, 5]), max_length)


def test_evaluation_windows_end_with_the_target_and_know_all_that_was_seen():
    histories = Dataset.from_dict({"input_ids": [[1, 2, 3, 4, 5], [6, 7]]})
    windows = evaluation_windows(histories, 3)
    assert windows["input_ids"][:] == [[3, 4, 5], [6, 7]]
    assert windows["seen"][:] == [[1, 2, 3, 4], [6]]
    batch = SequenceCollator(0)(list(windows))
    assert batch["seen"].tolist() == [[1, 2, 3, 4], [6, 0, 0, 0]]
    assert batch["labels"].tolist() == [[3, 4, 5], [6, 7, -100]]
    with pytest.raises(
        TypeError, match=r'rows\[0\] is a list: give rows such as {"input_ids": \[5, 7\]}'
    ):
        SequenceCollator(0)([[3, 4, 5], [6, 7]])
    for windows_of in (training_windows, evaluation_windows):
        with pytest.raises(ValueError, match="max_length=1"):
            windows_of(histories, 1)


def test_empty_histories_have_no_window_and_nothing_to_predict():
    histories = Dataset.from_dict({"input_ids": [[1, 2, 3], [], [4, 5]]})
    assert training_windows(histories, 2)["input_ids"][:] == [[1, 2], [2, 3], [4, 5]]
    assert training_windows(histories, 3)["input_ids"][:] == [[1, 2, 3], [4, 5]]
    assert evaluation_windows(histories, 3)["input_ids"][:] == [[1, 2, 3], [], [4, 5]]
    assert evaluation_windows(histories, 3)["seen"][:] == [[1, 2], [], [4]]


@pytest.mark.parametrize("row", [[0, 0, 5, 7], [5, 7, 0, 0], [5, 0, 7]])
def test_padding_within_histories_is_refused(row):
    """It would be predicted, and a padded history would lose its last items."""
    task, histories = (
        Recommendation(["", *map(str, range(1, 9))]),
        Dataset.from_dict({"input_ids": [[1, 2], row]}),
    )
    for rows_of in (task.training_rows, task.evaluation_rows):
        with pytest.raises(
            ValueError, match=r"dataset\['input_ids'\]\[1\] holds item 0, which is the padding"
        ):
            rows_of(histories, 3)


@pytest.mark.parametrize("cut", [training_windows, evaluation_windows])
def test_columns_that_windows_would_lose_are_refused(cut):
    histories = Dataset.from_dict({"input_ids": [[1, 2, 3]], "attention_mask": [[1, 1, 0]]})
    with pytest.raises(ValueError, match="attention_mask, which windows would lose"):
        cut(histories, 3)
