"""The rows of a table of results: students on the summary and students on real data.

Students on real data are trained as those on the summary are: same start, inner optimizer, number of steps, tokens per step.
What is measured of a student is up to the task: `_language_modeling.py`, `_recommendation.py`.
"""

from __future__ import annotations

import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor
from tqdm.auto import tqdm
from transformers import (
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from farzi_hf import FarziData, FarziTrainer, attach_soft_inputs, soft_cross_entropy
from farzi_hf.data import flatten_sequences, head_sequences, minibatches, random_sequences
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation import Parameters
from farzi_hf.engine import unroll

Row = dict[str, Any]
Student = Callable[[Mapping[str, Tensor]], Tensor]
"""A batch → logits (b, L, V)."""


@dataclass(frozen=True)
class Comparison(ABC):
    """Trains and measures students; every method of the table is measured alike, on the test split.

    Args:
        trainer: of the distillation; gives the summary, the learner and the inner loop's settings.
        splits: train, validation and test as `input_ids`.
        config: the learner's, for students of the stock Trainer.
        num_students: per row; each has its own start and, where a subset is drawn, its own subset.
        long_steps: training steps of the row "full data, long".
    """

    trainer: FarziTrainer
    splits: DatasetDict
    config: PreTrainedConfig
    num_students: int
    long_steps: int

    @property
    def steps(self) -> int:
        """T."""
        return self.trainer.args.inner_steps

    @property
    def tokens_per_step(self) -> int:
        """b_syn · ξ."""
        args = self.trainer.args
        return (args.synthetic_batch_size or args.num_sequences) * args.sequence_length

    @property
    def seed(self) -> int:
        return self.trainer.args.seed

    @property
    def seeds(self) -> list[int]:
        """Of the students on real data: no two seeds of a distillation share one."""
        return [derive(self.seed, Purpose.REAL_STUDENT, i) for i in range(self.num_students)]

    def nbytes(self, sequences: Dataset) -> int:
        """Bytes of all ids."""
        return len(flatten_sequences(sequences)[0]) * self.token_bytes

    @property
    def token_bytes(self) -> int:
        """Bytes of one id: 2 for a vocabulary of 257 to 65,536 entries."""
        return np.min_scalar_type(self.trainer.learner.vocab_size - 1).itemsize

    # -- of the task -------------------------------------------------------------------------------------------------

    entries: ClassVar[str]  # what a vocabulary holds

    @abstractmethod
    def statistics(self, student: Student, sequences: Dataset) -> np.ndarray:
        """What the metrics are computed from, an array with one row per sequence."""

    @abstractmethod
    def row(self, method: str, statistics: Sequence[np.ndarray], nbytes: int) -> Row:
        """Metrics as mean and spread over students, and their intervals."""

    @abstractmethod
    def headline(self, row: Row) -> str:
        """The row's main figure."""

    @abstractmethod
    def validation_error(self, student: Student) -> float:
        """What early stopping minimises."""

    def training_rows(self, sequences: Dataset) -> Dataset:
        """What a student is trained on: the sequences themselves, unless the model cannot read them whole."""
        return sequences

    # -- students ----------------------------------------------------------------------------------------------------

    def student(self, theta: Parameters) -> Student:
        """The learner with parameters θ."""
        return partial(self.trainer.learner.logits, theta)

    def long_student(self, seed: int) -> Student:
        """One trained on all real data for `long_steps` steps."""
        return self.train_on_real(self.splits["train"], self.long_steps, seed)

    def train_on_real(self, sequences: Dataset, steps: int, seed: int) -> Student:
        """A student after `steps` steps of the inner optimizer, each on about as many tokens as an inner step has."""
        args, learner, sequences = self.trainer.args, self.trainer.learner, self.training_rows(sequences)
        rows = minibatches(len(sequences), self.real_batch_size(sequences), steps, seed)

        def loss(params: Parameters, inputs: tuple, step: int) -> torch.Tensor:
            return learner.hard_loss(params, self._batch(sequences[:] if rows is None else sequences[rows[step - 1]]))

        start = learner.initial_parameters(seed, args.device)
        with torch.no_grad():
            return self.student(unroll(loss, start, (), optimizer=args.make_inner_optimizer(), steps=steps))

    def real_batch_size(self, sequences: Dataset) -> int:
        """How many of them have about as many tokens as an inner step."""
        return max(1, round(self.tokens_per_step / flatten_sequences(sequences)[1].mean()))

    def outputs(
        self, student: Student, rows: Dataset, statistic: Callable[[Tensor, Mapping[str, Tensor]], Tensor]
    ) -> list[np.ndarray]:
        """`statistic(logits, batch)` of each row."""
        size, outputs = self.trainer.args.per_device_eval_batch_size, []
        for start in range(0, len(rows), size):
            batch = self._batch(rows[start : start + size])
            with torch.no_grad():
                outputs.extend(statistic(student(batch), batch).cpu().numpy())
        return outputs

    def _batch(self, columns: Mapping[str, list]) -> Mapping[str, torch.Tensor]:
        rows = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
        batch = self.trainer.data_collator(rows)
        return {name: tensor.to(self.trainer.args.device) for name, tensor in batch.items()}

    def student_row(
        self, method: str, train: Callable[[int], Student], numbers: Sequence[int], nbytes: int, steps: int
    ) -> Row:
        """The row of the students `train(number)`, which it announces as soon as it is there; `seconds` are of a training."""
        start, students = time.perf_counter(), [train(number) for number in self._shown(numbers, method)]
        return self._announced(method, students, nbytes, steps, time.perf_counter() - start)

    def _shown(self, numbers: Sequence[int], method: str) -> Iterable[int]:
        """The numbers of a row's students, with a bar."""
        return tqdm(numbers, method, disable=self.trainer.args.disable_tqdm, leave=False, dynamic_ncols=True)

    def _announced(self, method: str, students: Sequence[Student], nbytes: int, steps: int, seconds: float) -> Row:
        statistics = [self.statistics(student, self.splits["test"]) for student in students]
        row = self.row(method, statistics, nbytes)
        row |= {"steps": steps, "students": len(students), "seconds": round(seconds / len(students), 2)}
        print(f"{method}: test {self.headline(row)}", flush=True)
        return row

    def real_row(self, method: str, draw: Callable[[int], Dataset], steps: int) -> Row:
        """The row of students on real data, each on `draw(seed)`."""
        start = time.perf_counter()
        students, nbytes = self.real_students(draw, steps, self._shown(self.seeds, method))
        return self._announced(method, students, nbytes, steps, time.perf_counter() - start)

    def real_students(
        self, draw: Callable[[int], Dataset], steps: int, seeds: Iterable[int]
    ) -> tuple[list[Student], int]:
        """One per seed, each on `draw(seed)`, and the bytes that these have on average."""
        students, sizes = [], []
        for seed in seeds:
            subset = draw(seed)
            students.append(self.train_on_real(subset, steps, seed))
            sizes.append(self.nbytes(subset))
        return students, round(np.mean(sizes))

    def all_sequences(self, seed: int) -> Dataset:
        """All of them, whatever the seed."""
        return self.splits["train"]

    def longest_sequences(self, seed: int) -> Dataset:
        """The μ longest, whatever the seed."""
        return head_sequences(self.splits["train"], self.trainer.args.num_sequences)

    def draw_sequences(self, seed: int) -> Dataset:
        """μ random sequences."""
        return random_sequences(self.splits["train"], self.trainer.args.num_sequences, seed)

    def draw_tokens(self, tokens: int, seed: int) -> Dataset:
        """Random sequences of `tokens` tokens together, or a few more."""
        shuffled = random_sequences(self.splits["train"], len(self.splits["train"]), seed)
        ends = np.cumsum(flatten_sequences(shuffled)[1])
        return shuffled.select(range(min(len(ends), int(np.searchsorted(ends, tokens)) + 1)))


# -- students on the summary -----------------------------------------------------------------------------------------


def summary_row(c: Comparison, method: str) -> Row:
    """Students on the summary as it is now."""
    return c.student_row(
        method, lambda i: c.student(c.trainer.train_student(i)), range(c.num_students), c.trainer.model.nbytes, c.steps
    )


def stock_arguments(c: Comparison, output_dir: str, seed: int, **changes: Any) -> TrainingArguments:
    """Of the stock Trainer, with the settings that the summary carries; Adam's alone have a counterpart there."""
    quiet = {"logging_strategy": "no", "disable_tqdm": True, "use_cpu": c.trainer.args.use_cpu}
    seed %= 2**32  # transformers seeds NumPy's old generator with it, which takes no more
    return c.trainer.model.training_arguments(output_dir, **{**quiet, "seed": seed, **changes})


def train_stock(model: PreTrainedModel, rows: Dataset, collator: Callable, args: TrainingArguments) -> Student:
    """`model` after the stock Trainer, on soft tokens or ids, as `collator` gives them."""
    trainer = Trainer(
        model=attach_soft_inputs(model), args=args, train_dataset=rows, data_collator=collator,
        compute_loss_func=soft_cross_entropy,
    )  # fmt: skip
    trainer.remove_callback(PrinterCallback)  # the table says how it went
    trainer.train()
    return model_student(model)


def stock_row(c: Comparison, folder: Path) -> Row:
    """As a user would: a student of the saved artefact under the stock Trainer, with the settings that the artefact carries."""
    farzi = FarziData.from_pretrained(folder)

    def train(seed: int) -> Student:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(c.config)
        with tempfile.TemporaryDirectory() as scratch:
            return train_stock(model, farzi.as_dataset(), farzi.collator(), stock_arguments(c, scratch, seed))

    return c.student_row("Farzi, stock Trainer", train, [derive(c.seed, Purpose.STOCK_STUDENT)], farzi.nbytes, c.steps)


def model_student(model: torch.nn.Module) -> Student:
    """A trained model as a student."""
    model = model.eval()
    return lambda batch: model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits


# -- students on real data -------------------------------------------------------------------------------------------


def full(c: Comparison) -> Row:
    return c.real_row("full data", c.all_sequences, c.steps)


def full_long(c: Comparison) -> Row:
    return c.student_row("full data, long", c.long_student, c.seeds, c.nbytes(c.splits["train"]), c.long_steps)


def random(c: Comparison) -> Row:
    return c.real_row("random, same sequences", c.draw_sequences, c.steps)


def random_early_stop(c: Comparison) -> Row:
    """The same, stopped where the first student's validation is best: after T steps so little data is learnt by heart."""
    subset = c.draw_sequences(c.seeds[0])

    def error(steps: int) -> float:
        return c.validation_error(c.train_on_real(subset, steps, c.seeds[0]))

    candidates = {max(1, c.steps // 2**halvings) for halvings in range(6)}
    return c.real_row("random, stopped early", c.draw_sequences, min(sorted(candidates), key=error))


def random_tokens(c: Comparison) -> Row:
    """As many tokens as the summary has positions, μ · ξ."""
    tokens = c.trainer.args.num_sequences * c.trainer.args.sequence_length
    return c.real_row("random, same tokens", lambda seed: c.draw_tokens(tokens, seed), c.steps)


def random_bytes(c: Comparison) -> Row:
    """As many bytes as latents and decoder have: floats are not free."""
    tokens = c.trainer.model.nbytes // c.token_bytes
    return c.real_row("random, same bytes", lambda seed: c.draw_tokens(tokens, seed), c.steps)


def head(c: Comparison) -> Row:
    """The μ longest sequences."""
    return c.real_row("head (longest)", c.longest_sequences, c.steps)


BASELINES: dict[str, Callable[[Comparison], Row]] = {
    function.__name__: function
    for function in (full, full_long, random, random_early_stop, random_tokens, random_bytes, head)
}
