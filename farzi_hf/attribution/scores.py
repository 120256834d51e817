"""Scores of training sequences: the exact influence through the whole training, and cheap scores from single gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from farzi_hf.attribution.weighted_training import WeightedTraining, check_batch
from farzi_hf.data import IGNORED
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.distillation.learner import leaves
from farzi_hf.engine import Adjoint

Test = Mapping[str, Tensor] | Callable[[Parameters], Tensor]
"""A test batch, whose mean loss is meant, or a function of θ that returns one loss or a vector of m losses."""
_CHUNK = 64  # sequences whose gradients are in memory at the same time


def influence(
    training: WeightedTraining, test: Test, *, weights: Tensor | None = None, adjoint: Adjoint | None = None
) -> Tensor:
    """How much each training sequence lowered the test loss: −∂L_test(θ_T(w)) / ∂w_i, exact through all T steps.

    To first order, the sum over a set of sequences is the rise of the test loss, in nats per token, if these sequences are left out of
    the training and all else stays as it was: the start, and the order of the minibatches. Positive: the sequence helped. Negative: it
    did harm. One training forward and one backward pass give the influence of all n sequences; memory does not grow with n.

    This is the metagradient of Engstrom et al. (2025, arXiv 2503.13751) in the weights of the data, as MAGIC uses it for attribution
    (Ilyas and Engstrom, 2025, arXiv 2504.16430). It predicts real retrainings only where training is smooth: see
    `farzi_hf.attribution.metasmoothness`.

    Args:
        training: the model's training, with all its settings.
        test: the loss to explain. A batch (`input_ids`, `labels`, `attention_mask`, each (b, L)) stands for its mean cross-entropy in nats
            per token. A function gets θ_T by name and returns a loss of any unit, or a vector (m,) of losses.
        weights: w (n,), where the derivative is taken; None stands for ordinary training, w = 1.
        adjoint: how to differentiate; None takes a fast way that needs little memory. With `Reversible()` the memory hardly grows with T.

    Returns:
        (n,), or (m, n) if `test` returns m losses. A sequence that no minibatch has gets 0. All losses of a vector share one training
        forward and one backward, see `farzi_hf.engine.gradients`.

    Raises:
        TypeError, ValueError: `weights` has another shape, the test loss is neither a number nor a vector, the test batch has an id outside
            the vocabulary or nothing to predict, or the adjoint cannot do this training.
        FloatingPointError: the training diverged, or its derivative did: a result is not finite.
    """
    of_test = loss_function(training.learner, test)
    with torch.inference_mode(False), torch.enable_grad():  # a derivative is what the caller wants
        w, shape = training.checked(weights).detach().clone().requires_grad_(), torch.Size()

        def losses(theta: Parameters) -> Tensor:
            nonlocal shape
            found = of_test(theta)
            shape = found.shape
            if len(shape) > 1 or not found.numel():
                raise ValueError(
                    f"test returned losses of shape {tuple(shape)}; return one loss, or a vector of losses"
                )
            return found.reshape(-1)

        _, found = training.gradients(losses, w, adjoint)
    found = torch.stack([dw for (dw,) in found]).neg_().view(*shape, -1)
    if not bool(found.isfinite().all()):
        raise FloatingPointError(
            f"the influence is not finite after {training.steps} steps with optimizer={training.optimizer}: the training or its "
            "derivative diverged; give a smaller learning rate, or Adam a larger eps"
        )
    return found


def loss_function(learner: Learner, test: Test) -> Callable[[Parameters], Tensor]:
    """The test loss as a function of θ. Raises an error if it is neither a function nor a batch with something to predict."""
    if callable(test):
        return test
    if not isinstance(test, Mapping):
        raise TypeError(f"test is a {type(test).__name__}; give a batch with input_ids and labels, or a function of θ")
    check_batch("test", test, learner.vocab_size)
    if not (test["labels"][:, 1:] != IGNORED).any():
        raise ValueError(f"test has no label to predict: all are {IGNORED}, or sequences have one token; give others")
    return lambda theta: learner.hard_loss(theta, test)


# -- single gradients, without the training between them: cheap, and not exact ---------------------------------------


def gradient_products(training: WeightedTraining, test: Test, checkpoints: Sequence[Parameters]) -> Tensor:
    """TracIn with checkpoints (Pruthi et al., 2020): Σ_k ⟨∇ℓ_i(θ_k), ∇L_test(θ_k)⟩ for each training sequence i, (n,).

    ℓ_i is the sum of the cross-entropy over the tokens of sequence i, in nats, as in `WeightedTraining`. The learning rate of all
    checkpoints is taken to be the same. Positive: a step on this sequence lowers the test loss.

    Args:
        checkpoints: θ_k at some steps of the training.
    """
    return sum(_products(training, theta, _test_gradient(training, test, theta)) for theta in checkpoints)


def gradient_cosines(training: WeightedTraining, test: Test, theta: Parameters) -> Tensor:
    """The cosine of ∇ℓ_i(θ) and ∇L_test(θ) for each training sequence i, (n,); 0 where a gradient is 0. Costs one gradient per sequence."""
    direction = _test_gradient(training, test, theta)
    lengths, length = torch.zeros_like(training.ones), torch.sqrt(sum(g.square().sum() for g in direction.values()))
    for i in _predicting(training):
        own = _gradient(training, theta, i[None]).values()
        lengths[i] = torch.sqrt(sum(g.square().sum() for g in own)) * length
    return _products(training, theta, direction) / lengths.clamp_min(torch.finfo(lengths.dtype).tiny)


@torch.enable_grad()
def _test_gradient(training: WeightedTraining, test: Test, theta: Parameters) -> Parameters:
    theta = leaves(theta)
    return _by_name(loss_function(training.learner, test)(theta), theta)


@torch.enable_grad()
def _products(training: WeightedTraining, theta: Parameters, direction: Parameters) -> Tensor:
    """⟨∇ℓ_i(θ), direction⟩ of all i. With a weight per sequence it is the derivative of ⟨∇ Σ_i w_i ℓ_i, direction⟩ in w_i."""
    found = torch.zeros_like(training.ones)
    for chosen in _predicting(training).split(_CHUNK):
        w = training.ones[chosen].requires_grad_()
        gradient = _gradient(training, theta, chosen, w)
        product = sum((g * direction[name]).sum() for name, g in gradient.items())
        found[chosen] = torch.autograd.grad(product, w)[0]
    return found


def _predicting(training: WeightedTraining) -> Tensor:
    """The sequences with something to predict. The loss of the others is no number, and their score is 0."""
    return (training.rows["labels"][:, 1:] != IGNORED).any(1).nonzero()[:, 0]


@torch.enable_grad()
def _gradient(training: WeightedTraining, theta: Parameters, chosen: Tensor, w: Tensor | None = None) -> Parameters:
    """∇ Σ_i w_i ℓ_i of some rows, differentiable in w: of the sum, so that the rows beside it do not change a sequence's part."""
    theta, batch = leaves(theta), training.minibatch(chosen)
    predicted = int((batch["labels"][:, 1:] != IGNORED).sum())
    return _by_name(training.learner.hard_loss(theta, batch, w) * predicted, theta, create_graph=w is not None)


def _by_name(loss: Tensor, theta: Parameters, create_graph: bool = False) -> Parameters:
    """The gradient in the parameters that train: frozen ones have no part in a score."""
    trained = {name: x for name, x in theta.items() if x.requires_grad}
    found = torch.autograd.grad(loss, list(trained.values()), create_graph=create_graph, materialize_grads=True)
    return dict(zip(trained, found, strict=True))
