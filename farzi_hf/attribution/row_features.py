"""What is known of each row of a pool beforehand: numbers that cost no training that is
differentiated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import cross_entropy

from farzi_hf.attribution.choosers import (
    Ranked,
    SelectionProblem,
    counted_model,
    halves,
    ngram_importance,
)
from farzi_hf.attribution.queries import Targets
from farzi_hf.data import IGNORED
from farzi_hf.tasks.counted_text import KneserNey

_ORDER = 3
"""The longest n-grams of the counted model."""


@dataclass(frozen=True)
class _Row:
    """The ids of a row, and which of them a training predicts."""

    ids: list[int]
    is_answer: list[bool]

    @classmethod
    def of(cls, batch: Mapping[str, Tensor]) -> _Row:
        """The only row of a batch."""
        labels = batch["labels"][0]
        is_answer = [False, *(labels[1:] != IGNORED).tolist()]
        return cls(batch["input_ids"][0].tolist(), is_answer)

    @property
    def answer(self) -> list[int]:
        return list(compress(self.ids, self.is_answer))

    @property
    def prompt(self) -> list[int]:
        return list(compress(self.ids, (not each for each in self.is_answer)))


def row_features(problem: SelectionProblem, cheap: Sequence[Ranked]) -> Tensor:
    """(k, n): the scores of cheap ways; how much the answer and the prompt of a row look like those
    of the target; how long they are; what a warmed-up model and a counted one lose on them, and how
    much less than without what comes before; which share of the answer's ids the prompt has; and
    the size of the row's gradient. Each as the rank of the row among the others, with mean 0 and
    standard deviation 1. What is the same for all rows is left out.

    Args:
        problem: the pool and its targets.
        cheap: the ways.
    """
    replay = problem.trainings.replay
    batches = [replay.batch(replay.loader, [row]) for row in range(problem.num_rows)]
    rows = [_Row.of(batch) for batch in batches]
    wanted = [_Row.of(batch) for batch in Targets(replay, problem.targets).batches()]
    answers = [row.answer for row in rows]
    prompts = [row.prompt for row in rows]
    found = [
        *(problem.scores(way) for way in cheap),
        ngram_importance(answers, [row.answer for row in wanted], are_whole=False),
        ngram_importance(prompts, [row.prompt for row in wanted], are_whole=False),
        torch.tensor([len(ids) for ids in answers]),
        torch.tensor([len(ids) for ids in prompts]),
        *_losses(problem, batches),
        *_counted_losses(problem, rows),
        torch.tensor([_shared(*both) for both in zip(answers, prompts, strict=True)]),
        problem.gradients().norms,
    ]
    return _standardised_ranks(found)


def _standardised_ranks(scores: Sequence[Tensor]) -> Tensor:
    """Ranks (k, n) of those scores that differ between rows; equal scores have equal ranks.

    Raises:
        FloatingPointError: one is NaN.
    """
    if any(bool(each.isnan().any()) for each in scores):
        raise FloatingPointError(
            "what is known of the rows is not finite: the model predicts NaN after a training on"
            " random rows; give a smaller learning_rate"
        )
    ranks = torch.stack([torch.from_numpy(rankdata(each.numpy())) for each in scores])
    ranks = ranks - ranks.mean(1, keepdim=True)
    deviations = ranks.square().mean(1, keepdim=True).sqrt()
    differs = deviations[:, 0] > 0
    return ranks[differs] / deviations[differs]


@torch.no_grad()
def _losses(problem: SelectionProblem, batches: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """(4, n), in nats per token of a model that random rows have warmed up: of the answer, of the
    prompt, of the last id; and by how much the answer is likelier after its prompt than without it.
    """
    learner = problem.trainings.replay.learner
    theta = problem.warm

    def of_row(batch: Mapping[str, Tensor]) -> list[float]:
        if batch["input_ids"].shape[1] < 2:  # nothing is predicted
            return [0.0] * 4
        nats = _nats(learner.logits(theta, batch), batch)
        is_answer = batch["labels"][0, 1:] != IGNORED
        first = int(is_answer.int().argmax())
        alone = {name: x[:, first:] for name, x in batch.items()}
        without_prompt = _nats(learner.logits(theta, alone), alone)[is_answer[first:]]
        answer = nats[is_answer]
        problem.counted()
        return [
            _mean(answer),
            _mean(nats[~is_answer]),
            float(answer[-1]) if len(answer) else 0.0,
            _mean(without_prompt) - _mean(answer),
        ]

    return torch.tensor([of_row(batch) for batch in batches]).T


def _nats(logits: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
    """(L − 1,): the loss of each id of a row after the first."""
    return cross_entropy(logits[0, :-1].float(), batch["input_ids"][0, 1:], reduction="none")


def _mean(values: Tensor) -> float:
    return float(values.mean()) if len(values) else 0.0


def _counted_losses(problem: SelectionProblem, rows: Sequence[_Row]) -> Tensor:
    """(2, n), in nats per token of the answer: what a counted model of the other half of the pool
    loses, and how much more one loses that looks at no id before.
    """
    found = torch.zeros(2, len(rows))
    for half, other in halves(problem, 3):
        counted = [rows[i].ids for i in other]
        scored = [rows[i] for i in half]
        losses = [
            list(_losses_by_counts(counted_model(counted, problem.vocab_size, order), scored))
            for order in (_ORDER, 1)
        ]
        with_order, without = torch.tensor(losses)
        found[:, torch.from_numpy(half)] = torch.stack([with_order, without - with_order])
    return found


def _losses_by_counts(model: KneserNey, rows: Sequence[_Row]) -> Iterator[float]:
    """Of the answer of each row, in nats per token."""
    logarithms = model.log_probabilities([row.ids for row in rows])
    for row, of_ids in zip(rows, logarithms, strict=True):
        of_answer = of_ids[np.array(row.is_answer[1:], dtype=bool)]
        yield -float(of_answer.mean()) if len(of_answer) else 0.0


def _shared(answer: Sequence[int], prompt: Sequence[int]) -> float:
    """Which share of an answer's ids its prompt has."""
    there = set(prompt)
    return sum(each in there for each in answer) / max(1, len(answer))
