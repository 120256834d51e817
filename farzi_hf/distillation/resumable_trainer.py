"""A Trainer that knows its own checkpoints from other folders, and lets a resume change settings. `FarziTrainer` builds on it."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR, LRScheduler
from transformers.trainer import OPTIMIZER_NAME, TRAINER_STATE_NAME
from transformers.trainer_callback import TrainerState
from transformers.trainer_utils import TrainOutput

from farzi_hf.distillation.callbacks import KeepLastCheckpoints, LocatedBest
from farzi_hf.distillation.checkpoints import (
    RunRecord,
    begin_checkpoint,
    check_new_run,
    check_no_foreign,
    described,
    is_complete,
    last_checkpoint,
    moved_along,
    own_checkpoints,
    read_record,
    step_of,
)
from farzi_hf.distillation.publishing_trainer import PublishingTrainer
from farzi_hf.summary.store.atomic_folder import exclusive, replace_file

logger = logging.getLogger(__name__)

OF_THE_OPTIMIZER = (
    "learning_rate", "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "max_steps", "num_train_epochs", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "optim_args",
)  # fmt: skip
"""Settings that a checkpoint also stores in its optimizer and scheduler."""
_PROCESS_STATE = "state_of_process_{}.safetensors"
_WITHOUT_EFFECT = ("eval_students", "max_non_finite", "adjoint", "storage", "world_size", "trajectories")
"""Settings that do not influence the outer steps of a finished run. `trajectories` is a place; what lies there is a setting of its own."""


class ResumableTrainer(PublishingTrainer):
    """A Trainer whose runs can resume with other settings.

    Before the first step, it raises an error if checkpoints of two runs would mix, or if files of others would be changed.
    A subclass gives in `_settings` everything on which its run depends. Each checkpoint records these settings, and the
    history of their changes at resumes.
    """

    changed: Mapping[str, Sequence[Any]] = {}
    """The settings that this resume has changed, `{field: [old, new]}`."""
    _record = RunRecord({})
    _made_optimizer = False

    @property
    def history(self) -> list[Mapping[str, Any]]:
        """The changes at resumes: one entry `{"step": …, "changed": {field: [old, new]}}` for each resume with changes."""
        return list(self._record.history)

    def _settings(self) -> dict[str, Any]:
        """Everything on which this run depends, as plain JSON by name."""
        raise NotImplementedError

    # -- before the first step ---------------------------------------------------------------------------------------

    def check_run(self, resume_from_checkpoint: str | bool | None = None) -> None:
        """The checks that `train(resume_from_checkpoint)` makes before its first step. Call this before other long work.

        Raises:
            ValueError: there is no checkpoint to go on from; or a setting differs from the checkpoint's and cannot change; or the
                output folder holds checkpoints of another run, or something else with the name of a checkpoint.
        """
        self._prepare_run(self._checkpoint(resume_from_checkpoint))

    def _checkpoint(self, resume_from_checkpoint: str | bool | None) -> str | None:
        if resume_from_checkpoint is not True:
            return resume_from_checkpoint or None
        found = last_checkpoint(self.args.output_dir)
        if found is None:
            raise ValueError(
                f"resume_from_checkpoint=True, but output_dir={self.args.output_dir!r} holds no complete checkpoint; "
                "call train() without it to start a new run"
            )
        return found

    def _prepare_run(self, checkpoint: str | None) -> TrainerState | None:
        """Sets the record of the new run. Returns the state to go on from."""
        check_no_foreign(self.args.output_dir)  # for every save_strategy, because a signal makes every run save
        if checkpoint is None:
            check_new_run(self.args.output_dir)
            self._record, self.changed = RunRecord(self._settings()), {}
            return None
        before = read_record(checkpoint)
        state = TrainerState.load_from_json(os.path.join(checkpoint, TRAINER_STATE_NAME))
        state.best_model_checkpoint = moved_along(state.best_model_checkpoint, checkpoint)
        self._record = before.resumed(self._settings(), checkpoint, state.global_step)
        news = self._record.history[len(before.history) :]
        self.changed = news[0]["changed"] if news else {}
        self._check_later_checkpoints(checkpoint, state.global_step)
        if self._is_finished(state):
            self._check_finished(checkpoint, state.global_step)
        elif not Path(checkpoint, OPTIMIZER_NAME).exists():
            raise ValueError(
                f"resume_from_checkpoint={checkpoint!r} has no {OPTIMIZER_NAME}, without which a run cannot go on; name a whole checkpoint, "
                "or begin a new run in another output_dir"
            )
        self._check_process_state(checkpoint, before)
        if self.changed:
            logger.info("Going on from %s with other settings: %s.", checkpoint, described(self.changed))
        return state

    def _check_later_checkpoints(self, checkpoint: str, step: int) -> None:
        """Refuses later checkpoints of the old run: they would mix with the new run's, and look like its last ones."""
        folder = Path(self.args.output_dir)
        if Path(checkpoint).resolve().parent != folder.resolve():
            check_new_run(folder)
        elif self.changed:
            later = [path.name for path in own_checkpoints(folder) if is_complete(path) and step_of(path) > step]
            if later:
                raise ValueError(
                    f"resume_from_checkpoint={checkpoint!r} with other settings ({described(self.changed)}), but "
                    f"output_dir={str(folder)!r} holds later checkpoints of the old settings, {', '.join(later)}; choose another output_dir, "
                    "or go on from the last checkpoint"
                )

    def _check_process_state(self, checkpoint: str, before: RunRecord) -> None:
        """Refuses a checkpoint without the state of this process, if the run had this process and it has a state."""
        path, had = self._process_file(checkpoint), before.settings.get("world_size", 1)
        if self.args.process_index < had and not path.exists() and self._process_state():
            raise ValueError(
                f"resume_from_checkpoint={checkpoint!r} has no {path.name}, without which process {self.args.process_index} would begin anew; "
                "go on from another checkpoint into another output_dir"
            )

    def _is_finished(self, state: TrainerState) -> bool:
        """With other processes, the same epochs are another number of steps."""
        epochs = self.args.max_steps < 0 and (state.epoch or 0) >= self.args.num_train_epochs
        return epochs or state.global_step >= self._planned_steps()

    def _planned_steps(self) -> int:
        if self.args.max_steps >= 0:
            return self.args.max_steps
        return self.set_initial_training_values(self.args, self.get_train_dataloader())[-1]  # by epochs

    def _check_finished(self, checkpoint: str, steps: int) -> None:
        late = {name: pair for name, pair in self.changed.items() if name not in _WITHOUT_EFFECT}
        if late:
            raise ValueError(
                f"{described(late)}: this change is too late, because {checkpoint} has taken {steps} steps of {self._planned_steps()}; "
                "raise max_steps or num_train_epochs, or go on from an earlier checkpoint into another output_dir"
            )

    # -- training ----------------------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: str | bool | None = None, **kwargs: Any) -> TrainOutput:
        """As in `Trainer`; `resume_from_checkpoint=True` goes on from `last_checkpoint(args.output_dir)`.

        Settings that have changed since that checkpoint take effect. `history` and the recipe record them.

        Raises:
            ValueError: see `check_run`; another run writes to the output folder.
        """
        with exclusive(self.args.output_dir) if self.is_world_process_zero() else nullcontext():
            checkpoint = self._checkpoint(resume_from_checkpoint)
            state = self._prepare_run(checkpoint)
            if state is not None and self._is_finished(state):
                self._restore(state, checkpoint)
                return self._as_finished(state, checkpoint)
            self._begin(state)
            if self.args.max_steps == 0:  # the summary stays at its start; Trainer would take one step
                return TrainOutput(0, math.nan, {})
            if state is not None:
                self._restore(state, checkpoint)
            with self._own_rotation(state):
                return super().train(checkpoint, **kwargs)

    def _restore(self, state: TrainerState, checkpoint: str) -> None:
        """Goes on from what Trainer does not restore. A process that the earlier run did not have begins anew."""
        if (path := self._process_file(checkpoint)).exists():
            self._load_process_state(load_file(path))

    def _process_file(self, checkpoint: str) -> Path:
        return Path(checkpoint, _PROCESS_STATE.format(self.args.process_index))

    def _begin(self, state: TrainerState | None) -> None:
        """A subclass can override this to work before the first step; `state` is that of the checkpoint to go on from."""

    def _as_finished(self, state: TrainerState, checkpoint: str) -> TrainOutput:
        """The result of a run that has taken all its steps already. `Trainer` would take one more step."""
        best = state.best_model_checkpoint if self.args.load_best_model_at_end else None
        self._load_from_checkpoint(best or checkpoint)
        self.state = state
        if self.args.push_to_hub:  # the run may have been killed before its last push
            self._push_from_checkpoint(checkpoint)
            self._finish_current_push()
        return TrainOutput(state.global_step, math.nan, {})

    @contextmanager
    def _own_rotation(self, state: TrainerState | None) -> Iterator[None]:
        """Hides `save_total_limit` from Trainer. Trainer would remove every folder with a name like `checkpoint-…`."""
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        callbacks = [KeepLastCheckpoints(limit), LocatedBest(state and state.best_model_checkpoint)]
        for callback in callbacks:
            self.add_callback(callback)
        try:
            yield
        finally:
            self.args.save_total_limit = limit
            for callback in callbacks:
                self.remove_callback(callback)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """As in `PublishingTrainer`, but a checkpoint begins with its record."""
        if _internal_call:
            if self.args.should_save:
                begin_checkpoint(Path(output_dir), self._record)
            # The other processes write their random states into the folder, and would create it too early.
            self.accelerator.wait_for_everyone()
        super().save_model(output_dir, _internal_call)

    def _process_state(self) -> dict[str, Tensor]:
        """Tensors that this process needs for a resume, beside the random states. A subclass may have some."""
        return {}

    def _load_process_state(self, tensors: dict[str, Tensor]) -> None:
        """Goes on from the tensors of `_process_state`."""

    def _save_rng_state(self, output_dir: str) -> None:
        """As in Trainer, and saves `_process_state` as well."""
        super()._save_rng_state(output_dir)
        if tensors := self._process_state():
            replace_file(self._process_file(output_dir), partial(save_file, tensors))
        # Next the first process writes the trainer's state, which makes the checkpoint complete: not before all have written theirs.
        self.accelerator.wait_for_everyone()

    def create_optimizer(self, *args: Any, **kwargs: Any) -> torch.optim.Optimizer:
        """As in Trainer. A trainer that has trained before makes its optimizer anew: settings may have changed, and moments are old."""
        if self._made_optimizer:
            self.optimizer = None
        self._made_optimizer |= self.optimizer is None
        return super().create_optimizer(*args, **kwargs)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        """As in Trainer, which restores the settings of the checkpoint. Settings that were changed keep their new values here."""
        if not self.changed.keys() & set(OF_THE_OPTIMIZER) or not self._created_lr_scheduler:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        settings = [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups]
        schedule, self.lr_scheduler = self.lr_scheduler, _Unloaded()
        super()._load_optimizer_and_scheduler(checkpoint)
        self.lr_scheduler = schedule
        for group, new in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(new)
        _advance(schedule, self.state.global_step)


class _Unloaded:
    """Stands in for a schedule whose old state must not be loaded."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Ignores the state."""


def _advance(schedule: LRScheduler, step: int) -> None:
    """Sets a new schedule to `step`. A schedule that depends on the loss, and not on the step, begins from its start."""
    if isinstance(schedule, LambdaLR):
        schedule.last_epoch, schedule._step_count = step - 1, step + 1
        schedule.step()
