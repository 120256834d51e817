"""What a summary is made of: its inputs and its labels, each in one of two forms.

A student reads the input of position j and predicts the label of position j.

| inputs | tensors | the input of a position |
|---|---|---|
| "soft" (`SoftInputs`) | latents (μ, ξ, d), decoder (d, V) | softmax(latents[i, j] @ decoder / τ) |
| "tokens" (`TokenInputs`) | input_ids (μ, ξ) | an id, which is not learnt |

| labels | tensors | the label of position j |
|---|---|---|
| "shared" (`SharedLabels`) | none | the input of position j + 1, as in the paper |
| "own" (`OwnLabels`) | label_latents (μ, ξ, e), label_decoder (e, V) | softmax(label_latents[i, j] @ label_decoder) |

Functions take the tensors of a summary by name, as `FarziData.tensors` gives them; the names tell the form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from farzi_hf.engine import setting
from farzi_hf.summary.initialization import INITIALIZATIONS, INPUT_SEQUENCES
from farzi_hf.summary.soft_tokens import SoftTokens

Tensors = Mapping[str, Tensor]
"""The tensors of a summary, by name."""


class Form:
    """One form of the inputs or of the labels. `Settings`, where it has one, has the settings of a `FarziConfig` that concern this form alone.

    Attributes:
        tensors: each with the fields of a `FarziDataConfig` that are its sizes.
        is_learnt: whether they are parameters; otherwise they stay as they are.
    """

    tensors: ClassVar[dict[str, tuple[str, ...]]] = {}
    is_learnt: ClassVar[bool] = True

    @classmethod
    def shapes(cls, config: Any) -> dict[str, tuple[int, ...]]:
        """The shapes of its tensors in a summary with that config."""
        return {name: tuple(getattr(config, size) for size in sizes) for name, sizes in cls.tensors.items()}


class SoftInputs(Form):
    """Learnt distributions over the vocabulary."""

    tensors: ClassVar = {
        "latents": ("num_sequences", "sequence_length", "latent_dim"), "decoder": ("latent_dim", "vocab_size")
    }  # fmt: skip
    start = "initialization"
    """The setting that names their start."""

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
    start = "input_sequences"

    @dataclass(frozen=True)
    class Settings:
        input_sequences: str = setting("made_up", "where the ids come from", table=INPUT_SEQUENCES)

    @staticmethod
    def batch(tensors: Tensors, rows: Tensor | slice, tau: float) -> Tensor:
        """Ids (b, ξ)."""
        return tensors["input_ids"][rows].long()


class SharedLabels(Form):
    """The inputs themselves: a position predicts the next one."""

    row_of_start = "Farzi, 0 outer steps"
    """The row of a table that has students on the start of a summary."""
    by_teachers = False
    """Whether teachers complete the start of a summary."""

    @staticmethod
    def batch(tensors: Tensors, rows: Tensor | slice, inputs: SoftTokens) -> SoftTokens:
        """(b, ξ − 1, V): the input of position j + 1 is what a student predicts at position j."""
        return inputs.following()


class OwnLabels(Form):
    """Learnt distributions of their own, one for each position."""

    row_of_start = "same inputs, teacher's labels"
    by_teachers = True
    tensors: ClassVar = {
        "label_latents": ("num_sequences", "sequence_length", "label_dim"), "label_decoder": ("label_dim", "vocab_size")
    }  # fmt: skip

    @dataclass(frozen=True)
    class Settings:
        label_dim: int | None = setting(
            None, "e, numbers per own label; by default as many as the head of one teacher has", least=1
        )

    @staticmethod
    def batch(tensors: Tensors, rows: Tensor | slice, inputs: Tensor | SoftTokens) -> SoftTokens:
        """(b, ξ, V): what a student predicts at each position."""
        return SoftTokens(tensors["label_latents"][rows], tensors["label_decoder"])


INPUTS: dict[str, type[SoftInputs] | type[TokenInputs]] = {"soft": SoftInputs, "tokens": TokenInputs}
LABELS: dict[str, type[SharedLabels] | type[OwnLabels]] = {"shared": SharedLabels, "own": OwnLabels}
"""By the name that `FarziDataConfig.inputs` and `FarziDataConfig.labels` give them."""


PER_SEQUENCE = tuple(
    name for form in (*INPUTS.values(), *LABELS.values()) for name, sizes in form.tensors.items() if sizes[0] == "num_sequences"
)  # fmt: skip
"""The tensors with a row for each sequence."""


def rows_of(tensors: Tensors, rows: Tensor | slice) -> dict[str, Tensor]:
    """The summary of the sequences `rows (n,)` alone, differentiable in the whole one."""
    return {name: x[rows] if name in PER_SEQUENCE else x for name, x in tensors.items()}


def device_of(tensors: Tensors) -> torch.device:
    """The device of a summary's tensors."""
    return next(iter(tensors.values())).device


def batch_of(tensors: Tensors, rows: Tensor | slice, tau: float) -> tuple[Tensor | SoftTokens, SoftTokens]:
    """Inputs and targets of the sequences `rows`.

    Args:
        tensors: of a summary.
        rows: (b,) numbers of sequences, or a slice.
        tau: τ of soft inputs.

    Returns:
        Soft tokens (b, ξ, V) or ids (b, ξ); and what the first n positions predict, (b, n, V), where n is ξ − 1 for shared labels and ξ for own ones.
    """
    inputs = _form_of(tensors, INPUTS.values()).batch(tensors, rows, tau)
    return inputs, _form_of(tensors, LABELS.values()).batch(tensors, rows, inputs)


def _form_of(tensors: Tensors, forms: Collection[type[Form]]) -> Any:
    """The form whose tensors are there. One without tensors is what is left. In words that torch.compile can trace."""
    for form in forms:
        for name in form.tensors:
            if name in tensors:
                return form
    return next(form for form in forms if not form.tensors)
