"""A recurrent language model: embedding, GRU layers, output layer. transformers has no such model.

It works wherever a causal language model works: `AutoModelForCausalLM`, `Trainer`, or as a learner of the inner loop. It is twice
differentiable on CPU and on CUDA.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from farzi_hf.models.base import SequenceConfig, SequenceModel, check_size


class RNNConfig(SequenceConfig):
    """Size of an `RNNForCausalLM`: the arguments of `SequenceConfig` after one of its own.

    Args:
        vocab_size: V, entries of the vocabulary.
    """

    model_type = "farzi_rnn"

    vocab_size: int = 2004

    def __init__(self, vocab_size: int = 2004, *args: Any, **kwargs: Any) -> None:
        self.vocab_size = check_size("vocab_size", vocab_size)
        super().__init__(*args, **kwargs)


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
