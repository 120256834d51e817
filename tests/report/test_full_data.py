"""Full data as a user would train on them: ways that trials choose, and trainings without a cap."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny_trainer import tiny_trainer

from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.engine import InnerAdam
from farzi_hf.report import full_data
from farzi_hf.report.comparison import Comparison
from farzi_hf.report.full_data import LONG, SAME_SECONDS, WAYS, FullData, RealTraining


@pytest.fixture(scope="module")
def c(tmp_path_factory, sequences, tokenizer):
    trainer = tiny_trainer(tmp_path_factory.mktemp("out"), sequences, tokenizer, max_steps=0)
    return Comparison.of_trainer(trainer, sequences, num_students=2)


def test_the_way_that_does_best_on_the_validation_part_is_chosen(c):
    good = RealTraining("adam", 0.02, 160)
    poor = RealTraining("adam", 1e-7, 160)
    wild = RealTraining("adam", 1e9, 160)
    full = FullData(c, ways=(poor, wild, good))
    found = full.best_in(0.5)
    assert found.way == good
    assert found.error < full.tried(poor, 0.2, found.step_seconds).error


def test_a_row_takes_the_seconds_that_it_is_given(c):
    row = FullData(c, ways=WAYS[:2]).same_seconds(0.6)
    assert row.method == SAME_SECONDS
    assert len(row.students) == 2
    assert 0.2 < row.seconds < 1.8
    assert row.way.startswith(("soap", "adam"))
    assert row.nbytes == c.nbytes(c.splits["train"])
    quick = FullData(c, ways=WAYS[1:2]).same_seconds(0.05)
    assert quick.steps < row.steps
    error = [c.task.error(each.students[0]) for each in (row, quick)]
    assert error[0] < error[1]


def test_little_time_leaves_two_trials(c, monkeypatch):
    tried = []
    real = FullData.tried

    def counted(self, way, *given):
        tried.append(way)
        return real(self, way, *given)

    monkeypatch.setattr(FullData, "tried", counted)
    FullData(c).best_in(0.1, allowed=0.0)
    assert tried == list(WAYS[:2])


def test_a_long_training_has_no_cap_while_it_learns(c, monkeypatch):
    """Its rate stays for twice as many steps, and again, until the held-out loss says stop."""
    monkeypatch.setattr(full_data, "_LONGER", 2)  # of `capped.long`: enough to see that it goes on
    short = TeacherTraining(InnerAdam(0.003, (0.5, 0.999), 1e-4), steps=20, batch_size=8)
    capped = FullData(replace(c, long_training=short), ways=WAYS[1:2])
    once = short.train(c.learner, capped.data, 5)
    assert once.steps <= 20
    assert once.still_learning
    longer = replace(short, longer=8).train(c.learner, capped.data, 5)
    assert 40 < longer.steps <= 160
    assert longer.validation < once.validation
    row = capped.long(0.1)
    assert row.method == LONG
    assert row.steps > 20


def test_a_training_that_has_stopped_does_not_go_on(c):
    """One that learns by heart goes back to its best state, and is not doubled."""
    fast = TeacherTraining(InnerAdam(0.1), steps=80, batch_size=64, longer=16)
    found = fast.train(c.learner, FullData(c).data, 5)
    assert found.still_learning is False
    assert found.steps < 400


def test_a_training_that_diverges_is_the_worst(c):
    full = FullData(c)
    assert full.tried(RealTraining("adam", 1e30, 160), 0.1).error == math.inf
