"""Ways to read all rows of a pool, each with a share of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from farzi_hf.attribution.choosers import Chooser, Ranked, SelectionProblem


@dataclass(frozen=True)
class SharesOfRows(Chooser):
    """All rows; a row is read e to the power times as often for each standard deviation of rows by
    which its score is higher.

    Args:
        way: whose scores; those that are known already are not made again.
        power: of e. 1 follows the scores with care, 3 trusts them.
    """

    way: Ranked
    power: float = 1.0

    @property
    def name(self) -> str:
        power = "" if self.power == 1 else f", power {self.power:g}"
        return f"shares of rows by {self.way.name}{power}"

    @property
    def is_cheap(self) -> bool:
        return self.way.is_cheap

    def cost(self, problem: SelectionProblem) -> int:
        return self.way.cost(problem)

    def weights(self, problem: SelectionProblem) -> Tensor:
        scores = problem.scores(self.way).double()
        relative = (scores - scores.mean()) / scores.std().clamp(min=1e-30)
        logarithms = self.power * relative
        return (logarithms - logarithms.max()).exp().float()


def shares_of_rows(cheap: tuple[Ranked, ...]) -> list[SharesOfRows]:
    """The shares by cheap scores that are worth a comparison: careful ones, and ones that trust the
    scores.
    """
    return [SharesOfRows(way, power) for way in cheap for power in (1, 3)]
