"""How many threads a search uses: as many as are fastest, now and where other programs begin."""

from __future__ import annotations

import pytest
import torch

from farzi_hf import LanguageModeling
from farzi_hf.report.search_threads import SearchThreads, StepWatch
from farzi_hf.report.suggestion import Search

GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1}
IDLE = {2: 0.3, 1: 0.4}
"""Seconds of a step with so many threads."""
BUSY = {2: 2.4, 1: 0.8}
"""The same beside another program: two threads wait for each other."""


@pytest.fixture(autouse=True)
def two_threads(monkeypatch):
    """Two threads that nobody really sets."""
    now = [2]
    monkeypatch.setattr(torch, "get_num_threads", lambda: now[-1])
    monkeypatch.setattr(torch, "set_num_threads", now.append)


@pytest.fixture
def begun(sequences, tokenizer, tmp_path):
    """Makes the threads of a search that is started, or started again."""

    def begin(seconds, lines=None, fixed=None):
        """`seconds` of a step, by the number of threads."""
        torch.set_num_threads(2)
        search = Search(
            sequences,
            LanguageModeling(tokenizer),
            tmp_path,
            "run",
            minutes=1.0,
            learner=GPT2,
            fixed={"use_cpu": True, **(fixed or {})},
            show=(lines if lines is not None else []).append,
        )
        search.trials.step_seconds = lambda learner, steps: seconds[torch.get_num_threads()]
        threads = SearchThreads(search.trials, GPT2)
        threads.choose()
        return threads

    return begin


@pytest.mark.parametrize(("of_one", "chosen"), [(0.1, 1), (0.4, 2)])
def test_threads_that_wait_for_each_other_are_not_used(of_one, chosen, begun):
    """Beside another program, a step of two threads took 265 ms, and one of one thread 92 ms."""
    begun({1: of_one, 2: 0.3})
    assert torch.get_num_threads() == chosen
    begun({})  # the second start measures nothing
    assert torch.get_num_threads() == chosen


def test_one_thread_leaves_no_choice(begun, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    threads = begun({})
    threads.review("packing")
    assert threads.trials.made == []
    assert threads.trials.watch is None


def test_a_stage_begins_with_as_many_threads_as_are_fastest_then(begun):
    lines = []
    seconds = dict(IDLE)
    threads = begun(seconds, lines)
    threads.review("the teacher")
    assert (torch.get_num_threads(), threads.trials.slower) == (2, 1.0)
    said = len(lines)
    seconds |= BUSY
    threads.review("packing")
    assert torch.get_num_threads() == 1
    assert threads.trials.slower == pytest.approx(BUSY[1] / IDLE[2])
    assert lines[said:] == [
        "other programs have slowed this one: a training step takes 2400 ms with 2 threads, 800 ms"
        " with 1 thread; chosen: 1"
    ]
    again = begun({})  # the second start measures nothing
    again.review("the teacher")
    again.review("packing")
    assert torch.get_num_threads() == 1
    assert again.trials.slower == threads.trials.slower


# -- within a training -----------------------------------------------------------------------------


def take(watch, seconds, of_training):
    """How many steps there were, of so many seconds by the number of threads, in so many seconds."""
    steps = 0
    while of_training > 0:
        each = seconds[torch.get_num_threads()]
        watch(each)
        of_training -= each
        steps += 1
    return steps


def test_steps_that_become_slower_have_other_threads():
    lines = []
    watch = StepWatch([2, 1], lines.append)
    take(watch, IDLE, 20.0)
    assert torch.get_num_threads() == 2
    assert take(watch, BUSY, 80.0) > 90  # a hundred with one thread alone, 33 with two
    assert torch.get_num_threads() == 1
    [line] = lines
    assert line.endswith(" ms with 2 threads, 800 ms with 1 thread; chosen: 1")


def test_threads_that_are_faster_all_the_same_stay():
    lines = []
    watch = StepWatch([2, 1], lines.append)
    take(watch, IDLE, 20.0)
    slower = {number: 3 * each for number, each in IDLE.items()}
    take(watch, slower, 20.0)
    assert torch.get_num_threads() == 2
    assert not lines
    # From then on this is what a step takes: one window of one thread, and no more.
    assert take(watch, slower, 90.0) == pytest.approx(100, abs=1)


def test_one_slow_step_changes_nothing():
    watch = StepWatch([2, 1], pytest.fail)
    take(watch, IDLE, 20.0)
    watch(1.0)
    take(watch, IDLE, 20.0)
    assert torch.get_num_threads() == 2


def test_the_first_steps_of_a_training_are_slow_or_not():
    """A training that begins beside another program has nothing to compare with: its stage has
    chosen the threads.
    """
    watch = StepWatch([2, 1], pytest.fail)
    take(watch, BUSY, 60.0)
    assert torch.get_num_threads() == 2
