"""Shares of reading that follow features of the rows, learnt by outer steps.

A row is read once or twice in a training, so its own influence is mostly noise. But all rows say
together how much each of fifteen features is worth: these are few numbers, with the evidence of
thousands of rows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from farzi_hf.attribution.choosers import Chooser, Ranked, SelectionProblem
from farzi_hf.attribution.outer_steps import Evidence, Learnt, cost_of_steps
from farzi_hf.attribution.row_features import row_features
from farzi_hf.summary.store.tensor_file import fingerprint

_RIDGE = 0.1
"""What is added to the variance of each feature, which is 1."""


@dataclass(frozen=True, eq=False)
class FeatureShares(Learnt):
    """Shares that begin somewhere, and are multiplied by e^(θ · f), with the features f of a row.
    In each step the influence of the rows for each time that they were read, in standard
    deviations, is regressed on the features, by least squares that reads weigh and a ridge; θ moves
    along the result.
    """

    numbers: Tensor
    """θ (k,)."""
    features: Tensor
    """f (k, n), each with mean 0 and standard deviation 1."""
    begin: Tensor
    """(n,), the shares where θ is 0. Rows whose share is 0 stay out."""
    rate: float = 0.7
    """How far the logarithm of a share moves for each standard deviation of influence that is
    predicted.
    """
    mixture = None
    are_shares = True

    @property
    def identity(self) -> str:
        # Rounded, because another machine may sum in another order.
        state = {"features": self.features.round(decimals=3), "begin": self.begin}
        return fingerprint(state) + str(self.rate)

    def weights(self) -> Tensor:
        logarithms = self.begin.double().log() + self.numbers.double() @ self.features
        return (logarithms.softmax(0) * len(logarithms)).float()

    def stepped(self, evidence: Evidence) -> FeatureShares:
        reads = evidence.reads.double()
        share = reads / reads.sum()
        relative = evidence.relative.double().cpu()
        centred = self.features - (self.features * share).sum(1, keepdim=True)
        squares = (centred * share) @ centred.T
        ridge = _RIDGE * torch.eye(len(squares), dtype=squares.dtype)
        products = (centred * share) @ (relative - (relative * share).sum())
        slopes = torch.linalg.solve(squares + ridge, products)
        return self.at(self.numbers + self.rate * slopes.to(self.numbers))

    def at(self, numbers: Tensor) -> FeatureShares:
        return replace(self, numbers=numbers)


@dataclass(frozen=True)
class SharesByFeatures(Chooser):
    """The rows of another way, or all, by shares that follow their features, as outer steps have
    learnt.

    Args:
        cheap: ways whose scores are features, too.
        steps: how many outer steps.
        prior: the shares to begin with; None: equal ones.
    """

    cheap: tuple[Ranked, ...]
    steps: int = 4
    prior: Chooser | None = None
    is_cheap = False

    @property
    def name(self) -> str:
        prior = "" if self.prior is None else f", from {self.prior.name}"
        return f"shares of rows by features, {self.steps} outer steps{prior}"

    def cost(self, problem: SelectionProblem) -> int:
        of_prior = 0 if self.prior is None else self.prior.cost(problem)
        of_steps = cost_of_steps(problem.smooth, problem.targets, self.steps)
        return of_prior + problem.cost_of_features(self.cheap) + of_steps

    def weights(self, problem: SelectionProblem) -> Tensor:
        begin = torch.ones(problem.num_rows)
        if self.prior is not None:
            begin = self.prior.weights(problem)
        features = problem.features(self.cheap, row_features)
        shares = FeatureShares(torch.zeros(len(features)), features, begin)
        return problem.outer_steps(shares, self.steps, self.name).learnt.weights()
