"""What a `FarziConfig` refuses: settings of the Trainer that a distillation cannot use, numbers out of range, and unknown names."""

from __future__ import annotations

import logging
import math
from collections.abc import Collection
from dataclasses import fields
from functools import cache
from typing import Any

from transformers import TrainingArguments

from farzi_hf.distillation.field_types import check_plain_types
from farzi_hf.distillation.objectives import OBJECTIVES
from farzi_hf.engine import ADJOINTS, OPTIMIZERS
from farzi_hf.summary import INITIALIZATIONS, initialization
from farzi_hf.summary.forms import INPUTS, LABELS
from farzi_hf.summary.input_sequences import INPUT_SEQUENCES
from farzi_hf.summary.lr_schedules import LR_SCHEDULES
from farzi_hf.summary.store.storage import STORAGES

logger = logging.getLogger(__name__)

AUTO = "auto"
"""The adjoint's name that leaves the choice to `unroll`."""

COUNTS = {
    "num_sequences": 1,
    "sequence_length": 2,
    "latent_dim": 1,
    "inner_steps": 1,
    "teacher_steps": 1,
    "teacher_batch_size": 1,
    "num_teachers": 1,
    "learners_per_step": 1,
    "expert_steps": 1,
    "eval_students": 1,
    "max_non_finite": 0,
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
}
OPTIONAL_COUNTS = {
    "inner_steps_min": 1,
    "label_dim": 1,
    "learner_pool": 1,
    "synthetic_batch_size": 1,
    "window": 0,
    "num_trajectories": 1,
    "last_start": 0,
    "synthetic_steps": 1,
}
"""The least value of each field."""

UNSUPPORTED = {
    "fp16": "gradients of the inner loop have no loss scaling and underflow; use bf16",
    "fp16_full_eval": "it would round the summary itself, because this is the Trainer's model; leave it out",
    "bf16_full_eval": "it would round the summary itself, because this is the Trainer's model; leave it out, or set bf16",
    "label_smoothing_factor": "the objective is the outer loss, and it has no smoothing; leave it out",
    "neftune_noise_alpha": "a summary has no embedding to add noise to; leave it out",
    "gradient_checkpointing": "the adjoint decides what is kept: set adjoint='checkpoint' or 'reversible'; and checkpoint_layers, for a deep learner",
    "use_liger_kernel": "its kernels have no second derivatives; leave it out",
    "save_only_model": "a run could not go on from such a checkpoint, and the optimizer's state is twice a summary; leave it out",
    "deepspeed": "a summary is small and needs no sharding; use several processes with plain data parallelism",
    "fsdp": "a summary is small and needs no sharding; use several processes with plain data parallelism",
}
"""Fields of `TrainingArguments` that a distillation cannot use, each with the reason and the remedy."""

CHOICES: dict[str, Collection[str]] = {
    "initialization": INITIALIZATIONS,
    "inputs": INPUTS,
    "labels": LABELS,
    "storage": STORAGES,
    "input_sequences": INPUT_SEQUENCES,
    "inner_optimizer": OPTIMIZERS,
    "inner_lr_scheduler_type": LR_SCHEDULES,
    "objective": OBJECTIVES,
    "adjoint": (AUTO, *ADJOINTS),
}
"""The table that each of these fields names an entry of."""


def check_trainer_fields(config: Any) -> None:
    """Raises ValueError if a field of `TrainingArguments` is set that a distillation cannot use, or has a value of another type."""
    for name, remedy in UNSUPPORTED.items():
        if getattr(config, name):
            raise ValueError(f"{name}={getattr(config, name)!r} is not supported: {remedy}")
    check_plain_types(TrainingArguments, vars(config))


def check_counts(config: Any) -> None:
    """Raises ValueError if a number of things is no integer, or too small."""
    given = {name: least for name, least in OPTIONAL_COUNTS.items() if getattr(config, name) is not None}
    for name, least in {**COUNTS, **given}.items():
        value = getattr(config, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ValueError(f"{name}={value!r} is not usable; give an integer of at least {least}")


def check_choices(config: Any) -> None:
    """Raises ValueError if a setting names no entry of its table."""
    for name, table in CHOICES.items():
        if getattr(config, name) not in table:
            raise ValueError(f"{name}={getattr(config, name)!r} is unknown; choose one of {', '.join(table)}")
    if (config.inputs, config.labels) == ("tokens", "shared"):
        raise ValueError("inputs='tokens' with labels='shared' leaves nothing to learn; set labels='own'")


def warn_of_idle_settings(config: Any) -> None:
    """Warns, once, of a setting that concerns another form of the inputs or of the labels."""
    defaults = {field.name: field.default for field in fields(config)}
    for argument, table in (("inputs", INPUTS), ("labels", LABELS)):
        chosen = getattr(config, argument)
        for name in (name for form in table.values() if form is not table[chosen] for name in form.settings):
            if (value := getattr(config, name)) != defaults[name]:
                _warn_once(f"{name}={value!r} has no effect with {argument}={chosen!r}.")


@cache
def _warn_once(message: str) -> None:
    logger.warning(message)


def check_ranges(config: Any) -> None:
    """Raises ValueError if a number is outside of its range."""
    if not 0 <= config.learning_rate < math.inf:
        raise ValueError(
            f"learning_rate={config.learning_rate} is not usable; give a number from 0 on, for instance 0.01"
        )
    if config.inner_steps_min is not None and config.inner_steps_min > config.inner_steps:
        raise ValueError(
            f"inner_steps_min={config.inner_steps_min} is more than inner_steps={config.inner_steps}, but T is drawn between "
            "the two; lower inner_steps_min"
        )
    if config.concentration is not None and not config.concentration > 0:
        raise ValueError(
            f"concentration={config.concentration} is not usable; give a number above 0, for instance {initialization.CONCENTRATION}, "
            "or None to have one chosen"
        )
    if not 0 <= config.fresh_start_fraction <= 1:
        raise ValueError(f"fresh_start_fraction={config.fresh_start_fraction} is no share; give a number from 0 to 1")


def check_checkpointed_layers(config: Any) -> None:
    """Raises ValueError if the learner's layers cannot be computed again: `torch.vmap` and `torch.compile` do not see through that."""
    if not config.checkpoint_layers:
        return
    if config.learners_per_step > 1:
        raise ValueError(
            f"checkpoint_layers=True with learners_per_step={config.learners_per_step}: layers are computed again for one learner at a "
            f"time; use learners_per_step=1 and gradient_accumulation_steps={config.learners_per_step}"
        )
    if config.torch_compile:
        raise ValueError(
            "checkpoint_layers=True with torch_compile=True: a compiled step decides itself what it keeps; leave one out"
        )
