"""Training on real data: for Ω, and for teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from farzi_hf.data import minibatches, random_sequences
from farzi_hf.data.sequences import SEQUENCE_COLUMNS, as_rows
from farzi_hf.data.streams import RowStream
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.engine import InnerOptimizer, TrainingState, train

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class RealData:
    """The real data, and what is needed to train on them.

    Args:
        dataset: real sequences, in the column `input_ids`, with `attention_mask` and `labels` where there are any; or a stream of them.
        collator: makes a batch of rows.
        device: of the learner.
        quiet: whether no progress is shown.
    """

    dataset: Dataset | RowStream
    collator: Collator
    device: torch.device | str | None = None
    quiet: bool = False

    @cached_property
    def _columns(self) -> Dataset:
        """What a loss depends on, without the user's other columns."""
        return self.dataset.select_columns([name for name in SEQUENCE_COLUMNS if name in self.dataset.column_names])

    def rows(self, numbers: Any = slice(None)) -> list[dict[str, Any]]:
        """The rows with these numbers; all by default."""
        return as_rows(self._columns[numbers])

    def some(self, count: int, seed: int) -> list[dict[str, Any]]:
        """`count` random rows; all rows, if there are not so many."""
        if isinstance(self.dataset, RowStream):
            return list(islice(self.dataset.shuffled(seed), count))
        return list(random_sequences(self._columns, min(count, len(self.dataset)), seed))

    def batch(self, rows: list[dict[str, Any]]) -> Mapping[str, Tensor]:
        """A batch on the device."""
        return {name: x.to(self.device) for name, x in self.collator(rows).items()}


@dataclass(frozen=True)
class RealBatches:
    """The real minibatch of every step: `batches(step)`, steps count from 1."""

    data: RealData
    rows: Tensor | None

    @classmethod
    def of(cls, data: RealData, batch_size: int, steps: int, seed: int) -> RealBatches | StreamBatches:
        """The minibatches of `steps` steps. They depend on `seed`. A batch larger than the data set takes all rows."""
        if isinstance(data.dataset, RowStream):
            return StreamBatches(data, batch_size, seed)
        return cls(data, minibatches(len(data.dataset), batch_size, steps, seed))

    def __call__(self, step: int) -> Mapping[str, Tensor]:
        data = self.data
        return data.batch(data.rows() if self.rows is None else data.rows(self.rows[step - 1]))


class StreamBatches:
    """The real minibatch of every step of a stream, which is shuffled with a seed. Ask for step 1, then for step 2, and so on."""

    def __init__(self, data: RealData, batch_size: int, seed: int) -> None:
        self._data, self._size, self._rows = data, batch_size, data.dataset.shuffled(seed)
        self._step, self._batch = 0, {}

    def __call__(self, step: int) -> Mapping[str, Tensor]:
        if step == self._step + 1:
            self._step, self._batch = step, self._data.batch(list(islice(self._rows, self._size)))
        if step != self._step:
            raise RuntimeError(f"step={step} after step {self._step}: a stream is read forward; make new StreamBatches")
        return self._batch


def train_on_real(
    learner: Learner | LearnerBatch,
    optimizer: InnerOptimizer,
    start: Parameters,
    batches: RealBatches | StreamBatches,
    *,
    steps: int,
    every: int,
) -> Iterator[Parameters]:
    """Trains one learner, or several on the same minibatches, and yields θ after every `every` steps and at the end.

    Raises:
        FloatingPointError: the training diverged.
    """

    def loss(params: Parameters, inputs: tuple, step: int) -> Tensor:
        return learner.hard_loss(params, batches(step)) * learner.size  # a sum: each learner has its own gradient

    state: Parameters | TrainingState = start
    for first in range(0, steps, every):
        state = train(loss, state, (), optimizer=optimizer, steps=min(every, steps - first))
        if not all(torch.isfinite(x).all() for x in state.params.values()):
            raise FloatingPointError(
                f"training on real data diverged within {state.step} steps; give a smaller learning rate than that of optimizer={optimizer}"
            )
        yield state.params
