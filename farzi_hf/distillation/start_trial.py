"""Which κ a spectral start should have: learners that train on each candidate decide."""

from __future__ import annotations

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
) -> tuple[float, dict[float, float]]:
    """Leaves the summary at the candidate κ whose learners have the least loss on real batches.

    Args:
        start_at: sets the summary to its start at a κ.
        learner: computes the losses.
        train: the parameters of learner `index`, trained on the summary as it is.
        batches: real ones.
        quiet: without a progress bar.

    Returns:
        κ, and the mean loss at each candidate.
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

        return choose_concentration(start_at, loss)
