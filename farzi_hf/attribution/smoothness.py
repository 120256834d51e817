"""Whether a training is smooth enough for the influence of its rows to mean anything."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from farzi_hf.attribution.outer_steps import RowWeights, bar_of, cost_of_steps, influence_of
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.engine import InnerAdam

_REACH = 0.3
"""How far the weights of rows are moved, along their scores."""
_LEAST = 0.5
"""The least share of a predicted change that has to come true."""
_GENTLER = ((1, 1e-3), (1, 1e-2), (1 / 2, 1e-2), (1 / 4, 1e-2))
"""What is tried where the Trainer's own optimizer is too rough: the share of its rate, and the
least ε of Adam.
"""


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


def smoothness(
    trainings: Trainings, targets: Mapping[str, Dataset], progress: tqdm | None = None
) -> Smoothness:
    """Measures it by one influence and two trainings, of one start and order.

    Args:
        progress: a bar that counts gradients, see `cost_of_smoothness`.
    """
    bar = tqdm(disable=True) if progress is None else progress
    begin = RowWeights(torch.ones(trainings.num_rows))
    scored, _ = influence_of(trainings, targets, begin, 0, progress=bar)
    scores = scored.scores.mean(0)
    moved = _REACH * (scores / scores.std().clamp(min=1e-30)).clamp(-1, 1)
    training = replace(trainings.training(begin.weights(), 0), on_gradient=bar.update)
    queries = Targets(training, targets)

    def loss(weights: Tensor) -> float:
        theta = training.train(weights)
        return float(np.mean([queries.value(theta, query) for query in range(len(queries))]))

    with torch.no_grad(), training.trainer.accelerator.autocast():
        real = loss(1 + moved) - loss(1 - moved)
    return Smoothness(-2 * float((scores * moved).sum()), real)


def cost_of_smoothness(trainings: Trainings, targets: Mapping[str, Dataset]) -> int:
    """What it costs to measure it, in gradients of a step."""
    return cost_of_steps(trainings, targets, 1) + 2 * trainings.replay.steps


def smooth_enough(
    trainings: Trainings, targets: Mapping[str, Dataset], warm: bool = True
) -> tuple[Trainings, list[str]]:
    """The trainings to learn weights in: the Trainer's own, or the first smooth ones with a larger
    ε of Adam, and then with a lower rate. And lines that say what was measured.

    Args:
        warm: whether they start where trainings on all rows end, see `Trainings.warmed`.

    Raises:
        ValueError: none of them is smooth enough, or a target has nothing to predict, or ids that
            the model does not know.
    """
    Targets(trainings.replay, targets).check("target_dataset")
    own = trainings.replay.optimizer
    tried = [own]
    if isinstance(own, InnerAdam):
        tried += [replace(own, lr=share * own.lr, eps=max(own.eps, eps)) for share, eps in _GENTLER]
    said = []
    first = trainings.warmed() if warm else trainings
    for each in dict.fromkeys(tried):
        candidate = first.with_optimizer(each)
        with bar_of(trainings, cost_of_smoothness(candidate, targets)) as bar:
            bar.set_postfix_str("is it smooth?")
            found = smoothness(candidate, targets, bar)
        if found.predicted == 0:
            raise ValueError(
                "trainer: no row has an influence on the target; give more steps (max_steps), or"
                " fewer of them before the full rate (warmup_steps)"
            )
        eps = f", ε {each.eps:g}" if isinstance(each, InnerAdam) else ""
        said.append(
            f"rate {each.lr:g}{eps}: of the change of the target's loss that the scores predict"
            f" ({found.predicted:+.3f} nats), {found.ratio:.0%} comes true"
        )
        if found.is_enough:
            return candidate, said
    raise ValueError(
        f"trainer is not smooth enough for scores to mean anything ({'; '.join(said)}): lower"
        " learning_rate, raise the batch, or take fewer steps (docs/attribution.md)"
    )
