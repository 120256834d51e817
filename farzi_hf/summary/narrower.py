"""A narrower GPT-2 takes its teacher's layers by the states that the teacher really has.

`farzi_hf.summary.layers` can make a narrower model of weights alone, by the directions in which
tables are large. Rows that the teacher writes itself tell more, and cost a second or two.

**Which directions.** If a reader of normalised states x̂ (e,) gets x̂ + δ, the log-likelihood of a
row changes by δ · g, with g its gradient in what this reader gets. The rows are the teacher's own,
so F = Σ E[g gᵀ], over all readers, is Fisher's information about such a change. A student whose
states are x M (e, w) can tell of x̂ what is linear in x̂ M, so it misses

    tr F (C − C M (Mᵀ C M)⁻¹ Mᵀ C),   C = E[x̂ x̂ᵀ],

which is least where M spans C^(−1/2) times the leading eigenvectors of C^(1/2) F C^(1/2). Weighted
low-rank factors of single matrices (Hsu et al., 2022, arXiv 2207.00112; Yuan et al., 2023, arXiv
2312.05821) ask the same of one reader; here all of them share the states.

**What readers get.** A student's states have lost something and are normalised by another norm. So
from layer to layer both models read the rows, and least squares say what of x̂ the student's ŷ tell,
x̂ ≈ ŷ A + a. A reader x̂ W + b becomes ŷ (A W) + (a W + b). Where nothing is lost, A is Mᵀ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedModel
from transformers.activations import ACT2FN

from farzi_hf.summary.layers import (
    Gpt2,
    Reading,
    Values,
    attention,
    embeddings,
    fits,
    head,
    largest,
    named_layer,
    orthogonal_to_ones,
    parameters_of,
    silent_gpt2_layers,
    units,
)

Rows = Callable[[int], Tensor]
"""Makes ids (n, L) of about so many positions, L at most `LONGEST_ROW`."""
LONGEST_ROW = 256
NOT_FINITE = (
    "the carried teacher predicts NaN or infinity after ids that it has written itself; begin at"
    " random"
)
"""What an error says of such a teacher."""
_POSITIONS = 2**14
"""The most positions of all rows."""
_WORK = 25 * 10**9
"""The most positions times what one of them costs, in parameters of a teacher."""
_OF_A_SCORE = 8
"""What a score of attention costs, in parameters."""
_NUMBERS = 2**24
"""The most numbers of what all positions have in a layer, and of logits that are there at once."""
_LEAST = 16
"""Positions for each dimension of the teacher, at least."""
_PART = 4
"""Of as many rows, one has its gradients taken: directions need fewer than least squares do."""
_RIDGE = 1e-4
"""Of least squares, as a share of the mean square of what is read."""
_SMALLEST = 1e-10
"""The smallest square of a direction, as a share of the largest."""


def narrower_layers(teacher: PreTrainedModel, model: PreTrainedModel, rows: Rows) -> Values:
    """The parameters of a narrower GPT-2 that do nearly what a GPT-2 does, by name; {} for other
    models, and where the teacher is too large or reads too few positions for this.

    Args:
        teacher: a trained model, with weights on any device.
        model: a new model over the same vocabulary.
        rows: as the teacher writes them.
    """
    kinds = {type(teacher), type(model)}
    if kinds != {GPT2LMHeadModel} or not fits(teacher, model):
        return {}
    ids = rows_to_read(teacher, rows) if model.config.n_embd < teacher.config.n_embd else None
    if ids is None:
        return {}
    with torch.inference_mode(False), torch.no_grad():
        return _narrower(Gpt2(teacher), model, Reader(teacher.config), ids)


def rows_to_read(teacher: GPT2LMHeadModel, rows: Rows) -> Tensor | None:
    """Rows of ids (n, L); None where the teacher is too large, or they are too few for its width.

    Raises:
        ValueError: the teacher cannot write them.
    """
    least = _LEAST * teacher.config.n_embd
    positions = _positions(teacher)
    if positions < least:
        return None
    ids = written(rows, positions)
    return ids if ids.numel() >= least else None


def written(rows: Rows, positions: int) -> Tensor:
    """Rows of ids (n, L) of about so many positions.

    Raises:
        ValueError: the teacher cannot write them.
    """
    try:
        return rows(positions)
    except ValueError as error:
        raise ValueError(NOT_FINITE) from error


def _positions(teacher: GPT2LMHeadModel) -> int:
    """How many positions a teacher reads."""
    config = teacher.config
    scores = config.n_layer * config.n_head * LONGEST_ROW
    cost = sum(x.numel() for x in teacher.parameters()) + _OF_A_SCORE * scores
    widest = max(config.n_inner or 4 * config.n_embd, 3 * config.n_embd)
    return min(_POSITIONS, _WORK // cost, _NUMBERS // widest)


def _narrower(theirs: Gpt2, model: GPT2LMHeadModel, teacher: Reader, ids: Tensor) -> Values:
    width = model.config.n_embd
    gain = theirs.gain(width)
    student = Reader(model.config)
    layers = layers_of(theirs, teacher.config.n_layer)
    to_student = to_width(theirs, teacher, layers, ids, width)
    values = dict(embeddings(theirs, model, to_student))
    x = theirs.states(ids)
    y = x @ to_student
    for number, of_teacher in enumerate(layers):
        own = parameters_of(model.transformer.h[number])
        states = teacher.normed(x)
        ours = student.normed(y) * gain
        reading = reading_of(ours, states, to_student)
        layer = dict(attention(theirs, model, number, to_student, reading, own))
        x = x + teacher.attention(of_teacher, number, states)
        y = y + student.attention(layer, number, ours)
        states = teacher.normed(x)
        ours = student.normed(y) * gain
        reading = reading_of(ours, states, to_student)
        layer |= fitted_units(theirs, student, number, to_student, reading, own, ours)
        x = x + teacher.mlp(of_teacher, states)
        y = y + student.mlp(layer, ours)
        values |= named_layer(number, layer, gain, width)
    values |= silent_gpt2_layers(model, len(layers))
    reading = reading_of(student.normed(y) * gain, teacher.normed(x), to_student)
    values |= head(theirs, reading)
    return values


def layers_of(theirs: Gpt2, count: int) -> list[Values]:
    """The teacher's layers by the names of their parameters, with gains and shifts in them."""
    return [_layer_of(theirs, number) for number in range(count)]


def _layer_of(theirs: Gpt2, number: int) -> Values:
    layer = {}
    for norm, reader, writer in _PARTS:
        weight, bias = theirs.reader(number, norm, reader)
        layer |= {f"{reader}.weight": weight, f"{reader}.bias": bias}
        weight, bias = theirs.writer(number, writer)
        layer |= {f"{writer}.weight": weight, f"{writer}.bias": bias}
    return layer


_PARTS = (("ln_1", "attn.c_attn", "attn.c_proj"), ("ln_2", "mlp.c_fc", "mlp.c_proj"))
"""Of a layer: a norm, what reads the states behind it, and what writes."""


# -- both models, on rows --------------------------------------------------------------------------


@dataclass(frozen=True)
class Reader:
    """What the layers of a GPT-2 do with states (n, L, w) that have no mean."""

    config: GPT2Config

    def normed(self, x: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config.layer_norm_epsilon).sqrt()

    def attention(self, layer: Values, number: int, states: Tensor) -> Tensor:
        """What the attention of a layer writes."""
        config = self.config
        read = states @ layer["attn.c_attn.weight"] + layer["attn.c_attn.bias"]
        heads = read.unflatten(-1, (3, config.n_head, -1)).movedim(-2, 1)  # (n, h, L, 3, w / h)
        scale = heads.shape[-1] ** -0.5 if config.scale_attn_weights else 1.0
        if config.scale_attn_by_inverse_layer_idx:
            scale /= number + 1
        attended = nn.functional.scaled_dot_product_attention(
            *heads.unbind(-2), is_causal=True, scale=scale
        )
        attended = attended.transpose(1, 2).flatten(2)
        return attended @ layer["attn.c_proj.weight"] + layer["attn.c_proj.bias"]

    def mlp(self, layer: Values, states: Tensor) -> Tensor:
        """What the MLP of a layer writes."""
        read = states @ layer["mlp.c_fc.weight"] + layer["mlp.c_fc.bias"]
        return self.active(read) @ layer["mlp.c_proj.weight"] + layer["mlp.c_proj.bias"]

    def active(self, read: Tensor) -> Tensor:
        """What units make of what they read."""
        return ACT2FN[self.config.activation_function](read)


# -- directions ------------------------------------------------------------------------------------


def to_width(
    theirs: Gpt2, teacher: Reader, layers: Sequence[Values], ids: Tensor, width: int
) -> Tensor:
    """M (e, w) with orthonormal columns, as the docstring of this file says."""
    basis = orthogonal_to_ones(theirs.width).T
    squares = theirs.head.new_zeros(2, theirs.width, theirs.width)
    size = max(1, _NUMBERS // (len(theirs.head) * ids.shape[1]))
    for part in ids[::_PART].split(size):
        for states, gradients in _states_and_gradients(theirs, teacher, layers, part):
            squares += torch.stack([states.T @ states, gradients.T @ gradients])
    states, information = basis.T @ squares @ basis
    sizes, vectors = torch.linalg.eigh(states)
    roots = sizes.clamp_min(sizes[-1] * _SMALLEST).sqrt()
    root = (vectors * roots) @ vectors.T
    inverse = (vectors / roots) @ vectors.T
    _, leading = torch.linalg.eigh(root @ information @ root)  # the largest last
    directions, _ = torch.linalg.qr(inverse @ leading[:, 1 - width :])
    return basis @ directions @ orthogonal_to_ones(width)


def _states_and_gradients(
    theirs: Gpt2, teacher: Reader, layers: Sequence[Values], ids: Tensor
) -> Iterator[tuple[Tensor, Tensor]]:
    """What each reader gets, (n L, e), and the gradient in it of the rows' log-likelihood."""
    read = []
    with torch.enable_grad():
        x = theirs.states(ids).requires_grad_()
        for number, layer in enumerate(layers):
            read.append(teacher.normed(x))
            x = x + teacher.attention(layer, number, read[-1])
            read.append(teacher.normed(x))
            x = x + teacher.mlp(layer, read[-1])
        read.append(teacher.normed(x))
        logits = read[-1][:, :-1] @ theirs.head.T + theirs.head_bias
        wanted = ids[:, 1:]
        # What begins a row is not the teacher's choice.
        wanted = wanted.masked_fill(wanted == teacher.config.bos_token_id, _NOT_COUNTED)
        loss = nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted.flatten(), ignore_index=_NOT_COUNTED, reduction="sum"
        )
        gradients = torch.autograd.grad(loss, read)
    for states, gradient in zip(read, gradients, strict=True):
        yield states.detach().flatten(0, 1), gradient.flatten(0, 1)


_NOT_COUNTED = -100


# -- least squares ---------------------------------------------------------------------------------


def reading_of(ours: Tensor, states: Tensor, to_student: Tensor) -> Reading:
    """The teacher's states (…, e) from the student's (…, w), by least squares that prefer Mᵀ."""
    prior = Reading.back(to_student)
    start = torch.cat([prior.matrix, prior.shift[None]])
    ours = ours.flatten(0, 1)
    read = torch.cat([ours, torch.ones_like(ours[:, :1])], dim=1)
    found = least_squares(read, states.flatten(0, 1), start, _RIDGE)
    return Reading(found[:-1], found[-1])


def least_squares(read: Tensor, wanted: Tensor, prior: Tensor, ridge: float) -> Tensor:
    """A (w, k) for which `read` A, (n, w) A, is nearest to `wanted` (n, k), with a ridge around
    `prior`: a share of the mean square of what is read.
    """
    squares = read.T @ read
    of_ridge = torch.full_like(squares[0], float(squares.diagonal().mean()) * ridge).diag()
    return prior + torch.linalg.solve(squares + of_ridge, read.T @ (wanted - read @ prior))


def fitted_units(
    theirs: Gpt2,
    student: Reader,
    number: int,
    to_student: Tensor,
    reading: Reading,
    own: Values,
    ours: Tensor,
) -> Iterator[tuple[str, Tensor]]:
    """The units that write most into the states, as many as there is room for. The mean of what the
    others write is part of the bias.
    """
    read = reading.through(*theirs.reader(number, "ln_2", "mlp.c_fc"))
    writing, bias = theirs.writer(number, "mlp.c_proj")
    writing = writing @ to_student
    active = student.active(ours @ read[:-1] + read[-1]).flatten(0, 1)
    kept = largest(active.std(dim=0) * writing.norm(dim=1), len(own["mlp.c_proj.weight"]))
    means = active.mean(dim=0)
    means[kept] = 0
    bias = bias @ to_student + means @ writing
    yield from units(read[:, kept], torch.cat([writing[kept], bias[None]]), own)
