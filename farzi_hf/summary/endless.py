"""Inputs that never run out: rows of ids that are made when they are asked for, in place of stored
sequences.

A row depends on (seed, position) alone. So every reader finds the same rows: the inner loop, the
stock Trainer, any number of workers and processes, and a run that goes on. Rows are made a block at
a time, because a generator for each row would take longer than the row.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from inspect import signature
from numbers import Integral
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from farzi_hf.data.seeds import Purpose, check_seed, derive, stream
from farzi_hf.engine.devices import portions, values_are_free

_BLOCK = 256  # rows that are made at once
_AT_ONCE = 8  # blocks that a GPU writes at once, which takes it as long as one
_KEPT = 64  # blocks that are kept, because an adjoint reads the last steps again
_PART = 128  # entries of a vocabulary whose sum is searched first where an id is drawn
_PAST = ("cache", "past_key_values")
"""What an output calls keys and values: since transformers 5.24, and before."""


class EndlessRows(ABC):
    """Rows of ids (ξ,) without an end, each a function of (seed, position).

    Args:
        frequencies: (V,) shares of the vocabulary's entries.
        length: ξ.
        seed: of all rows.
    """

    at_once = 1
    """Blocks that are made together: each has the same neighbours whenever it is made, and so the
    same bits.
    """

    def __init__(self, frequencies: Tensor, length: int, seed: int) -> None:
        self.frequencies = frequencies.detach().cpu()
        self.length = length
        self.seed = check_seed(seed)
        self._blocks: dict[int, Tensor] = {}

    @abstractmethod
    def block(self, number: int) -> Tensor:
        """Rows `number` · 256 … (`number` + `at_once`) · 256 − 1, (256 · at_once, ξ)."""

    @abstractmethod
    def _beginning(self, count: int, length: int) -> Tensor:
        """The first `length` ids of the first rows of block 0, (count, length)."""

    def beginning(self, count: int, length: int) -> Tensor:
        """The first ids of the first rows, (count, length), to be read by people: not a whole block
        is made for some of its rows, nor ξ ids for the first.
        """
        if count > _BLOCK:
            return self.rows(0, count)[:, :length]
        return self._beginning(count, length)

    def rows(self, first: int, count: int) -> Tensor:
        """Rows `first` … `first + count − 1`, (count, ξ)."""
        blocks = range(first // _BLOCK, -(-(first + count) // _BLOCK))
        start = first - blocks[0] * _BLOCK
        return torch.cat([self._made(number) for number in blocks])[start : start + count]

    def whole_blocks(self, count: int) -> Tensor:
        """The first rows, about `count` of them (n, ξ): as many blocks as that fills, or the first
        `count` of block 0. A reader of the same rows need not wait for a block of which nearly
        nothing was asked for.
        """
        whole = count - count % _BLOCK
        return self.rows(0, whole or count)

    def _made(self, number: int) -> Tensor:
        """A block, which is kept."""
        if number not in self._blocks:
            first = number - number % self.at_once
            for i, block in enumerate(self.block(first).split(_BLOCK), first):
                if len(self._blocks) >= _KEPT:
                    oldest = next(iter(self._blocks))
                    self._blocks.pop(oldest)
                self._blocks[i] = block
        return self._blocks[number]


class DrawnRows(EndlessRows):
    """Ids drawn by their frequency, each on its own: such rows hold no sequence of the data."""

    def __init__(self, frequencies: Tensor, length: int, seed: int) -> None:
        super().__init__(frequencies, length, seed)
        self._sums = np.cumsum(self.frequencies.double().numpy())

    def block(self, number: int) -> Tensor:
        return self._drawn(number, _BLOCK)

    def _beginning(self, count: int, length: int) -> Tensor:
        return self._drawn(0, count)[:, :length]

    def _drawn(self, number: int, count: int) -> Tensor:
        """The first rows of a block, (count, ξ)."""
        uniform = stream(self.seed, Purpose.DRAWN_ROWS, number).random((count, self.length))
        ids = np.searchsorted(self._sums, uniform * self._sums[-1], side="right")
        return torch.from_numpy(ids)


class WrittenRows(EndlessRows):
    """Ids that a teacher writes: each is drawn from its prediction after those before. Ids without
    a frequency are never written.

    A row begins with the model's `bos_token_id`, as it does again after its `eos_token_id`; without
    them with a drawn id.

    Args:
        teacher: in evaluation mode.

    Raises:
        ValueError: where rows are made, if the teacher does not predict finite numbers.
    """

    def __init__(
        self, teacher: PreTrainedModel, frequencies: Tensor, length: int, seed: int
    ) -> None:
        super().__init__(frequencies, length, seed)
        self._teacher = teacher

    @property
    def at_once(self) -> int:
        weight = next(self._teacher.parameters())
        if values_are_free(weight):
            return 1
        keeps_past = getattr(self._teacher, "needs_mask", True)
        positions = 1 if keeps_past or self._of_last else self.length  # whose logits it computes
        logits = _BLOCK * len(self.frequencies) * positions
        return max(1, min(_AT_ONCE, portions(weight).block // logits))

    @cached_property
    def _of_last(self) -> dict[str, int]:
        """The argument with which the teacher computes the logits of the last position alone, where
        it takes one: of a large catalogue, the logits of all positions are nearly all of the work.
        """
        arguments = signature(self._teacher.forward).parameters
        return {"logits_to_keep": 1} if "logits_to_keep" in arguments else {}

    def block(self, number: int) -> Tensor:
        return self._written(range(number, number + self.at_once), _BLOCK, self.length)

    def _beginning(self, count: int, length: int) -> Tensor:
        # The sums of a smaller batch may be rounded otherwise: rarely, an id differs.
        return self._written([0], count, length)

    @torch.no_grad()
    def _written(self, numbers: Sequence[int], count: int, length: int) -> Tensor:
        """The first rows of each of these blocks, (count of all of them, length)."""
        model = self._teacher
        never = (~(self.frequencies > 0)).nonzero()[:, 0].to(model.device)
        generators = [
            torch.Generator().manual_seed(derive(self.seed, Purpose.WRITTEN_ROWS, i))
            for i in numbers
        ]
        begin = self._special_id("bos_token_id")
        end = self._special_id("eos_token_id")
        begins_again = begin is not None and end is not None and begin != end
        first = torch.cat(
            [
                torch.multinomial(self.frequencies, _BLOCK, True, generator=g)[:count]
                for g in generators
            ]
        )
        if begin is not None:
            first = torch.full_like(first, begin)
        ids = first[:, None].to(model.device)
        finite = torch.ones((), dtype=torch.bool, device=model.device)
        past: dict[str, Any] = {}  # the keys and values of the ids before the last one
        while ids.shape[1] < length:
            read = ids[:, -1:] if past else ids
            mask = torch.ones_like(ids)
            output = model(
                input_ids=read, attention_mask=mask, use_cache=True, **past, **self._of_last
            )
            # By the names that are there: transformers warns of the old one where it is asked for.
            past = {name: x for name, x in output.items() if name in _PAST}
            # In place: a copy of (n, V) takes as long as the sums that are searched.
            logits = output.logits[:, -1].float().index_fill_(1, never, -torch.inf)
            p = logits.softmax(-1)
            finite &= p[:, 0].isfinite().all()  # a single NaN makes all of its row NaN
            uniform = torch.cat(
                [1 - torch.rand(_BLOCK, 1, generator=g)[:count] for g in generators]
            )
            drawn = _drawn(p, uniform.to(p.device))
            if begins_again:
                drawn.masked_fill_(ids[:, -1:] == end, begin)
            ids = torch.cat([ids, drawn.clamp(max=len(self.frequencies) - 1)], dim=1)
        if not finite:  # asked once, because a GPU would wait for each answer
            raise ValueError(
                "the teacher that the summary carries predicts NaN or infinity after ids that it"
                " has written itself: take farzi.with_inputs('drawn'), or do not trust the summary"
            )
        return ids.cpu()

    def _special_id(self, name: str) -> int | None:
        """The id of a special token of the teacher; None where it has none that is ever written."""
        i = getattr(self._teacher.config, name, None)
        is_written = isinstance(i, int) and 0 <= i < len(self.frequencies)
        return i if is_written and self.frequencies[i] > 0 else None


def _drawn(p: Tensor, uniform: Tensor) -> Tensor:
    """An entry (n, 1) of each distribution (n, V), for a number (n, 1) above 0 and up to 1. An
    entry of probability 0 is never drawn.

    It is the first one with which the sum of the entries reaches the number. The sums of `_PART`
    entries are searched first, then those within one part: the sums at all V entries take longer
    than the teacher's products. `torch.multinomial` would draw a number for each entry, which takes
    longer still.
    """
    if not values_are_free(p):
        p = (p * 2**30).long()  # whole numbers add up to the same on a GPU, in any order
    entries = p.shape[1]
    full = entries // _PART
    parts = p[:, : full * _PART].unflatten(1, (full, _PART)).sum(-1)
    rest = p[:, full * _PART :].sum(-1, keepdim=True)
    sums = torch.cat([parts, rest], dim=1).cumsum(-1)
    wanted = uniform * sums[:, -1:]
    if not p.is_floating_point():
        wanted = wanted.ceil().long().minimum(sums[:, -1:])
    part = torch.searchsorted(sums, wanted).clamp(max=sums.shape[1] - 1)  # NaN is beyond all sums
    places = part * _PART + torch.arange(_PART, device=p.device)
    of_part = p.gather(1, places.clamp(max=entries - 1)).masked_fill(places >= entries, 0)
    within = of_part.cumsum(-1)
    before = F.pad(sums, (1, 0)).gather(1, part)
    # Two sums of the same entries may be rounded otherwise.
    left = (wanted - before).minimum(within[:, -1:])
    return part * _PART + torch.searchsorted(within, left)


class RowsDataset(torch.utils.data.IterableDataset):
    """Endless rows for a `DataLoader` and for the stock Trainer. Use it with
    `FarziData.collator()`.

    Each row has `input_ids` (ξ,) and, where rows have any, `labels`.

    Args:
        source: makes the rows.
        num_rows: rows of an epoch, at least 1. Each iteration reads the next epoch, also after one
            that was left early. None: without an end.
        labels: of every row, see `Labels.column`.
    """

    def __init__(
        self, source: EndlessRows, num_rows: int | None = None, labels: Tensor | None = None
    ) -> None:
        is_integer = isinstance(num_rows, Integral) and not isinstance(num_rows, bool)
        if num_rows is not None and not (is_integer and num_rows >= 1):
            raise ValueError(
                f"num_rows={num_rows!r} is not a length of an epoch; give at least 1, or None"
            )
        self.source = source
        self.num_rows = num_rows
        self._labels = {} if labels is None else {"labels": labels}
        # A worker of a DataLoader counts for all.
        self._epoch = torch.zeros((), dtype=torch.long).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch that the next iteration reads. Trainer and Accelerate call it."""
        self._epoch.fill_(epoch)

    def __len__(self) -> int:
        if self.num_rows is None:
            raise TypeError("these rows have no end; give num_rows, or max_steps to the Trainer")
        return self.num_rows

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = torch.utils.data.get_worker_info()
        if worker is not None and worker.id > 0:
            return  # one worker reads, so that batches do not depend on the number of workers
        first = self._epoch.item() * (self.num_rows or 0)
        self._epoch += 1  # for loops that set no epoch
        end = None if self.num_rows is None else first + self.num_rows
        while end is None or first < end:
            count = _BLOCK if end is None else min(_BLOCK, end - first)
            for ids in self.source.rows(first, count):
                yield {"input_ids": ids, **self._labels}
            first += count
