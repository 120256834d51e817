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
from farzi_hf.data.streams import RowStream
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.engine import InnerOptimizer, TrainingState, train

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class RealData:
    """The real data, and what is needed to train on them.

    Args:
        dataset: real sequences, in the column `input_ids`, or a stream of them.
        collator: makes a batch of rows.
        device: of the learner.
        quiet: whether no progress is shown.
    """

    dataset: Dataset | RowStream
    collator: Collator
    device: torch.device | str | None = None
    quiet: bool = False

    @cached_property
    def sequences(self) -> Dataset:
        """The column `input_ids` alone."""
        return self.dataset.select_columns("input_ids")

    def some(self, count: int, seed: int) -> list[list[int]]:
        """`count` random rows; all rows, if there are not so many."""
        if isinstance(self.dataset, RowStream):
            return [row["input_ids"] for row in islice(self.dataset.shuffled(seed), count)]
        return random_sequences(self.sequences, min(count, len(self.dataset)), seed)["input_ids"]

    def batch(self, ids: list[list[int]]) -> Mapping[str, Tensor]:
        """A batch on the device."""
        return {name: x.to(self.device) for name, x in self.collator([{"input_ids": row} for row in ids]).items()}


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
        ids = data.sequences[:] if self.rows is None else data.sequences[self.rows[step - 1]]
        return data.batch(ids["input_ids"])


class StreamBatches:
    """The real minibatch of every step of a stream, which is shuffled with a seed. Ask for step 1, then for step 2, and so on."""

    def __init__(self, data: RealData, batch_size: int, seed: int) -> None:
        self._data, self._size, self._rows = data, batch_size, data.dataset.shuffled(seed)
        self._step, self._batch = 0, {}

    def __call__(self, step: int) -> Mapping[str, Tensor]:
        if step == self._step + 1:
            ids = [row["input_ids"] for row in islice(self._rows, self._size)]
            self._step, self._batch = step, self._data.batch(ids)
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
