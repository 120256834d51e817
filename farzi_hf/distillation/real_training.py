"""Training on real data: for Ω, and for teachers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from farzi_hf.data import minibatches
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.engine import InnerOptimizer, TrainingState, train

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Tensor]]


@dataclass(frozen=True)
class RealBatches:
    """The real minibatch of every step: `batches(step)`, steps count from 1."""

    dataset: Dataset
    collator: Collator
    rows: Tensor | None
    device: torch.device | str | None

    @classmethod
    def of(
        cls, dataset: Dataset, collator: Collator, batch_size: int, steps: int, seed: int, device: Any = None
    ) -> RealBatches:
        """The minibatches of `steps` steps. They depend on `seed`. A batch larger than the data set takes all rows."""
        dataset = dataset.select_columns("input_ids")
        return cls(dataset, collator, minibatches(len(dataset), batch_size, steps, seed), device)

    def __call__(self, step: int) -> Mapping[str, Tensor]:
        columns = self.dataset[:] if self.rows is None else self.dataset[self.rows[step - 1]]
        batch = self.collator([{"input_ids": ids} for ids in columns["input_ids"]])
        return {name: tensor.to(self.device) for name, tensor in batch.items()}


def train_on_real(
    learner: Learner | LearnerBatch,
    optimizer: InnerOptimizer,
    start: Parameters,
    batches: RealBatches,
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
