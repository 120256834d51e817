"""A model as a pure function of its parameters: the soft loss on synthetic tokens and the hard loss
on real ones.

Both losses go from the model's last hidden states to a number without logits in between
(`farzi_hf.summary.vocabulary_sums`).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel, Trainer

from farzi_hf.data import IGNORED
from farzi_hf.data.seeds import check_seed, seeded
from farzi_hf.distillation import learner_model as models
from farzi_hf.distillation.layer_checkpoint import keep_inputs_of_layers
from farzi_hf.distillation.learner_model import LearnerInit, Parameters
from farzi_hf.engine.devices import portions, values_are_free
from farzi_hf.models.base import PADDING
from farzi_hf.summary.soft_tokens import (
    HardTargets,
    SoftTokens,
    Targets,
    feed_soft_tokens,
    train_padding_row,
    vocabulary_size,
)
from farzi_hf.summary.teacher import LinearHead, evaluating, parameter_names, whole
from farzi_hf.summary.vocabulary_sums import FEWEST, linear_cross_entropy, mean_embedding
from farzi_hf.tasks.ranks import are_last, candidates


class Learner:
    """Pure functions of a causal language model's parameters: the learner Φ_θ of the paper.

    Args:
        learner_init: makes fresh models. It is one of three things. A function without arguments is
            called for each model. A config stands for `AutoModelForCausalLM.from_config(config)`. A
            model gives its class and config, but not its weights; for a pretrained start, give
            `lambda: Model.from_pretrained(…)`.

    Only parameters with `requires_grad` train, in the inner loop as in teachers and students. The
    others are constants, which all learners share in memory where they start equal. So a large
    model can train a few of its parameters, or adapters (LoRA):

        def all_of_it():
            return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)

        def only_adapters_of_it():
            return get_peft_model(all_of_it(), LoraConfig(task_type="CAUSAL_LM", r=8))

    A folder may hold weights in half precision, so give `dtype`: what trains must be float32 or
    float64, also under bf16 autocast. The function reads the folder again for each learner.

    With `checkpoint_layers`, the model keeps of each layer only the inputs, and computes it again
    for the first and for the second derivative (`farzi_hf.distillation.layer_checkpoint`): less
    memory for a deep learner, more time.

    The model runs in evaluation mode: a summary's labels are soft, and an adjoint may run an inner
    step twice. Only where it trains on real data is there the model's own dropout, see `hard_loss`.
    The model uses "eager" attention, because fused attention kernels have no second derivative.

    It may be made under `torch.no_grad()` or `torch.inference_mode()`: both are off while it is
    made and tried.

    Raises:
        TypeError: `learner_init` makes no `PreTrainedModel`.
        ValueError: the model is not causal (tried on a few tokens), has no second derivative, has
            nothing to train, or would train in half precision.
    """

    @torch.inference_mode(False)
    @torch.enable_grad()
    def __init__(self, learner_init: LearnerInit, *, checkpoint_layers: bool = False):
        self._factory = models.factory(learner_init)
        self.model = self._new_model()
        models.check_model(self.model)
        if checkpoint_layers:
            keep_inputs_of_layers(self.model)
        self.model.register_forward_pre_hook(feed_soft_tokens, with_kwargs=True)
        train_padding_row(self.model)
        self.vocab_size = vocabulary_size(self.model)
        self._embedding_names = parameter_names(self.model, self.model.get_input_embeddings())
        self._readable = 0
        models.check_causal(
            self.model, lambda params, ids: self.logits(params, whole(self.model, ids))
        )
        self.head = LinearHead.of(self.model)
        """None if the logits are another function of the last hidden states than a linear one."""

        def loss(params: Parameters, embedded: Tensor) -> Tensor:
            states = self.states(params, {"inputs_embeds": embedded}).flatten(0, 1)
            return self.loss_of_states(
                params, states, HardTargets(states.new_zeros(len(states), dtype=torch.long))
            )

        models.check_twice_differentiable(self.model, loss)

    @torch.inference_mode(False)
    def initial_parameters(self, seed: int, device: torch.device | str | None = None) -> Parameters:
        """θ_0: the weights that the factory draws under `seed`. They depend on nothing else.

        Parameters that do not train are `nn.Parameter`s without `requires_grad`: `unroll` takes
        these as constants.
        """
        with seeded(check_seed(seed)):
            model = self._new_model()
        params = {name: x.detach().to(device) for name, x in model.named_parameters()}
        for name, x in model.named_parameters():
            if x.requires_grad:
                continue
            constant = self.model.get_parameter(name)
            drawn = params[name]
            is_same = constant.device == drawn.device and torch.equal(constant, drawn)
            # Learners share the memory of constants that start equal.
            params[name] = constant if is_same else nn.Parameter(drawn, False)
        return params

    def without_shared(self, params: Parameters) -> Parameters:
        """The parameters without the constants that all learners share: what a file has to hold."""
        of_model = dict(self.model.named_parameters())
        return {name: x for name, x in params.items() if x is not of_model[name]}

    def with_shared(self, params: Parameters) -> Parameters:
        """The inverse of `without_shared`, for parameters that were read from a file."""
        whole_set: Parameters = {}
        for name, shared in self.model.named_parameters():
            if name not in params:
                whole_set[name] = shared
            elif shared.requires_grad:
                whole_set[name] = params[name]
            else:
                whole_set[name] = nn.Parameter(params[name], False)
        return whole_set

    @cached_property
    def lookup(self) -> str | None:
        """The name of the input embedding, if a loss depends on no other rows of it than those of
        the ids; None otherwise.
        """
        name = self._embedding_names.get("weight")

        def loss(params: Parameters, ids: Tensor) -> Tensor:
            return self.hard_loss(params, {**whole(self.model, ids), "labels": ids})

        return name if name is not None and models.looks_up_only(self.model, name, loss) else None

    @cached_property
    def draws_weights(self) -> bool:
        """Whether its models begin with weights that they draw: those of a pretrained model are the
        same under every seed.
        """
        name = self._embedding_names["weight"]
        one = self.initial_parameters(0)[name]
        other = self.initial_parameters(1)[name]
        return not torch.equal(one, other)

    @cached_property
    def no_decay(self) -> tuple[str, ...]:
        """The parameters that the stock Trainer does not decay: biases and norms."""
        decaying = set(Trainer.get_decay_parameter_names(None, self.model))
        return tuple(name for name, _ in self.model.named_parameters() if name not in decaying)

    def to(self, device: torch.device | str) -> Learner:
        """Moves the model's buffers. All parameter sets share these."""
        self.model.to(device)
        return self

    def soft_loss(
        self, params: Parameters, inputs: Tensor | SoftTokens, targets: SoftTokens | None = None
    ) -> Tensor:
        """L_syn(θ): mean cross-entropy in nats.

        Args:
            inputs: soft tokens (b, ξ, V) or ids (b, ξ).
            targets: (b, n, V), what the first n positions predict, n ≤ ξ. By default the soft
                inputs, each predicted by the position before.
        """
        targets = inputs.following() if targets is None else targets
        positions = targets.shape[1]
        states = self.states(params, self.arguments(params, inputs))[:, :positions]
        return self.loss_of_states(params, states.flatten(0, 1), targets.flat())

    def hard_loss(
        self,
        params: Parameters,
        batch: Mapping[str, Any],
        weights: Tensor | None = None,
        dropout: int | None = None,
        widths: Tensor | None = None,
    ) -> Tensor:
        """L_D(θ): mean cross-entropy in nats of a real batch: `input_ids`, `labels` and, where
        padded, `attention_mask`, (b, L); with `targets` (`Targets`), these n in the place of the
        labels of the n entries that are predicted.

        Args:
            weights: (b,), how much each sequence counts, or (b, L), each token that is predicted;
                the sum over positions is still divided by their number. None stands for 1.
            dropout: the seed of the masks, with the probabilities of the model's config; None drops
                nothing.
            widths: (b,), of how many dimensions of its states the head reads each sequence; None
                stands for all. It needs a linear head.
        """
        with nullcontext() if dropout is None else models.dropping(self.model, dropout):
            states = self.states_of(params, batch)
        if widths is not None:
            numbers = torch.arange(states.shape[-1], device=states.device)
            is_read = numbers < widths.to(states.device)[:, None]  # (b, k)
            states = states * is_read[:, None]
        states = states[:, :-1]
        labels = batch["labels"][:, 1:]
        counted = labels != IGNORED
        if weights is not None:
            weights = weights[:, None].expand_as(counted) if weights.dim() == 1 else weights[:, 1:]
        given = batch.get("targets")
        # All positions: no shape may depend on the number of those that count. Targets that were
        # made for those that count are as many, on any device.
        if given is None and not values_are_free(counted):
            counts = (counted if weights is None else counted * weights).flatten()
            targets = HardTargets(labels.clamp(min=0).flatten())
            loss = self.loss_of_states(params, states.flatten(0, 1), targets, counts)
            return loss * counted.numel() / counted.sum()  # a quotient of integers would be float32
        counts = None if weights is None else weights[counted]
        targets = HardTargets(labels[counted]) if given is None else given
        return self.loss_of_states(params, states[counted], targets, counts)

    @torch.no_grad()
    def mean_log_rank(
        self, params: Parameters, batch: Mapping[str, Tensor], last: int = 1
    ) -> Tensor:
        """The mean of ln r over the last items of the rows of a real batch, where an item is the
        r-th of all that its user has not had (`seen`, and the row). Those as likely come before it.

        Args:
            last: how many items of a row are ranked, at most. The first one never is.
        """
        labels = batch["labels"]
        is_ranked = are_last(labels, last)
        had = torch.cat([batch["seen"], labels], dim=1) if "seen" in batch else labels
        states = self.states_of(params, batch)[:, :-1][is_ranked[:, 1:]]
        targets = labels[is_ranked]
        had = had[is_ranked.nonzero()[:, 0]]
        weight, bias = (None, None) if self.head is None else self.head.arguments(params)
        size = max(FEWEST, portions(states).block // self.vocab_size)
        ranks = []
        for h, y, seen in zip(*(x.split(size) for x in (states, targets, had)), strict=True):
            z = h if weight is None else nn.functional.linear(h, weight, bias)
            is_other = candidates(z, seen).scatter_(1, y[:, None], False)
            is_other[:, PADDING] = False
            is_before = ~(z < z.gather(1, y[:, None]))  # NaN is not less
            ranks.append(1 + (is_before & is_other).sum(1))
        return torch.cat(ranks).to(states.dtype).log().mean()

    def loss_of_states(
        self, params: Parameters, states: Tensor, targets: Targets, counts: Tensor | None = None
    ) -> Tensor:
        """The mean cross-entropy in nats of n positions, from their last hidden states (n, k); with
        counts (n,), of their products.
        """
        weight, bias = (None, None) if self.head is None else self.head.arguments(params)
        entries = (states if weight is None else weight.T).shape[-1]
        if entries != self.vocab_size:
            raise ValueError(
                f"learner_init: a model of {self.vocab_size} embeddings and {entries} logits"
            )
        return linear_cross_entropy(states, weight, bias, targets, counts) / len(targets)

    def states(self, params: Parameters, arguments: Mapping[str, Tensor]) -> Tensor:
        """(b, L, k), the inputs of the head; the logits (b, L, V) where there is no linear one. The
        arguments are those of the model.
        """
        with nullcontext() if self.head is None else self.head.left_out():
            return torch.func.functional_call(self.model, params, kwargs=dict(arguments)).logits

    def states_of(self, params: Parameters, batch: Mapping[str, Any]) -> Tensor:
        """The same of a real batch."""
        return self.states(params, _arguments(batch))

    def arguments(self, params: Parameters, inputs: Tensor | SoftTokens) -> dict[str, Tensor]:
        """What the model takes in place of ids (b, L) or soft tokens (b, L, V)."""
        if not isinstance(inputs, SoftTokens):
            return whole(self.model, inputs)
        return whole(self.model, mean_embedding(inputs, self.embeddings(params)), "inputs_embeds")

    def embeddings(self, params: Parameters) -> Tensor:
        """(V, h): what the input embedding makes of all ids. The module itself runs, because some
        modules scale their output.
        """
        module = self.model.get_input_embeddings()
        its_params = {name: params[full] for name, full in self._embedding_names.items()}
        ids = torch.arange(self.vocab_size, device=module.weight.device)
        return torch.func.functional_call(module, its_params, (ids,))

    def logits(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """(b, L, V) logits of `input_ids`, ids (b, L) or soft tokens (b, L, V)."""
        return torch.func.functional_call(self.model, params, kwargs=_arguments(batch)).logits

    def readable(self, length: int) -> int:
        """How many of `length` positions the model can read: all, unless its table of positions is
        shorter. In doubt, the model is run.
        """
        if length > self._readable:
            self._readable = models.readable_positions(self.model, length)
        return min(length, self._readable)

    def _new_model(self) -> PreTrainedModel:
        model = self._factory()
        if hasattr(model, "get_base_model"):  # with PEFT's adapters, without its class around them
            model = model.get_base_model()
        if not isinstance(model, PreTrainedModel):
            raise TypeError(
                f"learner_init returned {type(model).__name__}; return a PreTrainedModel of"
                " transformers"
            )
        model.set_attn_implementation("eager")
        return evaluating(model)


def is_constant(parameter: Tensor) -> bool:
    """Whether a parameter does not train."""
    return isinstance(parameter, nn.Parameter) and not parameter.requires_grad


def leaves(params: Parameters) -> Parameters:
    """The same parameters to differentiate in: those that train are leaves of a new graph."""
    return {
        name: x if is_constant(x) else x.detach().requires_grad_() for name, x in params.items()
    }


def _arguments(batch: Mapping[str, Any]) -> dict[str, Tensor]:
    return {key: batch[key] for key in ("input_ids", "attention_mask") if key in batch}
