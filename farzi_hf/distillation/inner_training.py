"""The inner loop of equation (2): a learner's training on a summary."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor

from farzi_hf.data import minibatches
from farzi_hf.distillation.learner import Learner, LearnerBatch, Parameters
from farzi_hf.engine import OPTIMIZERS, Adjoint, InnerLoss, InnerOptimizer, unroll
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.forms import Tensors, batch_of


@dataclass(frozen=True)
class SyntheticTraining:
    """The inner loop of equation (2): train a learner on the summary for T steps.

    Args:
        optimizer: updates θ; its states start at zero.
        tau: τ of the soft tokens.
        batch_size: b_syn, synthetic sequences per inner step; None takes all μ in every step.
        window: only the last `window` of the T steps are differentiated; None differentiates all.
        adjoint: the method of differentiation; None leaves the choice to `unroll`.
        torch_compile: whether the steps are compiled, as in `unroll`.
    """

    optimizer: InnerOptimizer
    tau: float
    batch_size: int | None = None
    window: int | None = None
    adjoint: Adjoint | None = None
    torch_compile: bool = False

    @classmethod
    def of_summary(cls, config: FarziDataConfig) -> SyntheticTraining:
        """The inner loop that a summary was distilled with. The summary's config holds its settings.

        Raises:
            ValueError: the config has no settings of an inner loop, or its optimizer is unknown.
        """
        inner = dict(config.inner or {})
        kind = OPTIMIZERS.get(inner.get("optimizer"))
        if kind is None:
            raise ValueError(
                f"the summary's config has inner={config.inner!r}, without an optimizer of {', '.join(OPTIMIZERS)}; take a summary that "
                "FarziTrainer has distilled, or set config.inner"
            )
        names = [argument.name for argument in fields(kind) if argument.name in inner]
        settings = {name: tuple(value) if isinstance(value := inner[name], list) else value for name in names}
        return cls(kind(**settings), config.tau, inner.get("synthetic_batch_size"))

    def __call__(
        self, learner: Learner | LearnerBatch, summary: Tensors, *, start: Parameters, steps: int, seed: int
    ) -> Parameters:
        """θ_T from `start`, differentiable in the tensors of the summary. The minibatches depend on `seed`."""
        return unroll(
            self.inner_loss(learner, summary, steps, seed),
            start,
            tuple(summary.values()),
            optimizer=self.optimizer,
            steps=steps,
            adjoint=self.adjoint,
            window=None if self.window is None else min(self.window, steps),
            torch_compile=self.torch_compile,
        )

    @torch.no_grad()
    def from_scratch(
        self, learner: Learner, farzi: FarziData, *, steps: int, seed: int, device: torch.device | str | None = None
    ) -> Parameters:
        """θ_T of a student, trained on the summary as it is now. The student's fresh weights and minibatches depend on `seed`."""
        start = learner.initial_parameters(seed, device)
        return self(learner, farzi.tensors, start=start, steps=steps, seed=seed)

    def inner_loss(self, learner: Learner | LearnerBatch, summary: Tensors, steps: int, seed: int) -> InnerLoss:
        """L_syn(θ) on the minibatch of each of the steps 1 … `steps`, as a function of the summary's tensors, in their order."""
        names, first = tuple(summary), next(iter(summary.values()))
        rows = minibatches(len(first), self.batch_size, steps, seed)
        rows = None if rows is None else rows.to(first.device)

        def loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            tensors = dict(zip(names, inputs, strict=True))
            return learner.soft_loss(
                params, *batch_of(tensors, slice(None) if rows is None else rows[step - 1], self.tau)
            )

        return loss
