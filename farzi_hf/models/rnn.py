"""A recurrent language model: embedding, GRU layers, output layer. transformers has no such model.

It works wherever a causal language model works: `AutoModelForCausalLM`, `Trainer`, or as a learner of the inner loop. It is twice
differentiable on CPU and on CUDA.
"""

import torch
from torch import Tensor, nn

from farzi_hf.models.base import SequenceConfig, SequenceModel, register


class RNNConfig(SequenceConfig):
    """Size of an `RNNForCausalLM`. It has the arguments of `SequenceConfig` and one more.

    Args:
        vocab_size: V, entries of the vocabulary.
    """

    model_type = "farzi_rnn"

    sizes = (*SequenceConfig.sizes, "vocab_size")
    vocab_size: int = 2004


@register
class RNNForCausalLM(SequenceModel):
    """GRU language model: `logits (b, L, V)` at position j predict token j + 1."""

    config_class = RNNConfig
    base_model_prefix = "model"

    def __init__(self, config: RNNConfig) -> None:
        super().__init__(config)
        size = config.hidden_size
        self.embedding = nn.Embedding(config.vocab_size, size)
        between = config.dropout if config.num_hidden_layers > 1 else 0.0
        self.gru = nn.GRU(size, size, config.num_hidden_layers, batch_first=True, dropout=between)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(size, config.vocab_size)
        self.post_init()

    def _states(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):  # its recurrent kernels have no second derivative
            return self.dropout(self.gru(self.dropout(inputs_embeds))[0])
