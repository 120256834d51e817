"""The layers of a GPT-2 for a GPT-NeoX, such as Pythia.

Both have norms with gain and shift, biases, and units of GELU, so what is a matrix goes from model
to model as it does to a GPT-2 of another width: `farzi_hf.summary.layers` and
`farzi_hf.summary.narrower`. Two things are different.

**Positions** are rotary. Queries and keys are fitted, as `farzi_hf.summary.rotations` has it.
Coordinates to spare begin with the keys and values of the new model, no queries, and nothing that
they write.

**The residual is parallel**, unless the config says otherwise: attention and MLP of a layer both
read the states y that come in, where the MLP of a GPT-2 reads y and what attention has just
written. Least squares say what of that y tells, ŷ A + a ≈ x̂; what is left has to be learnt. With
`use_parallel_residual=False` nothing is lost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2LMHeadModel, GPTNeoXForCausalLM, PreTrainedModel

from farzi_hf.summary.layers import (
    Gpt2,
    Reading,
    Values,
    head,
    numbered,
    of_rank,
    parameters_of,
    silent_layers,
)
from farzi_hf.summary.narrower import Reader, Rows, fitted_units, layers_of, reading_of
from farzi_hf.summary.rotations import (
    Rotation,
    embedding_for_rotations,
    heads_of,
    queries_and_keys,
    to_any_width,
    values_on_rows,
)
from farzi_hf.summary.teacher import parameter_names

_LAYERS = "gpt_neox.layers"
_FUSED = "attention.query_key_value"
_DENSE = "attention.dense"
_UNITS = {"mlp.c_fc": "mlp.dense_h_to_4h", "mlp.c_proj": "mlp.dense_4h_to_h"}
"""What a GPT-2 calls the two matrices of a layer's MLP, and what a GPT-NeoX does."""
_WRITERS = (f"{_DENSE}.", "mlp.dense_4h_to_h.")
"""Beginnings of the names of what writes into the states."""
_NORMS = ("input_layernorm", "post_attention_layernorm")


def neox_layers(teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows) -> Values:
    """The parameters of a GPT-NeoX that does nearly what a GPT-2 does, by name; {} for other pairs,
    and where the teacher is too large or reads too few positions for this. Layers that only the
    model has write nothing yet.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary, of any width.
        rows: as the teacher writes them.
    """
    if type(model) is not GPTNeoXForCausalLM:
        return {}
    is_like_gpt2 = model.config.attention_bias and model.config.hidden_act.startswith("gelu")
    return values_on_rows(teacher, model, rows, _values) if is_like_gpt2 else {}


def _values(
    teacher: GPT2LMHeadModel, model: GPTNeoXForCausalLM, ids: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The parameters, layer by layer."""
    theirs = Gpt2(teacher)
    reader = Reader(teacher.config)
    layers = layers_of(theirs, teacher.config.n_layer)
    student = _Student.of(theirs, model, ids.shape[1])
    to_student = to_any_width(theirs, reader, layers, ids, student.width)
    table = embedding_for_rotations(theirs, ids) @ to_student
    yield "gpt_neox.embed_in.weight", table
    x = theirs.states(ids)
    y = table[ids]
    for number, layer in enumerate(layers):
        own = parameters_of(model.gpt_neox.layers[number])
        read = student.read(reader, x, y, to_student)
        made = _attention(student, theirs, layer, to_student, read, own)
        x = x + reader.attention(layer, number, read.theirs)
        behind_attention = y + student.attention(made, read.ours)
        read = student.read(reader, x, y if student.is_parallel else behind_attention, to_student)
        # Kinds of GELU differ so little that the teacher's may stand for the student's.
        units = fitted_units(
            theirs, reader, number, to_student, read.reading, _units(own), read.ours
        )
        units = dict(units)
        x = x + reader.mlp(layer, read.theirs)
        y = behind_attention + reader.mlp(units, read.ours)
        made |= _of_units(units)
        made |= student.norms()
        yield from numbered(_LAYERS, number, made)
    yield from silent_layers(model, _LAYERS, len(layers), _WRITERS)
    read = student.read(reader, x, y, to_student)
    weight, gain, shift = (value for _, value in head(theirs, read.reading))
    yield parameter_names(model, model.get_output_embeddings())["weight"], weight
    yield "gpt_neox.final_layer_norm.weight", gain
    yield "gpt_neox.final_layer_norm.bias", shift


def _units(own: Values) -> Values:
    """The MLP of a layer by the names of a GPT-2, and as it stores matrices."""
    return {
        **{f"{theirs}.weight": own[f"{ours}.weight"].T for theirs, ours in _UNITS.items()},
        **{f"{theirs}.bias": own[f"{ours}.bias"] for theirs, ours in _UNITS.items()},
    }


def _of_units(layer: Values) -> Values:
    """The inverse of `_units`."""
    return {
        **{f"{ours}.weight": layer[f"{theirs}.weight"].T for theirs, ours in _UNITS.items()},
        **{f"{ours}.bias": layer[f"{theirs}.bias"] for theirs, ours in _UNITS.items()},
    }


# -- the student's states --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """What readers get at the places of the rows."""

    theirs: Tensor
    """x̂ (n, L, e)."""
    ours: Tensor
    """ŷ (n, L, w)."""
    reading: Reading
    """Of the first from the second."""


@dataclass(frozen=True)
class _Student:
    """What the layers of a GPT-NeoX do with states (n, L, w) that have no mean."""

    width: int
    """w."""
    heads: int
    """h."""
    epsilon: float
    """Of the norms."""
    gain: float
    """Of the norms of layers."""
    is_parallel: bool
    """Whether the MLP of a layer reads what its attention reads."""
    rotation: Rotation
    """Of queries and keys."""

    @classmethod
    def of(cls, theirs: Gpt2, model: GPTNeoXForCausalLM, length: int) -> _Student:
        """That of a model, for rows of this length."""
        config = model.config
        width = config.hidden_size
        heads = config.num_attention_heads
        return cls(
            width,
            heads,
            config.layer_norm_eps,
            theirs.gain(width),
            config.use_parallel_residual,
            Rotation.of(model.gpt_neox.rotary_emb, model, length, width // heads),
        )

    def norms(self) -> Values:
        """The parameters of a layer's norms."""
        gains = torch.full((self.width,), self.gain, dtype=torch.float64)
        return {
            **{f"{norm}.weight": gains for norm in _NORMS},
            **{f"{norm}.bias": torch.zeros(self.width) for norm in _NORMS},
        }

    def read(self, reader: Reader, x: Tensor, y: Tensor, to_student: Tensor) -> _Read:
        """What readers of these states get.

        Args:
            reader: of the teacher.
            x: the teacher's states (n, L, e).
            y: the student's (n, L, w).
            to_student: M (e, w).
        """
        theirs = reader.normed(x)
        ours = self.gain * y / (y.square().mean(-1, keepdim=True) + self.epsilon).sqrt()
        return _Read(theirs, ours, reading_of(ours, theirs, to_student))

    def attention(self, layer: Values, states: Tensor) -> Tensor:
        """What the attention of a layer writes."""
        read = states @ layer[f"{_FUSED}.weight"].T + layer[f"{_FUSED}.bias"]
        heads = heads_of(read, self.heads).chunk(3, dim=-1)
        queries, keys = (self.rotation.rotated(part) for part in heads[:2])
        attended = nn.functional.scaled_dot_product_attention(
            queries, keys, heads[2], is_causal=True
        )
        attended = attended.transpose(1, 2).flatten(2)
        return attended @ layer[f"{_DENSE}.weight"].T + layer[f"{_DENSE}.bias"]


# -- attention -------------------------------------------------------------------------------------


def _attention(
    student: _Student,
    theirs: Gpt2,
    layer: Values,
    to_student: Tensor,
    read: _Read,
    own: Values,
) -> Values:
    """The heads of the teacher. Heads that only the student has write nothing yet.

    Args:
        student: whose layer it is.
        theirs: the teacher.
        layer: of the teacher.
        to_student: M (e, w).
        read: by the layer's attention.
        own: the parameters of the student's layer.
    """
    size = student.rotation.size
    count = theirs.heads
    weight = layer["attn.c_attn.weight"]
    bias = layer["attn.c_attn.bias"]
    readers = [part.chunk(count, 1) for part in read.reading.through(weight, bias).chunk(3, 1)]
    writers = (layer["attn.c_proj.weight"] @ to_student).chunk(count)
    fused = torch.cat([own[f"{_FUSED}.weight"], own[f"{_FUSED}.bias"][:, None]], dim=1)
    # (h, w + 1, d) each: what a head reads of the states and, last, its biases.
    queries, keys, values = fused.unflatten(0, (student.heads, 3, size)).mT.unbind(1)
    values = values.clone()
    outputs = fused.new_zeros(student.heads, size, student.width)
    for number, (value, writer) in enumerate(zip(readers[2], writers, strict=True)):
        rank = min(size, value.shape[1])
        values[number][:, :rank], written = of_rank(value, writer.T, rank)
        outputs[number][:rank] = written.T
    wanted = [heads_of(part, count) for part in (read.theirs @ weight + bias).chunk(3, -1)[:2]]
    with_one = torch.cat([read.ours, torch.ones_like(read.ours[..., :1])], dim=-1)
    queries, keys = queries_and_keys(
        student.rotation, with_one, wanted, readers[:2], (queries, keys)
    )
    fused = torch.stack([queries, keys, values], dim=1).mT.flatten(0, 2)
    return {
        f"{_FUSED}.weight": fused[:, :-1],
        f"{_FUSED}.bias": fused[:, -1],
        f"{_DENSE}.weight": outputs.flatten(0, 1).T,
        f"{_DENSE}.bias": layer["attn.c_proj.bias"] @ to_student,
    }
