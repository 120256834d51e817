"""How students train on the packed teacher that a search has made: short ones first, on ids that
are drawn or written, and then longer ones, within the time that is left. `suggestion.Search` asks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farzi_hf.common.text import json_text
from farzi_hf.report.search_trials import SHORTEST, SearchTrials, rate_for, without_values
from farzi_hf.report.trials import Trial
from farzi_hf.summary.fitted_states import is_cheap_to_fit

EQUAL = 0.01
"""Of the error, which is nats a token, or the mean ln r of ranks: of trials that differ by less,
the first is taken, which is the cheapest.
"""
_CLOSE = 0.03
"""Of students, the first that is as near to its teacher is taken."""
_CLOSE_RANKS = 0.05
"""The same of ranks, for 1 % of HR@100."""
_OF_ALL_DATA = 2.0
"""How many trainings as long as a student's the comparison makes: one on all data, and a few trials
that choose its way. The student itself is that of its trial.
"""
_STUDENTS_NEED = 2
"""Trainings of a student that there is time for in any case: one on the summary, and in the
comparison one on all data.
"""
_MEASURED = 4
"""Models that are measured from the first trial of a student on: it, and three of the comparison.
"""
STUDENTS = (
    (100, 10, 0.03, "drawn"),
    (100, 10, 0.03, "written"),
    (300, 10, 0.03, "written"),
    (300, 10, 0.03, "drawn"),
)
"""The first students: steps, rows a step (few: of as many seconds, small steps teach more; a GPU
takes more, see `Portions`), rate at a width of 16, inputs. Cheapest first.
"""
FITTED = (25, 10, 0.03, "written")
"""The first student where what lies between its tables is fitted to the teacher's states before its
first step. That asks for rows that the teacher writes, which it then reads (recipes/LOG.md).
"""
_FALLING = 1 / 3
"""The power of the steps with which the rate falls for students of more steps (recipes/LOG.md)."""
_MORE = 1.3
"""Times the steps of the longest student so far, that the next one has at least; and times those
with which one is expected to come close, because it may learn more slowly.
"""
_MOST = 10
"""Times the steps of the longest student so far, that the next one has at most."""


@dataclass(frozen=True)
class SearchStudents:
    """The trials of students, and the one that is taken."""

    trials: SearchTrials
    """Of the search."""

    def choose(self, teacher: Trial, packed: Trial) -> Trial:
        """The settings with which a student learns most of the packed teacher: the cheapest that
        comes close, or else the best that leaves time for the comparison.

        Args:
            teacher: its trial.
            packed: that of its packing.
        """
        learner = teacher.found["learner"]
        tried: list[Trial] = []
        left_out: dict[str, list[str]] = {}
        for student in self._first_ones(learner):
            settings = self.settings(student, learner, packed.found["storage"])
            if any(trial.found == settings for trial in tried):
                continue  # the same again
            has_time = self._has_time_for(settings, tried, packed)
            question = f"time for students of {json_text(settings)}, {packed.found['folder']}"
            has_time = self.trials.decided(question, has_time)
            if not tried and not has_time:
                return self._not_tried(settings)
            if not has_time:
                left_out.setdefault(settings["inputs"], []).append(f"{settings['inner_steps']:,}")
                continue  # rows that are drawn may take less than those that are written
            tried.append(self.trials.student(learner, packed, settings))
            if self._is_close(tried[-1], packed):
                break
        if left_out:
            parts = [
                f"{' or '.join(steps)} steps of {rows} rows" for rows, steps in left_out.items()
            ]
            self.trials.show(f"no time is left for students of {'; of '.join(parts)}")
        while (settings := self._longer(learner, tried, packed)) is not None:
            tried.append(self.trials.student(learner, packed, settings))
        in_time = [trial for trial in tried if self._can_be_compared(trial)]
        in_time = in_time or [min(tried, key=lambda trial: trial.training_seconds)]
        best = min(trial.error for trial in in_time)
        return next(trial for trial in in_time if trial.error <= best + EQUAL)

    def _is_close(self, student: Trial, packed: Trial) -> bool:
        """Whether it has learnt nearly all that its teacher knows."""
        return student.error <= packed.error + self._close

    @property
    def _close(self) -> float:
        """How far a student may be from its teacher to be near it."""
        return _CLOSE_RANKS if self.trials.task.ranked else _CLOSE

    def _can_be_compared(self, student: Trial) -> bool:
        """Whether there is time to train on all data for as long as this student."""
        _, measuring = self.trials.pace
        trainings = (_STUDENTS_NEED - 1) * student.training_seconds
        needed = trainings + (_MEASURED - 1) * measuring + self.trials.seconds_of_files
        question = f"time to compare {json_text(student.found)}"
        return self.trials.decided(question, needed <= self.trials.left)

    def _not_tried(self, settings: dict[str, Any]) -> Trial:
        """Students of these settings, for whose trial there is no time; of fewer steps where there
        is no time to compare them either.
        """
        each, measuring = self.trials.pace
        left = self.trials.left - (_MEASURED - 1) * measuring - self.trials.seconds_of_files
        in_time = int(left / _STUDENTS_NEED / max(each, 1e-9))
        steps = min(settings["inner_steps"], max(SHORTEST, in_time))
        steps = self.trials.decided("steps of students that are not tried", steps)
        found = {**settings, **self.trials.asked(inner_steps=steps)}
        self.trials.show(
            "no time is left for trials of students: the rest is for the comparison and the files."
            f" Students train for {found['inner_steps']} steps"
        )
        return Trial("student, not tried", found=found)

    def _longer(
        self, learner: Mapping[str, Any], tried: Sequence[Trial], packed: Trial
    ) -> dict[str, Any] | None:
        """The settings of a longer student. None where one is close to its teacher, where steps are
        given, and where so little time is left that it would hardly be longer, or no better.

        What a student has left to learn is halved by twice the steps (recipes/LOG.md). So it has
        the inputs of the longest so far that will leave the least, in as many steps as each can
        have.
        """
        is_close = any(self._is_close(trial, packed) for trial in tried)
        if is_close or "inner_steps" in self.trials.fixed:
            return None
        last = max(trial.found["inner_steps"] for trial in tried)
        longest = [trial for trial in tried if trial.found["inner_steps"] == last]
        best = min(trial.error for trial in tried)
        shorter = [trial.error for trial in tried if trial.found["inner_steps"] < last]
        if last > STUDENTS[-1][0] and best > min(shorter) - EQUAL:
            self.trials.show("a longer student is no better")
            return None
        question = f"steps of a student after {last}, {packed.found['folder']}"
        steps = {trial.found["inputs"]: self._steps_after(trial, packed) for trial in longest}
        steps = self.trials.decided(question, steps)
        longer = [trial for trial in longest if steps[trial.found["inputs"]] >= _MORE * last]
        if not longer:
            self.trials.show("no time is left for a longer student")
            return None

        def expected(trial: Trial) -> float:
            left_to_learn = trial.error - packed.error
            return packed.error + left_to_learn * last / steps[trial.found["inputs"]]

        like = min(longer, key=expected)
        if expected(like) > best - EQUAL:
            self.trials.show("in the time that is left, a longer student would be no better")
            return None
        inputs = like.found["inputs"]
        _, rows, rate, _ = STUDENTS[-1]
        student = (_two_digits(steps[inputs]), rows, rate, inputs)
        return self.settings(student, learner, packed.found["storage"])

    def _steps_after(self, student: Trial, packed: Trial) -> float:
        """How many steps one like this can have: as many as will bring it close to its teacher, or
        as many as can be tried and compared with all data.
        """
        last = student.found["inner_steps"]
        enough = _MORE * last * (student.error - packed.error) / self._close
        seconds = self.trials.left - self.trials.seconds_of_files
        seconds -= _MEASURED * (student.seconds - student.training_seconds)
        each = max(student.training_seconds / last, 1e-9)
        return min(enough, seconds / (1 + _OF_ALL_DATA) / each, _MOST * last)

    def _has_time_for(
        self, settings: Mapping[str, Any], tried: Sequence[Trial], packed: Trial
    ) -> bool:
        """Whether a student of these settings can be tried, and compared with all data.
        Its time is that of the last one with such inputs, in the proportion of its steps. Where no
        student had such inputs, it is that of the last one, and that of making rows. The time of
        the first one is known by the first answer.
        """
        if not tried:
            return self.trials.left >= self.seconds_needed()
        alike = [trial for trial in tried if trial.found["inputs"] == settings["inputs"]]
        last = (alike or tried)[-1]
        seconds = settings["inner_steps"] / last.found["inner_steps"] * last.training_seconds
        if settings["inputs"] != last.found["inputs"]:
            rows = settings["inner_steps"] * settings["synthetic_batch_size"]
            seconds += rows * self.trials.seconds_of_row(packed, settings["inputs"])
        measuring = last.seconds - last.training_seconds
        needed = (1 + _OF_ALL_DATA) * seconds + measuring + self.trials.seconds_of_files
        return needed <= self.trials.left

    # -- settings and seconds ----------------------------------------------------------------------

    def are_short(self, learner: Mapping[str, Any]) -> bool:
        """Whether the first one takes few steps, because its layers are fitted to its teacher."""
        given = self.trials.fixed
        start = given.get("student_start")
        if "inner_steps" in given or start not in (None, "teacher"):
            return False
        return is_cheap_to_fit(without_values(self.trials.task, learner, self.trials.length))

    def _first_ones(self, learner: Mapping[str, Any]) -> list[tuple[int, int, float, str]]:
        """The students of trials that no other trial suggests, in their order."""
        return [FITTED, *STUDENTS] if self.are_short(learner) else list(STUDENTS)

    def first_settings(self, learner: Mapping[str, Any], storage: str) -> dict[str, Any]:
        """Those of the first student."""
        return self.settings(self._first_ones(learner)[0], learner, storage)

    def settings(
        self,
        student: tuple[int, int, float, str],
        learner: Mapping[str, Any],
        storage: str,
    ) -> dict[str, Any]:
        """The settings of a student, as far as they are not given. For more steps than the first
        students have, the rate falls.
        """
        steps, rows, rate, inputs = student
        steps = self.trials.fixed.get("inner_steps", steps)
        few = STUDENTS[-1][0]
        rate *= (few / max(steps, few)) ** _FALLING
        return self.trials.asked(
            inner_steps=steps,
            synthetic_batch_size=rows * self.trials.wider,
            inner_learning_rate=rate_for(learner, rate * self.trials.wider**0.25),
            storage=storage,
            inputs=inputs,
        )

    def seconds_needed(self, is_tried: bool = False) -> float:
        """The seconds that trials and the comparison of the shortest students need, by the first
        answer.

        Args:
            is_tried: whether one of them has been trained and measured.
        """
        each, measuring = self.trials.pace
        first = self.trials.first_student
        steps = 0 if first is None else first.found.get("shortest", STUDENTS[0][0])
        trainings = (_STUDENTS_NEED - is_tried) * steps * each
        return trainings + (_MEASURED - is_tried) * measuring + self.trials.seconds_of_files

    @property
    def fewest_seconds(self) -> float:
        """Those of the shortest way from the first answer to a verdict."""
        each, measuring = self.trials.pace
        steps = min(SHORTEST, self.trials.fixed.get("inner_steps", SHORTEST))
        measured = measuring + _MEASURED * measuring  # the packed teacher, and then the others
        return measured + _STUDENTS_NEED * steps * each + self.trials.seconds_of_files


def _two_digits(steps: float) -> int:
    """The largest number of two digits, and zeros, that is not above these steps."""
    unit = 10 ** max(0, int(math.log10(steps)) - 1)
    return int(steps / unit) * unit
