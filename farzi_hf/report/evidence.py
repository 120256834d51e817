"""Conclusions from results: how good one row is beside another, whether this agrees with the paper, and the paper's own figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farzi_hf.tasks import Row, Statistics, Task

AGREES, DIFFERS, OPEN = "agrees", "does not agree", "not decided"

PAPER = {
    "magazine": {
        "10×10": (0.233, 0.523, 0.158, 0.8428), "25×20": (0.239, 0.523, 0.165, 0.8307),
        "50×20": (0.245, 0.521, 0.171, 0.8291), "full data": (0.232, 0.520, 0.169, 0.8223),
    },
    "ml-100k": {
        "10×150": (0.173, 0.612, 0.092, 0.8957), "25×150": (0.193, 0.616, 0.099, 0.902), "50×50": (0.196, 0.629, 0.099, 0.9016),
        "100×100": (0.195, 0.619, 0.101, 0.9016), "full data": (0.182, 0.606, 0.093, 0.9011),
    },
    "ml-1m": {"200×50": (0.254, 0.618, 0.141, 0.9315), "full data": (0.262, 0.628, 0.144, 0.9291)},
}  # fmt: skip
"""By data set and size, "μ×ξ": HR@10, HR@100, nDCG@10, AUC of SASRec (Tables 1 and 5). Each figure is from one run and has no interval."""

PAPER_TEXT = {
    "10×50": (238.5, 20.48), "200×50": (124.0, 24.0), "400×50": (91.9, 25.16), "2000×50": (91.0, 25.4), "full data": (72.10, 26.03),
}  # fmt: skip
"""Penn Treebank, by size "μ×ξ": perplexity, and accuracy in per cent."""


def counted(verdicts: Sequence[str]) -> str:
    """A sentence that says how often each verdict occurs."""
    return (
        f"Of {len(verdicts)} statements of the paper that this table can decide, it **agrees with {verdicts.count(AGREES)}**, does **not agree "
        f"with {verdicts.count(DIFFERS)}**, and leaves **{verdicts.count(OPEN)} not decided**."
    )


@dataclass(frozen=True)
class Claim:
    """A statement of the paper that can be tested by comparing two rows.

    Args:
        text: the statement, as a sentence without its full stop.
        ours: the name of a row.
        other: the name of the row to compare with.
        at_least: the statement holds if our quality is at least this share of the other row's quality; at 1, the default, it has to be
            better, and a tie is not enough.
    """

    text: str
    ours: str
    other: str
    at_least: float = 1.0

    def holds(self, share: float) -> bool:
        """Whether this share of the other row's quality is enough."""
        return share > 1 if self.at_least == 1 else share >= self.at_least


@dataclass(frozen=True)
class Evidence:
    """All rows of a table, and the statistics from which they are computed.

    Args:
        task: measures the students.
        rows: the rows by name, in the order of the table.
        students: for each row, the statistics of its students, one entry per seed.
    """

    task: Task
    rows: Mapping[str, Row]
    students: Mapping[str, Statistics]
    _ratios: dict[tuple[str, str], tuple[float, tuple[float, float]]] = field(
        default_factory=dict, init=False, repr=False
    )

    def finding(self, ours: str, other: str) -> str:
        """A sentence with the quality of `ours` as a share of the quality of `other`, and the interval of this share."""
        share, (low, high) = self.ratio(ours, other)
        metric, label = self.task.metric, self.task.metric_label
        edges = {name: self.rows[name][f"{metric}_interval"] for name in (ours, other)}
        values = [
            f"{self.rows[name][metric]:.4g} ({edges[name][0]:.4g}–{edges[name][1]:.4g})" for name in (ours, other)
        ]
        shares = self._shares(ours, other)
        above = sum(share >= 1 for share in shares)
        return (
            f"**{ours} has {100 * share:.1f} % of the quality of {other}** ({self.task.ratio_label}; 95 % interval {100 * low:.1f}–"
            f"{100 * high:.1f} %, paired over test sequences): {label} {values[0]} against {values[1]}; at least as good in {above} of {len(shares)} "
            f"seeds, {self.rows[ours]['students']} and {self.rows[other]['students']} students."
        )

    def verdicts(self, claims: Sequence[Claim]) -> list[str]:
        """A line with the counts of the verdicts, then one line per claim. Without claims, an empty list."""
        if not claims:
            return []
        found = [self.verdict(claim) for claim in claims]
        lines = []
        for verdict, claim in zip(found, claims, strict=True):
            needs = f"; the statement needs {100 * claim.at_least:.0f} %" if claim.at_least != 1 else ""
            lines.append(f"- {verdict}: {claim.text}{needs}. {self.finding(claim.ours, claim.other)}")
        rule = "A statement is decided if the 95 % interval (over test sequences) and every seed agree."
        return [f"{counted(found)} {rule}", *lines]

    def verdict(self, claim: Claim) -> str:
        """AGREES or DIFFERS if the ratio's interval and all seeds lie on the same side of what the claim needs; else OPEN."""
        _, (low, high) = self.ratio(claim.ours, claim.other)
        seeds = [claim.holds(share) for share in self._shares(claim.ours, claim.other)]
        if claim.holds(low) and all(seeds):
            return AGREES
        return DIFFERS if high < claim.at_least and not any(seeds) else OPEN

    def ratio(self, ours: str, other: str) -> tuple[float, tuple[float, float]]:
        """The quality of `ours` divided by the quality of `other`, and the interval of this ratio. It takes a thousand resamples, once."""
        if (ours, other) not in self._ratios:
            self._ratios[ours, other] = self.task.ratio(self.students[ours], self.students[other])
        return self._ratios[ours, other]

    def _shares(self, ours: str, other: str) -> list[float]:
        """The quality of `ours` divided by the quality of `other`, for each seed."""
        pairs = zip(self.students[ours], self.students[other], strict=True)
        return [self.task.share([mine], [theirs]) for mine, theirs in pairs]
