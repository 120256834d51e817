"""Making a learner of a config that somebody else may have written.

It is made of plain values of its architecture's own fields, and is first built without numbers, to
see what it costs.
"""

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch.nn.modules import module as hooked
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedConfig,
)

from farzi_hf.common.messages import escaped_messages
from farzi_hf.common.text import terminal_text
from farzi_hf.data import Vocabulary
from farzi_hf.models.base import NextItemConfig
from farzi_hf.summary.soft_tokens import vocabulary_size
from farzi_hf.summary.store.budget import Budget

logger = logging.getLogger(__name__)

_NAMING = {"auto_map", "name_or_path", "_name_or_path", "code_revision", "trust_remote_code"}
"""Fields that name code, files or repositories."""
NOT_SHOWN = {"model_type", "transformers_version", "architectures", "use_cache"}
"""Fields that do not change a training."""
_FIELDS_OF_ALL = {field.name for field in fields(PreTrainedConfig)}
_SPECIAL_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
_DTYPES = ("float16", "bfloat16", "float32", "float64")

# Limits of a learner that somebody else chose.
_NUMBERS = 10**9
"""The most numbers of all its tensors."""
_TENSORS = 5000
"""The most tensors."""
_LAYERS = 256
"""The most layers: some architectures walk through all of them for each layer, in Python."""
_INTEGER = 10**7
"""The largest integer among its other settings."""
_FLOAT = 1e12
"""The largest float among them."""

# Limits of making it.
_SECONDS_OF_BUILDING = 1.0
"""Of all operations of torch."""
_BYTES_OF_BUILDING = 2**28
"""Of the numbers that come into being, though it is built without numbers."""


def _leaves(value: Any) -> list[Any]:
    """What lists inside each other hold; of anything else itself."""
    return [x for part in value for x in _leaves(part)] if isinstance(value, list) else [value]


def _has_path(value: Any) -> bool:
    """Whether a value is a text with a slash, or a list that holds one: it may name a file."""
    texts = [leaf for leaf in _leaves(value) if isinstance(leaf, str)]
    return any("/" in text or "\\" in text for text in texts)


def plain_learner(value: Any, name: str) -> Any:
    """A model's config, or several in a list, without entries that name code, files or
    repositories: those of `_NAMING`, and all texts with a slash. Configs may contain configs.

    Args:
        value: the config; anything else is returned as it is.
        name: of the config. A warning names each entry that is left out by this and its key.
    """
    if isinstance(value, list):
        return [plain_learner(part, f"{name}[{i}]") for i, part in enumerate(value)]
    if not isinstance(value, Mapping):
        return value
    kept = {}
    for key, part in value.items():
        full = f"{name}.{ascii(key)[1:-1]}"
        if key in _NAMING or (key != "model_type" and _has_path(part)):
            logger.warning(
                "%s is left out: it may name code or files elsewhere, which are never fetched.",
                full,
            )
        else:
            kept[key] = plain_learner(part, full)
    return kept


def sizes_of(
    learner: Mapping[str, Any], config: PreTrainedConfig, vocabulary: Vocabulary
) -> dict[str, int | None]:
    """The fields of a learner that follow from the summary. Recipes may leave them out, and those
    of this project do.
    """
    kind = learner["model_type"]
    is_recommender = kind in CONFIG_MAPPING and issubclass(CONFIG_MAPPING[kind], NextItemConfig)
    if is_recommender:
        return {
            "num_items": config.vocab_size - 1,
            "max_length": learner.get("max_length", config.sequence_length),
        }
    is_whole_config = "vocab_size" in learner
    if is_whole_config:
        return {"vocab_size": config.vocab_size}
    ids = vocabulary.special_ids(_SPECIAL_TOKENS)
    return {
        "vocab_size": config.vocab_size,
        **{name: learner.get(name, ids[name]) for name in _SPECIAL_TOKENS},
    }


class Outline(NamedTuple):
    """What is known of a model that was built without numbers."""

    shapes: Mapping[str, tuple[int, ...]]
    """Those of its parameters, by their names."""
    entries: int
    """The number of entries of its input embedding."""
    buffers: int
    """How many of its numbers are not parameters."""


def learner_config(
    learner: Any,
    config: PreTrainedConfig,
    vocabulary: Vocabulary,
    source: str,
    remedy: str = "give --learner",
) -> PreTrainedConfig:
    """The config of a learner over the summary's vocabulary; without a learner, of a small one.

    Only plain values of the architecture's own fields count: what else a config can hold (code,
    names of files and repositories, configs inside it) is left out with a warning.

    Args:
        learner: arguments of `AutoConfig.for_model`, which a stranger may have written.
        config: of the summary.
        source: what an error calls the learner.
        remedy: the end of an error.

    Raises:
        ValueError: no model can be made of it, or one beyond the limits.
    """
    settings, _ = outlined_learner(learner, config, vocabulary, source, remedy)
    return settings


@escaped_messages
def outlined_learner(
    learner: Any, config: PreTrainedConfig, vocabulary: Vocabulary, source: str, remedy: str
) -> tuple[PreTrainedConfig, Outline]:
    """As `learner_config`, with an outline of the model."""
    learner = vocabulary.small_learner if learner in (None, {}) else learner
    is_config = isinstance(learner, Mapping)
    kind = learner.get("model_type") if is_config else None
    is_architecture = isinstance(kind, str) and kind in CONFIG_MAPPING
    if not is_architecture or CONFIG_MAPPING[kind] not in MODEL_FOR_CAUSAL_LM_MAPPING:
        named = f" (model_type={kind!r:.80})" if is_config else ""
        raise ValueError(
            f"{source}={learner!r:.200}{named} has no model_type of a causal language model;"
            f" {remedy}"
        )
    config_class = CONFIG_MAPPING[kind]
    plain = {name: value for name, value in learner.items() if _is_plain(config_class, name, value)}
    left_out = sorted(learner.keys() - plain.keys() - NOT_SHOWN - _FIELDS_OF_ALL)
    if left_out:
        logger.warning(
            "%s: %s left out; only an architecture's own fields count.",
            source,
            terminal_text(left_out),
        )
    settings = {"model_type": kind, **plain, **sizes_of(learner, config, vocabulary)}
    built = _built(json.dumps(settings))
    if isinstance(built, str):
        raise ValueError(f"{source}={plain!r:.500} makes no {kind} ({built}); mend it, or {remedy}")
    return AutoConfig.for_model(**settings), built


@lru_cache(maxsize=16)
def _own_fields(kind: type[PreTrainedConfig]) -> frozenset[str]:
    """The names of the fields of an architecture that not all have."""
    return frozenset(field.name for field in fields(kind)) - _FIELDS_OF_ALL


def _is_plain(kind: type[PreTrainedConfig], name: str, value: Any) -> bool:
    """Whether this is a field of that architecture, or a number, with a value that holds no config
    and names no code.
    """
    if name.startswith("rope_"):
        return True
    if name in _own_fields(kind) or name in kind.attribute_map or name == "dtype":
        holds_config = any(isinstance(part, Mapping) for part in _leaves(value))
        return not holds_config
    return not hasattr(PreTrainedConfig, name) and isinstance(value, int | float)


@lru_cache(maxsize=16)
def _built(settings_as_json: str) -> Outline | str:
    """The outline of a model with these settings, which is built without numbers, and no further
    than the limits; or why none can be made.
    """
    settings = json.loads(settings_as_json)
    try:
        _check_sizes(settings)
        budget = Budget(_SECONDS_OF_BUILDING, _BYTES_OF_BUILDING)
        with _counted_tensors(), budget, torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                AutoConfig.for_model(**settings), trust_remote_code=False
            )
        return Outline(
            shapes={name: tuple(x.shape) for name, x in model.named_parameters()},
            entries=vocabulary_size(model),
            buffers=sum(x.numel() for x in model.buffers()),
        )
    except Exception as error:  # each architecture fails in its own way
        return terminal_text(f"{type(error).__name__}: {' '.join(str(error).split())}", 500)


def _check_sizes(settings: Mapping[str, Any]) -> None:
    """Raises ValueError if a number among the settings is too large, or the type of numbers is
    none.
    """
    if settings.get("dtype") not in (None, *_DTYPES):
        raise ValueError(f"dtype is none of {', '.join(_DTYPES)}")
    for name, value in settings.items():
        # GPT-Neo's lists say how often to repeat a layer.
        is_nested = isinstance(value, list) and value != _leaves(value)
        for x in _leaves(value):
            if isinstance(x, float):
                limit = _FLOAT
            elif "layer" in name or is_nested:
                limit = _LAYERS
            else:
                limit = _INTEGER
            if isinstance(x, int | float) and not abs(x) <= limit:
                raise ValueError(f"{name} is more than {limit:,.0f}")


@contextmanager
def _counted_tensors() -> Iterator[None]:
    """A context in which this thread makes no model beyond the limits: ValueError."""
    thread = threading.get_ident()
    numbers = 0
    tensors = 0

    def count(module: torch.nn.Module, name: str, tensor: torch.Tensor | None) -> None:
        nonlocal numbers, tensors
        if threading.get_ident() != thread:  # torch calls it for the models of all threads
            return
        numbers += 0 if tensor is None else tensor.numel()
        tensors += 1
        if numbers > _NUMBERS or tensors > _TENSORS:
            raise ValueError(
                f"it has more than {_NUMBERS:,} numbers, or more than {_TENSORS:,} tensors"
            )

    registers = (
        hooked.register_module_parameter_registration_hook,
        hooked.register_module_buffer_registration_hook,
    )
    hooks = [register(count) for register in registers]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
