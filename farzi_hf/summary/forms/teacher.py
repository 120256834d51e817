"""A teacher's labels: what a model predicts that the summary carries."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from farzi_hf.common.settings import setting
from farzi_hf.data import Vocabulary
from farzi_hf.summary.forms.base import (
    Inputs,
    Labels,
    Likeliest,
    Part,
    Position,
    Table,
    Tensors,
    TrainerRow,
)
from farzi_hf.summary.forms.common_inputs import IdInputs
from farzi_hf.summary.forms.common_labels import (
    DISTILLED,
    POSITIONS,
    PREDICTED,
    READING_AID,
    RESULTS,
    card_cells_of_label,
    commands_of_students,
    model_in_words,
    of_label,
    refuse_label_dim,
    same_entries,
    terminal_cells_of_label,
)
from farzi_hf.summary.forms.words import SHOWN, InputWords, LabelWords
from farzi_hf.summary.reading import likeliest_entries
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.store.tensor_file import STORAGES
from farzi_hf.summary.student_starts import STUDENT_STARTS
from farzi_hf.summary.teacher import (
    CarriedTeacher,
    factors_of_rank,
    teacher_model,
    teacher_shapes,
)

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents

_READ_AT_ONCE = 64  # rows that a teacher reads at once


class TeacherLabels(Labels):
    """`teacher.…`, the parameters of a carried teacher: the label of a position is what it predicts
    there.
    """

    name = "teacher"
    goes_with = (IdInputs,)
    table_names = (POSITIONS,)
    fields = ("teacher",)
    # Made-up rows do not run out, so large steps pay; an optimizer with a short memory needs few.
    # Measured on Penn Treebank (recipes/LOG.md).
    defaults: ClassVar = {
        "inner_steps": 300,
        "inner_learning_rate": 0.03,
        "inner_betas": [0.7, 0.95],
        "inner_lr_scheduler_type": "warmup_stable_decay",
        "synthetic_batch_size": 40,
        "storage": "coded5",
        "max_steps": 0,
        "inputs": "drawn",
        "inner_optimizer": "soap",
        "student_start": "teacher",
    }
    of_students = ("student_start",)
    by_teachers = True
    carries_teacher = True
    are_inputs = False
    row_of_start = "packed teacher, {inputs}, {start} start (0 outer steps)"
    row_without_steps = "packed teacher, {inputs}, {start} start"

    @dataclass(frozen=True)
    class Settings:
        student_start: str | None = setting(
            None,
            "how students begin: with the carried teacher's tables, and its layers where they fit,"
            " or at random; by default teacher, or random where there are outer steps",
            table=STUDENT_STARTS,
        )
        num_teachers: int = setting(
            1, "the carried one learns in its packing what all predict on average", least=1
        )

    def __init__(self, config: FarziDataConfig) -> None:
        super().__init__(config)
        self._teacher: CarriedTeacher | None = None

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        shapes = _shapes_of_teacher(
            json.dumps(config.teacher), config.vocab_size, config.sequence_length
        )
        return {
            name: Part(shape, is_learnt=True, is_ids=False, begin=None)
            for name, shape in shapes.items()
        }

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        if not config.teacher:
            raise ValueError(
                f"labels={config.labels!r} with teacher={config.teacher!r:.200}: labels='teacher'"
                " alone need one"
            )
        refuse_label_dim(config)

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        """Nothing: `CarriedTeacher.check` tries the teacher."""

    # -- the model ---------------------------------------------------------------------------------

    @cached_property
    def model(self) -> PreTrainedModel:
        return teacher_model(self.config)

    @cached_property
    def _attention(self) -> str:
        """How the model attends on a CPU."""
        return self.model.config._attn_implementation

    @property
    def teacher(self) -> CarriedTeacher:
        if self._teacher is None:
            self._teacher = CarriedTeacher(self.model)
        return self._teacher

    def register(self, farzi: nn.Module, given: Tensors | None) -> None:
        """Makes the model `farzi.teacher`."""
        self.model = teacher_model(self.config, given)
        farzi.add_module("teacher", self.model)

    def shared(self, tensors: Tensors) -> dict[str, Tensor]:
        """Nothing: the model has them, see `on_cpu`."""
        return {}

    def on_cpu(self) -> TeacherLabels:
        labels = TeacherLabels(self.config)
        labels.model = copy.deepcopy(self.model).cpu()
        return labels

    def moved(self) -> None:
        """On a GPU attention is eager: fused kinds look at the mask, for which each step would
        wait.
        """
        on_cpu = self._attention
        self.model.set_attn_implementation(on_cpu if self.model.device.type == "cpu" else "eager")

    def replaced(self) -> None:
        """Weights that layers share are there once."""
        self.model.tie_weights()
        self._teacher = None

    def entered_mode(self) -> None:
        """A teacher has no dropout, because its labels are the same whenever they are asked for."""
        self.model.eval()

    # -- training ----------------------------------------------------------------------------------

    def batch(self, tensors: Tensors, rows: Tensor | slice, inputs: Tensor) -> SoftTokens:
        """(b, ξ, V): what a student predicts at each position."""
        return self.teacher.labels(tensors, inputs)

    def column(self, tensors: Tensors, count: int, length: int) -> Tensor:
        """Labels without numbers, (count, ξ, 0): the sign that the teacher labels the rows."""
        return torch.empty(count, length, 0)

    def knows(self, row: TrainerRow) -> bool:
        labels = torch.as_tensor(row.get("labels", ()))
        is_matrix = labels.is_floating_point() and labels.ndim == 2
        return is_matrix and labels.shape[1] == 0

    def collated(self, rows: Sequence[TrainerRow], read: Tensor, shared: Tensors) -> Tensor:
        """(b, ξ + 1, V). Nobody reads `labels[:, 0]`."""
        labels = self.teacher.labels(self.teacher.tensors, read).probabilities()
        return F.pad(labels, (0, 0, 1, 0))

    @torch.no_grad()
    def factors(self, tensors: Tensors, ids: Tensor, rank: int | None) -> tuple[Tensor, Tensor]:
        """The labels of rows of ids (n, ξ), as own labels store them: latents (n, ξ, e) and a
        decoder (e, V).

        Args:
            rank: e, see `factors_of_rank`.
        """
        parts = [self.batch(tensors, part, part) for part in ids.split(_READ_AT_ONCE)]
        states = torch.cat([part.latents for part in parts]).flatten(0, 1)
        latents, decoder = factors_of_rank(states, parts[0].decoder, rank)
        return latents.view(*ids.shape, -1), decoder.contiguous()

    # -- reading -----------------------------------------------------------------------------------

    def decode(
        self,
        tensors: Tensors,
        rows: Tensor | slice,
        inputs: Inputs,
        names: Sequence[Any],
        top_k: int,
    ) -> list[list[Position]]:
        latents, decoder = self.factors(tensors, inputs.batch(tensors, rows), None)
        return of_label(likeliest_entries(SoftTokens(latents, decoder), names, top_k))

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return card_cells_of_label(position, likeliest)

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return terminal_cells_of_label(position, likeliest)

    def tables(self, contents: Contents) -> list[Table]:
        inputs = contents.forms.inputs
        text = ", text" if contents.vocabulary.named else ""

        def shown() -> pa.Table:
            """The rows that are shown: ids, their text, the likeliest labels of each position."""
            sequences = contents.decoded[:]
            columns = {
                name: [[position[name] for position in sequence] for sequence in sequences]
                for name in ("label_tokens", "label_probabilities")
            }
            rows = contents.decoded.rows(0, len(sequences))
            ids = {"input_ids": inputs.batch(contents.tensors, rows).tolist()}
            texts = contents.texts_of(sequences)
            return pa.table(contents.index | ids | texts | columns)

        return [Table(POSITIONS, f"one row per shown row: ids{text}, likeliest labels", shown)]

    def torch_code(self) -> str:
        return ""

    def commands(self, repo: str) -> list[str]:
        return [*commands_of_students(repo), f"farzi export {repo} teacher --teacher"]

    def words(self, inputs: InputWords, vocabulary: Vocabulary, nbytes: int) -> LabelWords:
        config = self.config
        size = sum(math.prod(part.axes) for part in self.parts(config).values())
        stored = STORAGES[config.storage].description
        shown = min(SHOWN, config.num_sequences)
        return LabelWords(
            tags=DISTILLED,
            title=f"A teacher of {nbytes:,} bytes that stands in for",
            description=(
                "A summary made by *autoregressive data distillation*. It carries its teacher, a"
                f" model of {size:,} numbers, which predicts what a student should predict\n"
                f"after each of its inputs. Inputs are {inputs.rows}."
            ),
            browse=f" `viewer.html` shows the first {shown} rows.",
            training=None,
            origin=PREDICTED,
            results=RESULTS,
            needs=same_entries(config),
            reading=READING_AID,
            size="what one must keep to train",
            short_size="bytes to keep",
            facts={"the teacher": model_in_words(config.teacher)},
            short={
                "teacher": (
                    f"{config.teacher['model_type']}, {size:,} numbers"
                    + (f": {stored}" if stored else "")
                ),
                "inputs": inputs.short,
                "labels": "what the teacher predicts after each id",
            },
        )


@lru_cache
def _shapes_of_teacher(teacher: str, vocab_size: int, length: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a teacher's parameters, by their names in a summary."""
    config = SimpleNamespace(
        teacher=json.loads(teacher), vocab_size=vocab_size, sequence_length=length
    )
    return teacher_shapes(config)
