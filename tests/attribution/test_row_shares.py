"""Shares of rows by a cheap score."""

from __future__ import annotations

from dataclasses import replace

import torch
from test_weigh import BAD, GOOD, problem_of

from farzi_hf.attribution.choosers import (
    CrossEntropyDifference,
    GradientCosine,
    NGramImportance,
    Ranked,
    SelectionProblem,
)
from farzi_hf.attribution.row_shares import SharesOfRows, shares_of_rows


class Told(Ranked):
    """Scores that a test gives."""

    name = "told"
    is_cheap = True

    def __init__(self, scores: torch.Tensor) -> None:
        self.told = scores

    def scores(self, problem: SelectionProblem) -> torch.Tensor:
        return self.told


def test_a_row_is_read_e_times_as_often_for_each_standard_deviation(tmp_path):
    scores = torch.arange(GOOD + BAD).float()
    problem = problem_of(tmp_path)
    for power in (0.5, 2):
        weights = SharesOfRows(Told(scores), power).weights(problem).double()
        expected = (
            power * (scores.double() - scores.double().mean()) / scores.double().std()
        ).exp()
        torch.testing.assert_close(
            weights / weights.sum(), expected / expected.sum(), rtol=1e-6, atol=0
        )
    alike = SharesOfRows(Told(torch.full((GOOD + BAD,), 2.0))).weights(replace(problem, _scores={}))
    torch.testing.assert_close(alike, torch.ones(GOOD + BAD))


def test_rows_like_the_target_are_read_more_and_none_is_left_out(tmp_path):
    problem = problem_of(tmp_path)
    ways = shares_of_rows((NGramImportance(), CrossEntropyDifference(), GradientCosine()))
    assert len({way.name for way in ways}) == 9
    for way in ways:
        weights = way.weights(problem)
        assert (weights > 0).all()
        assert weights[:GOOD].mean() > weights[GOOD:].mean(), way.name
