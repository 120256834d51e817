"""An ordinary training on real sequences, as a function of how much each sequence counts; and its
derivative in that, the exact influence.
"""

from __future__ import annotations

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
    """T steps of training as a function of how much each of n rows counts. Row i has the weight
    w_i, and ordinary training has w = 1.
    """

    num_rows: int
    """n."""
    steps: int
    """T."""
    learner: Learner
    """The model as a function of its parameters."""
    optimizer: InnerOptimizer
    """Of the training."""
    start: Parameters
    """θ_0, by name."""
    torch_compile: bool = False
    """Whether the steps are compiled, as in `unroll`."""

    @abstractmethod
    def loss(
        self, params: Parameters, inputs: tuple[Tensor, ...], step: int
    ) -> Tensor | Iterator[Tensor]:
        """The inner loss in the form that `unroll` takes; `inputs` is (w,). Steps count from 1."""

    @property
    def ones(self) -> Tensor:
        """The weights (n,) of ordinary training, of the type of the parameters that train."""
        trained = next(x for x in self.start.values() if not is_constant(x))
        return trained.new_ones(self.num_rows)

    def train(self, weights: Tensor | None = None, steps: int | None = None) -> Parameters:
        """θ_T without derivatives, or θ after the first `steps`. The weights are those of
        `checked`.
        """
        state = train(
            self.loss,
            self.start,
            (self.checked(weights),),
            optimizer=self.optimizer,
            steps=steps or self.steps,
            torch_compile=self.torch_compile,
        )
        return state.params

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
        is_finite = weights.isfinite()
        if not bool(is_finite.all()):
            first_row = int((~is_finite).nonzero()[0, 0])
            raise ValueError(f"weights[{first_row}] is not finite; give finite weights")
        return weights.to(self.ones)

    @staticmethod
    def of_rows(weights: Tensor, rows: Tensor | list[int], batch: Mapping[str, Tensor]) -> Tensor:
        """The weights of some rows (b,), or of the tokens in their batch (b, L)."""
        chosen = weights[rows]
        if chosen.dim() == 1:
            return chosen
        length = batch["labels"].shape[1]
        return pad(chosen, (0, length - chosen.shape[1]))  # a negative number cuts


@dataclass(frozen=True, eq=False)
class WeightedTraining(RowTraining):
    """T steps on minibatches of n real sequences. Sequence i has the weight w_i, and ordinary
    training has w = 1.

    The loss of a step is Σ_i w_i ℓ_i / Σ_i n_i over its minibatch, in nats per token: ℓ_i is the
    sum of the cross-entropy over the n_i predicted tokens of sequence i. The denominator does not
    depend on w, so a weight of 0 leaves a sequence out, and all others count as before.

    Raises:
        ValueError: `batches` is not a matrix of row numbers, `rows` has no labels or an id outside
            the vocabulary, its padding is on the left, or a minibatch has nothing to predict.
    """

    learner: Learner
    """The model as a function of its parameters."""
    rows: Mapping[str, Tensor]
    """All training sequences, as a collator makes them: `input_ids` and `labels`, (n, L), and
    `attention_mask` if there is padding. The padding is on the right.
    """
    batches: Tensor
    """(T, b), the rows of each step's minibatch. `farzi_hf.data.minibatches` makes it."""
    optimizer: InnerOptimizer
    """Of the training."""
    start: Parameters
    """θ_0, by name."""
    torch_compile: bool = False
    """Whether the steps are compiled, as in `unroll`."""

    def __post_init__(self) -> None:
        check_batch("rows", self.rows, self.learner.vocab_size)
        self._check_batches()
        self._check_padding()
        if self.torch_compile:  # code for a training of T steps is code for all others
            torch._dynamo.maybe_mark_dynamic(self.batches, 0)

    def _check_batches(self) -> None:
        batches = self.batches
        is_matrix = batches.dim() == 2 and batches.numel() > 0
        if not is_matrix or batches.dtype not in (torch.int32, torch.int64):
            raise ValueError(
                f"batches is {batches.dtype} of shape {tuple(batches.shape)}; give integers (T, b)"
            )
        low, high = map(int, torch.aminmax(batches))
        if low < 0 or high >= self.num_rows:
            raise ValueError(
                f"batches names the rows {low} to {high}, but rows has 0 to {self.num_rows - 1}"
            )
        predicted = (self.rows["labels"][:, 1:] != IGNORED).sum(1)
        is_empty = (predicted[batches] == 0).all(1)
        if is_empty.any():
            first = int(is_empty.nonzero()[0])
            raise ValueError(
                f"batches[{first}] has only rows without a label to predict; leave out rows whose"
                f" labels are all {IGNORED}"
            )

    def _check_padding(self) -> None:
        mask = self.rows.get("attention_mask")
        if mask is None:
            return
        rises = (mask[:, 1:] > mask[:, :-1]).any(1)
        if rises.any():
            first = int(rises.nonzero()[0])
            raise ValueError(
                f"rows['attention_mask'][{first}] has padding before an id; pad on the right, as"
                " SequenceCollator does"
            )

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
        (weights,) = inputs
        chosen = row_of_step(self.batches, step)
        batch = self.minibatch(chosen)
        return self.learner.hard_loss(params, batch, self.of_rows(weights, chosen, batch))

    @cached_property
    def _lengths(self) -> Tensor:
        """(n,), where the numbers of the rows are."""
        mask = self.rows.get("attention_mask")
        if mask is None:
            mask = torch.ones_like(self.rows["input_ids"])
        return mask.sum(1).to(self.batches.device)


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
    others = {column: tuple(x.shape) for column, x in batch.items() if x.shape != shape}
    if others or len(shape) != 2:
        raise ValueError(
            f"{name} has the shapes {others or tuple(shape)}; give every column as (n, L), as"
            " collators do"
        )
    labels = batch["labels"]
    for column, ids in (("input_ids", batch["input_ids"]), ("labels", labels[labels != IGNORED])):
        outside = ids[(ids < 0) | (ids >= vocab_size)]
        if len(outside):
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
        losses. A sequence that no minibatch has gets zero. All losses share one training forward
        and one backward, see `farzi_hf.engine.gradients`.

    Raises:
        TypeError, ValueError: `weights` has another shape, the test loss is neither a number nor a
            vector, the test batch has an id outside the vocabulary or nothing to predict, or the
            adjoint cannot do this training.
        FloatingPointError: the training diverged, or its derivative did: a result is not finite.
    """
    if not isinstance(training, RowTraining):
        raise TypeError(
            f"training is a {type(training).__name__}; give a WeightedTraining, or a stock Trainer"
            " to farzi_hf.attribution.attribute"
        )
    test_loss = loss_function(training.learner, test)
    is_one_loss = False

    def losses(theta: Parameters) -> Iterable[Tensor]:
        nonlocal is_one_loss
        value = test_loss(theta)
        if not isinstance(value, Tensor):
            return value
        if value.dim() > 1 or not value.numel():
            raise ValueError(
                f"test returned losses of shape {tuple(value.shape)}; return one loss, or a vector"
            )
        is_one_loss = value.dim() == 0
        return value.reshape(-1)

    # A derivative is what the caller wants, whatever he has turned off.
    with torch.inference_mode(False), torch.enable_grad():
        w = training.checked(weights).detach().clone().requires_grad_()
        of_losses = gradients(
            losses,
            training.loss,
            training.start,
            (w,),
            optimizer=training.optimizer,
            steps=training.steps,
            adjoint=adjoint,
            torch_compile=training.torch_compile,
        )
    scores = torch.stack([dw for (dw,) in of_losses.derivatives]).neg_()
    if is_one_loss:
        scores = scores[0]
    if not bool(scores.isfinite().all()):
        raise FloatingPointError(
            f"the influence is not finite after {training.steps} steps with"
            f" optimizer={training.optimizer}: the training or its derivative diverged; give a"
            " smaller learning rate, or Adam a larger eps"
        )
    return scores


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
