"""What results say: how one row does beside another, and whether that is what the paper found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from farzi_hf.evaluation.tasks import Row, Statistics, Task

AGREES, DIFFERS, OPEN = "agrees", "does not agree", "not decided"


def counted(verdicts: Sequence[str]) -> str:
    """How many of them are which."""
    return (
        f"Of {len(verdicts)} statements of the paper that this table can decide, it **agrees with {verdicts.count(AGREES)}**, does **not agree "
        f"with {verdicts.count(DIFFERS)}**, and leaves **{verdicts.count(OPEN)} not decided**."
    )


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that two rows decide.

    Args:
        text: the statement, as a sentence without its full stop.
        ours: a row.
        other: the row that it is compared with.
        at_least: the share of the other's quality from which on the statement holds.
    """

    text: str
    ours: str
    other: str
    at_least: float = 1.0


@dataclass(frozen=True)
class Evidence:
    """All rows of a table, and what they are computed from.

    Args:
        task: how students are measured.
        rows: by name, in the order of the table.
        students: by row, the statistics of its students, one entry per seed.
    """

    task: Task
    rows: Mapping[str, Row]
    students: Mapping[str, Statistics]

    def finding(self, ours: str, other: str) -> str:
        """How much of the quality of one row another one has, and how sure that is."""
        share, (low, high) = self.ratio(ours, other)
        metric, label = self.task.metric, self.task.metric_label
        edges = {name: self.rows[name][f"{metric}_interval"] for name in (ours, other)}
        values = [
            f"{self.rows[name][metric]:.4g} ({edges[name][0]:.4g}–{edges[name][1]:.4g})" for name in (ours, other)
        ]
        seeds, above = self._seeds(ours, other, 1.0)
        return (
            f"**{ours} has {100 * share:.1f} % of the quality of {other}** ({self.task.ratio_label}; 95 % interval {100 * low:.1f}–"
            f"{100 * high:.1f} %, paired over test sequences): {label} {values[0]} against {values[1]}; at least as good in {above} of {seeds} "
            f"seeds, {self.rows[ours]['students']} and {self.rows[other]['students']} students."
        )

    def verdicts(self, claims: Sequence[Claim]) -> list[str]:
        """A line with the counts, then one per claim; nothing where there is none."""
        if not claims:
            return []
        found = [self.verdict(claim) for claim in claims]
        lines = []
        for verdict, claim in zip(found, claims, strict=True):
            needs = f"; the statement needs {100 * claim.at_least:.0f} %" if claim.at_least != 1 else ""
            lines.append(f"- {verdict}: {claim.text}{needs}. {self.finding(claim.ours, claim.other)}")
        return [f"{counted(found)} Decided is what the 95 % interval (of test sequences) and every seed say.", *lines]

    def verdict(self, claim: Claim) -> str:
        """Whether the interval of the ratio is on one side of what the claim needs, and all seeds are."""
        _, (low, high) = self.ratio(claim.ours, claim.other)
        seeds, above = self._seeds(claim.ours, claim.other, claim.at_least)
        if low >= claim.at_least and above == seeds:
            return AGREES
        return DIFFERS if high < claim.at_least and above == 0 else OPEN

    @cached_property
    def _ratios(self) -> dict[tuple[str, str], tuple[float, tuple[float, float]]]:
        return {}  # filled by `ratio`: each takes a thousand resamples

    def ratio(self, ours: str, other: str) -> tuple[float, tuple[float, float]]:
        """What `ours` has of the quality of `other`, and its interval."""
        if (ours, other) not in self._ratios:
            self._ratios[ours, other] = self.task.ratio(self.students[ours], self.students[other])
        return self._ratios[ours, other]

    def _seeds(self, ours: str, other: str, at_least: float) -> tuple[int, int]:
        """How many seeds there are, and in how many the ratio reaches `at_least`."""
        pairs = list(zip(self.students[ours], self.students[other], strict=True))
        shares = [self.task.share([mine], [theirs]) for mine, theirs in pairs]
        return len(shares), sum(share >= at_least for share in shares)
