"""The bases of all models here: `SequenceModel` of every one, `NextItemModel` of the three that
recommend.

A next-item model reads items, scores the next item, and makes recommendations from histories. Item
0 is the padding, and items 1 … num_items are real, so the vocabulary has V = num_items + 1 entries.
Sequences are padded on the *right*. A strictly causal model then cannot see the padding from any
real position. Position 1 holds the oldest item of the input, in training and in `recommend`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from operator import index
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    PreTrainedConfig,
    PreTrainedModel,
    initialization,
)
from transformers.modeling_outputs import CausalLMOutput
from transformers.models.auto import CONFIG_MAPPING

from farzi_hf.common.checks import check_size, did_you_mean

PADDING = 0


class SequenceConfig(PreTrainedConfig):
    """What the configs of all models here have. A subclass adds the size of its vocabulary. All
    arguments are keywords.

    Raises:
        ValueError: a size below 1, or a dropout outside [0, 1).
    """

    sizes: ClassVar[Sequence[str]] = ("hidden_size", "num_hidden_layers")
    """The fields that have to be integers of at least 1."""
    hidden_size: int = 64
    """h, width of embeddings and layers."""
    num_hidden_layers: int = 1
    """Layers on top of each other."""
    dropout: float = 0.0
    """Probability with which embeddings and outputs of layers are dropped in training."""
    initializer_range: float = 0.02
    """Standard deviation of initial embeddings and weights."""
    tie_word_embeddings: bool = False
    """Whether the output layer is the transposed embedding."""

    def __post_init__(self, **kwargs: Any) -> None:
        for name in self.sizes:
            setattr(self, name, check_size(name, getattr(self, name)))
        if not 0.0 <= self.dropout < 1.0:
            raise ValueError(f"dropout must be a probability below 1, got {self.dropout!r}")
        super().__post_init__(**kwargs)


def check_fields(settings: Mapping[str, Any], name: str, **sizes: int) -> None:
    """Checks the settings of a model before they become its config.

    Args:
        settings: the `model_type`, and fields of its config.
        name: of the settings, for an error.
        sizes: fields that are given by the data, with their values. The settings may leave them
            out.

    Raises:
        ValueError: the type is unknown, a setting is not a field of its config, or a size differs.
    """
    kind = settings.get("model_type")
    if kind not in CONFIG_MAPPING:
        suggestion = did_you_mean(kind, CONFIG_MAPPING.keys())
        raise ValueError(f"{name}: model_type={kind!r:.80} is unknown{suggestion}")
    config = CONFIG_MAPPING[kind]
    names = {"model_type", *config.attribute_map, *(field.name for field in fields(config)), *sizes}
    for key in settings:
        if key not in names and not key.startswith("rope_"):
            suggestion = did_you_mean(key, names)
            raise ValueError(f"{name}: {kind} has no field {key!r:.80}{suggestion}")
    for key, value in sizes.items():
        if settings.get(key, value) != value:
            raise ValueError(
                f"{name}: {key}={settings[key]!r:.80}, but the data have {value}; leave {key} out"
            )


class SequenceModel(PreTrainedModel):
    """Base of the models. A subclass sets `embedding` and `output`; `_states` maps embeddings (b,
    L, h) to states (b, L, h).
    """

    main_input_name = "input_ids"
    needs_mask: ClassVar[bool] = False
    """Whether the model has to be given an attention mask where nothing is padding, as models of
    transformers do.
    """
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
        if isinstance(module, nn.GRU):  # transformers initialises only the LSTM
            bound = module.hidden_size**-0.5  # torch's own
            for parameter in module.parameters():
                initialization.uniform_(parameter, -bound, bound)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        logits_to_keep: int = 0,
        **kwargs: Any,
    ) -> CausalLMOutput:
        """Scores of every entry at every position and, if labels are given, the mean loss per
        predicted entry.

        Args:
            input_ids: (b, L) ids, padded on the right.
            attention_mask: (b, L), 0 at padding. It changes nothing: no position sees the padding
                after it, and its labels are −100.
            inputs_embeds: (b, L, h) in place of ids.
            labels: ids (b, L), where −100 is ignored, or soft labels (b, L, V). This function
                shifts them.
            logits_to_keep: of how many last positions the scores are wanted; 0: of all, as labels
                need them.

        Raises:
            ValueError: ids and embeddings are both given or both missing; of a next-item model
                also: there are more than max_length positions, or the padding is on the left.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embedding(input_ids)
        states = self._states(inputs_embeds, attention_mask)
        logits = self.output(states[:, -logits_to_keep:])  # of −0 on: all
        loss = None
        if labels is not None and labels.is_floating_point():
            loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(0, 1))
        elif labels is not None:
            loss = self.loss_function(logits, labels, vocab_size=self.config.vocab_size, **kwargs)
        return CausalLMOutput(loss=loss, logits=logits)


class NextItemConfig(SequenceConfig):
    """Size of a next-item model. It has the arguments of `SequenceConfig` and more."""

    sizes = (*SequenceConfig.sizes, "num_items", "max_length")
    num_items: int = 1000
    """Number of items without the padding; ids are 1 … num_items."""
    max_length: int = 50
    """Positions that the model reads at once; a longer history is cut to its last items."""
    tie_word_embeddings: bool = True
    """Whether the output layer is the transposed embedding."""
    pad_token_id: int = PADDING
    """The id of the padding, which is no item."""

    @property
    def vocab_size(self) -> int:
        """V: the items and the padding. `resize_token_embeddings` sets it."""
        return self.num_items + 1

    @vocab_size.setter
    def vocab_size(self, entries: int) -> None:
        self.num_items = check_size("vocab_size", entries) - 1


class NextItemModel(SequenceModel):
    """Base of the models: `logits (b, L, V)` at position j score the item at j + 1. A subclass sets
    `encoder_class`.

    A module of that class, which is made of the config, maps embeddings (b, L, h) to states (b, L,
    h). The state at position j depends only on embeddings up to j.
    """

    encoder_class: ClassVar[type[nn.Module]]

    base_model_prefix = "encoder"
    config_class = NextItemConfig

    def __init__(self, config: NextItemConfig) -> None:
        encoder = self.encoder_class(config)
        super().__init__(config)
        # transformers finds the loss by the class's name, but does not know this name
        self.loss_type = "ForCausalLM"
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.encoder = encoder
        self.output = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    @torch.no_grad()
    def recommend(
        self, histories: Sequence[Sequence[int]], k: int = 10, exclude_seen: bool = True
    ) -> Tensor:
        """The k likeliest next items (n, k), best first. Among equal scores, the lower id comes
        first.

        Args:
            histories: n lists of items, oldest first. The model reads the last max_length − 1 items
                of each list. In training, the last item of a sequence is only a target, so the last
                position has learnt nothing.
            k: number of items to recommend.
            exclude_seen: whether to leave out all items of the user's whole history.

        Raises:
            ValueError: there is no history, one is empty, an item is unknown, or fewer than k items
                are left.
        """
        self._check_histories(histories, k, exclude_seen)
        was_training = self.training
        self.eval()
        scores = self._next_scores(histories)
        self.train(was_training)
        scores[:, PADDING] = -torch.inf
        if exclude_seen:
            for row, history in zip(scores, histories, strict=True):
                row[torch.as_tensor(history, device=row.device)] = -torch.inf
        return scores.argsort(dim=1, descending=True, stable=True)[:, :k]

    def _check_histories(
        self, histories: Sequence[Sequence[int]], k: int, exclude_seen: bool
    ) -> None:
        """Raises the errors of `recommend`."""
        num_items = self.config.num_items
        if len(histories) == 0:
            raise ValueError("histories is empty: give a list of items for each user")
        for i, history in enumerate(histories):
            if not _are_items(history, num_items):
                raise ValueError(
                    f"histories[{i}] is {history!r:.200}: give one or more of the items 1 …"
                    f" {num_items}"
                )
        had = [len(set(map(int, history))) for history in histories]
        if exclude_seen and max(had) == num_items:
            raise ValueError(
                f"histories[{had.index(num_items)}] has all {num_items} items, so none is left:"
                " leave it out, or pass exclude_seen=False"
            )
        left = num_items - max(had) if exclude_seen else num_items
        if not 1 <= k <= left:
            raise ValueError(
                f"k={k} items are asked for: pass a number from 1 to {left}, the items that are"
                " left"
            )

    def _next_scores(self, histories: Sequence[Sequence[int]]) -> Tensor:
        """The scores (n, V) of the items after histories, in float32."""
        most = max(1, self.config.max_length - 1)
        recent = [torch.as_tensor(history[-most:]) for history in histories]
        ids = nn.utils.rnn.pad_sequence(recent, batch_first=True, padding_value=PADDING)
        ids = ids.to(self.device)
        states = self._states(self.embedding(ids))
        rows = torch.arange(len(ids), device=ids.device)
        last = torch.tensor([len(history) - 1 for history in recent], device=ids.device)
        return self.output(states[rows, last]).float()

    def _states(self, inputs_embeds: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        length = inputs_embeds.shape[1]
        longest = self.config.max_length
        if length > longest:
            raise ValueError(
                f"the input has {length} positions, max_length={longest}: keep the last {longest}"
            )
        # Compiled code cannot branch on values.
        can_look = attention_mask is not None and not torch.compiler.is_compiling()
        if can_look and not attention_mask[:, 0].all():
            raise ValueError("attention_mask starts with 0: pad sequences on the right")
        return self.encoder(inputs_embeds)


def _are_items(history: Any, num_items: int) -> bool:
    """Whether these are one or more numbers of items."""
    try:
        items = [index(item) for item in history]
    except TypeError:  # it is no list, or holds something else
        return False
    return bool(items) and all(1 <= item <= num_items for item in items)


def register(model: type[SequenceModel]) -> type[SequenceModel]:
    """Class decorator: lets transformers' Auto classes build the model from its config."""
    config = model.config_class
    AutoConfig.register(config.model_type, config)
    AutoModel.register(config, model)
    AutoModelForCausalLM.register(config, model)
    return model
