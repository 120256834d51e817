"""A model as a pure function of its parameters: the soft loss on synthetic tokens and the hard loss on real ones.

Both losses go through `shifted_cross_entropy`, which is written once and also serves the stock `Trainer` (soft_training.py).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from farzi_hf.learner_checks import check_causal, check_model, check_twice_differentiable, readable_positions
from farzi_hf.seeds import Purpose, check_seed, derive

Parameters = dict[str, Tensor]
LearnerInit = Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel


def shifted_cross_entropy(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Summed next-token cross-entropy and the number of predicted tokens.

    Args:
        logits: (b, L, V); position j predicts token j + 1.
        labels: integer ids (b, L), where -100 is ignored, or soft tokens (b, L, V) that sum to one over V.

    Returns:
        The loss summed over tokens, in nats, and the token count, both scalars. Of soft labels q a token's loss is -Σ_v q_v log p_v.
    """
    if labels.is_floating_point():
        if labels.shape != logits.shape:
            raise ValueError(
                f"labels: soft tokens of shape {tuple(labels.shape)}, but the logits are {tuple(logits.shape)}; "
                "give the model the summary's vocabulary size (config.vocab_size) and batches of its sequence length"
            )
        labels = labels.to(logits.dtype)
        # The compiler fuses the plain formula, and cannot differentiate a Function twice.
        cross_entropy = _plain_soft_cross_entropy if torch.compiler.is_compiling() else _SoftCrossEntropy.apply
        return cross_entropy(logits, labels), logits.new_tensor(labels[:, 1:, 0].numel())
    targets = labels[:, 1:]
    loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum")
    return loss, (targets != -100).sum()


def _plain_soft_cross_entropy(z: Tensor, q: Tensor) -> Tensor:
    return -(q[:, 1:] * z[:, :-1].log_softmax(-1)).sum()


class _SoftCrossEntropy(torch.autograd.Function):
    """Σ_j [logsumexp(z_j) - q_{j+1}·z_j] of logits z and soft tokens q, both (b, L, V), twice differentiable.

    Keeps the probabilities p = softmax(z) and nothing else of that size; works through one sequence at a time, so that the
    passes over (L, V) stay in the processor's cache, and shifts by indexing, so that autograd never pads a slice with zeros.
    With s = dloss: dz_j = s (p_j - q_{j+1}), dq_{j+1} = -s z_j; the derivative of dz is `_SoftCrossEntropyGradient.backward`.
    """

    @staticmethod
    def forward(ctx, z: Tensor, q: Tensor) -> Tensor:
        p = torch.empty_like(z)
        loss = z.new_zeros(())
        for z_i, q_i, p_i in zip(z[:, :-1], q[:, 1:], p[:, :-1], strict=True):
            torch.softmax(z_i, -1, out=p_i)
            logsumexp = z_i.amax(-1) - p_i.amax(-1).log()
            loss += (logsumexp - torch.linalg.vecdot(q_i, z_i)).sum()
        ctx.save_for_backward(z, q, p)
        return loss

    @staticmethod
    def backward(ctx, dloss: Tensor) -> tuple[Tensor | None, Tensor | None]:
        z, q, p = ctx.saved_tensors
        dz = _SoftCrossEntropyGradient.apply(z, q, p, dloss) if ctx.needs_input_grad[0] else None
        dq = -dloss * F.pad(z[:, :-1], (0, 0, 1, 0)) if ctx.needs_input_grad[1] else None
        return dz, dq


class _SoftCrossEntropyGradient(torch.autograd.Function):
    """dz = dloss (p - q) as a function of z, q and dloss; p = softmax(z) is handed over to be reused, not differentiated."""

    @staticmethod
    def forward(ctx, z: Tensor, q: Tensor, p: Tensor, dloss: Tensor) -> Tensor:
        dz = torch.empty_like(p)
        dz[:, -1] = 0.0
        for dz_i, q_i, p_i in zip(dz[:, :-1], q[:, 1:], p[:, :-1], strict=True):
            torch.sub(p_i, q_i, out=dz_i).mul_(dloss)
        ctx.save_for_backward(q, p, dloss)
        return dz

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, u: Tensor) -> tuple[Tensor, Tensor | None, None, Tensor]:
        q, p, dloss = ctx.saved_tensors
        z_grad, ddloss = torch.empty_like(u), torch.zeros_like(dloss)
        q_grad = torch.empty_like(u) if ctx.needs_input_grad[1] else None
        z_grad[:, -1] = 0.0
        for i in range(len(u)):
            u_i, p_i = u[i, :-1], p[i, :-1]
            pu = torch.linalg.vecdot(p_i, u_i)
            torch.sub(u_i, pu[:, None], out=z_grad[i, :-1]).mul_(p_i).mul_(dloss)
            ddloss += pu.sum() - torch.linalg.vecdot(q[i, 1:], u_i).sum()
            if q_grad is not None:
                q_grad[i, 0] = 0.0
                torch.mul(u_i, -dloss, out=q_grad[i, 1:])
        return z_grad, q_grad, None, ddloss


def embed_soft_tokens(model: PreTrainedModel, tokens: Tensor) -> Tensor:
    """(b, L, V) probabilities → (b, L, h): the mean input embedding under each distribution.

    The embedding module is called on all ids, so that a module that scales its output (Gemma) is respected.
    """
    embedding = model.get_input_embeddings()
    table = embedding(torch.arange(tokens.shape[-1], device=tokens.device))
    return tokens.to(table.dtype) @ table


def feed_soft_tokens(model: PreTrainedModel, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """Forward pre-hook (`with_kwargs=True`): floating-point `input_ids` (b, L, V) reach the model as `inputs_embeds`."""
    soft = kwargs.get("input_ids", args[0] if args else None)
    if not (isinstance(soft, Tensor) and soft.is_floating_point()):
        return args, kwargs
    entries = vocabulary_size(model)
    if soft.shape[-1] != entries:
        raise ValueError(
            f"input_ids holds soft tokens over {soft.shape[-1]} entries, but the model's vocabulary has {entries}; "
            "build the model with vocab_size=farzi.config.vocab_size"
        )
    # Autocast would round the product to half precision, and a one-hot token would no longer be exactly its id.
    with torch.autocast(soft.device.type, enabled=False):
        embeds = embed_soft_tokens(model, soft)
    # shift_labels is there for Trainer to count; a model without **kwargs would stumble over it.
    kept = {key: value for key, value in kwargs.items() if key not in ("input_ids", "shift_labels")}
    return (None, *args[1:]) if args else (), {**kept, "inputs_embeds": embeds}


def train_padding_row(model: PreTrainedModel) -> None:
    """Lets a tied embedding's padding row have the gradient that it gets at the input, which torch drops.

    The head trains that row in any case; the derivative of a training would miss how the input depends on it.
    """
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if head is not None and head.weight is embedding.weight:
        embedding.padding_idx = None


def vocabulary_size(model: PreTrainedModel) -> int:
    """V: the entries of the model's input embedding."""
    return model.get_input_embeddings().weight.shape[0]


class Learner:
    """Pure functions of a causal language model's parameters: the learner Φ_θ of the paper.

    Args:
        learner_init: what makes fresh models. A factory without arguments is called each time; a config stands for
            `AutoModelForCausalLM.from_config(config)`; of a model only the class and config are used, its weights are not
            (for a pretrained start give `lambda: Model.from_pretrained(…)`).

    The model runs in evaluation mode (an inner loop that is replayed needs a loss without hidden randomness), with "eager"
    attention: fused attention kernels have no second derivative.

    Raises:
        TypeError: what makes no `PreTrainedModel`.
        ValueError: the model is no causal one (tried on a few tokens), starts with NaN or infinity, changes its own weights when
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
        """θ_0, a function of `seed` alone: what the factory draws under that seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(check_seed(seed))
            model = self._new_model()
        return {name: parameter.detach().to(device) for name, parameter in model.named_parameters()}

    def batch(self, size: int) -> LearnerBatch:
        """`size` learners at once."""
        return LearnerBatch(self, size)

    # A learner alone and several at once are started in the same way: a draw for each seed, stacked.

    size = 1

    def seeds(self, seed: int) -> list[int]:
        """The seeds of the learners that train together: one."""
        return [seed]

    def stack(self, parameters: Sequence[Parameters]) -> Parameters:
        """The parameters of the learners that train together, given each one's."""
        (single,) = parameters
        return single

    def to(self, device: torch.device | str) -> Learner:
        """Moves the model's buffers, which all parameter sets share."""
        self.model.to(device)
        return self

    def soft_loss(self, params: Parameters, tokens: Tensor) -> Tensor:
        """L_syn(θ): mean cross-entropy in nats of soft tokens (b, ξ, V), which are both the input and the target."""
        return self._loss(params, {"input_ids": tokens}, tokens)

    def hard_loss(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """L_D(θ): mean cross-entropy in nats of a real batch: `input_ids`, `labels` and, where padded, `attention_mask`, (b, L)."""
        return self._loss(params, batch, batch["labels"])

    def logits(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """(b, L, V) logits of `input_ids`, ids (b, L) or soft tokens (b, L, V)."""
        inputs = {key: batch[key] for key in ("input_ids", "attention_mask") if key in batch}
        return torch.func.functional_call(self.model, params, kwargs=inputs).logits

    def readable(self, length: int) -> int:
        """How many of `length` positions the model reads: all, unless its table of positions ends before. Tried where in doubt."""
        if length > self._readable:
            self._readable = readable_positions(self.model, length)
        return min(length, self._readable)

    def _logits_of(self, params: Parameters, ids: Tensor) -> Tensor:
        """Of ids without padding: with a mask, or transformers warns where one of them is that of the padding."""
        return self.logits(params, {"input_ids": ids, "attention_mask": torch.ones_like(ids)})

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
        model.config.use_cache = False  # keys and values of past tokens are for generation only
        return model.eval()


class LearnerBatch:
    """K learners that train at once on the same tokens: a `Learner` whose parameters have an axis K in front.

    Through `torch.vmap`, except that learners with recurrent layers run one after the other. An inner optimizer that works
    elementwise trains each as if it were alone.
    """

    def __init__(self, learner: Learner, size: int):
        self.learner, self.size = learner, size
        self._recurrent = any(isinstance(module, nn.RNNBase) for module in learner.model.modules())

    def initial_parameters(self, seed: int, device: torch.device | str | None = None) -> Parameters:
        """(K, …) of K different θ_0, functions of `seed` alone; the first is that of a single learner."""
        return self.stack([self.learner.initial_parameters(seed, device) for seed in self.seeds(seed)])

    def seeds(self, seed: int) -> list[int]:
        """K seeds that are functions of `seed`, which is the first of them."""
        return [seed, *(derive(seed, Purpose.LEARNER, k) for k in range(1, self.size))]

    def stack(self, parameters: Sequence[Parameters]) -> Parameters:
        """(K, …) of K learners' parameters."""
        return {name: torch.stack([params[name] for params in parameters]) for name in parameters[0]}

    def soft_loss(self, params: Parameters, tokens: Tensor) -> Tensor:
        """Σ_k L_syn(θ_k): the sum, so that the gradient in θ_k is that of its own loss."""
        return self._losses(params, {"input_ids": tokens}, tokens).sum()

    def hard_loss(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """Mean of the L_D(θ_k)."""
        return self._losses(params, batch, batch["labels"]).mean()

    def logits(self, params: Parameters, batch: Mapping[str, Tensor]) -> Tensor:
        """(K, b, L, V)."""
        if self._recurrent:  # vmap has no rule for these layers
            one_by_one = [dict(zip(params, values, strict=True)) for values in zip(*params.values(), strict=True)]
            return torch.stack([self.learner.logits(theta, batch) for theta in one_by_one])
        try:
            return torch.vmap(self.learner.logits, in_dims=(0, None))(params, dict(batch))
        except RuntimeError as error:
            if "vmap" not in str(error):
                raise
            raise RuntimeError(
                f"learners_per_step={self.size}: {type(self.learner.model).__name__} does not run under torch.vmap ({error}); "
                f"use learners_per_step=1 and gradient_accumulation_steps={self.size}"
            ) from error

    def _losses(self, params: Parameters, batch: Mapping[str, Tensor], labels: Tensor) -> Tensor:
        losses = [shifted_cross_entropy(logits, labels) for logits in self.logits(params, batch).unbind()]
        return torch.stack([loss / count for loss, count in losses])


def _from_config(config: PreTrainedConfig) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_config(copy.deepcopy(config))  # it writes into the config that it is given
    except ValueError as error:
        if "Unrecognized configuration class" not in str(error):
            raise
        raise ValueError(  # the original lists two hundred classes
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
