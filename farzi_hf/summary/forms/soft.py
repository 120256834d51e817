"""Soft inputs: learnt distributions over the vocabulary, as in the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import Tensor

from farzi_hf.common.settings import setting
from farzi_hf.data import Vocabulary
from farzi_hf.summary.forms.base import Likeliest, Part, Position, Table, Tensors, normal
from farzi_hf.summary.forms.common_inputs import StoredInputs, input_cells
from farzi_hf.summary.forms.words import InputWords
from farzi_hf.summary.initialization import CONCENTRATION, INITIALIZATIONS
from farzi_hf.summary.reading import check_product, likeliest_entries
from farzi_hf.summary.soft_tokens import SoftTokens, soft_tokens
from farzi_hf.summary.store.columns import list_column

if TYPE_CHECKING:
    from farzi_hf.summary.config import FarziDataConfig
    from farzi_hf.summary.store.contents import Contents


class SoftInputs(StoredInputs):
    """`latents (μ, ξ, d)` and `decoder (d, V)`: the input of position j of sequence i is
    softmax(latents[i, j] @ decoder / τ).
    """

    name = "soft"
    result_words = "soft tokens"
    labels_by_default = "own"
    start = "initialization"
    browsed = ""
    table_names = ("latents", "decoder")

    @dataclass(frozen=True)
    class Settings:
        latent_dim: int = setting(16, "d, numbers per synthetic token", least=1)
        tau: float = setting(1.0, "τ, softmax temperature")
        initialization: str = setting("spectral", "where soft inputs start", table=INITIALIZATIONS)

    def __init__(self, config: FarziDataConfig) -> None:
        super().__init__(config)
        self.tau = config.tau

    @classmethod
    def parts(cls, config: FarziDataConfig) -> dict[str, Part]:
        latents = ("num_sequences", "sequence_length", "latent_dim")
        return {
            "latents": Part(latents, is_learnt=True, is_ids=False, begin=normal),
            "decoder": Part(("latent_dim", "vocab_size"), True, False, normal),
        }

    def check_numbers(self, tensors: Tensors, remedy: str) -> None:
        check_product("latents", "decoder", tensors, self.tau, remedy)

    @classmethod
    def words_of_settings(cls, settings: Any) -> dict[str, Any]:
        words = {
            "inputs": f"soft, d = {settings.latent_dim}",
            "start of the summary": settings.initialization,
        }
        if settings.initialization == "spectral":
            words["κ"] = settings.concentration or CONCENTRATION
        return words

    # -- training ----------------------------------------------------------------------------------

    def batch(self, tensors: Tensors, rows: Tensor | slice) -> SoftTokens:
        return SoftTokens(tensors["latents"][rows], tensors["decoder"], self.tau)

    def looked_up(self, tensors: Tensors) -> None:
        """A soft token is a mean of all embeddings."""
        return None

    def column(self, tensors: Tensors) -> Tensor:
        return tensors["latents"]

    def knows(self, values: Tensor) -> bool:
        is_matrix = values.is_floating_point() and values.ndim == 2
        return is_matrix and values.shape[1] == self.config.latent_dim

    @property
    def wanted(self) -> str:
        return f", or latents (ξ, {self.config.latent_dim}) of this summary"

    def collated(self, values: Sequence[Tensor], shared: Tensors) -> dict[str, Tensor]:
        """Soft tokens (b, ξ, V)."""
        decoder = shared["decoder"]
        latents = torch.stack([x.to(decoder.dtype) for x in values])
        return {"input_ids": soft_tokens(latents, decoder, self.tau)}

    # -- reading -----------------------------------------------------------------------------------

    def decode(
        self, tensors: Tensors, rows: Tensor | slice, names: Sequence[Any], top_k: int
    ) -> list[list[Position]]:
        return likeliest_entries(self.batch(tensors, rows), names, top_k)

    def card_cells(self, position: Position, likeliest: Likeliest) -> dict[str, Any]:
        return input_cells(position, likeliest)

    def terminal_cells(self, position: Position, likeliest: Likeliest) -> dict[str, str]:
        return {
            "entropy (nats)": f"{position['entropy']:.2f}",
            "likeliest entries": likeliest(position["tokens"], position["probabilities"]),
        }

    def browsed_ids(self, decoded: Sequence[Sequence[Position]]) -> None:
        return None

    columns_comment = ""

    def columns(self, contents: Contents) -> dict[str, pa.Array]:
        """None: the latents have a table of their own."""
        return {}

    def tables(self, contents: Contents) -> list[Table]:
        tensors = contents.tensors
        text = ", greedy text" if contents.vocabulary.named else ""

        def latents() -> pa.Table:
            return pa.table(
                contents.index | {"latents": list_column(tensors["latents"])} | contents.text
            )

        def decoder() -> pa.Table:
            return pa.table(contents.entries | {"decoder": list_column(tensors["decoder"].T)})

        return [
            Table("latents", f"one row per sequence: (ξ, d) floats{text}", latents),
            Table("decoder", "per vocabulary entry: d floats", decoder),
        ]

    def torch_code(self) -> str:
        config = self.config
        count = config.num_sequences
        length = config.sequence_length
        size = config.vocab_size
        return (
            f'Z = torch.tensor(latents[:]["latents"])  # ({count}, {length}, {config.latent_dim})\n'
            f'D = torch.tensor(decoder[:]["decoder"]).T  # ({config.latent_dim}, {size})\n'
            f"# of the first sequence: (1, {length}, {size})\n"
            f"probabilities = torch.softmax(Z[:1] @ D / {config.tau}, -1)\n"
        )

    def words(self, vocabulary: Vocabulary) -> InputWords:
        config = self.config
        return InputWords(
            positions=f"soft {vocabulary.entries}",
            position=(
                f"Each position is a distribution over {config.vocab_size:,} entries, `softmax("
                "latents @ decoder / tau)`."
            ),
            rows=f"{config.num_sequences} stored rows of soft {vocabulary.entries}",
            short=f"soft tokens, {config.num_sequences:,} rows of {config.sequence_length}",
            facts={
                "synthetic sequences (μ)": config.num_sequences,
                "positions per sequence (ξ)": config.sequence_length,
                "latent dimension (d)": config.latent_dim,
                "temperature (τ)": config.tau,
            },
            excerpt=f"The likeliest {vocabulary.entries} of the first sequences.",
            first_positions="The first positions of the first sequence:",
            first_row="Synthetic sequence 0",
            numbers=self.numbers_per_position,
            figures=(("d", config.latent_dim), ("τ", config.tau)),
            legend="Each box shows the likeliest entry of a position",
        )
