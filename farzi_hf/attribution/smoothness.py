"""Whether a training is smooth enough for the influence of its rows to mean anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.utils.data import Dataset

from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.attribution.weighted_training import influence
from farzi_hf.engine import InnerAdam

_REACH = 0.3
"""How far the weights of rows are moved, along their scores."""
_LEAST = 0.3
"""The least share of a predicted change that has to come true."""
_EPS = (1e-3, 1e-2)
"""The ε of Adam that are tried where the Trainer's is too small."""


@dataclass(frozen=True)
class Smoothness:
    """What a step of all weights along their scores does to the target's loss."""

    predicted: float
    """The change in nats per token that the scores predict, between weights 1 − .3 · clamp(z, −1,
    1) and 1 + .3 · clamp(z, −1, 1), where z is a score in standard deviations.
    """
    real: float
    """The change between two trainings with these weights."""

    @property
    def ratio(self) -> float:
        """The share of the predicted change that comes true: 1 if the training is linear so far."""
        return self.real / self.predicted

    @property
    def is_enough(self) -> bool:
        """Whether outer steps can follow the scores."""
        return self.ratio >= _LEAST


def smoothness(trainings: Trainings, targets: Mapping[str, Dataset]) -> Smoothness:
    """Measures it by one influence and two trainings, of one start and order."""
    training = trainings.training(torch.ones(trainings.num_rows), 0)
    queries = Targets(training, targets)

    def loss(theta):
        return torch.stack([queries.loss(theta, query) for query in range(len(queries))]).mean()

    with training.trainer.accelerator.autocast():
        scores = influence(training, loss)
        moved = _REACH * (scores / scores.std().clamp(min=1e-30)).clamp(-1, 1)
        with torch.no_grad():
            below, above = (float(loss(training.train(1 + sign * moved))) for sign in (-1.0, 1.0))
    predicted = -2 * float((scores * moved).sum())
    return Smoothness(predicted, above - below)


def smooth_enough(
    trainings: Trainings, targets: Mapping[str, Dataset]
) -> tuple[Trainings, list[str]]:
    """The trainings to learn weights in: the Trainer's own, or those with the smallest larger ε of
    Adam that makes them smooth enough. And lines that say what was measured.

    Raises:
        ValueError: none of them is smooth enough.
    """
    optimizer = trainings.replay.optimizer
    tried = [optimizer]
    if isinstance(optimizer, InnerAdam):
        tried += [replace(optimizer, eps=eps) for eps in _EPS if eps > optimizer.eps]
    said = []
    for each in tried:
        candidate = trainings.with_optimizer(each)
        found = smoothness(candidate, targets)
        eps = f"ε {each.eps:g}" if isinstance(each, InnerAdam) else type(each).__name__
        said.append(
            f"{eps}: of the change of the target's loss that the scores predict"
            f" ({found.predicted:+.3f} nats), {found.ratio:.0%} comes true"
        )
        if found.is_enough:
            return candidate, said
    raise ValueError(
        f"trainer is not smooth enough for scores to mean anything ({'; '.join(said)}): lower"
        " learning_rate, raise the batch, or take fewer steps (docs/attribution.md)"
    )
