"""What the outer loop minimises over the summary: a scalar that is differentiable in the latents and the decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from farzi_hf.adjoint import Adjoint, unroll
from farzi_hf.farzi_data import soft_tokens
from farzi_hf.inner_optimizers import InnerOptimizer
from farzi_hf.learner import Learner, LearnerBatch, Parameters


@dataclass(frozen=True)
class SyntheticTraining:
    """The inner loop of equation (2): train a learner on the summary for T steps.

    Args:
        optimizer: updates θ; its states start at zero.
        tau: τ of the soft tokens.
        batch_size: b_syn, synthetic sequences per inner step; None takes all μ every time.
        window: differentiate only the last `window` steps of the T; None differentiates all.
        adjoint: how; None leaves the choice to `unroll`.
        torch_compile: compile the steps, as in `unroll`.
    """

    optimizer: InnerOptimizer
    tau: float
    batch_size: int | None = None
    window: int | None = None
    adjoint: Adjoint | None = None
    torch_compile: bool = False

    def __call__(
        self,
        learner: Learner | LearnerBatch,
        latents: Tensor,
        decoder: Tensor,
        *,
        start: Parameters,
        steps: int,
        seed: int,
    ) -> Parameters:
        """θ_T from `start`, differentiable in latents (μ, ξ, d) and decoder (d, V). The minibatches depend on `seed`."""
        rows = minibatches(len(latents), self.batch_size, steps, seed)
        rows = None if rows is None else rows.to(latents.device)

        def inner_loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            latents, decoder = inputs
            selected = latents if rows is None else latents[rows[step - 1]]
            return learner.soft_loss(params, soft_tokens(selected, decoder, self.tau))

        return unroll(
            inner_loss,
            start,
            (latents, decoder),
            optimizer=self.optimizer,
            steps=steps,
            adjoint=self.adjoint,
            window=None if self.window is None else min(self.window, steps),
            torch_compile=self.torch_compile,
        )


def minibatches(rows: int, batch_size: int | None, steps: int, seed: int) -> Tensor | None:
    """The rows of each step's minibatch (steps, batch_size), or None for all rows. A function of `seed`, so replay is exact.

    Goes through all rows in a new random order each epoch; a last incomplete minibatch is left out.
    """
    if batch_size is None or batch_size >= rows:
        return None
    per_epoch = rows // batch_size
    epochs = [np.random.default_rng((seed, epoch)).permutation(rows) for epoch in range(-(-steps // per_epoch))]
    batches = np.concatenate([order[: per_epoch * batch_size].reshape(per_epoch, batch_size) for order in epochs])
    return torch.from_numpy(batches[:steps])


@dataclass(frozen=True)
class MetaMatching:
    """E_{θ0} L_D(θ_T(θ0, summary)): the loss on real data of a learner trained on the summary (equation 2).

    Args:
        training: the inner loop.
        steps: T.
        steps_min: T is drawn uniformly from steps_min … steps; with a window this is RaT-BPTT (arXiv 2311.07025).
        learners: K, the number of θ0 over which the expectation is averaged, trained at once.
    """

    training: SyntheticTraining
    steps: int
    steps_min: int
    learners: int = 1

    def __call__(
        self, learner: Learner, latents: Tensor, decoder: Tensor, batch: Mapping[str, Tensor], seed: int
    ) -> Tensor:
        """The outer loss in nats per token, differentiable in latents and decoder. θ0, T and minibatches depend on `seed`."""
        steps = int(np.random.default_rng(seed).integers(self.steps_min, self.steps + 1))
        learner = learner if self.learners == 1 else learner.batch(self.learners)
        start = learner.initial_parameters(seed, latents.device)
        theta = self.training(learner, latents, decoder, start=start, steps=steps, seed=seed)
        return learner.hard_loss(theta, batch)
