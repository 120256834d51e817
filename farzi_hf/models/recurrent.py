"""GRU4Rec (Hidasi et al., 2016) with the cross-entropy over all items: a recurrent network over a user's history."""

import torch
from torch import Tensor, nn

from farzi_hf.models.base import NextItemConfig, NextItemModel, register


class GRU4RecConfig(NextItemConfig):
    """Size of a `GRU4RecForNextItem`; the arguments are those of `NextItemConfig`."""

    model_type = "gru4rec"


class _Recurrent(nn.Module):
    def __init__(self, config: GRU4RecConfig) -> None:
        super().__init__()
        size, layers = config.hidden_size, config.num_hidden_layers
        self.dropout = nn.Dropout(config.dropout)
        self.gru = nn.GRU(size, size, layers, batch_first=True, dropout=config.dropout if layers > 1 else 0.0)

    def forward(self, embeds: Tensor) -> Tensor:
        with torch.backends.cudnn.flags(enabled=False):  # its recurrent kernels have no second derivative
            return self.dropout(self.gru(self.dropout(embeds))[0])


@register
class GRU4RecForNextItem(NextItemModel):
    """Item embeddings, GRU layers, item scores."""

    config_class, encoder_class = GRU4RecConfig, _Recurrent
