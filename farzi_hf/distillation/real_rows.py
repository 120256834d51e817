"""The real rows of a `FarziTrainer`: cut as its task cuts them, and checked. Errors name the argument."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from datasets import Dataset, IterableDataset

from farzi_hf.data.sequences import check_ids
from farzi_hf.data.streams import RowStream
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.row_checks import check_rows, run_check
from farzi_hf.tasks import Task

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

    def training(self, dataset: Dataset | IterableDataset | None, args: FarziConfig) -> Dataset | RowStream | None:
        """The rows to train on; None stays None. A stream is cut and checked while it is read.

        Args:
            args: a stream sets `accelerator_config.dispatch_batches` to False: each process reads and pads its own rows.

        Raises:
            ValueError: rows cannot be used; or the epochs of a stream are to be counted.
        """
        if not isinstance(dataset, IterableDataset):
            rows = None if dataset is None else self._checked("train_dataset", self.task.training_rows, dataset)
            size = args.train_batch_size * args.world_size
            if args.dataloader_drop_last and rows is not None and len(rows) < size:
                raise ValueError(
                    f"dataloader_drop_last=True drops all {len(rows)} rows of train_dataset: a batch has {size}; leave it out"
                )
            return rows
        if args.max_steps < 0:
            raise ValueError(
                f"train_dataset is a stream, whose length is not known, so num_train_epochs={args.num_train_epochs} cannot be counted: "
                "give max_steps, and leave num_train_epochs out"
            )
        args.accelerator_config.dispatch_batches = False
        return run_check("train_dataset", RowStream, dataset, self._prepared, args.train_batch_size * args.world_size)

    def _prepared(self, some: Dataset) -> Dataset:
        rows = self.task.training_rows(some, self.length)
        if len(rows):  # short histories may leave none
            check_rows(rows, self.learner, self.collator)
        return rows

    def evaluation(self, given: EvaluationSets) -> Dataset | dict[str, Dataset] | None:
        """The rows to evaluate on, of one set or by name; None stays None.

        Raises:
            ValueError: a set cannot be used, or there is none in the dict.
        """
        if given is None or not isinstance(given, Mapping):
            return None if given is None else self._checked("eval_dataset", self.task.evaluation_rows, given)
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
        if isinstance(dataset, IterableDataset):
            raise ValueError(
                f"{argument} is a stream, but each student is evaluated on all of it: give a Dataset, such as "
                "Dataset.from_list(list(stream.take(1000)))"
            )
        rows = run_check(argument, cut, dataset, self.length)
        if rows is not dataset and len(dataset):  # errors should name the user's rows, not those cut of them
            run_check(argument, check_ids, dataset, self.learner.vocab_size)
            if not len(rows):
                raise ValueError(
                    f"{argument}: none of its {len(dataset)} rows has 2 ids, so there is nothing to predict"
                )
        run_check(argument, check_rows, rows, self.learner, self.collator)
        # Rows as lists. A transform of the user's stays.
        return rows if rows.format["type"] == "custom" else rows.with_format(None)
