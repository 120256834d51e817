"""The base of all models here: their size, an input embedding, an output layer that may be tied to it, and torch's initialisation of GRUs."""

from __future__ import annotations

from numbers import Integral
from typing import Any, ClassVar

from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, initialization


class SequenceConfig(PreTrainedConfig):
    """What the sizes of all models here have. A subclass adds the size of its vocabulary.

    Args:
        hidden_size: h, width of embeddings and layers.
        num_hidden_layers: layers on top of each other.
        dropout: probability with which embeddings and outputs of layers are dropped in training.
        initializer_range: standard deviation of initial embeddings and weights.
        tie_word_embeddings: whether the output layer is the transposed embedding.

    Raises:
        ValueError: a size below 1, or a dropout outside [0, 1).
    """

    hidden_size: int = 64
    num_hidden_layers: int = 1
    dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False

    def __init__(
        self,
        hidden_size: int = 64,
        num_hidden_layers: int = 1,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        self.hidden_size = check_size("hidden_size", hidden_size)
        self.num_hidden_layers = check_size("num_hidden_layers", num_hidden_layers)
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be a probability below 1, got {dropout!r}")
        self.dropout, self.initializer_range, self.tie_word_embeddings = dropout, initializer_range, tie_word_embeddings
        super().__init__(**kwargs)


def check_size(name: str, value: Any, least: int = 1, most: int = 2**31 - 1) -> int:
    """`value` as an int. Raises ValueError unless it is an integer from `least` to `most`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r:.200}")
    if value > most:
        raise ValueError(f"{name} must be an integer of at most {most:,}, got {value!r:.200}")
    return int(value)


class SequenceModel(PreTrainedModel):
    """Base of the models. A subclass sets `embedding` and `output`."""

    main_input_name = "input_ids"
    _input_embed_layer = "embedding"
    _tied_weights_keys: ClassVar[dict[str, str]] = {"output.weight": "embedding.weight"}

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
