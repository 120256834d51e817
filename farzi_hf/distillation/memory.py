"""What a carried teacher gives away of the rows that it was trained on, beside other rows: what is
common language is not memory.

- **Copied n-grams** (McCoy et al. 2023, arXiv 2111.09509). The share of the n-grams of rows that
  the teacher writes that stand in training rows, and the longest run of ids that is copied. In
  large models, runs of 50 tokens count as memory (Carlini et al. 2021, arXiv 2012.07805).
- **Membership** (Yeom et al. 2018, arXiv 1709.01604). The area under the ROC curve of somebody who
  takes rows with a small loss for training rows.

They are lower bounds. Another attack can find more, and a mean over all rows says little of a
single one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.sequences import random_sequences
from farzi_hf.data.streams import RowStream, start_sequences
from farzi_hf.summary import FarziData
from farzi_hf.summary.endless import WrittenRows

SIZES = (8, 5, 3)  # n of the n-grams: the first of which there are enough
HIGH_COPIED = 0.05
"""What a teacher copies more than held-out rows do, where canaries that were planted once begin to
be known (docs/trust.md).
"""
HIGH_AUC = 0.6
"""The same of the AUC."""
_FEWEST = 100  # n-grams of which a share is taken: users' histories are short
_ROWS = 1024  # that the teacher writes, and of each kind whose loss is taken
_NUMBERS = 1 << 24  # logits that exist at the same time
_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that no id of an n-gram is lost modulo 2**64


@dataclass(frozen=True)
class IdRows:
    """IdRows of ids, one after the other."""

    ids: np.ndarray
    """(tokens,)"""
    lengths: np.ndarray
    """(rows,)"""

    def each(self, numbers: np.ndarray | slice) -> list[np.ndarray]:
        """The rows with these numbers."""
        ends = np.cumsum(self.lengths)
        return [
            self.ids[end - size : end]
            for end, size in zip(ends[numbers], self.lengths[numbers], strict=True)
        ]

    def first(self, size: int) -> IdRows:
        """The first `size` ids."""
        return IdRows(
            self.ids[:size], np.diff(np.minimum(np.cumsum(self.lengths), size), prepend=0)
        )

    def ngrams(self, n: int) -> np.ndarray:
        """A hash of each n-gram that is inside a row."""
        count = max(0, len(self.ids) - n + 1)
        hashes = np.zeros(count, dtype=np.uint64)
        for k in range(n):
            hashes = hashes * _FACTOR + (self.ids[k : k + count] + 1).astype(np.uint64)
        ends = np.repeat(np.cumsum(self.lengths), self.lengths)[:count]
        return hashes[np.arange(n, count + n) <= ends]

    def copied(self, source: IdRows, n: int) -> float:
        """The share of their n-grams that stand in rows of `source`; 0 without any."""
        kinds, numbers = np.unique(self.ngrams(n), return_inverse=True)
        if not len(kinds):
            return 0.0
        # These are few, so those of the source are looked up among them, and not sorted.
        of_source = source.ngrams(n)
        places = np.minimum(np.searchsorted(kinds, of_source), len(kinds) - 1)
        stands_there = np.zeros(len(kinds), dtype=bool)
        stands_there[places[kinds[places] == of_source]] = True
        return float(stands_there[numbers].mean())

    def longest_copied(self, source: IdRows) -> int:
        """The length of the longest run of ids inside a row that stands in a row of `source`."""
        low = 0
        high = int(self.lengths.max(initial=0))
        while low < high:  # where n ids are copied, n − 1 are
            middle = (low + high + 1) // 2
            if self.copied(source, middle):
                low = middle
            else:
                high = middle - 1
        return low


def memory_of(
    farzi: FarziData, training: Dataset | RowStream, held_out: Dataset, seed: int = 0
) -> dict[str, Any]:
    """Measures the teacher that a summary carries: some seconds.

    Args:
        farzi: with a teacher.
        training: rows of `input_ids` that it was trained on; of more than four million ids, some of
            the rows.
        held_out: such rows that it was not trained on.
        seed: of the rows that are written and chosen.

    Returns:
        For the metrics of a summary: `memory`, in words; `memory_copied`, a share of n-grams, and
        `…_held_out`, that of as many held-out ids; `memory_auc`; and `memory_warning`, a sentence,
        where the teacher knows its training rows.
    """
    learned = IdRows(*start_sequences(training, seed))
    others = IdRows(*start_sequences(random_sequences(held_out, len(held_out), seed), seed))
    order = stream(seed, Purpose.MEMORY_ROWS).permutation(len(learned.lengths))
    auc = membership(
        row_losses(farzi.teacher, learned.each(order[:_ROWS])),
        row_losses(farzi.teacher, others.each(slice(_ROWS))),
    )
    written = written_rows(farzi, seed, len(others.ids))
    size = min(len(written.ids), len(others.ids))
    written = written.first(size)
    others = others.first(size)
    n = SIZES[-1]
    for length in SIZES:
        if min(len(written.ngrams(length)), len(others.ngrams(length))) >= _FEWEST:
            n = length
            break
    copied = written.copied(learned, n)
    usual = others.copied(learned, n)
    words = (
        f"{100 * copied:.1f} % of the {n}-grams that the teacher writes are in the training data;"
        " so"
        f" are {100 * usual:.1f} % of those of held-out data of the same size. The longest run that"
        f" it copies has {written.longest_copied(learned)} entries; that of the held-out data has"
        f" {others.longest_copied(learned)}. Whether a row was in the training data can be guessed"
        f" from its loss with an AUC of {auc:.2f}; chance is 0.5."
    )
    facts = {
        "memory": words,
        "memory_copied": round(copied, 4),
        "memory_copied_held_out": round(usual, 4),
        "memory_auc": round(auc, 4),
    }
    reasons = []
    if copied - usual >= HIGH_COPIED:
        reasons.append("it writes parts of them")
    if auc >= HIGH_AUC:
        reasons.append("its loss tells them from other rows")
    if reasons:
        why = " and ".join(reasons)
        facts["memory_warning"] = f"The teacher has memorised rows of its training data: {why}."
    return facts


def written_rows(farzi: FarziData, seed: int, size: int) -> IdRows:
    """Ids that the carried teacher writes, whatever the inputs are: rows of ξ ids, cut after each
    end of a text.

    Args:
        farzi: with a teacher.
        seed: of the rows.
        size: ids that are wanted; there are fewer if 1,024 rows have fewer.
    """
    shares = farzi.forms.inputs.frequencies(farzi.tensors)
    if shares is None:
        shares = torch.ones(farzi.config.vocab_size)
    length = farzi.config.sequence_length
    source = WrittenRows(farzi.teacher, shares, length, seed)
    count = min(_ROWS, max(1, -(-size // length)))
    ids = source.rows(0, count).numpy()
    stops = np.isin(ids, getattr(farzi.teacher.config, "eos_token_id", None))
    stops[:, -1] = True
    return IdRows(ids.flatten(), np.diff(np.flatnonzero(stops) + 1, prepend=0))


@torch.no_grad()
def row_losses(model: PreTrainedModel, rows: Sequence[np.ndarray]) -> np.ndarray:
    """(N,): the mean negative log-likelihood, in nats, of the ids of each row after
    the first one.
    """
    losses = np.empty(len(rows))
    by_length = np.argsort([len(row) for row in rows], kind="stable")
    numbers = len(rows) * max(map(len, rows)) * model.config.vocab_size
    parts = min(len(rows), -(-numbers // _NUMBERS))
    for some in np.array_split(by_length, parts):
        ids = pad_sequence([torch.as_tensor(rows[i]) for i in some], True, -1).to(model.device)
        real = ids >= 0
        output = model(input_ids=ids.clamp(min=0), attention_mask=real.long())
        logits = output.logits[:, :-1].float()
        nats = nn.functional.cross_entropy(logits.mT, ids[:, 1:], ignore_index=-1, reduction="none")
        losses[some] = (nats.sum(1) / real[:, 1:].sum(1)).cpu().numpy()
    return losses


def membership(training: np.ndarray, held_out: np.ndarray) -> float:
    """The AUC: how often a training row has the smaller loss of the two. Ties count a half."""
    in_order = np.sort(held_out)
    below = np.searchsorted(in_order, training, "left").mean()
    not_above = np.searchsorted(in_order, training, "right").mean()
    return float(1 - (below + not_above) / 2 / len(held_out))
