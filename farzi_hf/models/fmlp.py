"""FMLP-Rec (Zhou et al., 2022): learnable filters over time and pointwise networks, no attention.

The FMLP paper multiplies the spectrum of the whole sequence. This is a circular convolution: every
position sees all others, and so the training target leaks into the input. Here the filter is
causal, because all models of the Farzi paper predict from left to right.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import initialization

from farzi_hf.models.base import NextItemConfig, NextItemModel, register


class FMLPConfig(NextItemConfig):
    """Size of an `FMLPForNextItem`; the arguments are those of `NextItemConfig`."""

    model_type = "fmlp"


class _FilterNetwork(nn.Module):
    def __init__(self, config: FMLPConfig) -> None:
        super().__init__()
        self.positions = nn.Embedding(config.max_length, config.hidden_size)
        self.norm = nn.LayerNorm(config.hidden_size)
        self.dropout = nn.Dropout(config.dropout)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))

    def forward(self, embeds: Tensor) -> Tensor:
        x = self.dropout(self.norm(embeds + self.positions.weight[: embeds.shape[1]]))
        for layer in self.layers:
            x = layer(x)
        return x


class _Layer(nn.Module):
    """A layer of the FMLP paper: layer norm comes after each sublayer."""

    def __init__(self, config: FMLPConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.filter = _CausalFilter(config)
        self.filter_norm = nn.LayerNorm(size)
        self.pointwise = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(), nn.Linear(4 * size, size)
        )
        self.pointwise_norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        x = self.filter_norm(x + self.dropout(self.filter(x)))
        return self.pointwise_norm(x + self.dropout(self.pointwise(x)))


class _CausalFilter(nn.Module):
    """One filter per channel: y_t = Σ_{s ≤ t} taps_{t−s} x_s.

    A product of spectra over 2 L zero-padded positions would be the same linear map. Here the map
    is a triangular Toeplitz matrix: it is causal to the last bit, works in half precision, and is
    as fast at the lengths of histories.
    """

    def __init__(self, config: FMLPConfig) -> None:
        super().__init__()
        self.taps = nn.Parameter(torch.zeros(config.max_length, config.hidden_size))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        # taps_{−(L−1)} … taps_{−1} are zero.
        padded = F.pad(self.taps[:length], (0, 0, length - 1, 0))
        # (L, h, L): [t, c, s] = taps_{t−s} of channel c.
        toeplitz = padded.unfold(0, length, 1).flip(-1)
        # One product for each channel: (h, L, L) times (h, L, b).
        by_channel = toeplitz.transpose(0, 1) @ x.permute(2, 1, 0)
        return by_channel.permute(2, 1, 0)


@register
class FMLPForNextItem(NextItemModel):
    """Item and position embeddings, layers of a causal filter and a pointwise network of width 4 h,
    item scores.
    """

    config_class = FMLPConfig
    encoder_class = _FilterNetwork

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, _CausalFilter):
            initialization.normal_(module.taps, std=self.config.initializer_range)
