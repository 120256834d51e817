"""Streams of rows: their order, their epochs, the workers of a data loader, and the checks."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
from datasets import Dataset, IterableDataset
from torch.utils.data import DataLoader

from farzi_hf.data import flatten_sequences, training_windows
from farzi_hf.data.sequences import sampled_sequences
from farzi_hf.data.streams import RowStream, described, start_sequences

ROWS = [[i, i + 1, i % 7] for i in range(600)]  # more than are read at once


def generated():
    for row in ROWS:
        yield {"input_ids": row, "text": "left out"}


def ids_alone(some: Dataset) -> Dataset:
    return some.select_columns("input_ids")


STREAMS = {
    "of a data set": lambda: Dataset.from_list(list(generated())).to_iterable_dataset(num_shards=2),
    "generated": lambda: IterableDataset.from_generator(generated),
    "of tensors": lambda: (
        Dataset.from_list(list(generated())).to_iterable_dataset().with_format("torch")
    ),
    "shuffled": lambda: IterableDataset.from_generator(generated).shuffle(seed=1, buffer_size=100),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_the_rows_come_again_in_each_epoch_and_in_each_iteration(kind):
    stream = RowStream(STREAMS[kind](), ids_alone)
    rows = list(islice(stream, 1500))
    assert rows == list(islice(stream, 1500))
    assert all(row.keys() == {"input_ids"} for row in rows)
    epochs = [
        [row["input_ids"] for row in rows[:600]],
        [row["input_ids"] for row in rows[600:1200]],
    ]
    assert all(sorted(epoch) == sorted(ROWS) for epoch in epochs)
    if kind == "shuffled":
        assert epochs[0] != epochs[1]
    else:
        assert epochs[0] == ROWS


def test_a_shuffle_depends_on_its_seed_and_on_the_epoch():
    stream = RowStream(STREAMS["of a data set"](), ids_alone)
    first, again, other = (
        [row["input_ids"] for row in islice(stream.shuffled(seed), 1200)] for seed in (0, 0, 1)
    )
    assert first == again != other
    assert sorted(first[:600]) == sorted(first[600:]) == sorted(ROWS)
    assert first[:600] != first[600:]


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # with one core
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_make_the_same_batches(workers):
    """Over the end of an epoch, from two shards, which datasets would give to two workers."""
    stream = RowStream(STREAMS["of a data set"](), ids_alone, batch_size=64)
    loaders = [
        DataLoader(stream, batch_size=64, num_workers=n, collate_fn=list) for n in (0, workers)
    ]
    alone, theirs = (list(islice(loader, 15)) for loader in loaders)
    assert alone == theirs


def test_a_row_that_cannot_be_used_is_found_when_it_comes():
    def check(some: Dataset) -> Dataset:
        if (bad := flatten_sequences(some)[0] == 500).any():
            raise ValueError(f"holds {bad.sum()} ids 500")
        return some

    stream = RowStream(STREAMS["generated"](), check)
    rows = iter(stream)
    assert len(list(islice(rows, 256))) == 256
    with pytest.raises(
        ValueError, match="rows 256 … 511 of the stream, counted from their first: holds 2 ids 500"
    ):
        next(rows)
    with pytest.raises(ValueError, match="rows 0 … 255 of the stream"):
        RowStream(STREAMS["generated"](), lambda some: training_windows(some, 1))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (iter(()), "dataset is a stream without rows"),
        ([[1, 2], [3, 4]], r'stream of rows other than {"input_ids": \[5, 7\]} \(.*list'),
    ],
)
def test_a_stream_without_rows_of_ids_is_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        RowStream(IterableDataset.from_generator(lambda: iter(rows)), ids_alone)


@pytest.mark.parametrize("count", [100, 600])
@pytest.mark.parametrize("read", [iter, RowStream.head], ids=["rows", "head"])
def test_a_stream_that_can_be_read_once_is_refused_when_it_is_read_again(count, read):
    rows = iter(list(generated())[:count])
    stream = RowStream(IterableDataset.from_generator(lambda: rows), ids_alone)
    with pytest.raises(
        ValueError,
        match="gives other rows, or none, when it is read again: pass one that begins anew",
    ):
        list(islice(read(stream), 1))


def test_the_head_is_all_that_a_start_reads():
    read = []
    stream = RowStream(
        IterableDataset.from_generator(generated), lambda some: read.append(len(some)) or some
    )
    read.clear()
    assert stream.head(ids=30)["input_ids"][:] == ROWS[:256]
    assert read == [256]
    assert stream.head(rows=300)["input_ids"][:] == ROWS[:300]
    tokens, lengths = start_sequences(stream, seed=0)
    assert tokens.tolist() == np.concatenate(ROWS).tolist()
    assert lengths.tolist() == [3] * 600


def test_statistics_of_large_data_are_of_a_sample():
    dataset = Dataset.from_dict({"input_ids": ROWS})
    tokens, lengths = sampled_sequences(dataset, seed=0, limit=90)
    assert len(tokens) == 3 * len(lengths) in range(90, 94)
    rows = tokens.reshape(-1, 3).tolist()
    assert all(row in ROWS for row in rows)
    assert rows == sorted(rows) != ROWS[:31]
    assert np.array_equal(sampled_sequences(dataset, seed=0, limit=90)[0], tokens)
    assert not np.array_equal(sampled_sequences(dataset, seed=1, limit=90)[0], tokens)
    assert sampled_sequences(dataset, seed=0)[0].tolist() == np.concatenate(ROWS).tolist()


def test_masked_positions_are_not_in_the_start_of_a_summary():
    rows = {
        "input_ids": [[5, 6, 3, 3], [7, 3, 3, 3], [8, 9, 10, 11]],
        "attention_mask": [[1, 1, 0, 0], [1, 0, 0, 0], [1] * 4],
    }
    for rows in (
        Dataset.from_dict(rows),
        RowStream(Dataset.from_dict(rows).to_iterable_dataset(), lambda rows: rows),
    ):
        tokens, lengths = start_sequences(rows, seed=0)
        assert tokens.tolist() == [5, 6, 7, 8, 9, 10, 11]
        assert lengths.tolist() == [2, 1, 4]


def test_the_description_of_rows_depends_on_their_mask_and_labels():
    ids = {"input_ids": [[5, 6, 7], [8, 9, 10]]}
    masked = {**ids, "attention_mask": [[1, 1, 0], [1, 1, 1]]}
    labelled = {**ids, "labels": [[-100, 6, 7], [8, 9, 10]]}
    found = [described(Dataset.from_dict(rows))["fingerprint"] for rows in (ids, masked, labelled)]
    assert len(set(found)) == 3
    one, other = (RowStream(STREAMS[kind](), ids_alone) for kind in ("generated", "shuffled"))
    assert (
        described(one)
        == described(RowStream(STREAMS["of a data set"](), ids_alone))
        != described(other)
    )
