"""Ways to choose rows of a pool for a target: cheap ones that look at words or at one gradient, and
weights that are learnt through whole trainings.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, NamedTuple, TypeVar

import numpy as np
import torch
from datasets import Dataset as HFDataset
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from farzi_hf.attribution.outer_steps import (
    LARGEST,
    Learnt,
    RowWeights,
    Weighing,
    cost_of_steps,
    highest_weights,
    influence_of,
    outer_steps,
)
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.distillation import Parameters
from farzi_hf.distillation.learner import is_constant
from farzi_hf.tasks.counted_text import KneserNey

_SMOOTHING = 1.0
"""What is added to each count of an n-gram."""
_ORDER = 3
"""The longest n-grams of counted models."""
_WARM = 1_000_000
"""The number of the training at whose end gradients are compared: no other has it."""


Way = TypeVar("Way", bound="Chooser")


@dataclass(frozen=True, eq=False)
class SelectionProblem:
    """What rows are chosen from, and for what."""

    trainings: Trainings
    """Of the rows of the pool, as they are trained in the end."""
    targets: Mapping[str, Dataset]
    """Rows of what is to be predicted well."""
    keep: int
    """How many rows stay."""
    smooth: Trainings
    """The same trainings, smooth enough to be differentiated."""
    folder: Path | None = None
    """For the state of outer steps; None keeps none."""
    progress: tqdm | None = None
    """A bar that counts gradients of steps; None: each way shows its own, if any."""
    _scores: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """(n,) by the name of a way: several ways begin with the scores of the same one."""
    _scores_of_targets: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """(m, n), likewise."""
    _dev_losses: dict[str, float] = field(default_factory=dict, repr=False)
    """By the name of a way: the mean loss of models that were trained on what it chose."""
    _choices: dict[str, tuple[Tensor, float]] = field(default_factory=dict, repr=False)
    """By the name of a way: the shares of reading (n,) that it chose, and the seconds it took."""
    _gradients: list[RowGradients] = field(default_factory=list, repr=False)
    """Of the rows, once they were asked for."""
    _features: dict[tuple[str, ...], Tensor] = field(default_factory=dict, repr=False)
    """By the names of the cheap ways among them: what is known of the rows, (k, n)."""

    @property
    def steps(self) -> int:
        """T, of a training."""
        return self.trainings.replay.steps

    @property
    def num_rows(self) -> int:
        """n, of the pool."""
        return self.trainings.num_rows

    @property
    def vocab_size(self) -> int:
        """V."""
        return self.trainings.replay.learner.vocab_size

    def scores(self, way: Ranked) -> Tensor:
        """(n,): what a way says of the rows. It is asked once."""
        if way.name in self._scores:
            self.counted(way.cost(self))
        else:
            self._scores[way.name] = way.scores(self)
        return self._scores[way.name]

    def scores_of_targets(self, way: Ranked) -> Tensor:
        """(m, n): what a way says of the rows for each target alone. It is asked once."""
        if len(self.targets) == 1:
            return self.scores(way)[None]
        if way.name not in self._scores_of_targets:
            self._scores_of_targets[way.name] = way.scores_of_targets(self)
        return self._scores_of_targets[way.name]

    def weights(self, way: Chooser) -> Tensor:
        """(n,): the shares of reading that a way chooses. It is asked once."""
        if way.name in self._choices:
            self.counted(way.cost(self))
        else:
            begin = time.perf_counter()
            weights = way.weights(self)
            self.note_choice(way.name, weights, time.perf_counter() - begin)
        return self._choices[way.name][0]

    def seconds(self, way: str) -> float:
        """How long the choice of the way of this name took."""
        return self._choices[way][1]

    @cached_property
    def warm(self) -> Parameters:
        """θ of a model that a whole training on random rows has warmed up."""
        return self.trainings.training(torch.ones(self.num_rows), _WARM).train()

    def gradients(self) -> RowGradients:
        """What the gradients of the rows say at that model. They are taken once."""
        if self._gradients:
            self.counted(self.num_rows)
        else:
            self._gradients.append(RowGradients.of(self))
        return self._gradients[0]

    def features(
        self, cheap: Sequence[Ranked], make: Callable[[SelectionProblem, Sequence[Ranked]], Tensor]
    ) -> Tensor:
        """(k, n): what is known of the rows beforehand, with the scores of these ways. It is made
        once.
        """
        names = tuple(way.name for way in cheap)
        if names in self._features:
            self.counted(self.cost_of_features(cheap))
        else:
            self._features[names] = make(self, cheap)
        return self._features[names]

    def cost_of_features(self, cheap: Sequence[Ranked]) -> int:
        """What they cost, in gradients of a step: the scores, a gradient and the losses of a row."""
        return sum(way.cost(self) for way in cheap) + 2 * self.num_rows

    def note_choice(self, way: str, weights: Tensor, seconds: float) -> None:
        """Notes what the way of this name chose, (n,), and how long that took."""
        self._choices[way] = (weights, seconds)

    def outer_steps(self, begin: Learnt, steps: int, name: str) -> Weighing:
        """The weights that a way of this name learns; its steps are kept."""
        folder = None if self.folder is None else self.folder / name.replace(", ", "-")
        return outer_steps(
            self.smooth, self.targets, begin, steps, folder=folder, progress=self.progress
        )

    def alone(self, target: str) -> SelectionProblem:
        """The same for one of the targets."""
        return replace(
            self,
            targets={target: self.targets[target]},
            _scores={},
            _scores_of_targets={},
            _dev_losses={},
            _choices={},
            _gradients=[],
            _features={},
        )

    def best(self, ways: Sequence[Way]) -> Way:
        """Of some ways the one that was the best on the target's dev part. It has to be measured
        before; of ways that were not, the first.
        """
        return min(ways, key=lambda way: self.dev_loss(way.name))

    def note_dev_losses(self, way: str, losses: Sequence[float]) -> None:
        """Notes how good models trained on the rows of a way are on the target's dev part: the loss
        of each model, in nats per token.
        """
        self._dev_losses[way] = float(np.mean(losses))

    def dev_loss(self, way: str) -> float:
        """The mean of these losses; infinity where the way has not been measured."""
        return self._dev_losses.get(way, math.inf)

    def counted(self, gradients: int = 1) -> None:
        """Tells the bar of so many gradients that were taken."""
        if self.progress is not None:
            self.progress.update(gradients)

    def rows_of_targets(self) -> list[list[int]]:
        """The ids of all rows of the targets."""
        queries = Targets(self.trainings.replay, self.targets)
        return [ids for query in range(len(queries)) for ids in queries.ids(query)]


class Chooser(ABC):
    """A way to choose rows."""

    name: str
    """What tables call it."""
    is_cheap: bool
    """Whether it takes no training that is differentiated."""
    identity: str = ""
    """Of what its choice depends on beside its name and the problem."""
    prior: Chooser | None = None
    """Whose choice it begins with; None where it begins with all rows, or with none."""

    @abstractmethod
    def weights(self, problem: SelectionProblem) -> Tensor:
        """(n,): the shares of reading; 0 leaves a row out."""

    def cost(self, problem: SelectionProblem) -> int:
        """What it costs, in gradients of a step; 0 where nothing is trained."""
        return 0

    def seconds(self, problem: SelectionProblem) -> float:
        """What its choice took, which the problem has asked for before."""
        return problem.seconds(self.name)

    def begins_with(self, problem: SelectionProblem) -> str:
        """The way that it begins with, where its name does not say which of several that is; else
        nothing.
        """
        return "" if self.prior is None else self.prior.begins_with(problem)


class AllRows(Chooser):
    """All rows, each as often as any other."""

    name = "all rows"
    is_cheap = True

    def weights(self, problem: SelectionProblem) -> Tensor:
        return torch.ones(problem.num_rows)


class RandomRows(Chooser):
    """Rows that are drawn blindly."""

    name = "random rows"
    is_cheap = True

    def weights(self, problem: SelectionProblem) -> Tensor:
        draw = stream(problem.trainings.seed, Purpose.CHOSEN_ROWS, 0)
        weights = torch.zeros(problem.num_rows)
        weights[draw.permutation(problem.num_rows)[: problem.keep]] = 1
        return weights


class Ranked(Chooser):
    """The rows with the highest scores, each as often as any other."""

    @abstractmethod
    def scores(self, problem: SelectionProblem) -> Tensor:
        """(n,): the higher, the sooner a row is chosen."""

    def scores_of_targets(self, problem: SelectionProblem) -> Tensor:
        """(m, n): the scores for each target alone."""
        return torch.stack([self.scores(problem.alone(target)) for target in problem.targets])

    def weights(self, problem: SelectionProblem) -> Tensor:
        return highest(problem.scores(self), problem.keep)


class SharesOf(Chooser):
    """Shares of reading that follow scores: e to the power for each standard deviation.

    Attributes:
        kind: of what there is a share each, for the name.
        way: whose scores; those that are known already are not made again.
        power: of e. 1 follows the scores with care, 2 and more trust them.
    """

    kind: ClassVar[str]
    way: Ranked
    power: float

    @property
    def name(self) -> str:
        power = "" if self.power == 1 else f", power {self.power:g}"
        return f"shares of {self.kind} by {self.way.name}{power}"

    @property
    def is_cheap(self) -> bool:
        return self.way.is_cheap

    def cost(self, problem: SelectionProblem) -> int:
        return self.way.cost(problem)


def highest(scores: Tensor, keep: int) -> Tensor:
    """(n,): 1 for the highest scores, and 0 for the others. Of equal ones the first."""
    weights = torch.zeros(len(scores))
    weights[scores.argsort(descending=True, stable=True)[:keep]] = 1
    return weights


class NGramImportance(Ranked):
    """How much likelier the unigrams and bigrams of a row are among the target's than among the
    pool's: the mean log-ratio of an n-gram. As DSIR (Xie et al., 2023, arXiv 2302.03169) but for
    three things: n-grams are not hashed, a long row is not the sum of its n-grams, and the highest
    rows are taken without a draw.
    """

    name = "n-gram importance"
    is_cheap = True

    def scores(self, problem: SelectionProblem) -> Tensor:
        return ngram_importance(problem.trainings.ids, problem.rows_of_targets())


def ngram_importance(
    rows: Sequence[Sequence[int]], wanted: Sequence[Sequence[int]], *, are_whole: bool = True
) -> Tensor:
    """(n,): the score of each row, see `NGramImportance`.

    Args:
        rows: the ids of the rows of a pool.
        wanted: those of the rows of the target.
        are_whole: whether they begin and end with ids that all rows have there, which say nothing.
    """
    of_pool = [_ngrams(ids, are_whole) for ids in rows]
    of_target: Counter = Counter()
    for ids in wanted:
        of_target.update(_ngrams(ids, are_whole))
    there: Counter = Counter()
    for ngrams in of_pool:
        there.update(ngrams)
    kinds = len(there | of_target)
    totals = (of_target.total() + _SMOOTHING * kinds, there.total() + _SMOOTHING * kinds)

    def log_ratio(ngram: tuple[int, ...]) -> float:
        of_wanted = (of_target[ngram] + _SMOOTHING) / totals[0]
        return float(np.log(of_wanted * totals[1] / (there[ngram] + _SMOOTHING)))

    ratios = {ngram: log_ratio(ngram) for ngram in there}
    return torch.tensor([sum(map(ratios.get, ngrams)) / max(len(ngrams), 1) for ngrams in of_pool])


def _ngrams(ids: Sequence[int], are_whole: bool) -> list[tuple[int, ...]]:
    """Unigrams and bigrams; of whole rows without the unigrams that begin and end all of them."""
    alone = ids[1:-1] if are_whole else ids
    return [*((i,) for i in alone), *pairwise(ids)]


class CrossEntropyDifference(Ranked):
    """By how many nats a token is likelier in a counted model of the target than in one of as many
    rows of the pool (Moore & Lewis, 2010, "Intelligent selection of language model training data").
    Each half of the pool is scored by a model of rows of the other half, so that no row is scored
    by a model that has counted it.
    """

    name = "cross-entropy difference"
    is_cheap = True

    def scores(self, problem: SelectionProblem) -> Tensor:
        rows = problem.trainings.ids
        wanted = problem.rows_of_targets()
        of_target = counted_model(wanted, problem.vocab_size)
        scores = torch.zeros(len(rows))
        for half, other in halves(problem, 1):
            of_pool = counted_model([rows[i] for i in other[: len(wanted)]], problem.vocab_size)
            scored = [rows[i] for i in half]
            differences = [
                float((ours - theirs).mean()) if len(ours) else -np.inf
                for ours, theirs in zip(
                    of_target.log_probabilities(scored),
                    of_pool.log_probabilities(scored),
                    strict=True,
                )
            ]
            scores[torch.from_numpy(half)] = torch.tensor(differences)
        return scores


def halves(problem: SelectionProblem, number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Twice the numbers of the rows of one half of the pool, and those of the other half, by which
    the first can be judged. Equal numbers of such pairs have equal halves.
    """
    draw = stream(problem.trainings.seed, Purpose.CHOSEN_ROWS, number)
    first, second = np.array_split(draw.permutation(problem.num_rows), 2)
    yield first, second
    yield second, first


def counted_model(rows: Sequence[Sequence[int]], vocab_size: int, order: int = _ORDER) -> KneserNey:
    """The n-grams of rows of ids, up to this length."""
    dataset = HFDataset.from_dict({"input_ids": [list(row) for row in rows]})
    return KneserNey.longest(dataset, vocab_size, order)


class GradientCosine(Ranked):
    """The cosine of a row's gradient and the target's, at a model that random rows have warmed up
    for a whole training. As LESS (Xia et al., 2024, arXiv 2402.04333) but for two things: gradients
    are whole, not projected, and Adam's preconditioner is left out.
    """

    name = "gradient cosine"
    is_cheap = True

    def cost(self, problem: SelectionProblem) -> int:
        return problem.steps + problem.num_rows

    def scores(self, problem: SelectionProblem) -> Tensor:
        return problem.gradients().cosines


class RowGradients(NamedTuple):
    """What the gradients of rows say at a model that random rows have warmed up."""

    cosines: Tensor
    """(n,), with the gradient of the targets."""
    norms: Tensor
    """(n,)."""

    @classmethod
    def of(cls, problem: SelectionProblem) -> RowGradients:
        """Those of the rows of a problem."""
        theta = problem.warm
        training = problem.trainings.replay
        queries = Targets(training, problem.targets)
        wanted = 0
        for query in range(len(queries)):
            leaves = _leaves(theta)
            wanted = wanted + _flat(queries.loss({**theta, **leaves}, query), leaves)
        wanted = wanted / wanted.norm()
        cosines = []
        norms = []
        for row in range(problem.num_rows):
            leaves = _leaves(theta)
            batch = training.batch(training.loader, [row])
            gradient = _flat(training.learner.hard_loss({**theta, **leaves}, batch), leaves)
            norm = gradient.norm()
            cosines.append(float(gradient @ wanted / norm.clamp(min=1e-30)))
            norms.append(float(norm))
            problem.counted()
        return cls(torch.tensor(cosines), torch.tensor(norms))


def _leaves(theta: Parameters) -> Parameters:
    return {name: x.detach().requires_grad_() for name, x in theta.items() if not is_constant(x)}


def _flat(loss: Tensor, leaves: Parameters) -> Tensor:
    """The gradient, as one vector."""
    gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
    return torch.cat([x.flatten() for x in gradients])


@dataclass(frozen=True)
class BestOf(Ranked):
    """The scores of that way whose rows were the best on the target's dev part. It has to be
    measured before; of ways that were not, the first is taken.
    """

    ways: tuple[Ranked, ...]
    """To choose from."""
    name = "the best cheap way"
    is_cheap = True

    def cost(self, problem: SelectionProblem) -> int:
        """At most, because nobody knows beforehand which way it is."""
        return max(way.cost(problem) for way in self.ways)

    def begins_with(self, problem: SelectionProblem) -> str:
        return problem.best(self.ways).name

    def scores(self, problem: SelectionProblem) -> Tensor:
        best = problem.best(self.ways)
        problem.counted(self.cost(problem) - best.cost(problem))
        return problem.scores(best)


class InfluenceOfOne(Ranked):
    """The exact influence of a row on the target in one training, for each time it was read. Rows
    that it did not read have the mean.
    """

    name = "influence in one training"
    is_cheap = False

    def cost(self, problem: SelectionProblem) -> int:
        return cost_of_steps(problem.smooth, problem.targets, 1)

    def scores(self, problem: SelectionProblem) -> Tensor:
        scores, reads = self._measured(problem)
        return _per_read(scores.mean(0), reads)

    def scores_of_targets(self, problem: SelectionProblem) -> Tensor:
        scores, reads = self._measured(problem)  # one training has those of all targets
        return torch.stack([_per_read(each, reads) for each in scores])

    def _measured(self, problem: SelectionProblem) -> tuple[Tensor, Tensor]:
        """The scores (m, n), and the reads (n,)."""
        begin = RowWeights(torch.ones(problem.num_rows))
        scored, reads = influence_of(
            problem.smooth, problem.targets, begin, 0, progress=problem.progress
        )
        return scored.scores, reads


def _per_read(scores: Tensor, reads: Tensor) -> Tensor:
    """(n,): scores for each time that a row was read; rows that were not have the mean."""
    per_read = scores / reads.clamp(min=1)
    return torch.where(reads > 0, per_read, per_read[reads > 0].mean())


@dataclass(frozen=True)
class CalibratedScores(Ranked):
    """Cheap scores, combined so that they predict the influence of a row, which some trainings
    measure; and of what they do not predict as much as the trainings agree on.

    A row is read once or twice in a training, so its own influence is mostly noise. But thousands
    of rows say together how much each cheap score is worth for this target. The influence of a row
    for each read, in standard deviations, is regressed (by least squares, weighted by reads) on the
    ranks of the cheap scores, their squares and their products. What is left of a row is multiplied
    by τ² / (τ² + σ² / r): r is how often it was read, σ² the variance of one read, and τ² that of
    the rows themselves, which is the covariance of two trainings. With a single training it is left
    out.

    Args:
        cheap: the ways whose scores are combined.
        trainings: how many measure.
    """

    cheap: tuple[Ranked, ...]
    trainings: int = 2
    is_cheap = False

    @property
    def name(self) -> str:
        times = "once" if self.trainings == 1 else f"{self.trainings} times"
        return f"cheap scores, calibrated by influence {times}"

    def cost(self, problem: SelectionProblem) -> int:
        of_cheap = sum(each.cost(problem) for each in self.cheap)
        return of_cheap + self.trainings * cost_of_steps(problem.smooth, problem.targets, 1)

    def scores(self, problem: SelectionProblem) -> Tensor:
        features = _with_products(torch.stack([_ranks(problem.scores(x)) for x in self.cheap]))
        begin = RowWeights(torch.ones(problem.num_rows))
        measured = []
        for number in range(self.trainings):
            scored, reads = influence_of(
                problem.smooth, problem.targets, begin, number, progress=problem.progress
            )
            per_read = scored.scores.mean(0).double() / reads.clamp(min=1)
            measured.append((per_read / per_read[reads > 0].std(), reads.double()))
        return calibrated(features, measured).float()


def calibrated(features: Tensor, measured: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """(n,): what some trainings say of the value of each row; see `CalibratedScores`.

    Args:
        features: (k, n), what is known of each row beforehand.
        measured: for each training the influence of a row for each read, (n,), and its reads, (n,).
    """
    reads = torch.stack([r for _, r in measured])
    values = torch.stack([z for z, _ in measured])
    total = reads.sum(0)
    mean = (values * reads).sum(0) / total.clamp(min=1)
    design = torch.cat([torch.ones_like(features[:1]), features])
    root = total.sqrt()  # of the weight of a row in the sum of squares
    fit = torch.linalg.lstsq((design * root).T, (mean * root)[:, None], driver="gelsd").solution
    predicted = (design.T @ fit)[:, 0]
    if len(measured) < 2:
        return predicted
    residuals = (values - predicted) * (reads > 0)
    in_both = (reads[0] > 0) & (reads[1] > 0)
    tau_squared = float((residuals[0, in_both] * residuals[1, in_both]).mean().clamp(min=0))
    sigma_squared = float((residuals.square() * reads)[reads > 0].mean()) - tau_squared
    noise = max(sigma_squared, 1e-12) / total.clamp(min=1)
    trust = tau_squared / (tau_squared + noise)
    return predicted + trust * (mean - predicted) * (total > 0)


def _ranks(scores: Tensor) -> Tensor:
    """(n,): the ranks of scores, from −1 to 1."""
    ranks = scores.argsort(stable=True).argsort(stable=True).double()
    return 2 * ranks / max(len(scores) - 1, 1) - 1


def _with_products(x: Tensor) -> Tensor:
    """Features (k, n), their squares and the products of two."""
    pairs = [x[i] * x[j] for i in range(len(x)) for j in range(i, len(x))]
    return torch.cat([x, torch.stack(pairs)])


@dataclass(frozen=True)
class OuterSteps(Chooser):
    """Weights that outer steps learn, see `farzi_hf.attribution.outer_steps`. Of the rows those of
    the highest weights stay, and of equal weights those with the most evidence; each is read as
    often as its weight says.

    Args:
        steps: how many.
        prior: chooses the rows that begin with a weight, from 3 for the first one down to 0; the
            others stay out. So a row changes its place only as far as outer steps move it. None
            begins with all rows, and weights of 1.
        room: how many times more rows than stay begin with a weight.
    """

    steps: int = 8
    prior: Ranked | None = None
    room: float = 2.5
    is_cheap = False

    @property
    def name(self) -> str:
        prior = "" if self.prior is None else f", from {self.prior.name}"
        return f"{self.steps} outer steps{prior}"

    def cost(self, problem: SelectionProblem) -> int:
        of_prior = 0 if self.prior is None else self.prior.cost(problem)
        return of_prior + cost_of_steps(problem.smooth, problem.targets, self.steps)

    def weights(self, problem: SelectionProblem) -> Tensor:
        begin = torch.ones(problem.num_rows)
        if self.prior is not None:
            begin = graded(problem.scores(self.prior), round(self.room * problem.keep))
        state = problem.outer_steps(RowWeights(begin), self.steps, self.name)
        return highest_weights(state.learnt.weights(), state.evidence, problem.keep)


@dataclass(frozen=True)
class EqualWeights(Chooser):
    """The rows that another way has chosen, each read as often as any other.

    A learnt weight tells how sure outer steps are that a row helps. Whether a row that helps is
    worth more reading than another one differs from pool to pool (docs/weigh.md), so both are tried.

    Args:
        way: whose rows; it is not asked again.
    """

    way: Chooser

    @property
    def name(self) -> str:
        return f"{self.way.name}, equal weights"

    @property
    def is_cheap(self) -> bool:
        return self.way.is_cheap

    @property
    def identity(self) -> str:
        return self.way.identity

    def cost(self, problem: SelectionProblem) -> int:
        return self.way.cost(problem)

    def seconds(self, problem: SelectionProblem) -> float:
        return problem.seconds(self.way.name)

    def begins_with(self, problem: SelectionProblem) -> str:
        return self.way.begins_with(problem)

    def weights(self, problem: SelectionProblem) -> Tensor:
        weights = problem.weights(self.way)
        return (weights > 0).to(weights)


def graded(scores: Tensor, count: int) -> Tensor:
    """(n,): weights that fall from the largest one, of the highest score, in equal steps to the
    `count`-th, and are 0 from there on.
    """
    count = min(count, len(scores))
    order = scores.argsort(descending=True, stable=True)[:count]
    weights = torch.zeros(len(scores))
    weights[order] = LARGEST * (1 - torch.arange(count) / count)
    return weights
