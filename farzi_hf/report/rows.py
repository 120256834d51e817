"""The rows of a table of results: students on the summary, and on a packed teacher and on real data
to compare with.
"""

import os
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PrinterCallback,
    Trainer,
    TrainingArguments,
)

from farzi_hf.data import flatten_sequences, random_sequences
from farzi_hf.data.seeds import Purpose, derive, stream
from farzi_hf.distillation import FarziTrainer, SyntheticTraining
from farzi_hf.distillation.learner import Parameters
from farzi_hf.report.comparison import Comparison, Measured, Student
from farzi_hf.report.full_data import FULL, LONG, FullData
from farzi_hf.summary import FarziData, attach_soft_inputs, soft_cross_entropy
from farzi_hf.summary.forms import TeacherLabels
from farzi_hf.summary.initialization import real_windows
from farzi_hf.summary.inner_settings import STUDENTS_OF_A_TEACHER
from farzi_hf.summary.teacher import plain_config


def on_summary(c: Comparison, method: str) -> Measured:
    """Students on the summary as it is now."""
    students = c.on_summary_each(c.num_students)
    return c.trained(
        method,
        lambda _: partial(c.learner.logits, next(students)),
        range(c.num_students),
        c.farzi.nbytes,
        c.steps,
    )


@dataclass(frozen=True)
class TriedStudent:
    """Student 0 of a summary, which the trial that chose its settings has trained already."""

    params: Parameters
    """θ_T."""
    seconds: float
    """Of its training."""


class FirstRow(ABC):
    """Who makes the first row of a comparison, that of a student on the summary. The other rows
    take its seconds as theirs.
    """

    @abstractmethod
    def measured(self, c: Comparison) -> tuple[Measured, float]:
        """The row, and the seconds that measuring its student took; 0 if that was done before."""


@dataclass(frozen=True)
class GivenRow(FirstRow):
    """A row that is there already."""

    row: Measured

    def measured(self, c: Comparison) -> tuple[Measured, float]:
        return self.row, 0.0


@dataclass(frozen=True)
class TriedRow(FirstRow):
    """The row of a student that a trial has trained: what `NewRow` makes, without the training."""

    method: str
    """The name of the row."""
    student: TriedStudent

    def measured(self, c: Comparison) -> tuple[Measured, float]:
        began = time.perf_counter()
        student = partial(c.learner.logits, self.student.params)
        row = c.trained(self.method, lambda _: student, range(1), c.farzi.nbytes, c.steps)
        return replace(row, seconds=self.student.seconds), time.perf_counter() - began


@dataclass(frozen=True)
class NewRow(FirstRow):
    """The row of students that are trained for it, as many as the comparison has."""

    method: str
    """The name of the row."""

    def measured(self, c: Comparison) -> tuple[Measured, float]:
        began = time.perf_counter()
        row = on_summary(c, self.method)
        taken = time.perf_counter() - began
        return row, max(0.0, taken - row.seconds)  # seconds of a row are rounded


def carrier_of(trainer: FarziTrainer) -> FarziData:
    """A summary of a trainer's data that carries a packed teacher of the same kind, with the
    settings of that form and no outer step.
    """
    learner = trainer.learner
    args = trainer.args.with_fields(
        labels=TeacherLabels.name,
        inputs=TeacherLabels.defaults["inputs"],
        storage=TeacherLabels.defaults["storage"],
    )
    config = args.summary_config(
        learner.vocab_size, teacher=plain_config(trainer.labelling.model.config)
    )
    config.inner = {**STUDENTS_OF_A_TEACHER, "steps": args.inner_steps}
    farzi = FarziData(config, trainer.task.processing_class).to(args.device)
    args.make_start()(farzi, trainer.train_dataset, args.seed)
    trainer.labelling(farzi, trainer.real_data, args)
    farzi.store_as(args.storage)
    return farzi


def packed_teacher(c: Comparison) -> Measured | None:
    """Students of a packed teacher, which reads made-up ids: what a summary has to be better than.
    None for one that is of this kind.
    """
    if c.carrier is None or c.farzi.carried is not None:
        return None
    farzi = c.carrier()
    training = SyntheticTraining.of(farzi.config.inner, farzi.forms)
    method = f"packed teacher, made-up inputs, {training.student_start.word} start"
    return on_summary(replace(c, farzi=farzi, training=training), method)


def teacher(c: Comparison) -> Measured | None:
    """The packed teacher itself, which is not trained any more."""
    if c.carrier is None and c.farzi.carried is None:
        return None
    farzi = c.carrier() if c.farzi.carried is None else c.farzi
    statistics = c.statistics(prediction_of(farzi.teacher), c.splits["test"])
    return Measured("teacher", [statistics], farzi.nbytes, is_model=True)


def mixed(c: Comparison) -> Measured | None:
    """The carried teacher and the best counted model, mixed: two models that one has without a
    training. None where there is no such teacher, or scores cannot be mixed.
    """
    if c.farzi.carried is None:
        return None
    splits = c.splits
    found = c.task.mixed(
        partial(c.outputs, prediction_of(c.farzi.teacher)),
        splits["train"],
        splits["validation"],
        splits["test"],
        c.learner.vocab_size,
        c.length,
    )
    if found is None:
        return None
    name, statistics = found
    return Measured(name, [statistics], c.farzi.nbytes + c.nbytes(splits["train"]), is_model=True)


def on_real_rows(share: float) -> Callable[[Comparison], Measured | None]:
    """The row of students on a share of the real rows, with the labels of the carried teacher: what
    inputs that are made up have to be better than. None for a summary that carries none.

    Its bytes are those of the rows as data, and those of the teacher.
    """

    def measure(c: Comparison) -> Measured | None:
        if c.farzi.carried is None:
            return None
        length = c.farzi.config.sequence_length
        rows = part_of(c, c.seeds[0], share=share)
        ids, lengths = flatten_sequences(rows)
        count = max(1, len(ids) // length)
        windows = real_windows(ids, lengths, (count, length), stream(c.seeds[0], Purpose.REAL_ROWS))
        farzi = c.farzi.with_rows(torch.from_numpy(windows))
        found = replace(c, farzi=farzi, training=replace(c.training, forms=farzi.forms))
        row = on_summary(found, f"{100 * share:g} % of the rows, teacher's labels")
        return replace(row, nbytes=c.farzi.nbytes + c.nbytes(rows))

    return measure


def under_stock_trainer(c: Comparison, folder: str | os.PathLike, method: str) -> Measured:
    """A student that trains as a user would: on the saved artefact, under the stock Trainer, with
    the artefact's settings.
    """
    farzi = FarziData.from_pretrained(folder)

    def train(seed: int) -> Student:
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(c.learner.model.config, trust_remote_code=False)
        with tempfile.TemporaryDirectory() as scratch:
            return trained(farzi.trainer(model, args=student_arguments(c, scratch, seed)))

    return c.trained(method, train, [derive(c.seed, Purpose.STOCK_STUDENT)], farzi.nbytes, c.steps)


def student_arguments(
    c: Comparison, output_dir: str, seed: int, **changes: Any
) -> TrainingArguments:
    """Arguments of the stock Trainer: the settings of the summary, and no output to
    the terminal.
    """
    quiet = {
        "logging_strategy": "no",
        "disable_tqdm": True,
        "use_cpu": torch.device(c.device).type == "cpu",
    }
    # transformers seeds NumPy's old generator with this number, which takes 32 bits.
    seed %= 2**32
    return c.farzi.training_arguments(output_dir, **{**quiet, "seed": seed, **changes})


def train_stock(
    model: PreTrainedModel,
    rows: Dataset,
    collator: Callable,
    args: TrainingArguments,
    optimizer: tuple | None = None,
) -> Student:
    """Trains `model` with the stock Trainer, on the soft tokens or ids that `collator` makes, and
    returns it as a student.
    """
    trainer = Trainer(
        model=attach_soft_inputs(model),
        args=args,
        train_dataset=rows,
        data_collator=collator,
        compute_loss_func=soft_cross_entropy,
        optimizer_cls_and_kwargs=optimizer,
    )
    return trained(trainer)


def trained(trainer: Trainer) -> Student:
    """The model of a Trainer after its training, as a student."""
    trainer.remove_callback(PrinterCallback)  # the table has the results
    trainer.train()
    return prediction_of(trainer.model.eval())


def prediction_of(model: PreTrainedModel) -> Student:
    """A trained model as a student."""
    return lambda batch: (
        model(**{name: batch[name] for name in ("input_ids", "attention_mask")}).logits
    )


def part_of(c: Comparison, seed: int, *, share: float) -> Dataset:
    """A share of the training rows, drawn at random."""
    train = c.splits["train"]
    return random_sequences(train, max(1, round(share * len(train))), seed)


def full_long(c: Comparison) -> Measured:
    """Students on all data in the comparison's own way, which stop early as teachers do."""
    taken: list[int] = []

    def train(seed: int) -> Student:
        student, steps = c.long_student(seed)
        taken.append(steps)
        return student

    row = c.trained(LONG, train, c.seeds, c.nbytes(c.splits["train"]), c.long_training.steps)
    return replace(row, steps=round(np.mean(taken)))


def stopped_early(c: Comparison, method: str, draw: Callable[[int], Dataset]) -> Measured:
    """Students on the subset `draw(seed)`, trained for T, T/2, … or T/32 steps, which the first
    student's validation chooses.
    """
    subset = draw(c.seeds[0])
    candidates = {max(1, c.steps // 2**halvings) for halvings in range(6)}

    def error(steps: int) -> float:
        return c.validation_error(c.real_student(subset, steps, c.seeds[0]))

    return c.trained_on_real(method, draw, min(sorted(candidates), key=error))


Baseline = Callable[[Comparison, Measured], Measured | None]
"""Makes a row to compare a summary with, of a comparison and of the row of the summary's students.
None: the row means nothing for this summary.
"""


def of_data(measure: Callable[[Comparison], Measured | None]) -> Baseline:
    """A row that does not depend on the students of the summary."""
    return lambda c, ours: measure(c)


def of_stored_rows(measure: Callable[[Comparison], Measured]) -> Baseline:
    """A row with as many sequences or positions as the summary has: None where it makes as many as
    a training asks for.
    """
    return lambda c, ours: None if c.farzi.is_endless else measure(c)


BASELINES: dict[str, Baseline] = {
    # what it takes no outer step to make
    "packed_teacher": of_data(packed_teacher),
    "teacher": of_data(teacher),
    "mixed": of_data(mixed),
    # real rows in the place of those that are made up
    "soft_1": of_data(on_real_rows(0.01)),
    "soft_10": of_data(on_real_rows(0.1)),
    "soft_100": of_data(on_real_rows(1.0)),
    # all data: for as many steps as on the summary, for as many seconds, and as long as helps; for
    # the last two, trials choose the way
    "full": of_data(lambda c: c.trained_on_real(FULL, c.all_sequences, c.steps)),
    "full_same_seconds": lambda c, ours: FullData(c).same_seconds(ours.seconds),
    "full_long": lambda c, ours: FullData(c).long(ours.seconds),
    # random sequences: μ of them, and with the bytes of the summary. T steps on so few may overfit,
    # so some stop early.
    "random": of_stored_rows(
        lambda c: c.trained_on_real("random, same sequences", c.draw_sequences, c.steps)
    ),
    "random_early_stop": of_stored_rows(
        lambda c: stopped_early(c, "random, stopped early", c.draw_sequences)
    ),
    "hard_10": of_data(
        lambda c: stopped_early(
            c, "10 % of the rows, stopped early", partial(part_of, c, share=0.1)
        )
    ),
    "random_bytes": of_data(
        lambda c: c.trained_on_real("random, same bytes", c.draw_bytes, c.steps)
    ),
    "random_bytes_early_stop": of_data(
        lambda c: stopped_early(c, "random, same bytes, stopped early", c.draw_bytes)
    ),
    "head": of_stored_rows(
        lambda c: c.trained_on_real("head (longest)", c.longest_sequences, c.steps)
    ),
}
"""Rows to compare a summary with, by the names that the setting `baselines` takes."""
