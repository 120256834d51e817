"""A summary as plain parts, from which its artefact is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from torch import Tensor

from farzi_hf.data import Vocabulary
from farzi_hf.summary.reading import Decoded
from farzi_hf.summary.store.tensor_file import STORAGES, Storage

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.forms import Forms, Position

_AT_ONCE = 1000  # sequences that are decoded at the same time


@dataclass(frozen=True, eq=False)
class Contents:
    """A summary as plain parts: its forms, its tensors, a vocabulary, and its likeliest tokens."""

    forms: Forms
    """Inputs and labels, which say what the artefact shows of them."""

    tensors: Mapping[str, Tensor]
    """By the names that the forms list, with numbers as whoever loads the artefact finds them."""

    vocabulary: Vocabulary
    """What the entries stand for."""

    decoded: Decoded
    """What `FarziData.decode` gives."""

    @property
    def config(self) -> FarziDataConfig:
        """Sizes and provenance, as `config.json` holds them."""
        return self.forms.config

    @property
    def storage(self) -> Storage:
        """How the tensors are stored."""
        return STORAGES[self.config.storage]

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all tensors in the file."""
        return self.storage.nbytes(self.tensors)

    # -- columns of tables -------------------------------------------------------------------------

    @property
    def index(self) -> dict[str, Any]:
        """The first column of a table with a row for each sequence."""
        return {"index": pa.array(range(len(self.decoded)))}

    @property
    def text(self) -> dict[str, Any]:
        """The column with the text of each sequence; none where entries have no names."""
        return {"text": pa.array(self._read[1])} if self.vocabulary.named else {}

    def texts_of(self, sequences: Sequence[list[Position]]) -> dict[str, Any]:
        """The same of decoded sequences."""
        if not self.vocabulary.named:
            return {}
        return {"text": [self.forms.inputs.text(one, self.vocabulary) for one in sequences]}

    @property
    def entries(self) -> dict[str, Any]:
        """The first columns of a table with a row for each entry of the vocabulary."""
        size = self.config.vocab_size
        columns = {"id": pa.array(range(size))}
        if self.vocabulary.named:
            columns["token"] = pa.array(self.vocabulary.names(size))
        return columns

    @property
    def positions(self) -> pa.Table:
        """A table with a row for each position: what it says."""
        return self._read[0]

    @cached_property
    def _read(self) -> tuple[pa.Table, list[str]]:
        """The table of positions and the texts, of which both need all sequences decoded."""
        tables: list[pa.Table] = []
        texts: list[str] = []
        for start in range(0, len(self.decoded), _AT_ONCE):
            sequences = self.decoded[start : start + _AT_ONCE]
            rows = [
                {"sequence": i, "position": j, **position}
                for i, sequence in enumerate(sequences, start)
                for j, position in enumerate(sequence)
            ]
            tables.append(pa.Table.from_pylist(rows))
            texts += self.texts_of(sequences).get("text", [])
        return pa.concat_tables(tables), texts
