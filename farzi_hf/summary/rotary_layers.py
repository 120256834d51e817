"""The layers of a GPT-2 for a student whose positions are rotary: a Llama, a Mistral or a Qwen2.

The student reads the same rows as the teacher, which has written them, and is made from its
embedding upwards. Below, e is the teacher's width and w the student's; a row x M (w,) is what the
teacher's states x (e,) are in the student, as `farzi_hf.summary.layers` has it.

**Norms.** States of a GPT-2 are orthogonal to (1, …, 1) once all that writes is centred. The mean
of such states is 0, so that RMSNorm is LayerNorm.

**Biases.** A Llama has none. But nothing writes in the direction of (1, …, 1), so each embedding
holds a constant c there, and also what the biases b of the teacher's writers add to every state. In
front of a layer where `ahead` of these have not been added yet,

    y = (x + Σ_ahead b) M + c · (1, …, 1) / √w.

**What reads.** A norm divides by ‖y‖ now and not by ‖x‖, and the student's states have lost
something. Least squares say what of the teacher's states x̂ the student's ŷ tell: ŷ A ≈ (x̂, 1),
with a ridge around the A that would be right if ‖y‖ / ‖x‖ were the same everywhere. A reader
x̂ W + b becomes ŷ A (W; b).

**MLP.** GELU(z) ≈ z σ(1.702 z) (Hendrycks and Gimpel, 2016, arXiv 1606.08415), and a gated unit is
silu(g) · u. So g = 1.702 z, the unit's writer is divided by 1.702, and u = 1 is read as above.

**Attention.** Values and what writes them go head by head, as in a GPT-2; queries and keys are
fitted, as `farzi_hf.summary.rotations` has it. Coordinates to spare begin with the keys of the new
model and no queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import (
    GPT2LMHeadModel,
    LlamaForCausalLM,
    MistralForCausalLM,
    PreTrainedModel,
    Qwen2ForCausalLM,
)

from farzi_hf.summary.layers import (
    Gpt2,
    Values,
    largest,
    numbered,
    parameters_of,
    silent_layers,
)
from farzi_hf.summary.narrower import Reader, Rows, layers_of, least_squares
from farzi_hf.summary.rotations import (
    Rotation,
    embedding_for_rotations,
    heads_of,
    queries_and_keys,
    shared_factors,
    to_any_width,
    values_on_rows,
)

_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
"""Classes of students whose modules have the names of a Llama's."""
_GELU = 1.702
_CONSTANT = 0.5
"""c beside the mean length of an embedding."""
_RIDGE = 1e-3
"""Of least squares, as a share of the mean square of what is read."""


def rotary_layers(teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows) -> Values:
    """The parameters of a Llama, or of a model with its modules, that do nearly what a GPT-2 does,
    by name; {} for other pairs, and where the teacher is too large or reads too few positions for
    this. Layers that only the model has write nothing yet.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary.
        rows: as the teacher writes them.
    """
    is_known = type(model) in _KINDS and model.config.hidden_act == "silu"
    return values_on_rows(teacher, model, rows, _values) if is_known else {}


def _values(
    teacher: GPT2LMHeadModel, model: PreTrainedModel, ids: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The parameters, layer by layer."""
    theirs = Gpt2(teacher)
    reader = Reader(teacher.config)
    student = _Student.of(model, ids.shape[1])
    layers = layers_of(theirs, teacher.config.n_layer)
    ahead = sum(layer[name] for layer in layers for name in _BIASES)
    table = embedding_for_rotations(theirs, ids)
    frame = _Frame.of(theirs, reader, layers, ids, student.width, table)
    table = (table + ahead) @ frame.to_student + frame.constant * frame.alone
    yield "model.embed_tokens.weight", table
    x = theirs.states(ids)
    y = table[ids]
    for number, layer in enumerate(layers):
        own = parameters_of(model.model.layers[number])
        made = {name: torch.ones_like(own[name]) for name in _NORMS}
        made |= {name: torch.zeros_like(own[name]) for name in own if name.endswith(".bias")}
        read = frame.read(reader, student, x, y, ahead)
        made |= _attention(student, layer, frame, read, theirs.heads, own)
        x = x + reader.attention(layer, number, read.theirs)
        y = y + student.attention(made, read.ours)
        ahead = ahead - layer["attn.c_proj.bias"]
        read = frame.read(reader, student, x, y, ahead)
        made |= _mlp(layer, frame, read, own)
        x = x + reader.mlp(layer, read.theirs)
        y = y + student.mlp(made, read.ours)
        ahead = ahead - layer["mlp.c_proj.bias"]
        yield from numbered(_LAYERS, number, made)
    yield from silent_layers(model, _LAYERS, len(layers), _WRITERS)
    read = frame.read(reader, student, x, y, ahead)
    yield "model.norm.weight", torch.ones(student.width)
    yield "lm_head.weight", read.through(theirs.head.T, theirs.head_bias).T


_LAYERS = "model.layers"
_BIASES = ("attn.c_proj.bias", "mlp.c_proj.bias")
"""Of what writes in a layer of a GPT-2."""
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
_WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


# -- the student's states --------------------------------------------------------------------------


@dataclass(frozen=True)
class _Read:
    """What readers get at the places of the rows.

    Attributes:
        theirs: x̂ (n, L, e).
        ours: ŷ (n, L, w).
        reading: A (w, e + 1).
    """

    theirs: Tensor
    ours: Tensor
    reading: Tensor

    def through(self, weight: Tensor, bias: Tensor) -> Tensor:
        """(w, …): the weights of the student for what reads x̂ W + b."""
        return self.reading @ torch.cat([weight, bias[None]])


@dataclass(frozen=True)
class _Frame:
    """Where the teacher's states are among the student's.

    Attributes:
        to_student: M (e, w).
        constant: c.
    """

    to_student: Tensor
    constant: Tensor

    @classmethod
    def of(
        cls,
        theirs: Gpt2,
        reader: Reader,
        layers: Sequence[Values],
        ids: Tensor,
        width: int,
        table: Tensor,
    ) -> _Frame:
        """That of a student of this width, for the rows and the embedding (V, e) that it reads."""
        to_student = to_any_width(theirs, reader, layers, ids, width)
        return cls(to_student, _CONSTANT * (table[ids] @ to_student).norm(dim=-1).mean())

    @property
    def alone(self) -> Tensor:
        """(w,): the direction of length 1 in which nothing writes."""
        width = self.to_student.shape[1]
        return self.to_student.new_full((width,), width**-0.5)

    def read(self, reader: Reader, student: _Student, x: Tensor, y: Tensor, ahead: Tensor) -> _Read:
        """What readers of these states get.

        Args:
            reader: of the teacher.
            student: of ours.
            x: the teacher's states (n, L, e).
            y: the student's (n, L, w).
            ahead: (e,), what of the writers' biases y has and x does not.
        """
        width = len(self.alone)
        length = y.norm(dim=-1).mean()
        scale = (len(self.to_student) / width) ** 0.5 * length / x.norm(dim=-1).mean()
        states = self.to_student.T - torch.outer(self.alone, ahead) / self.constant
        one = self.alone * length / (self.constant * width**0.5)
        prior = torch.cat([scale * states, one[:, None]], dim=1)
        theirs = reader.normed(x)
        ours = student.normed(y)
        wanted = torch.cat([theirs, torch.ones_like(theirs[..., :1])], dim=-1)
        reading = least_squares(ours.flatten(0, 1), wanted.flatten(0, 1), prior, _RIDGE)
        return _Read(theirs, ours, reading)


@dataclass(frozen=True)
class _Student:
    """What the layers of a Llama do with states (n, L, w).

    Attributes:
        width: w.
        heads: of queries.
        groups: heads of keys and values; each is of as many heads of queries.
        epsilon: of the norms.
        rotation: of queries and keys.
    """

    width: int
    heads: int
    groups: int
    epsilon: float
    rotation: Rotation

    @classmethod
    def of(cls, model: PreTrainedModel, length: int) -> _Student:
        """That of a model, for rows of this length."""
        config = model.config
        size = model.model.layers[0].self_attn.head_dim
        return cls(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            config.rms_norm_eps,
            Rotation.of(model.model.rotary_emb, model, length, size),
        )

    @property
    def share(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.groups

    def normed(self, y: Tensor) -> Tensor:
        """States as readers get them."""
        return y / (y.square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def attention(self, layer: Values, read: Tensor) -> Tensor:
        """What the attention of a layer writes."""
        queries, keys, values = (
            heads_of(read @ layer[f"self_attn.{name}_proj.weight"].T, count)
            for name, count in (("q", self.heads), ("k", self.groups), ("v", self.groups))
        )
        attended = nn.functional.scaled_dot_product_attention(
            self.rotation.rotated(queries),
            self.rotation.rotated(keys).repeat_interleave(self.share, 1),
            values.repeat_interleave(self.share, 1),
            is_causal=True,
        )
        return attended.transpose(1, 2).flatten(2) @ layer["self_attn.o_proj.weight"].T

    def mlp(self, layer: Values, read: Tensor) -> Tensor:
        """What the MLP of a layer writes."""
        gate, up, down = (layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        return (nn.functional.silu(read @ gate) * (read @ up)) @ down


# -- MLP -------------------------------------------------------------------------------------------


def _mlp(layer: Values, frame: _Frame, read: _Read, own: Values) -> Values:
    """The units of the largest weights, as many as there is room for. Units that only the student
    has write nothing yet.
    """
    reading = read.through(layer["mlp.c_fc.weight"], layer["mlp.c_fc.bias"])
    writing = layer["mlp.c_proj.weight"] @ frame.to_student
    gate = own["mlp.gate_proj.weight"].clone()
    up = own["mlp.up_proj.weight"].clone()
    down = torch.zeros_like(own["mlp.down_proj.weight"])
    kept = largest(reading.norm(dim=0) * writing.norm(dim=1), len(gate))
    gate[: len(kept)] = _GELU * reading[:, kept].T
    up[: len(kept)] = read.reading[:, -1]
    down[:, : len(kept)] = writing[kept].T / _GELU
    return {
        "mlp.gate_proj.weight": gate,
        "mlp.up_proj.weight": up,
        "mlp.down_proj.weight": down,
    }


# -- attention -------------------------------------------------------------------------------------


def _attention(
    student: _Student, layer: Values, frame: _Frame, read: _Read, count: int, own: Values
) -> Values:
    """The heads of the teacher, `count` of them. Heads that only the student has write nothing
    yet.
    """
    weight = layer["attn.c_attn.weight"]
    bias = layer["attn.c_attn.bias"]
    readers = [part.chunk(count, 1) for part in read.through(weight, bias).chunk(3, 1)]
    writers = [part.T for part in (layer["attn.c_proj.weight"] @ frame.to_student).chunk(count)]
    size = student.rotation.size
    queries, keys, values = (
        own[f"self_attn.{name}_proj.weight"].unflatten(0, (-1, size)).mT for name in ("q", "k", "v")
    )  # (h, w, d)
    values = values.clone()
    outputs = torch.zeros_like(own["self_attn.o_proj.weight"].T).unflatten(0, (-1, size))
    for group, first in enumerate(range(0, count, student.share)):
        heads = slice(first, min(count, first + student.share))
        left, rights = shared_factors(readers[2][heads], writers[heads], size)
        values[group][:, : left.shape[1]] = left
        outputs[heads, : left.shape[1]] = rights.mT
    wanted = [heads_of(x, count) for x in (read.theirs @ weight + bias).chunk(3, -1)[:2]]
    queries, keys = queries_and_keys(
        student.rotation, read.ours, wanted, readers[:2], (queries, keys), student.share
    )
    return {
        "self_attn.q_proj.weight": queries.mT.flatten(0, 1),
        "self_attn.k_proj.weight": keys.mT.flatten(0, 1),
        "self_attn.v_proj.weight": values.mT.flatten(0, 1),
        "self_attn.o_proj.weight": outputs.flatten(0, 1).T,
    }
