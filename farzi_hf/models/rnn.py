"""A recurrent language model: embedding, GRU layers, output layer. transformers has no such model.

It works wherever a causal language model works: `AutoModelForCausalLM`, `Trainer`, or as a learner of the inner loop. It is twice
differentiable on CPU and on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput

from farzi_hf.models.sequence_model import SequenceModel


class RNNConfig(PreTrainedConfig):
    """Size of an `RNNForCausalLM`.

    Args:
        vocab_size: V, entries of the vocabulary.
        hidden_size: h, width of embeddings and of every GRU layer.
        num_hidden_layers: GRU layers on top of each other.
        dropout: probability of dropping an output of the embedding or of a layer in training.
        initializer_range: standard deviation of initial embeddings and output weights.
        tie_word_embeddings: whether the output layer is the transposed embedding.

    Raises:
        ValueError: a size below 1, or a dropout outside [0, 1).
    """

    model_type = "farzi_rnn"

    vocab_size: int = 2004
    hidden_size: int = 64
    num_hidden_layers: int = 1
    dropout: float = 0.0
    initializer_range: float = 0.02
    tie_word_embeddings: bool = False

    def __init__(
        self,
        vocab_size: int = 2004,
        hidden_size: int = 64,
        num_hidden_layers: int = 1,
        dropout: float = 0.0,
        initializer_range: float = 0.02,
        tie_word_embeddings: bool = False,
        **kwargs: Any,
    ) -> None:
        sizes = {"vocab_size": vocab_size, "hidden_size": hidden_size, "num_hidden_layers": num_hidden_layers}
        for name, value in sizes.items():
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value!r}")
        if not 0.0 <= dropout < 1.0:
            raise ValueError(f"dropout must be a probability below 1, got {dropout!r}")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.dropout = dropout
        self.initializer_range = initializer_range
        self.tie_word_embeddings = tie_word_embeddings
        super().__init__(**kwargs)


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

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Logits and, if labels are given, the mean loss per predicted token.

        Args:
            input_ids: (b, L) ids.
            attention_mask: not used; the interface requires it. Padding on the right cannot influence earlier positions, and
                its labels are −100.
            inputs_embeds: (b, L, h) in place of ids.
            labels: (b, L) ids, where −100 is ignored. This function shifts them.

        Raises:
            ValueError: ids and embeddings are both given or both missing.
        """
        inputs_embeds = self._embedded(input_ids, inputs_embeds)
        # cuDNN's recurrent kernels have no second derivative.
        with torch.backends.cudnn.flags(enabled=False):
            states, _ = self.gru(self.dropout(inputs_embeds))
        logits = self.output(self.dropout(states))
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)


AutoConfig.register(RNNConfig.model_type, RNNConfig)
AutoModelForCausalLM.register(RNNConfig, RNNForCausalLM)
