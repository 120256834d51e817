"""An ordinary training on real sequences, as a function of how much each sequence counts; and its
derivative in that, the exact influence.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.nn.functional import pad

from farzi_hf.data import IGNORED
from farzi_hf.distillation import Learner, Parameters
from farzi_hf.distillation.learner import is_constant
from farzi_hf.engine import Adjoint, InnerOptimizer, gradients, train
from farzi_hf.engine.compiled_loop import row_of_step


class RowTraining(ABC):
    """T `steps` of training as a function of how much each of n rows counts. Row i has the weight
    w_i, and ordinary training has w = 1.
    """

    num_rows: int
    steps: int
    learner: Learner
    optimizer: InnerOptimizer
    start: Parameters
    torch_compile: bool = False

    @abstractmethod
    def loss(
        self, params: Parameters, inputs: tuple[Tensor, ...], step: int
    ) -> Tensor | Iterator[Tensor]:
        """The inner loss in the form that `unroll` takes; `inputs` is (w,). Steps count from 1."""

    @property
    def ones(self) -> Tensor:
        """The weights (n,) of ordinary training, of the type of the parameters that train."""
        return next(x for x in self.start.values() if not is_constant(x)).new_ones(self.num_rows)

    def train(self, weights: Tensor | None = None, steps: int | None = None) -> Parameters:
        """θ_T without derivatives, or θ after the first `steps`. The weights are those of
        `checked`.
        """
        settings = {
            "optimizer": self.optimizer,
            "steps": steps or self.steps,
            "torch_compile": self.torch_compile,
        }
        return train(self.loss, self.start, (self.checked(weights),), **settings).params

    def checked(self, weights: Tensor | None) -> Tensor:
        """The weights, (n,) of rows or (n, L) of tokens, as the parameters' type; None: ordinary
        training. ValueError: bad shapes or values.
        """
        if weights is None:
            return self.ones
        if weights.shape[:1] != (self.num_rows,) or weights.dim() > 2:
            raise ValueError(
                f"weights has the shape {tuple(weights.shape)}; give ({self.num_rows},), or (…, L)"
                " for tokens"
            )
        if not bool(weights.isfinite().all()):
            raise ValueError(
                f"weights[{int((~weights.isfinite()).nonzero()[0, 0])}] is not finite; give finite"
                " weights"
            )
        return weights.to(self.ones)

    @staticmethod
    def of_rows(weights: Tensor, rows: Tensor | list[int], batch: Mapping[str, Tensor]) -> Tensor:
        """The weights of some rows (b,), or of the tokens in their batch (b, L)."""
        own = weights[rows]
        return (
            own if own.dim() == 1 else pad(own, (0, batch["labels"].shape[1] - own.shape[1]))
        )  # which may cut


@dataclass(frozen=True, eq=False)
class WeightedTraining(RowTraining):
    """T steps on minibatches of n real sequences. Sequence i has the weight w_i, and ordinary
    training has w = 1.

    The loss of a step is Σ_i w_i ℓ_i / Σ_i n_i over its minibatch, in nats per token: ℓ_i is the
    sum of the cross-entropy over the n_i predicted tokens of sequence i. The denominator does not
    depend on w, so a weight of 0 leaves a sequence out, and all others count as before.

    Args:
        learner: the model as a function of its parameters.
        rows: all training sequences, as a collator makes them: `input_ids` and `labels`, (n, L),
            and `attention_mask` if there is padding. The padding is on the right.
        batches: (T, b), the rows of each step's minibatch. `farzi_hf.data.minibatches` makes it.
        optimizer: of the training.
        start: θ_0, by name.
        torch_compile: whether the steps are compiled, as in `unroll`.

    Raises:
        ValueError: `batches` is not a matrix of row numbers, `rows` has no labels or an id outside
            the vocabulary, its padding is on the left, or a minibatch has nothing to predict.
    """

    learner: Learner
    rows: Mapping[str, Tensor]
    batches: Tensor
    optimizer: InnerOptimizer
    start: Parameters
    torch_compile: bool = False

    def __post_init__(self) -> None:
        check_batch("rows", self.rows, self.learner.vocab_size)
        if (
            self.batches.dim() != 2
            or self.batches.dtype not in (torch.int32, torch.int64)
            or not self.batches.numel()
        ):
            raise ValueError(
                f"batches is {self.batches.dtype} of shape {tuple(self.batches.shape)}; give"
                " integers (T, b)"
            )
        low, high = map(int, torch.aminmax(self.batches))
        if low < 0 or high >= self.num_rows:
            raise ValueError(
                f"batches names the rows {low} to {high}, but rows has 0 to {self.num_rows - 1}"
            )
        predicted = (self.rows["labels"][:, 1:] != IGNORED).sum(1)
        if (empty := (predicted[self.batches] == 0).all(1)).any():
            remedy = f"leave out rows whose labels are all {IGNORED}"
            raise ValueError(
                f"batches[{int(empty.nonzero()[0])}] has only rows without a label to predict;"
                f" {remedy}"
            )
        mask = self.rows.get("attention_mask")
        if mask is not None and (rising := (mask[:, 1:] > mask[:, :-1]).any(1)).any():
            remedy = "pad on the right, as SequenceCollator does"
            raise ValueError(
                f"rows['attention_mask'][{int(rising.nonzero()[0])}] has padding before an id;"
                f" {remedy}"
            )
        if self.torch_compile:  # code for a training of T steps is code for all others
            torch._dynamo.maybe_mark_dynamic(self.batches, 0)

    @property
    def num_rows(self) -> int:
        return len(self.rows["input_ids"])

    @property
    def steps(self) -> int:
        return len(self.batches)

    def minibatch(self, chosen: Tensor) -> dict[str, Tensor]:
        """These rows, without the columns that are padding in all of them. Compiled code keeps
        these, because no shape may depend on values.
        """
        length = None if torch.compiler.is_compiling() else int(self._lengths[chosen].max())
        return {name: x[chosen, :length] for name, x in self.rows.items()}

    def loss(self, params: Parameters, inputs: tuple[Tensor, ...], step: int) -> Tensor:
        (weights,), chosen = inputs, row_of_step(self.batches, step)
        batch = self.minibatch(chosen)
        return self.learner.hard_loss(params, batch, self.of_rows(weights, chosen, batch))

    @cached_property
    def _lengths(self) -> Tensor:
        """(n,), where the numbers of the rows are."""
        return (
            self.rows.get("attention_mask", torch.ones_like(self.rows["input_ids"]))
            .sum(1)
            .to(self.batches.device)
        )


def check_batch(name: str, batch: Mapping[str, Tensor], vocab_size: int) -> None:
    """Raises ValueError unless the batch has ids and labels of a vocabulary of this size, and all
    columns have the shape (n, L).
    """
    if not {"input_ids", "labels"} <= set(batch):
        raise ValueError(
            f"{name} has {', '.join(batch) or 'nothing'}; give input_ids and labels, as"
            " collators do"
        )
    shape = batch["input_ids"].shape
    odd = {column: tuple(x.shape) for column, x in batch.items() if x.shape != shape}
    if odd or len(shape) != 2:
        raise ValueError(
            f"{name} has the shapes {odd or tuple(shape)}; give every column as (n, L), as"
            " collators do"
        )
    labels = batch["labels"]
    for column, ids in (("input_ids", batch["input_ids"]), ("labels", labels[labels != IGNORED])):
        if len(outside := ids[(ids < 0) | (ids >= vocab_size)]):
            raise ValueError(
                f"{name}[{column!r}] holds the id {int(outside[0])}, outside 0 … {vocab_size - 1}"
            )


Test = Mapping[str, Tensor] | Callable[[Parameters], Tensor | Iterable[Tensor]]
"""A test batch, whose mean loss is meant, or a function of θ that returns one loss, or m: a vector,
or one after the other.
"""


def influence(
    training: RowTraining,
    test: Test,
    *,
    weights: Tensor | None = None,
    adjoint: Adjoint | None = None,
) -> Tensor:
    """How much each training sequence lowered the test loss: −∂L_test(θ_T(w)) / ∂w_i, exact through
    all T steps.

    To first order, the sum over a set of sequences is the rise of the test loss, in nats per token,
    if these sequences are left out of the training and all else stays as it was: the start, and the
    order of the minibatches. Positive: the sequence helped. Negative: it did harm. One training
    forward and one backward pass give the influence of all n sequences; memory does not grow with
    n.

    This is the metagradient of Engstrom et al. (2025, arXiv 2503.13751) in the weights of the data,
    as MAGIC uses it for attribution (Ilyas and Engstrom, 2025, arXiv 2504.16430). It predicts real
    retrainings only where training is smooth: see docs/attribution.md.

    Args:
        training: the model's training, with all its settings.
        test: the loss to explain. A batch (`input_ids`, `labels`, `attention_mask`, each (b, L))
            stands for its mean cross-entropy in nats per token. A function gets θ_T by name and
            returns a loss of any unit, or m of them.
        weights: w (n,), where the derivative is taken; None stands for ordinary training, w = 1.
            With w (n, L) of the sequences' tokens there is a score for each token as a target: by w
            its cross-entropy is multiplied. The first one is never predicted.
        adjoint: how to differentiate; None takes a fast way that needs little memory. With
            `Reversible()` the memory hardly grows with T.

    Returns:
        A number for each weight, (n,) or (n, L), or m times as many, (m, n), if `test` returns m
        losses. A sequence that no minibatch has gets
        0. All losses of a vector share one training forward and one backward, see
           `farzi_hf.engine.gradients`.

    Raises:
        TypeError, ValueError: `weights` has another shape, the test loss is neither a number nor a
            vector, the test batch has an id outside the vocabulary or nothing to predict, or the
            adjoint cannot do this training.
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
                raise ValueError(
                    f"test returned losses of shape {tuple(shape)}; return one loss, or a vector"
                )
            return found.reshape(-1)

        how = {
            "optimizer": training.optimizer,
            "steps": training.steps,
            "torch_compile": training.torch_compile,
        }
        _, found = gradients(losses, training.loss, training.start, (w,), adjoint=adjoint, **how)
    found = torch.stack([dw for (dw,) in found]).neg_().view(*shape, *w.shape)
    if not bool(found.isfinite().all()):
        after = f"{training.steps} steps with optimizer={training.optimizer}"
        why = (
            "the training or its derivative diverged; give a smaller learning rate, or Adam a"
            " larger eps"
        )
        raise FloatingPointError(f"the influence is not finite after {after}: {why}")
    return found


def loss_function(learner: Learner, test: Test) -> Callable[[Parameters], Tensor]:
    """The test loss as a function of θ. Raises an error if it is neither a function nor a batch
    with something to predict.
    """
    if callable(test):
        return test
    if not isinstance(test, Mapping):
        raise TypeError(
            f"test is a {type(test).__name__}; give a batch with input_ids and labels, or a"
            " function of θ"
        )
    check_batch("test", test, learner.vocab_size)
    if not (test["labels"][:, 1:] != IGNORED).any():
        raise ValueError(
            f"test has no label to predict: all are {IGNORED}, or sequences have one token; give"
            " others"
        )
    return lambda theta: learner.hard_loss(theta, test)
