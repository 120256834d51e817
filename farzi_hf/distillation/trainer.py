"""FarziTrainer: a `transformers.Trainer` whose trained model is the summary.

It holds its parts: the `FirstSummary` that it begins with, the `TrainingRun` in its folder,
`Students` that measure the summary, the rows, the labels' source and the callbacks. Its methods are
those of Trainer that differ here.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from datasets import Dataset, IterableDataset
from huggingface_hub.errors import HTTPError
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import PreTrainedConfig, PreTrainedModel, Trainer, TrainerState
from transformers.trainer import DEFAULT_PROGRESS_CALLBACK
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from farzi_hf.common.files import names_full_disk
from farzi_hf.common.settings import changed
from farzi_hf.data.seeds import Purpose, derive, seeded
from farzi_hf.data.sequences import id_bits, stored_sequences
from farzi_hf.data.streams import RowStream
from farzi_hf.distillation.config import FarziConfig
from farzi_hf.distillation.first_summary import FirstSummary
from farzi_hf.distillation.inner_training import Students
from farzi_hf.distillation.labelling import GivenTeachers, Labelling, UntrainedTeachers
from farzi_hf.distillation.learner import Learner, Parameters
from farzi_hf.distillation.memory import memory_of
from farzi_hf.distillation.objectives import Objective
from farzi_hf.distillation.packing import Rounding
from farzi_hf.distillation.processes import largest
from farzi_hf.distillation.rows import RealData, RealRows, run_check
from farzi_hf.distillation.run import (
    START_SECONDS,
    LogSums,
    TrainingRun,
    peak_memory,
    without_prediction_bar,
)
from farzi_hf.engine import ReplayError
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import Tensors
from farzi_hf.summary.soft_tokens import shifted_cross_entropy
from farzi_hf.summary.store import hub
from farzi_hf.summary.store.folder import check_destination
from farzi_hf.summary.store.tensor_file import fingerprint
from farzi_hf.tasks import LanguageModeling, Task

logger = logging.getLogger(__name__)

LearnerInit = Callable[[], PreTrainedModel] | PreTrainedConfig | PreTrainedModel
"""What makes a learner, see `farzi_hf.Learner`."""

_OF_EVERY_ENTRY = ("epoch", "step")
"""What Trainer adds to each entry of the log."""
_SPEED = ("_runtime", "_samples_per_second", "_steps_per_second", "_model_preparation_time")
"""The ends of the names of those metrics that tell how fast Trainer has evaluated."""


class MicroStep(NamedTuple):
    """A micro-batch of this process."""

    step: int
    """The global step that it belongs to."""
    number: int
    """Its place among those of that step, from 0 on."""


@dataclass
class Pace:
    """How long outer steps have taken since the last entry of the log."""

    seconds: float = 0.0
    """Of losses and meta-gradients."""
    steps: int = 0
    """Outer steps."""


class FarziTrainer(Trainer):
    """Distils `train_dataset` into a `FarziData`, which is the Trainer's `model`.

    Each outer step trains a fresh learner for T steps on the summary and computes its loss on a
    batch of real sequences. The exact gradient of this loss through the training updates latents
    and decoder (equation 2 of the paper). All random numbers of a step are functions of (seed,
    global step, process). A run that resumes from a checkpoint therefore equals an uninterrupted
    run, bit for bit, and so does its log, except for times. n processes equal one process that
    accumulates n batches per step. A run goes on with the settings that it began with; with others,
    begin a new run that goes on from a summary: `farzi_data`.

    The log has the Trainer's own figures and these: `loss`, the mean of the outer losses (for one
    that is not finite, Trainer adds the mean of those before it; NaN if all are); `grad_norm`, the
    norm of the meta-gradient before clipping; `non_finite_steps`; `seconds_per_step`, of losses and
    meta-gradients; `peak_memory_gib`; and, in an entry of its own, `start_seconds`, the time of
    teachers, with their `teacher_steps_taken` and `teacher_validation`, the loss on `eval_dataset`
    in nats per token, by which they stop early.

    Args:
        model_init: the learner: a function that returns a freshly initialised model, a config, or
            a model (only its class and config are used, not its weights). See `farzi_hf.Learner`.
            `learner_init` is the same, under the name that it has in the paper's terms.
        args: a `FarziConfig`.
        train_dataset: a `datasets.Dataset` with `input_ids`: lists of token ids with BOS and EOS,
            or of items; or with `text`, of which the tokenizer makes them. Or an `IterableDataset`,
            which is read in its order again and again (see `RowStream`); teachers shuffle it. Its
            first 4 million ids make the start.
        eval_dataset: one `Dataset` of such rows, or several by name, whose metrics are called
            `eval_NAME_…`.
        processing_class: the tokenizer; it is saved with the summary. This is short for
            `task=LanguageModeling(tokenizer)`.
        data_collator: pads real sequences and makes `labels`; by default the task's collator.
        farzi_data: a summary to go on with; its shape and τ must agree with `args`. By default, a
            new summary is made.
        objective: the outer loss, as in `farzi_hf.distillation.objectives`; by default the
            objective that `args` names.
        task: `LanguageModeling(tokenizer)` or `Recommendation(vocabulary)`. The task sets collator,
            label names and metrics. Data sets are then whole sentences or histories; the task cuts
            histories that are longer than a synthetic sequence.
        teacher: labels the inputs: a trained model over the same vocabulary, or the config of one
            that is trained for it as `args.teacher_…` say; with `labels="own"` also several of
            either kind. By default, the learner is trained for it.
        kwargs: arguments of `Trainer`, such as callbacks and optimizers. `compute_metrics` and
            `preprocess_logits_for_metrics` replace those of the task.

    Raises:
        ValueError, TypeError: data or settings are unusable; the message names the argument and the
            remedy.
    """

    def __init__(
        self,
        model_init: LearnerInit | None = None,
        args: FarziConfig | None = None,
        train_dataset: Dataset | IterableDataset | None = None,
        eval_dataset: Dataset | Mapping[str, Dataset] | None = None,
        processing_class: Any = None,
        data_collator: Callable | None = None,
        farzi_data: FarziData | None = None,
        objective: Objective | None = None,
        task: Task | None = None,
        teacher: GivenTeachers | UntrainedTeachers | None = None,
        learner_init: LearnerInit | None = None,
        **kwargs: Any,
    ) -> None:
        learner_init = _one_of(model_init, learner_init)
        _check_arguments(args, task, processing_class, objective)
        self.task = task or LanguageModeling(processing_class)
        self.learner = Learner(learner_init, checkpoint_layers=args.checkpoint_layers)
        self.labelling = Labelling.by(teacher, self.learner)
        first = FirstSummary(args, self.task, self.learner, self.labelling, farzi_data)
        first.check_models()
        collator = data_collator or self.task.collator
        self._real_rows = RealRows(self.task, self.learner, collator, args.sequence_length)
        self.sequences = (train_dataset, eval_dataset)
        """What was given, before it is cut into rows."""
        train_dataset = self._real_rows.training(train_dataset, args)
        summary = first.summary(train_dataset)
        # Teachers complete the start of a new summary, unless somebody changes it before.
        is_open = first.is_completed_by_teachers and train_dataset is not None
        self._open_start = summary.fingerprint() if is_open else None
        """The fingerprint of a start that teachers have to complete."""
        of_task = {
            "compute_metrics": self.task.compute_metrics,
            "preprocess_logits_for_metrics": self.task.preprocess_logits_for_metrics,
        }
        # A list of item names is saved with the summary. A checkpoint could not save it.
        is_tokenizer = hasattr(summary.processing_class, "save_pretrained")
        # Trainer refuses a stream that is read for no step.
        is_unread_stream = isinstance(train_dataset, RowStream) and args.max_steps == 0
        with changed(args, max_steps=1 if is_unread_stream else args.max_steps):
            super().__init__(
                model=summary,
                args=args,
                train_dataset=train_dataset,
                eval_dataset=self._real_rows.evaluation(eval_dataset),
                processing_class=summary.processing_class if is_tokenizer else None,
                data_collator=collator,
                **{**of_task, **kwargs},
            )
        self.label_names = self.args.label_names or list(self.task.label_names)
        self.learner.to(self.args.device)
        self.training = args.make_training(self.model.forms)
        self.rounding = Rounding()
        self.objective = objective or args.make_objective(
            self.learner, self.training, self.real_data
        )
        # A recipe cannot hold an object, so it holds the name of the class. FarziConfig refuses
        # such a recipe.
        is_own = objective is not None
        self.own_objective = {"objective": type(objective).__name__} if is_own else {}
        # Each micro-batch has its own learner, and its loss is a mean over that micro-batch alone.
        self.model_accepts_loss_kwargs = False
        self._student: Parameters | None = None
        self._own_optimizer = self.optimizer is None
        self._evaluations: dict[str, dict[str, float]] = {}
        """The metrics of summaries that were evaluated, by their fingerprints."""
        self._memory: dict[str, dict[str, Any]] = {}
        """What carried teachers give away, by the fingerprints of their summaries."""
        self._begin_steps()
        self.run = TrainingRun(self)
        self.add_callback(self.run)
        if not args.disable_tqdm:
            self.remove_callback(DEFAULT_PROGRESS_CALLBACK)
            self.add_callback(without_prediction_bar(DEFAULT_PROGRESS_CALLBACK))

    def _begin_steps(self) -> None:
        """Forgets what an earlier training has counted and timed."""
        self._last_micro_step: MicroStep | None = None
        self._pace = Pace()

    # -- training ----------------------------------------------------------------------------------

    def check_run(self, resume_from_checkpoint: str | bool | None = None) -> None:
        """The checks that `train(resume_from_checkpoint)` makes before its first step. Call this
        before other long work.

        Raises:
            ValueError: there is no checkpoint to go on from; or a setting differs from the
                checkpoint's; or the output folder holds checkpoints of another run, or something
                else with the name of a checkpoint.
        """
        self.run.prepare(resume_from_checkpoint)

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """As in `Trainer`; `resume_from_checkpoint=True` goes on from the last complete checkpoint
        in the output folder.

        SIGINT, SIGTERM and SIGHUP end the training after a checkpoint of the present step, with
        every `save_strategy`. While teachers train, before the first step, they end it at once, and
        the same call goes on from their last evaluation. The finished summary is rounded as
        `args.storage` says; checkpoints are exact. Evaluations during the training are of exact
        numbers, and are not saved with rounded ones: call `evaluate()` afterwards. If
        `args.push_to_hub` is set, the finished summary is pushed; a push that fails is logged, and
        the training is not lost.

        Raises:
            ValueError: see `check_run`; another run writes to the output folder.
            Interrupted: a `SystemExit`: a signal came, and the checkpoint is written.
            FloatingPointError: more than `args.max_non_finite` meta-gradients were not finite.
        """
        self.model.config.storage = "exact"
        with self.run.in_folder():
            state = self.run.prepare(resume_from_checkpoint)
            if state is None:
                self.tune_initialization()
            else:
                self.run.restore()
            self.rounding.start(self.model, self.args.storage)
            self._begin_steps()
            self.model.config.inner = self.args.inner_settings()
            if self._own_optimizer:
                self.optimizer = None  # its moments are those of an earlier training
            output = self._outer_steps(state, **kwargs)
        self.rounding.finish(self.model)
        self.model.store_as(self.args.storage)
        self._warn_of_size()
        if self.args.push_to_hub:
            try:
                self.push_to_hub(commit_message="End of training")
            except (HTTPError, OSError, RuntimeError) as error:
                # Nothing of the summary is on the disk yet, so it must not be lost.
                logger.error(
                    "The summary is not pushed: %s. Call save_model() or push_to_hub().", error
                )
        return output._replace(training_loss=output.metrics.get("train_loss", output.training_loss))

    def _outer_steps(self, state: TrainerState | None, **kwargs: Any) -> TrainOutput:
        """The outer steps that are left after `state`, the one of a checkpoint; all without one."""
        is_over = state is not None and state.global_step >= state.max_steps
        if is_over:  # Trainer would take one more step
            best = state.best_model_checkpoint if self.args.load_best_model_at_end else None
            self._load_from_checkpoint(best or self.run.checkpoint)
            self.state = state
            return TrainOutput(state.global_step, math.nan, {})
        if self.args.max_steps == 0:  # the summary stays at its start; Trainer would take one step
            self.run.log_start()  # nothing where the summary was given
            return TrainOutput(0, math.nan, {})
        # The log of a run that goes on has the evaluation of its start.
        evaluates = self.args.eval_on_start and state is None
        with changed(self.args, eval_on_start=evaluates):
            return super().train(self.run.checkpoint, **kwargs)

    def _warn_of_size(self) -> None:
        """Warns of a summary that has more bytes than the data."""
        if not isinstance(self.train_dataset, Dataset):
            return
        count = len(stored_sequences(self.train_dataset)[0])
        data_bytes = count * id_bits(self.learner.vocab_size) / 8
        if self.model.nbytes > data_bytes:
            logger.warning(
                "The summary has %s bytes, more than the %s of the ids in train_dataset: keep"
                " those, make the teacher narrower, or lower num_sequences.",
                f"{self.model.nbytes:,}",
                f"{math.floor(data_bytes):,}",
            )

    def tune_initialization(self) -> None:
        """Completes the start of a new summary with labels of its own: teachers label its inputs.
        Others are complete already.

        `train()` calls this first. Call it to look at the start before the training. A teacher
        trains on the real data, unless one was given.
        """
        is_complete = self._open_start is None
        if is_complete or self._open_start != self.model.fingerprint():  # somebody has changed it
            return
        started = time.perf_counter()
        with self.run.keeping_start() as kept:
            of_teacher = self.labelling(self.model, self.real_data, self.args, kept)
        seconds = round(time.perf_counter() - started, 2)
        self.run.begin({START_SECONDS: seconds, **of_teacher})
        self._open_start = None

    # -- outer step --------------------------------------------------------------------------------

    def compute_loss(
        self, model: nn.Module, inputs: Mapping[str, Tensor], *args: Any, **kwargs: Any
    ) -> Tensor:
        """The outer loss. Its gradient in latents and decoder is the meta-gradient."""
        seed = self._learner_seed()

        def outer_loss(tensors: Tensors) -> Tensor:
            try:
                return self.objective(self.learner, self.rounding(tensors), inputs, seed)
            except OverflowError as error:  # the adjoint has no room for a learner so far away
                logger.warning("Step %d: the learner diverged: %s.", self.state.global_step, error)
                return math.nan * sum(x.sum() for x in tensors.values())

        # Through forward, this is an ordinary step for DistributedDataParallel.
        return model(functional=outer_loss)

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """One micro-batch. A meta-gradient without a finite norm is dropped and does not change the
        summary.
        """
        started = time.perf_counter()
        try:
            loss = super().training_step(*args, **kwargs)
        except ReplayError as error:
            if self.args.world_size > 1:  # the others wait for this one's gradient
                raise
            logger.warning("Step %d: %s.", self.state.global_step, error)
            loss = torch.tensor(math.nan, device=self.args.device)
            for p in self.model.parameters():
                p.grad = torch.full_like(p, math.nan)
        # After the last micro-batch the gradient is summed over all of them and over processes, so
        # that all processes decide alike.
        if self.accelerator.sync_gradients:
            if not self._has_finite_norm():
                self.model.zero_grad()  # the optimizer then leaves latents and decoder as they are
                self.run.skip_step(self.state.global_step)
            self._pace.steps += 1
        self._pace.seconds += time.perf_counter() - started
        return loss

    def _has_finite_norm(self) -> bool:
        """Whether the meta-gradient has a finite norm, as clipping computes it. Entries that are
        finite and large may have an infinite one, and clipping would set them to zero.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        if not gradients:
            return True
        norms = torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients])
        return bool(torch.isfinite(norms.norm()))

    def _learner_seed(self) -> int:
        """The seed of this micro-batch's learner: a function of seed, global step and the
        micro-batch's number over all processes.
        """
        step = self.state.global_step
        last = self._last_micro_step
        is_first = last is None or last.step != step
        number = 0 if is_first else last.number + 1
        self._last_micro_step = MicroStep(step, number)
        position = number * self.args.world_size + self.args.process_index
        return derive(self.args.seed, Purpose.OUTER_STEP, step, position)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs:
            logs["loss"] = logs["loss"] or math.nan  # Trainer's sum is 0 where no loss was finite
            logs["non_finite_steps"] = self.run.non_finite_steps
            logs["seconds_per_step"] = self._pace.seconds / max(1, self._pace.steps)
            logs["peak_memory_gib"] = peak_memory(self.args.device) / 2**30
            self._pace = Pace()
        if "train_loss" in logs:  # of all steps, also of those before a resume
            logs["train_loss"] = self._total_loss_scalar / max(1, self.state.global_step)
        super().log(logs, start_time)

    @property
    def log_sums(self) -> LogSums:
        """The sums from which the losses of the log are made. A run that goes on sets them."""
        return LogSums(
            loss=float(self._tr_loss),
            total_loss=self._total_loss_scalar,
            logged_step=float(self._globalstep_last_logged),
        )

    @log_sums.setter
    def log_sums(self, sums: LogSums) -> None:
        self._tr_loss.fill_(sums.loss)
        self._total_loss_scalar = sums.total_loss
        self._globalstep_last_logged = sums.logged_step

    # -- evaluation --------------------------------------------------------------------------------

    @property
    def _quiet(self) -> bool:
        """Whether this process shows no progress."""
        return self.args.disable_tqdm or not self.is_world_process_zero()

    @property
    def held_out(self) -> Dataset | None:
        """The rows of `eval_dataset`; the first of several sets."""
        if isinstance(self.eval_dataset, Mapping):
            return next(iter(self.eval_dataset.values()))
        return self.eval_dataset

    @property
    def real_data(self) -> RealData:
        """What teachers train on, and what they stop early by."""
        return RealData(
            dataset=self.train_dataset,
            collator=self.data_collator,
            device=self.args.device,
            quiet=self._quiet,
            held_out=self.held_out,
            ranked=self.task.ranked,
            count=partial(self.task.counted_labels, vocab_size=self.learner.vocab_size),
        )

    @property
    def taught(self) -> dict[str, float]:
        """How the first teacher was trained: the figures of the log's entry with
        `start_seconds`.
        """
        entries = (*self.state.log_history, self.run.start)
        of_start = next((entry for entry in entries if START_SECONDS in entry), {})
        others = (START_SECONDS, *_OF_EVERY_ENTRY)
        return {name: value for name, value in of_start.items() if name not in others}

    @property
    def students(self) -> Students:
        """Trains students on the summary as it is now, with the settings of the inner loop."""
        return Students(
            learner=self.learner,
            farzi=self.model,
            training=self.training,
            steps=self.args.inner_steps,
            seed=self.args.seed,
            device=self.args.device,
            quiet=self._quiet,
        )

    def evaluate(
        self,
        eval_dataset: Dataset | Mapping[str, Dataset] | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Trains `args.eval_students` students from scratch on the summary and evaluates each on
        real data. Processes share the work.

        Args:
            eval_dataset: another evaluation set, or several by name. All sets see the same
                students.

        Returns:
            For each metric its mean over the students and, as `…_std`, their standard deviation. If
            there are several sets, a set's metrics are called `eval_NAME_…`.
        """
        count = self.args.eval_students
        # A data loader draws a random number, on which training must not depend.
        with torch.random.fork_rng(devices=[]):
            sets = self._real_rows.evaluated(eval_dataset, self.eval_dataset)
            # Not get_eval_dataloader: with persistent workers Trainer keeps a loader, and would use
            # it for every other set that is given here.
            loaders = {
                f"{metric_key_prefix}{name}": self.get_test_dataloader(rows)
                for name, rows in sets.items()
            }
            metrics = self.students.evaluated(count, partial(self._measured, loaders))
        metrics[f"{metric_key_prefix}_students"] = count
        self.log(metrics)
        of_summary = self._evaluations.setdefault(self.model.fingerprint(), {})
        of_summary |= {**metrics, "step": self.state.global_step}
        self.control = self.callback_handler.on_evaluate(
            self.args, self.state, self.control, metrics
        )
        return metrics

    def memory(self) -> dict[str, Any]:
        """What a carried teacher gives away of `train_dataset`, see `memory_of`; {} without one of
        them or `eval_dataset`. The card shows it.
        """
        if self.model.carried is None or self.train_dataset is None or self.held_out is None:
            return {}
        fingerprint = self.model.fingerprint()
        if fingerprint not in self._memory:
            facts = memory_of(self.model, self.train_dataset, self.held_out, self.args.seed)
            self._memory = {fingerprint: facts}
        return dict(self._memory[fingerprint])

    def _measured(
        self, loaders: Mapping[str, DataLoader], index: int, student: Parameters
    ) -> dict[str, float]:
        """The metrics of student number `index` on the data of each loader, which is named by the
        prefix of its metrics.
        """
        self._student = student
        metrics: dict[str, float] = {}
        only_loss = True if self.compute_metrics is None else None
        for prefix, loader in loaders.items():
            output = self.evaluation_loop(
                loader, f"Student {index + 1}", only_loss, metric_key_prefix=prefix
            )
            metrics |= output.metrics
        self._student = None
        return {name: float(x) for name, x in metrics.items() if not name.endswith(_SPEED)}

    def get_train_dataloader(self) -> DataLoader:
        """As in `Trainer`. The order of its rows follows `args.seed`, whatever the caller's random
        numbers are; Accelerate would take theirs.
        """
        with seeded(self.args.seed):
            return super().get_train_dataloader()

    def get_test_dataloader(self, test_dataset: Dataset) -> DataLoader:
        """As in `Trainer`, but `dataloader_drop_last` is for training alone: an evaluation is of
        all rows.
        """
        with changed(self.args, dataloader_drop_last=False):
            return super().get_test_dataloader(test_dataset)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Tensor],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """The student's loss, logits and labels on a real batch. If `args.label_names` has several
        names, labels are a tuple.
        """
        if self._student is None:
            raise RuntimeError(
                "a summary has no predictions of its own; call evaluate(), which trains students"
                " on it"
            )
        inputs = self._prepare_inputs(inputs)
        with torch.no_grad():
            logits = self.learner.logits(self._student, inputs)
            loss, count = shifted_cross_entropy(logits, inputs["labels"])
        mean = loss / count
        if prediction_loss_only:
            return mean, None, None
        labels = tuple(inputs[name] for name in self.label_names)
        return mean, logits, labels[0] if len(labels) == 1 else labels

    def _set_signature_columns_if_needed(self) -> None:
        if self._signature_columns is None:  # the columns of the learner, not of FarziData.forward
            self._signature_columns = ["input_ids", "attention_mask", *self.label_names]

    # -- checkpoints -------------------------------------------------------------------------------

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *args: Any, **kw: Any
    ) -> None:
        """Trainer calls this at the end of each step. A noted signal is handled after Trainer's own
        work.

        A callback could not do this. With `save_strategy="best"`, Trainer ignores a callback that
        wants to save. And after a callback has stopped the training, Trainer can remove the
        checkpoint.
        """
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kw)
        number = largest(self.run.noted)  # of all processes
        if number and self.run.saved_step != self.state.global_step:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        if number:
            folder = f"{self.args.output_dir}/{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
            self.run.end(number, f"the run is saved in {folder} and can be resumed from there")

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        with names_full_disk(Path(self.args.output_dir)):
            super()._save_checkpoint(model, trial)
            self.run.end_checkpoint()

    def _save_rng_state(self, output_dir: str) -> None:
        """As in Trainer, and what else a resume needs of this process: the state of the objective,
        and sums of the log.
        """
        super()._save_rng_state(output_dir)
        self.run.save_process_state(output_dir)

    # -- the artefact ------------------------------------------------------------------------------

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Writes the artefact (`FarziData.save_pretrained`). Inside a checkpoint, it writes the
        tensors for a resume instead.

        If the same summary was saved with a table and plots before, these stay. If
        `args.push_to_hub` is set, it also pushes.
        """
        if _internal_call:
            if self.args.should_save:
                self.run.begin_checkpoint(Path(output_dir))
            # The other processes write their states into the folder, and would create it too early.
            self.accelerator.wait_for_everyone()
            super().save_model(output_dir, _internal_call)
        elif self.args.should_save:
            self.model.save_pretrained(output_dir or self.args.output_dir, **self._artefact())
            if self._open_start is None:
                self.run.kept_start.discard()
            if self.args.push_to_hub:
                self.push_to_hub(commit_message="Save summary")

    def _artefact(self) -> dict[str, Any]:
        """Arguments of `FarziData.save_pretrained`: metrics and recipe of exactly the present
        tensors.

        After load_best_model_at_end, or where storage rounds, the last evaluation is of other
        tensors, and does not count.
        """
        earlier = self.model.results
        evaluation = self._evaluations.get(fingerprint(self.model.contents().tensors), {})
        metrics = {**earlier.metrics, **evaluation, **self.taught, **self.memory()}
        recipe = {
            # The trainer knows the rows, but not where they come from. The command line adds it.
            "dataset": None,
            "learner": self.learner.model.config.to_diff_dict(),
            **self.args.to_recipe(),
            **self.own_objective,
        }
        return {"metrics": metrics, "recipe": earlier.recipe or recipe}

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        """Creates the *dataset* repository `args.hub_model_id`, if it does not exist. By default it
        has the output folder's name.

        If `args.push_to_hub` is set, Trainer calls this at the start. A wrong name or token then
        fails before the training. The end of `train()` and `save_model()` push, with every
        `hub_strategy`: checkpoints stay on this machine.
        """
        if not self.is_world_process_zero():
            return
        args = self.args
        name = args.hub_model_id or Path(args.output_dir).absolute().name
        private = args.hub_private_repo if private is None else private
        token = token or args.hub_token
        self.hub_model_id = hub.create_repository(name, private, args.hub_revision, token)

    def push_to_hub(
        self, repo_id: str | None = None, private: bool | None = None, **kwargs: Any
    ) -> str | None:
        """Uploads the summary to the *dataset* repository `repo_id`. The first process returns the
        address, all others None.

        Defaults: `args.hub_model_id`, `hub_private_repo`, `hub_token`, `hub_revision`. See
        `FarziData.push_to_hub`.
        """
        if not self.is_world_process_zero():  # the first alone knows the default name
            return None
        repo_id = repo_id or self.hub_model_id or self.args.hub_model_id
        if repo_id is None:
            raise ValueError(
                "repo_id and args.hub_model_id are both None; give a repository's name,"
                " 'user/farzi-…'"
            )
        settings = {
            "private": self.args.hub_private_repo if private is None else private,
            "token": self.args.hub_token,
            "revision": self.args.hub_revision,
            **kwargs,
        }
        return self.model.push_to_hub(repo_id, **{**self._artefact(), **settings})

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Does nothing: Trainer's method uploads the files of a *model* repository."""


def _one_of(model_init: LearnerInit | None, learner_init: LearnerInit | None) -> LearnerInit:
    """The one that is given. Raises TypeError unless exactly one is."""
    if (model_init is None) == (learner_init is None):
        given = "neither of model_init and learner_init is"
        if model_init is not None:
            given = "both of model_init and learner_init are"
        raise TypeError(
            f"{given} given: one of them makes the learner;"
            " give a function that returns a model, or a config"
        )
    return learner_init if model_init is None else model_init


def _check_arguments(
    args: Any, task: Any, processing_class: Any, objective: Objective | None
) -> None:
    """Raises TypeError or ValueError for arguments of a `FarziTrainer` that are unusable, or
    contradict each other.
    """
    if not isinstance(args, FarziConfig):
        raise TypeError(
            f"args is {type(args).__name__}; give a FarziConfig, for instance FarziConfig('out')"
        )
    run_check("output_dir", check_destination, Path(args.output_dir))
    if task is not None and processing_class is not None:
        raise ValueError(
            "task and processing_class are both given: leave the second out, the task has one"
        )
    if not isinstance(task, Task | None):
        raise TypeError(
            f"task is {type(task).__name__}; give a task, such as LanguageModeling(tokenizer)"
        )
    names_objective = args.objective != args.settings["objective"].default
    if objective is not None and names_objective:
        raise ValueError(
            f"objective is given, and args.objective={args.objective!r} names another; leave"
            " one out"
        )
