"""What the outer loop minimises over the summary: a scalar that is differentiable in the latents and the decoder.

An objective is a function of the learner, the latents (μ, ξ, d), the decoder (d, V), a batch of real sequences and a seed,
of which everything random in it is a function. K learners at once make the mean of K such scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from farzi_hf.data import minibatches
from farzi_hf.engine import Adjoint, InnerLoss, InnerOptimizer, autocast_settings, no_autocast, unroll
from farzi_hf.learner import Learner, LearnerBatch, Parameters
from farzi_hf.seeds import Purpose, stream
from farzi_hf.soft_tokens import soft_tokens
from farzi_hf.trajectories import TrajectoryBank

Batch = Mapping[str, Tensor]
Objective = Callable[[Learner, Tensor, Tensor, Batch, int], Tensor]
"""`objective(learner, latents, decoder, batch, seed)`."""
Starts = Callable[[Learner, int, torch.device], Parameters]
"""`starts(learner, seed, device)`: θ_0, a function of the seed. `farzi_hf.trajectories.PretrainedStarts` is one."""


def random_starts(learner: Learner, seed: int, device: torch.device) -> Parameters:
    """θ_0 as the learner initialises it."""
    return learner.initial_parameters(seed, device)


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
        return unroll(
            self.inner_loss(learner, latents, steps, seed),
            start,
            (latents, decoder),
            optimizer=self.optimizer,
            steps=steps,
            adjoint=self.adjoint,
            window=None if self.window is None else min(self.window, steps),
            torch_compile=self.torch_compile,
        )

    def inner_loss(self, learner: Learner | LearnerBatch, latents: Tensor, steps: int, seed: int) -> InnerLoss:
        """L_syn(θ) on the minibatch of each of the steps 1 … `steps`, as a function of (latents, decoder)."""
        rows = minibatches(len(latents), self.batch_size, steps, seed)
        rows = None if rows is None else rows.to(latents.device)

        def loss(params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
            latents, decoder = inputs
            selected = latents if rows is None else latents[rows[step - 1]]
            return learner.soft_loss(params, soft_tokens(selected, decoder, self.tau))

        return loss


def _together(learner: Learner, size: int) -> Learner | LearnerBatch:
    return learner if size == 1 else learner.batch(size)


@dataclass(frozen=True)
class MetaMatching:
    """E_{θ0} L_D(θ_T(θ0, summary)): the loss on real data of a learner trained on the summary (equation 2; with Ω, 3).

    Args:
        training: the inner loop.
        steps: T.
        steps_min: T is drawn uniformly from steps_min … steps; with a window this is RaT-BPTT (arXiv 2311.07025).
        learners: K, the number of θ0 over which the expectation is averaged, trained at once.
        starts: what draws θ0. The paper's Farzi starts from Ω (`PretrainedStarts`), its MM from `random_starts`.
    """

    training: SyntheticTraining
    steps: int
    steps_min: int
    learners: int = 1
    starts: Starts = random_starts

    def __call__(self, learner: Learner, latents: Tensor, decoder: Tensor, batch: Batch, seed: int) -> Tensor:
        """The outer loss in nats per token, differentiable in latents and decoder. θ0, T and minibatches depend on `seed`."""
        steps = int(stream(seed, Purpose.INNER_STEPS).integers(self.steps_min, self.steps + 1))
        several = _together(learner, self.learners)
        start = several.stack([self.starts(learner, each, latents.device) for each in several.seeds(seed)])
        theta = self.training(several, latents, decoder, start=start, steps=steps, seed=seed)
        return several.hard_loss(theta, batch)


@dataclass(frozen=True)
class GradientMatching:
    """DC (Zhao et al., 2021): the summary's gradient in θ should point where the real data's does.

    Σ over parameter tensors of 1 − cos(∇L_syn(θ_t), ∇L_D(θ_t)), at a learner after t steps on the summary. Of the sum over t
    an outer step takes one term, t drawn uniformly from 0 … T − 1. θ_t is detached, so nothing is differentiated through
    the training, and the adjoint does not matter.

    Args:
        training: the inner loop that leads to θ_t; step t + 1 of it has the synthetic minibatch whose gradient is matched.
        steps: T.
        learners: K, the number of θ_t over which the expectation is averaged.
        starts: what draws θ0.
    """

    training: SyntheticTraining
    steps: int
    learners: int = 1
    starts: Starts = random_starts

    def __call__(self, learner: Learner, latents: Tensor, decoder: Tensor, batch: Batch, seed: int) -> Tensor:
        """The distance, between 0 and twice the number of tensors, differentiable in latents and decoder."""
        taken = int(stream(seed, Purpose.MATCHED_STEP).integers(self.steps))
        several = _together(learner, self.learners)
        theta = several.stack([self.starts(learner, each, latents.device) for each in several.seeds(seed)])
        if taken:
            with torch.no_grad():
                theta = self.training(several, latents, decoder, start=theta, steps=taken, seed=seed)
        theta = {name: x.detach().requires_grad_() for name, x in theta.items()}
        loss = self.training.inner_loss(several, latents, taken + 1, seed)
        synthetic = _gradients(loss(theta, (latents, decoder), taken + 1), theta, create_graph=True)
        real = _gradients(several.hard_loss(theta, batch), theta)
        return _cosine_distances(synthetic, real, several.size).mean()


NEGLIGIBLE = 1e-6
"""Of the norm of a gradient, the share below which that of one tensor is nothing but rounding: it has no direction to match."""


def _gradients(loss: Tensor, theta: Parameters, create_graph: bool = False) -> list[Tensor]:
    leaves = list(theta.values())
    with no_autocast(autocast_settings(tuple(leaves))):  # only the loss is under autocast
        return list(torch.autograd.grad(loss, leaves, create_graph=create_graph, materialize_grads=True))


def _cosine_distances(found: Sequence[Tensor], wanted: Sequence[Tensor], learners: int) -> Tensor:
    """(K,): Σ over tensors of 1 − cos, without those tensors whose wanted gradient is negligible (key biases have none)."""
    found, wanted = ([x.reshape(learners, -1) for x in gradients] for gradients in (found, wanted))
    norms = torch.stack([x.norm(dim=1) for x in wanted])  # (tensors, K)
    matters = norms > NEGLIGIBLE * norms.norm(dim=0)
    cosines = torch.stack([F.cosine_similarity(x, y, dim=1, eps=1e-12) for x, y in zip(found, wanted, strict=True)])
    return torch.where(matters, 1 - cosines, 0.0).sum(dim=0)


@dataclass(frozen=True)
class TrajectoryMatching:
    """MTT (Cazenavette et al., 2022): N steps on the summary should lead where M ≫ N steps on the real data lead.

    ‖θ_N − θ*_M‖² / ‖θ*_0 − θ*_M‖² with θ_0 = θ*_0, a checkpoint of real training, and θ*_M the same training M steps later.
    In the third line of its definition the paper trains the expert on the summary; it has to be the real data. The batch
    of real sequences is not used: they are in the trajectories.

    Args:
        training: the inner loop.
        bank: Ω.
        synthetic_steps: N.
        expert_steps: M, a multiple of the bank's `save_every`.
        learners: K, the number of segments over which the expectation is averaged.
        last_step: the latest step of real training that is a start; None takes all that leave M steps.
    """

    training: SyntheticTraining
    bank: TrajectoryBank
    synthetic_steps: int
    expert_steps: int
    learners: int = 1
    last_step: int | None = None

    def __call__(self, learner: Learner, latents: Tensor, decoder: Tensor, batch: Batch, seed: int) -> Tensor:
        """The normalised distance: 1 where the summary teaches nothing, 0 where it teaches what the real data do."""
        several = _together(learner, self.learners)
        segments = [
            self.bank.segment(each, self.expert_steps, self.last_step, latents.device) for each in several.seeds(seed)
        ]
        start, target = map(several.stack, zip(*segments, strict=True))
        theta = self.training(several, latents, decoder, start=start, steps=self.synthetic_steps, seed=seed)
        left, way = (_squared_distance(x, target, several.size) for x in (theta, start))
        return (left / way).mean()


def _squared_distance(a: Parameters, b: Parameters, learners: int) -> Tensor:
    """(K,)."""
    return torch.stack([(a[name] - b[name]).reshape(learners, -1).square().sum(1) for name in a]).sum(0)
