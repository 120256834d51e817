"""A learner's model: what it is made from, checks that it can be a learner, and its head.

The checks run the model on a few tokens, so that no run ends later with an unclear error or a wrong
figure.
"""

import copy
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from farzi_hf.common.modules import copy_of
from farzi_hf.common.text import reason
from farzi_hf.data.seeds import seeded
from farzi_hf.summary.teacher import no_padding

Parameters = dict[str, Tensor]
"""A model's parameters, by name."""

LearnerInit = Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel

_TOKENS = 4
# The check changes a token and looks at the logits before it. The unit here is the change of the
# logits at that token. In a causal model, the earlier logits do not change at all; where tokens are
# routed to experts, rounding changes them by 1e-7. In a model that sees the future, with its
# initial weights, they change by 1e-3.
_TOLERANCE = 1e-5
_RESERVED = 8  # RoBERTa does not use its first positions: they end at the number of the padding id


def factory(learner_init: LearnerInit) -> Callable[[], PreTrainedModel]:
    """A function that makes fresh models."""
    if isinstance(learner_init, PreTrainedConfig):
        return lambda: _from_config(learner_init)
    if isinstance(learner_init, PreTrainedModel):
        return lambda: type(learner_init)(copy.deepcopy(learner_init.config))
    if callable(learner_init) and not isinstance(learner_init, nn.Module):
        return learner_init
    raise TypeError(
        f"learner_init is {type(learner_init).__name__}; give a function, a config, or a model"
    )


def _from_config(config: PreTrainedConfig) -> PreTrainedModel:
    config = copy.deepcopy(config)  # it is written into
    try:
        return AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    except ValueError as error:  # transformers lists two hundred classes that it could take
        raise ValueError(
            f"learner_init={type(config).__name__} makes no causal model: {reason(error)}"
        ) from None


@contextmanager
def dropping(module: nn.Module, seed: int) -> Iterator[None]:
    """Inside, the module is in training mode and draws by `seed`. The caller's random numbers stay
    as they were.
    """
    before = module.training
    with seeded(seed):
        module.train()
        try:
            yield
        finally:
            module.train(before)


# -- checks ----------------------------------------------------------------------------------------


def describe(model: PreTrainedModel) -> str:
    """The model's class and model_type, for an error message."""
    return f"{type(model).__name__} (model_type {model.config.model_type!r})"


def check_model(model: PreTrainedModel) -> None:
    """Raise one clear ValueError unless some parameters train, those in full precision, and all can
    be differentiated.
    """
    for name, parameter in model.named_parameters():
        if parameter.is_inference():
            raise ValueError(
                f"learner_init returned a model whose {name} was made under torch.inference_mode(),"
                " so it has no derivative; make the model outside of it"
            )
        if parameter.requires_grad and parameter.dtype in (torch.bfloat16, torch.float16):
            raise ValueError(
                f"learner_init returned a model whose {name} trains in {parameter.dtype}; load it"
                " with dtype=torch.float32, and set bf16=True"
            )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(
            f"learner_init returned a {describe(model)} with nothing to train; set"
            " requires_grad=True"
        )


def check_causal(model: PreTrainedModel, logits: Callable[[Parameters, Tensor], Tensor]) -> None:
    """Raise one clear ValueError if the logits (b, L, V) of parameters and ids (b, L) depend on a
    later token at some position.
    """
    size = model.get_input_embeddings().weight.shape[0]
    length = few_positions(model)
    generator = torch.Generator().manual_seed(0)
    same = torch.randint(size, (length,), generator=generator).expand(length, length)
    others = (same + torch.randint(1, max(size, 2), same.shape, generator=generator)) % size
    # Row j has other tokens after position j.
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    moved = _run(model, logits, torch.where(later, others, same)) - _run(model, logits, same)
    moved = moved.abs().amax(-1).cpu()
    if length > 1 and (moved[~later] > _TOLERANCE * moved[later].amax()).any():
        raise ValueError(
            f"learner_init returned a {describe(model)}, which sees the future; give a causal model"
            " (for BERT: is_decoder=True in the config)"
        )


def check_twice_differentiable(
    model: PreTrainedModel, loss: Callable[[Parameters, Tensor], Tensor]
) -> None:
    """Raise one clear ValueError unless the loss has second derivatives.

    The check takes derivatives of the loss, of parameters and embedded tokens (b, L, h), in the
    tokens only. These pass through every operation of the model, and derivatives in all weights
    would need as much memory as the model.
    """
    embedding = model.get_input_embeddings().weight
    embedded = (
        embedding.detach()[:1].expand(few_positions(model), -1)[None].clone().requires_grad_()
    )
    try:
        (first,) = torch.autograd.grad(loss(_weights(model), embedded), embedded, create_graph=True)
        # grad(…, embedded) would ignore operations without a derivative and raise no error
        first.square().sum().backward()
    except Exception as error:  # each model fails in its own way
        raise ValueError(
            f"learner_init returned a {describe(model)}, whose loss has no second derivative"
            f" ({reason(error)}); give another model"
        ) from error


@torch.inference_mode(False)
@torch.enable_grad()
def looks_up_only(
    model: PreTrainedModel, name: str, loss: Callable[[Parameters, Tensor], Tensor]
) -> bool:
    """Whether a loss of parameters and ids (b, L) depends on no other rows of the embedding `name`
    (V, h) than those of the ids. Tried with the first ids and with the last.
    """
    generator = torch.Generator().manual_seed(0)
    length = few_positions(model)
    # While weights are zero, as they start in some models, another use of the embedding may not
    # show.
    moved = {
        name: x + 0.1 * torch.randn(x.shape, generator=generator).to(x)
        for name, x in _weights(model).items()
    }
    for params in (_weights(model), moved):
        table = params[name].clone().requires_grad_()
        if len(table) <= 2 * length:
            return False
        for ids in (torch.arange(length), torch.arange(len(table) - length, len(table))):
            ids = ids[None].to(table.device)
            with seeded():  # a model may draw random numbers
                value = loss({**params, name: table}, ids)
            (g,) = torch.autograd.grad(value, table, allow_unused=True)
            if g is None or g.index_fill(0, ids[0], 0.0).any():
                return False
    return True


def readable_positions(model: PreTrainedModel, length: int) -> int:
    """How many of `length` positions the model reads. If the length is near the config's limit or
    above it, the model is run.
    """
    limit = _position_limit(model)
    if limit is not None and length <= limit - _RESERVED:
        return length
    # After an index beyond a table, the process could not use its GPU again.
    if model.device.type != "cpu":
        model = copy_of(model).cpu()

    def fails(positions: int) -> bool:
        ids = torch.full((1, positions), no_padding(model.config))
        try:
            with torch.no_grad():
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
        except Exception:  # each model fails in its own way
            return True
        return False

    return length if not fails(length) else bisect_left(range(1, length + 1), True, key=fails)


def _position_limit(model: PreTrainedModel) -> int | None:
    """The number of positions that the config names, or None. A model may read a few more or a few
    less.
    """
    names = ("max_position_embeddings", "max_length", "max_seq_len")
    limits = (getattr(model.config, name, None) for name in names)
    # XLNet says −1.
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def few_positions(model: PreTrainedModel) -> int:
    """The number of tokens for a short run of the model."""
    return min(_TOKENS, _position_limit(model) or _TOKENS)


def _weights(model: PreTrainedModel) -> Parameters:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


@torch.no_grad()
def _run(model: PreTrainedModel, logits: Callable, ids: Tensor) -> Tensor:
    try:
        with seeded():  # a model with random numbers must draw the same ones in each run
            return logits(_weights(model), ids.to(model.device))
    except Exception as error:  # each model fails in its own way
        raise ValueError(
            f"learner_init returned a {describe(model)}, which does not run on ids alone"
            f" ({reason(error)}); give a causal model"
        ) from error
