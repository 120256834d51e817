"""The two forms of one summary, which batches, collators, readers and writers ask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.summary.endless import DrawnRows, EndlessRows, WrittenRows
from farzi_hf.summary.forms.base import Inputs, Labels, Position, Tensors, TrainerRow
from farzi_hf.summary.narrower import LONGEST_ROW, Rows
from farzi_hf.summary.soft_tokens import SoftTokens
from farzi_hf.summary.store.budget import Budget

_WRITTEN = 3
"""Ids that a teacher writes when a summary is loaded, to see whether it can."""


class Forms:
    """What one summary is made of: its inputs and its labels.

    Functions take the tensors of the summary, as `FarziData.tensors` gives them, so that a
    distillation can differentiate in them.

    Args:
        inputs: what a student reads.
        labels: what it should predict.
    """

    def __init__(self, inputs: Inputs, labels: Labels) -> None:
        self.inputs = inputs
        self.labels = labels
        self.config = inputs.config
        self.parts = {**inputs.parts(self.config), **labels.parts(self.config)}
        """The tensors of the summary by name, in the order of the file."""
        self._per_sequence = [name for name, part in self.parts.items() if part.is_per_sequence]

    def batch(
        self, tensors: Tensors, rows: Tensor | slice
    ) -> tuple[SoftTokens | Tensor, SoftTokens]:
        """Inputs and targets of sequences: `Inputs.batch` and `Labels.batch`."""
        inputs = self.inputs.batch(tensors, rows)
        return inputs, self.labels.batch(tensors, rows, inputs)

    def count(self, tensors: Tensors) -> int:
        """The sequences in these tensors."""
        for name in self._per_sequence:
            return len(tensors[name])
        return self.config.num_sequences

    def rows_of(self, tensors: Tensors, rows: Tensor | slice) -> dict[str, Tensor]:
        """The summary of the sequences `rows (n,)` alone, differentiable in the whole one."""
        return {name: x[rows] if name in self._per_sequence else x for name, x in tensors.items()}

    def beginning_of(self, tensors: Tensors, count: int, length: int) -> dict[str, Tensor]:
        """The first positions of the first sequences that are stored."""
        beginning = self.rows_of(tensors, slice(0, count))
        for name, part in self.parts.items():
            if part.is_per_position:
                beginning[name] = beginning[name][:, :length]
        return beginning

    def endless(
        self, tensors: Tensors, seed: int | None = None, length: int | None = None
    ) -> EndlessRows | None:
        """See `FarziData.endless`."""
        seed = self.config.seed if seed is None else seed
        length = self.config.sequence_length if length is None else length
        return self.inputs.endless(tensors, self.labels, seed, length)

    def rows_of_start(self, tensors: Tensors, seed: int, source: EndlessRows | None = None) -> Rows:
        """Makes rows on which a student's start looks at the states of the carried teacher: those
        that it writes; where inputs are stored, the first of them.

        Args:
            tensors: of the summary.
            seed: of rows that are written for this alone.
            source: what the student reads afterwards. If that is written, its first rows are taken,
                so that the teacher writes them once.
        """
        length = min(self.config.sequence_length, LONGEST_ROW)

        def rows(positions: int) -> Tensor:
            count = max(1, positions // length)
            shares = self.inputs.frequencies(tensors)
            if shares is None:
                return self.inputs.batch(tensors, slice(0, count))[:, :length].long().cpu()
            if isinstance(source, WrittenRows) and source.length == length:
                return source.whole_blocks(count)
            seed_of_rows = derive(seed, Purpose.START_ROWS)
            written = WrittenRows(self.labels.model, shares, length, seed_of_rows)
            return written.whole_blocks(count)

        return rows

    def check_teacher(self, tensors: Tensors, source: str, budget: Budget) -> None:
        """Raises ValueError unless the carried teacher, if there is one, labels a row.

        Args:
            tensors: of a summary that was loaded.
            source: names the teacher in an error.
            budget: what it may cost.
        """
        if not self.labels.carries_teacher:
            return
        length = self.config.sequence_length
        try:
            carried = self.labels.teacher
            rows = self.endless(tensors)
            if rows is None:
                ids = self.inputs.batch(tensors, slice(0, 1))
            else:
                # A teacher that writes has to write a little. A whole row would take it ξ calls, so
                # the row that it labels is drawn.
                rows.beginning(1, min(_WRITTEN, length))
                ids = DrawnRows(rows.frequencies, length, 0).beginning(1, length)
        except Exception as error:  # each architecture fails in its own way
            raise ValueError(
                f"{source} is of no use ({type(error).__name__}: {error}); fetch it again"
            ) from error
        carried.check(tensors, ids, source, "fetch it again", budget)

    # -- the stock Trainer -------------------------------------------------------------------------

    def on_cpu(self) -> Forms:
        """The same for a process that has no other device."""
        return Forms(self.inputs, self.labels.on_cpu())

    def shared(self, tensors: Tensors) -> dict[str, Tensor]:
        """The tensors that all rows share, for a collator: copies on the CPU."""
        return {**self.inputs.shared(tensors), **self.labels.shared(tensors)}

    def knows(self, values: Tensor, row: TrainerRow) -> bool:
        """Whether this is a row of the summary, with `values` for its `input_ids`. Others are rows
        of ids to evaluate on.
        """
        return self.inputs.knows(values) and self.labels.knows(row)

    # -- reading -----------------------------------------------------------------------------------

    @torch.no_grad()
    def decode(
        self, tensors: Tensors, rows: Tensor | slice, names: Sequence[Any], top_k: int
    ) -> list[list[Position]]:
        """What the positions of sequences say, and their labels; see `FarziData.decode`."""
        sequences = self.inputs.decode(tensors, rows, names, top_k)
        labels = self.labels.decode(tensors, rows, self.inputs, names, top_k)
        if labels is None:
            return sequences
        return [
            [position | label for position, label in zip(sequence, its_labels, strict=True)]
            for sequence, its_labels in zip(sequences, labels, strict=True)
        ]


def device_of(tensors: Tensors) -> torch.device:
    """The device of a summary's tensors."""
    return next(iter(tensors.values())).device
