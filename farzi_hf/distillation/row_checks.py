"""Checks of the learner's input: every row and every sequence of a summary must fit the learner and hold something to predict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from datasets import Dataset

from farzi_hf.data import IGNORED, check_sequences
from farzi_hf.data.sequences import stored_sequences
from farzi_hf.distillation.learner import Learner

T = TypeVar("T")


def check_rows(dataset: Dataset, learner: Learner, data_collator: Callable) -> None:
    """Raise one clear ValueError unless the learner can read every row and has something to predict in it.

    Args:
        dataset: rows with `input_ids`. The columns `attention_mask` and `labels` may follow, with the same lengths.
    """
    check_sequences(dataset, learner.vocab_size)
    ids, lengths = stored_sequences(dataset)
    longest = int(lengths.argmax())
    if (limit := learner.readable(int(lengths[longest]))) < lengths[longest]:
        raise ValueError(
            f"dataset['input_ids'][{longest}] has {lengths[longest]} ids, but the learner reads {limit} at most: cut rows with "
            f"tokenize(max_length={limit}) or training_windows(…, {limit}), or give a learner of more positions"
        )
    padding_id = getattr(data_collator, "padding_id", None)
    predicted = np.ones_like(ids, dtype=bool) if padding_id is None else ids != padding_id
    if "labels" in dataset.column_names:
        labels = _beside(dataset, "labels", lengths)
        predicted = labels != IGNORED
        if (outside := predicted & ((labels < 0) | (labels >= learner.vocab_size))).any():
            raise ValueError(
                f"dataset['labels'] holds {labels[outside.argmax()]}: give {IGNORED} or ids of 0 … {learner.vocab_size - 1}"
            )
    starts = np.cumsum(lengths) - lengths
    if "attention_mask" in dataset.column_names:
        read = _beside(dataset, "attention_mask", lengths) != 0
        begins = np.insert(~read[:-1] & read[1:], 0, False)
        begins[starts] = False
        if begins.any():
            row = int(np.searchsorted(starts, begins.argmax(), side="right")) - 1
            raise ValueError(
                f"dataset['attention_mask'][{row}] has 0 before 1: an id after padding would be predicted from padding; pad on the right "
                "(tokenizer.padding_side = 'right'), or give rows without padding"
            )
        predicted &= read
    predicted[starts] = False  # nothing stands before the first id of a row, so it is not predicted
    if len(empty := np.flatnonzero(~np.logical_or.reduceat(predicted, starts))):
        raise ValueError(
            f"dataset[{int(empty[0])}] has nothing to predict after its first id ({len(empty)} rows are like it): all is padding, or "
            f"labels of {IGNORED}, or attention_mask 0; filter such rows out, or drop the column"
        )


def _beside(dataset: Dataset, column: str, lengths: np.ndarray) -> np.ndarray:
    values, sizes = stored_sequences(dataset, column)
    if (other := sizes != lengths).any():
        row = int(other.argmax())
        raise ValueError(
            f"dataset[{column!r}][{row}] has {sizes[row]} values beside {lengths[row]} ids: make them equally long, or drop the column"
        )
    return values


def check_sequence_length(length: int, learner: Learner) -> None:
    """Raise one clear ValueError unless the learner can read the summary's sequences."""
    if (limit := learner.readable(length)) < length:
        raise ValueError(
            f"sequence_length={length}, but the learner reads {limit} positions at most: lower it, or give a learner of more positions"
        )


def run_check(name: str, check: Callable[..., T], *args: Any) -> T:
    """Returns `check(*args)`. A ValueError of the check is raised again, with the name of our argument in front."""
    try:
        return check(*args)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
