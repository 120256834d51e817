"""FarziTrainer: a `transformers.Trainer` whose trained model is the summary. It only connects the parts of the other modules."""

from __future__ import annotations

import json
import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, IterableDataset
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import TrainOutput

from farzi_hf.data.seeds import Purpose, derive
from farzi_hf.data.streams import RowStream, described
from farzi_hf.distillation.callbacks import (
    ChaosWarning,
    CurrentIntervals,
    DivergenceWarning,
    MeanCorrection,
    StepFigures,
    StudentProgress,
    phase,
    without_prediction_bar,
)
from farzi_hf.distillation.checkpoints import changes, last_checkpoint
from farzi_hf.distillation.checkpoints import described as as_text
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.objectives import ConfigurableObjective, Objective, facts_of, figures_of
from farzi_hf.distillation.real_rows import RealRows
from farzi_hf.distillation.real_training import RealData
from farzi_hf.distillation.resumable_trainer import OF_THE_OPTIMIZER
from farzi_hf.distillation.row_checks import check_sequence_length, run_check
from farzi_hf.distillation.start_trial import choose_start
from farzi_hf.distillation.student_trainer import StudentTrainer
from farzi_hf.distillation.teacher import GivenTeachers, Labelling, UntrainedTeachers
from farzi_hf.distillation.trajectories import TrajectoryBank
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import LABELS, Tensors
from farzi_hf.summary.initialization import spectral_starts
from farzi_hf.summary.store.atomic_folder import check_destination
from farzi_hf.summary.store.tensor_file import fingerprint
from farzi_hf.tasks import LanguageModeling, Task

logger = logging.getLogger(__name__)

READ_LATER = (
    *OF_THE_OPTIMIZER, "gradient_accumulation_steps", "max_grad_norm", "optim", "data_seed", "dataloader_drop_last", "eval_students",
    "max_non_finite", "storage",
)  # fmt: skip
"""Settings of a recipe that `train` reads. The others are built into the trainer's parts when it is made."""


class FarziTrainer(StudentTrainer):
    """Distils `train_dataset` into a `FarziData`, which is the Trainer's `model`.

    Each outer step trains a fresh learner for T steps on the summary and computes its loss on a batch of real sequences. The
    exact gradient of this loss through the training updates latents and decoder (equation 2 of the paper). All random numbers of
    a step are functions of (seed, global step, process). A run that resumes from a checkpoint therefore equals an uninterrupted
    run, bit for bit. n processes equal one process that accumulates n batches per step. Settings that are changed at a resume
    take effect, and `history` and the recipe record them; the settings in `checkpoints.KEPT` cannot change.

    The log has the Trainer's own figures and these: `loss`, the mean of the outer losses that are finite (NaN if none is);
    `grad_norm`, the norm of the meta-gradient before clipping; `non_finite_steps`;
    `seconds_per_step`; `peak_memory_gib`. The first entry also has `start_seconds`, the time of teachers or of the choice of κ, and
    `concentration`, if κ was chosen.

    Args:
        learner_init: the learner: a function that returns a freshly initialised model, a config, or a model (only its class
            and config are used, not its weights). See `farzi_hf.Learner`.
        args: a `FarziConfig`.
        train_dataset: a `datasets.Dataset` with `input_ids`: lists of token ids with BOS and EOS, or of items. Or an `IterableDataset`,
            which is read in its order again and again (see `RowStream`); teachers shuffle it. Its first 4 million ids make the start.
        eval_dataset: one `Dataset` of such rows, or several by name, whose metrics are called `eval_NAME_…`.
        processing_class: the tokenizer; it is saved with the summary. This is short for `task=LanguageModeling(tokenizer)`.
        data_collator: pads real sequences and makes `labels`; by default the task's collator.
        farzi_data: a summary to go on with; its shape and τ must agree with `args`. By default, a new summary is made.
        objective: the outer loss, as in `farzi_hf.distillation.objectives`; by default the objective that `args` names.
        task: `LanguageModeling(tokenizer)` or `Recommendation(vocabulary)`. The task sets collator, label names and metrics. Data
            sets are then whole sentences or histories; the task cuts histories that are longer than a synthetic sequence.
        teacher: labels the inputs of a summary with `labels="own"`: a trained model over the same vocabulary, several models, or a
            `TrajectoryBank`; or configs of one or several models, which are trained for it as `args.teacher_…` say. By default, the learner is.
        kwargs: arguments of `Trainer`, such as callbacks and optimizers. `compute_metrics` and `preprocess_logits_for_metrics`
            replace those of the task.

    Raises:
        ValueError, TypeError: data or settings are unusable; the message names the argument and the remedy.
    """

    def __init__(
        self,
        learner_init: Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel,
        args: FarziConfig,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | Mapping[str, Dataset] | None = None,
        processing_class: Any = None,
        data_collator: Callable | None = None,
        farzi_data: FarziData | None = None,
        objective: Objective | None = None,
        task: Task | None = None,
        teacher: GivenTeachers | UntrainedTeachers | None = None,
        **kwargs: Any,
    ) -> None:
        if not isinstance(args, FarziConfig):
            raise TypeError(f"args is {type(args).__name__}; give a FarziConfig, for instance FarziConfig('out')")
        run_check("output_dir", check_destination, Path(args.output_dir))
        if task is not None and processing_class is not None:
            raise ValueError(
                "task and processing_class are both given, but the task has a processing_class of its own; leave processing_class out"
            )
        self.task = task or LanguageModeling(processing_class)
        self.learner = Learner(learner_init, checkpoint_layers=args.checkpoint_layers)
        self._labelling = Labelling.by(teacher, self.learner)
        check_sequence_length(args.sequence_length, self.learner)
        collator = data_collator or self.task.collator
        self._real_rows = RealRows(self.task, self.learner, collator, args.sequence_length)
        train_dataset = self._real_rows.training(train_dataset, args)
        summary = self._summary(args, farzi_data, train_dataset)
        super().__init__(
            model=summary,
            args=args,
            train_dataset=train_dataset,
            eval_dataset=self._real_rows.evaluation(eval_dataset),
            # A list of item names is saved with the summary. A checkpoint could not save it.
            processing_class=summary.processing_class if hasattr(summary.processing_class, "save_pretrained") else None,
            data_collator=collator,
            **{
                "compute_metrics": self.task.compute_metrics,
                "preprocess_logits_for_metrics": self.task.preprocess_logits_for_metrics,
                **kwargs,
            },
        )
        self.label_names = self.args.label_names or list(self.task.label_names)
        self.learner.to(self.args.device)
        self.training = args.make_training()
        real = RealData(self.train_dataset, self.data_collator, args.device)
        if objective is not None and args.objective != args.settings["objective"].default:
            raise ValueError(
                f"objective is given, and args.objective={args.objective!r} names another one; leave one of them out"
            )
        self.objective = objective or args.make_objective(self.learner, self.training, real, self._labelling)
        # A recipe cannot hold an object, so it holds the name of the class. FarziConfig refuses such a recipe.
        self._given = {"objective": type(objective).__name__} if objective is not None else {}
        # Each micro-batch has its own learner, and its loss is a mean over that micro-batch alone.
        self.model_accepts_loss_kwargs = False
        self._student: Parameters | None = None
        self._micro_step = (-1, 0)
        self._interval, self._run = MeanCorrection(), MeanCorrection()
        self._evaluations: dict[str, dict[str, float]] = {}
        self._built_with, self._began_with = args.to_recipe(), None
        self._add_callbacks()

    def _summary(self, args: FarziConfig, farzi_data: FarziData | None, rows: Dataset | RowStream | None) -> FarziData:
        """The summary to train: the one that is given, or a new one at its start."""
        label_dim = self._labelling.label_dim if args.labels == "own" else None
        config = args.summary_config(self.learner.vocab_size, label_dim)
        self._start_facts, self._open_start = {}, None
        if farzi_data is not None:
            farzi_data.config.check_equal(config)
        summary = farzi_data or FarziData(config)
        if self.task.processing_class is not None:  # an error should come now, not when the summary is saved
            summary.adopt_processing_class(self.task.processing_class, "processing_class")
        if farzi_data is None and rows is not None:
            with phase("Start of the summary", disable=args.disable_tqdm or args.process_index > 0):
                start = args.make_start()
                start(summary, rows, args.seed)
            is_open = LABELS[args.labels].by_teachers or start.is_open
            self._open_start = summary.fingerprint() if is_open else None
        return summary

    def _add_callbacks(self) -> None:
        self._figures, self._students_bar = StepFigures(self.args.device), StudentProgress()
        for callback in (self._figures, ChaosWarning(), DivergenceWarning(), CurrentIntervals(), self._students_bar):
            self.add_callback(callback)
        if not self.args.disable_tqdm:
            self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
            self.add_callback(without_prediction_bar(DEFAULT_PROGRESS_CALLBACK))

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in `Trainer`. The finished summary is rounded as `args.storage` says; checkpoints and what is pushed meanwhile are exact.

        Evaluations during the training are of exact numbers, and are not saved with rounded ones: call `evaluate()` afterwards.
        """
        self.model.config.storage = "exact"
        output = super().train(*args, **kwargs)
        self.model.store_as(self.args.storage)
        return output._replace(training_loss=output.metrics.get("train_loss", output.training_loss))

    def _prepare_run(self, checkpoint: str | None) -> TrainerState | None:
        changed = changes(self._built_with, self.args.to_recipe())
        if late := {name: pair for name, pair in changed.items() if name not in READ_LATER}:
            raise ValueError(
                f"args have changed since FarziTrainer was made, which they were built into: {as_text(late)}; make another FarziTrainer"
            )
        state = super()._prepare_run(checkpoint)
        facts = [*state.log_history, self._record.start_facts] if state else []
        self._began_with = next((x["concentration"] for x in facts if "concentration" in x), None)
        return state

    # -- outer step --------------------------------------------------------------------------------------------------

    def _begin(self, state: TrainerState | None) -> None:
        if state is None:
            self.tune_initialization()
        else:
            self._start_facts = dict(self._record.start_facts)
        self._record = replace(self._record, start_facts=self._start_facts)
        self._micro_step = (-1, 0)
        self._interval, self._run = MeanCorrection(), MeanCorrection()
        self.model.config.inner = self.args.inner_settings()
        if not self.args.max_steps:
            self.log(self._start_facts)

    def tune_initialization(self) -> None:
        """Completes the start of a new summary: it chooses κ, unless `args.concentration` gives it; or it labels the inputs by a teacher.

        `train()` calls this first. Call it to look at the start before the training; after `check_run` of a run that goes on, it is the start
        of that run. For κ, two learners train from scratch on each
        candidate, as long as two or three outer steps take. A teacher trains on the real data, unless one was given.
        """
        if self._open_start is None or self._open_start != self.model.fingerprint():  # complete, or changed by someone
            return
        args, started = self.args, time.perf_counter()
        real = RealData(self.train_dataset, self.data_collator, args.device, self._quiet)
        if args.labels == "own":
            self._labelling(self.model, real, args)
        elif self._began_with is not None:
            spectral_starts(self.model, self.train_dataset, args.seed)(self._began_with)
        else:
            train, size = partial(self._trained, Purpose.START_TRIAL), args.per_device_train_batch_size
            self._start_facts["concentration"] = choose_start(self.model, self.learner, train, real, size, args.seed)
        self._start_facts["start_seconds"] = round(time.perf_counter() - started, 2)
        self._open_start = None

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Tensor], return_outputs: bool = False, **kwargs: Any
    ) -> Tensor:
        """The outer loss. Its gradient in latents and decoder is the meta-gradient."""
        # The model's forward makes this an ordinary step for DistributedDataParallel.
        return model(functional=partial(self._outer_loss, inputs, self._learner_seed()))

    def _outer_loss(self, inputs: Mapping[str, Tensor], seed: int, tensors: Tensors) -> Tensor:
        try:
            return self.objective(self.learner, tensors, inputs, seed)
        except OverflowError as error:  # a learner diverged so far that the adjoint has no room for it
            logger.warning("Step %d: the learner diverged: %s.", self.state.global_step, error)
            return math.nan * sum(x.sum() for x in tensors.values())

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One micro-batch. A meta-gradient without a finite norm is dropped and does not change the summary."""
        loss = super().training_step(*args, **kwargs)
        # The gradient is now summed over micro-batches and processes, so that all processes decide alike.
        if self.accelerator.sync_gradients and not torch.isfinite(self._gradient_norm()):
            self._drop_gradients()
        finite = bool(torch.isfinite(loss))
        self._interval.count(finite)
        self._run.count(finite)
        return loss if finite else torch.zeros_like(loss)  # a NaN would never leave Trainer's running sum

    def _gradient_norm(self) -> Tensor:
        """The norm as clipping computes it: infinite for entries that are large but finite, which clipping would set to zero."""
        norms = [torch.linalg.vector_norm(p.grad) for p in self.model.parameters() if p.grad is not None]
        return torch.linalg.vector_norm(torch.stack(norms)) if norms else torch.zeros(())

    def _drop_gradients(self) -> None:
        for parameter in self.model.parameters():
            parameter.grad = None  # the optimizer then leaves latents and decoder as they are
        step, skipped = self.state.global_step, self._record.non_finite_steps + 1
        self._record = replace(self._record, non_finite_steps=skipped)
        logger.warning("Step %d: the meta-gradient is not finite; skipped (%d so far).", step, skipped)
        if skipped > self.args.max_non_finite:
            folder = self.args.output_dir
            where = f"go on from the last checkpoint in {folder}" if last_checkpoint(folder) else "start a new run"
            raise FloatingPointError(
                f"{skipped} meta-gradients were not finite, more than max_non_finite={self.args.max_non_finite}; {where} "
                "with a smaller inner_learning_rate, learning_rate or window, or a larger inner_epsilon"
            )

    def _learner_seed(self) -> int:
        """The seed of this micro-batch's learner: a function of seed, global step and the micro-batch's number over all processes."""
        last, micro = self._micro_step
        self._micro_step = step, micro = self.state.global_step, micro + 1 if last == self.state.global_step else 0
        position = micro * self.args.world_size + self.args.process_index
        return derive(self.args.seed, Purpose.OUTER_STEP, step, position)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["loss"] *= self._interval.factor(self.accelerator)
            self._interval = MeanCorrection()
            logs |= {
                "non_finite_steps": self._record.non_finite_steps,
                **self._figures.since_last_log(),
                **figures_of(self.objective),
            }
        if "train_loss" in logs:
            logs["train_loss"] *= self._run.factor(self.accelerator)
        if {"loss", "train_loss"} & logs.keys():
            logs, self._start_facts = {**logs, **self._start_facts}, {}  # logged once
            self._record = replace(self._record, start_facts={})
        super().log(logs, start_time)

    # -- data and artefact -------------------------------------------------------------------------------------------

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:  # the columns of the learner, not of FarziData.forward
            self._signature_columns = ["input_ids", "attention_mask", *self.label_names]

    def _settings(self) -> dict[str, Any]:
        config = json.loads(self.learner.model.config.to_json_string(use_diff=False))
        learner = {k: v for k, v in config.items() if not k.startswith("_") and k != "transformers_version"}
        data = {"train_dataset": described(self.train_dataset), "world_size": self.args.world_size}
        if self.args.trajectories is not None and not self._given:  # the folder alone may be another one, or have moved
            data["trajectories_recorded"] = TrajectoryBank(self.args.trajectories).fingerprint
        return {**self.args.to_recipe(), **self._given, "learner": learner, **data}

    def _process_state(self) -> dict[str, Tensor]:
        return self.objective.state_dict() if isinstance(self.objective, ConfigurableObjective) else {}

    def _load_process_state(self, tensors: dict[str, Tensor]) -> None:
        self.objective.load_state_dict(tensors, self.learner, self.args.device)

    def _artefact(self) -> dict[str, Any]:
        # Only metrics of exactly the numbers in the file count. After load_best_model_at_end, the last evaluation belongs to other tensors.
        known, evaluation = self.model.results, self._evaluations.get(fingerprint(self.model.contents().tensors), {})
        # The trainer knows the rows, but not where they come from. Run adds the name.
        recipe = {
            "dataset": None,
            "learner": self.learner.model.config.to_diff_dict(),
            **self.args.to_recipe(),
            **self._given,
        }
        return {
            "metrics": {**known.metrics, **evaluation, **facts_of(self.objective)},
            "recipe": known.recipe or {**recipe, **self._record.recipe_entry},
        }
