"""The numbers of `model_selection.py`: rank correlations of proxy and truth, regret of the choice, intervals, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from model_selection_problem import DISTILLED, LONG, PARTS, RANDOM, SAME_COST, SAME_STEPS, START, WAYS, WINDOWS

from farzi_hf.attribution import spearman
from farzi_hf.tasks.metrics import bootstrap_interval

SIMILAR = 0.25
"""Costs whose logarithms differ by less are called the same: from 78 to 128 %."""
METRICS = {"hr@100": "HR@100", "ndcg@10": "nDCG@10"}
Correlation = Callable[[np.ndarray, np.ndarray], float]


def kendall(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's τ_b: of all pairs that neither list ties, the share in the same order less the share in the other, corrected for ties."""
    a, b = (np.sign(np.subtract.outer(values, values)) for values in (x, y))
    return float((a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum()))


CORRELATIONS: dict[str, Correlation] = {"kendall": kendall, "spearman": spearman}


def correlation(measure: Correlation, x: np.ndarray, y: np.ndarray) -> float:
    """The rank correlation; 0 where one of the lists has equal numbers only, and so ranks nothing."""
    return measure(x, y) if np.ptp(x) and np.ptp(y) else 0.0


def regret(proxy: np.ndarray, truth: np.ndarray) -> float:
    """How far the truth of the configuration with the best proxy is below the best truth. Equal proxies count by their mean truth."""
    return float(truth.max() - truth[proxy == proxy.max()].mean())


@dataclass(frozen=True)
class Results:
    """All trainings of one metric.

    Args:
        values: `values[way][part]` (splits, n), the metric of each configuration.
        architectures: (n,), of each configuration.
    """

    values: dict[str, dict[str, np.ndarray]]
    architectures: np.ndarray

    @property
    def truth(self) -> dict[str, np.ndarray]:
        return self.values[LONG]

    @property
    def places(self) -> np.ndarray:
        """(n,): the numbers of the configurations, which a bootstrap resamples."""
        return np.arange(self.truth["test"].shape[1])

    def correlations(self, way: str, measure: Correlation, part: str, chosen: np.ndarray) -> list[float]:
        """Of each split, between the validation metric of a way and the truth on `part`, over the chosen configurations."""
        pairs = zip(self.values[way]["validation"][:, chosen], self.truth[part][:, chosen], strict=True)
        return [correlation(measure, x, y) for x, y in pairs]

    def within(self, way: str, chosen: np.ndarray) -> list[float]:
        """Of each split, Kendall's τ among configurations of one architecture, as a mean over the architectures."""
        groups = [chosen[self.architectures[chosen] == name] for name in dict.fromkeys(self.architectures[chosen])]
        return np.mean([self.correlations(way, kendall, "validation", group) for group in groups], axis=0).tolist()

    def regrets(self, way: str, chosen: np.ndarray) -> list[float]:
        """Of each split, on test users, where the validation metric of a way chooses."""
        pairs = zip(self.values[way]["validation"][:, chosen], self.truth["test"][:, chosen], strict=True)
        return [regret(x, y) for x, y in pairs]

    def row(self, way: str, metric: str) -> dict[str, Any]:
        """Means over the splits, with intervals over resampled configurations."""
        row: dict[str, Any] = {"chosen by": way, "metric": metric}
        for name, measure in CORRELATIONS.items():
            row |= self._summed(name, lambda chosen, f=measure: self.correlations(way, f, "validation", chosen))
        row |= self._summed("kendall_within", lambda chosen: self.within(way, chosen))
        row |= self._summed("kendall_test", lambda chosen: self.correlations(way, kendall, "test", chosen))
        return row | self._summed("regret", lambda chosen: self.regrets(way, chosen))

    def _summed(self, name: str, each: Callable[[np.ndarray], list[float]]) -> dict[str, Any]:
        splits = each(self.places)
        interval = bootstrap_interval(self.places, lambda chosen: float(np.mean(each(chosen))))
        return {name: float(np.mean(splits)), f"{name}_interval": list(interval), f"{name}_splits": splits}

    def difference(self, ours: str, theirs: str) -> tuple[float, tuple[float, float]]:
        """Our Kendall's τ less theirs, with its interval over resampled configurations."""

        def less(chosen: np.ndarray) -> float:
            mine, others = (self.correlations(way, kendall, "validation", chosen) for way in (ours, theirs))
            return float(np.mean(mine) - np.mean(others))

        return less(self.places), bootstrap_interval(self.places, less)

    def blind_regret(self) -> float:
        """The mean regret on test users of a configuration that is chosen at random."""
        test = self.truth["test"]
        return float((test.max(1) - test.mean(1)).mean())


def results_of(trainings: Sequence[dict[str, Any]], metric: str) -> Results:
    """The results of one metric, from rows with `split`, `way` and the metrics on `PARTS`, in the order of the configurations."""
    splits = list(dict.fromkeys(row["split"] for row in trainings))

    def values(way: str, part: str) -> np.ndarray:
        rows = [row for row in trainings if row["way"] == way]
        return np.array([[row[part][metric] for row in rows if row["split"] == split] for split in splits])

    architectures = [row["architecture"] for row in trainings if (row["way"], row["split"]) == (LONG, splits[0])]
    found = {way.name: {part: values(way.name, part) for part in PARTS} for way in WAYS}
    return Results(found, np.array(architectures))


def cost_rows(trainings: Sequence[dict[str, Any]], before: Sequence[dict[str, float]]) -> list[dict[str, Any]]:
    """CPU seconds per way and split: before the first training (teachers, outer steps), of all configurations, and in all."""
    rows = []
    for way in WAYS:
        ready = float(np.mean([seconds.get(way.name, 0.0) for seconds in before]))
        training = sum(row["seconds"] for row in trainings if row["way"] == way.name) / len(before)
        rows.append({"trained on": way.name, "before": ready, "trainings": training, "all": ready + training})
    return rows


def same_cost_fact(costs: Sequence[dict[str, Any]], steps: int) -> str:
    """What the row of the same cost did cost. Its steps are a setting, which fits one config and one machine."""
    seconds = {row["trained on"]: row["all"] for row in costs}
    ratio = seconds[SAME_COST] / seconds[DISTILLED]
    text = f"{steps} steps, which were set beforehand, took {ratio:.0%} of the summary's CPU seconds"
    if abs(math.log(ratio)) < SIMILAR:
        return text
    return f"{text}: this is another cost; give --same_cost_steps {max(1, round(steps / ratio))}"


# -- the verdict -----------------------------------------------------------------------------------------------------

_WORDS = {1: "ranks better than", 0: "is not told apart from", -1: "ranks worse than"}


def findings_of(results: dict[str, Results], costs: Sequence[dict[str, Any]]) -> list[str]:
    """Sentences that come first: whether each summary is worth it, what its choices lose, and the differences of τ."""
    seconds = {row["trained on"]: row["all"] for row in costs}
    found = []
    for ours in (DISTILLED, START):
        better = ranks_better([difference_of(x, ours, SAME_COST)[1] for x in results.values()])
        more = any(mean_regret(x, ours) > mean_regret(x, SAME_COST) for x in results.values())
        regrets = "; ".join(f"{METRICS[metric]} {regret_text(x, ours)}" for metric, x in results.items())
        share = seconds[ours] / seconds[LONG]
        found.append(f"**{verdict(ours, better, more, share)}** Its choices lose, in points on test users: {regrets}.")
    return found + [
        f"{title}: {difference_of(results[metric], ours, theirs)[0]}"
        for metric, title in METRICS.items()
        for ours in (DISTILLED, START)
        for theirs in (SAME_COST, SAME_STEPS, RANDOM, WINDOWS)
    ]


def ranks_better(signs: Sequence[int]) -> bool:
    """From the sign of the difference of τ in each metric: better in one, and worse in none."""
    return max(signs) > 0 and min(signs) >= 0


def verdict(ours: str, better: bool, more: bool, share: float) -> str:
    """Worth it if it ranks better than real data at the same cost, its choices lose no more, and it is cheaper than the truth.

    Args:
        better: whether it ranks better.
        more: whether its choices lose more, in one of the metrics.
        share: its CPU seconds over those of the truth.
    """
    worth = better and not more and share < 1
    return (
        f"To choose a configuration, {ours} is {'' if worth else 'not '}worth it: beside {SAME_COST}, it "
        f"{'ranks' if better else 'does not rank'} configurations better, and its choices {'lose more' if more else 'do not lose more'}. "
        f"It takes {share:.0%} of the truth's CPU seconds."
    )


def mean_regret(results: Results, way: str) -> float:
    """In points, over all splits."""
    return 100 * float(np.mean(results.regrets(way, results.places)))


def regret_text(results: Results, ours: str) -> str:
    """The regret of a summary beside that of real data at the same cost, of the truth and of a random choice."""
    mine, cost, truth = (mean_regret(results, way) for way in (ours, SAME_COST, LONG))
    return f"{mine:.1f} ({SAME_COST} {cost:.1f}, the truth {truth:.1f}, a random choice {100 * results.blind_regret():.1f})"


def difference_of(results: Results, ours: str, theirs: str) -> tuple[str, int]:
    """A sentence on the difference of τ, and its sign: 0 where the interval holds 0."""
    value, (low, high) = results.difference(ours, theirs)
    sign = int(low > 0) - int(high < 0)
    return f"{ours} {_WORDS[sign]} {theirs}: τ {value:+.2f} ({low:+.2f} … {high:+.2f}).", sign
