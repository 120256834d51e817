"""What a summary is made of: its inputs and its labels, each in one of several forms.

A student reads the input of position j and predicts the label of position j.

| inputs | tensors | the input of a position |
|---|---|---|
| "soft" (`SoftInputs`) | latents (μ, ξ, d), decoder (d, V) | softmax(latents[i, j] @ decoder / τ) |
| "tokens" (`TokenInputs`) | input_ids (μ, ξ) | an id, which is not learnt |
| "drawn" (`DrawnInputs`) | frequencies (V,) | an id, drawn anew in every row |
| "written" (`WrittenInputs`) | frequencies (V,) | an id that the carried teacher writes after those before |

| labels | tensors | the label of position j |
|---|---|---|
| "shared" (`SharedLabels`) | none | the input of position j + 1, as in the paper |
| "own" (`OwnLabels`) | label_latents (μ, ξ, e), label_decoder (e, V) | softmax(label_latents[i, j] @ label_decoder) |
| "teacher" (`TeacherLabels`) | teacher.… | what a model predicts that the summary carries |

Functions take the tensors of a summary by name, as `FarziData.tensors` gives them; the names tell
the form.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.summary.endless import DrawnRows, WrittenRows
from farzi_hf.summary.initialization import INITIALIZATIONS, INPUT_SEQUENCES, Shares
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.store.tensor_file import SHARES
from farzi_hf.summary.teacher import CarriedTeacher, teacher_shapes

Tensors = Mapping[str, Tensor]
"""The tensors of a summary, by name."""


class Form:
    """One form of the inputs or of the labels. `Settings`, where it has one, has the settings of a
    `FarziConfig` that concern this form alone.

    Attributes:
        tensors: each with the fields of a `FarziDataConfig` that are its sizes.
        is_learnt: whether they are parameters; otherwise they stay as they are.
        by_teachers: whether teachers complete the start of a summary.
        row_without_steps: the row of a table that has students on a summary without outer steps;
            None where it is called as any other.
    """

    tensors: ClassVar[dict[str, tuple[str, ...]]] = {}
    is_learnt: ClassVar[bool] = True
    by_teachers: ClassVar[bool] = False
    row_without_steps: ClassVar[str | None] = None

    @classmethod
    def shapes(cls, config: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors in a summary with that config."""
        return {
            name: tuple(getattr(config, size) for size in sizes)
            for name, sizes in cls.tensors.items()
        }


class SoftInputs(Form):
    """Learnt distributions over the vocabulary."""

    tensors: ClassVar = {
        "latents": ("num_sequences", "sequence_length", "latent_dim"),
        "decoder": ("latent_dim", "vocab_size"),
    }
    start = "initialization"
    """The setting that names their start, or the start itself."""
    source = None

    @dataclass(frozen=True)
    class Settings:
        latent_dim: int = setting(16, "d, numbers per synthetic token", least=1)
        tau: float = setting(1.0, "τ, softmax temperature")
        initialization: str = setting("spectral", "where soft inputs start", table=INITIALIZATIONS)

    @staticmethod
    def batch(tensors: Tensors, rows: Tensor | slice, tau: float) -> SoftTokens:
        """Soft tokens (b, ξ, V)."""
        return SoftTokens(tensors["latents"][rows], tensors["decoder"], tau)


class TokenInputs(Form):
    """Ids of the vocabulary, which any model reads without soft inputs."""

    tensors: ClassVar = {"input_ids": ("num_sequences", "sequence_length")}
    is_learnt = False
    source = None
    start = "input_sequences"
    words = "fixed ids"
    """What a row of a table calls them, beside a carried teacher."""

    @dataclass(frozen=True)
    class Settings:
        input_sequences: str = setting("made_up", "where the ids come from", table=INPUT_SEQUENCES)

    @staticmethod
    def batch(tensors: Tensors, rows: Tensor | slice, tau: float) -> Tensor:
        """Ids (b, ξ)."""
        return tensors["input_ids"][rows].long()


class DrawnInputs(Form):
    """Ids drawn by frequency, fresh in every row, as many as a training asks for."""

    tensors: ClassVar = {SHARES: ("vocab_size",)}
    is_learnt = False
    start = Shares()
    words = "drawn ids"
    source = staticmethod(lambda farzi, length, seed: DrawnRows(farzi.frequencies, length, seed))
    """Makes the rows of a summary; None where it has rows of its own."""

    @staticmethod
    def batch(tensors: Tensors, rows: Tensor, tau: float) -> Tensor:
        """The ids (b, ξ) themselves."""
        return rows


class WrittenInputs(DrawnInputs):
    """Ids that the carried teacher writes."""

    words = "written ids"
    source = staticmethod(
        lambda farzi, length, seed: WrittenRows(farzi.teacher, farzi.frequencies, length, seed)
    )


_BY_OUTER_STEPS = {
    "inner_steps": 100,
    "inner_learning_rate": 0.02,
    "inner_betas": [0.7, 0.999],
    "inner_lr_scheduler_type": "constant",
    "storage": "exact",
    "max_steps": 400,
    "inner_optimizer": "adam",
}


class SharedLabels(Form):
    """The inputs themselves: a position predicts the next one.

    Attributes:
        inputs: the forms of inputs that such labels go with.
        defaults: settings of a `FarziConfig` that leaves them open.
    """

    inputs: ClassVar = ("soft",)
    defaults: ClassVar = {**_BY_OUTER_STEPS, "inputs": "soft"}
    row_of_start = "Farzi, 0 outer steps"
    """The row of a table that has students on the start of a summary."""

    @staticmethod
    def batch(tensors: Tensors, rows: Any, inputs: SoftTokens, teacher: Any) -> SoftTokens:
        """(b, ξ − 1, V): the input of position j + 1 is what a student predicts at position j."""
        return inputs.following()


class OwnLabels(Form):
    """Learnt distributions of their own, one for each position."""

    inputs: ClassVar = ("soft", "tokens")
    defaults: ClassVar = {**_BY_OUTER_STEPS, "inputs": "tokens"}
    row_of_start = "same inputs, teacher's labels"
    by_teachers = True
    tensors: ClassVar = {
        "label_latents": ("num_sequences", "sequence_length", "label_dim"),
        "label_decoder": ("label_dim", "vocab_size"),
    }

    @dataclass(frozen=True)
    class Settings:
        label_dim: int | None = setting(
            None, "e, numbers per own label; by default those of a teacher's head", least=1
        )
        num_teachers: int = setting(
            1, "teachers; the labels are those of the mean of their logits", least=1
        )

    @staticmethod
    def batch(
        tensors: Tensors, rows: Tensor | slice, inputs: Tensor | SoftTokens, teacher: Any
    ) -> SoftTokens:
        """(b, ξ, V): what a student predicts at each position."""
        return SoftTokens(tensors["label_latents"][rows], tensors["label_decoder"])


class TeacherLabels(Form):
    """What a carried teacher predicts after each position."""

    inputs: ClassVar = ("drawn", "written", "tokens")
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
    }
    row_without_steps = "packed teacher, {inputs}"
    row_of_start = "packed teacher, {inputs} (0 outer steps)"
    by_teachers = True

    @classmethod
    def shapes(cls, config: Any) -> dict[str, tuple[int, ...]]:
        """Those of the teacher's parameters."""
        return dict(
            _shapes_of_teacher(
                json.dumps(config.teacher), config.vocab_size, config.sequence_length
            )
        )

    @staticmethod
    def batch(tensors: Tensors, rows: Any, inputs: Tensor, teacher: CarriedTeacher) -> SoftTokens:
        """(b, ξ, V): what a student predicts at each position."""
        return teacher.labels(tensors, inputs)


@lru_cache
def _shapes_of_teacher(teacher: str, vocab_size: int, length: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a teacher's parameters."""
    config = SimpleNamespace(
        teacher=json.loads(teacher), vocab_size=vocab_size, sequence_length=length
    )
    return teacher_shapes(config)


INPUTS: dict[str, type[Form]] = {
    "soft": SoftInputs,
    "tokens": TokenInputs,
    "drawn": DrawnInputs,
    "written": WrittenInputs,
}
LABELS: dict[str, type[Form]] = {"shared": SharedLabels, "own": OwnLabels, "teacher": TeacherLabels}
"""By the name that `FarziDataConfig.inputs` and `FarziDataConfig.labels` give them."""


PER_SEQUENCE = tuple(
    name
    for form in (*INPUTS.values(), *LABELS.values())
    for name, sizes in form.tensors.items()
    if sizes[0] == "num_sequences"
)
"""The tensors with a row for each sequence."""


def rows_of(tensors: Tensors, rows: Tensor | slice) -> dict[str, Tensor]:
    """The summary of the sequences `rows (n,)` alone, differentiable in the whole one."""
    return {name: x[rows] if name in PER_SEQUENCE else x for name, x in tensors.items()}


def device_of(tensors: Tensors) -> torch.device:
    """The device of a summary's tensors."""
    return next(iter(tensors.values())).device


def batch_of(
    tensors: Tensors, rows: Tensor | slice, tau: float, teacher: CarriedTeacher | None = None
) -> tuple[Tensor | SoftTokens, SoftTokens]:
    """Inputs and targets of the sequences `rows`.

    Args:
        tensors: of a summary.
        rows: (b,) numbers of sequences, or a slice; where inputs do not run out, the ids (b, ξ) of
            rows that were made.
        tau: τ of soft inputs.
        teacher: that the summary carries, if it does.

    Returns:
        Soft tokens (b, ξ, V) or ids (b, ξ); and what the first n positions predict, (b, n, V),
        where n is ξ − 1 for shared labels and ξ for others.
    """
    inputs = _form_of(tensors, INPUTS.values()).batch(tensors, rows, tau)
    labels = TeacherLabels if teacher is not None else _form_of(tensors, (OwnLabels, SharedLabels))
    return inputs, labels.batch(tensors, rows, inputs, teacher)


def _form_of(tensors: Tensors, forms: Collection[type[Form]]) -> Any:
    """The form whose tensors are there. One without tensors is what is left. In words that
    torch.compile can trace.
    """
    for form in forms:
        for name in form.tensors:
            if name in tensors:
                return form
    return next(form for form in forms if not form.tensors)
