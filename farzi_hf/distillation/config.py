"""FarziConfig: all settings of a distillation. It adds the summary and the inner loop to
`TrainingArguments`, the outer loop.
"""

from __future__ import annotations

import copy
import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar

from farzi_hf.common.settings import (
    Setting,
    check_settings,
    converted,
    made,
    settings_of,
)
from farzi_hf.data import Vocabulary
from farzi_hf.data.seeds import check_seed
from farzi_hf.distillation.fields import ConfigFields
from farzi_hf.distillation.inner_training import SyntheticTraining
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives import OBJECTIVES, Objective, Parts
from farzi_hf.distillation.packing import Packing
from farzi_hf.distillation.processes import check_launcher
from farzi_hf.distillation.rows import RealData
from farzi_hf.distillation.settings import SETTINGS
from farzi_hf.distillation.teacher import TeacherTraining
from farzi_hf.distillation.training_progress import cuts_of
from farzi_hf.distillation.trajectories import PretrainedStarts, TrajectoryBank
from farzi_hf.engine import OPTIMIZERS, Adjoint, InnerOptimizer
from farzi_hf.summary import FarziDataConfig
from farzi_hf.summary.forms import INPUTS, LABELS, DrawnInputs, Forms, forms_of
from farzi_hf.summary.initialization import Start

logger = logging.getLogger(__name__)

UNSUPPORTED = {
    "fp16": "gradients of the inner loop have no loss scaling and underflow; use bf16",
    "fp16_full_eval": (
        "it would round the summary itself, because this is the Trainer's model; leave it out"
    ),
    "bf16_full_eval": (
        "it would round the summary itself, because this is the Trainer's model; leave it out, or"
        " set bf16"
    ),
    "label_smoothing_factor": (
        "the objective is the outer loss, and it has no smoothing; leave it out"
    ),
    "neftune_noise_alpha": (
        "it is noise on a model's embeddings, and this Trainer's model is the summary; leave it out"
    ),
    "gradient_checkpointing": (
        "the adjoint decides what is kept: set adjoint='checkpoint' or 'reversible'; and"
        " checkpoint_layers, for a deep learner"
    ),
    "save_only_model": (
        "a run could not go on from such a checkpoint, and the optimizer's state is twice a"
        " summary; leave it out"
    ),
    "torch_compile_backend": "the inner loop is compiled by torch's own; leave it out",
    "deepspeed": (
        "a summary is small and needs no sharding; use several processes with plain data"
        " parallelism"
    ),
    "fsdp": (
        "a summary is small and needs no sharding; use several processes with plain data"
        " parallelism"
    ),
}
"""Fields of `TrainingArguments` that a distillation cannot use, each with the reason and the
remedy.
"""


@dataclass(repr=False)  # the inherited repr hides tokens
class FarziConfig(ConfigFields):
    """Settings of `FarziTrainer`. Fields that are not listed here are inherited from
    `transformers.TrainingArguments`.

    The inherited fields set the outer loop, except that `torch_compile` and `torch_compile_mode`
    compile the inner loop (see `unroll`). Some inherited defaults are different here:

    - `learning_rate` is 0.01, the rate of Adam on the summary. Soft inputs with shared labels can
      be trained with 0.03.
    - `max_grad_norm` is 0.1, about the usual norm of the meta-gradient. A chaotic learner cannot
      outweigh the others.
    - `lr_scheduler_type` is cosine: with small last steps, the summary becomes an average over many
      θ0.
    - `max_steps` is 0 or 400, by the labels: an outer step trains a whole learner, and epochs mean
      little. 0 leaves the summary at its start.
    - `num_train_epochs` is 0: `max_steps` sets the length. Set it to -1 to count epochs of the real
      data.
    - `per_device_train_batch_size` is 64: b, the real sequences in the outer loss.
    - `per_device_eval_batch_size` is 128: learners are small.
    - `logging_steps` is 10: an outer step takes seconds.
    - `save_steps` is 20: a checkpoint has some megabytes; writing it is much faster than a step.
    - `save_total_limit` is 3. It counts only checkpoints of this library, see
      `farzi_hf.distillation.run`.
    - `optim` is adamw_torch: the fused version is not exact across devices.
    - `ddp_find_unused_parameters` is False: latents and decoder are used in every step.
    - `dataloader_pin_memory` is False on a CPU: without a GPU, pinned memory is useless and torch
      warns about it.
    - `greater_is_better` is False for a perplexity: Trainer assumes that a higher metric is better,
      unless it is a loss.

    Settings that only one variant uses, such as those of an inner optimizer, are declared by the
    class of that variant.

    Raises:
        ValueError: a setting is out of range or unknown.
    """

    settings: ClassVar[dict[str, Setting]] = SETTINGS

    learning_rate: float = 0.01
    max_grad_norm: float = 0.1
    lr_scheduler_type: str = "cosine"
    max_steps: int | None = None
    num_train_epochs: float = 0.0
    per_device_train_batch_size: int = 64
    per_device_eval_batch_size: int = 128
    logging_steps: float = 10
    save_steps: float = 20
    save_total_limit: int | None = 3
    optim: str = "adamw_torch"
    ddp_find_unused_parameters: bool | None = False

    def __post_init__(self) -> None:
        vars(self).update(converted(type(self), vars(self)))
        if self.labels is None:
            # A name that the table does not have is refused later.
            self.labels = INPUTS.get(self.inputs, DrawnInputs).labels_by_default
        if self.labels not in LABELS:
            raise ValueError(
                f"labels={self.labels!r} is unknown; choose one of {', '.join(LABELS)}"
            )
        if self.max_steps is None and self.num_train_epochs > 0:
            self.max_steps = -1
        if self.inner_optimizer is None and self.max_steps:  # which need its derivative
            self.inner_optimizer = "adam"
        if self.student_start is None and self.max_steps:  # whose learners begin so
            self.student_start = "random"
        for name, value in self.defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, copy.copy(value))
        for name, remedy in UNSUPPORTED.items():
            if getattr(self, name):
                raise ValueError(f"{name}={getattr(self, name)!r} is not supported: {remedy}")
        # Transformers seeds NumPy's old generator with this number; it takes 32 bits.
        check_seed(self.seed, bits=32)
        if self.greater_is_better is None and (self.metric_for_best_model or "").endswith(
            "perplexity"
        ):
            self.greater_is_better = False
        if (self.num_train_epochs > 0) == (self.max_steps >= 0):
            raise ValueError(
                f"num_train_epochs={self.num_train_epochs} and max_steps={self.max_steps}: exactly"
                " one of them sets the length; give max_steps"
            )
        self.use_cpu |= check_launcher()
        # torch_compile means the inner loop here. Trainer must not see it, or a mode of it: it
        # would compile the summary.
        mode = self.torch_compile_mode
        self.torch_compile_mode = None
        compiled = self.torch_compile or mode is not None
        self.torch_compile = False
        super().__post_init__()
        self.torch_compile = compiled
        self.torch_compile_mode = mode
        if self.n_gpu > 1:
            raise ValueError(
                f"this process sees {self.n_gpu} GPUs, among which Trainer would share each batch,"
                " and an inner loop is on one; launch a process for each with `accelerate launch"
                f" --num_processes {self.n_gpu} …`, or show one with CUDA_VISIBLE_DEVICES=0"
            )
        self.dataloader_pin_memory &= self.device.type != "cpu"
        self.check()

    @property
    def defaults(self) -> dict[str, Any]:
        """Of the settings that the form of the labels decides."""
        return getattr(LABELS.get(self.labels), "defaults", {})

    def check(self) -> None:
        """The checks of our settings, by the variants that have them: a ValueError if one is out of
        range, or does not fit another one. Call it where fields were set afterwards.
        """
        check_settings(self)
        for name in ("teacher_cuts", "packing_cuts"):
            cuts_of(name, getattr(self, name))
        if not 0 <= self.learning_rate < math.inf:
            raise ValueError(
                f"learning_rate={self.learning_rate} is not usable; give a number such as 0.01"
            )
        order = getattr(self, "train_sampling_strategy", "random")
        if order not in ("random", "sequential"):
            raise ValueError(
                f"train_sampling_strategy={order!r} follows no seed; leave it at 'random'"
            )
        if self.checkpoint_layers and self.torch_compile:  # compiled code does not see through it
            raise ValueError(
                "checkpoint_layers=True goes with plain code, not with torch_compile=True; leave"
                " one out"
            )
        if (self.window or 0) > self.inner_steps:
            logger.warning(
                f"window={self.window} is more than inner_steps={self.inner_steps}: all are"
                " differentiated."
            )
        size = self.synthetic_batch_size or 0
        if not INPUTS[self.inputs].is_endless and size > max(
            self.num_sequences, self.defaults.get("synthetic_batch_size", 0)
        ):
            logger.warning(
                f"synthetic_batch_size={size} is more than num_sequences={self.num_sequences}: a"
                " step takes all."
            )
        OBJECTIVES[self.objective].check(self)
        if self.max_steps and not OPTIMIZERS[self.inner_optimizer].elementwise:
            raise ValueError(
                f"inner_optimizer={self.inner_optimizer!r} has no derivative, so it trains students"
                " alone; give max_steps=0, or inner_optimizer='adam' for outer steps"
            )
        for make, what in (
            (self.make_inner_optimizer, "inner optimizer, inner_…"),
            (self.make_adjoint, "adjoint"),
            (self.make_teacher_training, "teacher, teacher_…"),
            (self.make_packing, "packing, packing_…"),
            (self.make_start, "start"),
            (lambda: made(PretrainedStarts, self, bank=None), "starts"),
            (lambda: self.summary_config(2, teacher=Vocabulary.small_learner), "summary"),
        ):
            try:
                make()
            except (TypeError, ValueError) as error:
                raise ValueError(f"settings of the {what}: {error}") from None

    def summary_config(
        self,
        vocab_size: int,
        label_dim: int | None = None,
        teacher: Mapping[str, Any] | None = None,
    ) -> FarziDataConfig:
        """The config of the summary to be distilled, with the settings of the inner loop.

        Args:
            vocab_size: V, of the learner.
            label_dim: e, where this config says none.
            teacher: the config of a carried one.
        """
        of_labels = {
            "label_dim": getattr(self, "label_dim", None) or label_dim,
            "teacher": teacher,
        }
        copied = (
            "num_sequences",
            "sequence_length",
            "latent_dim",
            "tau",
            "inputs",
            "labels",
            "storage",
        )
        return FarziDataConfig(
            **{name: getattr(self, name) for name in copied},
            vocab_size=vocab_size,
            inner=self.inner_settings(),
            **{name: of_labels[name] for name in LABELS[self.labels].fields},
            seed=self.seed,
        )

    def inner_settings(self) -> dict[str, Any]:
        """The settings with which a student trains like the learners of the distillation:
        `config.inner` of the summary.
        """
        of_optimizer = {
            each.name: getattr(self, name)
            for name, _, each in settings_of(OPTIMIZERS[self.inner_optimizer])
        }
        of_students = LABELS[self.labels].of_students
        return {
            "optimizer": self.inner_optimizer,
            **{name: value for name, value in of_optimizer.items() if value is not None},
            **{name: getattr(self, name) for name in of_students},
            "steps": self.inner_steps,
            "lr_scheduler_type": self.inner_lr_scheduler_type,
            **({"warmup_steps": self.inner_warmup_steps} if self.inner_warmup_steps else {}),
            "synthetic_batch_size": self.synthetic_batch_size or self.num_sequences,
        }

    def to_recipe(self) -> dict[str, Any]:
        """The settings that another run needs to make the same summary: all fields of ours, and
        some of the outer loop.
        """
        settings = {
            f.name: getattr(self, f.name)
            for f in fields(self)
            if f.name in self.settings or f.name in _OUTER
        }
        if not self.load_best_model_at_end:
            settings |= {"metric_for_best_model": None, "greater_is_better": None}
        return json.loads(json.dumps(settings))  # plain types: enums become strings, tuples lists

    def make_inner_optimizer(self) -> InnerOptimizer:
        """The optimizer of the learners."""
        return made(OPTIMIZERS[self.inner_optimizer], self)

    def make_adjoint(self) -> Adjoint | None:
        """How the inner loop is differentiated; None leaves the choice to `unroll`."""
        return made(self.settings["adjoint"].metadata["table"][self.adjoint], self)

    def make_start(self) -> Start:
        """How the inputs of a new summary begin."""
        start = INPUTS[self.inputs].start
        if isinstance(start, str):
            start = self.settings[start].metadata["table"][getattr(self, start)]
        return made(start, self)

    def with_fields(self, **values: Any) -> FarziConfig:
        """A copy in which these fields have other values, which are checked as at the beginning.
        (`dataclasses.replace` would prepare the fields of `TrainingArguments` once more.)
        """
        other = copy.copy(self)
        for name, value in values.items():
            setattr(other, name, value)
        other.check()
        return other

    def make_teacher_training(self) -> TeacherTraining:
        """How a teacher of labels is trained."""
        return replace(TeacherTraining.of(vars(self)), count=self.num_teachers)

    def make_packing(self) -> Packing:
        """How a carried teacher is trained in few bits."""
        return made(Packing, self)

    def make_training(self, forms: Forms | None = None) -> SyntheticTraining:
        """The inner loop.

        Args:
            forms: of the summary; by default those of any summary with these settings.
        """
        if forms is None:
            forms = forms_of(self.summary_config(2, teacher=Vocabulary.small_learner))
        return SyntheticTraining.of(
            self.inner_settings(),
            forms,
            window=self.window or None,
            adjoint=self.make_adjoint(),
            torch_compile=self.torch_compile_mode or self.torch_compile,
        )

    def make_objective(
        self,
        learner: Learner | None = None,
        training: SyntheticTraining | None = None,
        real: RealData | None = None,
    ) -> Objective:
        """Makes the outer loss.

        Args:
            learner: if given, the trajectories must belong to this model.
            training: the inner loop; by default a new one.
            real: the rows of real data.
        """
        bank = (
            None
            if self.trajectories is None
            else TrajectoryBank(self.trajectories, self.num_trajectories)
        )
        if bank is not None and learner is not None:
            bank.check(learner)
        parts = Parts(training or self.make_training(), bank, real or RealData(None, None))
        return OBJECTIVES[self.objective].from_config(self, parts)


_OUTER = (
    "learning_rate",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "max_grad_norm",
    "optim",
    "optim_args",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "warmup_steps",
    "bf16",
    "seed",
    "num_train_epochs",
    "data_seed",
    "dataloader_drop_last",
    "load_best_model_at_end",
    "metric_for_best_model",
    "greater_is_better",
)
"""Fields of `TrainingArguments` that belong to a recipe."""
