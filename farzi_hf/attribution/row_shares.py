"""Ways to read all rows of a pool, each with a share of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from farzi_hf.attribution.choosers import Chooser, Ranked, SelectionProblem, SharesOf


@dataclass(frozen=True)
class SharesOfRows(SharesOf):
    """All rows; a row is read e to the power times as often for each standard deviation of rows by
    which its score is higher.

    Args:
        way: whose scores; those that are known already are not made again.
        power: of e. Half and 1 follow the scores with care, 2 trusts them.
    """

    way: Ranked
    power: float = 1.0
    kind = "rows"

    def weights(self, problem: SelectionProblem) -> Tensor:
        scores = problem.scores(self.way).double()
        relative = (scores - scores.mean()) / scores.std().clamp(min=1e-30)
        logarithms = self.power * relative
        return (logarithms - logarithms.max()).exp().float()


@dataclass(frozen=True)
class BestChoice(Chooser):
    """What the way chose whose rows were the best on the target's dev part. It has to be measured
    before; of ways that were not, the first is taken.
    """

    ways: tuple[Chooser, ...]
    """To choose from, all cheap."""
    name = "the best cheap choice"
    is_cheap = True

    def cost(self, problem: SelectionProblem) -> int:
        return max(way.cost(problem) for way in self.ways)

    def begins_with(self, problem: SelectionProblem) -> str:
        return problem.best(self.ways).name

    def weights(self, problem: SelectionProblem) -> Tensor:
        best = problem.best(self.ways)
        problem.counted(self.cost(problem) - best.cost(problem))
        return problem.weights(best)


def shares_of_rows(cheap: tuple[Ranked, ...]) -> list[SharesOfRows]:
    """The shares by cheap scores that are worth a comparison. Which power is the best depends on how
    many rows are like the target, and on how often a training reads a row.
    """
    return [SharesOfRows(way, power) for way in cheap for power in (0.5, 1, 2)]
