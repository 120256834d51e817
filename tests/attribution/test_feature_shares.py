"""Shares of rows that follow features."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from datasets import Dataset
from test_weigh import BAD, GOOD, problem_of, stock, target
from transformers import Trainer

from farzi_hf.attribution import influence
from farzi_hf.attribution.choosers import CrossEntropyDifference, GradientCosine, NGramImportance
from farzi_hf.attribution.feature_shares import FeatureShares, SharesByFeatures
from farzi_hf.attribution.outer_steps import Evidence
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.replay import Replay
from farzi_hf.attribution.row_features import row_features
from farzi_hf.attribution.row_shares import BestChoice, SharesOfRows, shares_of_rows
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.data import IGNORED, SequenceCollator

CHEAP = (NGramImportance(), CrossEntropyDifference(), GradientCosine())


def unequal_rows() -> Dataset:
    """Rows of 3 to 9 ids."""
    draw = np.random.default_rng(0)
    return Dataset.from_dict(
        {"input_ids": [draw.integers(1, 9, 3 + i % 7).tolist() for i in range(GOOD + BAD)]}
    )


@pytest.mark.parametrize("settings", [{}, {"gradient_accumulation_steps": 2}])
def test_the_influence_of_a_share_is_the_derivative_of_a_weighted_mean(tmp_path, settings):
    changes = {"max_steps": 4, "learning_rate": 1e-2, "adam_epsilon": 0.1, **settings}
    like = stock(tmp_path, **changes)
    trainer = Trainer(
        model_init=like.model_init,
        args=like.args,
        data_collator=SequenceCollator(0),
        train_dataset=unequal_rows(),
    )
    trainings = Trainings.of(trainer)
    replay = replace(trainings.replay, shares_of=trainings.predicted)
    queries = Targets(replay, {"target": target()})
    scores = influence(replay, lambda theta: queries.loss(theta, 0))
    # A mean does not change if all weights grow alike.
    assert abs(float(scores.sum())) < 1e-4 * float(scores.abs().sum())
    halved = replay.train(0.5 * replay.ones)
    plain = replay.train()
    for name, x in plain.items():
        torch.testing.assert_close(halved[name], x, rtol=1e-4, atol=1e-5)
    direction = torch.randn(GOOD + BAD, generator=torch.Generator().manual_seed(0))
    step = 0.05
    with torch.no_grad():
        after, before = (
            queries.value(replay.train(1 + sign * step * direction), 0) for sign in (1, -1)
        )
    assert float(scores @ direction) == pytest.approx((before - after) / (2 * step), rel=0.03)


def test_a_step_moves_along_the_weighted_ridge_regression():
    draw = np.random.default_rng(1)
    features = draw.normal(size=(3, 400))
    reads = draw.integers(0, 4, 400)
    begin = draw.uniform(0.5, 2, 400)
    scores = np.array([2.0, 0.0, -1.0]) @ features + draw.normal(size=400)
    state = FeatureShares(torch.zeros(3), torch.tensor(features), torch.tensor(begin))
    evidence = Evidence(torch.tensor(scores * (reads > 0)), torch.tensor(reads))
    relative = scores * (reads > 0) / np.std((scores * (reads > 0))[reads > 0], ddof=1)
    rows = np.repeat(np.arange(400), reads)
    design = (features[:, rows] - features[:, rows].mean(1, keepdims=True)).T
    wanted = relative[rows] - relative[rows].mean()
    squares = design.T @ design / len(rows) + 0.1 * np.eye(3)
    expected = 0.7 * np.linalg.solve(squares, design.T @ wanted / len(rows))
    moved = state.stepped(evidence)
    np.testing.assert_allclose(moved.numbers.numpy(), expected, rtol=1e-5)
    weights = moved.weights().numpy()
    shares = begin * np.exp(expected @ features)
    np.testing.assert_allclose(weights, 400 * shares / shares.sum(), rtol=1e-4)


def test_features_tell_rows_of_the_target_and_what_is_alike_is_left_out(tmp_path):
    problem = problem_of(tmp_path)
    features = row_features(problem, CHEAP)
    torch.testing.assert_close(features.mean(1), torch.zeros(len(features)).double())
    torch.testing.assert_close(features.square().mean(1), torch.ones(len(features)).double())
    for scores in features[:3]:  # of the cheap ways
        assert scores[:GOOD].mean() > scores[GOOD:].mean()
    # All rows are of six ids, and have no prompt but the first one.
    assert len(features) < 15


def test_features_look_at_prompts_and_answers(tmp_path):
    like = stock(tmp_path)
    draw = np.random.default_rng(2)
    prompts = [draw.integers(1, 5, 3).tolist() for _ in range(GOOD + BAD)]
    answers = [[*prompt] if i < GOOD else [6, 7, 8] for i, prompt in enumerate(prompts)]
    rows = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    labels = [[IGNORED] * 3 + answer for answer in answers]
    trainer = Trainer(
        model_init=like.model_init,
        args=like.args,
        data_collator=SequenceCollator(0),
        train_dataset=Dataset.from_dict({"input_ids": rows, "labels": labels}),
    )
    problem = replace(
        problem_of(tmp_path),
        trainings=replace(problem_of(tmp_path).trainings, replay=Replay.of(trainer)),
    )
    is_good = torch.arange(GOOD + BAD) < GOOD
    agreement = [
        torch.corrcoef(torch.stack([feature, is_good.double()]))[0, 1]
        for feature in row_features(problem, CHEAP)
    ]
    # The share of an answer's ids that its prompt has is 1 for some rows, and 0 for the others.
    assert max(abs(float(each)) for each in agreement) > 0.999


def test_rows_like_the_target_are_read_more_and_learning_goes_on(tmp_path):
    problem = replace(problem_of(tmp_path), folder=tmp_path / "kept")
    begin = BestChoice(tuple(shares_of_rows(CHEAP)))
    problem.note_dev_losses("shares of rows by gradient cosine", [1.0])
    way = SharesByFeatures(CHEAP, 3, begin)
    assert way.name == "shares of rows by features, 3 outer steps, from the best cheap choice"
    before = begin.weights(problem)
    torch.testing.assert_close(before, SharesOfRows(GradientCosine()).weights(problem))
    weights = way.weights(problem)
    assert (weights > 0).all()

    def own(weights: torch.Tensor) -> float:
        return float(weights[:GOOD].sum() / weights.sum())

    assert own(weights) > 1.1 * own(before) > 1.2 * own(torch.ones(GOOD + BAD))
    [file] = (tmp_path / "kept").rglob("weights.safetensors")
    kept = file.stat().st_mtime_ns
    again = way.weights(replace(problem, _choices={}))
    torch.testing.assert_close(again, weights)
    assert file.stat().st_mtime_ns == kept
