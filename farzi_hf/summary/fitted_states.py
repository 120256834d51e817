"""What lies between a student's tables is fitted to what its teacher's head reads.

A student that begins with its teacher's tables still draws everything between them at random. The
teacher's own rows say what that has to compute: the states s (k,) that the teacher's head W (V, k)
reads, and that the student's head H (V, w) should get as y (w,). No product with the vocabulary is
needed for that, and for a large catalogue these products are nearly all that a step costs. So two
hundred of such steps cost as much as ten to twenty of a training.

**How far is y from s?** The logits differ by H y + c − W s − b. To second order the likelihood of
what comes next suffers by half of the variance of this under the teacher's prediction p. With
z = [y, −s, 1], that is ½ zᵀ G z, where G = E[Cov_p([H, W, c − b])] is Fisher's information. It is
least at y* = H̃ s + h, and beyond that the loss is

    ½ (y − y*)ᵀ F (y − y*),   F = E[Cov_p(H)].

**A narrower student** needs other tables. With C = E[(s − μ)(s − μ)ᵀ] and Fisher's information F of
W, the map of w dimensions that loses least is the reduced-rank one: with the leading eigenvectors U
and eigenvalues λ of F^(1/2) C F^(1/2),

    H = W B,   B = F^(−1/2) U λ^(1/2),   c = b + W μ.

Its states have the variance 1, as behind a norm. The directions in which the tables themselves are
largest lose half as much again, because they count entries that nobody predicts. As F-SVD (Hsu et
al., 2022, arXiv 2207.00112) weighs single matrices; the reduced-rank form is Izenman's (1975).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from farzi_hf.summary.narrower import NOT_FINITE, Rows, written
from farzi_hf.summary.teacher import numbers_beside_tables

_POSITIONS = 2**13
"""Of the rows that are read."""
_OF_FISHER = 1024
"""Positions whose predictions Fisher's information is the mean of."""
_NUMBERS = 2**22
"""The most numbers of these predictions, and of columns, at once."""
_STEPS = 200
_BATCH = 1024
"""Positions of a step."""
_RATE = 0.02
_FALLS = 0.6
"""The share of the steps in which the rate falls to 0, the last ones."""
_CHEAP = 20
"""How many times as many numbers the head has as all that is fitted, at least: elsewhere these steps
would cost as much as those of a training, and gain less."""
_WORK = 10**11
"""The most positions of all steps times numbers that are fitted."""
_WORK_OF_TEACHER = 25 * 10**9
"""The most positions of the rows times a teacher's parameters that are not tables."""
_LEAST = 8
"""Positions for each dimension that a head reads, at least."""
_WIDEST = 1024
"""Dimensions that a head reads, whose squares are decomposed."""
_SMALLEST = 1e-7
"""The smallest eigenvalue that counts, as a share of the largest."""


@dataclass(frozen=True)
class Head:
    """What a model makes of the states that its head reads: logits (…, V), before any cap."""

    weight: Tensor
    """(V, k)."""
    bias: Tensor
    """(V,)."""


def rows_to_read(
    teacher: PreTrainedModel, model: PreTrainedModel, fixed: Mapping[str, Tensor], rows: Rows
) -> Tensor | None:
    """Rows of ids (n, L) on which a student is fitted; None where that is not cheap beside training
    it, or where they are too few.

    Args:
        teacher: whose states it is fitted to.
        model: the student.
        fixed: its parameters that stay as they are, by name.
        rows: as the teacher writes them.

    Raises:
        ValueError: the teacher cannot write them.
    """
    heads = [each.get_output_embeddings() for each in (teacher, model)]
    if not all(isinstance(head, nn.Linear) for head in heads):
        return None
    widest = max(head.in_features for head in heads)
    count = sum(x.numel() for x in _fitted_parameters(model, fixed).values())
    takes_long = _STEPS * _BATCH * count > _WORK or widest > _WIDEST
    positions = _positions(teacher)
    if count == 0 or not _is_cheap(count, heads[1]) or takes_long or positions < _LEAST * widest:
        return None
    ids = written(rows, positions)
    return ids if ids.numel() >= _LEAST * widest else None


def is_cheap_to_fit(model: PreTrainedModel) -> bool:
    """Whether all of a student but its tables has few numbers beside its head.

    Args:
        model: the student; its parameters may have no values.
    """
    head = model.get_output_embeddings()
    if not isinstance(head, nn.Linear):
        return False
    tables = [*model.get_input_embeddings().parameters(), *head.parameters()]
    fixed = [name for name, x in model.named_parameters() if any(x is y for y in tables)]
    count = sum(x.numel() for x in _fitted_parameters(model, fixed).values())
    return _is_cheap(count, head)


def _is_cheap(count: int, head: nn.Linear) -> bool:
    """Whether so many fitted numbers are few beside those of the head."""
    return _CHEAP * count <= head.weight.numel()


def _fitted_parameters(model: PreTrainedModel, fixed: Collection[str]) -> dict[str, Tensor]:
    return {
        name: x for name, x in model.named_parameters() if x.requires_grad and name not in fixed
    }


def _positions(teacher: PreTrainedModel) -> int:
    """How many positions a teacher reads, by its parameters that are not tables."""
    return min(_POSITIONS, _WORK_OF_TEACHER // max(1, numbers_beside_tables(teacher)))


class TeacherStates:
    """What a teacher's head reads of its own rows, and how much it matters. Where a model caps its
    logits, that is left out.

    Args:
        teacher: in evaluation mode.
        head: the teacher's.
        ids: (n, L), the rows.
    """

    def __init__(self, teacher: PreTrainedModel, head: Head, ids: Tensor) -> None:
        self.head = head
        self.ids = ids.to(teacher.device)
        length = self.ids.shape[1]
        parts = self.ids.split(max(1, _BATCH // length))
        with _without_products(teacher) as read:
            for part in parts:
                teacher(input_ids=part)
        self.states = torch.cat(read).float().cpu()
        flat = self.states.flatten(0, 1)
        spread = torch.linspace(0, len(flat) - 1, min(_OF_FISHER, len(flat))).long()
        self._looked_at = flat[spread]

    def information(self, columns: Tensor) -> Tensor:
        """E[Cov_p(columns)] (m, m), of columns (V, m).

        Raises:
            ValueError: the teacher does not predict finite numbers.
        """
        columns = columns - columns.mean(0)  # changes no covariance, and rounds less
        shares = columns.new_zeros(len(columns))
        found = torch.zeros(columns.shape[1], columns.shape[1], dtype=torch.float64)
        for p in self._predictions():
            shares += p.sum(0)
            means = (p @ columns).double()
            found -= means.T @ means
        size = max(1, _NUMBERS // columns.shape[1])
        for part, of_part in zip(columns.split(size), shares.split(size), strict=True):
            found += ((part.T * of_part) @ part).double()
        if not bool(found.isfinite().all()):
            raise ValueError(NOT_FINITE)
        return found / len(self._looked_at)

    def _predictions(self) -> Iterator[Tensor]:
        """p (n, V), some positions at a time."""
        for part in self._looked_at.split(max(1, _NUMBERS // len(self.head.weight))):
            yield (part @ self.head.weight.T + self.head.bias).softmax(-1)

    def narrower_head(self, width: int, has_bias: bool) -> tuple[Tensor, Tensor]:
        """B (k, w), and the shift μ (k,) of the states that a bias makes up for, see above."""
        states = self.states.flatten(0, 1).double()
        shift = states.mean(0) if has_bias else torch.zeros_like(states[0])
        states = states - shift
        sizes, vectors = torch.linalg.eigh(self.information(self.head.weight))
        roots = sizes.clamp_min(sizes[-1] * _SMALLEST).sqrt()
        root = (vectors * roots) @ vectors.T
        inverse = (vectors / roots) @ vectors.T
        squares = states.T @ states / len(states)
        variances, leading = torch.linalg.eigh(root @ squares @ root)  # the largest last
        deviations = variances[-width:].clamp_min(variances[-1] * _SMALLEST).sqrt()
        return (inverse @ leading[:, -width:] * deviations).float(), shift.float()

    def wanted(self, head: Head) -> tuple[Tensor, Tensor]:
        """y* (n, L, w) of a student with this head, and a root R (w, w) of F = R Rᵀ."""
        width = head.weight.shape[1]
        of_bias = (head.bias - self.head.bias)[:, None]
        information = self.information(torch.cat([head.weight, self.head.weight, of_bias], dim=1))
        sizes, vectors = torch.linalg.eigh(information[:width, :width])
        sizes = sizes.clamp_min(0)
        counts = sizes > sizes[-1] * _SMALLEST
        inverse = (vectors[:, counts] / sizes[counts]) @ vectors[:, counts].T
        to_student = (inverse @ information[:width, width:-1]).float()
        shift = (inverse @ information[:width, -1]).float()
        root = (vectors * sizes.sqrt()).float()
        return self.states @ to_student.T - shift, root


def fitted(
    model: PreTrainedModel, values: Mapping[str, Tensor], head: Head, teacher: TeacherStates
) -> dict[str, Tensor]:
    """The parameters of a student that are not among `values`, by name, after the steps that bring
    what its head reads to y*; {} where these bring it no nearer. The model itself stays as it is.

    Args:
        model: the student, in evaluation mode.
        values: of the parameters that are set already.
        head: the student's, with these values.
        teacher: what it is fitted to.
    """
    wanted, root = teacher.wanted(head)
    device = model.device
    wanted = (wanted @ root).to(device)
    root = root.to(device)
    theta = {name: x.detach().clone().float() for name, x in model.named_parameters()}
    theta |= {name: x.detach().to(theta[name]).clone() for name, x in values.items()}
    leaves = {name: theta[name] for name in _fitted_parameters(model, values)}
    size = min(len(wanted), max(1, _BATCH // wanted.shape[1]))
    with torch.enable_grad(), _without_products(model) as read:

        def loss(chosen: Tensor) -> Tensor:
            ids = teacher.ids.to(device)[chosen]
            read.clear()
            torch.func.functional_call(model, {**theta, **leaves}, (), {"input_ids": ids})
            return 0.5 * (read[0].float() @ root - wanted[chosen]).square().sum(-1).mean()

        count = len(wanted)
        everything = torch.arange(count)
        with torch.no_grad():
            before = float(loss(everything))
        for leaf in leaves.values():
            leaf.requires_grad_()
        optimizer = torch.optim.Adam(leaves.values(), lr=_RATE, betas=(0.9, 0.99))
        for step in range(_STEPS):
            share = min(1.0, (1 - step / _STEPS) / _FALLS)
            for group in optimizer.param_groups:
                group["lr"] = _RATE * share
            optimizer.zero_grad()
            # The next rows: each was drawn on its own, so they need no other order.
            loss((step * size + torch.arange(size)) % count).backward()
            optimizer.step()
        with torch.no_grad():
            after = float(loss(everything))
    if not after < before:
        return {}
    return {name: x.detach() for name, x in leaves.items()}


@contextmanager
def _without_products(model: PreTrainedModel) -> Iterator[list[Tensor]]:
    """Inside, the head makes no logits; what it reads is noted in the list."""
    head = model.get_output_embeddings()
    read: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, args: read.append(args[0]))
    head.forward = lambda states: states[..., :1]
    try:
        yield read
    finally:
        del head.forward
        hook.remove()
