"""Real rows: cut as a task cuts them, checked for the learner, and trained on by teachers, students
and Ω. Errors name the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from datasets import Dataset, IterableDataset
from torch import Tensor

from farzi_hf.data import IGNORED, check_sequences, minibatches
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.data.sequences import (
    SEEN,
    SEQUENCE_COLUMNS,
    as_rows,
    check_ids,
    stored_sequences,
)
from farzi_hf.data.streams import RowStream
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.nested_dropout import dimensions_read
from farzi_hf.engine import InnerOptimizer, TrainingState, train
from farzi_hf.engine.inner_loop import weights
from farzi_hf.summary.soft_tokens import GivenTargets, Targets
from farzi_hf.summary.teacher import numbers_beside_tables
from farzi_hf.tasks import Task
from farzi_hf.tasks.counted_labels import CountedLabels
from farzi_hf.tasks.ranks import are_last

if TYPE_CHECKING:
    from farzi_hf.distillation.config import FarziConfig

Collator = Callable[[list[dict[str, Any]]], Mapping[str, Tensor]]
EvaluationSets = Dataset | Mapping[str, Dataset] | None
"""One evaluation set, or several by name."""
T = TypeVar("T")
_TOGETHER = 64  # held-out rows that a model reads at once
_ENOUGH = 1000
"""Ranks of which a mean is steady enough to stop a training by it."""

# -- the rows of a trainer -------------------------------------------------------------------------


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

    def training(
        self, dataset: Dataset | IterableDataset | None, args: FarziConfig
    ) -> Dataset | RowStream | None:
        """The rows to train on; None stays None. A stream is cut and checked while it is read, and
        sets `accelerator_config.dispatch_batches` of `args` to False: each process reads its own
        rows. Raises ValueError if rows cannot be used; or the epochs of a stream are to be counted.
        """
        if dataset is None:
            return None
        if not isinstance(dataset, IterableDataset):
            return self._checked("train_dataset", self.task.training_rows, dataset)
        if args.max_steps < 0:
            raise ValueError(
                f"train_dataset is a stream, of which num_train_epochs={args.num_train_epochs}"
                " cannot be counted: give max_steps alone"
            )
        args.accelerator_config.dispatch_batches = False
        return run_check(
            "train_dataset",
            RowStream,
            dataset,
            self._prepared,
            args.train_batch_size * args.world_size,
        )

    def _prepared(self, some: Dataset) -> Dataset:
        rows = self.task.training_rows(some, self.length)
        if len(rows):  # short histories may leave none
            check_rows(rows, self.learner, self.collator)
        return rows

    def evaluation(self, given: EvaluationSets) -> Dataset | dict[str, Dataset] | None:
        """The rows to evaluate on, of one set or by name; None stays None. Raises ValueError if a
        set cannot be used, or the dict is empty.
        """
        if given is None:
            return None
        if not isinstance(given, Mapping):
            return self._checked("eval_dataset", self.task.evaluation_rows, given)
        if not given:
            raise ValueError("eval_dataset is a dict without data sets: give at least one, or None")
        rows = self.task.evaluation_rows
        return {
            name: self._checked(f"eval_dataset[{name!r}]", rows, dataset)
            for name, dataset in given.items()
        }

    def evaluated(self, given: EvaluationSets, own: EvaluationSets) -> dict[str, Dataset]:
        """The rows of one evaluation, by what is added to the prefix of their metrics: nothing, or
        `_NAME` where there are several sets. `given` are those of `evaluate()`, `own` the
        trainer's, which are checked, and taken where `given` is None. A ValueError if there are
        none.
        """
        rows = own if given is None else self.evaluation(given)
        if rows is None:
            raise ValueError("eval_dataset is None; give one to evaluate() or to FarziTrainer")
        if not isinstance(rows, Mapping):
            return {"": rows}
        return {f"_{name}": x for name, x in rows.items()}

    def _checked(
        self, argument: str, cut: Callable[[Dataset, int], Dataset], dataset: Dataset
    ) -> Dataset:
        # Of the user's rows, before they are cut.
        if "input_ids" in getattr(dataset, "column_names", ["input_ids"]):
            run_check(argument, check_ids, dataset, self.learner.vocab_size)
        rows = run_check(argument, cut, dataset, self.length)
        run_check(argument, check_rows, rows, self.learner, self.collator)
        # Rows as lists. A transform of the user's stays.
        return rows if rows.format["type"] == "custom" else rows.with_format(None)


# -- checks ----------------------------------------------------------------------------------------


def check_rows(dataset: Dataset, learner: Learner, data_collator: Callable) -> None:
    """Raise one clear ValueError unless the learner can read every row and has something to predict
    in it. Beside `input_ids`, rows may have `attention_mask` and `labels`, with the same lengths.
    """
    check_sequences(dataset, learner.vocab_size)
    ids, lengths = stored_sequences(dataset)
    longest = int(lengths.argmax())
    limit = learner.readable(int(lengths[longest]))
    if limit < lengths[longest]:
        raise ValueError(
            f"dataset['input_ids'][{longest}] has {lengths[longest]} ids, but the learner reads"
            f" {limit} at most: tokenize(max_length={limit})"
        )
    padding_id = getattr(data_collator, "padding_id", None)
    predicted = np.ones_like(ids, dtype=bool) if padding_id is None else ids != padding_id
    if "labels" in dataset.column_names:
        predicted = _beside(dataset, "labels", lengths) != IGNORED
    starts = np.cumsum(lengths) - lengths
    if "attention_mask" in dataset.column_names:
        read = _beside(dataset, "attention_mask", lengths) != 0
        begins = np.insert(~read[:-1] & read[1:], 0, False)
        begins[starts] = False
        if begins.any():
            row = int(np.searchsorted(starts, begins.argmax(), side="right")) - 1
            raise ValueError(
                f"dataset['attention_mask'][{row}] has 0 before 1: pad on the right"
                " (tokenizer.padding_side = 'right'), or not at all"
            )
        predicted &= read
    predicted[starts] = False  # nothing stands before the first id of a row, so it is not predicted
    empty = np.flatnonzero(~np.logical_or.reduceat(predicted, starts))
    if len(empty):
        raise ValueError(
            f"dataset[{int(empty[0])}] has nothing to predict after its first id ({len(empty)} rows"
            " are like it): filter such rows out"
        )


def _beside(dataset: Dataset, column: str, lengths: np.ndarray) -> np.ndarray:
    values, sizes = stored_sequences(dataset, column)
    differ = sizes != lengths
    if differ.any():
        row = int(differ.argmax())
        raise ValueError(
            f"dataset[{column!r}][{row}] has {sizes[row]} values beside {lengths[row]} ids: give as"
            " many"
        )
    return values


def run_check(name: str, check: Callable[..., T], *args: Any) -> T:
    """Returns `check(*args)`. A ValueError of the check is raised again, with the name of our
    argument in front.
    """
    try:
        return check(*args)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


# -- training on them ------------------------------------------------------------------------------


@dataclass(frozen=True)
class RealData:
    """The real data, and what is needed to train on them.

    Args:
        dataset: real sequences, in the column `input_ids`, with `attention_mask` and `labels` where
            there are any; or a stream of them.
        collator: makes a batch of rows.
        device: of the learner.
        quiet: whether no progress is shown.
        held_out: rows for validation, on which teachers stop early.
        ranked: whether the order of the predictions is all that counts, as where the last items of
            histories are to be found. Then the mean ln r of these items, each the r-th of those
            that its user has not had, is in the place of the loss on held-out rows. A model that
            has become too sure of itself may still rank better than before.
        count: counts the dataset, to label its rows; None where nothing does.
        counted_share: α, the share of what counts predict in what a model learns to predict.
    """

    dataset: Dataset | RowStream
    collator: Collator
    device: torch.device | str | None = None
    quiet: bool = False
    held_out: Dataset | None = None
    ranked: bool = False
    count: Callable[[Dataset], CountedLabels] | None = None
    counted_share: float = 0.0

    @cached_property
    def _columns(self) -> Dataset:
        """What a loss or a rank depends on, without the user's other columns."""
        names = (*SEQUENCE_COLUMNS, SEEN) if self.ranked else SEQUENCE_COLUMNS
        return self.dataset.select_columns(
            [name for name in names if name in self.dataset.column_names]
        )

    def rows(self, numbers: Any = slice(None)) -> list[dict[str, Any]]:
        """The rows with these numbers; all by default."""
        return as_rows(self._columns[numbers])

    def batch(self, rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        """A batch on the device."""
        return {
            name: x.to(self.device, non_blocking=True) for name, x in self.collator(rows).items()
        }

    def training_batch(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        """A batch on the device. Where counts have a share, it has `targets`, too: what the n
        entries that are predicted should be.
        """
        batch: dict[str, Any] = self.batch(rows)
        if self.counted_share:
            batch["targets"] = GivenTargets(self._targets(rows, batch["labels"]))
        return batch

    def _targets(self, rows: list[dict[str, Any]], labels: Tensor) -> Tensor:
        """q(v) = (1 − α) [v = w] + α p(v | h), see `farzi_hf.tasks.counted_labels`."""
        predicted = labels != IGNORED
        predicted[:, 0] = False
        counted = self._labels([row["input_ids"] for row in rows], predicted.cpu().numpy())
        targets = torch.from_numpy(counted).to(labels.device).mul_(self.counted_share)
        came = labels[predicted][:, None]
        return targets.scatter_add_(1, came, targets.new_full(came.shape, 1 - self.counted_share))

    @cached_property
    def _labels(self) -> CountedLabels:
        """Of the dataset. Raises ValueError if nothing counts it."""
        if self.count is None or isinstance(self.dataset, RowStream):
            raise ValueError(
                f"teacher_counted_share={self.counted_share}: n-grams are counted on a data set of"
                " text, not on a stream and not on histories of items; leave it out"
            )
        return self.count(self.dataset)


RealBatches = Callable[[int], Mapping[str, Any]]
"""The real minibatch of every step: `batches(step)`, steps count from 1."""


def real_batches(
    data: RealData, batch_size: int, steps: int, seed: int, taken: int = 0
) -> RealBatches:
    """The minibatches of `steps` steps, a function of `seed`. A batch larger than the data set
    takes all rows.

    A stream is shuffled with the seed, and read forward: ask for step 1, then for step 2, and so
    on; where a training goes on after `taken` steps, the rows of those are passed over.
    """
    if isinstance(data.dataset, RowStream):
        rows = islice(data.dataset.shuffled(seed), taken * batch_size, None)
        return lru_cache(maxsize=1)(
            lambda step: data.training_batch(list(islice(rows, batch_size)))
        )
    numbers = minibatches(len(data.dataset), batch_size, steps, seed)

    def batch_of(step: int) -> Mapping[str, Any]:
        return data.training_batch(data.rows() if numbers is None else data.rows(numbers[step - 1]))

    return batch_of


def train_on(
    loss: Callable[[Parameters, int], Tensor],
    optimizer: InnerOptimizer,
    start: Parameters | TrainingState,
    *,
    steps: int,
    every: int,
) -> Iterator[TrainingState]:
    """Trains by `loss(θ, step)` and yields the state after every `every` steps and at the end. A
    training can go on from such a state. Raises FloatingPointError if the training diverged.
    """
    state: Parameters | TrainingState = start
    for first in range(0, steps, every):
        some = min(every, steps - first)
        state = train(
            lambda params, inputs, step: loss(params, step),
            state,
            (),
            optimizer=optimizer,
            steps=some,
        )
        if not all(torch.isfinite(x).all() for x in weights(state.states)):
            raise FloatingPointError(
                f"training on real data diverged within {state.step} steps; lower the rate"
            )
        yield state


def real_loss(
    learner: Learner,
    data: RealData,
    batch_size: int,
    steps: int,
    seed: int,
    dropout: bool = True,
    taken: int = 0,
    nested_widths: Sequence[int] = (),
    targets: Callable[[Mapping[str, Tensor]], Targets] | None = None,
) -> Callable[[Parameters, int], Tensor]:
    """`loss(θ, step)` on the `real_batches` of these arguments.

    Args:
        dropout: whether the learner's own dropout is on. Its masks are a function of seed and step.
        nested_widths: of nested dropout, see `dimensions_read`; so is what it draws.
        targets: what the entries of a batch that are predicted should be; None stands for those
            that came, or for what counts make of them.
    """
    batches = real_batches(data, batch_size, steps, seed, taken)
    read = dimensions_read(learner, nested_widths, seed)

    def loss(params: Parameters, step: int) -> Tensor:
        masks = derive(seed, Purpose.DROPOUT, step) if dropout else None
        batch = batches(step)
        if targets is not None:
            batch = {**batch, "targets": targets(batch)}
        widths = read(step, len(batch["input_ids"]))
        return learner.hard_loss(params, batch, dropout=masks, widths=widths)

    return loss


def validation_loss(
    learner: Learner, data: RealData, most: int
) -> Callable[[Parameters], float] | None:
    """The mean loss per token of θ on at most `most` of the held-out rows, spread evenly; None where
    there are none. Of ranked data it is the mean ln r of the rows' last items; then more rows are
    taken, as many as take about as long as that many rows of which all items are predicted. Where
    the rows are few, more than one item of each is ranked, because the mean of few ranks is noise.
    """
    if data.held_out is None:
        return None
    held_out = replace(data, dataset=data.held_out, held_out=None)
    if data.ranked:
        lengths = stored_sequences(data.held_out)[1]
        most = round(most * _of_all_items(learner, float(lengths.mean()) - 1))
    rows = held_out.rows(range(0, len(data.held_out), -(-len(data.held_out) // most)))
    rows = sorted(rows, key=lambda row: len(row["input_ids"]))  # little is padded
    batches = [held_out.batch(rows[i : i + _TOGETHER]) for i in range(0, len(rows), _TOGETHER)]
    each: Callable[[Parameters, Mapping[str, Tensor]], Tensor] = learner.hard_loss
    are_predicted = _after_the_first
    if data.ranked:
        last = -(-_ENOUGH // len(rows))
        each = partial(learner.mean_log_rank, last=last)
        are_predicted = partial(are_last, count=last)
    counts = torch.tensor([int(are_predicted(batch["labels"]).sum()) for batch in batches]).double()

    @torch.no_grad()
    def loss(params: Parameters) -> float:
        losses = torch.stack([each(params, batch) for batch in batches]).cpu().double()
        return float((losses @ counts / counts.sum()).nan_to_num(torch.inf))

    return loss


def _of_all_items(learner: Learner, predicted: float) -> float:
    """How many times as long a row takes of which so many items are predicted as one of which the
    last item is, by the numbers that each position is multiplied with: the layers have all
    positions to read, the head those alone that are predicted.
    """
    if learner.head is None:
        return 1.0
    of_head = learner.head.module.weight.numel()
    of_layers = numbers_beside_tables(learner.model)
    return max(1.0, predicted * (of_layers + of_head) / (predicted * of_layers + of_head))


def _after_the_first(labels: Tensor) -> Tensor:
    """(b, L − 1): whether an entry is predicted."""
    return labels[:, 1:] != IGNORED
