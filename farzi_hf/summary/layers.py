"""The layers of a teacher, for a student of its kind that has more of them or another width.

More layers of equal width: the teacher's come first. Another width needs a map, which a kind of
model has to have.

GPT-2 normalises its states x (e,) before it reads them: x̂ = √e · x / ‖x‖, once the mean of x is
taken off. So the mean of what is written into the states never matters, and all that writes can be
centred. States are then orthogonal to (1, …, 1). With a matrix M (e, w) whose columns' sum is
orthogonal to all of them, a student of width w has the states y = x M, for which the same holds. If
M is an isometry on the states, ‖y‖ = ‖x‖, and

    x̂ = √(e / w) · ŷ Mᵀ.

What writes into the states, W (…, e), becomes W M; what reads them, W (e, …), becomes Mᵀ W, where
√(e / w) is the gain of the student's norms. The teacher's own gains γ and shifts β belong to what
reads: (γ ∘ x̂ + β) W = x̂ (γ ∘ W) + β W.

- Wider: M is an isometry, so the student computes what the teacher does, and has room left
  (Net2Net, Chen et al., 2016, arXiv 1511.05641).
- Narrower: M takes the directions in which both tables of the vocabulary are large, as those in
  which SliceGPT (Ashkboos et al., 2024, arXiv 2401.15024) finds the states to be large. Each head
  keeps the best approximation of its two products, of queries with keys and of values with what
  reads them, and the MLP its units of the largest weights. That is for weights alone; rows tell
  more, see `farzi_hf.summary.narrower`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, PreTrainedModel

Values = dict[str, Tensor]
OF_A_LAYER = re.compile(r"\.\d+\.")
"""In the name of a parameter whose module stands in a list."""


def layers_of_a_deeper_model(teacher: PreTrainedModel, model: PreTrainedModel) -> Values:
    """The parameters of the teacher's layers for a model of its kind and width that has more of
    them, by name; {} for all others. The layers that only the model has follow them.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary.
    """
    theirs = _parameters_of_layers(teacher)
    ours = _parameters_of_layers(model)
    is_of_its_kind = (
        teacher.config.model_type == model.config.model_type
        and theirs.keys() < ours.keys()
        and all(ours[name].shape == x.shape for name, x in theirs.items())
        and _heads_of(teacher) == _heads_of(model)
    )
    if not is_of_its_kind:
        return {}
    return {name: x.detach().float().cpu().clone() for name, x in theirs.items()}


def _parameters_of_layers(model: PreTrainedModel) -> Values:
    """The parameters of modules that stand in a list, which have numbers for names."""
    return {name: x for name, x in model.named_parameters() if OF_A_LAYER.search(name)}


def _heads_of(model: PreTrainedModel) -> dict[str, int]:
    """The fields of a config that say how many heads there are: shapes do not tell."""
    values = vars(model.config).items()
    return {name: x for name, x in values if name.endswith(("heads", "n_head")) and x is not None}


# -- another width ---------------------------------------------------------------------------------


def layers_at_another_width(teacher: PreTrainedModel, model: PreTrainedModel) -> Values:
    """The parameters of a model of the teacher's kind and of another width that make it compute
    what the teacher does, or nearly so, by name; {} where the kind has no map yet, or where the
    widths are equal.

    Layers that only the model has follow the teacher's, and write nothing yet.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary.
    """
    kind = type(teacher)
    if type(model) is not kind or kind not in _KINDS:
        return {}
    return _KINDS[kind](teacher, model)


def _gpt2(teacher: GPT2LMHeadModel, model: GPT2LMHeadModel) -> Values:
    if not fits(teacher, model):
        return {}
    theirs = Gpt2(teacher)
    width = model.config.n_embd
    to_student = theirs.to_width(width)
    reading = Reading.back(to_student)
    values = dict(embeddings(theirs, model, to_student))
    for number in range(teacher.config.n_layer):
        own = parameters_of(model.transformer.h[number])
        layer = dict(attention(theirs, model, number, to_student, reading, own))
        layer |= _mlp(theirs, number, to_student, own)
        values |= named_layer(number, layer, theirs.gain(width), width)
    values |= silent_gpt2_layers(model, teacher.config.n_layer)
    values |= head(theirs, reading)
    return values


def named_layer(number: int, layer: Values, gain: float, width: int) -> Values:
    """The parameters of a layer by their names in the model, with its two norms."""
    norms = ("ln_1", "ln_2")
    layer = layer | {f"{norm}.weight": torch.full((width,), gain) for norm in norms}
    layer |= {f"{norm}.bias": torch.zeros(width) for norm in norms}
    return dict(numbered(_LAYERS, number, layer))


def numbered(layers: str, number: int, layer: Values) -> Iterator[tuple[str, Tensor]]:
    """The parameters of a layer by their names in the model.

    Args:
        layers: the name of the list in which the layer stands.
        number: its place there.
        layer: its parameters, by their names in it.
    """
    for name, value in layer.items():
        yield f"{layers}.{number}.{name}", value


def silent_layers(
    model: PreTrainedModel, layers: str, first: int, writers: tuple[str, ...]
) -> Iterator[tuple[str, Tensor]]:
    """What writes in the layers from `first` on, which only the model has: zeros.

    Args:
        model: the student.
        layers: the name of the list of its layers.
        first: the number of layers of the teacher.
        writers: beginnings of the names, in a layer, of what writes into the states.
    """
    for number, module in enumerate(model.get_submodule(layers)):
        if number >= first:
            of_layer = parameters_of(module)
            silent = {
                name: torch.zeros_like(value)
                for name, value in of_layer.items()
                if name.startswith(writers)
            }
            yield from numbered(layers, number, silent)


def silent_gpt2_layers(model: GPT2LMHeadModel, first: int) -> Iterator[tuple[str, Tensor]]:
    """Those of a GPT-2."""
    return silent_layers(model, _LAYERS, first, _WRITERS)


_LAYERS = "transformer.h"
_WRITERS = ("attn.c_proj.", "mlp.c_proj.")
"""Beginnings of the names, in a layer of a GPT-2, of what writes into the states."""
_KINDS = {GPT2LMHeadModel: _gpt2}
"""By the class of teacher and student."""
_HAS_TO_BE_EQUAL = (
    "activation_function",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
    "add_cross_attention",
)
"""Fields of a config of GPT-2 that change what a layer computes."""


def fits(teacher: GPT2LMHeadModel, model: GPT2LMHeadModel) -> bool:
    """Whether the model has room for each layer and head, and a head of its own: one that is its
    embedding cannot have another basis than the gains of the teacher's last norm.
    """
    theirs = teacher.config
    ours = model.config
    is_alike = all(getattr(theirs, name) == getattr(ours, name) for name in _HAS_TO_BE_EQUAL)
    has_room = ours.n_layer >= theirs.n_layer and ours.n_head >= theirs.n_head
    return is_alike and has_room and ours.n_embd != theirs.n_embd and not ours.tie_word_embeddings


class Gpt2:
    """A trained GPT-2 in float64 on the CPU, whose gains and shifts are part of what reads and
    whose writers are centred.

    Attributes:
        width: e.
        embedding: (V, e).
        positions: (n, e).
        head: (V, e).
        head_bias: (V,): what the shift of the last norm adds to the logits.
    """

    def __init__(self, model: GPT2LMHeadModel) -> None:
        self._parameters = {
            name: x.detach().double().cpu()
            for name, x in model.named_parameters(remove_duplicate=False)
        }
        self.width: int = model.config.n_embd
        self.heads: int = model.config.n_head
        self.embedding = _centred(self._parameters["transformer.wte.weight"])
        self.positions = _centred(self._parameters["transformer.wpe.weight"])
        gain = self._parameters["transformer.ln_f.weight"]
        shift = self._parameters["transformer.ln_f.bias"]
        head = self._parameters["lm_head.weight"]
        self.head_bias = head @ shift
        self.head = _centred(head * gain)

    def states(self, ids: Tensor) -> Tensor:
        """(n, L, e): what the first layer gets for ids (n, L)."""
        return self.embedding[ids] + self.positions[: ids.shape[1]]

    def gain(self, width: int) -> float:
        """Of the norms of a student of width w: √(e / w)."""
        return (self.width / width) ** 0.5

    def reader(self, layer: int, norm: str, name: str) -> tuple[Tensor, Tensor]:
        """Weight (e, …) and bias of what reads normalised states, with the norm's gain and shift in
        them.
        """
        gain = self._parameters[f"transformer.h.{layer}.{norm}.weight"]
        shift = self._parameters[f"transformer.h.{layer}.{norm}.bias"]
        weight = self._parameters[f"transformer.h.{layer}.{name}.weight"]
        bias = self._parameters[f"transformer.h.{layer}.{name}.bias"]
        return gain[:, None] * weight, bias + shift @ weight

    def writer(self, layer: int, name: str) -> tuple[Tensor, Tensor]:
        """Weight (…, e) and bias (e,) of what writes into the states."""
        weight = self._parameters[f"transformer.h.{layer}.{name}.weight"]
        bias = self._parameters[f"transformer.h.{layer}.{name}.bias"]
        return _centred(weight), _centred(bias)

    def to_width(self, width: int) -> Tensor:
        """M (e, w): from the directions in which both tables are largest, each of them divided by
        its norm, to a space that is orthogonal to (1, …, 1).
        """
        states = orthogonal_to_ones(self.width).T
        tables = torch.cat([normed(self.embedding), normed(self.head)]) @ states
        _, directions = torch.linalg.eigh(tables.T @ tables)  # the largest last
        count = min(width, self.width) - 1
        return states @ directions[:, -count:] @ orthogonal_to_ones(width)[:count]


def embeddings(
    theirs: Gpt2, model: GPT2LMHeadModel, to_student: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Embedding and positions."""
    yield "transformer.wte.weight", theirs.embedding @ to_student
    positions = model.transformer.wpe.weight.detach().double().cpu().clone()
    count = min(len(positions), len(theirs.positions))
    positions[:count] = theirs.positions[:count] @ to_student
    yield "transformer.wpe.weight", positions


@dataclass(frozen=True)
class Reading:
    """What the readers of a narrower model take for the teacher's states: x̂ ≈ ŷ A + a, with the
    student's states ŷ (…, w) as its norm returns them.
    """

    matrix: Tensor
    """A (w, e)."""
    shift: Tensor
    """a (e,)."""

    @classmethod
    def back(cls, to_student: Tensor) -> Reading:
        """That of M (e, w) alone: A = Mᵀ."""
        return cls(to_student.T, to_student.new_zeros(len(to_student)))

    def through(self, weight: Tensor, bias: Tensor) -> Tensor:
        """(w + 1, …): weights and, last, the bias of what reads x̂ W + b."""
        return torch.cat([self.matrix @ weight, (bias + self.shift @ weight)[None]])


def head(theirs: Gpt2, reading: Reading) -> Iterator[tuple[str, Tensor]]:
    """Last norm and head."""
    width = len(reading.matrix)
    # GPT-2's head has no bias. States are orthogonal to (1, …, 1), so this direction can hold it.
    alone = torch.full((width,), width**-0.5, dtype=torch.float64)
    weight = theirs.head @ reading.matrix.T * theirs.gain(width)
    bias = theirs.head_bias + theirs.head @ reading.shift
    yield "lm_head.weight", weight + bias[:, None] * alone
    yield "transformer.ln_f.weight", torch.ones(width)
    yield "transformer.ln_f.bias", alone


def parameters_of(layer: nn.Module) -> Values:
    """The parameters of a layer of the student in float64 on the CPU, by their names in it."""
    return {name: x.detach().double().cpu() for name, x in layer.named_parameters()}


def attention(
    theirs: Gpt2,
    model: GPT2LMHeadModel,
    number: int,
    to_student: Tensor,
    reading: Reading,
    own: Values,
) -> Iterator[tuple[str, Tensor]]:
    """Each head has a left and a right factor of two products: of queries and keys, and of values
    and what reads them. Heads that only the student has write nothing yet.
    """
    size = theirs.width // theirs.heads
    width = to_student.shape[1]
    own_size = width // model.config.n_head
    weight, bias = theirs.reader(number, "ln_1", "attn.c_attn")
    read = reading.through(weight, bias)  # (w + 1, 3 e)
    queries, keys, values = (part.split(size, 1) for part in read.split(theirs.width, 1))
    writing, writing_bias = theirs.writer(number, "attn.c_proj")
    writers = (writing @ to_student).split(size)
    scale = (own_size / size) ** 0.25 if model.config.scale_attn_weights else 1.0
    fused = torch.cat([own["attn.c_attn.weight"], own["attn.c_attn.bias"][None]]).clone()
    output = own["attn.c_proj.weight"].clone()
    output[theirs.heads * own_size :] = 0
    for head in range(theirs.heads):
        query, key = of_rank(queries[head] * scale, keys[head] * scale, own_size)
        value, writer = of_rank(values[head], writers[head].T, own_size)
        columns = slice(head * own_size, (head + 1) * own_size)
        for part, factor in enumerate((query, key, value)):
            fused[:, part * width :][:, columns] = factor
        output[columns] = writer.T
    yield "attn.c_attn.weight", fused[:-1]
    yield "attn.c_attn.bias", fused[-1]
    yield "attn.c_proj.weight", output
    yield "attn.c_proj.bias", writing_bias @ to_student


def _mlp(
    theirs: Gpt2, number: int, to_student: Tensor, own: Values
) -> Iterator[tuple[str, Tensor]]:
    """The units of the largest weights, as many as there is room for."""
    weight, bias = theirs.reader(number, "ln_2", "mlp.c_fc")
    writing, writing_bias = theirs.writer(number, "mlp.c_proj")
    reading = to_student.T @ weight
    writing = writing @ to_student
    sizes = reading.norm(dim=0) * writing.norm(dim=1)
    kept = largest(sizes, len(own["mlp.c_proj.weight"]))
    read = torch.cat([reading, bias[None]])[:, kept]
    written = torch.cat([writing[kept], (writing_bias @ to_student)[None]])
    yield from units(read, written, own)


def largest(sizes: Tensor, count: int) -> Tensor:
    """The places of the largest sizes, `count` at most, in order."""
    return sizes.argsort(descending=True, stable=True)[:count].sort().values


def units(read: Tensor, written: Tensor, own: Values) -> Iterator[tuple[str, Tensor]]:
    """The MLP of a layer with these units. Units that only the student has write nothing yet.

    Args:
        read: (w + 1, n), what they read and their bias.
        written: (n + 1, w), what they write and its bias.
        own: the parameters of the student's layer.
    """
    up = own["mlp.c_fc.weight"].clone()
    up_bias = own["mlp.c_fc.bias"].clone()
    down = torch.zeros_like(own["mlp.c_proj.weight"])
    count = read.shape[1]
    up[:, :count] = read[:-1]
    up_bias[:count] = read[-1]
    down[:count] = written[:-1]
    yield "mlp.c_fc.weight", up
    yield "mlp.c_fc.bias", up_bias
    yield "mlp.c_proj.weight", down
    yield "mlp.c_proj.bias", written[-1]


def of_rank(left: Tensor, right: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factors (n, rank) and (m, rank) whose product is nearest to that of `left` (n, d) and `right`
    (m, d); zeros fill them up where d is less than the rank.
    """
    missing = rank - left.shape[1]
    if missing >= 0:
        return nn.functional.pad(left, (0, missing)), nn.functional.pad(right, (0, missing))
    of_left = torch.linalg.qr(left)
    of_right = torch.linalg.qr(right)
    u, s, v = torch.linalg.svd(of_left.R @ of_right.R.T)
    root = s[:rank].sqrt()
    return of_left.Q @ u[:, :rank] * root, of_right.Q @ v[:rank].T * root


def _centred(x: Tensor) -> Tensor:
    """Rows whose mean is 0."""
    return x - x.mean(-1, keepdim=True)


def normed(table: Tensor) -> Tensor:
    """A table, divided by its norm."""
    return table / table.norm().clamp_min(torch.finfo(table.dtype).tiny)


def orthogonal_to_ones(width: int) -> Tensor:
    """(w − 1, w): orthonormal rows, each orthogonal to (1, …, 1): the cosines of a discrete cosine
    transform but the first, so no coordinate stands out.
    """
    places = (torch.arange(width, dtype=torch.float64) + 0.5) / width
    frequencies = torch.arange(1, width, dtype=torch.float64)
    return (torch.pi * frequencies[:, None] * places).cos() * (2 / width) ** 0.5
