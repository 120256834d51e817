"""Sequences of ids: checks, subsets, minibatches, windows that fit histories to a model, and
batches of padded rows.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from datasets import Dataset
from datasets.fingerprint import generate_random_fingerprint
from torch.nn.utils.rnn import pad_sequence

from farzi_hf.data.seeds import Purpose, stream

DataRow = dict[str, Any]
"""A row of data: its values by column."""
SPLITS = ("train", "validation", "test")
IGNORED = -100
"""transformers' label of a position that is not predicted."""
SEEN = "seen"
"""The column of the items that a user has had, which are not ranked."""
_FILL = {"attention_mask": 0, "labels": IGNORED, SEEN: 0}
_BLOCK = 1 << 22  # integers that are copied at once


def id_bits(vocab_size: int) -> int:
    """Bits of one id, ⌈log2 V⌉: those that tell the ids apart, and no others."""
    return max(1, (vocab_size - 1).bit_length())


def flatten_sequences(dataset: Dataset, column: str = "input_ids") -> tuple[np.ndarray, np.ndarray]:
    """All integers of a column of lists (tokens,), and the length of each list (rows,); int64."""
    ids, lengths = stored_sequences(dataset, column)
    return ids.astype(np.int64), lengths


def stored_sequences(dataset: Dataset, column: str = "input_ids") -> tuple[np.ndarray, np.ndarray]:
    """As `flatten_sequences`, but of the type that the data set stores.

    Its arithmetic can overflow. No copy is made of data in one piece.

    Raises:
        ValueError: the data set is none, or has no such column of integers.
    """
    if not isinstance(dataset, Dataset):
        raise ValueError(
            f"dataset is a {type(dataset).__name__}: pass a datasets.Dataset (one split) with"
            f" {column!r}."
        )
    if column not in dataset.column_names:
        raise ValueError(
            f"dataset has columns {dataset.column_names}, but no {column!r}: run data.tokenize"
            " first."
        )
    lists = dataset.with_format("arrow", columns=[column])[:][column]
    if not pa.types.is_integer(getattr(lists.type, "value_type", pa.null())):
        raise ValueError(
            f"dataset[{column!r}] has type {lists.type}: it must hold a list of integers per row."
        )
    ids = pc.list_flatten(lists)
    lengths = pc.list_value_length(lists)
    if ids.null_count or lengths.null_count:
        raise ValueError(f"dataset[{column!r}] holds null values: drop those rows.")
    return ids.to_numpy(), lengths.to_numpy().astype(np.int64)


def check_sequences(dataset: Dataset, vocab_size: int) -> None:
    """Checks that every row holds at least 2 ids, all of them in 0 … ``vocab_size`` − 1.

    Raises:
        ValueError: a row does not. The message names the first one.
    """
    lengths = stored_sequences(dataset)[1]
    if len(lengths) == 0:
        raise ValueError("dataset is empty: pass at least one sequence.")
    if lengths.min() < 2:
        row = int(lengths.argmin())
        short = int((lengths < 2).sum())
        held = f"{lengths[row]} ids ({short} rows are as short)"
        raise ValueError(f"dataset['input_ids'][{row}] has {held}: filter out those below 2.")
    check_ids(dataset, vocab_size)


def check_ids(dataset: Dataset, vocab_size: int) -> None:
    """Raises ValueError unless all ids are in 0 … ``vocab_size`` − 1."""
    ids, lengths = stored_sequences(dataset)
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        first = outside[0]
        allowed = f"0 … {vocab_size - 1} for vocab_size={vocab_size}"
        raise ValueError(
            f"dataset['input_ids'][{_row_of(first, lengths)}] holds id {ids[first]}, outside"
            f" {allowed}: use its tokenizer."
        )


def _row_of(place: int, lengths: np.ndarray) -> int:
    """The row of one of all ids."""
    return int(np.searchsorted(np.cumsum(lengths), place, side="right"))


SAMPLED_IDS = 4_000_000
"""Ids from which statistics such as frequencies are computed at most."""


def sampled_sequences(
    dataset: Dataset, seed: int, limit: int = SAMPLED_IDS
) -> tuple[np.ndarray, np.ndarray]:
    """As `flatten_sequences`, but of random rows, if the data set holds more than `limit` ids.

    These rows hold about `limit` ids together, and keep their order.
    """
    ids, lengths = stored_sequences(dataset)
    if len(ids) > limit:
        order = stream(seed, Purpose.SUBSET).permutation(len(lengths))
        enough = 1 + np.searchsorted(np.cumsum(lengths[order]), limit)
        rows = np.sort(order[:enough])
        ends = np.cumsum(lengths)[rows]
        lengths = lengths[rows]
        ids = _slices(ids, ends - lengths, ends).values.to_numpy()
    return ids.astype(np.int64), lengths


SEQUENCE_COLUMNS = ("input_ids", "attention_mask", "labels")
"""The columns of a row that a loss depends on. The last two may be missing."""


def as_rows(columns: Mapping[str, Sequence]) -> list[DataRow]:
    """The rows of a table that is given by columns."""
    rows = zip(*columns.values(), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def attended(dataset: Dataset) -> Dataset:
    """``input_ids`` without the positions whose ``attention_mask`` is 0."""
    if "attention_mask" not in dataset.column_names:
        return dataset
    ids, lengths = stored_sequences(dataset)
    mask, _ = stored_sequences(dataset, "attention_mask")
    kept = mask != 0
    ends = np.cumsum(kept)[np.cumsum(lengths) - 1]
    starts = np.concatenate([[0], ends[:-1]])
    return in_memory(input_ids=_slices(ids[kept], starts, ends))


def sequences_fingerprint(dataset: Dataset) -> str:
    """A hash of all ids and of the lengths of the sequences, with mask and labels if there are."""
    digest = hashlib.sha256()
    columns = [name for name in SEQUENCE_COLUMNS if name in dataset.column_names]
    for name in columns:
        for integers in stored_sequences(dataset, name):
            for first in range(0, len(integers), _BLOCK):
                block = integers[first : first + _BLOCK]
                digest.update(block.astype(np.int64).tobytes())
    return digest.hexdigest()[:16]


def minibatches(rows: int, batch_size: int | None, steps: int, seed: int) -> torch.Tensor | None:
    """The rows of each step's minibatch (steps, batch_size); None if every step takes all rows.

    The same `seed` gives the same rows. Each epoch goes through the rows in a new random order. A
    last incomplete minibatch is left out.

    Raises:
        ValueError: there is no row, no step, or nothing in a minibatch.
    """
    numbers = [rows, steps] if batch_size is None else [rows, steps, batch_size]
    if min(numbers) < 1:
        raise ValueError(
            f"rows={rows}, batch_size={batch_size} and steps={steps} are no training: give 1 or"
            " more of each"
        )
    if batch_size is None or batch_size >= rows:
        return None
    per_epoch = rows // batch_size
    epochs = -(-steps // per_epoch)  # rounded up
    batches = []
    for epoch in range(epochs):
        order = stream(seed, Purpose.MINIBATCH, epoch).permutation(rows)
        whole = order[: per_epoch * batch_size]
        batches.append(whole.reshape(per_epoch, batch_size))
    return torch.from_numpy(np.concatenate(batches)[:steps])


def training_windows(dataset: Dataset, max_length: int) -> Dataset:
    """Cuts the histories in ``input_ids`` into windows of at most ``max_length`` items.

    Every pair of neighbours is in one window. Windows are counted from the end of a history. Two
    neighbouring windows share one item: the first predicts it, the second reads it. A history of a
    single item, or of none, has no window.
    """
    ids, lengths = _histories(dataset, max_length)
    return _windows(ids, lengths, max_length)


def pieces(dataset: Dataset, max_length: int | None) -> Dataset:
    """`training_windows` of sequences of text, if one is longer than ``max_length``."""
    ids, lengths = stored_sequences(dataset)
    longest = max(2, lengths.max(initial=0))
    if max_length is None or longest <= max_length:
        return dataset
    return _windows(ids, lengths, max_length)


def _windows(ids: np.ndarray, lengths: np.ndarray, max_length: int) -> Dataset:
    _check_length(max_length)
    history_ends = np.cumsum(lengths)
    history_starts = history_ends - lengths
    pairs = np.maximum(lengths, 1) - 1
    windows = -(-pairs // (max_length - 1))  # of each history; rounded up
    row = np.repeat(np.arange(len(lengths)), windows)  # the history of each window
    later = np.cumsum(windows)[row] - 1 - np.arange(len(row))  # windows of the same history
    ends = history_ends[row] - later * (max_length - 1)
    starts = np.maximum(ends - max_length, history_starts[row])
    return in_memory(input_ids=_slices(ids, starts, ends))


def evaluation_windows(dataset: Dataset, max_length: int) -> Dataset:
    """The last ``max_length`` items of each history as ``input_ids``.

    The last item is to be predicted. All before it are ``seen``.
    """
    ids, lengths = _histories(dataset, max_length)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    recent = _slices(ids, np.maximum(starts, ends - max_length), ends)
    seen = _slices(ids, starts, np.maximum(starts, ends - 1))
    return in_memory(input_ids=recent, seen=seen)


def _histories(dataset: Dataset, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    """The items of all histories, and the length of each, if windows can be made of them."""
    _check_length(max_length)
    lost = sorted({"labels", "attention_mask"} & set(dataset.column_names))
    if lost:
        raise ValueError(
            f"dataset has the columns {', '.join(lost)}, which windows would lose: drop them."
        )
    ids, lengths = stored_sequences(dataset)
    place = int(ids.argmin()) if len(ids) else None
    if place is not None and ids[place] == 0:  # it would be read, and predicted, as an item
        raise ValueError(
            f"dataset['input_ids'][{_row_of(place, lengths)}] holds item 0, which is the padding:"
            " leave it out."
        )
    return ids, lengths


def _check_length(max_length: int) -> None:
    if max_length < 2:
        raise ValueError(f"max_length={max_length} leaves nothing to predict: pass 2 or more.")


def in_memory(**columns: pa.Array) -> Dataset:
    """A data set of these columns, without a copy of them."""
    # By default datasets hashes a pickled copy of the whole table.
    return Dataset(pa.table(columns), fingerprint=generate_random_fingerprint())


def _slices(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """The lists ids[start:end] of all pairs, without a Python object per id.

    Beside the result, there are only indices of some lists at a time.
    """
    lengths = ends - starts
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    values = np.empty(offsets[-1], ids.dtype)
    lists_at_once = max(1, len(starts) * _BLOCK // max(1, len(values)))
    for first in range(0, len(starts), lists_at_once):
        last = min(first + lists_at_once, len(starts))
        some = slice(first, last)
        begin = offsets[first]
        stop = offsets[last]
        shift = np.repeat(starts[some] - offsets[some], lengths[some])
        values[begin:stop] = ids[np.arange(begin, stop) + shift]
    return pa.LargeListArray.from_arrays(offsets, values)


def random_sequences(dataset: Dataset, count: int, seed: int) -> Dataset:
    """``count`` rows drawn without replacement."""
    _check_count(dataset, count)
    order = stream(seed, Purpose.SUBSET).permutation(len(dataset))
    return dataset.select(order[:count])


def head_sequences(dataset: Dataset, count: int) -> Dataset:
    """The ``count`` longest rows of ``input_ids``, longest first. Equal ones keep their order."""
    _check_count(dataset, count)
    _, lengths = flatten_sequences(dataset)
    order = np.argsort(-lengths, kind="stable")
    return dataset.select(order[:count])


def _check_count(dataset: Dataset, count: int) -> None:
    if not 1 <= count <= len(dataset):
        raise ValueError(
            f"count={count} of a data set with {len(dataset)} rows: pass a number from 1 to"
            f" {len(dataset)}."
        )


@dataclass(frozen=True)
class SequenceCollator:
    """Makes `input_ids`, `attention_mask` and `labels`, (b, L) each, of rows of any lengths.

    They are padded on the right. Rows have `input_ids`, and may have `attention_mask`, `labels` and
    `seen` (the items that a user has had, for `farzi_hf.metrics.target_ranks`). Other columns are
    left out. Without labels in the rows, the labels are the ids. At padding labels are −100.
    Padding is known by its place and not by its id, so EOS is predicted even if the tokenizer pads
    with EOS or has no padding token.
    """

    padding_id: int | None = None
    """The id of a token that is only used for padding; 0 for items. Rows may contain it already; it
    is never predicted.
    """

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        if not isinstance(rows[0], Mapping):
            raise TypeError(
                f'rows[0] is a {type(rows[0]).__name__}: give rows such as {{"input_ids": [5, 7]}}'
            )
        padding = {"input_ids": self.padding_id or 0, **_FILL}
        columns = {}
        for name in padding:
            if name in rows[0]:
                columns[name] = [torch.as_tensor(row[name], dtype=torch.long) for row in rows]
        if "attention_mask" not in columns:
            columns["attention_mask"] = [torch.ones_like(ids) for ids in columns["input_ids"]]
        batch = {}
        for name, value in padding.items():
            if name in columns:
                batch[name] = pad_sequence(columns[name], batch_first=True, padding_value=value)
        is_unpredicted = batch["attention_mask"] == 0
        if "labels" not in batch and self.padding_id is not None:
            is_unpredicted |= batch["input_ids"] == self.padding_id
        labels = batch.get("labels", batch["input_ids"])
        batch["labels"] = labels.masked_fill(is_unpredicted, IGNORED)
        return batch
