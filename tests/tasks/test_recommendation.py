"""Ranking metrics against their definitions, under a Trainer, and as an `evaluate` module."""

from __future__ import annotations

import math
from pathlib import Path

import evaluate
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import EvalPrediction

from farzi_hf.metrics import (
    rank_metrics,
    rank_statistics,
    ranking_intervals,
    ranking_metrics,
    recommendation_metrics,
    target_ranks,
)
from farzi_hf.tasks import Recommendation, items

MODULE = Path(items.__file__)
USERS, V = 40, 30


@pytest.fixture
def case() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(USERS, V, generator=generator), torch.randint(
        V, (USERS,), generator=generator
    )


def by_hand(
    scores: torch.Tensor, targets: torch.Tensor, k: int, seen: list[list[int]] | None = None
) -> dict[str, float]:
    """The definitions in the paper's appendix, user by user, over lists."""
    hits, gains, aucs = [], [], []
    for user, target in enumerate(targets.tolist()):
        excluded = set(seen[user] if seen else ()) - {target}
        others = [i for i in range(scores.shape[1]) if i != target and i not in excluded]
        row = scores[user].tolist()
        ranked = sorted([target, *others], key=lambda i: (-row[i], i))
        index = ranked.index(target) + 1
        hits.append(index <= k)
        gains.append(1 / math.log2(index + 1) if index <= k else 0.0)
        aucs.append(
            np.mean([(row[target] > row[i]) + 0.5 * (row[target] == row[i]) for i in others])
        )
    return {f"hr@{k}": np.mean(hits), f"ndcg@{k}": np.mean(gains), "auc": np.mean(aucs)}


@pytest.mark.parametrize("k", [1, 3, 10])
def test_metrics_are_their_definitions(case, k):
    assert ranking_metrics(*case, ks=(k,)) == pytest.approx(by_hand(*case, k))


def test_seen_items_are_left_out_but_the_target_stays(case):
    scores, targets = case
    seen = [[user % V, (user + 5) % V, int(targets[user])] for user in range(USERS)]
    expected = pytest.approx(by_hand(scores, targets, 3, seen))
    assert ranking_metrics(scores, targets, (3,), seen) == expected
    padded = torch.tensor([[*row, -100, -1] for row in seen])
    assert ranking_metrics(scores, targets, (3,), padded) == expected
    minus_infinity = scores.clone()
    for row, had, target in zip(minus_infinity, seen, targets.tolist(), strict=True):
        row[[item for item in had if item != target]] = -torch.inf
    assert ranking_metrics(minus_infinity, targets, (3,)) == expected


def test_mrr_and_any_k_are_options(case):
    ranks = rank_statistics(*case)[:, 0]
    found = ranking_metrics(*case, ks=(20,), mrr=True)
    assert found["mrr"] == pytest.approx(float((1 / ranks).mean()))
    assert found.keys() == {"hr@20", "ndcg@20", "auc", "mrr"}


def test_sampled_negatives_are_drawn_among_items_that_a_user_has_not_had(case):
    scores, targets = case
    seen = torch.stack([(targets + 1) % V, (targets + 2) % V], 1)
    scores.scatter_(1, seen, 99.0)  # they would rank first
    everything = ranking_metrics(scores, targets, (3,), seen)
    assert ranking_metrics(scores, targets, (3,), seen, negatives=V) == everything
    some, again, other = (
        ranking_metrics(scores, targets, (3,), seen, negatives=5, seed=seed, mrr=True)
        for seed in (0, 0, 1)
    )
    assert some == again != other
    assert ranking_metrics(scores, targets, (6,), seen, negatives=5)["hr@6"] == 1
    # On average, so many of the items that are better are drawn.
    better = rank_statistics(scores, targets, seen)[:, 0] - 1
    drawn = [items._with_negatives(scores, targets, seen, 5, seed) for seed in range(200)]
    ranks = torch.stack([rank_statistics(x, targets, seen)[:, 0] for x in drawn]).mean(0)
    torch.testing.assert_close(ranks, 1 + better * 5 / (V - 3), atol=0.35, rtol=0)
    assert all(((x > -torch.inf).sum(1) == 6).all() for x in drawn)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.data())
def test_equal_scores_go_by_id_and_count_half_in_the_auc(row, data):
    target = data.draw(st.integers(0, len(row) - 1))
    scores, targets = torch.tensor([row], dtype=torch.float32), torch.tensor([target])
    assert ranking_metrics(scores, targets, (2,)) == pytest.approx(by_hand(scores, targets, 2))


def test_a_diverged_model_is_the_worst_and_not_the_best():
    nothing = torch.full((2, 4), torch.nan)
    assert ranking_metrics(nothing, torch.tensor([0, 3]), (3,)) == {
        "hr@3": 0.0,
        "ndcg@3": 0.0,
        "auc": 0.0,
    }
    one = torch.tensor([[0.5, torch.nan, 0.1]])
    assert rank_statistics(one, torch.tensor([0])).tolist() == [[2.0, 0.5]]


def test_of_a_trainers_logits_the_last_item_is_ranked_among_unseen_ones():
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(2, 4, 8, generator=generator)
    labels = torch.tensor([[3, 1, 5, 2], [6, 4, -100, -100]])
    expected = [by_hand_rank(logits[0, 2], 2, {0, 3, 1, 5}), by_hand_rank(logits[1, 0], 4, {0, 6})]
    assert target_ranks(logits, labels)[:, 0].tolist() == expected
    assert target_ranks((logits, None), labels)[:, 0].tolist() == expected
    seen = torch.tensor([[7, 3, 1, 5], [6, 0, 0, 0]])  # 7 was before the window
    expected[0] = by_hand_rank(logits[0, 2], 2, {0, 3, 1, 5, 7})
    statistics = target_ranks(logits, (labels, seen))
    assert statistics[:, 0].tolist() == expected
    result = recommendation_metrics(EvalPrediction(predictions=statistics.numpy(), label_ids=None))
    assert result == rank_metrics(statistics.numpy())
    assert set(result) == {"hr@10", "hr@100", "ndcg@10", "ndcg@100", "auc"}


@pytest.mark.parametrize("labels", [[-100, 6, 4, 3], [6, -100, 4, 3], [6, 4, 3, -100]])
def test_the_last_item_is_the_target_wherever_the_padding_is(labels):
    logits = torch.zeros(1, 4, 8)
    logits[0, labels.index(3) - 1, 3] = 1.0
    assert target_ranks(logits, torch.tensor([labels])).tolist() == [[1.0, 1.0]]


def by_hand_rank(scores: torch.Tensor, target: int, excluded: set[int]) -> float:
    return 1.0 + sum(
        bool(score > scores[target])
        for item, score in enumerate(scores)
        if item not in excluded | {target}
    )


def test_intervals_resample_users_and_hold_the_metric(case):
    statistics = rank_statistics(*case).numpy()
    metrics, intervals = rank_metrics(statistics), ranking_intervals(statistics, resamples=300)
    assert set(intervals) == set(metrics)
    low, high = intervals["hr@10"]
    assert low < metrics["hr@10"] < high
    assert high - low == pytest.approx(
        4 * math.sqrt(metrics["hr@10"] * (1 - metrics["hr@10"]) / USERS), rel=0.25
    )
    # Two students on the same users: the interval of their mean, not of twice as many users.
    assert ranking_intervals(np.stack([statistics, statistics]), resamples=300) == intervals


def test_evaluate_module(case):
    metric, statistics = evaluate.load(str(MODULE)), rank_statistics(*case)
    assert metric.compute(predictions=statistics) == pytest.approx(rank_metrics(statistics))
    metric.add_batch(predictions=statistics[:7])
    metric.add_batch(predictions=statistics[7:])
    assert metric.compute(ks=(3,)) == pytest.approx(rank_metrics(statistics, (3,)))


@pytest.mark.parametrize(
    ("scores", "targets", "seen", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0]), None, r"scores are \(2, 3\) and targets \(1,\)"),
        (torch.zeros(3), torch.tensor([0]), None, r"pass \(B, V\) and \(B,\)"),
        (torch.zeros(1, 3), torch.tensor([0]), [[5]], "up to 5"),
        (torch.zeros(1, 3), torch.tensor([0]), [[1], [2]], "of 2 users"),
        (torch.zeros(2, 3), torch.tensor([0, 3]), None, "targets have the id 3, but scores are of"),
        (torch.zeros(2, 3), torch.tensor([0, -1]), None, "targets have the id -1, but scores are"),
    ],
)
def test_bad_input(scores, targets, seen, message):
    with pytest.raises(ValueError, match=message):
        ranking_metrics(scores, targets, seen=seen)


def test_statistics_and_histories_of_another_kind_are_refused():
    with pytest.raises(
        ValueError, match=r"shape \(2, 3, 7\).*preprocess_logits_for_metrics=target_ranks"
    ):
        recommendation_metrics(EvalPrediction(predictions=np.zeros((2, 3, 7)), label_ids=None))
    labels = torch.tensor([[3, 4, 5], [2, -100, -100]])
    with pytest.raises(
        ValueError,
        match=r"labels\[1\] has no item before the target: give histories of at least two",
    ):
        target_ranks(torch.randn(2, 3, 9), labels)


def test_of_ten_items_the_first_ten_say_nothing(tmp_path):
    """HR@10 was the metric, 100 % for any model."""
    ten, more = (Recommendation(["[PAD]", *map(str, range(count))]) for count in (10, 11))
    assert (ten.metric, more.metric) == ("ndcg@10", "hr@10")
    figures = {"hr@10": 1.0, "hr@100": 1.0, "ndcg@10": 0.625, "auc": 0.5}
    assert ten.headline(figures) == "nDCG@10 62.5 %, AUC 50.0 %"
    assert "HR@10 is 100 % for any model" in ten.figures
    assert more.headline(figures) == "HR@10 100.0 %, HR@100 100.0 %"
    path = tmp_path / "one.csv"
    path.write_text("user,item\n" + "1,2\n1,2\n1,2\n" * 9)
    with pytest.raises(ValueError, match=r"has a single item, so there is nothing to choose from"):
        Recommendation.load(str(path), None)


def test_of_few_items_a_hundred_say_nothing():
    """Where a catalogue has a hundred items, any model has HR@100 of 100 %."""
    few, many = (Recommendation([str(i) for i in range(n)]) for n in (101, 2000))
    ranks = np.array([[3.0, 0.9], [60.0, 0.4]])
    assert (few.metric, many.metric) == ("hr@10", "hr@100")
    assert few.error(ranks) == -0.5
    assert many.error(ranks) == -1.0
    assert few.ratio([[ranks]], [[ranks[[1, 1]]]])[0] == np.inf
