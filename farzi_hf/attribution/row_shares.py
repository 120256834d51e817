"""Ways to read all rows of a pool, each with a share of its own."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from farzi_hf.attribution.choosers import Ranked, SelectionProblem, SharesOf


@dataclass(frozen=True)
class SharesOfRows(SharesOf):
    """All rows; a row is read e to the power times as often for each standard deviation of rows by
    which its score is higher.

    Args:
        way: whose scores; those that are known already are not made again.
        power: of e. 1 follows the scores with care, 3 trusts them.
    """

    way: Ranked
    power: float = 1.0
    kind = "rows"

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
