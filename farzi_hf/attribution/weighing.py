"""`weigh`: which rows of a stock Trainer's training set to train on, and how often, for a target."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer

from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.outer_steps import (
    GroupWeights,
    Learnt,
    RowWeights,
    Weighing,
    highest_weights,
    outer_steps,
)
from farzi_hf.attribution.queries import check_rows
from farzi_hf.attribution.smoothness import smooth_enough
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.common.checks import check_size
from farzi_hf.engine import Adjoint
from farzi_hf.summary import FarziData

logger = logging.getLogger(__name__)

_steps = outer_steps  # `weigh` has an argument of this name


def weigh(
    trainer: Trainer,
    target_dataset: Dataset | Mapping[str, Dataset],
    *,
    outer_steps: int = 8,
    keep: float | None = None,
    prior: Tensor | Sequence[float] | None = None,
    groups: str | Sequence[Any] | None = None,
    rows: Sequence[Mapping[str, Any]] | None = None,
    adjoint: Adjoint | None = None,
    resume_dir: str | os.PathLike | None = None,
    warm: bool = True,
    check_smoothness: bool = True,
    seed: int = 0,
) -> FarziData:
    """Learns weights of a Trainer's training rows, so that a model trained on them predicts a
    target well.

    Each outer step trains the model once, from a fresh start (if the Trainer has a `model_init`)
    and in a fresh order, with rows read as often as their weights say; takes the exact influence of
    each row on the target through the whole training, as `attribute` does; and moves the weights.
    Neither the Trainer nor its model is changed. docs/weigh.md says when it helps, and
    `farzi weigh` compares it with ways that cost less.

    Args:
        trainer: a configured Trainer that has not trained yet, as for `attribute`.
        target_dataset: rows of what is to be predicted well, in the form of the training set. Of a
            mapping from names to such sets the mean of their losses is meant.
        outer_steps: how many; each costs about six trainings.
        keep: how many rows stay, or, as a float up to 1.0, which share of them: those of the
            highest weights. None keeps all whose weight is not 0.
        prior: (n,) the weights to begin with, such as 1 for rows that a cheap way has chosen; rows
            of weight 0 stay out. By default all begin at 1. With groups, those of one group have
            to be equal, because its rows share its part equally.
        groups: learns a share for each group of rows, a mixture, in place of a weight for each row:
            the name of a column, or a list with an entry for each row. The shares begin at the
            groups' sizes. `results.metrics["mixture"]` of the summary has them by name.
        rows: what the summary holds of each row; by default the rows of the Trainer. Give your own,
            such as texts, where those are ids.
        adjoint: how to differentiate; None chooses.
        resume_dir: a folder that keeps the weights after each outer step. A later call with the
            same arguments goes on from there. The caller removes it.
        warm: whether weights are learnt in models that have been trained on all rows before, for as
            many steps; see `Trainings.warmed`. For a model that knows its language already, False
            saves a sixth of the time.
        check_smoothness: whether it is measured first if this training is smooth enough for scores
            to mean anything. If it is not, weights are learnt with a larger ε of Adam.
        seed: of starts and orders.

    Returns:
        A summary of the rows that stay: `.weights` (n,) in the order of the training set, 0 for
        rows that are left out, and 1 on average for the others.

    Raises:
        ValueError: the training cannot be replayed, has a single row, or is not smooth enough; a
            target has nothing to predict, or ids that the model does not know; `keep` or `prior`
            does not fit; or `resume_dir` is of another training.
        FloatingPointError: a training diverged, or its derivative did.
    """
    check_size("outer_steps", outer_steps, 1)
    check_rows("target_dataset", target_dataset)
    trainings = Trainings.of(trainer, seed)
    own_rows = _rows_of(trainer.train_dataset) if rows is None else list(rows)
    count = len(trainer.train_dataset)
    keep = number_kept(keep, count)
    of_rows = None if groups is None else Groups.of(groups, trainer.train_dataset)
    begin = _begin(prior, of_rows, count)
    targets = target_dataset if isinstance(target_dataset, Mapping) else {"target": target_dataset}
    if check_smoothness:
        trainings, said = smooth_enough(trainings, targets, warm)
        for line in said:
            logger.info("%s", line)
    elif warm:
        trainings = trainings.warmed()
    folder = None if resume_dir is None else Path(resume_dir)
    state = _steps(trainings, targets, begin, outer_steps, adjoint=adjoint, folder=folder)
    return FarziData.from_rows(
        own_rows,
        highest_weights(state.learnt.weights(), state.evidence, keep),
        trainer.processing_class,
        vocab_size=trainings.replay.learner.vocab_size,
        sequence_length=max(2, *map(len, trainings.ids)),
        metrics=_metrics(state),
        recipe={
            "outer_steps": outer_steps,
            "model": type(trainer.model).__name__,
            "training_steps": trainings.replay.steps,
            "optimizer": str(trainings.replay.optimizer),
            "seed": seed,
        },
    )


def number_kept(keep: float | None, count: int) -> int:
    """How many of `count` rows stay; 1.0 is the share of all, and 1 one row. Raises ValueError if
    that is not from 1 to all.
    """
    if keep is None:
        return count
    is_number = isinstance(keep, Real) and not isinstance(keep, bool)
    if is_number and not isinstance(keep, Integral) and 0 < keep <= 1:
        return max(1, round(keep * count))
    is_count = is_number and 1 <= keep <= count and keep == int(keep)
    if not is_count:
        raise ValueError(
            f"keep={keep!r}: there are {count} rows; give a whole number of them, or a share of at"
            " most 1.0, such as 0.1"
        )
    return int(keep)


def _begin(prior: Tensor | Sequence[float] | None, groups: Groups | None, count: int) -> Learnt:
    """The weights to begin with."""
    weights = torch.ones(count)
    if prior is not None:
        weights = torch.as_tensor(prior, dtype=torch.float32)
        is_bad = weights.shape != (count,) or not bool(weights.isfinite().all())
        if is_bad or bool((weights < 0).any()) or not bool(weights.any()):
            raise ValueError(
                f"prior has the shape {tuple(weights.shape)}; give {count} finite numbers from 0"
                " on, one for each training row, and not zeros alone"
            )
    if groups is None:
        return RowWeights(weights)
    means = groups.means(weights[None])[0]
    differs = ~torch.isclose(weights, means[groups.members])
    if bool(differs.any()):
        row = int(differs.int().argmax())
        raise ValueError(
            f"prior differs among the rows of the group {groups.of_rows[row]!r}, which share its part"
            " equally; give them equal weights, or leave out groups"
        )
    return GroupWeights((groups.sizes * means).log(), groups)  # -inf stays: share 0


def _metrics(state: Weighing) -> dict[str, Any]:
    """What the card says of the outer steps."""
    losses = [step["loss"] for step in state.history]
    metrics: dict[str, Any] = {
        "loss of the target in each outer step (nats per token)": ", ".join(
            f"{loss:.3f}" for loss in losses
        )
    }
    mixture = state.learnt.mixture
    if mixture is not None:
        metrics["mixture"] = mixture
    return metrics


def _rows_of(dataset: Dataset) -> list[dict[str, Any]]:
    """The rows of a training set, in plain types."""
    if hasattr(dataset, "with_format"):
        dataset = dataset.with_format(None)
    return [
        {name: x.tolist() if isinstance(x, Tensor) else x for name, x in dict(row).items()}
        for row in (dataset[i] for i in range(len(dataset)))
    ]
