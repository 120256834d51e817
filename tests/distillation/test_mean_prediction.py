"""What several teachers predict on average."""

from __future__ import annotations

import pytest
import torch
from tiny_trainer import tiny_learner

from farzi_hf.distillation import Learner
from farzi_hf.distillation.mean_prediction import MeanPrediction
from farzi_hf.distillation.teacher import Teacher
from farzi_hf.models import FMLPConfig, RNNConfig

V = 13
BATCH = {
    "input_ids": torch.tensor([[1, 4, 9, 2], [3, 3, 7, 0]]),
    "labels": torch.tensor([[1, -100, 9, 2], [3, 3, 7, -100]]),
}


def teacher(config, seed: int) -> Teacher:
    learner = Learner(config)
    generator = torch.Generator().manual_seed(seed)
    start = learner.initial_parameters(seed)
    params = {name: x + torch.randn(x.shape, generator=generator) for name, x in start.items()}
    return Teacher(learner, {name: x.double() for name, x in params.items()})


def several() -> list[Teacher]:
    """Of three kinds and two widths; two heads have a bias."""
    configs = [
        tiny_learner(V),
        RNNConfig(vocab_size=V, hidden_size=6),
        FMLPConfig(num_items=V - 1, hidden_size=8, max_length=5),
    ]
    return [teacher(config, seed) for seed, config in enumerate(configs)]


def test_the_mean_of_their_logits_is_predicted_where_something_is():
    teachers = several()
    is_predicted = BATCH["labels"][:, 1:] != -100
    logits = [each.learner.logits(each.params, BATCH)[:, :-1][is_predicted] for each in teachers]
    expected = torch.stack(logits).mean(0).softmax(-1)
    found = MeanPrediction(teachers)(BATCH)
    assert len(found) == 4
    torch.testing.assert_close(found.probabilities(), expected, rtol=1e-10, atol=1e-12)


def test_a_model_learns_them_as_the_cross_entropy_of_dense_targets_says():
    teachers = several()
    targets = MeanPrediction(teachers)(BATCH)
    student = teacher(tiny_learner(V), 7)
    theta = {name: x.requires_grad_() for name, x in student.params.items()}
    loss = student.learner.hard_loss(theta, {**BATCH, "targets": targets})
    is_predicted = BATCH["labels"][:, 1:] != -100
    logits = student.learner.logits(theta, BATCH)[:, :-1][is_predicted]
    expected = -(targets.probabilities() * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=0)
    names = list(theta)
    found = torch.autograd.grad(loss, [theta[name] for name in names])
    wanted = torch.autograd.grad(expected, [theta[name] for name in names])
    for name, ours, theirs in zip(names, found, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-8, atol=1e-12, msg=name)


def test_teachers_over_several_vocabularies_have_no_mean():
    teachers = [teacher(tiny_learner(V), 0), teacher(tiny_learner(V + 1), 1)]
    with pytest.raises(ValueError, match=r"13, 14 entries have no mean; give teachers over"):
        MeanPrediction(teachers)
