"""Recurrent models, twice differentiable on CPU and CUDA: GRU4Rec (Hidasi et al., 2016), and a
language model, which transformers lacks.
"""

import torch
from torch import Tensor, nn

from farzi_hf.models.base import (
    NextItemConfig,
    NextItemModel,
    SequenceConfig,
    SequenceModel,
    register,
)


def _gru(config: SequenceConfig) -> nn.GRU:
    dropout_between = config.dropout if config.num_hidden_layers > 1 else 0.0
    return nn.GRU(
        config.hidden_size,
        config.hidden_size,
        config.num_hidden_layers,
        batch_first=True,
        dropout=dropout_between,
    )


def _states(model: nn.Module, embeds: Tensor) -> Tensor:
    """States (b, L, h) of a model with `gru` and `dropout`."""
    # cuDNN's recurrent kernels have no second derivative.
    with torch.backends.cudnn.flags(enabled=False):
        states, _ = model.gru(model.dropout(embeds))
        return model.dropout(states)


class GRU4RecConfig(NextItemConfig):
    """Size of a `GRU4RecForNextItem`; the arguments are those of `NextItemConfig`."""

    model_type = "gru4rec"


class _Recurrent(nn.Module):
    def __init__(self, config: GRU4RecConfig) -> None:
        super().__init__()
        self.dropout = nn.Dropout(config.dropout)
        self.gru = _gru(config)

    forward = _states


@register
class GRU4RecForNextItem(NextItemModel):
    """Item embeddings, GRU layers, item scores."""

    config_class = GRU4RecConfig
    encoder_class = _Recurrent


class RNNConfig(SequenceConfig):
    """Size of an `RNNForCausalLM`. It has the arguments of `SequenceConfig` and one more."""

    model_type = "farzi_rnn"
    sizes = (*SequenceConfig.sizes, "vocab_size")
    vocab_size: int = 2004
    """V, entries of the vocabulary."""


@register
class RNNForCausalLM(SequenceModel):
    """GRU language model: `logits (b, L, V)` at position j predict token j + 1."""

    config_class = RNNConfig
    base_model_prefix = "model"

    def __init__(self, config: RNNConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.gru = _gru(config)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def _states(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return _states(self, inputs_embeds)
