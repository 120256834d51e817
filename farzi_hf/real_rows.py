"""The real rows of a `FarziTrainer`: cut as its task cuts them, and checked. Errors name the argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datasets import Dataset

from farzi_hf.distillation import Learner
from farzi_hf.distillation.row_checks import check_rows, run_check
from farzi_hf.evaluation.tasks import Task

EvaluationSets = Dataset | Mapping[str, Dataset] | None
"""One evaluation set, or several by name."""


@dataclass(frozen=True)
class RealRows:
    """Makes the rows that a learner reads of the data sets that a user gives.

    Args:
        task: cuts histories.
        learner: must be able to read the rows.
        collator: makes a batch of rows.
        length: ξ, of a synthetic sequence.
    """

    task: Task
    learner: Learner
    collator: Callable
    length: int

    def training(self, dataset: Dataset | None) -> Dataset | None:
        """The rows to train on; None stays None."""
        return None if dataset is None else self._checked("train_dataset", self.task.training_rows, dataset)

    def evaluation(self, given: EvaluationSets) -> Dataset | dict[str, Dataset] | None:
        """The rows to evaluate on, of one set or by name; None stays None.

        Raises:
            ValueError: a set cannot be used, or there is none in the dict.
        """
        if given is None or not isinstance(given, Mapping):
            return given if given is None else self._checked("eval_dataset", self.task.evaluation_rows, given)
        if not given:
            raise ValueError("eval_dataset is a dict without data sets: give at least one, or None")
        rows = self.task.evaluation_rows
        return {name: self._checked(f"eval_dataset[{name!r}]", rows, dataset) for name, dataset in given.items()}

    def evaluated(self, given: str | EvaluationSets, own: EvaluationSets) -> dict[str, Dataset]:
        """The rows of one evaluation, by what is added to the prefix of their metrics: nothing, or `_NAME` where there are several sets.

        Args:
            given: to `evaluate()`: data, or the name of a set of `own`.
            own: the rows of the trainer, checked; they are taken where `given` is None.

        Raises:
            ValueError: as `evaluation`; or there are no rows, or none of this name.
        """
        if isinstance(given, str):
            if not (isinstance(own, Mapping) and given in own):
                names = f"several, {', '.join(own)}" if isinstance(own, Mapping) else "none with a name"
                raise ValueError(
                    f"eval_dataset={given!r} is not one of FarziTrainer's sets: it has {names}; give a name or rows"
                )
            return {"": own[given]}
        rows = own if given is None else self.evaluation(given)
        if rows is None:
            raise ValueError("eval_dataset is None; give one to evaluate() or to FarziTrainer")
        return {f"_{name}": x for name, x in rows.items()} if isinstance(rows, Mapping) else {"": rows}

    def _checked(self, argument: str, cut: Callable[[Dataset, int], Dataset], dataset: Dataset) -> Dataset:
        rows = run_check(argument, cut, dataset, self.length)
        run_check(argument, check_rows, rows, self.learner, self.collator)
        return rows
