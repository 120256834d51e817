"""The influence of every training sequence on a test loss: the exact derivative through the whole training."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from farzi_hf.attribution.weighted_training import WeightedTraining
from farzi_hf.data import IGNORED
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.engine import Adjoint

Test = Mapping[str, Tensor] | Callable[[Parameters], Tensor]
"""A test batch, whose mean loss is meant, or a function of θ that returns one loss or a vector of m losses."""


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
        adjoint: how to differentiate; None takes the fastest way that fits into memory, as `unroll` does. With `Reversible()` the memory
            hardly grows with T.

    Returns:
        (n,), or (m, n) if `test` returns m losses. A sequence that no minibatch has gets 0. Each loss of a vector after the first
        costs one more training forward and backward.

    Raises:
        TypeError, ValueError: `weights` has another shape, the test loss is neither a number nor a vector, does not depend on θ, or the
            test batch has nothing to predict, or the adjoint cannot do this training.
        FloatingPointError: the training diverged, or its derivative did: a result is not finite.
    """
    of_test = loss_function(training.learner, test)
    with torch.inference_mode(False), torch.enable_grad():  # a derivative is what the caller wants
        w = training.checked(weights).detach().clone().requires_grad_()
        losses = of_test(training.unroll(w, adjoint))
        _check_losses(losses)
        rows = [torch.autograd.grad(loss, w, retain_graph=True)[0].neg() for loss in losses.reshape(-1)]
    found = torch.stack(rows).view(*losses.shape, -1)
    if not bool(found.isfinite().all()):
        raise FloatingPointError(
            f"the influence is not finite after {training.steps} steps with optimizer={training.optimizer}: the training or its "
            "derivative diverged; give a smaller learning rate, or Adam a larger eps"
        )
    return found


def loss_function(learner: Learner, test: Test) -> Callable[[Parameters], Tensor]:
    """The test loss as a function of θ. Raises ValueError if a test batch has nothing to predict."""
    if callable(test):
        return lambda theta: _checked_loss(test(theta))
    if not {"input_ids", "labels"} <= set(test):
        raise ValueError(f"test has {', '.join(test) or 'nothing'}; give input_ids and labels, as collators do")
    if not (test["labels"][:, 1:] != IGNORED).any():
        raise ValueError(f"test has no label to predict: all are {IGNORED}, or sequences have one token; give others")
    return lambda theta: learner.hard_loss(theta, test)


def _checked_loss(loss: Tensor) -> Tensor:
    if not isinstance(loss, Tensor):
        raise TypeError(f"test returned {type(loss).__name__} {str(loss)[:60]!r}; return a tensor, the loss of θ")
    return loss


def _check_losses(losses: Tensor) -> None:
    if losses.dim() > 1 or not losses.numel():
        raise ValueError(f"test returned losses of shape {tuple(losses.shape)}; return one loss, or a vector of losses")
    if not losses.requires_grad:
        raise ValueError(
            "test returned a loss that does not depend on θ; compute it from its argument, without no_grad"
        )
