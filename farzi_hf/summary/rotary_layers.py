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

**Learnt positions.** Their mean belongs to the embeddings. An entry that begins all rows has the
first position as it is.

**MLP.** GELU(z) ≈ z σ(1.702 z) (Hendrycks and Gimpel, 2016, arXiv 1606.08415), and a gated unit is
silu(g) · u. So g = 1.702 z, the unit's writer is divided by 1.702, and u = 1 is read as above.

**Attention.** Values and what writes them go head by head, as in a GPT-2. Queries and keys have to
find by rotations what the teacher finds by positions that are added. So they are fitted: with the
teacher's pattern P of a head, some steps of Adam lower the mean over places of

    KL(P ‖ softmax(q R k)).

They begin with the teacher's products of queries and keys, the strongest directions in the pairs of
coordinates that rotate slowest. Pairs to spare begin with the keys of the new model and no queries.
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

from farzi_hf.summary.layers import Gpt2, Values, largest
from farzi_hf.summary.narrower import (
    Reader,
    Rows,
    layers_of,
    least_squares,
    rows_to_read,
    to_width,
)

_KINDS = (LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM)
"""Classes of students whose modules have the names of a Llama's."""
_GELU = 1.702
_CONSTANT = 0.5
"""c beside the mean length of an embedding."""
_RIDGE = 1e-3
"""Of least squares, as a share of the mean square of what is read."""
_STEPS = 120
"""Of a layer's attention."""
_POSITIONS_OF_A_STEP = 2**10
_RATE = 0.015
_FALLS_FROM = 0.4
"""The share of the steps after which the rate falls, to 0."""
_SMALLEST = 1e-3
"""The smallest variance of what queries and keys read, beside the mean one."""
_NEVER = -1e9
"""The score of a place that comes later."""


def rotary_layers(teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows) -> Values:
    """The parameters of a Llama, or of a model with its modules, that do nearly what a GPT-2 does,
    by name; {} for other pairs, and where the teacher is too large or reads too few positions for
    this. Layers that only the model has write nothing yet.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary.
        rows: as the teacher writes them.
    """
    if not _fits(teacher, model):
        return {}
    ids = rows_to_read(teacher, rows)
    if ids is None or ids.shape[1] < 2:
        return {}
    with torch.inference_mode(False), torch.no_grad():
        return dict(_values(teacher, model, ids))


def _fits(teacher: PreTrainedModel, model: PreTrainedModel) -> bool:
    """Whether there is a map between the two, and room for each layer and head."""
    if type(teacher) is not GPT2LMHeadModel or type(model) not in _KINDS:
        return False
    theirs, ours = teacher.config, model.config
    is_known = (
        theirs.activation_function.startswith("gelu")
        and theirs.scale_attn_weights
        and not theirs.scale_attn_by_inverse_layer_idx
        and not theirs.add_cross_attention
        and ours.hidden_act == "silu"
    )
    has_room = (
        ours.num_hidden_layers >= theirs.n_layer > 0 and ours.num_attention_heads >= theirs.n_head
    )
    return is_known and has_room and not ours.tie_word_embeddings


def _values(
    teacher: GPT2LMHeadModel, model: PreTrainedModel, ids: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """The parameters, layer by layer."""
    theirs = Gpt2(teacher)
    reader = Reader(teacher.config)
    student = _Student.of(model, ids.shape[1])
    layers = layers_of(theirs, teacher.config.n_layer)
    ahead = sum(layer[name] for layer in layers for name in _BIASES)
    table = _embedding(theirs, ids)
    frame = _Frame.of(theirs, reader, layers, ids, student.width, table)
    table = (table + ahead) @ frame.to_student + frame.constant * frame.alone
    yield "model.embed_tokens.weight", table
    x = theirs.states(ids)
    y = table[ids]
    for number, module in enumerate(model.model.layers):
        own = {name: weight.detach().double().cpu() for name, weight in module.named_parameters()}
        prefix = f"model.layers.{number}."
        if number >= len(layers):
            for name in _WRITERS:
                yield prefix + name, torch.zeros_like(own[name])
            continue
        layer = layers[number]
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
        for name, value in made.items():
            yield prefix + name, value
    read = frame.read(reader, student, x, y, ahead)
    yield "model.norm.weight", torch.ones(student.width)
    yield "lm_head.weight", read.through(theirs.head.T, theirs.head_bias).T


_BIASES = ("attn.c_proj.bias", "mlp.c_proj.bias")
"""Of what writes in a layer of a GPT-2."""
_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight")
_WRITERS = ("self_attn.o_proj.weight", "mlp.down_proj.weight")


def _embedding(theirs: Gpt2, ids: Tensor) -> Tensor:
    """(V, e): the teacher's embedding with what a student without learnt positions knows of them."""
    table = theirs.embedding + theirs.positions[1 : ids.shape[1]].mean(0)
    first = ids[0, 0]
    if (ids[:, 0] == first).all():
        table[first] = theirs.embedding[first] + theirs.positions[0]
    return table


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
        is_narrower = width < theirs.width
        if is_narrower:
            to_student = to_width(theirs, reader, layers, ids, width)
        else:
            to_student = theirs.to_width(width)
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
        size: d of a head.
        epsilon: of the norms.
        rotation: cosines and sines (L, d).
    """

    width: int
    heads: int
    groups: int
    size: int
    epsilon: float
    rotation: tuple[Tensor, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel, length: int) -> _Student:
        """That of a model, for rows of this length."""
        config = model.config
        embedding = model.get_input_embeddings().weight
        places = torch.arange(length, device=embedding.device)[None]
        cosines, sines = model.model.rotary_emb(embedding.new_zeros((), dtype=torch.float), places)
        return cls(
            config.hidden_size,
            config.num_attention_heads,
            config.num_key_value_heads,
            model.model.layers[0].self_attn.head_dim,
            config.rms_norm_eps,
            (cosines[0].double().cpu(), sines[0].double().cpu()),
        )

    @property
    def share(self) -> int:
        """Heads of queries for each head of keys."""
        return self.heads // self.groups

    @property
    def slow_first(self) -> Tensor:
        """(d,): the coordinates of a head, pair by pair, those that rotate slowest first."""
        return torch.arange(self.size).view(2, -1).flip(1).T.flatten()

    def normed(self, y: Tensor) -> Tensor:
        """States as readers get them."""
        return y / (y.square().mean(-1, keepdim=True) + self.epsilon).sqrt()

    def rotated(self, x: Tensor) -> Tensor:
        """Queries or keys (…, L, d), each rotated by its place."""
        cosines, sines = (part.to(x) for part in self.rotation)
        first, second = x.chunk(2, dim=-1)
        return x * cosines + torch.cat([-second, first], dim=-1) * sines

    def attention(self, layer: Values, read: Tensor) -> Tensor:
        """What the attention of a layer writes."""
        queries, keys, values = (
            _heads(read @ layer[f"self_attn.{name}_proj.weight"].T, count)
            for name, count in (("q", self.heads), ("k", self.groups), ("v", self.groups))
        )
        attended = nn.functional.scaled_dot_product_attention(
            self.rotated(queries),
            self.rotated(keys).repeat_interleave(self.share, 1),
            values.repeat_interleave(self.share, 1),
            is_causal=True,
        )
        return attended.transpose(1, 2).flatten(2) @ layer["self_attn.o_proj.weight"].T

    def mlp(self, layer: Values, read: Tensor) -> Tensor:
        """What the MLP of a layer writes."""
        gate, up, down = (layer[f"mlp.{name}_proj.weight"].T for name in ("gate", "up", "down"))
        return (nn.functional.silu(read @ gate) * (read @ up)) @ down


def _heads(x: Tensor, count: int) -> Tensor:
    """(n, h, L, d) of (n, L, h d)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


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
    scale = (student.size / (weight.shape[1] // 3 // count)) ** 0.25
    queries, keys, values = (
        own[f"self_attn.{name}_proj.weight"].unflatten(0, (-1, student.size)).mT.clone()
        for name in ("q", "k", "v")
    )  # (h, w, d)
    outputs = torch.zeros_like(own["self_attn.o_proj.weight"].T).unflatten(0, (-1, student.size))
    groups = -(-count // student.share)
    queries[:count] = 0
    for group in range(groups):
        heads = slice(group * student.share, min(count, (group + 1) * student.share))
        of_queries, of_keys, of_values = (part[heads] for part in readers)
        left, rights = _with_one_left(of_keys, of_queries, student.size)
        slow = student.slow_first[: left.shape[1]]
        keys[group][:, slow] = scale * left
        queries[heads, :, slow] = scale * rights
        left, rights = _with_one_left(of_values, writers[heads], student.size)
        values[group][:, : left.shape[1]] = left
        outputs[heads, : left.shape[1]] = rights.mT
    wanted = [_heads(x, count) for x in (read.theirs @ weight + bias).chunk(3, -1)[:2]]
    fitted = _fitted(student, read.ours, wanted, queries[:count], keys[:groups])
    queries[:count], keys[:groups] = fitted
    return {
        "self_attn.q_proj.weight": queries.mT.flatten(0, 1),
        "self_attn.k_proj.weight": keys.mT.flatten(0, 1),
        "self_attn.v_proj.weight": values.mT.flatten(0, 1),
        "self_attn.o_proj.weight": outputs.flatten(0, 1).T,
    }


def _with_one_left(
    lefts: Sequence[Tensor], rights: Sequence[Tensor], rank: int
) -> tuple[Tensor, Tensor]:
    """A factor (w, r) that all of some products of (w, d) and (m, d) have, and the other factors of
    each, (…, m, r), with the strongest directions first; r is `rank` at most.
    """
    of_left = torch.linalg.qr(torch.cat(list(lefts), dim=1))
    of_right = torch.linalg.qr(torch.block_diag(*rights))
    u, s, v = torch.linalg.svd(of_left.R @ of_right.R.T)
    root = s[:rank].sqrt()
    left = of_left.Q @ u[:, :rank] * root
    right = of_right.Q @ v[:rank].T * root
    return left, right.unflatten(0, (len(rights), -1))


def _fitted(
    student: _Student, read: Tensor, wanted: Sequence[Tensor], queries: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """Weights of queries (h, w, d) and keys (g, w, d), after the steps that bring a layer's
    patterns near to those of the teacher.

    Args:
        student: whose rotation it is.
        read: ŷ (n, L, w).
        wanted: the teacher's queries and keys, (n, h, L, …) each.
        queries: the weights to begin with.
        keys: theirs.
    """
    # Steps are of like size in all directions of what is read.
    flat = read.flatten(0, 1)
    variances, directions = torch.linalg.eigh(flat.T @ flat / len(flat))
    roots = variances.clamp_min(_SMALLEST * variances.mean()).sqrt()
    root = directions * roots @ directions.T
    inverse = directions / roots @ directions.T
    read = (read @ inverse).float()[:, None]
    wanted = [x.float() for x in wanted]
    weights = [(root @ x).float() for x in (queries, keys)]
    count = len(queries)
    rows = max(1, _POSITIONS_OF_A_STEP // read.shape[2])
    with torch.enable_grad():
        for weight in weights:
            weight.requires_grad_()
        optimizer = torch.optim.Adam(weights, lr=_RATE, betas=(0.9, 0.99))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _share_of_rate)
        for step in range(_STEPS):
            first = step * rows % len(read)
            part = slice(first, first + rows)
            of_queries, of_keys = (student.rotated(read[part] @ weight) for weight in weights)
            of_keys = of_keys.repeat_interleave(student.share, 1)[:, :count]
            theirs = _log_patterns(*(x[part] for x in wanted)).exp()
            ours = _log_patterns(of_queries, of_keys)
            losses = -(theirs * ours).sum(-1)  # KL but for the teacher's own entropy
            optimizer.zero_grad()
            losses.mean((0, 2)).sum().backward()
            optimizer.step()
            scheduler.step()
    of_queries, of_keys = (inverse @ weight.detach().double() for weight in weights)
    return of_queries, of_keys


def _share_of_rate(step: int) -> float:
    """Of the learning rate, at a step."""
    return min(1.0, (1 - step / _STEPS) / (1 - _FALLS_FROM))


def _log_patterns(queries: Tensor, keys: Tensor) -> Tensor:
    """(n, h, L, L): the logarithms of what places get of those before them."""
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, _NEVER).log_softmax(-1)
