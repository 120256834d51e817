"""Bootstrap intervals, and the mean and spread of students."""

from __future__ import annotations

import math

import numpy as np
import pytest

from farzi_hf.metrics import bootstrap_interval, mean_and_spread
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


def test_metrics_need_no_cache(tmp_path, monkeypatch):
    """`evaluate` makes a folder there even where it keeps all in memory."""
    (tmp_path / "file").touch()
    monkeypatch.setattr("evaluate.config.HF_METRICS_CACHE", str(tmp_path / "file" / "cache"))
    module = _module.__wrapped__(TokenMetrics)
    found = module.compute(predictions=[[[1.0, 1.0, 1.0], [3.0, 0.0, 1.0]]])
    assert found["perplexity"] == pytest.approx(math.exp(2))
