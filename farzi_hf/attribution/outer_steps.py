"""Weights of rows, or of groups of them, learnt by outer steps for a target.

Each outer step trains the model once, from a fresh start and in a fresh order, with rows read as
often as their weights say, and takes the exact influence of each row on the target through the
whole training (Engstrom et al., 2025, arXiv 2503.13751). Then it moves the weights.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from farzi_hf.attribution.groups import Groups
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.scoring import QueryScores, Scorer, identity_of, read_kept
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.common.tensors import save_tensors
from farzi_hf.engine import Adjoint

_KEPT = "weights.safetensors"
LARGEST = 3.0
"""The largest weight of a row; all begin at 1."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """What one training says of the rows."""

    scores: Tensor
    """(n,): the influence of a row on the target for each time that it was read; 0 of those that
    were not.
    """
    reads: Tensor
    """(n,): how often it was read."""

    @property
    def relative(self) -> Tensor:
        """(n,): the scores, divided by their standard deviation over the rows that were read; zeros
        where that is one row, which nothing can be compared with.
        """
        of_read = self.scores[self.reads > 0]
        if len(of_read) < 2:
            return torch.zeros_like(self.scores)
        return self.scores / of_read.std().clamp(min=1e-30)


class Learnt(ABC):
    """Weights that outer steps move. Each step gives new ones."""

    numbers: Tensor
    """What is learnt, one axis."""
    are_shares: bool = False
    """Whether the influence of a row is that of its share in the mean loss of a step, in place of
    that of a factor of its loss. See `Replay.shares_of`.
    """

    @abstractmethod
    def weights(self) -> Tensor:
        """(n,): the shares of reading of the rows; their sum does not matter."""

    @abstractmethod
    def stepped(self, evidence: Evidence) -> Learnt:
        """The weights after one training."""

    @abstractmethod
    def at(self, numbers: Tensor) -> Learnt:
        """The same with other numbers."""

    @property
    @abstractmethod
    def mixture(self) -> dict[str, float] | None:
        """The share of each group by its name; None where rows have weights of their own."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Of the groups whose numbers they are; empty where they are those of rows."""


@dataclass(frozen=True, eq=False)
class RowWeights(Learnt):
    """A weight for each row: w ← clamp(w + rate · clamp(z, −1, 1), 0, 3), where z is the row's
    influence for each time that it was read, in standard deviations. A row that was not read stays.
    If all rows harm the target so much that none would have a weight, those that harm least stay:
    the same is added to the weights of all that have one, so that the highest is the rate.
    """

    numbers: Tensor
    """(n,): w."""
    rate: float = 0.3
    """How far a step moves a row at most."""
    mixture = None
    identity = ""

    def weights(self) -> Tensor:
        return self.numbers

    def stepped(self, evidence: Evidence) -> RowWeights:
        moved = self.numbers + self.rate * evidence.relative.clamp(-1, 1)
        has_weight = self.numbers > 0
        highest = moved[has_weight].max()
        if highest <= 0:
            moved = torch.where(has_weight, moved - highest + self.rate, moved)
        return self.at(moved.clamp(0, LARGEST))

    def at(self, numbers: Tensor) -> RowWeights:
        return replace(self, numbers=numbers)


@dataclass(frozen=True, eq=False)
class GroupWeights(Learnt):
    """A share of reading for each group, the softmax of a number per group: a mixture. Rows of a
    group share its part equally.

    A step adds rate · z to the number of a group, where z is its mean score less that of the rows
    read, in standard deviations of groups; at most ± 2, and less where the rows of the group
    disagree: it is multiplied by d² / (d² + e²), with the difference d and its standard error e.
    """

    numbers: Tensor
    """(G,)."""
    groups: Groups
    """Of the rows."""
    rate: float = 0.7
    """How far a standard deviation moves a group."""

    def shares(self) -> Tensor:
        """(G,), their sum is 1."""
        return self.numbers.softmax(0)

    @property
    def mixture(self) -> dict[str, float]:
        """The share of each group by its name."""
        return dict(zip(self.groups.names, self.shares().tolist(), strict=True))

    @property
    def identity(self) -> str:
        return self.groups.identity

    def weights(self) -> Tensor:
        per_row = self.shares() / self.groups.sizes
        return per_row[self.groups.members] * len(self.groups.members)

    def stepped(self, evidence: Evidence) -> GroupWeights:
        members = self.groups.members
        reads = evidence.reads.double()
        of_groups = torch.zeros(len(self.numbers), dtype=torch.float64)
        counts = of_groups.index_add(0, members, reads)
        scores = evidence.scores.double().cpu()
        sums = of_groups.index_add(0, members, reads * scores)
        means = sums / counts.clamp(min=1)
        squares = of_groups.index_add(0, members, reads * (scores - means[members]).square())
        errors = squares / counts.clamp(min=1) / (counts - 1).clamp(min=1)
        was_read = counts > 1
        if int(was_read.sum()) < 2:
            return self
        differences = means - sums.sum() / counts.sum()
        spread = differences[was_read].std().clamp(min=1e-30)
        trust = differences.square() / (differences.square() + errors).clamp(min=1e-300)
        moves = (differences / spread).clamp(-2, 2) * trust * was_read
        return self.at(self.numbers + self.rate * moves.to(self.numbers))

    def at(self, numbers: Tensor) -> GroupWeights:
        return replace(self, numbers=numbers)


@dataclass(frozen=True, eq=False)
class Weighing:
    """The state of some outer steps."""

    learnt: Learnt
    """The weights after them."""
    evidence: Tensor
    """(n,): the sum of each row's relative scores, by which rows of equal weight are told apart."""
    history: list[dict[str, float]] = field(default_factory=list)
    """For each outer step the target's loss after its training, in nats per token: of the weights
    before the step.
    """

    @property
    def steps(self) -> int:
        """How many outer steps were taken."""
        return len(self.history)


def highest_weights(weights: Tensor, evidence: Tensor, keep: int) -> Tensor:
    """(n,): the highest weights, and 0 for the other rows. Of equal weights those with the most
    evidence stay.
    """
    by_evidence = evidence.argsort(descending=True, stable=True)
    order = by_evidence[weights[by_evidence].argsort(descending=True, stable=True)]
    chosen = torch.zeros_like(weights)
    chosen[order[:keep]] = weights[order[:keep]]
    return chosen


def outer_steps(
    trainings: Trainings,
    targets: Mapping[str, Dataset],
    begin: Learnt,
    steps: int,
    *,
    adjoint: Adjoint | None = None,
    folder: Path | None = None,
    progress: tqdm | None = None,
) -> Weighing:
    """Weights after some outer steps.

    Args:
        trainings: in which rows are read as weights say.
        targets: what is to be predicted well: the mean of their losses.
        begin: the weights to start from.
        steps: how many.
        adjoint: how to differentiate; None chooses.
        folder: keeps the state after each step. A later call with the same trainings, targets and
            begin goes on from there.
        progress: a bar that counts gradients, of which this is a part; None shows one.

    Raises:
        ValueError: a target has nothing to predict, or ids that the model does not know, or the
            folder is of other trainings.
        FloatingPointError: a training diverged, or its derivative did.
    """
    state = Weighing(begin, torch.zeros(trainings.num_rows))
    first = _scorer(trainings, targets, begin, 0, adjoint)
    first.queries.check("target_dataset")
    kept = None if folder is None else _KeptWeighing(folder, first, begin)
    if kept is not None:
        state = kept.read(state)
    of_step = cost_of_steps(trainings, targets, 1, adjoint)
    bar = bar_of(trainings, steps * of_step) if progress is None else progress
    bar.update(min(state.steps, steps) * of_step)
    while state.steps < steps:
        bar.set_postfix_str(f"outer step {state.steps + 1} of {steps}")
        scored, reads = influence_of(
            trainings, targets, state.learnt, state.steps, adjoint=adjoint, progress=bar
        )
        evidence = Evidence(scored.scores.mean(0) / reads.clamp(min=1), reads)
        state = Weighing(
            learnt=state.learnt.stepped(evidence),
            evidence=state.evidence + evidence.relative.clamp(-1, 1),
            history=[*state.history, {"loss": float(scored.losses.mean())}],
        )
        if kept is not None:
            kept.write(state)
    if progress is None:
        bar.close()
    return state


def bar_of(trainings: Trainings, total: int) -> tqdm:
    """A bar that counts so many gradients, where the Trainer would show one."""
    trainer = trainings.replay.trainer
    is_hidden = trainer.args.disable_tqdm or not trainer.is_world_process_zero()
    return tqdm(desc="Weighing", unit="gradient", total=total, disable=is_hidden)


def influence_of(
    trainings: Trainings,
    targets: Mapping[str, Dataset],
    learnt: Learnt,
    number: int,
    *,
    adjoint: Adjoint | None = None,
    progress: tqdm | None = None,
) -> tuple[QueryScores, Tensor]:
    """The scores (m, n) of the rows for each target in one training, with the losses, and how often
    each row was read, (n,).

    Args:
        number: of the training.
        progress: a bar that counts gradients.
    """
    scorer = _scorer(trainings, targets, learnt, number, adjoint)
    bar = tqdm(disable=True) if progress is None else progress
    bar.update(trainings.warming_steps)
    return scorer.of_part(range(len(targets)), bar), trainings.reads_of(scorer.replay)


def identity_of_steps(trainings: Trainings, targets: Mapping[str, Dataset]) -> str:
    """A hash of all that outer steps from equal weights depend on."""
    begin = RowWeights(torch.ones(trainings.num_rows))
    return identity_of(_scorer(trainings, targets, begin, 0, None))


def cost_of_steps(
    trainings: Trainings, targets: Mapping[str, Dataset], steps: int, adjoint: Adjoint | None = None
) -> int:
    """What outer steps cost, in gradients of a step of training."""
    replay = trainings.replay
    scorer = Scorer(replay, Targets(replay, targets), replay.ones, adjoint)
    return steps * (trainings.warming_steps + scorer.cost(range(len(targets))))


def _scorer(
    trainings: Trainings,
    targets: Mapping[str, Dataset],
    learnt: Learnt,
    number: int,
    adjoint: Adjoint | None,
) -> Scorer:
    """Scores the rows in one training."""
    training = trainings.training(learnt.weights(), number)
    if learnt.are_shares:
        training = replace(training, shares_of=trainings.predicted)
    return Scorer(training, Targets(training, targets), training.ones, adjoint)


class _KeptWeighing:
    """The state of outer steps in a folder.

    Args:
        folder: of the file.
        first: scores the first training, whose fingerprint the file has.
        begin: the weights to start from.
    """

    def __init__(self, folder: Path, first: Scorer, begin: Learnt) -> None:
        self.file = folder / _KEPT
        self.identity = identity_of(first) + begin.identity
        self.writes = first.replay.trainer.is_world_process_zero()
        self.begin = begin

    def read(self, state: Weighing) -> Weighing:
        """The state that an earlier call has kept, or else the one that is given."""
        if not self.file.exists():
            return state
        tensors, facts = read_kept(
            self.file,
            self.identity,
            name=f"resume_dir: {str(self.file)!r}",
            again="the outer steps begin again",
            others="another training, other rows, other groups or another target",
        )
        history: list[dict[str, Any]] = json.loads(facts["history"])
        return Weighing(self.begin.at(tensors["numbers"]), tensors["evidence"], history)

    def write(self, state: Weighing) -> None:
        """Keeps a state."""
        if self.writes:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            tensors = {"numbers": state.learnt.numbers, "evidence": state.evidence}
            history = json.dumps(state.history)
            save_tensors(self.file, tensors, identity=self.identity, history=history)
