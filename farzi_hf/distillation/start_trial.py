"""The choice of κ for a spectral start: learners train on each candidate, and the losses decide."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import torch
from tqdm.auto import tqdm

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.processes import broadcast
from farzi_hf.distillation.real_training import RealData
from farzi_hf.summary import FarziData
from farzi_hf.summary.initialization import CANDIDATES, choose_concentration, spectral_starts

logger = logging.getLogger(__name__)

LEARNERS = 2
"""Learners that train on each candidate."""
BATCHES = 4
"""Real batches on which their loss is taken."""


def choose_start(
    farzi: FarziData, learner: Learner, train: Callable[[int], Parameters], data: RealData, size: int, seed: int
) -> float:
    """Sets a summary to its spectral start at the best candidate κ: its learners have the least mean loss on a few real batches.

    Args:
        farzi: changed in place.
        learner: computes the losses.
        train: `train(index)` trains learner `index` on the present summary and returns its parameters.
        data: the real data.
        size: real sequences per batch.
        seed: of the start, and of the batches.

    Returns:
        κ.
    """
    rows = data.some(BATCHES * size, derive(seed, Purpose.START_TRIAL_ROWS))
    batches = [data.batch(rows[first : first + size]) for first in range(0, len(rows), size)]
    start_at = spectral_starts(farzi, data.dataset, seed)
    found: list[str] = []
    with tqdm(
        total=len(CANDIDATES) * LEARNERS, desc="Choosing κ of the start", disable=data.quiet, dynamic_ncols=True
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
    broadcast(farzi.tensors)  # processes must not choose differently
    tried = ", ".join(f"{candidate:g}: {value:.3f}" for candidate, value in losses.items())
    logger.info("Start of the summary: loss on training data by κ: %s.", tried)
    return concentration
