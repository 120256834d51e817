"""A counted model and a network, mixed: each knows what the other does not.

A network learns what words have in common, and a counted model remembers which ones stood side by
side. The probability of a token is a share of the one and the rest of the other; the share is
chosen on the validation part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from torch import Tensor

from farzi_hf.tasks.base import Outputs
from farzi_hf.tasks.counted_text import KneserNey

SHARES = (0.2, 0.3, 0.4, 0.5, 0.6)
"""Of the counted model, among which the validation part chooses."""


@dataclass(frozen=True)
class Mixture:
    """p(token) = share · p_counted(token) + (1 − share) · p_network(token)."""

    ngrams: KneserNey
    """The counted model."""
    share: float
    """Of the counted model."""

    @property
    def name(self) -> str:
        """Of its row."""
        return f"{self.ngrams.order}-gram and teacher, mixed"

    def outputs(self, of_network: Outputs) -> Outputs:
        """What `Task.statistics` takes, for the mixture in place of the network alone."""

        def of_mixture(rows: Dataset, statistic: Callable[[Tensor, Any], Tensor]) -> list:
            return of_network(
                rows, lambda logits, batch: statistic(self.log_probabilities(logits, batch), batch)
            )

        return of_mixture

    def log_probabilities(self, logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        """(b, L, V): the logarithms of the probabilities of the token after each position.

        Args:
            logits: (b, L, V), of the network.
            batch: has `input_ids` (b, L).
        """
        ids = batch["input_ids"].cpu().numpy()
        mixed = torch.empty_like(logits, dtype=torch.float32)
        states = self.ngrams.states([[]] * len(ids))
        for place in range(ids.shape[1]):
            states = self.ngrams.next_states(states, ids[:, place])
            counted = torch.from_numpy(self.ngrams.distribution_after(states)).to(logits)
            network = logits[:, place].softmax(-1)
            mixed[:, place] = (self.share * counted + (1 - self.share) * network).log()
        return mixed
