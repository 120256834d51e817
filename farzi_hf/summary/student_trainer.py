"""The stock Trainer for a student of a summary: `FarziData.trainer`."""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedModel, Trainer

from farzi_hf.summary.soft_tokens import check_student
from farzi_hf.summary.soft_training import attach_soft_inputs, soft_cross_entropy

if TYPE_CHECKING:
    import os

    from farzi_hf.summary.farzi_data import FarziData
    from farzi_hf.summary.student_starts import StudentStart


def student_trainer(
    farzi: FarziData,
    model: PreTrainedModel,
    output_dir: str | os.PathLike,
    start: StudentStart,
    changes: dict[str, Any],
) -> Trainer:
    """A Trainer of `model`, which begins as `start` says.

    Args:
        farzi: the summary.
        model: changed in place.
        output_dir: as for `FarziData.training_arguments`.
        start: how the model begins.
        changes: arguments of `Trainer`, or of `TrainingArguments`; both may be there.

    Raises:
        ValueError: the rows are text, the model has another vocabulary, or there are arguments for
            `args` beside `args`.
    """
    farzi.forms.inputs.check_ready()
    check_student(model, farzi.config.vocab_size)
    names = signature(Trainer).parameters
    settings = {name: x for name, x in changes.items() if name not in names}
    of_trainer = {name: x for name, x in changes.items() if name in names}
    if "args" not in of_trainer:
        of_trainer["args"] = farzi.training_arguments(output_dir, **settings)
    elif settings:
        raise ValueError(f"{', '.join(settings)}: give them in args, or leave args out")
    rows = farzi.forms.rows_of_start(farzi.tensors, of_trainer["args"].seed)
    start.set_into(model, farzi.forms.labels.model, rows)
    arguments = {
        "train_dataset": farzi.as_dataset(),
        "data_collator": farzi.collator(),
        "compute_loss_func": soft_cross_entropy,
        "optimizer_cls_and_kwargs": farzi.optimizer_cls_and_kwargs,
        **of_trainer,
    }
    return Trainer(model=attach_soft_inputs(model), **arguments)
