"""How one row does beside another, and whether that is what the paper found."""

from __future__ import annotations

import math

import numpy as np
import pytest
from evidence import Claim, Evidence

from farzi_hf.report.rendering import ratios
from farzi_hf.tasks import LanguageModeling, Recommendation

ITEMS, TEXT = Recommendation(None), LanguageModeling(None)


def test_a_share_of_few_hits_has_an_interval_without_nan():
    def students(hits: int) -> list[np.ndarray]:
        ranks = np.where(np.arange(95) < hits, 5.0, 500.0)
        return [np.stack([ranks, ranks], axis=1)[None]]

    share, (low, high) = ITEMS.ratio(students(57), students(2))
    assert share == 28.5
    assert 0 < low < share < high == math.inf
    share, edges = ITEMS.ratio(students(0), students(0))
    assert all(map(math.isnan, (share, *edges)))
    # A third of the resamples have no hit, and say nothing.
    assert ITEMS.ratio(students(1), students(1)) == (1.0, (0.0, math.inf))
    assert ITEMS.ratio(students(2), students(0)) == (math.inf, (0.0, math.inf))


def test_the_share_of_full_data_is_paired_over_sequences():
    """Of students on the same test sequences: much less uncertain than two intervals
    side by side.
    """
    generator = np.random.default_rng(0)
    ranks = np.where(generator.random((2, 3, 200)) < 0.5, 50, 500)  # seeds, students, users
    full = [[np.stack([student, student * 0.0], axis=1) for student in seed] for seed in ranks]
    assert ITEMS.ratio(full, full) == (1.0, (1.0, 1.0))
    none = [[np.stack([np.full(200, 500.0), np.zeros(200)], axis=1)] for _ in ranks]
    assert ITEMS.ratio(none, full)[0] == 0.0

    nll = generator.gamma(2.0, size=300) * 10
    totals = np.stack([nll, np.ones(300), np.full(300, 10.0)], axis=1)[:, None]  # (N, 1, 3)
    worse = totals * [1.2, 1, 1]
    share, (low, high) = TEXT.ratio([[worse, worse]], [[totals]])
    assert share == pytest.approx(np.exp(-0.2 * nll.sum() / 3000))
    assert low < share < high < 1
    assert high - low < 0.1


def hits(shares: list[float], users: int = 400) -> list[list[np.ndarray]]:
    """One student per seed, and of each the share of the users whose item it ranks first."""
    chance = np.random.default_rng(1).random((len(shares), users))
    return [
        [np.stack([np.where(row < share, 1.0, 500.0), np.zeros(users)], axis=1)]
        for share, row in zip(shares, chance, strict=True)
    ]


def test_a_claim_is_decided_by_the_interval_and_by_every_seed():
    students = {
        "good": hits([0.8, 0.8]),
        "fair": hits([0.5, 0.5]),
        "uneven": hits([0.9, 0.48]),  # better on the whole
        "alike": hits([0.49, 0.51]),
    }
    rows = {
        name: {**ITEMS.row(name, seeds, 8), "students": len(seeds)}
        for name, seeds in students.items()
    }
    evidence = Evidence(ITEMS, rows, students)
    claims = [
        Claim("good is better", "good", "fair"),
        Claim("fair is better", "fair", "good"),
        Claim("uneven is better", "uneven", "fair"),
        Claim("alike is better", "alike", "fair"),
        Claim("fair is half as good", "fair", "good", 0.5),
        Claim("fair is nearly as good", "fair", "good", 0.9),
        Claim("fair is better than itself", "fair", "fair"),
    ]
    assert [evidence.verdict(claim) for claim in claims] == [
        "agrees",
        "does not agree",
        "not decided",
        "not decided",
        "agrees",
        "does not agree",
        "not decided",
    ]
    sentences = evidence.verdicts(claims)
    assert sentences[0].startswith(
        "Of 7 statements of the paper that this table can decide, it **agrees with 2**, does **not"
        " agree with 2**, and leaves **3 not"
    )
    assert sentences[2].startswith("- does not agree: fair is better. **fair has 6")
    assert "at least as good in 1 of 2 seeds, 2 and 2 students" in sentences[3]
    assert "; the statement needs 90 %." in sentences[6]
    assert evidence.verdicts([]) == []


def test_every_metric_has_its_share_of_full_data_and_an_interval_paired_over_users():
    def row(method: str, first: int, hundred: int = 60) -> dict:
        """A student that has the items of `first` of 95 users in the first place, and those of
        `hundred` in the first hundred.
        """
        users = np.arange(95)
        ranks = np.where(users < first, 1.0, np.where(users < hundred, 50.0, 500.0))
        return {"method": method, "students": [np.stack([ranks, 1 - users / 200], axis=1).tolist()]}

    def found(ours: int, theirs: int) -> list[str]:
        seeds = [[row("Farzi [2×3]", ours), row("full data, long", theirs)]] * 2
        return ratios(ITEMS, seeds, "Farzi [2×3]", "full data, long")[
            "Farzi / full data, long"
        ].split(", ")

    hr10, hr100, ndcg10, auc = found(20, 16)
    assert (hr100, auc) == (
        "HR@100 100.0 % (100.0–100.0)",
        "AUC 100.0 % (100.0–100.0)",
    )  # the same users
    assert hr10.startswith("HR@10 125.0 % (10")
    assert ndcg10.startswith("NDCG@10 125.0 % (10")
    assert found(0, 0)[0] == found(3, 0)[0] == "HR@10 –"  # full data have none
    assert ratios(ITEMS, [[row("Farzi [2×3]", 20)]], "Farzi [2×3]", "full data, long") == {}
