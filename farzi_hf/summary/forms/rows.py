"""Rows of the user's data for inputs: as they are, in the user's own columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset
from torch import Tensor

from farzi_hf.common.text import read_plain, terminal_text
from farzi_hf.data import Vocabulary
from farzi_hf.data.seeds import Purpose, stream
from farzi_hf.data.shares import rows_by_shares
from farzi_hf.summary.forms.base import Inputs, Labels, Likeliest, Part, Position, Table, Tensors
from farzi_hf.summary.forms.common_inputs import checked_ids
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.initialization import Start
from farzi_hf.summary.origins import CHOSEN, Origin

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents

ROWS = "rows"
"""The tensor with the rows."""
WEIGHTS = "weights"
"""The tensor (n,) of the labels, and, with `WEIGHT`, what a table calls it."""
WEIGHT = "weight"
_NEWLINE = 10
_WORD = 4  # bytes of an integer of the tensor
_ROW_BYTES = 2**24  # of a row that is read
_NOT_MADE = (
    "inputs='rows' are rows of your own data, which farzi_hf.weigh chooses, or `farzi weigh DATA"
    " --target TARGET`; no distillation makes them"
)
_NOT_IDS = (
    "the summary is rows of the data with weights, which are text and not yet ids: tokenize"
    " as_dataset(), and train on it with a Trainer of your own; its card shows how"
)


class NoStart(Start):
    """Rows of the data are chosen, and not made."""

    origin = CHOSEN

    def fill(self, farzi: Any, dataset: Any, seed: int, vectors: Tensor | None = None) -> None:
        raise ValueError(_NOT_MADE)


class RowInputs(Inputs):
    """`rows (row_words,)`: μ lines of JSON in UTF-8, one for each row that stays, with the user's
    columns; four bytes in each integer of 32 bits, the first byte the lowest. `weights (num_rows,)`
    of the labels says which of the n rows of the data they are: those whose weight is not 0.
    """

    name = "rows"
    result_words = "rows of the data"
    labels_by_default = "real"
    start = NoStart()
    is_endless = False
    browsed = None
    table_names = (ROWS,)
    sizes = ("num_rows", "row_words")
    wanted = ""
    columns_comment = ""

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        return {ROWS: Part(("row_words",), is_learnt=False, is_ids=True, begin=None)}

    @classmethod
    def check(cls, config: FarziDataConfig) -> None:
        if config.row_words is None or config.num_rows is None:
            raise ValueError(_NOT_MADE)

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        lines = np.count_nonzero(_bytes(tensors) == _NEWLINE) - _padding(tensors)
        if lines != self.config.num_sequences:
            raise ValueError(
                f"rows has {lines} lines in place of num_sequences={self.config.num_sequences};"
                f" {remedy}"
            )

    @classmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        return {"inputs": "rows of the data"}

    def rows(self, tensors: Tensors, numbers: slice) -> list[dict[str, Any]]:
        """Some of the μ rows, in the user's columns.

        Raises:
            ValueError: the bytes are not JSON, or a row is very long.
        """
        content = _bytes(tensors)
        ends = np.flatnonzero(content == _NEWLINE)[: self.config.num_sequences]
        starts = np.concatenate([[0], ends[:-1] + 1])
        return [
            _row(content[starts[i] : ends[i]].tobytes(), i)
            for i in range(*numbers.indices(len(ends)))
        ]

    # -- training ----------------------------------------------------------------------------------

    def batch(self, tensors: Tensors, rows: Tensor | slice) -> Tensor:
        raise ValueError(_NOT_IDS)

    def endless(self, tensors: Tensors, labels: Labels, seed: int, length: int) -> None:
        return None

    def frequencies(self, tensors: Tensors) -> None:
        return None

    def looked_up(self, tensors: Tensors) -> None:
        return None

    def dataset(
        self, tensors: Tensors, labels: Labels, num_rows: int | None, seed: int | None
    ) -> Dataset:
        """The rows with a column `weight`. With `num_rows` so many rows, each as often as its weight
        says, in an order that the seed decides; then each counts as much as any other.
        """
        rows = self.rows(tensors, slice(None))
        weights = _kept_weights(tensors)
        if num_rows is not None:
            order = stream(seed or 0, Purpose.WEIGHED_ORDER, 0)
            chosen = rows_by_shares(weights.numpy(force=True), num_rows, order)
            rows = [rows[i] for i in chosen]
            weights = torch.ones(num_rows)
        elif seed is not None:
            raise ValueError(
                f"seed={seed!r} without num_rows: the order of all rows is that of the data; give"
                " num_rows too, or leave seed out"
            )
        return Dataset(_table(rows, weights))

    # -- the stock Trainer -------------------------------------------------------------------------

    def check_ready(self) -> None:
        raise ValueError(_NOT_IDS)

    def knows(self, values: Tensor) -> bool:
        return values.ndim == 1

    def collated(self, values: Sequence[Tensor], shared: Tensors) -> dict[str, Tensor]:
        """Ids (b, L), padded with 0 on the right."""
        size = self.config.vocab_size
        ids = [checked_ids(i, x, size, self.wanted) for i, x in enumerate(values)]
        padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)
        lengths = torch.tensor([len(x) for x in ids])
        mask = torch.arange(padded.shape[1]) < lengths[:, None]
        return {"input_ids": padded, "attention_mask": mask.long()}

    # -- reading -----------------------------------------------------------------------------------

    def decode(
        self, tensors: Tensors, rows: Tensor | slice, names: Sequence[Any], top_k: int
    ) -> list[list[Position]]:
        """One entry for each row: what it says."""
        return [[{"text": written(row)}] for row in self.rows(tensors, rows)]

    def text(self, sequence: Sequence[Position], vocabulary: Vocabulary) -> str:
        return sequence[0]["text"]

    def browsed_ids(self, decoded: Sequence[Sequence[Position]]) -> None:
        return None

    def place(self, sequence: int, position: int) -> dict[str, str]:
        return {"row that stays": str(sequence)}

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return {"what it says": position["text"]}

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return {"what it says": terminal_text(" ".join(position["text"].split()), 70)}

    def columns(self, contents: Contents) -> dict[str, pa.Array]:
        """None: the table of the rows has all."""
        return {}

    def tables(self, contents: Contents) -> list[Table]:
        def rows() -> pa.Table:
            kept = self.rows(contents.tensors, slice(None))
            return _table(kept, _kept_weights(contents.tensors))

        return [Table(ROWS, "a row of the data in its own columns, and its weight", rows)]

    def torch_code(self) -> str:
        return ""

    @property
    def origin(self) -> Origin:
        return CHOSEN

    def words(self, vocabulary: Vocabulary) -> InputWords:
        config = self.config
        count = f"{config.num_sequences:,} of {config.num_rows:,} rows"
        return InputWords(
            positions="rows of the data",
            position="They are rows of the data, as they are, in the data's own columns.",
            rows=f"{count} of the data, as they are",
            short=f"{count} of the data",
            facts={
                "rows of the data": config.num_rows,
                "rows that stay": config.num_sequences,
                "which they are": "those whose number in `weights` is not 0, in the data's order",
            },
            excerpt="The first rows that stay.",
            first_positions="The first of them, with its weight:",
            first_row="First row that stays",
            numbers=0,
            figures=(),
            legend="",
        )


def packed(rows: Sequence[Mapping[str, Any]]) -> Tensor:
    """(row_words,): the rows as the tensor holds them.

    Raises:
        ValueError: a row has what JSON cannot hold, or a column named weight.
    """
    lines = []
    for number, row in enumerate(rows):
        if WEIGHT in row:
            raise ValueError(
                f"dataset has a column {WEIGHT!r} already, in which the weights would go; rename it"
            )
        try:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"row {number} holds what JSON cannot ({error}); leave out columns that are not"
                " text, numbers or lists of these"
            ) from None
        lines.append(f"{line}\n".encode(errors="replace"))
    content = b"".join(lines)
    content += b"\n" * (-len(content) % _WORD)
    return torch.from_numpy(np.frombuffer(content, dtype="<i4").astype(np.int32))


def written(row: Mapping[str, Any]) -> str:
    """What a row says: its only column as a text, or all its columns with their names."""
    texts = {name: _in_words(value) for name, value in row.items()}
    if len(texts) == 1:
        return next(iter(texts.values()))
    return "\n".join(f"{name}: {text}" for name, text in texts.items())


def _in_words(value: Any) -> str:
    """A text as it is, a chat as its messages, and anything else as JSON."""
    if isinstance(value, str):
        return value
    messages = value if isinstance(value, list) else [None]
    if all(isinstance(x, dict) and {"role", "content"} <= x.keys() for x in messages):
        return "\n".join(f"{x['role']}: {x['content']}" for x in messages)
    return json.dumps(value, ensure_ascii=False)


def _bytes(tensors: Tensors) -> np.ndarray:
    words = tensors[ROWS].detach().cpu().numpy().astype("<i4", copy=False)
    return words.view(np.uint8)


def _padding(tensors: Tensors) -> int:
    """How many newlines at the end only fill the last integer: every row ends with one, and no row
    is empty.
    """
    content = _bytes(tensors)[-_WORD:]
    return max(0, len(content) - len(content.tobytes().rstrip(b"\n")) - 1)


def _row(line: bytes, number: int) -> dict[str, Any]:
    try:
        if len(line) > _ROW_BYTES:
            raise ValueError(f"it has more than {_ROW_BYTES:,} bytes")
        row = read_plain(line)
    except ValueError as error:
        raise ValueError(f"rows: line {number} cannot be read ({error}); fetch it again") from None
    if not isinstance(row, dict) or WEIGHT in row:
        raise ValueError(f"rows: line {number} is not a row of columns; fetch it again")
    return row


def _kept_weights(tensors: Tensors) -> Tensor:
    """(μ,): the weights of the rows that stay."""
    weights = tensors[WEIGHTS].detach().cpu()
    return weights[weights != 0]


def _table(rows: Sequence[Mapping[str, Any]], weights: Tensor) -> pa.Table:
    lines = [{**row, WEIGHT: x} for row, x in zip(rows, weights.tolist(), strict=True)]
    try:
        return pa.Table.from_pylist(lines)
    except pa.ArrowException as error:
        raise ValueError(
            f"rows have columns of several types ({terminal_text(str(error))}); give each column one"
        ) from None
