"""Positions that are found by rotations, and how a student with them finds what a GPT-2 finds by
positions that are added.

Values of a head, and what writes them, go from model to model as they are. Queries and keys do not:
they are fitted. With the teacher's pattern P of a head, some steps of Adam lower the mean over
places of

    KL(P ‖ softmax(q R k)).

They begin with the teacher's products of queries and keys, the strongest directions in the
coordinates that rotate slowest or not at all. Learnt positions are gone, but their mean belongs to
the embeddings, and an entry that begins all rows has the first position as it is.

However small a gradient is, Adam takes steps of like size, and so leaves what was right already. A
group of heads whose divergence has not become less keeps what it began with.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, PreTrainedModel

from farzi_hf.summary.layers import Gpt2, Values
from farzi_hf.summary.narrower import Reader, Rows, rows_to_read, to_width

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


def _has_room_for(teacher: PreTrainedModel, model: PreTrainedModel) -> bool:
    """Whether the teacher is a GPT-2 whose layers are known, and the model has room for each layer
    and head, and a head over the vocabulary that is not its embedding.
    """
    if type(teacher) is not GPT2LMHeadModel:
        return False
    theirs = teacher.config
    ours = model.config
    is_known = (
        theirs.activation_function.startswith("gelu")
        and theirs.scale_attn_weights
        and not theirs.scale_attn_by_inverse_layer_idx
        and not theirs.add_cross_attention
    )
    has_room = (
        ours.num_hidden_layers >= theirs.n_layer > 0 and ours.num_attention_heads >= theirs.n_head
    )
    return is_known and has_room and not ours.tie_word_embeddings


def values_on_rows(
    teacher: PreTrainedModel,
    model: PreTrainedModel,
    rows: Rows,
    make: Callable[[GPT2LMHeadModel, PreTrainedModel, Tensor], Iterable[tuple[str, Tensor]]],
) -> Values:
    """The parameters, by name, that `make` yields for the two models and rows of ids (n, L); {} for
    a teacher that is no GPT-2, a model without room for it, and where the teacher is too large or
    reads too few positions for this.
    """
    if not _has_room_for(teacher, model):
        return {}
    ids = rows_to_read(teacher, rows)
    if ids is None or ids.shape[1] < 2:  # rows of one place tell nothing of patterns
        return {}
    with torch.inference_mode(False), torch.no_grad():
        return dict(make(teacher, model, ids))


@dataclass(frozen=True)
class Rotation:
    """Of queries and keys, by their places in rows of L ids. The first r of a head's d coordinates
    rotate, in pairs of the first and the second half of them.
    """

    cosines: Tensor
    """(L, r)."""
    sines: Tensor
    """(L, r)."""
    size: int
    """d."""

    @classmethod
    def of(
        cls, module: torch.nn.Module, model: PreTrainedModel, length: int, size: int
    ) -> Rotation:
        """That of a model for rows of this length.

        Args:
            module: of the model, which makes cosines and sines of places.
            model: whose device it has.
            length: L.
            size: d.
        """
        embedding = model.get_input_embeddings().weight
        places = torch.arange(length, device=embedding.device)[None]
        cosines, sines = module(embedding.new_zeros((), dtype=torch.float), places)
        return cls(cosines[0].double().cpu(), sines[0].double().cpu(), size)

    @property
    def slowest_first(self) -> Tensor:
        """(d,): the coordinates of a head: those that do not rotate, and then pair by pair those
        that rotate slowest.
        """
        rotating = self.cosines.shape[1]
        pairs = torch.arange(rotating).view(2, -1).flip(1).T.flatten()
        return torch.cat([torch.arange(rotating, self.size), pairs])

    def rotated(self, x: Tensor) -> Tensor:
        """Queries or keys (…, L, d), each rotated by its place."""
        rotating = self.cosines.shape[1]
        rotates = x[..., :rotating]
        first, second = rotates.chunk(2, dim=-1)
        a_quarter_on = torch.cat([-second, first], dim=-1)
        turned = rotates * self.cosines.to(x) + a_quarter_on * self.sines.to(x)
        return torch.cat([turned, x[..., rotating:]], dim=-1)


def embedding_for_rotations(theirs: Gpt2, ids: Tensor) -> Tensor:
    """(V, e): the teacher's embedding, with what a student without learnt positions knows of
    them.
    """
    table = theirs.embedding + theirs.positions[1 : ids.shape[1]].mean(0)
    first = ids[0, 0]
    if (ids[:, 0] == first).all():
        table[first] = theirs.embedding[first] + theirs.positions[0]
    return table


def to_any_width(
    theirs: Gpt2, reader: Reader, layers: Sequence[Values], ids: Tensor, width: int
) -> Tensor:
    """M (e, w): for a narrower student by the rows, as `farzi_hf.summary.narrower` has it; for any
    other by the tables, because nothing is lost then.
    """
    if width < theirs.width:
        return to_width(theirs, reader, layers, ids, width)
    return theirs.to_width(width)


def heads_of(x: Tensor, count: int) -> Tensor:
    """(n, h, L, d) of (n, L, h d)."""
    return x.unflatten(-1, (count, -1)).transpose(1, 2)


def shared_factors(
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


def queries_and_keys(
    rotation: Rotation,
    read: Tensor,
    wanted: Sequence[Tensor],
    readers: Sequence[Sequence[Tensor]],
    own: Sequence[Tensor],
    share: int = 1,
) -> tuple[Tensor, Tensor]:
    """Weights of a layer's queries (H, w, d) and keys (G, w, d), whose first h heads have patterns
    near to those of the teacher. Coordinates and heads to spare begin with the keys of the new
    model and no queries.

    Args:
        rotation: of queries and keys.
        read: ŷ (n, L, w).
        wanted: the teacher's queries and keys, (n, h, L, …) each.
        readers: the weights that would give them of ŷ without rotations: of queries, and of keys,
            h of (w, …) each.
        own: the weights of the new model, which are not changed.
        share: heads of queries for each head of keys.
    """
    of_queries, of_keys = readers
    queries, keys = (weights.clone() for weights in own)
    count = len(of_queries)
    queries[:count] = 0
    # Scores are divided by √d.
    scale = (rotation.size / of_queries[0].shape[1]) ** 0.25
    firsts = range(0, count, share)
    for group, first in enumerate(firsts):
        heads = slice(first, min(count, first + share))
        left, rights = shared_factors(of_keys[heads], of_queries[heads], rotation.size)
        slow = rotation.slowest_first[: left.shape[1]]
        keys[group][:, slow] = scale * left
        queries[heads, :, slow] = scale * rights
    groups = len(firsts)
    fitted = _fitted(rotation, read, wanted, queries[:count], keys[:groups], share)
    queries[:count], keys[:groups] = fitted
    return queries, keys


def _fitted(
    rotation: Rotation,
    read: Tensor,
    wanted: Sequence[Tensor],
    queries: Tensor,
    keys: Tensor,
    share: int,
) -> tuple[Tensor, Tensor]:
    """The weights of queries (h, w, d) and keys (g, w, d) after the steps that bring a layer's
    patterns near to those of the teacher. The arguments are those of `queries_and_keys`, but that
    `queries` and `keys` are the weights to begin with.
    """
    # Steps are of like size in all directions of what is read.
    flat = read.flatten(0, 1)
    variances, directions = torch.linalg.eigh(flat.T @ flat / len(flat))
    roots = variances.clamp_min(_SMALLEST * variances.mean()).sqrt()
    root = directions * roots @ directions.T
    inverse = directions / roots @ directions.T
    rows = max(1, _POSITIONS_OF_A_STEP // read.shape[1])
    weights = [(root @ x).float() for x in (queries, keys)]
    patterns = _Patterns(rotation, (read @ inverse).float(), [x.float() for x in wanted], share)
    with torch.enable_grad():
        for weight in weights:
            weight.requires_grad_()
        optimizer = torch.optim.Adam(weights, lr=_RATE, betas=(0.9, 0.99))
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, _share_of_rate)
        for step in range(_STEPS):
            first = step * rows % len(read)
            optimizer.zero_grad()
            patterns.of(slice(first, first + rows)).divergences(*weights).sum().backward()
            optimizer.step()
            scheduler.step()
    fitted = [inverse @ weight.detach().double() for weight in weights]
    some = _Patterns(rotation, read, wanted, share).of(slice(rows))
    divergences = [some.divergences(*each) for each in (fitted, (queries, keys))]
    after, before = (_sums_of_groups(each, share) for each in divergences)
    is_nearer = after < before
    of_heads = is_nearer.repeat_interleave(share)[: len(queries)]
    return (
        torch.where(of_heads[:, None, None], fitted[0], queries),
        torch.where(is_nearer[:, None, None], fitted[1], keys),
    )


@dataclass(frozen=True)
class _Patterns:
    """Those of a teacher's layer at the places of some rows, and what a student's heads read there.

    Attributes:
        rotation: of queries and keys.
        read: (n, L, w).
        wanted: the teacher's queries and keys, (n, h, L, …) each.
        share: heads of queries for each head of keys.
    """

    rotation: Rotation
    read: Tensor
    wanted: Sequence[Tensor]
    share: int

    def of(self, rows: slice) -> _Patterns:
        """Those of a part of the rows."""
        wanted = [x[rows] for x in self.wanted]
        return replace(self, read=self.read[rows], wanted=wanted)

    def divergences(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(h,): the mean over places of KL(theirs ‖ ours), in nats, for weights of queries
        (h, w, d) and keys (g, w, d).
        """
        read = self.read[:, None]
        of_queries, of_keys = (self.rotation.rotated(read @ weight) for weight in (queries, keys))
        of_keys = of_keys.repeat_interleave(self.share, 1)[:, : len(queries)]
        theirs = _log_patterns(*self.wanted)
        ours = _log_patterns(of_queries, of_keys)
        return (theirs.exp() * (theirs - ours)).sum(-1).mean((0, 2))


def _sums_of_groups(x: Tensor, share: int) -> Tensor:
    """(g,): the sums of numbers (h,) over the heads that share keys."""
    return torch.stack([part.sum() for part in x.split(share)])


def _share_of_rate(step: int) -> float:
    """Of the learning rate, at a step."""
    return min(1.0, (1 - step / _STEPS) / (1 - _FALLS_FROM))


def _log_patterns(queries: Tensor, keys: Tensor) -> Tensor:
    """(n, h, L, L): the logarithms of what places get of those before them."""
    scores = queries @ keys.mT / queries.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, _NEVER).log_softmax(-1)
