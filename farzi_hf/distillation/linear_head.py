"""The head of a causal language model: the linear function from its last hidden states to the logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from farzi_hf.distillation.learner_checks import few_positions

Parameters = dict[str, Tensor]

_LARGE = 10.0  # Logits of this size show a soft cap. The caps of transformers' models are 30 and more.


@dataclass(frozen=True)
class LinearHead:
    """Logits are states @ weightᵀ + bias, and nothing changes them afterwards.

    Args:
        module: of the model.
        weight: the name of its weight (V, k) among the model's parameters. The input embedding may share it.
        bias: the name of its bias (V,), or None.
        forward: of the module.
    """

    module: nn.Linear
    weight: str
    bias: str | None
    forward: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel) -> LinearHead | None:
        """The head of a model; None if the model scales, caps or shortens its logits, or has no linear head."""
        module = model.get_output_embeddings()
        if type(module) is not nn.Linear:
            return None
        names = parameter_names(model, module)
        head = cls(module, names["weight"], names.get("bias"), module.forward)
        return head if head._is_last(model) else None

    @property
    def width(self) -> int:
        """The numbers of a position that determine its logits: k, and a constant where there is a bias."""
        return self.module.in_features + (self.bias is not None)

    def arguments(self, params: Parameters) -> tuple[Tensor, Tensor | None]:
        """Weight and bias."""
        return params[self.weight], None if self.bias is None else params[self.bias]

    @contextmanager
    def left_out(self) -> Iterator[None]:
        """In this context, the model returns its last hidden states in place of logits."""
        self.module.forward = _identity  # an attribute of the object comes before the method of its class
        try:
            yield
        finally:  # Not removed, and always the same object: compiled code asks whether this is still what it was compiled for.
            self.module.forward = self.forward

    @torch.no_grad()
    def _is_last(self, model: PreTrainedModel) -> bool:
        """Whether logits are what this class says, also where they are large."""
        ids = torch.arange(few_positions(model), device=model.device)[None] % self.module.out_features
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        params = {name: parameter.detach() for name, parameter in model.named_parameters()}
        size = torch.func.functional_call(model, params, kwargs=inputs).logits.abs().amax()
        for factor in (1.0, _LARGE / float(size.clamp_min(1e-6))):
            params = {**params, self.weight: params[self.weight] * factor}
            logits = torch.func.functional_call(model, params, kwargs=inputs).logits
            with self.left_out():
                states = torch.func.functional_call(model, params, kwargs=inputs).logits
            if states.shape != (*logits.shape[:-1], self.module.in_features):
                return False
            weight, bias = self.arguments(params)
            if not torch.allclose(nn.functional.linear(states, weight, bias), logits, rtol=1e-4, atol=1e-4):
                return False
        return True


def _identity(states: Tensor) -> Tensor:
    return states


def parameter_names(model: PreTrainedModel, module: nn.Module) -> dict[str, str]:
    """The name in the model of each parameter of a module. Modules may share parameters, and then only one has its own name."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {name: names[id(parameter)] for name, parameter in module.named_parameters()}
