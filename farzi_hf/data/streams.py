"""Rows of a `datasets.IterableDataset`: they are read one after the other, checked as they come,
and never all in memory.
"""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, IterableDataset, concatenate_datasets

from farzi_hf.data import sequences

_READ = 256  # rows that are read and prepared at once
SHUFFLE_BUFFER = 10_000
"""Prepared rows among which `RowStream.shuffled` draws."""
_ONCE = (
    "dataset is a stream that gives other rows, or none, when it is read again: pass one that"
    " begins anew."
)
_DESCRIBED = 1000  # first rows of the fingerprint


class RowStream(torch.utils.data.IterableDataset):
    """The rows of a stream, again and again: an iteration does not end.

    Each epoch has the order that the stream has after `set_epoch`. Every iteration begins with the
    first row. Each worker of a `DataLoader` reads the whole stream, and makes every n-th batch: the
    batches do not depend on n.

    Args:
        rows: the stream.
        prepare: turns some rows that were read into rows to train on, and raises ValueError where
            it cannot.
        batch_size: rows per batch of a `DataLoader`, of all processes together.

    Raises:
        ValueError: rows cannot be used, there are none, or the stream can be read only once. For
            later rows, an iteration raises it.
    """

    def __init__(
        self, rows: IterableDataset, prepare: Callable[[Dataset], Dataset], batch_size: int = 1
    ) -> None:
        self._prepare = prepare
        self._batch_size = batch_size
        # A function of tables sets all columns by itself.
        self._rows = rows.with_format("arrow").map(
            self._prepared, with_indices=True, batched=True, batch_size=_READ
        )
        # The ids of the first row, by which a second reading is known.
        self._first: list[int] | None = None
        try:
            self._first = self.head(rows=1)[0]["input_ids"]
        except (AttributeError, TypeError) as error:  # of datasets, of rows that are not mappings
            raise ValueError(
                f'dataset is a stream of rows other than {{"input_ids": [5, 7]}} ({error})'
            ) from error

    def _prepared(self, table: pa.Table, indices: list[int]) -> pa.Table:
        try:
            return self._prepare(_of_table(table)).with_format("arrow")[:]
        except ValueError as error:
            raise ValueError(
                f"rows {indices[0]} … {indices[-1]} of the stream, counted from their first:"
                f" {error}"
            ) from None

    def __iter__(self) -> Iterator[sequences.DataRow]:
        rows = _again_and_again(self._rows, self._first)
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return rows
        return self._of_worker(rows, worker.id, worker.num_workers)

    def _of_worker(
        self, rows: Iterator[sequences.DataRow], worker: int, workers: int
    ) -> Iterator[sequences.DataRow]:
        """Every n-th batch of rows."""
        places = itertools.cycle(range(workers * self._batch_size))
        for place, row in zip(places, rows, strict=False):
            if place // self._batch_size == worker:
                yield row

    def shuffled(self, seed: int) -> Iterator[sequences.DataRow]:
        """The rows again and again, in another order in each epoch.

        Each is drawn from the next `SHUFFLE_BUFFER` rows.
        """
        return _again_and_again(self._rows.shuffle(seed, buffer_size=SHUFFLE_BUFFER))

    def head(self, ids: int = sequences.SAMPLED_IDS, rows: int | None = None) -> Dataset:
        """The first rows: `rows` of them, or those with so many ids; all, if there are fewer.

        Args:
            ids: about so many ids, if `rows` is None.
            rows: so many rows.
        """
        parts = []
        read = 0
        for table in self._rows.with_format("arrow").iter(_READ):
            part = _of_table(table)
            parts.append(part)
            read += len(part) if rows else len(sequences.stored_sequences(part)[0])
            if read >= (rows or ids):
                break
        if not parts and self._first is None:
            raise ValueError(
                "dataset is a stream without rows: pass at least one sequence of 2 ids or more."
            )
        if not parts or self._first not in (None, parts[0][0]["input_ids"]):
            raise ValueError(_ONCE)
        head = concatenate_datasets(parts)
        return head.select(range(min(rows, len(head)))) if rows else head


def described(dataset: Dataset | RowStream | None) -> dict[str, Any] | None:
    """What tells this data set from another one: the number of its rows and a hash of their ids.

    Of a stream, it is a hash of the first 1,000 rows.
    """
    if dataset is None:
        return None
    if isinstance(dataset, RowStream):
        return {
            "stream": True,
            "fingerprint": sequences.sequences_fingerprint(dataset.head(rows=_DESCRIBED)),
        }
    return {"sequences": len(dataset), "fingerprint": sequences.sequences_fingerprint(dataset)}


def start_sequences(dataset: Dataset | RowStream, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The sequences from which a summary's start is computed, without masked positions.

    They are `sampled_sequences`, or the head of a stream.
    """
    if isinstance(dataset, RowStream):
        return sequences.flatten_sequences(sequences.attended(dataset.head()))
    return sequences.sampled_sequences(sequences.attended(dataset), seed)


def _of_table(table: pa.Table) -> Dataset:
    return sequences.in_memory(**dict(zip(table.column_names, table.columns, strict=True)))


def _again_and_again(
    rows: IterableDataset, first: list[int] | None = None
) -> Iterator[sequences.DataRow]:
    """The rows of epoch after epoch. The very first row must have the ids `first`, if given."""
    # A copy, with an epoch of its own, which no other process or iteration changes.
    rows = rows.with_format(None)
    for epoch in itertools.count():
        rows.set_epoch(epoch)
        is_empty = True
        # iter() does not divide a stream among the workers of a DataLoader.
        for columns in rows.iter(_READ):
            is_empty = False
            for row in sequences.as_rows(columns):
                if first not in (None, row["input_ids"]):
                    raise ValueError(_ONCE)
                first = None
                yield row
        if is_empty:
            raise ValueError(_ONCE)
