"""A Trainer that a signal ends after a checkpoint."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from farzi_hf.distillation.signals import Interrupted, _name, end, noted_signals
from farzi_hf.summary.store.atomic_folder import names_the_disk

logger = logging.getLogger(__name__)


class InterruptibleTrainer(Trainer):
    """A Trainer that stops after SIGINT, SIGTERM or SIGHUP: at the end of the step, it saves a checkpoint and ends.

    It saves with every `save_strategy`. `train()` then raises `Interrupted`, a `SystemExit`. If there are several processes, all
    stop at the same step. A callback could not do this. With `save_strategy="best"`, Trainer ignores a callback that wants to
    save. And after a callback has stopped the training, `load_best_model_at_end` and `save_total_limit=1` can make Trainer
    remove the checkpoint.
    """

    saves_on_signal = True
    """Whether a signal saves a checkpoint. A program that makes an interrupted training anew sets this to False."""

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in `Trainer`.

        Raises:
            Interrupted: a signal came, and the checkpoint is written, if there is to be one.
        """
        with noted_signals() as self._noted:
            self._saved_step = -1
            return super().train(*args, **kwargs)

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        with names_the_disk(self.args.output_dir):
            super()._save_checkpoint(model, trial)
        self._saved_step = self.state.global_step

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, model: Any, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Trainer calls this at the end of each step. A noted signal is handled after Trainer's own work."""
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        number = self._agreed_signal()
        if not number:
            return
        if not self.saves_on_signal:
            end(number, "the training ends here and saves no checkpoint")
        if self._saved_step != self.state.global_step:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self._finish_current_push()
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            logger.warning("%s: the run is saved in %s and can be resumed from there.", _name(number), folder)
        raise Interrupted(number)

    def _agreed_signal(self) -> int:
        """The number of a signal that any process has noted, or 0."""
        number = self._noted.number
        if self.args.world_size > 1:
            number = self.accelerator.gather(torch.tensor([number], device=self.args.device)).max().item()
        return number
