"""The stock Trainer for a student of a summary: `FarziData.trainer`."""

from __future__ import annotations

import logging
from copy import copy
from inspect import signature
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, Trainer

from farzi_hf.common.checks import check_rate
from farzi_hf.data.seeds import seeded
from farzi_hf.summary.soft_tokens import check_student, vocabulary_size
from farzi_hf.summary.soft_training import attach_soft_inputs, soft_cross_entropy
from farzi_hf.summary.teacher import sees_the_future, whole

if TYPE_CHECKING:
    import os

    from farzi_hf.summary.farzi_data import FarziData
    from farzi_hf.summary.student_starts import StudentStart

logger = logging.getLogger(__name__)


def _check_causal(model: PreTrainedModel) -> None:
    """Raises ValueError if a student sees the future. It is tried with four ids, where it runs on
    ids alone, and in full precision: else rounding could look like it.
    """
    if next(model.parameters()).dtype not in (torch.float32, torch.float64):
        return
    ids = (torch.arange(1, 5) % vocabulary_size(model))[None].to(model.device)

    @torch.no_grad()
    def logits(some: Tensor) -> Tensor:
        with seeded():  # so that the same numbers are dropped
            return model(**whole(model, some)).logits

    try:
        sees = sees_the_future(logits, ids)
    except Exception:  # each model fails in its own way, and Trainer will say how
        return
    if sees:
        raise ValueError(
            f"model is a {type(model).__name__}, which sees the future; give a causal model (for"
            " BERT: is_decoder=True in the config)"
        )


def student_trainer(
    farzi: FarziData,
    model: PreTrainedModel,
    output_dir: str | os.PathLike,
    start: StudentStart,
    changes: dict[str, Any],
) -> Trainer:
    """A Trainer of `model`, which begins as `start` says and takes as much of the summary's learning
    rate as that start wants.

    Args:
        farzi: the summary.
        model: changed in place.
        output_dir: as for `FarziData.training_arguments`.
        start: how the model begins.
        changes: arguments of `Trainer`, or of `TrainingArguments`; both may be there. A
            `learning_rate` is taken as it is.

    Raises:
        ValueError: the rows are text, the model is compiled or has another vocabulary, a learning
            rate is no number above 0, or there are arguments for `args` beside `args`.
    """
    farzi.forms.inputs.check_ready()
    if hasattr(model, "_orig_mod"):
        raise ValueError(
            "model is compiled by torch.compile, so Trainer cannot tell which columns it takes; give"
            " the model itself, and torch_compile=True"
        )
    check_student(model, farzi.config.vocab_size)
    _check_causal(model)
    names = signature(Trainer).parameters
    settings = {name: x for name, x in changes.items() if name not in names}
    of_trainer = {name: x for name, x in changes.items() if name in names}
    if "args" in of_trainer and settings:
        raise ValueError(f"{', '.join(settings)}: give them in args, or leave args out")
    optimizer = farzi.optimizer_cls_and_kwargs
    given = settings.get("learning_rate")
    if given is not None:
        check_rate("learning_rate", given)
    if optimizer is not None:
        settings.pop("learning_rate", None)  # the optimizer has it
    args = copy(of_trainer.pop("args", None)) or farzi.training_arguments(output_dir, **settings)
    teacher = farzi.forms.labels.model
    dataset = farzi.as_dataset()
    source = getattr(dataset, "source", None)
    rows = farzi.forms.rows_of_start(farzi.tensors, args.seed, source)
    set_names = start.set_into(model, teacher, rows)
    own = (farzi.config.inner or {}).get("lr")
    if own is not None:
        rate = own * start.share_of_rate(teacher, model, set_names) if given is None else given
        if optimizer is not None:
            optimizer = (optimizer[0], {**optimizer[1], "lr": rate})
        if args.learning_rate == own:  # another one is that of the `args` that were given
            args.learning_rate = rate
    if args.label_smoothing_factor and "compute_loss_func" not in of_trainer:
        logger.warning(
            "label_smoothing_factor=%s: no effect, because the labels are distributions already",
            args.label_smoothing_factor,
        )
    arguments = {
        "args": args,
        "train_dataset": dataset,
        "data_collator": farzi.collator(),
        "compute_loss_func": soft_cross_entropy,
        "optimizer_cls_and_kwargs": optimizer,
        **of_trainer,
    }
    return Trainer(model=attach_soft_inputs(model), **arguments)
