"""The training that `continual.py` measures: settings, one block after the other, and results that are kept."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from continual_blocks import Blocks, groups, timed_interactions
from continual_memory import MEMORIES, MemoryLoss, Moment, mixed
from datasets import Dataset
from kept import kept, stored
from quick_scale import parse_settings
from safetensors.torch import load_file, save_file
from torch import Tensor

from farzi_hf import FarziConfig, FarziData
from farzi_hf.data.seeds import Purpose, check_different, derive
from farzi_hf.distillation import Learner, Parameters, SyntheticTraining
from farzi_hf.distillation.real_training import RealBatches, RealData
from farzi_hf.distillation.teacher import head_width
from farzi_hf.engine import train
from farzi_hf.report import RunSettings, TaskData
from farzi_hf.summary import FarziDataConfig
from farzi_hf.summary.lr_schedules import lr_schedule
from farzi_hf.summary.store.atomic_folder import replace_file
from farzi_hf.tasks import Task

DATASETS = ("ml-100k", "sample_interactions")
_BATCH = 128  # users that are measured at once


@dataclass
class ContinualArguments:
    """The blocks, the memories and the repetitions. The model trains on each block as `teacher_…` of `FarziConfig` say."""

    blocks: int = field(default=5, metadata={"help": "blocks of time with equal numbers of interactions"})
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "of starts, minibatches, memories"})
    memories: list[str] = field(default_factory=lambda: list(MEMORIES), metadata={"help": ", ".join(MEMORIES)})
    card_dir: str | None = field(default=None, metadata={"help": "folder of table and figure"})

    def __post_init__(self) -> None:
        if self.blocks < 2:
            raise ValueError(f"blocks={self.blocks} leaves nothing to forget: give at least 2")
        check_different("seeds", self.seeds, 0)
        check_different("memories", self.memories)
        for name in self.memories:
            if name not in MEMORIES:
                raise ValueError(f"memories: {name!r} is unknown; choose from {', '.join(MEMORIES)}")
        if not {"summary", "reservoir"} <= set(self.memories):
            raise ValueError(f"memories={self.memories} compare nothing: give at least summary and reservoir")


def parse(argv: Sequence[str] | None) -> tuple[str, ContinualProblem, Path]:
    """The data set's name, the problem and the card's folder."""
    kinds = (RunSettings, FarziConfig, ContinualArguments)
    name, (run, args, own), folder = parse_settings("continual", argv, DATASETS, "sample_interactions", kinds)
    return name, ContinualProblem(run.load(), args, own), folder


class ContinualProblem:
    """A recommender that goes on training block by block.

    Args:
        data: interactions; its learner is the recommender.
        args: settings of the training on a block (`teacher_…`), and of the summary.
        own: settings of this recipe alone.
    """

    def __init__(self, data: TaskData, args: FarziConfig, own: ContinualArguments) -> None:
        self.data, self.args, self.own = data, args, own

    @property
    def task(self) -> Task:
        return self.data.task

    @cached_property
    def blocks(self) -> Blocks:
        return Blocks.of(timed_interactions(self.data), self.own.blocks)

    @cached_property
    def learner(self) -> Learner:
        return Learner(self.config)

    @cached_property
    def config(self) -> Any:
        """The recommender's config. All items are in its catalogue from the start."""
        return self.data.learner_config(self.data.settings.learner, self.args.sequence_length)

    @cached_property
    def training(self) -> SyntheticTraining:
        return self.args.make_training()

    @cached_property
    def summary_config(self) -> FarziDataConfig:
        return self.args.summary_config(self.learner.vocab_size, head_width(self.learner))

    @cached_property
    def summary_bytes(self) -> int:
        return FarziData(self.summary_config).nbytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one id of real data."""
        return np.min_scalar_type(self.learner.vocab_size - 1).itemsize

    def real_data(self, rows: Dataset) -> RealData:
        return RealData(rows, self.task.collator, quiet=True)

    def windows(self, block: int) -> Dataset:
        """The training rows of a block, cut as the model reads them."""
        return self.task.training_rows(self.blocks.training_rows(block), self.args.sequence_length)

    # -- a block -----------------------------------------------------------------------------------------------------

    def trained(self, start: Parameters, block: int, seed: int, memory: MemoryLoss | None) -> Parameters:
        """The model after a block. All memories see the same minibatches of new rows."""
        steps, training = self.args.teacher_steps, self.args.make_teacher_training()
        minibatches = derive(seed, Purpose.TEACHER_MINIBATCHES, block)
        batches = RealBatches.of(self.real_data(self.windows(block)), training.batch_size, steps, minibatches)

        def loss(params: Parameters, inputs: tuple, step: int) -> Tensor:
            new = self.learner.hard_loss(params, batches(step))
            return new if memory is None else mixed(new, memory(params, step), block)

        optimizer = replace(training.optimizer, lr_schedule=lr_schedule("warmup_stable_decay", steps))
        return train(loss, start, (), optimizer=optimizer, steps=steps).params

    def measured(self, params: Parameters, block: int) -> dict[str, list]:
        """By group of users: (N, 2), rank and AUC of the items that are held out at the end of a block."""
        outputs = partial(self._outputs, params)
        length = self.args.sequence_length
        return {
            group: self.task.statistics(outputs, self.blocks.tests(block, group), length).tolist()
            for group in groups(block)
        }

    @torch.no_grad()
    def _outputs(
        self, params: Parameters, rows: Dataset, statistic: Callable[[Tensor, Mapping[str, Tensor]], Tensor]
    ) -> list[np.ndarray]:
        """`statistic(logits, batch)` of each row."""
        found = []
        for first in range(0, len(rows), _BATCH):
            batch = self.task.collator(rows.select(range(first, min(first + _BATCH, len(rows)))).to_list())
            found.extend(statistic(self.learner.logits(params, batch), batch).numpy())
        return found

    # -- results that are kept ---------------------------------------------------------------------------------------

    def result(self, seed: int, name: str, block: int) -> dict[str, Any]:
        """What a memory leads to in a block: `measured`, CPU seconds of training and renewal, and bytes. It is kept, and the model too."""
        path = self._path(seed, name, block)

        def make() -> dict[str, Any]:
            value, state = self._block(seed, name, block)
            path.unlink(missing_ok=True)  # of other settings: from now on the state beside it is another one
            replace_file(path.with_suffix(".safetensors"), lambda new: save_file(state, new))
            return value

        return kept(path, self._settings, make)

    def is_kept(self, seed: int, name: str, block: int) -> bool:
        return stored(self._path(seed, name, block), self._settings) is not None

    def _path(self, seed: int, name: str, block: int) -> Path:
        """The first block has no memory yet: all share its result."""
        folder = Path(self.args.output_dir) / f"seed-{seed}"
        return (folder / name if block else folder) / f"block-{block + 1}.json"

    @cached_property
    def _settings(self) -> dict[str, Any]:
        when = hashlib.sha256(self.blocks.counts.tobytes()).hexdigest()  # the hash of the data has no timestamps
        return {**self.args.to_recipe(), **self.data.identity(0), "blocks": self.own.blocks, "counts": when}

    def _block(self, seed: int, name: str, block: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Renews the memory, trains and measures: the result, and model and memory by name."""
        begin = time.process_time()
        start, tensors, loss, memory = self._start(seed), {}, None, MEMORIES[name]
        if block:
            start, tensors = self._state(seed, name, block - 1)
            tensors = memory.renewed(self, tensors, Moment(seed, block - 1, self.windows(block - 1), start))
            loss = memory.loss(self, tensors, derive(seed, Purpose.TEACHER_MINIBATCHES, block, 1))
        renewed = time.process_time()
        params = self.trained(start, block, seed, loss)
        value = {
            "renewal_seconds": renewed - begin, "training_seconds": time.process_time() - renewed,
            "bytes": memory.nbytes(self, tensors) if block else 0, "measured": self.measured(params, block),
        }  # fmt: skip
        state = {f"model.{key}": x for key, x in params.items()} | {f"memory.{key}": x for key, x in tensors.items()}
        return value, {key: x.contiguous().clone() for key, x in state.items()}

    def _start(self, seed: int) -> Parameters:
        return self.learner.initial_parameters(derive(seed, Purpose.TEACHER))

    def _state(self, seed: int, name: str, block: int) -> tuple[Parameters, dict[str, Tensor]]:
        """Model and memory after a block. It is run first, if it is not kept."""
        self.result(seed, name, block)
        state = load_file(self._path(seed, name, block).with_suffix(".safetensors"))
        model, memory = (
            {key.removeprefix(prefix): x for key, x in state.items() if key.startswith(prefix)}
            for prefix in ("model.", "memory.")
        )
        return model, memory
