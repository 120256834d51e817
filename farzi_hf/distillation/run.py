"""The run of a `FarziTrainer` and its folder: how it begins or goes on, what it saves, and how a
signal ends it.

A run goes on with the settings that it began with, so that it ends bit for bit as if it had not
been interrupted.

Trainer knows a checkpoint by its name alone: it deletes old folders that are called `checkpoint-…`,
and a new run writes into them. Here a checkpoint is a folder `checkpoint-STEP` with a record,
`farzi_run.json`, that has the settings of the run and the names of the checkpoint's files. Files of
others are never removed, and a run that would write into a folder of others is refused.
"""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import psutil
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from farzi_hf.common.files import exclusive, replace_file
from farzi_hf.common.settings import changed
from farzi_hf.common.text import as_written, json_text
from farzi_hf.data.streams import described as described_rows
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives import ConfigurableObjective
from farzi_hf.distillation.trajectories import TrajectoryBank

try:
    import resource
except ImportError:  # Windows
    resource = None

if TYPE_CHECKING:
    from farzi_hf.distillation.trainer import FarziTrainer

logger = logging.getLogger(__name__)

RECORD = "farzi_run.json"
START_SECONDS = "start_seconds"
"""The figure of the log's entry about the start of a summary: the seconds of its teachers."""

_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
_UNFINISHED = re.compile(
    r"\..+\.(\d+)-[0-9a-f]{32}"
)  # what `replace_file` writes first: .NAME.PROCESS-NUMBER
_CHAOTIC = 100.0  # norm of a meta-gradient

# Windows has no SIGHUP.
_SIGNALS = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]


class Interrupted(SystemExit):
    """A signal ended the run at a point from which it can go on. Its `code` is the usual one: 130,
    143 or 129.
    """


class LogSums(NamedTuple):
    """The sums from which Trainer makes the losses of its log."""

    loss: float
    """Of the steps since the last entry."""
    total_loss: float
    """Of all steps before that."""
    logged_step: float
    """The step of the last entry."""


class Run(TrainerCallback):
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
        self._built_with = trainer.args.to_recipe()

    # -- before the first step ---------------------------------------------------------------------

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Locks the folder for this run, notes signals, and hides from Trainer what it would do to
        a run and its folder.

        After the first SIGINT, SIGTERM or SIGHUP the training goes on to the end of the step; a
        second one ends the program at once. A handler that the user has set stays, and an ignored
        signal stays ignored (SIGHUP under nohup).

        Raises:
            ValueError: another run writes to the folder.
            Interrupted: a second signal came, or one after the last step.
        """
        args = self.trainer.args
        defaults = (signal.SIG_DFL, signal.default_int_handler)
        handlers = {
            number: handler
            for number in _SIGNALS
            if (handler := signal.getsignal(number)) in defaults
        }
        if (
            threading.current_thread() is not threading.main_thread()
        ):  # Python allows no handlers in others
            handlers = {}
        self._limit = args.save_total_limit
        # Trainer would remove every folder with a name like `checkpoint-…`.
        with locked(args), changed(args, save_total_limit=None):
            self.noted = 0
            self.saved_step = -1
            try:
                for number in handlers:
                    signal.signal(number, self._note)
                yield
            finally:
                for number, handler in handlers.items():
                    signal.signal(number, handler)
        if self.noted:
            self.end(self.noted, "the training has ended")

    def _note(self, number: int, frame: Any) -> None:
        if self.noted:
            raise Interrupted(128 + number)
        self.noted = number

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
        if late := changes(self._built_with, args.to_recipe()):
            raise ValueError(
                f"args have changed since FarziTrainer was made: {late}; make another FarziTrainer"
            )
        folder, last = Path(args.output_dir), last_checkpoint(args.output_dir)
        check_no_foreign(folder)  # for every save_strategy, because a signal makes every run save
        if resume_from_checkpoint is True and last is None:
            raise ValueError(
                f"resume_from_checkpoint=True, but output_dir={str(folder)!r} has no complete"
                " checkpoint"
            )
        checkpoint = last if resume_from_checkpoint is True else resume_from_checkpoint or None
        self.checkpoint = checkpoint and str(checkpoint)
        goes_on_here = (
            self.checkpoint and Path(self.checkpoint).resolve().parent == folder.resolve()
        )
        if last is not None and not goes_on_here:  # checkpoints of two runs would mix
            raise ValueError(
                f"output_dir={str(folder)!r} holds {Path(last).name} of an earlier run, which a new"
                " one would overwrite; go on from it with train(resume_from_checkpoint=True),"
                " choose another output_dir, or remove it with"
                " farzi_hf.distillation.run.discard_checkpoints(output_dir)"
            )
        self.settings, self.non_finite_steps = as_written(self._settings()), 0
        if not self.checkpoint:
            return None
        if changed := changes(read_record(self.checkpoint)["settings"], self.settings):
            raise ValueError(
                f"{changed}: a run goes on with its own settings, and {self.checkpoint} was made"
                " with others; give those, or begin a new run in another output_dir, which can go"
                " on from a summary: farzi_data=…"
            )
        return TrainerState.load_from_json(os.path.join(self.checkpoint, TRAINER_STATE_NAME))

    def _settings(self) -> dict[str, Any]:
        trainer, args = self.trainer, self.trainer.args

        def facts(model: Learner) -> dict[str, Any]:
            config = json.loads(model.model.config.to_json_string(use_diff=False))
            return {
                k: v
                for k, v in config.items()
                if not k.startswith("_") and k != "transformers_version"
            }

        settings = {**args.to_recipe(), **trainer.own_objective}
        if (
            settings.pop("trajectories") is not None and not trainer.own_objective
        ):  # the folder may have moved
            settings["trajectories_recorded"] = TrajectoryBank(args.trajectories).fingerprint
        return {
            **settings,
            "learner": facts(trainer.learner),
            "teachers": [
                facts(kind) for kind in trainer.labelling.kinds if kind is not trainer.learner
            ],
            "train_dataset": described_rows(trainer.train_dataset),
            "world_size": args.world_size,
        }

    def restore(self) -> None:
        """Goes on from what Trainer does not restore: the state of the objective, and the sums of
        the log.
        """
        trainer = self.trainer
        tensors = load_file(self._process_file(self.checkpoint))
        *sums, skipped = tensors.pop("log").tolist()
        self._log_sums = LogSums(*sums)
        self.non_finite_steps = int(skipped)
        parts: dict[str, dict[str, Tensor]] = {"objective": {}, "rounding": {}}
        for name, x in tensors.items():
            part, _, own = name.partition(".")
            parts[part][own] = x
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
        """Trainer has begun the sums of its log anew."""
        if self.checkpoint:
            self.trainer.log_sums = self._log_sums
        else:
            self.log_start()

    def skip_step(self, step: int) -> None:
        """Counts an outer step whose meta-gradient is not finite. Raises FloatingPointError after
        too many.
        """
        self.non_finite_steps += 1
        limit = self.trainer.args.max_non_finite
        skipped = self.non_finite_steps
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
            _remove(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._others = files_of(folder)
        self._write_record(folder, None)

    def save_process_state(self, folder: str) -> None:
        """Adds what a resume needs of this process: sums of the log, and the state of the
        objective.

        Afterwards the first process makes the checkpoint complete.
        """
        trainer = self.trainer
        log = [*trainer.log_sums, self.non_finite_steps]
        tensors = {"log": torch.tensor(log, dtype=torch.float64)}
        if isinstance(trainer.objective, ConfigurableObjective):
            tensors |= {
                f"objective.{name}": x for name, x in trainer.objective.state_dict().items()
            }
        tensors |= {
            f"rounding.{name}": x.contiguous() for name, x in trainer.rounding.state_dict().items()
        }
        replace_file(self._process_file(folder), partial(save_file, tensors))
        trainer.accelerator.wait_for_everyone()

    def _process_file(self, folder: str) -> Path:
        return Path(folder, f"state_of_process_{self.trainer.args.process_index}.safetensors")

    def end_checkpoint(self) -> None:
        """Lists the files of the new checkpoint in its record, and removes old checkpoints."""
        args, state = self.trainer.args, self.trainer.state
        self.saved_step = state.global_step
        if args.should_save:
            folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}")
            self._write_record(folder, sorted(files_of(folder) - self._others))
            if self._limit:
                keep_last(args.output_dir, self._limit, state.best_model_checkpoint)

    def _write_record(self, checkpoint: Path, files: list[str] | None) -> None:
        text = json_text({"settings": self.settings, "files": files}, indent=1, ensure_ascii=False)
        replace_file(checkpoint / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


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
    """A class of Trainer's progress bars without that of an evaluation, which is of one student; a
    resume's time left is by its own steps.
    """

    def on_train_begin(
        self: Any, args: Any, state: TrainerState, control: Any, **kwargs: Any
    ) -> None:
        progress.on_train_begin(self, args, state, control, **kwargs)
        if (bar := getattr(self, "training_bar", None)) is not None:
            bar.initial = bar.n = self.current_step = state.global_step

    own = {
        "on_prediction_step": TrainerCallback.on_prediction_step,
        "on_train_begin": on_train_begin,
    }
    return type(progress.__name__, (progress,), own)


# -- records ---------------------------------------------------------------------------------------


def read_record(checkpoint: str | os.PathLike) -> dict[str, Any]:
    """The record of a checkpoint: `settings` of the run, and `files`, which is None until the
    checkpoint is complete. Raises ValueError if there is no record that can be read.
    """
    try:
        found = json.loads((Path(checkpoint) / RECORD).read_text(encoding="utf-8"))
        return {"settings": dict(found["settings"]), "files": found["files"]}
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ValueError(
            f"resume_from_checkpoint={str(checkpoint)!r} has no readable {RECORD} ({error}): name a"
            " checkpoint of a FarziTrainer"
        ) from None


def changes(before: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> str:
    """The settings that differ, as text: "seed 3 → 4, learner.n_head 2 → 1"; empty where none does.

    A setting that only one side has is left out: another version of the package added or removed
    it, not the user.
    """
    found = []
    for name in [name for name in before if name in now]:
        old, new = before[name], now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found.append(changes(old, new, f"{inside}{name}."))
        elif old != new:
            found.append(f"{inside}{name} {old!s:.60} → {new!s:.60}")
    return ", ".join(filter(None, found))


# -- folders ---------------------------------------------------------------------------------------


def last_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest complete checkpoint of ours in an output folder, None if there is none.

    transformers' `get_last_checkpoint` does not do: it returns the latest folder even if it is
    incomplete or somebody else's. A process that is killed while it writes a checkpoint leaves one
    without the trainer's state, which is written last.
    """
    complete = [path for path in _named(folder) if is_ours(path) and is_complete(path)]
    return str(complete[-1]) if complete else None


def check_no_foreign(folder: str | os.PathLike) -> None:
    """Raises ValueError if something in `folder` has a checkpoint's name but was not written by
    this library.
    """
    for path in _named(folder):
        check_ours(path)


def discard_checkpoints(folder: str | os.PathLike) -> list[str]:
    """Removes our checkpoints from an output folder, complete or not, and returns their names.
    Everything else stays.
    """
    found = [path for path in _named(folder) if is_ours(path)]
    for path in found:
        _remove(path)
    return [path.name for path in found]


def keep_last(folder: str | os.PathLike, limit: int, best: str | None) -> None:
    """Removes all but the `limit` latest of our checkpoints. `best` is one of those
    that are kept.
    """
    ours = [path for path in _named(folder) if is_ours(path)]
    latest_first = [path for path in ours[::-1] if is_complete(path)]
    best_first = sorted(
        latest_first, key=lambda path: best is None or path.resolve() != Path(best).resolve()
    )
    for path in ours:
        if path not in {*latest_first[:1], *best_first[:limit]}:
            _remove(path)


def _named(folder: str | os.PathLike) -> list[Path]:
    """Everything with the name of a checkpoint, sorted by step."""
    found = [path for path in Path(folder).glob("*") if _NAME.fullmatch(path.name)]
    return sorted(found, key=lambda path: int(path.name.rsplit("-", 1)[1]))


def is_ours(path: Path) -> bool:
    """Whether it has a record. A process that is killed before the record is there leaves a folder
    without any file of others.
    """
    if path.is_symlink() or not path.is_dir():
        return False
    return (path / RECORD).is_file() or all(
        _UNFINISHED.fullmatch(inside.name) for inside in path.iterdir()
    )


def check_ours(path: Path) -> None:
    """Raises ValueError if something with the name of a checkpoint was not written by
    this library.
    """
    if not is_ours(path):
        raise ValueError(
            f"output_dir={str(path.parent)!r} holds {path.name}, which no FarziTrainer has written:"
            " choose another output_dir, or move it away"
        )


def is_complete(checkpoint: Path) -> bool:
    """Whether the trainer's state exists and is whole."""
    with suppress(OSError, ValueError):
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        return True
    return False


def files_of(folder: Path) -> set[str]:
    """The names of the files in a folder. A link counts as a file."""
    return {path.name for path in folder.iterdir() if path.is_symlink() or not path.is_dir()}


def _remove(checkpoint: Path) -> None:
    """Removes the files of a checkpoint. Files and folders of others stay, and with them the
    record, which says that the folder is ours.

    The record is removed last: an interrupted removal leaves an incomplete checkpoint of ours.
    """
    ours = files_of(checkpoint) - {RECORD}
    with suppress(ValueError):  # there is no record yet
        if (known := read_record(checkpoint)["files"]) is not None:
            ours &= set(known)
    for name in sorted(
        ours, key=lambda name: name != TRAINER_STATE_NAME
    ):  # without the state it is incomplete
        (checkpoint / name).unlink()
    others = sorted(path.name for path in checkpoint.iterdir() if path.name != RECORD)
    if not others:
        (checkpoint / RECORD).unlink(missing_ok=True)
        checkpoint.rmdir()
    elif ours:  # once
        logger.warning(
            "%s holds files that are not of the checkpoint and stay: %s.",
            checkpoint,
            ", ".join(others),
        )


def locked(args: TrainingArguments) -> AbstractContextManager[None]:
    """Locks the run's folder for its first process. The other processes of the run write into it
    too.
    """
    return exclusive(args.output_dir) if args.process_index == 0 else nullcontext()
