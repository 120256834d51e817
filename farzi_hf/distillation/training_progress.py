"""How far the training of a teacher is: its learning rate, how it ends in time, and the file from
which it goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

import torch

from farzi_hf.common.tensors import load_tensors, save_tensors
from farzi_hf.distillation.learner import Parameters
from farzi_hf.engine import InnerOptimizer, TrainingState

_LATE = 0.03  # of the seconds of a training: it may be late by so much before it is cut


@dataclass
class Progress:
    """How far the training of a teacher is. A file keeps the numbers in this order, and the cuts
    beside them.
    """

    step: int
    """Steps so far."""
    steps: int
    """Of the whole training."""
    held: int
    """Steps until the rate falls."""
    level: float = 1.0
    """The share of the rate from which it falls then."""
    lowest: float = math.inf
    """The lowest loss on held-out rows."""
    before: float = math.inf
    """The same, of the steps before the rate fell."""
    error: float = math.inf
    """The last loss on held-out rows."""
    has_stopped: bool = False
    """Whether the loss fell no more, so that the training went back to its best state."""
    all_steps: int = 0
    """Steps so far, those before the training went back too."""
    seconds: float = 0.0
    """That it has taken."""
    cuts: dict[int, int] = field(default_factory=dict)
    """After how many of all steps it was cut, and to how many of all steps."""

    def share_of_rate(self, step: int) -> float:
        """Of the learning rate, in this step: it stays, and then falls to 0 on a straight line."""
        fallen = max(0, step - 1 - self.held)
        return self.level * (1 - fallen / max(1, self.steps - self.held))

    @property
    def end(self) -> int:
        """All steps when the training ends."""
        return self.all_steps + self.steps - self.step

    def cut(self, end: int) -> None:
        """The rate falls from now on, so that the training ends after so many of all steps."""
        self.level = self.share_of_rate(self.step + 1)
        self.held = self.step
        self.steps = self.step + end - self.all_steps
        self.cuts[self.all_steps] = end

    def go_on(self) -> None:
        """The rate stays for as many steps again."""
        self.held *= 2
        self.steps *= 2

    def go_back(self, step: int) -> None:
        """To the best state: the rate falls from there, in as many steps as it took."""
        self.has_stopped = True
        self.step = step
        self.held = step
        self.steps = 2 * step


class Pace:
    """The seconds that a training has, and how many steps they allow.

    Args:
        within: seconds of the whole training.
        progress: how far it is.
    """

    def __init__(self, within: float, progress: Progress) -> None:
        self._within = within
        self._began = time.perf_counter() - progress.seconds
        self._marks = [(progress.seconds, progress.all_steps)]

    @property
    def seconds(self) -> float:
        """That the training has taken, in earlier starts too."""
        return time.perf_counter() - self._began

    def mark(self, progress: Progress) -> None:
        """From the mark before this one on, the seconds of a step are measured."""
        self._marks = [self._marks[-1], (self.seconds, progress.all_steps)]

    def end(self, progress: Progress) -> int:
        """All steps with which the training ends in time: as many as are planned, or fewer, if it
        would be late. While the rate stays, that is decided after half of the time, because the
        rate falls for as long as it has stayed; and so it is where the rate falls from the first
        step on, because the first steps tell little about the time of the others.
        """
        seconds, steps = self._marks[0]
        spent = self.seconds
        may_wait = progress.step < progress.held or not progress.held
        is_early = may_wait and spent < self._within / 2
        if is_early or progress.all_steps == steps or math.isinf(self._within):
            return progress.end
        each = (spent - seconds) / (progress.all_steps - steps)
        left = self._within - spent
        if each * (progress.end - progress.all_steps) <= left + _LATE * self._within:
            return progress.end
        return progress.all_steps + max(1, int(left / each))


def cuts_of(name: str, numbers: Any) -> dict[int, int]:
    """The cuts of a training by the setting of that name. Raises ValueError if it is no list of
    pairs of integers that are in order.
    """
    numbers = list(numbers) if isinstance(numbers, list | tuple) else [numbers]
    are_integers = all(type(number) is int for number in numbers)
    pairs = list(zip(numbers[::2], numbers[1::2], strict=False))
    if not are_integers or len(numbers) % 2 or not _are_cuts(pairs):
        raise ValueError(
            f"{name}={numbers!r:.200} is not usable; give pairs of a number of steps and a larger"
            " one, such as [400, 600], or leave it out"
        )
    return dict(pairs)


def _are_cuts(pairs: Sequence[tuple[int, int]]) -> bool:
    """Whether each cut is after the one before it, and leaves some steps."""
    afters = [after for after, _ in pairs]
    return afters == sorted(set(afters)) and all(0 < after < end for after, end in pairs)


def numbers_of_cuts(cuts: Mapping[int, int]) -> list[int]:
    """The inverse of `cuts_of`."""
    return [number for pair in cuts.items() for number in pair]


def write_training(
    kept: Path,
    state: TrainingState,
    best: TrainingState | None,
    progress: Progress,
    curve: Sequence[tuple[int, float]],
) -> None:
    """Writes the state of a training, from which it goes on.

    Args:
        kept: the file.
        best: the best state so far; None where there are no held-out rows.
        curve: pairs of steps and the loss on held-out rows after them.
    """
    *numbers, cuts = astuple(progress)
    best_step = 0 if best is None else best.step
    tensors = {
        **state.to_tensors("now"),
        **({} if best is None else best.to_tensors("best")),
        "numbers": torch.tensor([best_step, *numbers], dtype=torch.float64),
        "cuts": torch.tensor(numbers_of_cuts(cuts), dtype=torch.int64),
        "curve": torch.tensor(curve, dtype=torch.float64).reshape(-1, 2),
    }
    save_tensors(kept, {name: x.cpu().contiguous() for name, x in tensors.items()})


def read_training(
    kept: Path, start: Parameters, optimizer: InnerOptimizer, is_judged: bool
) -> tuple[TrainingState, TrainingState | None, Progress, list[tuple[int, float]]]:
    """What `write_training` has written: the state, the best one so far, how far the training is,
    and its curve. Raises ValueError if the file holds no training.

    Args:
        kept: the file.
        start: the parameters with which the training began, whose names and shapes it has.
        is_judged: whether there are held-out rows, and so a best state.
    """
    try:
        tensors, _ = load_tensors(kept)
        best_step, *numbers = tensors["numbers"].tolist()
        kinds = [type(value) for value in astuple(Progress(0, 0, 0))[:-1]]
        known = (kind(x) for kind, x in zip(kinds, numbers, strict=True))
        progress = Progress(*known, cuts_of("cuts", tensors["cuts"].tolist()))
        now = TrainingState.of_tensors("now", tensors, start, optimizer, progress.step)
        best = None
        if is_judged:
            best = TrainingState.of_tensors("best", tensors, start, optimizer, int(best_step))
        # Files of older versions have no curve.
        curve = [(int(step), x) for step, x in tensors.get("curve", torch.empty(0)).tolist()]
        return now, best, progress, curve
    except (KeyError, ValueError, TypeError) as error:
        raise ValueError(
            f"{str(kept)!r} holds no training that can go on ({error}); remove it, and the"
            " training begins again"
        ) from None


def seconds_of(kept: Path) -> float:
    """How long the training whose state is in this file has taken; 0 if there is none. Raises
    ValueError if the file is damaged.
    """
    return float(load_tensors(kept)[0]["numbers"][-1]) if kept.exists() else 0.0


def steps_of(kept: Path | None) -> int:
    """How many steps that training has taken, those from which it went back too. 0 if there is no
    file, or it holds no training: an error follows where the training begins.
    """
    if kept is None or not kept.exists():
        return 0
    try:
        return int(load_tensors(kept)[0]["numbers"][-2])
    except (ValueError, LookupError):
        return 0
