"""SASRec (Kang & McAuley, 2018): a causal transformer over a user's history."""

from typing import Any

import torch
from torch import Tensor, nn

from farzi_hf.models.base import NextItemConfig, NextItemModel, register


class SASRecConfig(NextItemConfig):
    """Size of a `SASRecForNextItem`. It has the arguments of `NextItemConfig` and one more.

    Raises:
        ValueError: hidden_size is not a multiple of num_attention_heads.
    """

    model_type = "sasrec"

    sizes = (*NextItemConfig.sizes, "num_attention_heads")
    num_attention_heads: int = 1
    """Heads of every layer; each has hidden_size / num_attention_heads channels."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"num_attention_heads={self.num_attention_heads} does not divide"
                f" hidden_size={self.hidden_size}"
            )


class _Transformer(nn.Module):
    def __init__(self, config: SASRecConfig) -> None:
        super().__init__()
        self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)

    def forward(self, embeds: Tensor) -> Tensor:
        x = self.dropout(embeds + self.positions.weight[: embeds.shape[1]])
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class _Layer(nn.Module):
    def __init__(self, config: SASRecConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.heads = config.num_attention_heads
        self.attention_norm = nn.LayerNorm(size)
        self.query_key_value = nn.Linear(size, 3 * size)
        self.attention_output = nn.Linear(size, size)
        self.pointwise_norm = nn.LayerNorm(size)
        self.pointwise = nn.Sequential(nn.Linear(size, size), nn.GELU(), nn.Linear(size, size))
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.dropout(self.attention_output(self._attention(self.attention_norm(x))))
        return x + self.dropout(self.pointwise(self.pointwise_norm(x)))

    def _attention(self, x: Tensor) -> Tensor:
        """Attention, written out in single operations, because fused attention has no second
        derivative.
        """
        b, length, size = x.shape
        # (b, L, 3h) → three times (b, heads, L, h / heads).
        heads = self.query_key_value(x).view(b, length, 3, self.heads, -1)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        scale = (size // self.heads) ** -0.5
        scores = q @ k.transpose(-1, -2) * scale
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        weights = self.dropout(torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1))
        return (weights @ v).transpose(1, 2).reshape(b, length, size)


@register
class SASRecForNextItem(NextItemModel):
    """Item and position embeddings, layers of causal attention and a pointwise network, layer norm,
    item scores.

    Two details differ from the paper: layer norm comes before each sublayer, and the pointwise
    network uses GELU in place of ReLU. Both make the training smoother, and so the gradient through
    the training.
    """

    config_class = SASRecConfig
    encoder_class = _Transformer
