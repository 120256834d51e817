"""Full data as a user would train on them: ways that trials choose, and trainings without a cap."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from tiny_trainer import tiny_trainer

from farzi_hf.distillation import teacher
from farzi_hf.distillation.teacher import TeacherTraining, Trained
from farzi_hf.engine import InnerAdam
from farzi_hf.report import full_data
from farzi_hf.report.comparison import Comparison
from farzi_hf.report.full_data import LONG, SAME_SECONDS, WAYS, FullData, RealTraining, Tried
from farzi_hf.tasks import base


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


@pytest.mark.slow
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


@pytest.mark.parametrize(
    ("allowed", "ways", "note"),
    [
        (1.8, 2, "the best of 2 ways, each tried for a third of the seconds"),
        (2.1, 3, "the best of 3 ways, each tried for a third of the seconds"),
        (1.6, 0, "not compared with other ways for lack of time"),
    ],
)
def test_little_time_leaves_few_trials(allowed, ways, note, c, monkeypatch):
    """A trial takes a third of the seconds, and the row all of them. One trial alone tells nothing,
    so then the first way is taken without one.
    """
    now = [0.0]
    tried = []

    def trial(self, way, seconds, step_seconds=None):
        tried.append(way)
        now[0] += seconds
        return Tried(way, 1.0 + len(tried), 0.001)

    monkeypatch.setattr(full_data.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(FullData, "tried", trial)
    monkeypatch.setattr(FullData, "step_seconds", lambda self, way: 0.002)
    found = FullData(c).best_in(1.0, allowed)
    assert tried == list(WAYS[:ways])
    assert found.way == WAYS[0]
    assert found.note == note


class Noting(FullData):
    """Notes what is tried, and finds the better the more n-grams label."""

    def __init__(self, *given, **settings):
        super().__init__(*given, **settings)
        self.shares = []

    def tried(self, way, seconds, step_seconds=None):
        self.shares.append(way.counted_share)
        return Tried(way, 1.0 - way.counted_share, 0.001)


@pytest.mark.parametrize(("of_teacher", "tried"), [(0.25, 0.25), (0.0, 0.5)])
def test_n_grams_may_label_all_data_whether_or_not_they_do_for_the_teacher(c, of_teacher, tried):
    """They help most in few steps, and a teacher has many. They are tried before the second best
    way, for which there may be no time.
    """
    own = replace(c, long_training=replace(c.long_training, counted_share=of_teacher))
    full = Noting(own, ways=WAYS[:2])
    found = full.best_in(0.5)
    assert full.shares == [0.0, 0.0, 0.0, tried, 0.0]
    assert str(found.way).endswith(f"{tried:g} of the labels by n-grams")


def test_many_entries_are_not_counted_for_all_data(c, monkeypatch):
    monkeypatch.setattr(base, "_MOST_COUNTED", 10)
    assert FullData(c).counted_share == 0
    own = replace(c, long_training=replace(c.long_training, counted_share=0.25))
    assert FullData(own).counted_share == 0.25


def test_a_long_training_is_tried_without_n_grams_too(c, monkeypatch):
    """They may have helped in the few steps by which its way was chosen."""
    tried = []

    def trained(self, training, seed, longer):
        tried.append(training.counted_share)
        return Trained(c.learner.initial_parameters(seed), 1, training.counted_share)

    full = Noting(c, ways=WAYS[:2])
    monkeypatch.setattr(FullData, "_long_training", trained)
    row = full.long(0.5)
    assert sorted(set(tried)) == [0.0, 0.5]
    assert "n-grams" not in row.way
    assert row.way != "the settings of the teacher"


def test_a_row_for_which_no_time_is_left_does_not_begin(c, monkeypatch):
    monkeypatch.setattr(FullData, "trained", None)
    assert FullData(c).same_seconds(1.0, allowed=0.9) is None


def test_a_row_without_trials_says_so(c):
    row = FullData(c).same_seconds(0.05, allowed=0.06)
    assert row.way == f"{WAYS[0]}, not compared with other ways for lack of time"


def test_a_training_on_all_data_ends_after_its_seconds(c, monkeypatch):
    """Its steps were timed before another program began."""
    now = [0.0]
    real = teacher.train_on

    def slow(*given, **settings):
        now[0] += 0.03
        return real(*given, **settings)

    monkeypatch.setattr(full_data.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(teacher, "train_on", slow)
    found = FullData(c).trained(WAYS[1], seconds=1.0, step_seconds=0.01, seed=1)
    assert 0.9 < now[0] < 1.1
    assert found.steps == pytest.approx(33, abs=3)


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


@pytest.mark.slow
def test_a_training_that_has_stopped_does_not_go_on(c):
    """One that learns by heart goes back to its best state, and is not doubled."""
    fast = TeacherTraining(InnerAdam(0.1), steps=80, batch_size=64, longer=16)
    found = fast.train(c.learner, FullData(c).data, 5)
    assert found.still_learning is False
    assert found.steps < 400


def test_a_training_that_diverges_is_the_worst(c):
    full = FullData(c)
    assert full.tried(RealTraining("adam", 1e30, 160), 0.1).error == math.inf
