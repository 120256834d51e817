"""The run of a `FarziTrainer` and its folder: how it begins or goes on, what it saves, and how a signal ends it.

A run goes on with the settings that it began with, so that it ends bit for bit as if it had not been interrupted.

Trainer knows a checkpoint by its name alone: it deletes old folders that are called `checkpoint-…`, and a new run writes into them.
Here a checkpoint is a folder `checkpoint-STEP` with a record, `farzi_run.json`, that has the settings of the run and the names of the
checkpoint's files. Files of others are never removed, and a run that would write into a folder of others is refused.
"""

from __future__ import annotations

import json
import logging
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerState, TrainingArguments
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_NAME, PushInProgress

from farzi_hf.data.streams import described as described_rows
from farzi_hf.distillation.callbacks import FiniteMeans
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives import ConfigurableObjective
from farzi_hf.distillation.processes import Interrupted, NotedSignal, end, largest, noted_signals
from farzi_hf.distillation.trajectories import TrajectoryBank
from farzi_hf.summary.store import hub
from farzi_hf.summary.store.atomic_folder import exclusive, replace_file
from farzi_hf.summary.store.tensor_file import fingerprint
from farzi_hf.summary.store.text import as_written, json_text, numbers_of

if TYPE_CHECKING:
    from farzi_hf.distillation.trainer import FarziTrainer

logger = logging.getLogger(__name__)

RECORD = "farzi_run.json"

_PROCESS_STATE = "state_of_process_{}.safetensors"
_NAME = re.compile(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)")
_UNFINISHED = re.compile(r"\..+\.(\d+)-[0-9a-f]{32}")  # what `replace_file` writes first: .NAME.PROCESS-NUMBER


class Run(TrainerCallback):
    """What a `FarziTrainer` knows of its run, and of the run's folder `args.output_dir`.

    Attributes:
        record: what the next checkpoint records.
        checkpoint: the one from which the run goes on; None for a new run.
        saved_step: the step of its last checkpoint.
        evaluations: metrics of evaluations, by the fingerprint of the summary.
    """

    def __init__(self, trainer: FarziTrainer) -> None:
        self.trainer, self.record, self.checkpoint = trainer, RunRecord(), None
        self.evaluations: dict[str, dict[str, float]] = {}
        self._noted, self.saved_step, self._listed_step = NotedSignal(), -1, -1
        self._built_with = trainer.args.to_recipe()

    # -- before the first step ---------------------------------------------------------------------------------------

    @contextmanager
    def in_folder(self) -> Iterator[None]:
        """Locks the folder for this run, notes signals, and hides from Trainer what it would do to a run and its folder.

        Raises:
            ValueError: another run writes to the folder.
            Interrupted: see `noted_signals`.
        """
        args = self.trainer.args
        hidden = {name: getattr(args, name) for name in ("save_total_limit", "eval_on_start")}
        with locked(args), noted_signals() as self._noted:
            self.saved_step = self._listed_step = -1
            try:
                args.save_total_limit = None  # Trainer would remove every folder with a name like `checkpoint-…`
                self._limit = hidden["save_total_limit"]
                yield
            finally:
                for name, value in hidden.items():
                    setattr(args, name, value)

    def prepare(self, resume_from_checkpoint: str | bool | None) -> TrainerState | None:
        """Checks that a run can begin or go on, and sets its record. Returns the state to go on from. It writes nothing.

        Raises:
            ValueError: see `FarziTrainer.check_run`.
        """
        args, settings = self.trainer.args, self._settings()
        if late := changes(self._built_with, args.to_recipe()):
            raise ValueError(
                f"args have changed since FarziTrainer was made, which they were built into: {late}; make another FarziTrainer"
            )
        folder, last = Path(args.output_dir), last_checkpoint(args.output_dir)
        check_no_foreign(folder)  # for every save_strategy, because a signal makes every run save
        self.checkpoint = (
            last if resume_from_checkpoint is True else resume_from_checkpoint and str(resume_from_checkpoint)
        )
        if resume_from_checkpoint is True and last is None:
            raise ValueError(
                f"resume_from_checkpoint=True, but output_dir={str(folder)!r} holds no complete checkpoint; call train() without it to start a "
                "new run"
            )
        goes_on_here = self.checkpoint and Path(self.checkpoint).resolve().parent == folder.resolve()
        if last is not None and not goes_on_here:  # checkpoints of two runs would mix
            raise ValueError(
                f"output_dir={str(folder)!r} holds {Path(last).name} of an earlier run, which a new one would overwrite; go on from it with "
                "train(resume_from_checkpoint=True), choose another output_dir, or remove it with "
                "farzi_hf.distillation.run.discard_checkpoints(output_dir)"
            )
        if not self.checkpoint:
            self.record = RunRecord(settings, start_facts=self.record.start_facts)
            return None
        before = read_record(self.checkpoint)
        if changed := changes(before.settings, settings):
            raise ValueError(
                f"{changed}: a run goes on with its own settings, and {self.checkpoint} was made with others; give those, or begin "
                "a new run in another output_dir, which can go on from a summary: farzi_data=…"
            )
        self.record = replace(before, settings=settings, files=None)
        state = TrainerState.load_from_json(os.path.join(self.checkpoint, TRAINER_STATE_NAME))
        if state.best_model_checkpoint is not None:  # an absolute path, and the folder of the run may have been moved
            beside = Path(self.checkpoint).parent / Path(state.best_model_checkpoint).name
            state.best_model_checkpoint = str(beside) if is_ours(beside) else state.best_model_checkpoint
        self._best = state.best_model_checkpoint
        finished = state.global_step >= state.max_steps
        for needed in () if finished else (Path(self.checkpoint, OPTIMIZER_NAME), self._process_file()):
            if not needed.exists():
                raise ValueError(
                    f"resume_from_checkpoint={self.checkpoint!r} has no {needed.name}, without which a run cannot go on bit for bit; name a "
                    "whole checkpoint, or begin a new run in another output_dir"
                )
        return state

    def _settings(self) -> dict[str, Any]:
        """Everything on which the run depends, as plain JSON by name."""
        trainer, args = self.trainer, self.trainer.args

        def facts(model: Learner) -> dict[str, Any]:
            config = json.loads(model.model.config.to_json_string(use_diff=False))
            return {k: v for k, v in config.items() if not k.startswith("_") and k != "transformers_version"}

        settings = {**args.to_recipe(), **trainer.own_objective}
        if settings.pop("trajectories") is not None and not trainer.own_objective:  # the folder may have moved
            settings["trajectories_recorded"] = TrajectoryBank(args.trajectories).fingerprint
        return {
            **settings,
            "learner": facts(trainer.learner),
            "teachers": [facts(kind) for kind in trainer.labelling.kinds if kind is not trainer.learner],
            "train_dataset": described_rows(trainer.train_dataset),
            "world_size": args.world_size,
        }

    def restore(self, state: TrainerState) -> None:
        """Goes on from what Trainer does not restore. Metrics in the log of the run belong into the artefact of their summary."""
        trainer = self.trainer
        trainer.args.eval_on_start = False  # the log has that evaluation
        if (path := self._process_file()).exists():
            self._tensors = load_file(path)
            own = {name.removeprefix("objective."): x for name, x in self._tensors.items() if name != "log"}
            if own:
                trainer.objective.load_state_dict(own, trainer.learner, trainer.args.device)
        for checkpoint in map(Path, {self.checkpoint, state.best_model_checkpoint or self.checkpoint}):
            for entry in state.log_history:
                if entry["step"] == step_of(checkpoint) and any(name.endswith("_students") for name in entry):
                    tensors = load_file(checkpoint / SAFE_WEIGHTS_NAME)
                    self.remember(
                        fingerprint({name: tensors[name] for name in trainer.model.contents().tensors}), entry
                    )

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Goes on from what Trainer restores otherwise: the place of the best checkpoint, and sums of the log, which it begins anew."""
        if self.checkpoint:
            state.best_model_checkpoint, trainer = self._best, self.trainer
            *counts, loss, trainer._total_loss_scalar, last_logged = self._tensors["log"].tolist()
            trainer.losses, trainer._globalstep_last_logged = FiniteMeans(counts), int(last_logged)
            trainer._tr_loss.fill_(loss)

    # -- during the training -----------------------------------------------------------------------------------------

    def remember(self, summary: str, metrics: Mapping[str, float]) -> None:
        """Adds metrics of a summary, by its fingerprint, to those of other sets with another prefix."""
        self.evaluations[summary] = dict(sorted({**self.evaluations.get(summary, {}), **metrics}.items()))

    def begin_checkpoint(self, folder: Path) -> None:
        """Makes the folder of a checkpoint with the record in it. If it exists already, it becomes incomplete until it is written again.

        Raises:
            ValueError: the folder exists, and this library did not write it.
        """
        self._others: set[str] = set()
        if os.path.lexists(folder):
            check_ours(folder)
            if (folder / RECORD).exists() and (ours := read_record(folder).files) is not None:
                self._others = files_of(folder) - set(ours)
        (folder / TRAINER_STATE_NAME).unlink(missing_ok=True)
        folder.mkdir(parents=True, exist_ok=True)
        self.record.write(folder)

    def save_process_state(self, folder: str) -> None:
        """Adds what a resume needs of this process: sums of the log, and the state of the objective.

        Afterwards the first process makes the checkpoint complete.
        """
        trainer = self.trainer
        log = [float(trainer._tr_loss), trainer._total_loss_scalar, trainer._globalstep_last_logged]
        tensors = {"log": torch.tensor([*trainer.losses.counts, *log], dtype=torch.float64)}
        if isinstance(trainer.objective, ConfigurableObjective):
            tensors |= {f"objective.{name}": x for name, x in trainer.objective.state_dict().items()}
        replace_file(self._process_file(folder), partial(save_file, tensors))
        trainer.accelerator.wait_for_everyone()

    def _process_file(self, folder: str | None = None) -> Path:
        return Path(folder or self.checkpoint, _PROCESS_STATE.format(self.trainer.args.process_index))

    def signal(self) -> int:
        """The number of a signal that any process has noted, or 0. All processes call this."""
        return largest(self._noted.number)

    def end_step(self, number: int) -> None:
        """What comes last in a step, after callbacks have written into a new checkpoint: its list of files, and the removal of old ones.

        Raises:
            Interrupted: `number` is that of a signal.
        """
        trainer, args = self.trainer, self.trainer.args
        folder = Path(args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}")
        if self.saved_step == trainer.state.global_step and self._listed_step != self.saved_step and args.should_save:
            replace(self.record, files=sorted(files_of(folder) - self._others)).write(folder)
            if self._limit:
                keep_last(args.output_dir, self._limit, trainer.state.best_model_checkpoint)
        self._listed_step = self.saved_step
        if number and trainer.is_world_process_zero():
            end(number, f"the run is saved in {folder} and can be resumed from there")
        if number:
            raise Interrupted(number)

    def push_in_background(self, artefact: Mapping[str, Any]) -> PushInProgress:
        """Begins to push a copy of the present summary, because training goes on during the upload. A push that fails is logged."""
        trainer, args, folder = self.trainer, self.trainer.args, tempfile.TemporaryDirectory()
        trainer.model.save_pretrained(folder.name, **artefact)
        message = f"Training in progress, step {trainer.state.global_step}"

        def push() -> None:
            with folder:
                try:
                    hub.push_folder(
                        folder.name, trainer.hub_model_id, private=args.hub_private_repo, revision=args.hub_revision,
                        token=args.hub_token, commit_message=message,
                    )  # fmt: skip
                except Exception as error:  # the summary is on disk, and the next push may work
                    logger.warning("%s: not pushed: %s", message, error)

        return PushInProgress([HfApi().run_as_future(push)])


# -- records ---------------------------------------------------------------------------------------------------------


@dataclass
class RunRecord:
    """The record of a run in a checkpoint.

    Attributes:
        settings: of the run, by name. Plain JSON.
        non_finite_steps: the steps that were skipped so far.
        start_facts: figures of the start that no log has had yet.
        files: the files of the checkpoint, by their paths in it; None until it is complete.
    """

    settings: Mapping[str, Any] = field(default_factory=dict)
    non_finite_steps: int = 0
    start_facts: Mapping[str, Any] = field(default_factory=dict)
    files: list[str] | None = None

    def write(self, checkpoint: Path) -> None:
        """Writes it into a checkpoint."""
        text = json_text(asdict(self), indent=1, ensure_ascii=False)
        replace_file(checkpoint / RECORD, lambda path: path.write_text(text, encoding="utf-8"))


def read_record(checkpoint: str | os.PathLike) -> RunRecord:
    """The record of a checkpoint.

    Raises:
        ValueError: there is no record that can be read.
    """
    try:
        found = numbers_of(json.loads((Path(checkpoint) / RECORD).read_text(encoding="utf-8")))
        return RunRecord(
            **{f.name: found[f.name] for f in fields(RunRecord) if f.name in found or f.name == "settings"}
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"resume_from_checkpoint={str(checkpoint)!r} has no readable {RECORD} ({error}), so it is no checkpoint of a FarziTrainer; "
            "name one, or start anew"
        ) from None


def changes(before: Mapping[str, Any], now: Mapping[str, Any], inside: str = "") -> str:
    """The settings that differ, as text: "seed 3 → 4, learner.n_head 2 → 1"; empty where none does.

    A setting that only one side has is left out: another version of the package added or removed it, not the user.
    """
    found, before, now = [], as_written(before), as_written(now)
    for name in [name for name in before if name in now]:
        old, new = before[name], now[name]
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            found.append(changes(old, new, f"{inside}{name}."))
        elif old != new:
            old, new = (text if len(text := str(value)) <= 60 else f"{text[:60]}…" for value in (old, new))
            found.append(f"{inside}{name} {old} → {new}")
    return ", ".join(filter(None, found))


# -- folders ---------------------------------------------------------------------------------------------------------


def last_checkpoint(folder: str | os.PathLike) -> str | None:
    """The latest complete checkpoint of ours in an output folder, None if there is none.

    transformers' `get_last_checkpoint` does not do: it returns the latest folder even if it is incomplete or somebody else's. A
    process that is killed while it writes a checkpoint leaves one without the trainer's state, which is written last.
    """
    complete = [path for path in _named(folder) if is_ours(path) and is_complete(path)]
    return str(complete[-1]) if complete else None


def check_no_foreign(folder: str | os.PathLike) -> None:
    """Raises ValueError if something in `folder` has a checkpoint's name but was not written by this library."""
    for path in _named(folder):
        check_ours(path)


def discard_checkpoints(folder: str | os.PathLike) -> list[str]:
    """Removes our checkpoints from an output folder, complete or not, and returns their names. Everything else stays."""
    found = [path for path in _named(folder) if is_ours(path)]
    for path in found:
        _remove(path)
    return [path.name for path in found]


def keep_last(folder: str | os.PathLike, limit: int, best: str | None) -> None:
    """Removes all but the `limit` latest of our checkpoints. `best` is one of those that are kept."""
    ours = [path for path in _named(folder) if is_ours(path)]
    latest_first = [path for path in ours[::-1] if is_complete(path)]
    best_first = sorted(latest_first, key=lambda path: best is None or path.resolve() != Path(best).resolve())
    for path in ours:
        if path not in {*latest_first[:1], *best_first[:limit]}:
            try:
                _remove(path)
            except OSError as error:  # a full disk is a smaller loss than the run
                logger.warning("%s: not removed: %s", path, error)


def _named(folder: str | os.PathLike) -> list[Path]:
    """Everything with the name of a checkpoint, sorted by step."""
    return sorted((path for path in Path(folder).glob("*") if _NAME.fullmatch(path.name)), key=step_of)


def step_of(checkpoint: str | os.PathLike) -> int:
    """The step after which a checkpoint was saved."""
    return int(Path(checkpoint).name.rsplit("-", 1)[1])


def is_ours(path: Path) -> bool:
    """Whether it has a record. A process that is killed before the record is there leaves a folder without any file of others."""
    if path.is_symlink() or not path.is_dir():
        return False
    return (path / RECORD).is_file() or all(_UNFINISHED.fullmatch(inside.name) for inside in path.iterdir())


def check_ours(path: Path) -> None:
    """Raises ValueError if something with the name of a checkpoint was not written by this library."""
    if not is_ours(path):
        raise ValueError(
            f"output_dir={str(path.parent)!r} holds {path.name}, which has no {RECORD} and so was not written by a FarziTrainer; "
            "choose another output_dir, or move it away"
        )


def is_complete(checkpoint: Path) -> bool:
    """Whether the trainer's state exists and is whole."""
    with suppress(OSError, ValueError):
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
        return True
    return False


def files_of(folder: Path) -> set[str]:
    """The files in a folder and in those inside it, by their paths in it. A link counts as a file."""
    inside = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    return {path.relative_to(folder).as_posix() for path in inside}


def _remove(checkpoint: Path) -> None:
    """Removes the files of a checkpoint. Files of others stay, and with them the record, which says that the folder is ours.

    The record is removed last: an interrupted removal leaves an incomplete checkpoint of ours.
    """
    found = files_of(checkpoint) - {RECORD}
    ours = found
    with suppress(ValueError):  # there is no record yet
        known = read_record(checkpoint).files
        ours = found if known is None else found & set(known)
    for name in sorted(ours, key=lambda name: name != TRAINER_STATE_NAME):  # without the state it is incomplete
        (checkpoint / name).unlink()
    folders = [path for path in checkpoint.rglob("*") if path.is_dir() and not path.is_symlink()]
    for folder in sorted(folders, reverse=True):
        with suppress(OSError):  # it is not empty
            folder.rmdir()
    if found == ours:
        (checkpoint / RECORD).unlink(missing_ok=True)
        checkpoint.rmdir()
    elif ours:  # once
        others = ", ".join(sorted(found - ours))
        logger.warning("%s holds files that are not of the checkpoint and stay: %s.", checkpoint, others)


@contextmanager
def locked(args: TrainingArguments) -> Iterator[None]:
    """The run's folder for its first process alone, without files that processes began to write and were killed. The other processes of the
    run write into it too."""
    with exclusive(args.output_dir) if args.process_index == 0 else nullcontext():
        for path in Path(args.output_dir).glob(".*") if args.process_index == 0 else ():
            found = _UNFINISHED.fullmatch(path.name)
            if found and path.is_file() and not path.is_symlink() and not psutil.pid_exists(int(found[1])):
                path.unlink(missing_ok=True)
        yield
