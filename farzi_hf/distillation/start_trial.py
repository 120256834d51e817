"""The choice of κ for a spectral start: learners train on each candidate, and the losses decide."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from tqdm.auto import tqdm

from farzi_hf.data import random_sequences
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.summary.initialization import CANDIDATES, choose_concentration

logger = logging.getLogger(__name__)

LEARNERS = 2
"""Learners that train on each candidate."""
BATCHES = 4
"""Real batches on which their loss is taken."""


def trial_batches(dataset: Dataset, collator: Callable, size: int, seed: int) -> DataLoader:
    """A few random real batches, on which the learners are measured."""
    rows = random_sequences(dataset, min(BATCHES * size, len(dataset)), seed).select_columns("input_ids")
    return DataLoader(rows, size, collate_fn=collator, generator=torch.Generator())


def try_starts(
    start_at: Callable[[float], None],
    learner: Learner,
    train: Callable[[int], Parameters],
    batches: Sequence[Mapping[str, Tensor]],
    quiet: bool = False,
) -> float:
    """Sets the summary to its start at the best candidate κ: its learners have the least mean loss on real batches.

    Args:
        start_at: a function that sets the summary to its start at a given κ.
        learner: computes the losses.
        train: `train(index)` trains learner `index` on the present summary and returns its parameters.
        batches: batches of real data.
        quiet: whether the progress bar is hidden.

    Returns:
        κ.
    """
    found: list[str] = []
    with tqdm(
        total=len(CANDIDATES) * LEARNERS, desc="Choosing κ of the start", disable=quiet, dynamic_ncols=True
    ) as bar:

        @torch.no_grad()
        def loss() -> float:
            losses = []
            for index in range(LEARNERS):
                theta = train(index)
                losses += [learner.hard_loss(theta, batch).item() for batch in batches]
                bar.update()
            found.append(f"{CANDIDATES[len(found)]:g}: {np.mean(losses):.3f}")
            bar.set_postfix_str(f"loss by κ: {', '.join(found)}")
            return np.mean(losses)

        concentration, losses = choose_concentration(start_at, loss)
    tried = ", ".join(f"{candidate:g}: {value:.3f}" for candidate, value in losses.items())
    logger.info("Start of the summary: loss on training data by κ: %s.", tried)
    return concentration
