"""Fresh trainings of a stock Trainer's model, in which rows are read as often as weights say."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from transformers import Trainer

from farzi_hf.attribution.replay import Replay, predicted_tokens
from farzi_hf.data.seeds import Purpose, derive, seeded, stream
from farzi_hf.data.shares import rows_by_shares
from farzi_hf.distillation import Parameters
from farzi_hf.engine import InnerOptimizer


@dataclass(frozen=True, eq=False)
class Trainings:
    """Trainings like that of a Trainer, each of another start and order.

    A weight is a share of reading: a row of weight 2 is read twice as often as a row of weight 1,
    and a row of weight 0 never. A weight could also be a factor of the loss. Then each row would be
    read as often as before, those that are left out too, and a step whose rows have small weights
    would hardly be a step: Adam makes up for the size of a gradient in the mean of many steps, not
    in each. Shares cost nothing for rows that are left out, so the others are read more often, and
    more is known of them.
    """

    replay: Replay
    """The Trainer's own training: its steps, optimizer and sizes of batches."""
    seed: int
    """Of all starts and orders."""
    warm: Trainings | None = None
    """Trainings on all rows, at whose ends these start; None: they start where a Trainer does."""

    @classmethod
    def of(cls, trainer: Trainer, seed: int = 0) -> Trainings:
        """Those of a configured Trainer that has not trained. If it has a `model_init`, each
        training has a start of its own; otherwise all start at its model.

        Raises:
            ValueError: as `attribute`, or there is a single row.
        """
        trainings = cls(Replay.of(trainer), seed)
        if trainings.num_rows < 2:
            raise ValueError(
                f"trainer has a train_dataset of {trainings.num_rows} row: give two or more, to"
                " choose among them"
            )
        return trainings

    def with_optimizer(self, optimizer: InnerOptimizer) -> Trainings:
        """The same with another optimizer."""
        return replace(self, replay=replace(self.replay, optimizer=optimizer))

    def warmed(self) -> Trainings:
        """The same, which start where these end if they read all rows equally often.

        A model that begins from nothing learns first how often words occur, and rows teach that
        whose order or answers are spoilt, too. So scores tell more of rows in a model that is
        trained already.
        """
        return replace(self, warm=self)

    def end(self, number: int) -> Parameters:
        """θ_T of one of the trainings on all rows, equally often. The last one is kept, because it
        is asked for more than once.
        """
        if number not in self._ends:
            self._ends.clear()
            self._ends[number] = self.training(torch.ones(self.num_rows), number).train()
        return self._ends[number]

    @cached_property
    def _ends(self) -> dict[int, Parameters]:
        return {}

    @property
    def warming_steps(self) -> int:
        """How many steps come before the start of a training."""
        return 0 if self.warm is None else self.warm.replay.steps

    @property
    def num_rows(self) -> int:
        """n."""
        return self.replay.num_rows

    @property
    def reads(self) -> int:
        """How many rows a training reads; one that is read twice counts twice."""
        return sum(len(rows) for step in self.replay.order for rows in step)

    def training(self, weights: Tensor, number: int) -> Replay:
        """One of the trainings.

        Args:
            weights: (n,), the shares of reading; their sum does not matter.
            number: of the training. Equal numbers have equal starts, and equal orders where the
                weights are equal too.
        """
        order = stream(self.seed, Purpose.WEIGHED_ORDER, number)
        rows = iter(rows_by_shares(weights.double().numpy(force=True), self.reads, order))
        # As many rows in each batch as before.
        batches = [[[next(rows) for _ in each] for each in step] for step in self.replay.order]
        return replace(self.replay, order=batches, start=self._start(number))

    def _start(self, number: int) -> Parameters:
        """θ_0 of a training."""
        if self.warm is not None:
            return self.warm.end(number)
        trainer = self.replay.trainer
        if trainer.model_init is None:
            return self.replay.start
        with seeded(derive(self.seed, Purpose.WEIGHED_START, number)):
            model = trainer.call_model_init().to(trainer.args.device)
        model = getattr(model, "get_base_model", lambda: model)()
        # What does not train stays a parameter, by which it is known as a constant.
        return {name: x.detach() if x.requires_grad else x for name, x in model.named_parameters()}

    def reads_of(self, training: Replay) -> Tensor:
        """(n,): how often each row is read in a training."""
        rows = [row for step in training.order for batch in step for row in batch]
        return torch.bincount(torch.tensor(rows), minlength=self.num_rows)

    @cached_property
    def predicted(self) -> Tensor:
        """(n,): how many tokens of each training row are predicted."""
        replay = self.replay
        batches = (replay.batch(replay.loader, [row]) for row in range(self.num_rows))
        return torch.tensor([predicted_tokens(batch) for batch in batches])

    @cached_property
    def ids(self) -> list[list[int]]:
        """The ids of each training row."""
        replay = self.replay
        rows = range(self.num_rows)
        return [replay.batch(replay.loader, [row])["input_ids"][0].tolist() for row in rows]
