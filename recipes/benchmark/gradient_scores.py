"""Scores of training sequences from single gradients, without the training between them: cheap, and
not exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from farzi_hf.attribution import WeightedTraining
from farzi_hf.attribution.weighted_training import Test, loss_function
from farzi_hf.data import IGNORED
from farzi_hf.distillation import Parameters
from farzi_hf.distillation.learner import leaves

_CHUNK = 64  # sequences whose gradients are in memory at the same time


def gradient_products(
    training: WeightedTraining, test: Test, checkpoints: Sequence[Parameters]
) -> Tensor:
    """TracIn with checkpoints (Pruthi et al., 2020): Σ_k ⟨∇ℓ_i(θ_k), ∇L_test(θ_k)⟩ for each
    training sequence i, (n,).

    ℓ_i is the sum of the cross-entropy over the tokens of sequence i, in nats, as in
    `WeightedTraining`. The learning rate of all checkpoints is taken to be the same. Positive: a
    step on this sequence lowers the test loss.

    Args:
        checkpoints: θ_k at some steps of the training.
    """
    return sum(
        _products(training, theta, _test_gradient(training, test, theta)) for theta in checkpoints
    )


def gradient_cosines(training: WeightedTraining, test: Test, theta: Parameters) -> Tensor:
    """The cosine of ∇ℓ_i(θ) and ∇L_test(θ) for each training sequence i, (n,); 0 where a gradient
    is 0. Costs one gradient per sequence.
    """
    direction = _test_gradient(training, test, theta)
    lengths = torch.zeros_like(training.ones)
    length = torch.sqrt(sum(g.square().sum() for g in direction.values()))
    for i in _predicting(training):
        own = _gradient(training, theta, i[None]).values()
        lengths[i] = torch.sqrt(sum(g.square().sum() for g in own)) * length
    return _products(training, theta, direction) / lengths.clamp_min(
        torch.finfo(lengths.dtype).tiny
    )


@torch.enable_grad()
def _test_gradient(training: WeightedTraining, test: Test, theta: Parameters) -> Parameters:
    theta = leaves(theta)
    return _by_name(loss_function(training.learner, test)(theta), theta)


@torch.enable_grad()
def _products(training: WeightedTraining, theta: Parameters, direction: Parameters) -> Tensor:
    """⟨∇ℓ_i(θ), direction⟩ of all i. With a weight per sequence it is the derivative of ⟨∇ Σ_i w_i
    ℓ_i, direction⟩ in w_i.
    """
    found = torch.zeros_like(training.ones)
    for chosen in _predicting(training).split(_CHUNK):
        w = training.ones[chosen].requires_grad_()
        gradient = _gradient(training, theta, chosen, w)
        product = sum((g * direction[name]).sum() for name, g in gradient.items())
        found[chosen] = torch.autograd.grad(product, w)[0]
    return found


def _predicting(training: WeightedTraining) -> Tensor:
    """The sequences with something to predict. The loss of the others is no number, and their score
    is 0.
    """
    return (training.rows["labels"][:, 1:] != IGNORED).any(1).nonzero()[:, 0]


@torch.enable_grad()
def _gradient(
    training: WeightedTraining, theta: Parameters, chosen: Tensor, w: Tensor | None = None
) -> Parameters:
    """∇ Σ_i w_i ℓ_i of some rows, differentiable in w: of the sum, so that the rows beside it do
    not change a sequence's part.
    """
    theta = leaves(theta)
    batch = training.minibatch(chosen)
    predicted = int((batch["labels"][:, 1:] != IGNORED).sum())
    return _by_name(
        training.learner.hard_loss(theta, batch, w) * predicted, theta, create_graph=w is not None
    )


def _by_name(loss: Tensor, theta: Parameters, create_graph: bool = False) -> Parameters:
    """The gradient in the parameters that train: frozen ones have no part in a score."""
    trained = {name: x for name, x in theta.items() if x.requires_grad}
    found = torch.autograd.grad(
        loss, list(trained.values()), create_graph=create_graph, materialize_grads=True
    )
    return dict(zip(trained, found, strict=True))
