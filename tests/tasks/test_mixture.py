"""A counted model and a network, mixed."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from tiny_trainer import tiny_trainer

from farzi_hf.report import BASELINES
from farzi_hf.report.comparison import Comparison
from farzi_hf.report.rows import prediction_of
from farzi_hf.tasks import KneserNey, Recommendation
from farzi_hf.tasks.mixture import Mixture


@pytest.fixture(scope="module")
def c(tmp_path_factory, sequences, tokenizer):
    """Of a summary that carries a teacher of a few steps."""
    trainer = tiny_trainer(
        tmp_path_factory.mktemp("out"),
        sequences,
        tokenizer,
        labels="teacher",
        inputs="drawn",
        storage="coded5",
        teacher_steps=60,
        teacher_batch_size=16,
        packing_steps=2,
        max_steps=0,
        window=None,
        inner_steps_min=None,
    )
    trainer.train()
    return Comparison.of_trainer(trainer, sequences, num_students=1)


def test_probabilities_are_those_of_both_models(c):
    splits = c.splits
    ngrams = KneserNey.fit(splits["train"], c.learner.vocab_size, splits["validation"])
    ids = torch.tensor([splits["test"]["input_ids"][0][:6], splits["test"]["input_ids"][1][:6]])
    logits = torch.randn(*ids.shape, c.learner.vocab_size, dtype=torch.float64)
    found = Mixture(ngrams, 0.3).log_probabilities(logits, {"input_ids": ids}).exp()
    torch.testing.assert_close(found.sum(-1), torch.ones(ids.shape))
    for row in range(2):
        for place in range(ids.shape[1]):
            [counted] = ngrams.distribution([ids[row, : place + 1].tolist()])
            expected = 0.3 * torch.from_numpy(counted) + 0.7 * logits[row, place].softmax(-1)
            torch.testing.assert_close(found[row, place], expected.float())


def test_the_row_of_the_mixture_is_better_than_both(c):
    row = BASELINES["mixed"](c, None)
    assert row.method.endswith("-gram and teacher, mixed")
    assert row.is_model
    assert row.nbytes == c.farzi.nbytes + c.nbytes(c.splits["train"])
    teacher = BASELINES["teacher"](c, None)
    counted = [part.students[0] for part in c.counted()]
    best = min(map(c.task.error, [teacher.students[0], *counted]))
    assert c.task.error(row.students[0]) < best


def test_a_share_of_nothing_is_the_network_alone(c):
    ngrams = KneserNey.fit(c.splits["train"], c.learner.vocab_size, c.splits["validation"])
    outputs = partial(c.outputs, prediction_of(c.farzi.teacher))
    alone = c.task.statistics(outputs, c.splits["test"], c.length)
    mixture = Mixture(ngrams, 0.0)
    mixed = c.task.statistics(mixture.outputs(outputs), c.splits["test"], c.length)
    np.testing.assert_allclose(mixed, alone, rtol=1e-4)


def test_ranks_are_not_mixed():
    assert Recommendation(["", "a"]).mixed() is None
