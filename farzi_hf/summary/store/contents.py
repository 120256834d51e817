"""The parts of a summary that an artefact is written from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from farzi_hf.data import Vocabulary
from farzi_hf.summary.store.storage import STORAGES, Storage


@dataclass(frozen=True)
class Contents:
    """A summary as plain parts: tensors, a config, a vocabulary, and its likeliest tokens.

    Attributes:
        tensors: by name: `latents (μ, ξ, d)` and `decoder (d, V)`, or `input_ids (μ, ξ)`; where labels are own `label_latents (μ, ξ, e)` and
            `label_decoder (e, V)`.
        config: sizes and provenance, as `config.json` holds them.
        vocabulary: what the entries stand for.
        decoded: per sequence and position the likeliest tokens, their probabilities and the entropy, as `FarziData.decode` gives them.
    """

    tensors: Mapping[str, Tensor]
    config: PreTrainedConfig
    vocabulary: Vocabulary
    decoded: Sequence[Sequence[Mapping[str, Any]]]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors: the size of the summary as it is stored."""
        return self.storage.nbytes(self.tensors)

    @property
    def storage(self) -> Storage:
        """How the tensors are stored."""
        return STORAGES[self.config.storage]
