"""What a learner's models are made from: a function, a config, or a model that stands for its class and config."""

from __future__ import annotations

import copy
from collections.abc import Callable

from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

LearnerInit = Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel


def factory(learner_init: LearnerInit) -> Callable[[], PreTrainedModel]:
    """A function that makes fresh models.

    Raises:
        TypeError: `learner_init` is nothing of these.
    """
    if isinstance(learner_init, PreTrainedConfig):
        return lambda: _from_config(learner_init)
    if isinstance(learner_init, PreTrainedModel):
        return lambda: type(learner_init)(copy.deepcopy(learner_init.config))
    if callable(learner_init) and not isinstance(learner_init, nn.Module):
        return learner_init
    raise TypeError(
        f"learner_init is {type(learner_init).__name__}; give a function that returns a new model, a model config, or a model"
    )


def _from_config(config: PreTrainedConfig) -> PreTrainedModel:
    try:
        return AutoModelForCausalLM.from_config(
            copy.deepcopy(config), trust_remote_code=False
        )  # it writes into its argument
    except ValueError as error:
        if "trust_remote_code" in str(error):
            raise ValueError(
                f"learner_init is a {type(config).__name__} whose model is code of a repository (auto_map), which is not run; give a function "
                "that makes the model, if you trust it"
            ) from None
        if "Unrecognized configuration class" not in str(error):
            raise
        raise ValueError(  # transformers' own message lists two hundred classes
            f"learner_init is a {type(config).__name__}, and transformers has no causal language model of model_type "
            f"{config.model_type!r}; give the config of one, for instance a GPT2Config"
        ) from None
