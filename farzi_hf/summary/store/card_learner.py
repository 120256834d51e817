"""The learner on the card: Python code for the config of the model that the summary was distilled with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from keyword import iskeyword
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from farzi_hf import models
from farzi_hf.data import Vocabulary
from farzi_hf.models.next_item import NextItemConfig
from farzi_hf.summary.store.escaping import python_literal

_OURS = {kind.model_type: kind for name, kind in vars(models).items() if name.endswith("Config")}
_NOT_SHOWN = {"model_type", "transformers_version", "architectures", "use_cache"}  # they do not change a training
_DEFAULTS = {"dtype": "float32"}  # values that a config states where a class leaves them open
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")


@dataclass(frozen=True)
class LearnerCode:
    """Python that builds a learner's config.

    Attributes:
        name: the class to import, from this package or `AutoConfig` from transformers.
        ours: whether the class is from this package.
        source: `config = …`, in several lines.
        known: whether this is the learner that the summary was distilled with.
    """

    name: str
    ours: bool
    source: str
    known: bool


def learner_settings(
    learner: Mapping[str, Any] | None, config: PreTrainedConfig, vocabulary: Vocabulary
) -> dict[str, Any]:
    """Arguments of `AutoConfig.for_model` for a learner over the summary's vocabulary; without a learner, for a small one."""
    learner = dict(learner or vocabulary.small_learner)
    return {**learner, **_sizes(learner, _OURS.get(learner["model_type"]), config, vocabulary)}


def learner_code(recipe: Mapping[str, Any], config: PreTrainedConfig, vocabulary: Vocabulary) -> LearnerCode:
    """The learner of `recipe["learner"]`, a config as a mapping. Without one, the vocabulary's small learner."""
    learner = recipe.get("learner")
    known = isinstance(learner, Mapping) and isinstance(learner.get("model_type"), str)
    if not known:
        learner = vocabulary.small_learner
    kind = learner["model_type"]
    own = _OURS.get(kind)
    sizes = _sizes(learner, own, config, vocabulary)
    changed = {name: value for name, value in _changed(learner).items() if name not in sizes}
    arguments = [] if own else [python_literal(kind)]
    arguments += [_argument(name, value) for name, value in {**sizes, **changed}.items()]
    call = own.__name__ if own else "AutoConfig.for_model"
    lines = "".join(f"    {argument},\n" for argument in arguments)
    return LearnerCode(own.__name__ if own else "AutoConfig", own is not None, f"config = {call}(\n{lines})", known)


def _changed(learner: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a learner that differ from its class's defaults."""
    name = learner["model_type"]
    kind = CONFIG_MAPPING[name] if name in CONFIG_MAPPING else None  # noqa: SIM401  its get() does not load classes

    def default(name: str) -> Any:
        return _DEFAULTS.get(name, getattr(kind, name, ...))  # nothing that JSON holds equals an ellipsis

    return {k: v for k, v in learner.items() if k not in _NOT_SHOWN and v != default(k)}


def _sizes(
    learner: Mapping[str, Any], own: type | None, config: PreTrainedConfig, vocabulary: Vocabulary
) -> dict[str, int | None]:
    """The sizes that follow from the summary. Recipes may leave them out, and those of this project do."""
    if own is not None and issubclass(own, NextItemConfig):
        return {"num_items": config.vocab_size - 1, "max_length": learner.get("max_length", config.sequence_length)}
    sizes = {"vocab_size": config.vocab_size}
    if "vocab_size" in learner:  # a whole config
        return sizes
    ids = vocabulary.special_ids(_SPECIAL_TOKENS)
    return sizes | {name: learner.get(name, ids[name]) for name in _SPECIAL_TOKENS}


def _argument(name: str, value: Any) -> str:
    return f"{name}={python_literal(value)}" if _is_name(name) else f"**{python_literal({name: value})}"


def _is_name(text: str) -> bool:
    """Whether `text` can be a keyword argument. It has to be ASCII: Python normalises other names, and two could become equal."""
    return text.isidentifier() and text.isascii() and not iskeyword(text)
