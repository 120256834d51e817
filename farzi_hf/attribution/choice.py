"""Which way to choose rows is the best for a target: fresh models are trained on what each of them
chose, and compared on held-out rows of the target.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor
from torch.utils.data import Dataset
from tqdm.auto import tqdm

from farzi_hf.attribution.choosers import Chooser, SelectionProblem
from farzi_hf.attribution.outer_steps import bar_of, identity_of_steps
from farzi_hf.attribution.queries import Targets
from farzi_hf.attribution.scoring import read_kept
from farzi_hf.attribution.trainings import Trainings
from farzi_hf.common.tensors import save_tensors
from farzi_hf.summary.store.tensor_file import fingerprint

_FIRST = 10_000
"""The number of the first training that measures. Weights are learnt in others."""


@dataclass(frozen=True, eq=False)
class Chosen:
    """What one way has chosen, and how good models trained on it are."""

    method: str
    """The way."""
    is_cheap: bool
    """Whether it took no training that is differentiated."""
    weights: Tensor
    """(n,): shares of reading; 0 leaves a row out."""
    dev: list[float]
    """The loss on the target's dev part after each fresh training, in nats per token."""
    test: list[float]
    """The same on its test part."""
    seconds: float
    """The choice took, without the trainings that measure."""
    began_with: str = ""
    """The way that it began with, where its name does not say which of several that was."""

    @property
    def words(self) -> str:
        """The way in quotation marks, and what it began with."""
        began_with = f" (here '{self.began_with}')" if self.began_with else ""
        return f"'{self.method}'{began_with}"

    @property
    def rows(self) -> int:
        """How many rows stay."""
        return int((self.weights > 0).sum())

    def row(self) -> dict[str, Any]:
        """Of a table: perplexities, with 95 % intervals of the mean over trainings."""
        return {
            "method": self.method,
            "rows": self.rows,
            "dev": math.exp(float(np.mean(self.dev))),
            "test": math.exp(float(np.mean(self.test))),
            "test_interval": [math.exp(x) for x in interval(self.test)],
            "seconds": round(self.seconds, 1),
        }


def interval(losses: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of a mean by Student's t; of a single number NaN."""
    if len(losses) < 2:
        return (math.nan, math.nan)
    error = float(np.std(losses, ddof=1)) / len(losses) ** 0.5
    reach = float(scipy.stats.t.ppf(0.975, len(losses) - 1)) * error
    middle = float(np.mean(losses))
    return (middle - reach, middle + reach)


@dataclass(frozen=True, eq=False)
class Choice:
    """All ways, compared."""

    tried: Sequence[Chosen]
    """In the order in which they were asked for."""
    keep: int
    """How many rows may stay."""

    @property
    def best(self) -> Chosen:
        """Of the ways that keep no more rows than asked for, the one with the lowest mean loss on
        the dev part. So nothing is chosen that is worse there than a cheap way.
        """
        within = [each for each in self.tried if each.rows <= self.keep]
        return min(within, key=lambda each: np.mean(each.dev))

    @property
    def verdict(self) -> str:
        """Which way made the selection, what meta-gradients gained, and whether more rows would be
        better.
        """
        best = self.best
        within = [each for each in self.tried if each.rows <= self.keep]
        cheap = [each for each in within if each.is_cheap]
        learnt = [each for each in within if not each.is_cheap]
        said = [
            f"The rows are those of {best.words}, which is the best on the target's dev part"
            f" (perplexity {math.exp(np.mean(best.dev)):.4g}; {math.exp(np.mean(best.test)):.4g} on"
            " its test part)."
        ]
        if cheap and learnt:
            first = min(cheap, key=lambda each: np.mean(each.dev))
            other = min(learnt, key=lambda each: np.mean(each.dev))
            gains = np.subtract(first.test, other.test).tolist()
            low, high = interval(gains)
            gained = float(np.mean(gains))
            word = "better" if gained > 0 else "worse"
            level = ", so they are level" if low <= 0 <= high else ""
            said.append(
                f"The best way that needs no meta-gradient is '{first.method}'. On the test part"
                f" '{other.method}' is {abs(gained):.3f} nats {word} than that (95 % interval of"
                f" what it gains: {low:+.3f} to {high:+.3f}{level})."
            )
        larger = [each for each in self.tried if each.rows > self.keep]
        most = min(larger, key=lambda each: np.mean(each.dev), default=best)
        if np.mean(most.dev) < np.mean(best.dev):
            said.append(
                f"But '{most.method}' ({most.rows:,} rows), for as many steps, is better on the dev"
                f" part ({math.exp(np.mean(most.dev)):.4g}; {math.exp(np.mean(most.test)):.4g} on"
                " the test part)."
            )
        return " ".join(said)


def choose(
    problem: SelectionProblem,
    choosers: Sequence[Chooser],
    dev: Mapping[str, Dataset],
    test: Mapping[str, Dataset],
    *,
    trainings: int = 3,
    measured_in: Trainings | None = None,
    folder: Path | None = None,
    tell: Callable[[Chosen], Any] = lambda chosen: None,
) -> Choice:
    """Compares ways to choose rows. All trainings take as many steps; the k-th of each way has the
    same start.

    Args:
        problem: the pool, the target's rows to choose by, and how many rows stay.
        choosers: the ways.
        dev: other rows of the targets, by which one way is chosen.
        test: rows of the targets that nothing was chosen by.
        trainings: fresh models for each way.
        measured_in: the trainings of these models; by default those of the problem.
        folder: keeps what each way has chosen, and how good it is. A later call with the same
            problem and parts goes on from there.
        tell: is called with each way when it is measured.

    Raises:
        ValueError: a way cannot choose.
        FloatingPointError: a training diverged.
    """
    measured_in = measured_in or problem.trainings
    kept = None
    if folder is not None:
        kept = _KeptChoices(folder, problem, measured_in, (dev, test), trainings)
    costs = [each.cost(problem) + trainings * problem.steps for each in choosers]
    tried = []
    with bar_of(problem.trainings, sum(costs)) as bar:
        shown = replace(problem, trainings=_told(problem.trainings, bar), progress=bar)
        for chooser, cost in zip(choosers, costs, strict=True):
            bar.set_postfix_str(chooser.name)
            chosen = None if kept is None else kept.read(chooser)
            if chosen is not None:
                bar.update(cost)
                problem.note_choice(chosen.method, chosen.weights, chosen.seconds)
            else:
                weights = shown.weights(chooser)
                seconds = chooser.seconds(shown)
                measured = losses(_told(measured_in, bar), weights, (dev, test), trainings)
                chosen = Chosen(
                    chooser.name,
                    chooser.is_cheap,
                    weights,
                    *measured,
                    seconds,
                    chooser.begins_with(problem),
                )
                if kept is not None:
                    kept.write(chooser, chosen)
            tried.append(chosen)
            problem.note_dev_losses(chosen.method, chosen.dev)
            tell(chosen)
    return Choice(tried, problem.keep)


def _told(trainings: Trainings, bar: tqdm) -> Trainings:
    """The same trainings, each gradient of which the bar is told of."""
    return replace(trainings, replay=replace(trainings.replay, on_gradient=bar.update))


def choice_file(folder: Path, name: str) -> Path:
    """The file in which `choose` keeps what the way of this name has chosen."""
    return folder / f"choice-{name.replace(', ', '-').replace(' ', '-')}.safetensors"


class _KeptChoices:
    """What ways have chosen, in a folder.

    Args:
        folder: of the files, one for each way.
        problem: of the choice.
        measured_in: the trainings that measure.
        parts: of the targets, dev and test.
        trainings: fresh models for each way.
    """

    def __init__(
        self,
        folder: Path,
        problem: SelectionProblem,
        measured_in: Trainings,
        parts: Sequence[Mapping[str, Dataset]],
        trainings: int,
    ) -> None:
        self.folder = folder
        self.writes = problem.trainings.replay.trainer.is_world_process_zero()
        digest = hashlib.sha256(repr((problem.keep, trainings)).encode())
        for each in dict.fromkeys((problem.trainings, problem.smooth, measured_in)):
            digest.update(identity_of_steps(each, problem.targets).encode())
        for part in parts:
            for batch in Targets(problem.trainings.replay, part).batches():
                digest.update(fingerprint(batch).encode())
        self.identity = digest.hexdigest()

    def read(self, chooser: Chooser) -> Chosen | None:
        """What an earlier call has kept of a way; None where there is nothing."""
        file = self._file(chooser.name)
        if not file.exists():
            return None
        tensors, facts = read_kept(
            file,
            self.identity + chooser.identity,
            name=repr(str(file)),
            again="this choice is made again",
            others="another choice (other rows, groups, targets or settings)",
        )
        known = json.loads(facts["known"])
        return Chosen(chooser.name, chooser.is_cheap, tensors["weights"], **known)

    def write(self, chooser: Chooser, chosen: Chosen) -> None:
        """Keeps what a way has chosen."""
        if not self.writes:
            return
        known = {
            "dev": chosen.dev,
            "test": chosen.test,
            "seconds": chosen.seconds,
            "began_with": chosen.began_with,
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        save_tensors(
            self._file(chosen.method),
            {"weights": chosen.weights.contiguous()},
            identity=self.identity + chooser.identity,
            known=json.dumps(known),
        )

    def _file(self, name: str) -> Path:
        return choice_file(self.folder, name)


def losses(
    trainings: Trainings, weights: Tensor, parts: Sequence[Mapping[str, Dataset]], count: int
) -> list[list[float]]:
    """For each part the mean loss of its targets after each of some fresh trainings."""
    found: list[list[float]] = [[] for _ in parts]
    for number in range(_FIRST, _FIRST + count):
        training = trainings.training(weights, number)
        with torch.no_grad(), training.trainer.accelerator.autocast():
            theta = training.train()
            for part, of_part in zip(parts, found, strict=True):
                queries = Targets(training, part)
                values = [queries.value(theta, query) for query in range(len(queries))]
                of_part.append(float(np.mean(values)))
    if not np.isfinite(found).all():
        raise FloatingPointError("a training on chosen rows diverged; give a smaller learning_rate")
    return found
