"""What the scores explain: the loss of each row of a test set, or the mean loss of whole ones."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from farzi_hf.attribution.replay import Replay, check_readable, predicted_tokens
from farzi_hf.distillation import Parameters
from farzi_hf.distillation.learner import is_constant

_TOKENS_TOGETHER = 2**13
"""Tokens of a target whose activations are in memory at the same time."""


class Queries(ABC):
    """m losses of the trained model.

    Args:
        replay: the training.
    """

    unit: ClassVar[str]
    """What an error calls several of them."""

    def __init__(self, replay: Replay) -> None:
        self.replay = replay

    @abstractmethod
    def __len__(self) -> int:
        """m."""

    @abstractmethod
    def loss(self, params: Parameters, query: int) -> Tensor:
        """The mean cross-entropy of a query in nats per token, differentiable once."""

    @abstractmethod
    def ids(self, query: int) -> list[list[int]]:
        """The ids of the rows of a query."""

    @property
    @abstractmethod
    def names(self) -> list[str] | None:
        """What the queries are called; None where they are called as their rows read."""

    @abstractmethod
    def batches(self) -> Iterator[dict[str, Tensor]]:
        """All rows, one after the other, for a fingerprint."""

    def check(self, argument: str = "test_dataset") -> None:
        """Raises ValueError unless there is a query, each has something to predict, and the model
        can read all ids.

        Args:
            argument: names the queries in an error.
        """
        empty = [query for query in range(len(self)) if not self._predicts(query)]
        if empty or not len(self):
            raise ValueError(
                f"{argument} has {len(self)} {self.unit}, nothing to predict in {empty}; give rows"
                " of two tokens"
            )
        check_readable(self.replay.learner, self.batches(), argument)

    @abstractmethod
    def _predicts(self, query: int) -> bool:
        """Whether the query has something to predict."""

    def _rows(self, loader: DataLoader) -> Iterator[dict[str, Tensor]]:
        return (self.replay.batch(loader, [row]) for row in range(len(loader.dataset)))


class RowQueries(Queries):
    """Each row of a test set is a query.

    Args:
        replay: the training.
        dataset: the rows, in the form of the training set.
    """

    unit = "rows"

    def __init__(self, replay: Replay, dataset: Dataset) -> None:
        super().__init__(replay)
        # Not the loader of an evaluation, which the Trainer may keep for its own evaluations.
        self.loader = replay.trainer.get_test_dataloader(dataset)

    def __len__(self) -> int:
        return len(self.loader.dataset)

    def loss(self, params: Parameters, query: int) -> Tensor:
        return self.replay.learner.hard_loss(params, self.replay.batch(self.loader, [query]))

    def ids(self, query: int) -> list[list[int]]:
        return [self.replay.batch(self.loader, [query])["input_ids"][0].tolist()]

    names = None

    def batches(self) -> Iterator[dict[str, Tensor]]:
        return self._rows(self.loader)

    def _predicts(self, query: int) -> bool:
        return predicted_tokens(self.replay.batch(self.loader, [query])) > 0


class Targets(Queries):
    """Each of several test sets is a query: the mean over the tokens of all its rows.

    A target may be large. So its gradient is taken in parts, and its loss is handed on as the
    number with that gradient, which is all that the way back needs of it.

    Args:
        replay: the training.
        datasets: the rows of each target by its name, in the form of the training set.
    """

    unit = "targets"

    def __init__(self, replay: Replay, datasets: Mapping[str, Dataset]) -> None:
        super().__init__(replay)
        self._names = list(map(str, datasets))
        self.loaders = [replay.trainer.get_test_dataloader(each) for each in datasets.values()]

    def __len__(self) -> int:
        return len(self.loaders)

    def loss(self, params: Parameters, query: int) -> Tensor:
        trained = {name: x for name, x in params.items() if not is_constant(x)}
        parts = self._parts(self.loaders[query])
        tokens = sum(map(predicted_tokens, parts))
        value = torch.zeros((), dtype=torch.float64)
        gradient = {name: torch.zeros_like(x) for name, x in trained.items()}
        with torch.enable_grad():
            for batch in parts:
                leaves = {name: x.detach().requires_grad_() for name, x in trained.items()}
                loss = self.replay.learner.hard_loss({**params, **leaves}, batch)
                share = predicted_tokens(batch) / tokens
                of_part = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
                value += share * loss.detach().double().cpu()
                for name, x in zip(leaves, of_part, strict=True):
                    gradient[name] += share * x
        # Its value is 0, and its derivative in θ the gradient.
        slope = sum((gradient[name] * (x - x.detach())).sum() for name, x in trained.items())
        return slope + value.to(slope)

    @torch.no_grad()
    def value(self, params: Parameters, query: int) -> float:
        """The loss of a target, without a derivative."""
        parts = self._parts(self.loaders[query])
        counts = list(map(predicted_tokens, parts))
        losses = [float(self.replay.learner.hard_loss(params, batch)) for batch in parts]
        return sum(n * loss for n, loss in zip(counts, losses, strict=True)) / sum(counts)

    def _parts(self, loader: DataLoader) -> list[dict[str, Tensor]]:
        """All rows of a target, in batches of rows of about the same length."""
        lengths = [batch["input_ids"].shape[1] for batch in self._rows(loader)]
        parts: list[list[int]] = []
        for row in sorted(range(len(lengths)), key=lengths.__getitem__):
            if not parts or (len(parts[-1]) + 1) * lengths[row] > _TOKENS_TOGETHER:
                parts.append([])
            parts[-1].append(row)
        batches = [self.replay.batch(loader, rows) for rows in parts]
        return [batch for batch in batches if predicted_tokens(batch)]

    def ids(self, query: int) -> list[list[int]]:
        return [batch["input_ids"][0].tolist() for batch in self._rows(self.loaders[query])]

    @property
    def names(self) -> list[str]:
        return self._names

    def batches(self) -> Iterator[dict[str, Tensor]]:
        for loader in self.loaders:
            yield from self._rows(loader)

    def _predicts(self, query: int) -> bool:
        return any(predicted_tokens(batch) for batch in self._rows(self.loaders[query]))


def queries_of(replay: Replay, test: Dataset | Mapping[str, Dataset]) -> Queries:
    """The rows of a test set as queries, or whole test sets by their names."""
    if isinstance(test, Mapping):
        return Targets(replay, test)
    return RowQueries(replay, test)


def check_rows(argument: str, dataset: Any) -> None:
    """Raises ValueError unless these are rows, or rows by the names of several targets."""
    sets = list(dataset.values()) if isinstance(dataset, Mapping) else [dataset]
    for rows in sets:
        is_list = hasattr(rows, "__len__") and hasattr(rows, "__getitem__")
        if not is_list or (len(rows) > 0 and not isinstance(rows[0], Mapping)):
            given = " ".join(repr(rows).split())
            raise ValueError(
                f"{argument} has {given:.100} for rows; give a data set with input_ids, in the form"
                " of the training set, or several by their names"
            )
