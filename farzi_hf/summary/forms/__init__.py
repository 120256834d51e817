"""What a summary is made of: its inputs and its labels, each in one of several forms.

A student reads the input of position j and predicts the label of position j.

| inputs | tensors | the input of a position |
|---|---|---|
| "soft" (`SoftInputs`) | latents (μ, ξ, d), decoder (d, V) | softmax(latents[i, j] @ decoder / τ) |
| "tokens" (`TokenInputs`) | input_ids (μ, ξ) | an id, which is not learnt |
| "drawn" (`DrawnInputs`) | frequencies (V,) | an id, drawn anew in every row |
| "written" (`WrittenInputs`) | frequencies (V,) | an id that the carried teacher writes |
| "rows" (`RowInputs`) | rows | rows of the user's data, in their own columns |

| labels | tensors | the label of position j |
|---|---|---|
| "shared" (`SharedLabels`) | none | the input of position j + 1, as in the paper |
| "own" (`OwnLabels`) | label_latents (μ, ξ, e), label_decoder (e, V) | their softmax |
| "teacher" (`TeacherLabels`) | teacher.… | what a model predicts that the summary carries |
| "real" (`RealLabels`) | weights (n,) | the next token; a row counts as its weight says |

A form is a class in a file of its own: its tensors, its batches, how it is read and stored, and
every word that a card, a page or a table says about it. `base` lists what a form has to say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from farzi_hf.summary.forms.base import Inputs, Labels, Part, Position, Table, Tensors
from farzi_hf.summary.forms.drawn import DrawnInputs
from farzi_hf.summary.forms.own import OwnLabels
from farzi_hf.summary.forms.pair import Forms, device_of
from farzi_hf.summary.forms.real import RealLabels
from farzi_hf.summary.forms.rows import RowInputs
from farzi_hf.summary.forms.shared import SharedLabels
from farzi_hf.summary.forms.soft import SoftInputs
from farzi_hf.summary.forms.teacher import TeacherLabels
from farzi_hf.summary.forms.tokens import TokenInputs
from farzi_hf.summary.forms.words import SHOWN, InputWords, LabelWords
from farzi_hf.summary.forms.written import WrittenInputs

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig

INPUTS: dict[str, type[Inputs]] = {
    form.name: form for form in (SoftInputs, TokenInputs, DrawnInputs, WrittenInputs, RowInputs)
}
"""By the name that `FarziDataConfig.inputs` gives them."""

LABELS: dict[str, type[Labels]] = {
    form.name: form for form in (SharedLabels, OwnLabels, TeacherLabels, RealLabels)
}
"""By the name that `FarziDataConfig.labels` gives them."""


def inputs_for(labels: str) -> list[str]:
    """The names of the inputs that go with these labels."""
    return [name for name, form in INPUTS.items() if issubclass(form, LABELS[labels].goes_with)]


def all_sizes() -> list[str]:
    """The names of the sizes of a `FarziDataConfig` that some forms have and others do not."""
    forms = (*INPUTS.values(), *LABELS.values())
    return list(dict.fromkeys(name for form in forms for name in form.sizes))


def forms_of(config: FarziDataConfig) -> Forms:
    """The forms of a summary with that config."""
    return Forms(INPUTS[config.inputs](config), LABELS[config.labels](config))


def parts_of(config: FarziDataConfig) -> dict[str, Part]:
    """The tensors of a summary with that config by name, in the order of the file."""
    return {**INPUTS[config.inputs].parts(config), **LABELS[config.labels].parts(config)}


__all__ = [
    "INPUTS",
    "LABELS",
    "SHOWN",
    "DrawnInputs",
    "Forms",
    "InputWords",
    "Inputs",
    "LabelWords",
    "Labels",
    "OwnLabels",
    "Part",
    "Position",
    "RealLabels",
    "RowInputs",
    "SharedLabels",
    "SoftInputs",
    "Table",
    "TeacherLabels",
    "Tensors",
    "TokenInputs",
    "WrittenInputs",
    "all_sizes",
    "device_of",
    "forms_of",
    "inputs_for",
    "parts_of",
]
