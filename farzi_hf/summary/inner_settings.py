"""`config.inner` of a summary: how learners trained on it, and so how a student has to. It is
written by `FarziConfig.inner_settings`.

It names the inner `optimizer` and its hyper-parameters, the number of `steps`, the
`synthetic_batch_size` and the `lr_scheduler_type`. Here it becomes an optimizer, a schedule, and
the arguments of the stock Trainer (`FarziData.training_arguments`).
"""

import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from numbers import Real
from typing import Any

import torch
from transformers import SchedulerType, TrainingArguments, get_scheduler

from farzi_hf.common.checks import check_rate, check_size
from farzi_hf.engine import OPTIMIZERS, InnerOptimizer
from farzi_hf.summary.config import check_choice
from farzi_hf.summary.forms import TeacherLabels

logger = logging.getLogger(__name__)


class OwnOptimizer:
    """Warns of a student that trains without the optimizer of its summary, where Trainer cannot
    name that one and has AdamW in its place: that is a worse model, and nothing else would say so.

    Trainer does not tell a summary what it got. So a student counts as such one if its arguments
    are those of the summary, and `optimizer_cls_and_kwargs` was not read before the first row.
    """

    def __init__(self) -> None:
        self._missing: str | None = None
        self._is_known = False

    def given(self) -> None:
        """`optimizer_cls_and_kwargs` was read."""
        self._is_known = True

    def expected(self, optimizer: InnerOptimizer) -> None:
        """`training_arguments` were made for this optimizer."""
        self._missing = type(optimizer).__name__ if optimizer.stock_class else None

    def rows_read(self) -> None:
        """A batch of the summary's rows is collated."""
        if self._missing and not self._is_known:
            logger.warning(
                "Students of this summary had the optimizer %s, and Trainer would use AdamW, which"
                " learns less in the same number of steps: give Trainer"
                " optimizer_cls_and_kwargs=farzi.optimizer_cls_and_kwargs, or make it by"
                " farzi.trainer(model).",
                self._missing,
            )
            self._is_known = True  # once is enough


_DEFAULTS = TeacherLabels.defaults
STUDENTS_OF_A_TEACHER: dict[str, Any] = {
    "optimizer": _DEFAULTS["inner_optimizer"],
    "lr": _DEFAULTS["inner_learning_rate"],
    "betas": _DEFAULTS["inner_betas"],
    "eps": 1e-6,
    "steps": _DEFAULTS["inner_steps"],
    "lr_scheduler_type": _DEFAULTS["inner_lr_scheduler_type"],
    "synthetic_batch_size": _DEFAULTS["synthetic_batch_size"],
    "student_start": _DEFAULTS["student_start"],
}
"""Settings of the students of a summary that was made of a trained teacher in Python."""

_OF_THE_INNER_LOOP = {
    # summaries that do not name a schedule have none; Trainer's default is linear
    "lr_scheduler_type": "constant",
    # summaries that do not name a norm do not clip; Trainer's default clips at 1
    "max_grad_norm": 0.0,
    "save_strategy": "no",  # a training takes seconds
    "logging_steps": 10,  # with Trainer's default of 500, a hundred steps would log nothing
    "report_to": "none",
}

LR_SCHEDULES: dict[str, Callable[[int], dict[str, Any]]] = {
    **dict.fromkeys(("constant", "linear", "cosine"), lambda steps: {}),
    # The learning rate stays for half of the steps, and then falls to 0 on a straight line.
    "warmup_stable_decay": lambda steps: {
        "num_decay_steps": max(1, steps // 2),
        "decay_type": "linear",
    },
}
"""Schedules of transformers by `lr_scheduler_type`: the `lr_scheduler_kwargs` of a training of a
number of steps.
"""


def lr_schedule(name: str, steps: int, warmup_steps: int = 0) -> Callable[[int], float] | None:
    """The multiplier of the learning rate in each of the steps 1 … `steps`; None where it is
    constant; a ValueError unless `LR_SCHEDULES` has it.
    """
    if check_choice("lr_scheduler_type", name, LR_SCHEDULES) == "constant" and not warmup_steps:
        return None
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=1.0)  # a schedule is made for one
    settings = LR_SCHEDULES[name](steps)
    name = "constant_with_warmup" if name == "constant" else name
    scheduler = get_scheduler(
        name, optimizer, warmup_steps, steps, scheduler_specific_kwargs=settings
    )
    (multiplier,) = scheduler.lr_lambdas
    return lambda step: multiplier(step - 1)


def inner_optimizer(inner: Mapping[str, Any] | None) -> InnerOptimizer:
    """The optimizer that `config.inner` of a summary describes. Raises ValueError if it describes
    none.
    """
    if not inner or "lr" not in inner:
        raise ValueError(
            f"config.inner={inner!r} describes no optimizer; take a summary that was distilled, or"
            " set it"
        )
    name = inner.get("optimizer", "adam")  # the oldest summaries do not name theirs
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise ValueError(
            f"config.inner['optimizer']={name!r:.200} is none of {', '.join(OPTIMIZERS)}"
        )
    kind = OPTIMIZERS[name]
    values = {}
    for field in fields(kind):
        if field.name in inner:
            value = inner[field.name]
            values[field.name] = tuple(value) if isinstance(value, list) else value
    try:
        return kind(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"config.inner={dict(inner)!r} is no {name}: {error}") from None


def training_arguments(
    inner: Mapping[str, Any] | None,
    num_sequences: int | None,
    output_dir: str,
    changes: Mapping[str, Any],
) -> TrainingArguments:
    """See `FarziData.training_arguments`. `num_sequences` is None where rows do not run out."""
    inner = inner or {}
    _check(inner)
    sizes = {
        "max_steps": inner.get("steps"),
        "per_device_train_batch_size": inner.get("synthetic_batch_size"),
        "lr_scheduler_type": inner.get("lr_scheduler_type"),
        "warmup_steps": inner.get("warmup_steps"),
    }
    settings = {
        **_OF_THE_INNER_LOOP,
        **{name: value for name, value in sizes.items() if value is not None},
    }
    if "lr" in inner:
        settings |= _stock_optimizer(inner_optimizer(inner), changes)
    if "num_train_epochs" in changes:  # Trainer would prefer the number of steps
        settings.pop("max_steps", None)
    settings |= changes
    if "learning_rate" in changes:
        check_rate("learning_rate", changes["learning_rate"])
    # Trainer would ignore a warm-up.
    if settings["lr_scheduler_type"] == "constant" and settings.get("warmup_steps"):
        settings["lr_scheduler_type"] = "constant_with_warmup"
    size = settings.get("per_device_train_batch_size", num_sequences)
    if num_sequences is None and settings.get("max_steps", 0) <= 0:
        raise ValueError(
            "the rows of this summary do not run out, so epochs cannot be counted; give max_steps"
        )
    has_rest = bool(num_sequences) and size < num_sequences and num_sequences % size != 0
    if has_rest and not settings.get("dataloader_drop_last"):
        logger.warning(
            "per_device_train_batch_size=%d does not divide the %d sequences: Trainer takes the"
            " last %d of an epoch as a step, which the inner loop leaves out."
            " dataloader_drop_last=True leaves them out too, but also the last incomplete batch of"
            " an evaluation.",
            size,
            num_sequences,
            num_sequences % size,
        )
    if "learning_rate" not in settings or not {"max_steps", "num_train_epochs"} & settings.keys():
        raise ValueError(
            f"config.inner={dict(inner)!r} lacks a learning rate or steps; give learning_rate=0.01,"
            " max_steps=100"
        )
    arguments = TrainingArguments(output_dir, **settings)
    name = SchedulerType(arguments.lr_scheduler_type).value
    if "lr_scheduler_kwargs" not in changes and name in LR_SCHEDULES:
        arguments.lr_scheduler_kwargs = LR_SCHEDULES[name](_steps(arguments, num_sequences))
    # On a CPU there is nothing to pin for, and torch warns of it.
    if "dataloader_pin_memory" not in changes:
        arguments.dataloader_pin_memory = arguments.device.type != "cpu"
    return arguments


def _check(inner: Mapping[str, Any]) -> None:
    """Raises ValueError if a setting, which may be a stranger's, has another type than it needs, or
    is beyond every sensible size.
    """
    sizes = ("steps", "synthetic_batch_size", "warmup_steps")
    for key in sizes:
        if inner.get(key) is not None:
            check_size(f"config.inner[{key!r}] (of config.json)", inner[key], most=10**7)
    if inner.get("lr_scheduler_type") is not None:
        check_choice(
            "config.inner['lr_scheduler_type'] (of config.json)",
            inner["lr_scheduler_type"],
            LR_SCHEDULES,
        )
    for key, value in inner.items():  # an optimizer checks the rest
        if key not in sizes and isinstance(value, Real) and value > 1000:
            raise ValueError(
                f"config.inner[{key!r}] (of config.json) must be at most 1,000, got {value!r:.200}"
            )


def _stock_optimizer(optimizer: InnerOptimizer, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer under the names of `TrainingArguments`. Warns of what Trainer does otherwise;
    raises ValueError if it has no such one.
    """
    settings = optimizer.stock_settings()
    of_optimizers = {"optim", "learning_rate", "adam_beta1", "adam_beta2", "adam_epsilon"}
    given = sorted(of_optimizers & changes.keys())
    if optimizer.stock_class and given:
        logger.warning(
            "%s: no effect beside optimizer_cls_and_kwargs; leave that out, or change"
            " config.inner.",
            ", ".join(given),
        )
    if settings is None and "optim" not in changes:
        raise ValueError(
            f"the inner optimizer of this summary, {type(optimizer).__name__}, has no equal among"
            " Trainer's; give optim=…, learning_rate=…"
        )
    different = {
        name: getattr(optimizer, name)
        for name in optimizer.without_stock_twin
        if name not in changes and getattr(optimizer, name)
    }
    if different:
        logger.warning(
            "The inner loop had %s. Trainer's optimizers treat this differently or lack it, so"
            " students may differ from the learners of the distillation.",
            ", ".join(f"{name}={value}" for name, value in different.items()),
        )
    return {"max_grad_norm": optimizer.max_grad_norm or 0.0, **(settings or {})}


def _steps(arguments: TrainingArguments, num_sequences: int) -> int:
    """The steps that Trainer will take."""
    if arguments.max_steps > 0:
        return arguments.max_steps
    rounded = math.floor if arguments.dataloader_drop_last else math.ceil
    batches = rounded(num_sequences / (arguments.train_batch_size * arguments.world_size))
    return math.ceil(
        arguments.num_train_epochs
        * max(1, math.ceil(batches / arguments.gradient_accumulation_steps))
    )
