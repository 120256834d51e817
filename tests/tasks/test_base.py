"""Bootstrap intervals, and the mean and spread of students."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from farzi_hf.metrics import bootstrap_interval, mean_and_spread, ranking_metrics
from farzi_hf.tasks import LanguageModeling, Recommendation
from farzi_hf.tasks.base import _module
from farzi_hf.tasks.text import TokenMetrics


def test_bootstrap_interval_is_as_wide_as_the_normal_one():
    values = np.random.default_rng(0).normal(3.0, 2.0, size=400)
    low, high = bootstrap_interval(values, confidence=0.9)
    half = 1.645 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=0.03)
    assert (low, high) == bootstrap_interval(values, confidence=0.9)
    assert (low, high) != bootstrap_interval(values, confidence=0.9, seed=1)
    with pytest.raises(ValueError, match="values is empty: an interval needs at least one row"):
        bootstrap_interval(np.array([]))


def test_mean_and_spread_of_students():
    row = mean_and_spread([{"auc": 0.25}, {"auc": 0.75}])
    assert row == {"auc": 0.5, "auc_std": pytest.approx(0.5 / math.sqrt(2))}
    assert mean_and_spread([{"auc": 0.25}]) == {"auc": 0.25, "auc_std": 0.0}
    diverged = mean_and_spread([{"perplexity": 9.0}, {"perplexity": math.inf}])
    assert (diverged["perplexity"], math.isnan(diverged["perplexity_std"])) == (math.inf, True)


def ranks(*of_targets: float) -> np.ndarray:
    """The statistics of one student: for each user the rank of the target, and an AUC."""
    return np.array([[rank, 0.5] for rank in of_targets])


MISSED = 500.0
"""A rank beyond the hundred of HR@100."""


def test_the_interval_of_a_share_lies_around_it():
    task = Recommendation([str(i) for i in range(2000)])
    hit = 3.0
    ours = ranks(*[hit] * 15, *[MISSED] * 15)
    share, (low, high) = task.ratio([[ours]], [[ranks(*[hit] * 30)]])
    assert share == 0.5
    assert (low, high) == bootstrap_interval((ours[:, 0] == hit).astype(float))
    assert low < share < high


def test_a_resample_in_which_nobody_hits_makes_a_share_0_at_least_and_infinite_at_most():
    """One user of three is a hit of both: three resamples of ten are without this user."""
    task = Recommendation([str(i) for i in range(2000)])
    some = ranks(3.0, MISSED, MISSED)
    assert task.ratio([[some]], [[some]]) == (1.0, (0.0, math.inf))
    never = ranks(MISSED, MISSED, MISSED)
    share, interval = task.ratio([[never]], [[never]])
    assert all(math.isnan(x) for x in (share, *interval))


def test_metrics_need_no_cache(tmp_path, monkeypatch):
    """`evaluate` makes a folder there even where it keeps all in memory."""
    (tmp_path / "file").touch()
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "file" / "cache"))
    module = _module.__wrapped__(TokenMetrics)
    found = module.compute(predictions=[[[1.0, 1.0, 1.0], [3.0, 0.0, 1.0]]])
    assert found["perplexity"] == pytest.approx(math.exp(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: LanguageModeling("gpt2"), "'gpt2' is the name of a tokenizer: load it"),
        (lambda: Recommendation("abc"), "'abc' holds no names of items"),
        (lambda: Recommendation(3), "processing_class=3 holds no names of items"),
        (lambda: ranking(ks=10), "ks=10 are no lengths of lists"),
        (lambda: ranking(ks=()), r"ks=\(\) are no lengths of lists"),
        (lambda: ranking(ks=(0,)), "ks must be an integer of at least 1, got 0"),
        (lambda: ranking(negatives=-1), "negatives must be an integer of at least 1, got -1"),
    ],
)
def test_arguments_of_another_kind_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def ranking(**given):
    return ranking_metrics(torch.rand(2, 6), torch.tensor([1, 2]), **given)
