"""Ways to read all rows of a pool, with a share for each group of them: mixtures."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from farzi_hf.attribution.choosers import (
    AllRows,
    Chooser,
    InfluenceOfOne,
    NGramImportance,
    Ranked,
    SelectionProblem,
    SharesOf,
)
from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.outer_steps import GroupWeights, cost_of_steps


class Mixture(Chooser):
    """All rows. Rows of a group share its part equally."""

    groups: Groups
    """Of the rows, G of them."""

    @property
    def identity(self) -> str:
        return self.groups.identity

    @abstractmethod
    def numbers(self, problem: SelectionProblem) -> Tensor:
        """(G,): their softmax is the shares of reading of the groups."""

    def weights(self, problem: SelectionProblem) -> Tensor:
        return GroupWeights(self.numbers(problem), self.groups).weights()


@dataclass(frozen=True)
class EqualShares(Mixture):
    """Each group is read as often as any other."""

    groups: Groups
    name = "equal shares of groups"
    is_cheap = True

    def numbers(self, problem: SelectionProblem) -> Tensor:
        return torch.zeros(len(self.groups.names))


@dataclass(frozen=True)
class SharesBySize(Mixture):
    """Each row is read as often as any other."""

    groups: Groups
    name = AllRows.name
    is_cheap = True

    def numbers(self, problem: SelectionProblem) -> Tensor:
        return self.groups.sizes.float().log()


@dataclass(frozen=True)
class SharesByScores(SharesOf, Mixture):
    """The share of a group is its size, times e to the power for each standard deviation of groups
    by which the mean score of its rows is higher. Of several targets each has such shares, and the
    mean of them is taken: scores of all targets at once would follow the one that is the easiest to
    raise.

    Args:
        groups: of the rows.
        way: whose scores; those that are known already are not made again.
        power: of e. 1 follows the scores with care, 2 and more trust them.
    """

    groups: Groups
    way: Ranked
    power: float = 1.0
    kind = "groups"

    def numbers(self, problem: SelectionProblem) -> Tensor:
        of_groups = self.groups.means(problem.scores_of_targets(self.way).double())
        relative = of_groups - of_groups.mean(1, keepdim=True)
        if len(self.groups.names) > 1:
            relative = relative / of_groups.std(1, keepdim=True).clamp(min=1e-30)
        shares = (self.groups.sizes.log() + self.power * relative.float()).softmax(1)
        return shares.mean(0).log()


@dataclass(frozen=True)
class BestMixture(Mixture):
    """The mixture that was the best on the target's dev part. It has to be measured before; of
    mixtures that were not, the first is taken.
    """

    ways: tuple[Mixture, ...]
    """To choose from; all of the same groups."""
    name = "the best shares"
    is_cheap = False

    @property
    def groups(self) -> Groups:
        return self.ways[0].groups

    def cost(self, problem: SelectionProblem) -> int:
        return self._best(problem).cost(problem)

    def begins_with(self, problem: SelectionProblem) -> str:
        return self._best(problem).name

    def numbers(self, problem: SelectionProblem) -> Tensor:
        return self._best(problem).numbers(problem)

    def _best(self, problem: SelectionProblem) -> Mixture:
        return problem.best(self.ways)


@dataclass(frozen=True)
class MixtureSteps(Mixture):
    """Outer steps learn the shares, see `farzi_hf.attribution.outer_steps`.

    Args:
        groups: of the rows.
        steps: how many.
        prior: the shares to begin with; None: the sizes of the groups.
    """

    groups: Groups
    steps: int = 8
    prior: Mixture | None = None
    is_cheap = False

    @property
    def name(self) -> str:
        prior = "" if self.prior is None else f", from {self.prior.name}"
        return f"mixture, {self.steps} outer steps{prior}"

    def cost(self, problem: SelectionProblem) -> int:
        of_prior = 0 if self.prior is None else self.prior.cost(problem)
        return of_prior + cost_of_steps(problem.smooth, problem.targets, self.steps)

    def numbers(self, problem: SelectionProblem) -> Tensor:
        prior = self.prior or SharesBySize(self.groups)
        begin = GroupWeights(prior.numbers(problem), self.groups)
        return problem.outer_steps(begin, self.steps, self.name).learnt.numbers


def mixtures_of(groups: Groups, steps: int) -> list[Mixture]:
    """The ways to mix groups that are worth a comparison, in an order in which each finds the
    figures that it begins with. Outer steps begin with the sizes of the groups, and with the best
    of the other shares. How much of the most similar group should be read depends on how far the
    training goes, so n-grams have several powers.

    Args:
        groups: of the rows.
        steps: outer steps, of those that take some.
    """
    n_grams = [SharesByScores(groups, NGramImportance(), power) for power in (0.5, 0.7, 1, 1.4, 2)]
    influence = [SharesByScores(groups, InfluenceOfOne(), power) for power in (1, 2)]
    counted = [EqualShares(groups), *n_grams]
    best = BestMixture((*counted, *influence))
    return [*counted, *influence, MixtureSteps(groups, steps), MixtureSteps(groups, steps, best)]
