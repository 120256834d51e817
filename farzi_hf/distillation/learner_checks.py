"""What a model has to be, to be a learner: tried on a few tokens when it is made, so that no run ends with a bare error or a false figure."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Callable

import torch
from torch import Tensor
from transformers import PreTrainedModel

Parameters = dict[str, Tensor]

_TOKENS = 4
# Of causal models, earlier logits stay as they are to the last bit; where tokens are routed to experts, up to rounding (1e-7 of
# what the changed token's own logits move by). Models that see the future move them by 1e-3 of it, with weights as they start.
_TOLERANCE = 1e-5
_RESERVED = 8  # RoBERTa keeps its first positions, up to that of the padding's id, to itself


def describe(model: PreTrainedModel) -> str:
    """The model for an error: its class and model_type."""
    return f"{type(model).__name__} (model_type {model.config.model_type!r})"


def check_model(model: PreTrainedModel) -> None:
    """Raise one clear ValueError unless the model is a decoder alone and all its parameters are finite."""
    if model.config.is_encoder_decoder:
        raise ValueError(
            f"learner_init returned a {describe(model)}, an encoder with a decoder; give a causal language model"
        )
    for name, parameter in model.named_parameters():
        if not torch.isfinite(parameter).all():
            raise ValueError(
                f"learner_init returned a model whose {name} holds NaN or infinity; give one that starts finite"
            )


def check_causal(model: PreTrainedModel, logits: Callable[[Parameters, Tensor], Tensor]) -> None:
    """Raise one clear ValueError if the logits at some position depend on a later token, or running the model changes it.

    Args:
        logits: of parameters and ids (b, L), (b, L, V).
    """
    size, length = model.get_input_embeddings().weight.shape[0], _length(model)
    generator = torch.Generator().manual_seed(0)
    same = torch.randint(size, (length,), generator=generator).expand(length, length)
    others = (same + torch.randint(1, max(size, 2), same.shape, generator=generator)) % size
    # Row j has other tokens after position j; the last row has another first token.
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    changed = torch.where(later, others, same)
    changed[-1, 0] = others[-1, 0]
    # Where weights start at zero, tokens may not reach one another yet: random ones decide.
    for params in (_weights(model), _random_weights(model, generator)):
        moved = (_run(model, logits, params, changed) - _run(model, logits, params, same)).abs().amax(-1).cpu()
        own = moved[later].amax() if length > 1 else 0.0
        if (moved[:-1][~later[:-1]] > _TOLERANCE * own).any():
            raise ValueError(
                f"learner_init returned a {describe(model)}, which sees the future: its logits depend on later tokens; give a "
                "causal language model (of BERT and its relatives: is_decoder=True in the config)"
            )
        if (moved[-1, 1:] > _TOLERANCE * own).any():
            return


def check_twice_differentiable(model: PreTrainedModel, loss: Callable[[Parameters, Tensor], Tensor]) -> None:
    """Raise one clear ValueError unless the loss of soft tokens has second derivatives.

    Only those in the tokens, which pass through every operation of the model: those in all weights are as large as the model.

    Args:
        loss: of parameters and soft tokens (b, L, V).
    """
    embedding = model.get_input_embeddings().weight
    tokens = embedding.new_full((1, _length(model), len(embedding)), 1 / len(embedding)).requires_grad_()
    try:
        (first,) = torch.autograd.grad(loss(_weights(model), tokens), tokens, create_graph=True)
        first.square().sum().backward()  # grad(…, tokens) would pass by what has no derivative, and be wrong in silence
    except Exception as error:  # each model fails in its own way
        raise ValueError(
            f"learner_init returned a {describe(model)}, whose loss of soft tokens has no second derivative "
            f"({_first_line(error)}); give another model"
        ) from error


def readable_positions(model: PreTrainedModel, length: int) -> int:
    """How many of `length` positions the model reads. What its config speaks of is believed with some to spare, and the rest tried."""
    limit = _position_limit(model)
    if limit is not None and length <= limit - _RESERVED:
        return length
    if model.device.type != "cpu":  # an index beyond a table would stop a GPU for good
        model = copy.deepcopy(model).cpu()
    token = int(model.config.pad_token_id == 0)  # padding may have no position of its own

    def fails(positions: int) -> bool:
        ids = torch.full((1, positions), token)
        try:
            with torch.no_grad():
                model(input_ids=ids, attention_mask=torch.ones_like(ids))
        except Exception:  # each model fails in its own way
            return True
        return False

    return length if not fails(length) else bisect_left(range(1, length + 1), True, key=fails)


def _position_limit(model: PreTrainedModel) -> int | None:
    """How many positions the config speaks of, None where it speaks of none. Models may read a few less, or more."""
    names = ("max_position_embeddings", "max_length", "max_seq_len")
    limits = (getattr(model.config, name, None) for name in names)
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)  # XLNet says −1


def _length(model: PreTrainedModel) -> int:
    return min(_TOKENS, _position_limit(model) or _TOKENS)


def _weights(model: PreTrainedModel) -> Parameters:
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _random_weights(model: PreTrainedModel, generator: torch.Generator) -> Parameters:
    return {
        name: weight + 0.1 * torch.randn(weight.shape, generator=generator).to(weight)
        for name, weight in _weights(model).items()
    }


@torch.no_grad()
def _run(model: PreTrainedModel, logits: Callable, params: Parameters, ids: Tensor) -> Tensor:
    versions = {name: weight._version for name, weight in params.items()}
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)  # a model that draws numbers draws the same ones again
            found = logits(params, ids.to(model.device))
    except Exception as error:  # each model fails in its own way
        raise ValueError(
            f"learner_init returned a {describe(model)}, which does not run on token ids alone ({_first_line(error)}); "
            "give a causal language model"
        ) from error
    if changed := [name for name, weight in params.items() if weight._version != versions[name]]:
        raise ValueError(
            f"learner_init returned a {describe(model)}, which changes its {changed[0]} when it runs, so that its training has no "
            "derivative; turn that off in its config (of RWKV: rescale_every=0) or give another model"
        )
    return found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)
