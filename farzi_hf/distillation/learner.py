"""A model as a pure function of its parameters: the soft loss on synthetic tokens and the hard loss on real ones.

Both losses call `shifted_cross_entropy`. The stock `Trainer` uses the same function (soft_training.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from farzi_hf.data.seeds import Purpose, check_seed, derive
from farzi_hf.distillation.learner_checks import (
    check_causal,
    check_model,
    check_twice_differentiable,
    readable_positions,
)
from farzi_hf.summary.soft_tokens import feed_soft_tokens, shifted_cross_entropy, train_padding_row, vocabulary_size

Parameters = dict[str, Tensor]
LearnerInit = Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel


class Learner:
    """Pure functions of a causal language model's parameters: the learner Φ_θ of the paper.

    Args:
        learner_init: makes fresh models. It is one of three things. A function without arguments is called for each model. A config
            stands for `AutoModelForCausalLM.from_config(config)`. A model gives its class and config, but not its weights; for a
            pretrained start, give `lambda: Model.from_pretrained(…)`.

    The model runs in evaluation mode: an adjoint may run an inner step twice, and both runs must give the same loss.
    The model uses "eager" attention, because fused attention kernels have no second derivative.

    Raises:
        TypeError: `learner_init` makes no `PreTrainedModel`.
        ValueError: the model is not causal (tried on a few tokens), starts with NaN or infinity, changes its own weights when
            it runs, or has no second derivative.
    """

    def __init__(self, learner_init: LearnerInit):
        self._factory = _factory(learner_init)
        self.model = self._new_model()
        check_model(self.model)
        self.model.register_forward_pre_hook(feed_soft_tokens, with_kwargs=True)
        train_padding_row(self.model)
        self.vocab_size = vocabulary_size(self.model)
        self._readable = 0
        check_causal(self.model, self._logits_of)
        check_twice_differentiable(self.model, self.soft_loss)

    def initial_parameters(self, seed: int, device: torch.device | str | None = None) -> Parameters:
        """θ_0: the weights that the factory draws under `seed`. They depend on nothing else."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_seed(seed))
            model = self._new_model()
        return {name: parameter.detach().to(device) for name, parameter in model.named_parameters()}

    def batch(self, size: int) -> LearnerBatch:
        """`size` learners at once."""
        return LearnerBatch(self, size)

    # One learner and several learners have the same interface: a start is drawn for each seed, and the starts are stacked.

    size = 1

    @property
    def single(self) -> Learner:
        """One of the learners that train together: this one."""
        return self

    def seeds(self, seed: int) -> list[int]:
        """The seeds of the learners that train together: one."""
        return [seed]

    def stack(self, parameters: Sequence[Parameters]) -> Parameters:
        """The parameters of all learners that train together, from the parameters of each."""
        (single,) = parameters
        return single

    def to(self, device: torch.device | str) -> Learner:
        """Moves the model's buffers. All parameter sets share these."""
        self.model.to(device)
        return self

    def soft_loss(self, params: Parameters, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """L_syn(θ): mean cross-entropy in nats.

        Args:
            inputs: soft tokens (b, ξ, V) or ids (b, ξ).
            labels: (b, ξ, V) or (b, ξ + 1, V); `labels[:, j + 1]` is what position j predicts. By default the inputs.
        """
        return self._loss(params, whole(inputs), inputs if labels is None else labels)

    def hard_loss(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """L_D(θ): mean cross-entropy in nats of a real batch: `input_ids`, `labels` and, where padded, `attention_mask`, (b, L)."""
        return self._loss(params, batch, batch["labels"])

    def logits(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """(b, L, V) logits of `input_ids`, ids (b, L) or soft tokens (b, L, V)."""
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask") if key in batch}
        return torch.func.functional_call(self.model, params, kwargs=inputs).logits

    def readable(self, length: int) -> int:
        """How many of `length` positions the model can read: all, unless its table of positions is shorter. In doubt, the model is run."""
        if length > self._readable:
            self._readable = readable_positions(self.model, length)
        return min(length, self._readable)

    def _logits_of(self, params: Parameters, ids: Tensor) -> Tensor:
        return self.logits(params, whole(ids))

    def _loss(self, params: Parameters, batch: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        loss, count = shifted_cross_entropy(self.logits(params, batch), labels)
        return loss / count

    def _new_model(self) -> PreTrainedModel:
        model = self._factory()
        if not isinstance(model, PreTrainedModel):
            raise TypeError(
                f"learner_init returned {type(model).__name__}; return a transformers PreTrainedModel, "
                "for instance AutoModelForCausalLM.from_config(config)"
            )
        model.set_attn_implementation("eager")
        model.config.use_cache = False  # only generation needs the keys and values of past tokens
        return model.eval()


class LearnerBatch:
    """K learners that train at once on the same tokens: a `Learner` whose parameters have an axis K in front.

    `torch.vmap` runs the learners together; learners with recurrent layers run one after the other. Under an inner optimizer
    that works elementwise, each learner trains as if it were alone.
    """

    def __init__(self, learner: Learner, size: int):
        self.single, self.size = learner, size
        self._recurrent = any(isinstance(module, nn.RNNBase) for module in learner.model.modules())

    def initial_parameters(self, seed: int, device: torch.device | str | None = None) -> Parameters:
        """K different θ_0, stacked (K, …). They depend on `seed` alone. The first equals the θ_0 of a single learner."""
        return self.stack([self.single.initial_parameters(seed, device) for seed in self.seeds(seed)])

    def seeds(self, seed: int) -> list[int]:
        """K seeds: `seed` itself, and K − 1 seeds derived from it."""
        return [seed, *(derive(seed, Purpose.LEARNER, k) for k in range(1, self.size))]

    def stack(self, parameters: Sequence[Parameters]) -> Parameters:
        """The parameters of K learners, stacked (K, …)."""
        return {name: torch.stack([params[name] for params in parameters]) for name in parameters[0]}

    def soft_loss(self, params: Parameters, inputs: Tensor, labels: Tensor | None = None) -> Tensor:
        """Σ_k L_syn(θ_k): the sum, so that the gradient in θ_k is that of its own loss."""
        return self._losses(params, whole(inputs), inputs if labels is None else labels).sum()

    def hard_loss(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean of the L_D(θ_k)."""
        return self._losses(params, batch, batch["labels"]).mean()

    def logits(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """(K, b, L, V)."""
        if self._recurrent:  # vmap has no rule for these layers
            one_by_one = [dict(zip(params, values, strict=True)) for values in zip(*params.values(), strict=True)]
            return torch.stack([self.single.logits(theta, batch) for theta in one_by_one])
        try:
            return torch.vmap(self.single.logits, in_dims=(0, None))(params, dict(batch))
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise RuntimeError(
                f"learners_per_step={self.size}: {type(self.single.model).__name__} does not run under torch.vmap ({error}); "
                f"use learners_per_step=1 and gradient_accumulation_steps={self.size}"
            ) from error

    def _losses(self, params: Parameters, batch: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        losses = [shifted_cross_entropy(logits, labels) for logits in self.logits(params, batch).unbind()]
        return torch.stack([loss / count for loss, count in losses])


def whole(inputs: Tensor) -> dict[str, Tensor]:
    """A batch without padding. Ids get a mask, or transformers would warn if one of them is the id of the padding."""
    if inputs.is_floating_point():
        return {"input_ids": inputs}
    return {"input_ids": inputs, "attention_mask": torch.ones_like(inputs)}


def _from_config(config: PreTrainedConfig) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_config(copy.deepcopy(config))  # from_config writes into its argument
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise ValueError(  # transformers' own message lists two hundred classes
            f"learner_init is a {type(config).__name__}, and transformers has no causal language model of model_type "
            f"{config.model_type!r}; give the config of one, for instance a GPT2Config"
        ) from None


def _factory(learner_init: LearnerInit) -> Callable[[], PreTrainedModel]:
    if isinstance(learner_init, PreTrainedConfig):
        return lambda: _from_config(learner_init)
    if isinstance(learner_init, PreTrainedModel):
        return lambda: type(learner_init)(copy.deepcopy(learner_init.config))
    if callable(learner_init):
        return learner_init
    raise TypeError(
        f"learner_init is {type(learner_init).__name__}; give a function that returns a new model, a model config, or a model"
    )
