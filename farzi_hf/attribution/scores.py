"""Scores of training sequences: the exact influence through the whole training."""

from collections.abc import Callable, Iterable, Mapping

import torch
from torch import Tensor

from farzi_hf.attribution.weighted_training import RowTraining, check_batch
from farzi_hf.data import IGNORED
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.engine import Adjoint, gradients

Test = Mapping[str, Tensor] | Callable[[Parameters], Tensor | Iterable[Tensor]]
"""A test batch, whose mean loss is meant, or a function of θ that returns one loss, or m: a vector, or one after the other."""


def influence(training: RowTraining, test: Test, *, weights: Tensor | None = None, adjoint: Adjoint | None = None) -> Tensor:
    """How much each training sequence lowered the test loss: −∂L_test(θ_T(w)) / ∂w_i, exact through all T steps.

    To first order, the sum over a set of sequences is the rise of the test loss, in nats per token, if these sequences are left out of
    the training and all else stays as it was: the start, and the order of the minibatches. Positive: the sequence helped. Negative: it
    did harm. One training forward and one backward pass give the influence of all n sequences; memory does not grow with n.

    This is the metagradient of Engstrom et al. (2025, arXiv 2503.13751) in the weights of the data, as MAGIC uses it for attribution (Ilyas and
    Engstrom, 2025, arXiv 2504.16430). It predicts real retrainings only where training is smooth: see docs/attribution.md.

    Args:
        training: the model's training, with all its settings.
        test: the loss to explain. A batch (`input_ids`, `labels`, `attention_mask`, each (b, L)) stands for its mean cross-entropy in nats
            per token. A function gets θ_T by name and returns a loss of any unit, or m of them.
        weights: w (n,), where the derivative is taken; None stands for ordinary training, w = 1. With w (n, L) of the sequences' tokens there
            is a score for each token as a target: by w its cross-entropy is multiplied. The first one is never predicted.
        adjoint: how to differentiate; None takes a fast way that needs little memory. With `Reversible()` the memory hardly grows with T.

    Returns:
        A number for each weight, (n,) or (n, L), or m times as many, (m, n), if `test` returns m losses. A sequence that no minibatch has gets
        0. All losses of a vector share one training forward and one backward, see `farzi_hf.engine.gradients`.

    Raises:
        TypeError, ValueError: `weights` has another shape, the test loss is neither a number nor a vector, the test batch has an id outside
            the vocabulary or nothing to predict, or the adjoint cannot do this training.
        FloatingPointError: the training diverged, or its derivative did: a result is not finite.
    """
    of_test = loss_function(training.learner, test)
    with torch.inference_mode(False), torch.enable_grad():  # a derivative is what the caller wants
        w, shape = training.checked(weights).detach().clone().requires_grad_(), (-1,)

        def losses(theta: Parameters) -> Iterable[Tensor]:
            nonlocal shape
            found = of_test(theta)
            if not isinstance(found, Tensor):
                return found
            shape = found.shape
            if len(shape) > 1 or not found.numel():
                raise ValueError(f"test returned losses of shape {tuple(shape)}; return one loss, or a vector")
            return found.reshape(-1)

        how = {"optimizer": training.optimizer, "steps": training.steps, "torch_compile": training.torch_compile}
        _, found = gradients(losses, training.loss, training.start, (w,), adjoint=adjoint, **how)
    found = torch.stack([dw for (dw,) in found]).neg_().view(*shape, *w.shape)
    if not bool(found.isfinite().all()):
        after = f"{training.steps} steps with optimizer={training.optimizer}"
        why = "the training or its derivative diverged; give a smaller learning rate, or Adam a larger eps"
        raise FloatingPointError(f"the influence is not finite after {after}: {why}")
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
