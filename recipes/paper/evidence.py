"""Conclusions from results: how good one row is beside another, and whether this agrees with the
paper.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farzi_hf.tasks import ResultRow, Statistics, Task

AGREES = "agrees"
DIFFERS = "does not agree"
OPEN = "not decided"


def counted(verdicts: Sequence[str]) -> str:
    """A sentence that says how often each verdict occurs."""
    return (
        f"Of {len(verdicts)} statements of the paper that this table can decide, it **agrees with"
        f" {verdicts.count(AGREES)}**, does **not agree with {verdicts.count(DIFFERS)}**, and"
        f" leaves **{verdicts.count(OPEN)} not decided**."
    )


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that can be tested by comparing two rows.

    Args:
        text: the statement, as a sentence without its full stop.
        ours: the name of a row.
        other: the name of the row to compare with.
        above: the statement holds if our quality is above this share of the other row's quality; a
            tie is not enough.
    """

    text: str
    ours: str
    other: str
    above: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """All rows of a table, and the statistics from which they are computed.

    Args:
        task: measures the students.
        rows: the rows by name, in the order of the table.
        students: for each row, the statistics of its students, one entry per seed.
    """

    task: Task
    rows: Mapping[str, ResultRow]
    students: Mapping[str, Statistics]

    def finding(self, ours: str, other: str) -> str:
        """A sentence with the quality of `ours` as a share of the quality of `other`, and the
        interval of this share.
        """
        share, (low, high) = self.ratio(ours, other)
        metric = self.task.metric
        rows = (self.rows[ours], self.rows[other])
        values = [
            "{:.4g} ({:.4g}–{:.4g})".format(row[metric], *row[f"{metric}_interval"]) for row in rows
        ]
        shares = self._shares(ours, other)
        above = sum(share >= 1 for share in shares)
        return (
            f"**{ours} has {100 * share:.1f} % of the quality of {other}**"
            f" ({self.task.ratio_label}; 95 % interval {100 * low:.1f}–{100 * high:.1f} %, paired"
            f" over test sequences): {self.task.metric_label} {values[0]} against {values[1]}; at"
            f" least as good in {above} of {len(shares)} seeds, {rows[0]['students']} and"
            f" {rows[1]['students']} students."
        )

    def verdicts(self, claims: Sequence[Claim]) -> list[str]:
        """A line with the counts of the verdicts, then one line per claim. Without claims, an empty
        list.
        """
        if not claims:
            return []
        found = [self.verdict(claim) for claim in claims]
        lines = []
        for verdict, claim in zip(found, claims, strict=True):
            needs = f"; the statement needs {100 * claim.above:.0f} %" if claim.above != 1 else ""
            lines.append(
                f"- {verdict}: {claim.text}{needs}. {self.finding(claim.ours, claim.other)}"
            )
        rule = (
            "A statement is decided if the 95 % interval (over test sequences) and every seed"
            " agree."
        )
        return [f"{counted(found)} {rule}", *lines]

    def verdict(self, claim: Claim) -> str:
        """AGREES or DIFFERS if the ratio's interval and all seeds lie on the same side of what the
        claim needs; else OPEN.
        """
        _, (low, high) = self.ratio(claim.ours, claim.other)
        seeds = [share > claim.above for share in self._shares(claim.ours, claim.other)]
        if low > claim.above and all(seeds):
            return AGREES
        return DIFFERS if high < claim.above and not any(seeds) else OPEN

    def ratio(self, ours: str, other: str) -> tuple[float, tuple[float, float]]:
        """The quality of `ours` divided by the quality of `other`, and the interval of this ratio,
        of a thousand resamples.
        """
        return self.task.ratio(self.students[ours], self.students[other])

    def _shares(self, ours: str, other: str) -> list[float]:
        """The quality of `ours` divided by the quality of `other`, for each seed."""
        pairs = zip(self.students[ours], self.students[other], strict=True)
        return [self.task.share([mine], [theirs]) for mine, theirs in pairs]
