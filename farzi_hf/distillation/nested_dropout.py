"""Nested dropout: the first dimensions of a teacher's states say most.

In half of the rows of a step, the teacher's head reads the first dimensions of the states alone; the
others count as 0. So these have to predict as well as they can without those behind them, and the
space of a narrower student is one that the teacher has trained, not one that was found afterwards
(Rippel, Gelbart & Adams, 2014, arXiv 1402.0915; with a few widths and a sum of their losses,
Kusupati et al., 2022, arXiv 2205.13147). Such a student loses less. Dimensions that agree less learn
less by heart, too. A step costs as much as without it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.distillation.learner import Learner

_SHARE = 0.5
"""Of the rows, those in which a part of the dimensions is read."""


def widths_of(setting: str, widths: Any) -> tuple[int, ...]:
    """The widths by the setting of that name. Raises ValueError if it is no list of integers above
    0.
    """
    widths = widths if isinstance(widths, list | tuple) else [widths]
    if not all(type(width) is int and width > 0 for width in widths):
        raise ValueError(
            f"{setting}={list(widths)!r:.200} is not usable; give widths of students that are"
            " narrower than the teacher, such as [16], or leave it out"
        )
    return tuple(widths)


def narrower_widths(learner: Learner, widths: Sequence[int]) -> tuple[int, ...]:
    """Those of the widths that nested dropout of this learner can have."""
    dimensions = 0 if learner.head is None else learner.head.module.in_features
    return tuple(width for width in widths if width < dimensions)


def dimensions_read(
    learner: Learner, widths: Sequence[int], seed: int
) -> Callable[[int, int], Tensor | None]:
    """`read(step, rows)`: how many dimensions of its states the head reads of each row, (rows,), a
    function of `seed`; None where there are no widths, so that all are read.

    Args:
        learner: the teacher.
        widths: of the rows that are cut, each as likely as the others.

    Raises:
        ValueError: the learner has no linear head, or is not wider than that.
    """
    if not widths:
        return lambda step, rows: None
    if learner.head is None:
        raise ValueError(
            f"teacher_nested_widths={list(widths)}: {type(learner.model).__name__} has no linear"
            " head that could read a part of its states; leave it out"
        )
    dimensions = learner.head.module.in_features
    if max(widths) >= dimensions:
        raise ValueError(
            f"teacher_nested_widths={list(widths)}: the head of the teacher reads {dimensions}"
            " dimensions; give smaller widths"
        )
    choices = torch.tensor(widths)

    def read(step: int, rows: int) -> Tensor:
        generator = torch.Generator().manual_seed(derive(seed, Purpose.NESTED_DROPOUT, step))
        is_cut = torch.rand(rows, generator=generator) < _SHARE
        drawn = choices[torch.randint(len(choices), (rows,), generator=generator)]
        return torch.where(is_cut, drawn, dimensions)

    return read
