"""Which way to choose rows is the best for a target: fresh models are trained on what each of them
chose, and compared on held-out rows of the target.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor
from torch.utils.data import Dataset

from farzi_hf.attribution.choosers import Chooser, Task
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.trainings import Trainings

_FIRST = 10_000
"""The number of the first training that measures. Weights are learnt in others."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """What one way has chosen, and how good models trained on it are."""

    method: str
    """The way."""
    is_cheap: bool
    """Whether it took no training that is differentiated."""
    weights: Tensor
    """(n,): shares of reading; 0 leaves a row out."""
    dev: list[float]
    """The loss on the target's dev part after each fresh training, in nats per token."""
    test: list[float]
    """The same on its test part."""
    seconds: float
    """The choice took, without the trainings that measure."""

    @property
    def rows(self) -> int:
        """How many rows stay."""
        return int((self.weights > 0).sum())

    def row(self) -> dict[str, Any]:
        """Of a table: perplexities, with 95 % intervals of the mean over trainings."""
        return {
            "method": self.method,
            "rows": self.rows,
            "dev": math.exp(float(np.mean(self.dev))),
            "test": math.exp(float(np.mean(self.test))),
            "test_interval": [math.exp(x) for x in interval(self.test)],
            "seconds": self.seconds,
        }


def interval(losses: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean by Student's t; of a single number NaN."""
    if len(losses) < 2:
        return (math.nan, math.nan)
    error = float(np.std(losses, ddof=1)) / len(losses) ** 0.5
    reach = float(scipy.stats.t.ppf(0.975, len(losses) - 1)) * error
    middle = float(np.mean(losses))
    return (middle - reach, middle + reach)


@dataclass(frozen=True, eq=False)
class Choice:
    """All ways, compared."""

    tried: Sequence[Chosen]
    """In the order in which they were asked for."""

    @property
    def best(self) -> Chosen:
        """The lowest mean loss on the dev part. So nothing is chosen that is worse there than a
        cheap way.
        """
        return min(self.tried, key=lambda each: np.mean(each.dev))

    @property
    def verdict(self) -> str:
        """Which way made the selection, and what outer steps gained, in two sentences."""
        best = self.best
        cheap = [each for each in self.tried if each.is_cheap]
        learnt = [each for each in self.tried if not each.is_cheap]
        said = [
            f"The rows are those of '{best.method}', which is the best on the target's dev part"
            f" (perplexity {math.exp(np.mean(best.dev)):.4g}; {math.exp(np.mean(best.test)):.4g} on"
            " its test part)."
        ]
        if cheap and learnt:
            first = min(cheap, key=lambda each: np.mean(each.dev))
            other = min(learnt, key=lambda each: np.mean(each.dev))
            gains = np.subtract(first.test, other.test).tolist()
            low, high = interval(gains)
            said.append(
                f"On the test part '{other.method}' is {np.mean(gains):+.3f} nats ({low:+.3f} to"
                f" {high:+.3f}) better than '{first.method}', the best that needs no"
                " meta-gradient."
            )
        return " ".join(said)


def choose(
    task: Task,
    choosers: Sequence[Chooser],
    dev: Mapping[str, Dataset],
    test: Mapping[str, Dataset],
    *,
    trainings: int = 3,
    measured_in: Trainings | None = None,
    tell: Callable[[Chosen], Any] = lambda chosen: None,
) -> Choice:
    """Compares ways to choose rows. All trainings take as many steps; the k-th of each way has the
    same start.

    Args:
        task: the pool, the target's rows to choose by, and how many rows stay.
        choosers: the ways.
        dev: other rows of the targets, by which one way is chosen.
        test: rows of the targets that nothing was chosen by.
        trainings: fresh models for each way.
        measured_in: the trainings of these models; by default those of the task.
        tell: is called with each way when it is measured.

    Raises:
        ValueError: a way cannot choose.
        FloatingPointError: a training diverged.
    """
    tried = []
    for chooser in choosers:
        begin = time.perf_counter()
        weights = chooser.weights(task)
        seconds = time.perf_counter() - begin
        measured = losses(measured_in or task.trainings, weights, (dev, test), trainings)
        chosen = Chosen(chooser.name, chooser.is_cheap, weights, *measured, seconds)
        tried.append(chosen)
        tell(chosen)
    return Choice(tried)


def losses(
    trainings: Trainings, weights: Tensor, parts: Sequence[Mapping[str, Dataset]], count: int
) -> list[list[float]]:
    """For each part the mean loss of its targets after each of some fresh trainings."""
    found: list[list[float]] = [[] for _ in parts]
    for number in range(_FIRST, _FIRST + count):
        training = trainings.training(weights, number)
        with torch.no_grad(), training.trainer.accelerator.autocast():
            theta = training.train()
            for part, of_part in zip(parts, found, strict=True):
                queries = Targets(training, part)
                values = [queries.value(theta, query) for query in range(len(queries))]
                of_part.append(float(np.mean(values)))
    if not np.isfinite(found).all():
        raise FloatingPointError("a training on chosen rows diverged; give a smaller learning_rate")
    return found


def with_eps(trainings: Trainings, eps: float) -> Trainings:
    """The same trainings with another ε of Adam."""
    return trainings.with_optimizer(replace(trainings.replay.optimizer, eps=eps))
