"""How many of torch's threads a search uses. Two threads wait for each other at each operation, so
where other programs take a part of a core, one alone may be three times as fast.

The number is chosen when a search begins, and again where steps have become much slower: when a
stage begins, and within the training of a teacher.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import torch

from farzi_hf.common.text import count_of
from farzi_hf.report.search_trials import SearchTrials

_REVIEWED = 1
"""Steps that are timed where a stage begins. It is one, because beside other programs a step may
take seconds.
"""
_MUCH_SLOWER = 1.5
"""How many times as long as before a step takes, if threads are to be chosen again."""
_WATCHED = 3.0
"""Seconds of a training after which the mean of its last steps is looked at. A step that takes
longer is looked at alone.
"""


@dataclass
class SearchThreads:
    """Sets torch's threads for a search. On a GPU, and where there is one thread, there is no choice.

    Args:
        trials: of the search. What was measured is kept among them. Their `slower` and `watch` are
            set here.
        learner: the architecture whose steps are timed.
    """

    trials: SearchTrials
    learner: Mapping[str, Any]
    _step_seconds: dict[int, float] = field(init=False, default_factory=dict)
    """As they were measured last, by the number of threads; empty where there is no choice."""
    _at_first: float = field(init=False, default=0.0)
    """Seconds of a step at the beginning."""

    def choose(self) -> None:
        """Sets one thread, or leaves them as many as they are: whichever is faster."""
        given = torch.get_num_threads()
        config = self.trials.config(self.learner, str(self.trials.folder))
        if given == 1 or config.device.type != "cpu":
            return
        trial = self.trials.trial("threads", lambda: _fastest(self._seconds_with([given, 1])))
        torch.set_num_threads(trial.found["threads"])
        # Earlier versions have not kept the seconds.
        self._step_seconds = _by_number(trial.found.get("seconds", {}))
        self._at_first = min(self._step_seconds.values(), default=0.0)
        self.trials.watch = lambda: StepWatch([given, 1], self.trials.show)

    def review(self, stage: str) -> None:
        """Chooses again if a step takes much longer than before, because other programs have begun.
        What is planned from then on takes as much longer as a step does.

        Args:
            stage: that begins now.
        """
        if not self._step_seconds:
            return
        before = torch.get_num_threads()
        others = [number for number in self._step_seconds if number != before]

        def make() -> dict[str, Any]:
            seconds = self._seconds_with([before], _REVIEWED)
            if seconds[before] > _MUCH_SLOWER * self._step_seconds[before]:
                seconds |= self._seconds_with(others, _REVIEWED)
            return _fastest(seconds)

        trial = self.trials.trial(f"threads, {stage}", make, quiet=True)
        number = trial.found["threads"]
        torch.set_num_threads(number)
        if number != before:
            self.trials.show(_words_of_slower(trial.figure, trial.why))
        self._step_seconds |= _by_number(trial.found["seconds"])
        slower = self._step_seconds[number] / self._at_first
        self.trials.slower = slower if slower > _MUCH_SLOWER else 1.0

    def _seconds_with(self, numbers: Sequence[int], steps: int | None = None) -> dict[int, float]:
        """Seconds of a step with each of these numbers of threads.

        Args:
            numbers: of threads; torch has the last one from then on.
            steps: that are timed; None for a few.
        """
        seconds = {}
        for number in numbers:
            torch.set_num_threads(number)
            seconds[number] = self.trials.step_seconds(self.learner, steps)
        return seconds


@dataclass
class StepWatch:
    """Chooses the threads again within a training. Call it with the seconds of each step.

    Where steps become much slower than they were in this training, the next ones have each other
    number of threads for some seconds, and the fastest number stays. So no step is taken for the
    measurement alone.

    Args:
        numbers: of threads, of which one is chosen.
        show: is called with a line for the reader where the choice has changed.
    """

    numbers: Sequence[int]
    show: Callable[[str], None]
    _taken: list[float] = field(init=False, default_factory=list)
    """Seconds of the last steps, until there is a mean of them."""
    _usual: float = field(init=False, default=math.inf)
    """The lowest mean with the chosen number."""
    _compared: dict[int, float] = field(init=False, default_factory=dict)
    """Means by the number of threads since steps have become slower; empty where they have not."""

    def __call__(self, seconds: float) -> None:
        self._taken.append(seconds)
        if sum(self._taken) < _WATCHED:
            return
        mean = fmean(self._taken)
        self._taken.clear()
        if not self._compared and mean <= _MUCH_SLOWER * self._usual:
            self._usual = min(self._usual, mean)
            return
        self._compared[torch.get_num_threads()] = mean
        others = [number for number in self.numbers if number not in self._compared]
        if others:
            torch.set_num_threads(others[0])
        else:
            self._take_the_fastest()

    def _take_the_fastest(self) -> None:
        before = next(iter(self._compared))
        choice = _fastest(self._compared)
        number = choice["found"]["threads"]
        torch.set_num_threads(number)
        if number != before:
            self.show(_words_of_slower(choice["figure"], choice["why"]))
        self._usual = self._compared[number]
        self._compared = {}


def _fastest(seconds: Mapping[int, float]) -> dict[str, Any]:
    """The number of threads with which a step is fastest, as a trial has it."""
    best = min(seconds, key=seconds.get)
    figures = ", ".join(
        f"{1000 * each:.0f} ms with {count_of(number, 'thread')}"
        for number, each in seconds.items()
    )
    return {
        "figure": f"a training step takes {figures}",
        "why": f"chosen: {best}",
        "found": {
            "threads": best,
            "seconds": {str(number): each for number, each in seconds.items()},
        },
    }


def _by_number(seconds: Mapping[str, float]) -> dict[int, float]:
    """The keys of a JSON object as numbers."""
    return {int(number): each for number, each in seconds.items()}


def _words_of_slower(figure: str, why: str) -> str:
    """What the reader is told where the choice has changed."""
    return f"other programs have slowed this one: {figure}; {why}"
