"""The run of a `FarziTrainer` and its folder: how it begins or goes on, what it saves, and how a
signal ends it.

A run goes on with the settings that it began with, so that it ends bit for bit as if it had not
been interrupted. `checkpoints.py` says what a checkpoint is.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import psutil
import torch
from torch import Tensor
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from farzi_hf.common.files import checksums, exclusive
from farzi_hf.common.settings import changed
from farzi_hf.common.tensors import load_tensors, save_tensors
from farzi_hf.common.text import as_written
from farzi_hf.data.streams import described as described_rows
from farzi_hf.distillation.checkpoints import (
    RECORD,
    Record,
    best_beside,
    check_no_foreign,
    check_ours,
    discard_checkpoints,
    files_of,
    flaw_of,
    keep_last,
    last_checkpoint,
    newest_whole,
    read_record,
    remove,
    strangers,
)
from farzi_hf.distillation.kept_start import FOLDER, KeptStart
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives import ConfigurableObjective
from farzi_hf.distillation.trajectories import TrajectoryBank
from farzi_hf.summary.store.tensor_file import fingerprint

try:
    import resource
except ImportError:  # Windows
    resource = None

if TYPE_CHECKING:
    from farzi_hf.distillation.trainer import FarziTrainer

logger = logging.getLogger(__name__)

__all__ = [
    "RECORD",
    "Interrupted",
    "TrainingRun",
    "discard_checkpoints",
    "last_checkpoint",
    "locked",
]

START_SECONDS = "start_seconds"
"""The figure of the log's entry about the start of a summary: the seconds of its teachers."""

_CHAOTIC = 100.0  # norm of a meta-gradient

# Windows has no SIGHUP.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Interrupted(SystemExit):
    """A signal ended the run at a point from which it can go on. Its `code` is the usual one: 130,
    143 or 129.
    """


def _default_handlers() -> dict[int, Any]:
    """The handlers of those signals that nobody has set, by number. None in another thread than the
    main one, where Python allows to set none.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {number: signal.getsignal(number) for number in _SIGNALS}
    return {number: handler for number, handler in handlers.items() if handler in defaults}


class LogSums(NamedTuple):
    """The sums from which Trainer makes the losses of its log."""

    loss: float
    """Of the steps since the last entry."""
    total_loss: float
    """Of all steps before that."""
    logged_step: float
    """The step of the last entry."""


class TrainingRun(TrainerCallback):
    """What a `FarziTrainer` knows of its run, and of the run's folder `args.output_dir`.

    Attributes:
        settings: everything on which the run depends, as plain JSON by name.
        checkpoint: the one from which the run goes on; None for a new run.
        saved_step: the step of its last checkpoint.
        noted: the number of the first signal that came, or 0.
        non_finite_steps: the steps that were skipped so far.
        start: figures of the start of the summary, which the log has first.
        warned: whether a warning of chaos has been given.
    """

    def __init__(self, trainer: FarziTrainer) -> None:
        self.trainer = trainer
        self.settings: dict[str, Any] = {}
        self.checkpoint: str | None = None
        self.saved_step = -1
        self.noted = 0
        self.non_finite_steps = 0
        self.start: dict[str, float] = {}
        self.warned = False
        self._log_sums: LogSums | None = None
        self._flawed: set[str] = set()  # names of checkpoints that are not whole
        self._said: set[str] = set()
        self._is_in_folder = False
        self._ends_at_once = False
        self._built_with = trainer.args.to_recipe()

    # -- before the first step ---------------------------------------------------------------------

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Locks the folder for this run, notes signals, and hides from Trainer what it would do to
        a run and its folder.

        After the first SIGINT, SIGTERM or SIGHUP the training goes on to the end of the step; a
        second one ends the program at once, and so does one while teachers train. A handler that
        the user has set stays, and an ignored signal stays ignored (SIGHUP under nohup).

        Raises:
            ValueError: another run writes to the folder.
            Interrupted: a second signal came, or one after the last step.
        """
        args = self.trainer.args
        handlers = _default_handlers()
        self._limit = args.save_total_limit
        # Trainer would remove every folder with a name like `checkpoint-…`.
        with locked(args), changed(args, save_total_limit=None):
            self.noted = 0
            self.saved_step = -1
            self._is_in_folder = True
            try:
                for number in handlers:
                    signal.signal(number, self._note)
                yield
            finally:
                self._is_in_folder = False
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        if self.noted:
            self.end(self.noted, "the training has ended")

    def _note(self, number: int, frame: Any) -> None:
        if self.noted or self._ends_at_once:
            raise Interrupted(128 + number)
        self.noted = number

    @contextmanager
    def keeping_start(self) -> Iterator[KeptStart | None]:
        """While teachers make the start of a summary, a signal ends the program at once, and the
        state of their trainings is kept in the run's folder; None where the folder is not locked.
        """
        if not self._is_in_folder:
            yield None
            return
        kept = self.kept_start
        if self.trainer.args.local_process_index == 0:
            kept.begin(self._settings_of_start())
        self.trainer.accelerator.wait_for_everyone()
        self._ends_at_once = True
        try:
            if self.noted:
                raise Interrupted(128 + self.noted)
            yield kept
        except Interrupted as ended:
            name = signal.Signals(ended.code - 128).name
            self._say(
                f"{name}: what the teacher had learnt at its last evaluation is in {kept.folder};"
                " the same run goes on from there"
            )
            raise
        finally:
            self._ends_at_once = False

    @property
    def kept_start(self) -> KeptStart:
        """The state of a start that is being made."""
        return KeptStart(Path(self.trainer.args.output_dir, FOLDER))

    def _settings_of_start(self) -> dict[str, Any]:
        """Everything on which the start depends."""
        trainer = self.trainer
        return as_written(
            {
                **self._settings(),
                "eval_dataset": described_rows(trainer.held_out),
                "given_teachers": [
                    fingerprint(model.state_dict()) for model in trainer.labelling.given or ()
                ],
            }
        )

    def end(self, number: int, message: str) -> NoReturn:
        """Ends the program because of a signal. The first process says so in one line."""
        if self.trainer.is_world_process_zero():
            logger.warning("%s: %s.", signal.Signals(number).name, message)
        raise Interrupted(128 + number)

    def prepare(self, resume_from_checkpoint: str | bool | None) -> TrainerState | None:
        """Checks that a run can begin or go on, with the errors of `FarziTrainer.check_run`.
        Returns the state to go on from. It writes nothing.
        """
        args = self.trainer.args
        changed_since = changes(self._built_with, args.to_recipe())
        if changed_since:
            raise ValueError(
                f"args have changed since FarziTrainer was made: {changed_since}; make another"
                " FarziTrainer"
            )
        folder = Path(args.output_dir)
        check_no_foreign(folder)  # for every save_strategy, because a signal makes every run save
        last, flaws = newest_whole(folder)
        self.checkpoint = self._chosen_checkpoint(folder, resume_from_checkpoint, last, flaws)
        self.settings = as_written(self._settings())
        self.non_finite_steps = 0
        if self.checkpoint is None:
            return None
        self._check_checkpoint(self.checkpoint, is_whole=self.checkpoint == last)
        return _state_of(self.checkpoint)

    def _chosen_checkpoint(
        self,
        folder: Path,
        resume_from_checkpoint: str | bool | None,
        last: str | None,
        flaws: Mapping[str, str],
    ) -> str | None:
        """The checkpoint to go on from; None for a new run. Raises ValueError if there is none, or
        the run would mix its own with those of another one.

        Args:
            folder: of the run.
            last: the latest whole checkpoint there.
            flaws: of those after it, by name.
        """
        takes_last = resume_from_checkpoint is True
        if takes_last and last is None:
            why = "".join(f"; of {name}: {flaw}" for name, flaw in flaws.items())
            raise ValueError(
                f"resume_from_checkpoint=True, but output_dir={str(folder)!r} has no complete"
                f" checkpoint{why}; leave resume_from_checkpoint out, and the run begins anew"
            )
        chosen = last if takes_last else resume_from_checkpoint or None
        checkpoint = None if chosen is None else str(chosen)
        self._pass_over(flaws, checkpoint)
        goes_on_here = (
            checkpoint is not None and Path(checkpoint).resolve().parent == folder.resolve()
        )
        if last is not None and not goes_on_here:
            raise ValueError(
                f"output_dir={str(folder)!r} holds {Path(last).name} of an earlier run, which a new"
                " one would overwrite; go on from it with train(resume_from_checkpoint=True),"
                " choose another output_dir, or remove it with"
                " farzi_hf.distillation.run.discard_checkpoints(output_dir)"
            )
        return checkpoint

    def _check_checkpoint(self, checkpoint: str, is_whole: bool) -> None:
        """Raises ValueError unless the run can go on from a checkpoint: it is whole, and was made
        with the same settings.

        Args:
            is_whole: whether that is known already. To know it, all its files are read.
        """
        record = read_record(checkpoint)
        flaw = "" if is_whole else flaw_of(checkpoint)
        if flaw:
            raise ValueError(
                f"resume_from_checkpoint={checkpoint!r} is not whole: {flaw}; name another"
                " one, or give True, which takes the latest whole one"
            )
        different = changes(record.settings, self.settings)
        if different:
            raise ValueError(
                f"{different}: a run goes on with its own settings, and {checkpoint} was made"
                " with others; give those, or begin a new run in another output_dir, which can go"
                " on from a summary: farzi_data=…"
            )
        others = strangers(checkpoint, record)
        if others:
            self._say(f"{checkpoint} holds what is not of it and is not read: {', '.join(others)}")

    def _pass_over(self, flaws: Mapping[str, str], checkpoint: str | None) -> None:
        """Says from which later checkpoints the run does not go on, and why.

        Args:
            checkpoint: from which it goes on.
        """
        self._flawed |= flaws.keys()
        instead = "the run begins anew" if checkpoint is None else f"{checkpoint} is taken"
        for name, flaw in flaws.items():
            self._say(f"{name} is passed over, {instead}: {flaw}")

    def _say(self, line: str) -> None:
        """Logs a line in the first process, once."""
        if line not in self._said and self.trainer.is_world_process_zero():
            logger.warning("%s.", line)
        self._said.add(line)

    def _settings(self) -> dict[str, Any]:
        """Everything on which the run depends."""
        trainer = self.trainer
        args = trainer.args
        settings = {**args.to_recipe(), **trainer.own_objective}
        # The folder of trajectories may have moved; what was recorded there has to be the same.
        trajectories = settings.pop("trajectories")
        if trajectories is not None and not trainer.own_objective:
            settings["trajectories_recorded"] = TrajectoryBank(args.trajectories).fingerprint
        teachers = [kind for kind in trainer.labelling.kinds if kind is not trainer.learner]
        return {
            **settings,
            "learner": _facts_of(trainer.learner),
            "teachers": [_facts_of(kind) for kind in teachers],
            "train_dataset": described_rows(trainer.train_dataset),
            "world_size": args.world_size,
        }

    def restore(self) -> None:
        """Goes on from what Trainer does not restore: the state of the objective, and the sums of
        the log.
        """
        trainer = self.trainer
        tensors, _ = load_tensors(self._process_file(self.checkpoint))
        *sums, skipped = tensors.pop("log").tolist()
        self._log_sums = LogSums(*sums)
        self.non_finite_steps = int(skipped)
        parts: dict[str, dict[str, Tensor]] = {"objective": {}, "rounding": {}}
        for full_name, x in tensors.items():
            part, _, name = full_name.partition(".")
            parts[part][name] = x
        trainer.rounding.load_state_dict(parts["rounding"])
        if parts["objective"]:
            trainer.objective.load_state_dict(
                parts["objective"], trainer.learner, trainer.args.device
            )

    def begin(self, start: Mapping[str, float]) -> None:
        """Notes the figures of a new start, which the log has first."""
        self.start = dict(start)

    def log_start(self) -> None:
        """Writes the figures of the start into the log, once."""
        if self.start:
            self.trainer.log(self.start)
            self.start = {}

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Trainer has begun the sums of its log anew, and knows the best checkpoint by the folder
        in which it was then.
        """
        if self.checkpoint is None:
            self.log_start()
        else:
            self.trainer.log_sums = self._log_sums
            state.best_model_checkpoint = _best_for(self.checkpoint)

    def skip_step(self, step: int) -> None:
        """Counts an outer step whose meta-gradient is not finite. Raises FloatingPointError after
        too many.
        """
        self.non_finite_steps += 1
        skipped = self.non_finite_steps
        limit = self.trainer.args.max_non_finite
        logger.warning(
            "Step %d: the meta-gradient is not finite; skipped (%d so far).", step, skipped
        )
        if skipped > limit:
            raise FloatingPointError(
                f"{skipped} meta-gradients were not finite, more than max_non_finite={limit}; begin"
                " a new run in another output_dir, from this summary (farzi_data=trainer.model) or"
                " anew, with a smaller inner_learning_rate, learning_rate or window, or a larger"
                " inner_epsilon"
            )

    def on_log(
        self, args: Any, state: TrainerState, control: Any, logs: dict | None = None, **kwargs: Any
    ) -> None:
        """Warns once if the norm of the meta-gradient is far too large, before clipping, which
        hides that.
        """
        norm = (logs or {}).get("grad_norm", 0.0)
        if norm > _CHAOTIC and not self.warned:
            self.warned = True
            logger.warning(
                "Step %d: the norm of the meta-gradient is %.3g, but about 0.1 is usual. The"
                " learner's training is chaotic, and its exact gradient is useless. Set a window (a"
                " fifth of inner_steps is a good first try), or raise inner_epsilon.",
                state.global_step,
                norm,
            )

    # -- during the training -----------------------------------------------------------------------

    def begin_checkpoint(self, folder: Path) -> None:
        """Makes the folder of a checkpoint with the record in it. What is left there of an earlier
        one of ours is removed. Raises ValueError if the folder exists, and this library did not
        write it.
        """
        if os.path.lexists(folder):
            check_ours(folder)
            remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._flawed.discard(folder.name)
        self._record = Record(self.settings, others=sorted(files_of(folder) - {RECORD}))
        self._record.save(folder)

    def save_process_state(self, folder: str) -> None:
        """Adds what a resume needs of this process: sums of the log, and the state of the
        objective.

        Afterwards the first process makes the checkpoint complete.
        """
        trainer = self.trainer
        log = [*trainer.log_sums, self.non_finite_steps]
        tensors = {"log": torch.tensor(log, dtype=torch.float64)}
        if isinstance(trainer.objective, ConfigurableObjective):
            for name, x in trainer.objective.state_dict().items():
                tensors[f"objective.{name}"] = x
        for name, x in trainer.rounding.state_dict().items():
            tensors[f"rounding.{name}"] = x.contiguous()
        save_tensors(self._process_file(folder), tensors)
        trainer.accelerator.wait_for_everyone()

    def _process_file(self, folder: str) -> Path:
        return Path(folder, f"state_of_process_{self.trainer.args.process_index}.safetensors")

    def end_checkpoint(self) -> None:
        """Makes the new checkpoint complete, with the checksums of its files in its record, and
        removes old checkpoints.
        """
        args = self.trainer.args
        state = self.trainer.state
        self.saved_step = state.global_step
        if not args.should_save:
            return
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
        names = files_of(folder) - {RECORD, *self._record.others}
        replace(self._record, files=checksums(folder, sorted(names))).save(folder)
        self.kept_start.discard()
        if self._limit:
            best = state.best_model_checkpoint
            keep_last(args.output_dir, self._limit, best, state.global_step, self._flawed)


def _facts_of(learner: Learner) -> dict[str, Any]:
    """The config of a learner's model, on which a run depends; not the version that wrote it."""
    config = json.loads(learner.model.config.to_json_string(use_diff=False))
    return {
        name: value
        for name, value in config.items()
        if not name.startswith("_") and name != "transformers_version"
    }


def _state_of(checkpoint: str) -> TrainerState:
    """The state that a checkpoint holds. The best checkpoint is the one beside it, wherever the
    folder is now.
    """
    state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
    state.best_model_checkpoint = _best_for(checkpoint)
    return state


def _best_for(checkpoint: str) -> str | None:
    """The best checkpoint of the run that goes on from this one, if it is there."""
    best = best_beside(Path(checkpoint))
    return None if best is None else str(best)


def peak_memory(device: torch.device) -> int:
    """The peak memory in bytes: of all tensors on a CUDA device; else of this process, since its
    start.

    For a process, the system counts the peak: the working set on Windows, the resident set on Linux
    and macOS.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        return psutil.Process().memory_info().peak_wset
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def without_prediction_bar(progress: type[TrainerCallback]) -> type[TrainerCallback]:
    """A class of Trainer's progress bars without that of an evaluation, which is of one student.
    The time that is left of a run that goes on is computed from its own steps alone.
    """

    def on_train_begin(
        self: Any, args: Any, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        progress.on_train_begin(self, args, state, control, **kwargs)
        bar = getattr(self, "training_bar", None)
        if bar is not None:
            bar.initial = state.global_step
            bar.n = state.global_step
            self.current_step = state.global_step

    methods = {
        "on_prediction_step": TrainerCallback.on_prediction_step,
        "on_train_begin": on_train_begin,
    }
    return type(progress.__name__, (progress,), methods)


def changes(before: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> str:
    """The settings that differ, as text: "seed 3 → 4, learner.n_head 2 → 1"; empty where none does.

    A setting that only one side has is left out: another version of the package added or removed
    it, not the user.
    """
    said = []
    for name, old in before.items():
        if name not in now:
            continue
        new = now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            said.append(changes(old, new, f"{inside}{name}."))
        elif old != new:
            said.append(f"{inside}{name} {old!s:.60} → {new!s:.60}")
    return ", ".join(filter(None, said))


def locked(args: TrainingArguments) -> AbstractContextManager[None]:
    """Locks the run's folder for its first process. The other processes of the run write into it
    too.
    """
    return exclusive(args.output_dir) if args.process_index == 0 else nullcontext()
