"""The carried teacher: a model in the summary, whose predictions are the labels.

The teacher's parameters are tensors of the summary, under their names in the model with `teacher.`
before them. Where they are stored in few bits, a matrix W has a scale s for each of its columns,
and the teacher computes with the rounded matrix

    W' = s · clamp(round(W / s), −n, n),   n = 2^(b−1) − 1,

so what labels is what is saved. Training passes the rounding straight through (Bengio et al., 2013,
arXiv 1308.3432): ∂W'/∂W = 1 inside the clamp; scales are learnt as in LSQ (Esser et al., 2020,
arXiv 1902.08153).
"""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooked
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

import farzi_hf.models  # noqa: F401
from farzi_hf.common.modules import copy_of
from farzi_hf.data import Vocabulary
from farzi_hf.summary.soft_tokens import SoftTokens, vocabulary_size
from farzi_hf.summary.store.budget import Budget, OverBudgetError
from farzi_hf.summary.store.tensor_file import TEACHER
from farzi_hf.summary.store.untrusted import NOT_SHOWN, Outline, outlined_learner

_SOURCE = "teacher (of config.json)"
_SCORES = 2**32
"""The most attention scores that reading one row takes, of at least 16 layers."""
_STATES = 10**5
"""The most positions that it takes, of all layers together."""
_BUFFERS = 2**25
"""The most numbers of a teacher that are not parameters, and so in no file."""
_HEADS = re.compile(r"heads$|n_head$")
"""The names of fields that say how many heads a model has."""
_LAYERS = re.compile(r"layers$|n_layer$")
"""The names of fields that say how many layers it has."""
_FEW = 16
"""Positions that a teacher reads where a whole row would take it too long."""
_BLOCK = 2**22
"""Numbers of a block of logits."""
_LARGE = 10.0
"""Logits of this size show a soft cap. The caps of transformers' models are 30 and more."""


def rounded(weight: Tensor, scale: Tensor, largest: int) -> Tensor:
    """W' of W (…, k), s (k,) and n, the largest whole number; differentiable in W and s: the
    rounding is passed straight through.
    """
    whole = (weight / scale).clamp(-largest, largest)
    return (whole + (whole.round() - whole).detach()) * scale


def plain_config(config: PreTrainedConfig) -> dict[str, Any]:
    """The config of a teacher as `FarziDataConfig.teacher` holds it: without infinite numbers,
    which JSON does not have.
    """
    left_out = NOT_SHOWN | {"dtype"}
    settings = {}
    for name, value in config.to_diff_dict().items():
        numbers = value if isinstance(value, list | tuple) else [value]
        if name not in left_out and math.inf not in numbers:
            settings[name] = value
    return {"model_type": config.model_type, **settings, "vocab_size": config.vocab_size}


def teacher_shapes(config: PreTrainedConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of the teacher's parameters, by their names in a summary with this config. Raises
    ValueError as `teacher_model`.
    """
    _, outline = _outlined(config)
    return {TEACHER + name: shape for name, shape in outline.shapes.items()}


@torch.inference_mode(False)  # tensors made in it are multiplied otherwise, and rounded otherwise
def teacher_model(
    config: PreTrainedConfig, tensors: Mapping[str, Tensor] | None = None
) -> PreTrainedModel:
    """The teacher of a summary with this config, without dropout.

    Raises ValueError if `config.teacher`, which may be a stranger's, describes no model within the
    limits of a learner.

    Args:
        tensors: of the summary; the teacher's become its parameters. Without them, its weights mean
            nothing.
    """
    settings, _ = _outlined(config)
    initialisation = _given_weights() if tensors else nullcontext()
    try:
        with torch.random.fork_rng(devices=[]), initialisation:
            model = AutoModelForCausalLM.from_config(settings, trust_remote_code=False)
    except Exception as error:  # each architecture fails in its own way
        raise ValueError(
            f"{_SOURCE} makes no {settings.model_type} ({type(error).__name__}: {error}); fetch the"
            " summary again"
        ) from error
    if tensors:
        for name, parameter in model.named_parameters():
            given = tensors[TEACHER + name]
            parameter.data = given.clone() if given.is_inference() else given
    return evaluating(model)


def _outlined(config: PreTrainedConfig) -> tuple[PreTrainedConfig, Outline]:
    """The config of the teacher itself, and an outline of it; within all limits."""
    settings, outline = outlined_learner(
        config.teacher, config, Vocabulary(), _SOURCE, "fetch the summary again"
    )
    heads = _most(settings, _HEADS)
    layers = _most(settings, _LAYERS)
    length = config.sequence_length
    scores = length**2 * heads * max(16, layers)
    states = length * layers
    if scores > _SCORES or states > _STATES:
        raise ValueError(
            f"{_SOURCE} has {layers} layers with {heads} heads, too many for"
            f" sequence_length={length:,}"
        )
    if outline.entries != config.vocab_size:
        raise ValueError(
            f"{_SOURCE} has {outline.entries} embeddings, but vocab_size={config.vocab_size}"
        )
    if outline.buffers > _BUFFERS:
        raise ValueError(
            f"{_SOURCE} has {outline.buffers:,} numbers beside its parameters, over {_BUFFERS:,};"
            " give another one"
        )
    return settings, outline


def _most(settings: PreTrainedConfig, name: re.Pattern[str]) -> int:
    """The largest of the fields with such a name: encoders and decoders have their own."""
    values = [value for field, value in vars(settings).items() if name.search(field)]
    numbers = [value for value in values if type(value) is int]  # no bool, which is an int as well
    return max(numbers, default=1)


@contextmanager
def _given_weights() -> Iterator[None]:
    """A context in which this thread's new models are not initialised, because their parameters are
    replaced. Some architectures compute their first numbers one at a time, in Python.
    """
    thread = threading.get_ident()

    def mark(module: nn.Module, name: str, part: nn.Module | None) -> None:
        if threading.get_ident() == thread and part is not None:
            part._is_hf_initialized = True  # transformers then leaves it as it is

    hook = hooked.register_module_module_registration_hook(mark)
    try:
        with _WithoutDraws():
            yield
    finally:
        hook.remove()


_TOLERANCE = 1e-5  # of the change at a token that is another one; causal models have 1e-7
_DRAWS = {torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default}


class _WithoutDraws(TorchDispatchMode):
    """A context in which tensors are not filled with random numbers."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Not to be skipped: for that, torch would import its compiler, which takes a second."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func in _DRAWS:
            return args[0]
        return func(*args, **(kwargs or {}))


def evaluating(model: PreTrainedModel) -> PreTrainedModel:
    """The model in evaluation mode, without the keys and values of past tokens, which only writing
    needs.
    """
    model.config.use_cache = False
    # RWKV would divide weights in place for an evaluation, against float16's limits.
    if hasattr(model.config, "rescale_every"):
        model.config.rescale_every = 0
    return model.eval()


@torch.no_grad()
def check_made_again(
    model: PreTrainedModel, again: PreTrainedModel, ids: Tensor, source: str, remedy: str
) -> None:
    """Raises ValueError unless `again`, which its config has made, has the parameters of the model,
    predicts the same after ids (b, ξ), and does not see the future.
    """
    different = _named_shapes(model) ^ _named_shapes(again)
    if different:
        names = sorted({name for name, _ in different})
        raise ValueError(
            f"{source}: its config makes other parameters ({', '.join(names[:3])}); {remedy}"
        )
    generator = torch.Generator().manual_seed(0)
    like = next(again.parameters())
    params = {}
    for name, x in model.named_parameters():
        # Where weights are zero, as some are at the start, nothing shows what is done with them.
        noise = torch.randn(x.shape, generator=generator).to(like)
        params[name] = x.to(like) + 0.1 * noise
    tensors = {TEACHER + name: x for name, x in params.items()}
    carried = CarriedTeacher(again)
    carried.check(tensors, ids, source, "give a smaller sequence_length, or another teacher")
    given = copy_of(model).to(like).eval()
    expected = torch.func.functional_call(given, params, kwargs=whole(model, ids)).logits
    logits = carried.labels(tensors, ids).logits()
    if not torch.allclose(logits, expected, rtol=1e-3, atol=1e-3):
        raise ValueError(
            f"{source}: a model with its config and parameters predicts otherwise; {remedy}"
        )
    if sees_the_future(lambda some: carried.labels(tensors, some).logits(), ids):
        raise ValueError(
            f"{source} sees the future, so its labels would tell the next token; {remedy} (of BERT:"
            " is_decoder=True in the config)"
        )


def sees_the_future(logits: Callable[[Tensor], Tensor], ids: Tensor) -> bool:
    """Whether logits (b, L, V) of ids (b, L), in float32 or more, depend on the last id at a position
    before it.
    """
    before = logits(ids)
    others = ids.clone()
    others[:, -1] = (ids[:, -1] + 1) % before.shape[-1]
    moved = (logits(others) - before).abs()
    return bool(moved[:, :-1].amax() > _TOLERANCE * moved[:, -1].amax())


def _named_shapes(model: PreTrainedModel) -> set[tuple[str, tuple[int, ...]]]:
    """The names and shapes of a model's parameters."""
    return {(name, tuple(x.shape)) for name, x in model.named_parameters()}


def no_padding(config: PreTrainedConfig) -> int:
    """An id that is not that of the padding. The embedding of the padding may be 0, and it may have
    no position of its own.
    """
    return int(getattr(config, "pad_token_id", None) == 0)


def whole(model: PreTrainedModel, inputs: Tensor, name: str = "input_ids") -> dict[str, Tensor]:
    """Arguments of a model for a batch without padding, (b, L) or (b, L, …). Without a mask,
    transformers would look at the ids for padding, and at the positions for several texts in a row.
    """
    mask = None
    if getattr(model, "needs_mask", True):
        mask = inputs.new_ones(inputs.shape[:2], dtype=torch.long)
    return {name: inputs, "attention_mask": mask}


class CarriedTeacher:
    """A teacher as a pure function of the summary's tensors.

    Args:
        model: in evaluation mode. Its own weights are not read.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        try:
            self.head = LinearHead.of(model)
        except Exception as error:  # each architecture fails in its own way
            raise ValueError(
                f"the teacher does not read one id ({type(error).__name__}: {error}); give a plain"
                " causal language model"
            ) from error

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Its parameters, by their names in a summary."""
        return {TEACHER + name: x.detach() for name, x in self.model.named_parameters()}

    @torch.no_grad()
    def check(
        self,
        tensors: Mapping[str, Tensor],
        ids: Tensor,
        source: str,
        remedy: str,
        budget: Budget | None = None,
    ) -> None:
        """Raises ValueError, with `source` and `remedy`, unless it labels the ids (b, ξ) with a
        finite number for each entry of the vocabulary.

        Args:
            budget: the context of this call. If it does not allow to read all ids, the teacher
                reads the first few.
        """
        try:
            ids, labels = self._labels_of_some(tensors, ids, budget)
            has_right_shape = labels.shape == (*ids.shape, vocabulary_size(self.model))
            is_right = has_right_shape and _are_finite(labels)
        except Exception as error:  # each architecture fails in its own way
            raise ValueError(
                f"{source} does not read {ids.shape[1]} ids ({type(error).__name__}: {error});"
                f" {remedy}"
            ) from error
        if not is_right:
            raise ValueError(
                f"{source} predicts NaN or infinity, or for another vocabulary; {remedy}"
            )

    def _labels_of_some(
        self, tensors: Mapping[str, Tensor], ids: Tensor, budget: Budget | None
    ) -> tuple[Tensor, SoftTokens]:
        """The ids and their labels; of the first few, if the budget does not allow more."""
        if budget is not None:
            try:
                with budget.share(budget.seconds / 2):
                    return ids, self.labels(tensors, ids)
            except OverBudgetError:
                ids = ids[:, :_FEW]
        return ids, self.labels(tensors, ids)

    def labels(self, tensors: Mapping[str, Tensor], ids: Tensor) -> SoftTokens:
        """What a student should predict after each of the ids (b, ξ): soft tokens (b, ξ, V).

        The last hidden states times the head are their factors.
        """
        params = {
            name.removeprefix(TEACHER): x for name, x in tensors.items() if name.startswith(TEACHER)
        }
        inputs = whole(self.model, ids)
        if self.head is None:
            logits = torch.func.functional_call(self.model, params, kwargs=inputs).logits
            return SoftTokens(logits, None)
        with self.head.left_out():
            states = torch.func.functional_call(self.model, params, kwargs=inputs).logits
        return SoftTokens(*self.head.factors(states, params))


def _are_finite(labels: SoftTokens) -> bool:
    """Whether all logits are finite numbers."""
    latents = labels.flat().latents
    decoder = labels.decoder
    if decoder is not None:
        # Cauchy-Schwarz: no logit exceeds the product of the lengths of its two factors.
        longest = latents.float().norm(dim=-1).amax() * decoder.float().norm(dim=0).amax()
        if longest <= torch.finfo(latents.dtype).max:
            return True
    blocks = latents.split(max(1, _BLOCK // labels.shape[-1]))
    return all(bool(torch.isfinite(SoftTokens(x, decoder).logits()).all()) for x in blocks)


@torch.no_grad()
def factors_of_rank(
    states: Tensor, weight: Tensor | None, rank: int | None
) -> tuple[Tensor, Tensor]:
    """Latents (n, e) and a decoder (e, V) of the labels softmax(states @ weight), with states (n,
    k) and weight (k, V).

    Args:
        weight: None if the states are logits, (n, V).
        rank: e. By default k, and labels stay as they are; of logits the smaller of n and V. With
            less, the closest logits of that rank are taken; dimensions to spare are 0.
    """
    if weight is None:
        one = torch.eye(min(states.shape)).to(states)
        if len(states) < states.shape[1]:
            weight = states
            states = one
        else:
            weight = one
    # The softmax does not see what all entries have in common.
    weight = weight - weight.mean(dim=1, keepdim=True)
    if rank is None or rank >= len(weight):
        spare = 0 if rank is None else rank - len(weight)
        return nn.functional.pad(states, (0, spare)), nn.functional.pad(weight, (0, 0, 0, spare))
    left, r = torch.linalg.qr(states.double())
    right, s = torch.linalg.qr(weight.T.double())
    u, values, v = torch.linalg.svd(r @ s.T, full_matrices=False)
    roots = values[:rank].sqrt()
    latents = left @ u[:, :rank] * roots
    decoder = (right @ v[:rank].T * roots).T
    return latents.to(states.dtype), decoder.to(weight.dtype)


# -- the head --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearHead:
    """Logits are states @ weightᵀ + bias, and nothing changes them afterwards.

    Args:
        module: of the model.
        weight: the name of its weight (V, k) among the model's parameters. The input embedding may
            share it.
        bias: the name of its bias (V,), or None.
        forward: of the module.
    """

    module: nn.Linear
    weight: str
    bias: str | None
    forward: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel) -> LinearHead | None:
        """The head of a model; None if the model scales, caps or shortens its logits, or has no
        linear head.
        """
        module = model.get_output_embeddings()
        if type(module) is not nn.Linear:
            return None
        names = parameter_names(model, module)
        head = cls(module, names["weight"], names.get("bias"), module.forward)
        return head if head._is_last(model) else None

    @property
    def width(self) -> int:
        """The numbers of a position that determine its logits: k, and a constant where there is a
        bias.
        """
        return self.module.in_features + (self.bias is not None)

    def arguments(self, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor | None]:
        """Weight and bias."""
        return params[self.weight], None if self.bias is None else params[self.bias]

    def factors(self, states: Tensor, params: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """The factors (…, k) and (k, V) of the logits of hidden states. A bias is one more
        dimension, whose state is 1.
        """
        return self.latents(states), self.decoder(params)

    def latents(self, states: Tensor) -> Tensor:
        """(…, k), the first of the factors."""
        if self.bias is None:
            return states
        return torch.cat([states, torch.ones_like(states[..., :1])], dim=-1)

    def decoder(self, params: Mapping[str, Tensor]) -> Tensor:
        """(k, V), the second one."""
        weight, bias = self.arguments(params)
        return weight.T if bias is None else torch.cat([weight, bias[:, None]], dim=1).T

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """In this context, the model returns its last hidden states in place of logits."""
        # An attribute of the object comes before the method of its class.
        self.module.forward = _identity
        try:
            yield
        finally:
            # The attribute stays, and is always the same object: compiled code asks whether this is
            # still what it was compiled for.
            self.module.forward = self.forward

    @torch.no_grad()
    def _is_last(self, model: PreTrainedModel) -> bool:
        """Whether logits are what this class says, also where they are large."""
        # One position: some models read no more.
        ids = torch.full((1, 1), no_padding(model.config), device=model.device)
        inputs = whole(model, ids)
        params = {name: parameter.detach() for name, parameter in model.named_parameters()}
        logits = torch.func.functional_call(model, params, kwargs=inputs).logits
        if not self._is_last_with(model, params, inputs, logits):
            return False
        factor = _LARGE / float(logits.abs().amax().clamp_min(1e-6))
        params = {**params, self.weight: params[self.weight] * factor}
        logits = torch.func.functional_call(model, params, kwargs=inputs).logits
        return self._is_last_with(model, params, inputs, logits)

    def _is_last_with(
        self,
        model: PreTrainedModel,
        params: Mapping[str, Tensor],
        inputs: Mapping[str, Tensor],
        logits: Tensor,
    ) -> bool:
        """Whether these logits are what this class says."""
        with self.left_out():
            states = torch.func.functional_call(model, params, kwargs=inputs).logits
        if states.shape != (*logits.shape[:-1], self.module.in_features):
            return False
        weight, bias = self.arguments(params)
        expected = nn.functional.linear(states, weight, bias)
        return torch.allclose(expected, logits, rtol=1e-4, atol=1e-4)


def _identity(states: Tensor) -> Tensor:
    return states


def parameter_names(model: PreTrainedModel, module: nn.Module) -> dict[str, str]:
    """The name in the model of each parameter of a module. Modules may share parameters, and then
    only one has its own name.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: names[id(parameter)] for name, parameter in module.named_parameters()}


def numbers_beside_tables(model: PreTrainedModel) -> int:
    """The numbers of a model that are in neither of its tables: the input embedding and the weight
    of the head.
    """
    tables = {
        id(module.weight)
        for module in (model.get_input_embeddings(), model.get_output_embeddings())
    }
    return sum(x.numel() for x in model.parameters() if id(x) not in tables)
