"""The base of all models here: an input embedding, an output layer that may be tied to it, and torch's initialisation of GRUs."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from transformers import PreTrainedModel, initialization


class SequenceModel(PreTrainedModel):
    """Base of the models. A subclass sets `embedding` and `output`."""

    main_input_name = "input_ids"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"output.weight": "embedding.weight"}

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding that turns ids into vectors."""
        return self.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replaces the input embedding."""
        self.embedding = value

    def get_output_embeddings(self) -> nn.Linear:
        """The layer that turns states into logits."""
        return self.output

    def set_output_embeddings(self, value: nn.Linear) -> None:
        """Replaces the output layer."""
        self.output = value

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, nn.GRU):  # torch's own bounds; transformers initialises only the LSTM
            for parameter in module.parameters():
                initialization.uniform_(parameter, -(module.hidden_size**-0.5), module.hidden_size**-0.5)

    def _embedded(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Embeddings (b, L, h): those of the ids (b, L), or the given ones. Exactly one of the two arguments must be given."""
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        return self.embedding(input_ids) if inputs_embeds is None else inputs_embeds
