"""The learner of a recipe: a config that is safe to build, and Python code for it on the card."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, fields
from keyword import iskeyword
from typing import Any

import torch
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, AutoConfig, AutoModelForCausalLM, PreTrainedConfig

from farzi_hf import models
from farzi_hf.data import Vocabulary
from farzi_hf.models.next_item import NextItemConfig
from farzi_hf.summary.store.text import python_literal, terminal_text

logger = logging.getLogger(__name__)

_OURS = {kind.model_type: kind for name, kind in vars(models).items() if name.endswith("Config")}
_NOT_SHOWN = {"model_type", "transformers_version", "architectures", "use_cache"}  # they do not change a training
_DEFAULTS = {"dtype": "float32"}  # values that a config states where a class leaves them open
_NAMING = {"auto_map", "name_or_path", "_name_or_path", "code_revision", "trust_remote_code"}
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_DTYPES = ("float16", "bfloat16", "float32", "float64")
_NUMBERS, _TENSORS, _LAYERS, _INTEGER, _FLOAT = 10**9, 5000, 1000, 10**7, 1e12
"""Limits of a learner that somebody else chose: its numbers and tensors, and each of its settings."""


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


def plain_learner(value: Any, name: str) -> Any:
    """`value`, a model's config that somebody else may have written, without entries that name code, files or repositories.

    These are the keys of `_NAMING`, and all texts with a slash. A warning names each by `name` and its own key; configs may contain configs.
    """
    if isinstance(value, list):
        return [plain_learner(part, f"{name}[{i}]") for i, part in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, part in value.items():
        texts = [text for text in (part if isinstance(part, list) else [part]) if isinstance(text, str)]
        full = f"{name}.{ascii(key)[1:-1]}"
        if key in _NAMING or (key != "model_type" and any("/" in text or "\\" in text for text in texts)):
            logger.warning("%s is left out: it may name code or files elsewhere, which are never fetched.", full)
        else:
            kept[key] = plain_learner(part, full)
    return kept


def learner_config(learner: Any, config: PreTrainedConfig, vocabulary: Vocabulary, source: str) -> PreTrainedConfig:
    """The config of a learner over the summary's vocabulary; without a learner, of a small one.

    Somebody else may have written the learner. Only plain values of the architecture's own fields count: what else a config can hold (code,
    names of files and repositories, configs inside it) is left out with a warning. A model is built without numbers, to see that it can be.

    Args:
        learner: arguments of `AutoConfig.for_model`; sizes of the vocabulary are replaced.
        source: what an error calls it.

    Raises:
        ValueError: no model can be made of it, or one beyond the limits; the error names the field.
    """
    learner = vocabulary.small_learner if learner in (None, {}) else learner
    kind = learner.get("model_type") if isinstance(learner, Mapping) else None
    known = isinstance(kind, str) and kind in CONFIG_MAPPING
    if not known or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"{source}={learner!r:.200} is no mapping with the model_type of a causal language model; choose one with --learner"
        )
    plain = {name: value for name, value in learner.items() if _is_plain(CONFIG_MAPPING[kind], name, value)}
    if left := sorted(learner.keys() - plain.keys() - _NOT_SHOWN - _FIELDS_OF_ALL):
        logger.warning("%s: %s left out; only an architecture's own fields count.", source, terminal_text(left))
    settings = {"model_type": kind, **plain, **_sizes(learner, _OURS.get(kind), config, vocabulary)}
    if (reason := _failure(settings)) is None:
        return AutoConfig.for_model(**settings)
    blamed, end = "", time.monotonic() + 5
    for name in sorted(plain, key=lambda name: -plain[name] if isinstance(plain[name], int) else 0):
        others = {other: value for other, value in settings.items() if other != name}
        if time.monotonic() < end and None in (_failure(others), _failure({**others, name: 1})):
            blamed = f"[{name!r}]={plain[name]!r:.200}"  # without it, or with 1 in its place, there is a model
            break
    raise ValueError(
        f"{source}{blamed or f'={plain!r:.300}'} makes no {kind} ({reason}); mend it, or choose one with --learner"
    )


_FIELDS_OF_ALL = {field.name for field in fields(PreTrainedConfig)}


def _is_plain(kind: type[PreTrainedConfig], name: str, value: Any) -> bool:
    """Whether this is a field of that architecture, or a number, with a value that holds no config and names no code."""
    known = {field.name for field in fields(kind)} - _FIELDS_OF_ALL | {"dtype", *kind.attribute_map}
    if name.startswith("rope_"):
        return True
    if name not in known:
        return not hasattr(PreTrainedConfig, name) and isinstance(value, int | float)
    return not any(isinstance(part, list | Mapping) for part in (value if isinstance(value, list) else [value]))


def _failure(settings: Mapping[str, Any]) -> str | None:
    """Why no model can be made with these settings; None where one can. It is built without numbers, and no further than the limits."""
    sizes = [0, 0]

    def count(module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        sizes[0] += 0 if tensor is None else tensor.numel()
        sizes[1] += 1
        if sizes[0] > _NUMBERS or sizes[1] > _TENSORS:
            raise ValueError(f"it has more than {_NUMBERS:,} numbers, or more than {_TENSORS:,} tensors")

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        if settings.get("dtype") not in (None, *_DTYPES):
            raise ValueError(f"dtype is none of {', '.join(_DTYPES)}")
        for name, value in settings.items():
            limit = _FLOAT if isinstance(value, float) else _LAYERS if "layer" in name else _INTEGER
            if isinstance(value, int | float) and not abs(value) <= limit:
                raise ValueError(f"{name} is more than {limit:,.0f}")
        with torch.device("meta"):
            AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings), trust_remote_code=False)
    except Exception as error:  # each architecture fails in its own way
        return f"{type(error).__name__}: {' '.join(str(error).split())}"
    finally:
        for hook in hooks:
            hook.remove()
    return None


def learner_code(recipe: Mapping[str, Any], config: PreTrainedConfig, vocabulary: Vocabulary) -> LearnerCode:
    """The learner of `recipe["learner"]`, a config as a mapping. Without one, the vocabulary's small learner."""
    learner = recipe.get("learner")
    known = isinstance(learner, Mapping) and isinstance(learner.get("model_type"), str)
    if not known:
        learner = vocabulary.small_learner
    learner = plain_learner(learner, "learner")
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
