"""Groups of training rows, such as their sources: the mean score of a row of each."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.stats
import torch
from torch import Tensor
from torch.utils.data import Dataset

_OUTSIDE = 0.025  # of 95 % intervals, on each side


@dataclass(frozen=True)
class Groups:
    """Which group each of the n training rows belongs to."""

    of_rows: Sequence[str]
    """The name of the group of each row, n names."""

    @classmethod
    def of(cls, given: str | Sequence[Any], dataset: Dataset) -> Groups:
        """The groups of a data set's rows.

        Args:
            given: the name of a column, or an entry for each row. Entries become texts.
            dataset: the training rows.

        Raises:
            ValueError: there is no such column, the list has another length, or a row has no group.
        """
        count = len(dataset)
        if isinstance(given, str):
            columns = getattr(dataset, "column_names", [])
            if given not in columns:
                raise ValueError(
                    f"groups={given!r}: the training rows have the columns"
                    f" {', '.join(map(repr, columns)) or 'of no names'}; give one of them, or a list"
                    " with an entry for each row"
                )
            given = dataset[given]
        entries = list(given)
        if len(entries) != count:
            raise ValueError(
                f"groups has {len(entries)} entries, but there are {count} training rows; give one"
                " for each"
            )
        if None in entries:
            raise ValueError(
                f"groups[{entries.index(None)}] is None; give each row a group, such as 'other'"
            )
        return cls([str(entry) for entry in entries])

    @cached_property
    def names(self) -> list[str]:
        """The G groups, in the order of their first rows."""
        return list(dict.fromkeys(self.of_rows))

    @cached_property
    def identity(self) -> str:
        """A hash of the group of each row."""
        return hashlib.sha256(repr(list(self.of_rows)).encode()).hexdigest()

    @cached_property
    def members(self) -> Tensor:
        """(n,): the number of each row's group."""
        numbers = {name: number for number, name in enumerate(self.names)}
        return torch.tensor([numbers[name] for name in self.of_rows])

    @cached_property
    def sizes(self) -> Tensor:
        """(G,): how many rows a group has."""
        return torch.bincount(self.members, minlength=len(self.names))

    def means(self, scores: Tensor) -> Tensor:
        """(m, G): the mean of the scores (m, n) of each group's rows."""
        sums = scores.new_zeros(len(scores), len(self.names))
        sums.index_add_(1, self.members.to(scores.device), scores)
        return sums / self.sizes.to(scores)

    def intervals(self, scores: Tensor) -> Tensor:
        """(m, G, 2): 95 % intervals of these means over the rows of a group, by Student's t. NaN
        where a group has one row, of which nobody knows how far another would be.
        """
        means = self.means(scores)
        squares = (scores - means[:, self.members]).square()
        free = (self.sizes - 1).to(scores)
        # An error's square is the variance of a row by the number of rows.
        errors = (self.means(squares) / free).sqrt()
        return _around(means, errors, free)


def intervals_over_trainings(means: Tensor) -> Tensor:
    """(m, G, 2): 95 % intervals of the mean over K trainings, by Student's t.

    Args:
        means: (K, m, G) of each training, K ≥ 2.
    """
    count = len(means)
    errors = means.std(0) / count**0.5
    return _around(means.mean(0), errors, torch.full_like(errors, count - 1))


def _around(means: Tensor, errors: Tensor, free: Tensor) -> Tensor:
    """Intervals (…, 2) around means whose standard errors have so many degrees of freedom."""
    with np.errstate(invalid="ignore"):
        quantiles = scipy.stats.t.ppf(1 - _OUTSIDE, free.double().numpy(force=True))
    reach = torch.as_tensor(quantiles).to(errors) * errors
    return torch.stack([means - reach, means + reach], dim=-1)
