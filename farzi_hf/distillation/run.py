"""The run of a `FarziTrainer`: how it begins or goes on, what it saves, and how a signal ends it.

A run goes on with the settings that it began with, so that it ends bit for bit as if it had not been interrupted.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import HfApi
from safetensors.torch import load_file, save_file
from transformers import TrainerCallback, TrainerState
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_NAME, PushInProgress

from farzi_hf.data.streams import described as described_rows
from farzi_hf.distillation.callbacks import FiniteMeans
from farzi_hf.distillation.checkpoints import (
    RECORD,
    RunRecord,
    changes,
    check_no_foreign,
    check_ours,
    described,
    files_of,
    is_ours,
    keep_last,
    last_checkpoint,
    locked,
    read_record,
    step_of,
)
from farzi_hf.distillation.learner import Learner
from farzi_hf.distillation.objectives import ConfigurableObjective
from farzi_hf.distillation.processes import Interrupted, NotedSignal, end, noted_signals
from farzi_hf.distillation.trajectories import TrajectoryBank
from farzi_hf.summary.store import hub
from farzi_hf.summary.store.atomic_folder import replace_file
from farzi_hf.summary.store.tensor_file import fingerprint

if TYPE_CHECKING:
    from farzi_hf.distillation.trainer import FarziTrainer

logger = logging.getLogger(__name__)

_PROCESS_STATE = "state_of_process_{}.safetensors"


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
        args = self.trainer.args
        if late := changes(self._built_with, args.to_recipe()):
            raise ValueError(
                f"args have changed since FarziTrainer was made, which they were built into: {described(late)}; make another FarziTrainer"
            )
        folder, settings = Path(args.output_dir), self._settings()
        check_no_foreign(folder)  # for every save_strategy, because a signal makes every run save
        self.checkpoint = self._named_checkpoint(resume_from_checkpoint)
        if self.checkpoint is None or Path(self.checkpoint).resolve().parent != folder.resolve():
            self._check_new(folder)
        if self.checkpoint is None:
            self.record = RunRecord(settings, start_facts=self.record.start_facts)
            return None
        before = read_record(self.checkpoint)
        if changed := changes(before.settings, settings):
            raise ValueError(
                f"{described(changed)}: a run goes on with its own settings, and {self.checkpoint} was made with others; give those, or begin "
                "a new run in another output_dir, which can go on from a summary: farzi_data=…"
            )
        self.record = replace(before, settings=settings, files=None)
        state = TrainerState.load_from_json(os.path.join(self.checkpoint, TRAINER_STATE_NAME))
        if state.best_model_checkpoint is not None:  # an absolute path, and the folder of the run may have been moved
            beside = Path(self.checkpoint).parent / Path(state.best_model_checkpoint).name
            state.best_model_checkpoint = str(beside) if is_ours(beside) else state.best_model_checkpoint
        self._best = state.best_model_checkpoint
        for needed in () if is_finished(state) else (Path(self.checkpoint, OPTIMIZER_NAME), self._process_file()):
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

    def _named_checkpoint(self, resume_from_checkpoint: str | bool | None) -> str | None:
        if resume_from_checkpoint is not True:
            return str(resume_from_checkpoint) if resume_from_checkpoint else None
        found = last_checkpoint(folder := self.trainer.args.output_dir)
        if found is None:
            raise ValueError(
                f"resume_from_checkpoint=True, but output_dir={folder!r} holds no complete checkpoint; call train() without it to start a "
                "new run"
            )
        return found

    @staticmethod
    def _check_new(folder: Path) -> None:
        """Refuses checkpoints of another run, because those of this one would mix with them."""
        if (found := last_checkpoint(folder)) is not None:
            raise ValueError(
                f"output_dir={str(folder)!r} holds {Path(found).name} of an earlier run, which a new one would overwrite; go on from it with "
                "train(resume_from_checkpoint=True), choose another output_dir, or remove it with "
                "farzi_hf.distillation.checkpoints.discard_checkpoints(output_dir)"
            )

    def restore(self, state: TrainerState) -> None:
        """Goes on from what Trainer does not restore."""
        self.trainer.args.eval_on_start = False  # the log has that evaluation
        if (path := self._process_file()).exists():
            self._tensors = load_file(path)
            own = {name.removeprefix("objective."): x for name, x in self._tensors.items() if name != "log"}
            if own:
                self.trainer.objective.load_state_dict(own, self.trainer.learner, self.trainer.args.device)
        for checkpoint in {self.checkpoint, state.best_model_checkpoint or self.checkpoint}:
            self._recall_evaluations(state, Path(checkpoint))

    def on_train_begin(self, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Goes on from what Trainer restores otherwise: the place of the best checkpoint, and sums of the log, which it begins anew."""
        if self.checkpoint is not None:
            state.best_model_checkpoint, trainer = self._best, self.trainer
            *counts, loss, trainer._total_loss_scalar, last_logged = self._tensors["log"].tolist()
            trainer.losses, trainer._globalstep_last_logged = FiniteMeans(counts), int(last_logged)
            trainer._tr_loss.fill_(loss)

    # -- during the training -----------------------------------------------------------------------------------------

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

    def signal(self) -> int:
        """The number of a signal that any process has noted, or 0. All processes call this."""
        number, trainer = self._noted.number, self.trainer
        if trainer.args.world_size > 1:
            number = trainer.accelerator.gather(torch.tensor([number], device=trainer.args.device)).max().item()
        return number

    # -- evaluations -------------------------------------------------------------------------------------------------

    def remember(self, summary: str, metrics: Mapping[str, float]) -> None:
        """Adds metrics of a summary, by its fingerprint, to those of other sets with another prefix."""
        self.evaluations[summary] = dict(sorted({**self.evaluations.get(summary, {}), **metrics}.items()))

    def _recall_evaluations(self, state: TrainerState, checkpoint: Path) -> None:
        """The metrics of the summary in a checkpoint, from the log of the run: they belong into its artefact."""
        logged = [entry for entry in state.log_history if entry["step"] == step_of(checkpoint)]
        for entry in [entry for entry in logged if any(name.endswith("_students") for name in entry)]:
            tensors = load_file(checkpoint / SAFE_WEIGHTS_NAME)
            names = self.trainer.model.contents().tensors
            self.remember(fingerprint({name: tensors[name] for name in names}), entry)

    # -- the Hub -----------------------------------------------------------------------------------------------------

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


def is_finished(state: TrainerState) -> bool:
    """Whether a run has taken all its steps."""
    return state.global_step >= state.max_steps
