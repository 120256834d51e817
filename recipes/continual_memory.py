"""What a recommender keeps of old blocks while it goes on training: nothing, real histories, or a summary.

A memory is a dict of tensors, and these are all that is kept. After a block it is renewed from three things: itself, the rows of
that block, and the model as it is. In the next block its loss stands for all old blocks.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from datasets import Dataset
from torch import Tensor
from transformers import PrinterCallback

from farzi_hf import FarziData, FarziTrainer
from farzi_hf.cli.distil import with_folder
from farzi_hf.data import flatten_sequences
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.distillation import Learner, MetaMatching, Parameters
from farzi_hf.distillation.checkpoints import discard_checkpoints
from farzi_hf.distillation.objectives.base import Batch
from farzi_hf.distillation.real_training import RealBatches
from farzi_hf.distillation.teacher import Teacher, label
from farzi_hf.summary.forms import Tensors
from farzi_hf.summary.input_sequences import INPUT_SEQUENCES

if TYPE_CHECKING:
    from continual_problem import ContinualProblem

MemoryLoss = Callable[[Parameters, int], Tensor]
"""`loss(params, step)`: the loss on the memory's minibatch of a step."""


@dataclass(frozen=True)
class Moment:
    """The end of a block.

    Attributes:
        seed: of the run.
        block: its number, from 0.
        rows: the windows that the model has trained on in this block.
        params: the model.
    """

    seed: int
    block: int
    rows: Dataset
    params: Parameters


def mixed(new: Tensor, old: Tensor, old_blocks: int) -> Tensor:
    """The mean loss over all blocks: that of the new one counts once, that of the memory as often as there are old blocks."""
    return (new + old_blocks * old) / (old_blocks + 1)


@dataclass(frozen=True)
class Memory(ABC):
    """A kind of memory. It starts without tensors.

    Attributes:
        title: its name in tables.
    """

    title: str

    @abstractmethod
    def renewed(self, problem: ContinualProblem, tensors: Tensors, moment: Moment) -> dict[str, Tensor]:
        """The tensors after a block, from those before it."""

    @abstractmethod
    def loss(self, problem: ContinualProblem, tensors: Tensors, seed: int) -> MemoryLoss | None:
        """The loss on the memory in a training whose minibatches depend on `seed`; None if nothing is kept."""

    @abstractmethod
    def nbytes(self, problem: ContinualProblem, tensors: Tensors) -> int:
        """The bytes of what is kept."""


class Nothing(Memory):
    """The model goes on with the new data alone."""

    def renewed(self, problem: ContinualProblem, tensors: Tensors, moment: Moment) -> dict[str, Tensor]:
        return {}

    def loss(self, problem: ContinualProblem, tensors: Tensors, seed: int) -> None:
        return None

    def nbytes(self, problem: ContinualProblem, tensors: Tensors) -> int:
        return 0


@dataclass(frozen=True)
class RealHistories(Memory):
    """Windows of real histories: all of them, or a reservoir of as many bytes as the summary has.

    Each window gets a random number once, and the windows with the lowest numbers stay. So the reservoir is at any time a uniform sample
    of all windows so far. Bytes are those of the ids.
    """

    as_summary: bool

    def renewed(self, problem: ContinualProblem, tensors: Tensors, moment: Moment) -> dict[str, Tensor]:
        ids, lengths = map(torch.from_numpy, flatten_sequences(moment.rows))
        numbers = torch.from_numpy(stream(moment.seed, Purpose.SUBSET, moment.block).random(len(lengths)))
        new = {"ids": ids.int(), "lengths": lengths, "numbers": numbers}
        both = {name: torch.cat([tensors[name], x]) if tensors else x for name, x in new.items()}
        order = both["numbers"].argsort()
        if self.as_summary:
            sizes = both["lengths"][order].cumsum(0) * problem.token_bytes
            order = order[: int((sizes <= problem.summary_bytes).sum())]
        rows = both["ids"].split(both["lengths"].tolist())
        kept = torch.cat([rows[i] for i in order.tolist()])
        return {"ids": kept, "lengths": both["lengths"][order], "numbers": both["numbers"][order]}

    def loss(self, problem: ContinualProblem, tensors: Tensors, seed: int) -> MemoryLoss:
        rows = [row.tolist() for row in tensors["ids"].split(tensors["lengths"].tolist())]
        data = problem.real_data(Dataset.from_dict({"input_ids": rows}))
        batches = RealBatches.of(data, problem.args.synthetic_batch_size, problem.args.teacher_steps, seed)
        return lambda params, step: problem.learner.hard_loss(params, batches(step))

    def nbytes(self, problem: ContinualProblem, tensors: Tensors) -> int:
        return len(tensors["ids"]) * problem.token_bytes


@dataclass(frozen=True)
class Summary(Memory):
    """Made-up inputs with the labels of the model as it is, and then perhaps some outer steps.

    Inputs are drawn by the frequencies of the block alone, as old data are gone: after block b, one sequence of b is replaced. The model
    then labels all of them anew.
    """

    distilled: bool

    def renewed(self, problem: ContinualProblem, tensors: Tensors, moment: Moment) -> dict[str, Tensor]:
        farzi = FarziData(problem.summary_config)
        farzi.input_ids.copy_(self._inputs(problem, tensors, moment))
        label(farzi, [Teacher(problem.learner, moment.params)])
        if self.distilled:
            self._distil(problem, farzi, tensors, moment)
        farzi.store_as(problem.args.storage)
        return {name: x.detach().clone() for name, x in farzi.tensors.items()}

    def _inputs(self, problem: ContinualProblem, tensors: Tensors, moment: Moment) -> Tensor:
        """(μ, ξ): those of before, of which a share is replaced by others that are drawn from the new block."""
        shape = problem.summary_config.shapes["input_ids"]
        generator = stream(moment.seed, Purpose.INPUT_SEQUENCES, moment.block)
        drawn = INPUT_SEQUENCES[problem.args.input_sequences](*flatten_sequences(moment.rows), shape, generator)
        if not tensors:
            return torch.from_numpy(drawn)
        replaced = generator.permutation(shape[0])[: round(shape[0] / (moment.block + 1))]
        ids = tensors["input_ids"].numpy().copy()
        ids[replaced] = drawn[replaced]
        return torch.from_numpy(ids)

    def _distil(self, problem: ContinualProblem, farzi: FarziData, before: Tensors, moment: Moment) -> None:
        """Outer steps on the rows of the block and, in place of old data, on the summary of before."""
        args = with_folder(
            problem.args, f"{problem.args.output_dir}/seed-{moment.seed}/distillation-{moment.block + 1}"
        )
        args.seed, args.disable_tqdm = derive(moment.seed, Purpose.TEACHER, moment.block) % 2**32, True
        objective = BlockMatching(args.make_objective(), before, moment.block)
        trainer = FarziTrainer(
            problem.config, args, moment.rows, farzi_data=farzi, objective=objective, task=problem.task
        )
        trainer.remove_callback(PrinterCallback)
        discard_checkpoints(args.output_dir)  # of a block that was interrupted, which is made anew
        trainer.saves_on_signal = False
        trainer.train()

    def loss(self, problem: ContinualProblem, tensors: Tensors, seed: int) -> MemoryLoss:
        inner = problem.training.inner_loss(problem.learner, tensors, problem.args.teacher_steps, seed)
        return lambda params, step: inner(params, tuple(tensors.values()), step)

    def nbytes(self, problem: ContinualProblem, tensors: Tensors) -> int:
        return problem.summary_bytes


@dataclass(frozen=True)
class BlockMatching:
    """Meta-matching without the old data: a learner of the summary is measured on a new block, and on the summary of before."""

    matching: MetaMatching
    before: Tensors
    old_blocks: int

    def __call__(self, learner: Learner, summary: Tensors, batch: Batch, seed: int) -> Tensor:
        _, params = self.matching.trained(learner, summary, seed)
        new = learner.hard_loss(params, batch)
        if not self.before:
            return new
        old = learner.soft_loss(params, *self.matching.training.minibatch(self.before, slice(None)))
        return mixed(new, old, self.old_blocks)


MEMORIES: dict[str, Memory] = {
    "summary": Summary("summary", distilled=False),
    "distilled_summary": Summary("summary, distilled", distilled=True),
    "reservoir": RealHistories("real histories, same bytes", as_summary=True),
    "none": Nothing("none"),
    "all_data": RealHistories("all data so far", as_summary=False),
}
"""By the name that the setting `memories` takes."""
