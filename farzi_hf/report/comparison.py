"""Students on a summary and students on real data, trained and measured in the same way.

Both have the same kind of start, the same inner optimizer, the same number of steps, and about as
many tokens per step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch import Tensor
from tqdm.auto import tqdm
from transformers import PreTrainedConfig

from farzi_hf.data import flatten_sequences, head_sequences, random_sequences
from farzi_hf.data.coding import StoredBytes, flat_bytes, stored_bytes
from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.data.sequences import as_rows, id_bits
from farzi_hf.distillation.inner_training import Students, SyntheticTraining
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.rows import RealData
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.summary import FarziData
from farzi_hf.tasks import ResultRow, Task

if TYPE_CHECKING:
    from farzi_hf.distillation.trainer import FarziTrainer
    from farzi_hf.report.task_data import TaskData

_LOGITS = 2**27  # of a batch of an evaluation, which takes three times as much
_DRAWS = 4
"""How often the number of sequences that have so many bytes is corrected, at most."""
_NEAR = 0.01
"""The share of these bytes that may be missing in the end."""
Student = Callable[[Mapping[str, Tensor]], Tensor]
"""A trained model: a function from a batch to logits (b, L, V)."""


@dataclass(frozen=True)
class Measured:
    """The measurements of one method and one seed, from which a table is made.

    Attributes:
        method: the name of the row.
        students: `Task.statistics` of each student on the test split.
        nbytes: bytes of the training data.
        steps: training steps of each student; None if nothing was trained.
        seconds: mean time of one training; of counting, where a model only counts.
        way: how it was trained, in words, where trials have chosen that.
        still_learning: whether more steps would have given better students.
        is_model: whether it is one finished model, of which nothing was trained for the row.
    """

    method: str
    students: list[np.ndarray]
    nbytes: int
    steps: int | None = None
    seconds: float | None = None
    way: str = ""
    still_learning: bool = False
    is_model: bool = False

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Measured:
        """The inverse of `to_json`."""
        return cls(
            **{**values, "students": [np.asarray(student) for student in values["students"]]}
        )

    def to_json(self) -> dict[str, Any]:
        """The measurements as JSON values."""
        return {**asdict(self), "students": [values.tolist() for values in self.students]}


def with_ids(task: Task, rows: Dataset) -> Dataset:
    """Whole rows with `input_ids`; of rows that have a column `text` alone, the task's tokenizer
    makes them.
    """
    return rows if "input_ids" in rows.column_names else task.training_rows(rows, 0)


@dataclass(frozen=True, kw_only=True)
class Comparison(Students):
    """Trains and measures the students of one summary and one seed, and students on real data
    beside them.

    Args:
        task: measures the students.
        splits: train, validation and test as sequences in `input_ids`.
        length: the number of entries that the learner reads.
        long_training: how students train on real data for as long as helps: as teachers of labels
            do, or longer.
        carrier: makes a summary of the same data that carries a packed teacher; None where rows of
            such a summary are left out.
        num_students: students per row. Each has its own start and, if the row draws a subset, its
            own subset.
        batch_size: batch size of the evaluation.
    """

    task: Task
    splits: DatasetDict
    length: int
    long_training: TeacherTraining
    num_students: int = 3
    batch_size: int = 128
    carrier: Callable[[], FarziData] | None = None

    @classmethod
    def of_summary(
        cls,
        farzi: FarziData,
        data: TaskData,
        config: PreTrainedConfig | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> Comparison:
        """Students of a saved summary, and of the data that its recipe names: see
        `TaskData.of_summary`.

        Args:
            config: of another learner; by default that of the recipe.
            device: by default the first GPU, if there is one.
            settings: other arguments of the class.
        """
        length = farzi.config.sequence_length
        inner = farzi.config.inner
        seed = data.seeds(farzi.results.recipe.get("seed", 42))[0]
        config = config or data.task.learner_config(data.settings.learner, length)
        training = SyntheticTraining.of(inner, farzi.forms)
        device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        learner = Learner(config).to(device)
        return cls(
            task=data.task,
            splits=data.splits(seed),
            learner=learner,
            farzi=farzi.to(device),
            training=training,
            long_training=TeacherTraining.of(farzi.results.recipe).whole(learner),
            steps=inner["steps"],
            seed=42,
            length=getattr(config, "max_length", length),
            device=device,
            quiet=True,
            **settings,
        )

    @classmethod
    def of_trainer(
        cls,
        trainer: FarziTrainer,
        splits: DatasetDict,
        long_training: TeacherTraining | None = None,
        **settings: Any,
    ) -> Comparison:
        """Students of a trainer's summary, and of the real data `splits`.

        Args:
            long_training: as for the class; by default that of the trainer's teachers.
            settings: other arguments of the class.
        """
        args = trainer.args
        long_training = long_training or args.make_teacher_training()
        return cls(
            task=trainer.task,
            splits=splits,
            length=args.sequence_length,
            long_training=long_training.whole(trainer.learner),
            batch_size=args.per_device_eval_batch_size,
            **vars(trainer.students),
            **settings,
        )

    @property
    def tokens_per_step(self) -> int:
        """Tokens of an inner step, b_syn · ξ. A step takes no more than the rows that
        are stored.
        """
        stored = self.farzi.config.num_sequences
        size = self.training.batch_size or stored
        return (
            size if self.farzi.is_endless else min(size, stored)
        ) * self.farzi.config.sequence_length

    @property
    def seeds(self) -> list[int]:
        """The seeds of the students on real data. Distillations with different seeds never share
        one of these.
        """
        return [derive(self.seed, Purpose.REAL_STUDENT, i) for i in range(self.num_students)]

    def token_bytes(self, tokens: int) -> int:
        """Bytes of so many ids in flat bits."""
        return flat_bytes(tokens, self.learner.vocab_size)

    def stored_bytes(self, sequences: Dataset) -> StoredBytes:
        """Bytes of all ids, stored in three ways."""
        return stored_bytes(sequences, self.learner.vocab_size)

    def nbytes(self, sequences: Dataset) -> int:
        """Bytes that one must keep of all ids: in flat bits, coded by their entropy or by xz,
        whichever is the least. Summaries are coded too.
        """
        return self.stored_bytes(sequences).least

    def summary_student(self, index: int = 0) -> Student:
        """Student `index` of the summary as it is now: the same as
        `FarziTrainer.students.on_summary(index)`.
        """
        return partial(self.learner.logits, self.on_summary(index))

    def real_student(self, sequences: Dataset, steps: int, seed: int) -> Student:
        """A student after `steps` steps of the inner optimizer. Each step reads about as many
        tokens as an inner step.
        """
        data = self.real_data(sequences)
        return partial(
            self.learner.logits, self.on_real(data, self.real_batch_size(data.dataset), steps, seed)
        )

    def long_student(self, seed: int, steps: int | None = None) -> tuple[Student, int]:
        """A student trained on all real data with `long_training`, or with `steps` steps of that
        kind; and the steps that it took.

        It stops early on the validation split, as teachers do.
        """
        training = self.long_training if steps is None else replace(self.long_training, steps=steps)
        held_out = self.task.evaluation_rows(self.splits["validation"], self.length)
        trained = training.train(
            self.learner, replace(self.real_data(self.splits["train"]), held_out=held_out), seed
        )
        return partial(self.learner.logits, trained.params), trained.steps

    def real_data(self, sequences: Dataset) -> RealData:
        """Sequences as a student trains on them."""
        rows = self.task.training_rows(sequences, self.length)
        return RealData(
            rows,
            self.task.collator,
            self.device,
            self.quiet,
            ranked=self.task.ranked,
            count=partial(self.task.counted_labels, vocab_size=self.learner.vocab_size),
        )

    def real_batch_size(self, sequences: Dataset) -> int:
        """The number of sequences that together have about as many tokens as an inner step."""
        return max(1, round(self.tokens_per_step / flatten_sequences(sequences)[1].mean()))

    def all_sequences(self, seed: int) -> Dataset:
        """All training sequences, for every seed."""
        return self.splits["train"]

    def longest_sequences(self, seed: int) -> Dataset:
        """The μ longest training sequences, for every seed; all, if there are fewer."""
        train = self.splits["train"]
        return head_sequences(train, min(self.farzi.config.num_sequences, len(train)))

    def draw_sequences(self, seed: int) -> Dataset:
        """μ random training sequences; all, if there are fewer."""
        train = self.splits["train"]
        return random_sequences(train, min(self.farzi.config.num_sequences, len(train)), seed)

    def draw_tokens(self, tokens: int, seed: int) -> Dataset:
        """Random sequences that together have `tokens` tokens, or a few more."""
        shuffled = random_sequences(self.splits["train"], len(self.splits["train"]), seed)
        ends = np.cumsum(flatten_sequences(shuffled)[1])
        return shuffled.select(range(min(len(ends), int(np.searchsorted(ends, tokens)) + 1)))

    def draw_bytes(self, seed: int) -> Dataset:
        """Random sequences with about as many bytes as the summary has; all, if they have fewer."""
        wanted = self.farzi.nbytes
        tokens = 8 * wanted // id_bits(self.learner.vocab_size)
        drawn = self.draw_tokens(tokens, seed)
        for _ in range(_DRAWS):  # coded, they have fewer, and fewer each, the more there are
            nbytes = self.nbytes(drawn)
            if len(drawn) == len(self.splits["train"]) or nbytes >= (1 - _NEAR) * wanted:
                break
            tokens = round(tokens * wanted / nbytes)
            drawn = self.draw_tokens(tokens, seed)
        return drawn

    def outputs(
        self,
        student: Student,
        rows: Dataset,
        statistic: Callable[[Tensor, Mapping[str, Tensor]], Tensor],
    ) -> list[np.ndarray]:
        """`statistic(logits, batch)` of each row."""
        found = []
        longest = flatten_sequences(rows)[1].max(initial=1)
        size = int(np.clip(_LOGITS // (longest * self.learner.vocab_size), 1, self.batch_size))
        for start in range(0, len(rows), size):
            batch = self.task.collator(as_rows(rows[start : start + size]))
            batch = {
                name: tensor.to(self.device, non_blocking=True) for name, tensor in batch.items()
            }
            with torch.no_grad():
                found.extend(statistic(student(batch), batch).cpu().numpy())
        return found

    def statistics(self, student: Student, sequences: Dataset) -> np.ndarray:
        """`Task.statistics` of a student."""
        return self.task.statistics(partial(self.outputs, student), sequences, self.length)

    def validation_error(self, student: Student) -> float:
        """The number that early stopping minimises."""
        return self.task.error(self.statistics(student, self.splits["validation"]))

    def trained(
        self,
        method: str,
        train: Callable[[int], Student],
        numbers: Sequence[int],
        nbytes: int,
        steps: int,
    ) -> Measured:
        """Trains the students `train(number)`, measures them on the test split, and prints one line
        with their result.
        """
        start = time.perf_counter()
        students = [
            train(number)
            for number in tqdm(numbers, method, disable=self.quiet, leave=False, dynamic_ncols=True)
        ]
        seconds = round((time.perf_counter() - start) / len(students), 2)
        statistics = [self.statistics(student, self.splits["test"]) for student in students]
        found = Measured(method, statistics, nbytes, steps, seconds)
        print(f"trained on {method}: test {self.task.headline(self.row(found))}", flush=True)
        return found

    def trained_on_real(self, method: str, draw: Callable[[int], Dataset], steps: int) -> Measured:
        """Trains students on real data, each on the subset `draw(seed)`, and measures them."""
        nbytes = round(np.mean([self.nbytes(draw(seed)) for seed in self.seeds]))
        return self.trained(
            method,
            lambda seed: self.real_student(draw(seed), steps, seed),
            self.seeds,
            nbytes,
            steps,
        )

    def counted(self) -> list[Measured]:
        """Count models, which are not trained. They are counted in seconds, so what one must keep
        is the model or the training split, whichever is smaller.
        """
        splits = self.splits
        parts = (splits["train"], splits["validation"], splits["test"])
        of_data = self.nbytes(splits["train"])
        found = []
        for row in self.task.count(*parts, self.learner.vocab_size):
            nbytes = of_data if row.nbytes is None else min(row.nbytes, of_data)
            found.append(Measured(row.method, [row.statistics], nbytes, seconds=row.seconds))
        return found

    def row(self, measured: Measured) -> ResultRow:
        """The row of this seed alone."""
        return pooled_row(self.task, [measured])


def pooled_row(task: Task, seeds: Sequence[Measured]) -> ResultRow:
    """The row of one method over all seeds: metrics with spread and intervals, and the means of
    bytes, steps and seconds.
    """
    first = seeds[0]
    row = task.row(
        first.method,
        [part.students for part in seeds],
        round(np.mean([part.nbytes for part in seeds])),
    )
    if first.steps is not None:
        row |= {
            "steps": round(np.mean([part.steps for part in seeds])),
            "students": len(first.students),
        }
    if first.seconds is not None:
        row["seconds"] = round(np.mean([part.seconds for part in seeds]), 2)
    if first.way:
        row["way"] = "; ".join(dict.fromkeys(part.way for part in seeds))
    if any(part.still_learning for part in seeds):
        row["still_learning"] = True
    return row


def pooled_rows(task: Task, seeds: Sequence[Sequence[Mapping[str, Any]]]) -> list[ResultRow]:
    """A row for each method that all seeds have, over all seeds. The others are named on a line of
    their own.
    """
    of_seeds = [{part["method"]: Measured.from_json(part) for part in parts} for parts in seeds]
    common = [method for method in of_seeds[0] if all(method in parts for parts in of_seeds)]
    if left_out := ", ".join(
        sorted({method for parts in of_seeds for method in parts} - set(common))
    ):
        print(
            "Not in the table, as some splits lack it (made with another number of processes?):"
            f" {left_out}"
        )
    return [pooled_row(task, [parts[method] for parts in of_seeds]) for method in common]
