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

SPLITS = ("train", "validation", "test")
IGNORED = -100
"""transformers' label of a position that is not predicted."""
_FILL = {"attention_mask": 0, "labels": IGNORED, "seen": 0}
_BLOCK = 1 << 22  # integers that are copied at once


def id_bits(vocab_size: int) -> int:
    """Bits of one id, ⌈log2 V⌉: those that tell the ids apart, and no others."""
    return max(1, (vocab_size - 1).bit_length())


def flatten_sequences(dataset: Dataset, column: str = "input_ids") -> tuple[np.ndarray, np.ndarray]:
    """All integers of a column of lists in one array (tokens,), and the length of each sequence
    (rows,); both int64.
    """
    ids, lengths = stored_sequences(dataset, column)
    return ids.astype(np.int64), lengths


def stored_sequences(dataset: Dataset, column: str = "input_ids") -> tuple[np.ndarray, np.ndarray]:
    """As `flatten_sequences`, but of the type that the data set stores, whose arithmetic can
    overflow; no copy is made of data in one piece.
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
    lists = dataset.select_columns(column).with_format("arrow")[:][column]
    if not pa.types.is_integer(getattr(lists.type, "value_type", pa.null())):
        raise ValueError(
            f"dataset[{column!r}] has type {lists.type}: it must hold a list of integers per row."
        )
    ids, lengths = pc.list_flatten(lists), pc.list_value_length(lists)
    if ids.null_count or lengths.null_count:
        raise ValueError(f"dataset[{column!r}] holds null values: drop those rows.")
    return ids.to_numpy(), lengths.to_numpy().astype(np.int64)


def check_sequences(dataset: Dataset, vocab_size: int) -> None:
    """Raises ValueError unless every row holds at least 2 ids, all of them in 0 … ``vocab_size`` −
    1.
    """
    lengths = stored_sequences(dataset)[1]
    if len(lengths) == 0:
        raise ValueError("dataset is empty: pass at least one sequence.")
    if lengths.min() < 2:
        row, short = int(lengths.argmin()), int((lengths < 2).sum())
        found = f"{lengths[row]} ids ({short} rows are as short)"
        raise ValueError(f"dataset['input_ids'][{row}] has {found}: filter out those below 2.")
    check_ids(dataset, vocab_size)


def check_ids(dataset: Dataset, vocab_size: int) -> None:
    """Raises ValueError unless all ids are in 0 … ``vocab_size`` − 1."""
    ids, lengths = stored_sequences(dataset)
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if len(outside):
        row = int(np.searchsorted(np.cumsum(lengths), outside[0], side="right"))
        allowed = f"0 … {vocab_size - 1} for vocab_size={vocab_size}"
        raise ValueError(
            f"dataset['input_ids'][{row}] holds id {ids[outside[0]]}, outside {allowed}: use its"
            " tokenizer."
        )


SAMPLED_IDS = 4_000_000
"""Ids from which statistics such as frequencies are computed at most."""


def sampled_sequences(
    dataset: Dataset, seed: int, limit: int = SAMPLED_IDS
) -> tuple[np.ndarray, np.ndarray]:
    """As `flatten_sequences`, but of random rows that hold about `limit` ids together, in their
    order, if the data set holds more.
    """
    ids, lengths = stored_sequences(dataset)
    if len(ids) > limit:
        order = stream(seed, Purpose.SUBSET).permutation(len(lengths))
        rows = np.sort(order[: 1 + np.searchsorted(np.cumsum(lengths[order]), limit)])
        ends = np.cumsum(lengths)[rows]
        lengths = lengths[rows]
        ids = _slices(ids, ends - lengths, ends).values.to_numpy()
    return ids.astype(np.int64), lengths


SEQUENCE_COLUMNS = ("input_ids", "attention_mask", "labels")
"""The columns of a row that a loss depends on. The last two may be missing."""


def as_rows(columns: Mapping[str, Sequence]) -> list[dict[str, Any]]:
    """The rows of a table that is given by columns."""
    return [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]


def attended(dataset: Dataset) -> Dataset:
    """``input_ids`` without the positions whose ``attention_mask`` is 0."""
    if "attention_mask" not in dataset.column_names:
        return dataset
    ids, lengths = stored_sequences(dataset)
    kept = stored_sequences(dataset, "attention_mask")[0] != 0
    ends = np.cumsum(kept)[np.cumsum(lengths) - 1]
    return in_memory(input_ids=_slices(ids[kept], np.concatenate([[0], ends[:-1]]), ends))


def sequences_fingerprint(dataset: Dataset) -> str:
    """A hash of all ids of the column ``input_ids`` and of the lengths of the sequences, with mask
    and labels where there are any.
    """
    digest = hashlib.sha256()
    columns = [name for name in SEQUENCE_COLUMNS if name in dataset.column_names]
    for part in (part for name in columns for part in stored_sequences(dataset, name)):
        for first in range(0, len(part), _BLOCK):
            digest.update(part[first : first + _BLOCK].astype(np.int64).tobytes())
    return digest.hexdigest()[:16]


def minibatches(rows: int, batch_size: int | None, steps: int, seed: int) -> torch.Tensor | None:
    """The rows of each step's minibatch (steps, batch_size); None if every step takes all rows. The
    same `seed` gives the same rows.

    Each epoch goes through the rows in a new random order. A last incomplete minibatch is left out.

    Raises:
        ValueError: there is no row, no step, or nothing in a minibatch.
    """
    if min(rows, steps, 1 if batch_size is None else batch_size) < 1:
        raise ValueError(
            f"rows={rows}, batch_size={batch_size} and steps={steps} are no training: give 1 or"
            " more of each"
        )
    if batch_size is None or batch_size >= rows:
        return None
    per_epoch = rows // batch_size
    epochs = [
        stream(seed, Purpose.MINIBATCH, epoch).permutation(rows)
        for epoch in range(-(-steps // per_epoch))
    ]
    batches = np.concatenate(
        [order[: per_epoch * batch_size].reshape(per_epoch, batch_size) for order in epochs]
    )
    return torch.from_numpy(batches[:steps])


def training_windows(dataset: Dataset, max_length: int) -> Dataset:
    """Cuts the histories in ``input_ids`` into windows of at most ``max_length`` items. Every pair
    of neighbours is in one window.

    Windows are counted from the end of a history. Two neighbouring windows share one item: the
    first predicts it, the second reads it. A history of a single item, or of none, has no window.
    """
    return _windows(*_histories(dataset, max_length), max_length)


def pieces(dataset: Dataset, max_length: int | None) -> Dataset:
    """`training_windows` of sequences of text, if one is longer than ``max_length``."""
    ids, lengths = stored_sequences(dataset)
    fits = max_length is None or max_length >= max(2, lengths.max(initial=0))
    return dataset if fits else _windows(ids, lengths, max_length)


def _windows(ids: np.ndarray, lengths: np.ndarray, max_length: int) -> Dataset:
    if max_length < 2:
        raise ValueError(f"max_length={max_length} leaves nothing to predict: pass 2 or more.")
    stops = np.cumsum(lengths)
    windows = -((1 - np.maximum(lengths, 1)) // (max_length - 1))  # per history; rounded up
    row = np.repeat(np.arange(len(lengths)), windows)
    later = (
        np.cumsum(windows)[row] - 1 - np.arange(len(row))
    )  # the number of later windows of the same history
    ends = stops[row] - later * (max_length - 1)
    return in_memory(
        input_ids=_slices(ids, np.maximum(ends - max_length, (stops - lengths)[row]), ends)
    )


def evaluation_windows(dataset: Dataset, max_length: int) -> Dataset:
    """The last ``max_length`` items of each history as ``input_ids``; the last item is to be
    predicted. All before it are ``seen``.
    """
    ids, lengths = _histories(dataset, max_length)
    ends = np.cumsum(lengths)
    starts = ends - lengths
    recent = _slices(ids, np.maximum(starts, ends - max_length), ends)
    return in_memory(input_ids=recent, seen=_slices(ids, starts, np.maximum(starts, ends - 1)))


def _histories(dataset: Dataset, max_length: int) -> tuple[np.ndarray, np.ndarray]:
    if max_length < 2:
        raise ValueError(f"max_length={max_length} leaves nothing to predict: pass 2 or more.")
    if beside := sorted({"labels", "attention_mask"} & set(dataset.column_names)):
        raise ValueError(
            f"dataset has the columns {', '.join(beside)}, which windows would lose: drop them."
        )
    ids, lengths = stored_sequences(dataset)
    if (
        len(ids) and ids[place := int(ids.argmin())] == 0
    ):  # it would be read, and predicted, as if it was an item
        row = int(np.searchsorted(np.cumsum(lengths), place, side="right"))
        raise ValueError(
            f"dataset['input_ids'][{row}] holds item 0, which is the padding: leave it out."
        )
    return ids, lengths


def in_memory(**columns: pa.Array) -> Dataset:
    """A data set of these columns, without a copy of them."""
    # By default datasets hashes a pickled copy of the whole table.
    return Dataset(pa.table(columns), fingerprint=generate_random_fingerprint())


def _slices(ids: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> pa.Array:
    """The lists ids[start:end] of all pairs, without a Python object per id. Beside the result,
    there are only indices of some lists.
    """
    offsets = np.concatenate([[0], np.cumsum(ends - starts)])
    values = np.empty(offsets[-1], ids.dtype)
    some = max(1, len(starts) * _BLOCK // max(1, len(values)))
    for first in range(0, len(starts), some):
        part = slice(first, first + some)
        begin, stop = offsets[first], offsets[min(first + some, len(starts))]
        shift = np.repeat(starts[part] - offsets[:-1][part], (ends - starts)[part])
        values[begin:stop] = ids[np.arange(begin, stop) + shift]
    return pa.LargeListArray.from_arrays(offsets, values)


def random_sequences(dataset: Dataset, count: int, seed: int) -> Dataset:
    """``count`` rows drawn without replacement."""
    _check_count(dataset, count)
    return dataset.select(stream(seed, Purpose.SUBSET).permutation(len(dataset))[:count])


def head_sequences(dataset: Dataset, count: int) -> Dataset:
    """The ``count`` longest rows of ``input_ids``, longest first. Rows of equal length keep their
    order.
    """
    _check_count(dataset, count)
    return dataset.select(np.argsort(-flatten_sequences(dataset)[1], kind="stable")[:count])


def _check_count(dataset: Dataset, count: int) -> None:
    if not 1 <= count <= len(dataset):
        raise ValueError(
            f"count={count} of a data set with {len(dataset)} rows: pass a number from 1 to"
            f" {len(dataset)}."
        )


@dataclass(frozen=True)
class SequenceCollator:
    """Makes `input_ids`, `attention_mask` and `labels`, (b, L) each, of rows with `input_ids` of
    any lengths, padded on the right.

    Rows may have `attention_mask`, `labels` and `seen` (the items that a user has had, for
    `farzi_hf.metrics.target_ranks`). Other columns are left out. Without labels in the rows, the
    labels are the ids. At padding labels are −100. Padding is known by its place and not by its id,
    so EOS is predicted even if the tokenizer pads with EOS or has no padding token.

    Args:
        padding_id: the id of a token that is only used for padding; 0 for items. Rows may contain
            it already; it is never predicted.
    """

    padding_id: int | None = None

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, torch.Tensor]:
        if not isinstance(rows[0], Mapping):
            raise TypeError(
                f'rows[0] is a {type(rows[0]).__name__}: give rows such as {{"input_ids": [5, 7]}}'
            )
        fill = {"input_ids": self.padding_id or 0, **_FILL}
        given = {
            name: [torch.as_tensor(row[name], dtype=torch.long) for row in rows]
            for name in fill
            if name in rows[0]
        }
        ids = given["input_ids"]
        columns = {"input_ids": ids, "attention_mask": [torch.ones_like(x) for x in ids], **given}
        batch = {name: pad_sequence(column, True, fill[name]) for name, column in columns.items()}
        unpredicted = batch["attention_mask"] == 0
        if "labels" not in given and self.padding_id is not None:
            unpredicted |= batch["input_ids"] == self.padding_id
        return {
            **batch,
            "labels": batch.get("labels", batch["input_ids"]).masked_fill(unpredicted, IGNORED),
        }
