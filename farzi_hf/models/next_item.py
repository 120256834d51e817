"""The base of the three recommendation models: they read items, score the next item, and make recommendations from histories.

Item 0 is the padding, and items 1 … num_items are real, so the vocabulary has V = num_items + 1 entries. Sequences are padded
on the *right*. A strictly causal model then cannot see the padding from any real position. Position 1 holds the oldest item of
the input, in training and in `recommend`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from farzi_hf.models.sequence_model import SequenceConfig, SequenceModel, check_size

PADDING = 0


class NextItemConfig(SequenceConfig):
    """Size of a next-item model. It has the arguments of `SequenceConfig` and two more; embeddings are tied by default.

    Args:
        num_items: number of items without the padding; ids are 1 … num_items.
        max_length: positions that the model reads at once; a longer history is cut to its last items.
    """

    num_items: int = 1000
    max_length: int = 50
    tie_word_embeddings: bool = True
    pad_token_id: int = PADDING

    def __init__(
        self,
        num_items: int = 1000,
        hidden_size: int = 64,
        num_hidden_layers: int = 1,
        max_length: int = 50,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        self.num_items = check_size("num_items", num_items)
        self.max_length = check_size("max_length", max_length)
        own = {"tie_word_embeddings": tie_word_embeddings, "pad_token_id": PADDING}
        super().__init__(hidden_size, num_hidden_layers, **{**kwargs, **own})

    @property
    def vocab_size(self) -> int:
        """V: the items and the padding. `resize_token_embeddings` sets it."""
        return self.num_items + 1

    @vocab_size.setter
    def vocab_size(self, entries: int) -> None:
        self.num_items = check_size("vocab_size", entries) - 1


class NextItemModel(SequenceModel):
    """Base of the models: `logits (b, L, V)` at position j score the item at j + 1. A subclass sets `encoder`.

    `encoder` maps embeddings (b, L, h) to states (b, L, h). The state at position j depends only on embeddings up to j.
    """

    base_model_prefix = "encoder"
    config_class = NextItemConfig

    def __init__(self, config: NextItemConfig, encoder: nn.Module) -> None:
        super().__init__(config)
        self.loss_type = "ForCausalLM"  # transformers finds the loss by the class's name, but does not know this name
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder = encoder
        self.output = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Scores of every item at every position and, if labels are given, the mean loss per predicted item.

        Args:
            input_ids: (b, L) items, padded on the right.
            attention_mask: (b, L), 0 at padding. The mask is checked, but changes nothing (see the module's docstring).
            inputs_embeds: (b, L, h) in place of ids.
            labels: items (b, L), where −100 is ignored, or soft items (b, L, V). This function shifts them.

        Raises:
            ValueError: ids and embeddings are both given or both missing, there are more than max_length positions, or the
                padding is on the left.
        """
        states = self._states(input_ids, inputs_embeds, attention_mask)
        logits = self.output(states)
        loss = None
        if labels is not None and labels.is_floating_point():
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(0, 1))
        elif labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def recommend(self, histories: Sequence[Sequence[int]], k: int = 10, exclude_seen: bool = True) -> Tensor:
        """The k likeliest next items (n, k), best first. Among equal scores, the lower id comes first.

        Args:
            histories: n lists of items, oldest first. The model reads the last max_length − 1 items of each list. In training,
                the last item of a sequence is only a target, so the last position has learnt nothing.
            k: number of items to recommend.
            exclude_seen: whether to leave out all items of the user's whole history.

        Raises:
            ValueError: a history is empty, an item is unknown, or fewer than k items are left.
        """
        _check_histories(histories, k, self.config.num_items, exclude_seen)
        recent_items = max(1, self.config.max_length - 1)
        recent = [torch.as_tensor(history[-recent_items:]) for history in histories]
        ids = nn.utils.rnn.pad_sequence(recent, batch_first=True, padding_value=PADDING).to(self.device)
        training = self.training
        self.eval()
        states = self._states(ids, None, None)
        self.train(training)
        last = torch.tensor([len(history) - 1 for history in recent], device=ids.device)
        scores = self.output(states[torch.arange(len(ids), device=ids.device), last]).float()
        scores[:, PADDING] = -torch.inf
        if exclude_seen:
            for row, history in zip(scores, histories, strict=True):
                row[torch.as_tensor(history, device=row.device)] = -torch.inf
        return scores.argsort(dim=1, descending=True, stable=True)[:, :k]

    def _states(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        inputs_embeds = self._embedded(input_ids, inputs_embeds)
        length, longest = inputs_embeds.shape[1], self.config.max_length
        if length > longest:
            raise ValueError(
                f"the input has {length} positions, the model max_length={longest}: keep the last {longest}"
            )
        checked = None if torch.compiler.is_compiling() else attention_mask  # compiled code cannot branch on values
        if checked is not None and not checked[:, 0].all():
            raise ValueError("attention_mask starts with 0: pad sequences on the right")
        return self.encoder(inputs_embeds)


def register(model: type[NextItemModel]) -> type[NextItemModel]:
    """Class decorator: lets transformers' Auto classes build the model from its config."""
    config = model.config_class
    AutoConfig.register(config.model_type, config)
    AutoModel.register(config, model)
    AutoModelForCausalLM.register(config, model)
    return model


def _check_histories(histories: Sequence[Sequence[int]], k: int, num_items: int, exclude_seen: bool) -> None:
    if len(histories) == 0:
        raise ValueError("histories is empty: pass at least one list of items")
    for i, history in enumerate(histories):
        if len(history) == 0:
            raise ValueError(
                f"histories[{i}] is empty: there is nothing to predict from, recommend the most popular items"
            )
        if min(history) < 1 or max(history) > num_items:
            unknown = next(item for item in history if not 1 <= item <= num_items)
            raise ValueError(f"histories[{i}] holds item {unknown}: the model knows items 1 … {num_items}")
    left = num_items - (max(len(set(history)) for history in histories) if exclude_seen else 0)
    if not 1 <= k <= left:
        raise ValueError(f"k={k} items are asked for: pass a number from 1 to {left}, the items that are left")
