"""Ctrl-C, SIGTERM and SIGHUP: what is under way comes to a point from which it can go on, and only then the program ends.

The first signal is noted. A second one ends the program at once, as does any signal outside `noted_signals`.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from transformers import Trainer
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, TrainOutput

from farzi_hf.disk import names_the_disk

logger = logging.getLogger(__name__)

# Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupted(SystemExit):
    """A signal ended the work at a point from which it can go on. Its `code` is the usual one: 130, 143 or 129."""

    def __init__(self, number: int):
        super().__init__(128 + number)


class NotedSignal:
    """The signal that came first; 0 while there is none."""

    def __init__(self) -> None:
        self.number, self._process = 0, os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        """The handler."""
        if os.getpid() != self._process:  # a worker of a data loader: it serves until its parent ends it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.number:
            raise Interrupted(number)
        self.number = number
        if sys.stderr is not None and sys.stderr.isatty():  # only who sees this can press again
            logger.warning("%s: this step is finished and saved first; once more ends at once.", _name(number))


@contextmanager
def noted_signals() -> Iterator[NotedSignal]:
    """Within it, a signal is noted instead of ending the program.

    Handlers that someone has set stay, and so do signals that are ignored (as SIGHUP under nohup). Outside of the main
    thread, where Python allows no handlers, nothing is noted.

    Raises:
        Interrupted: at the end, where a signal was noted and nobody has acted on it.
    """
    noted, earlier = NotedSignal(), {}
    if threading.current_thread() is threading.main_thread():
        earlier = {number: handler for number in _SIGNALS if (handler := signal.getsignal(number)) in _DEFAULTS}
    try:
        for number in earlier:
            signal.signal(number, noted)
        yield noted
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if noted.number:
        end(noted.number, "what was under way is finished")


def end(number: int, message: str) -> NoReturn:
    """Ends the program with one line, unless someone catches `Interrupted`."""
    logger.warning("%s: %s.", _name(number), message)
    raise Interrupted(number)


def _name(number: int) -> str:
    """For instance SIGINT."""
    return signal.Signals(number).name


class InterruptibleTrainer(Trainer):
    """A Trainer that SIGINT, SIGTERM and SIGHUP end after a checkpoint: at the end of the step, whatever `save_strategy` says.

    `train()` then raises `Interrupted`, a `SystemExit`. Of several processes all stop at the same step. A callback would not do:
    Trainer overrides what one asks for where `save_strategy="best"`, and what it does after the last step of a training that
    is asked to stop (`load_best_model_at_end`, `save_total_limit=1`) would remove the checkpoint.
    """

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """As in `Trainer`.

        Raises:
            Interrupted: a signal came; the checkpoint is written.
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
        """Trainer calls it at the end of each step: after what is due then, the signal."""
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        number = self._agreed_signal()
        if not number:
            return
        if self._saved_step != self.state.global_step:
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self._finish_current_push()
        if self.is_world_process_zero():
            folder = Path(self.args.output_dir, f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}")
            logger.warning("%s: the run is saved in %s and can be resumed from there.", _name(number), folder)
        raise Interrupted(number)

    def _agreed_signal(self) -> int:
        """The number of a signal that any of the processes has noted, 0 if none has."""
        number = self._noted.number
        if self.args.world_size > 1:
            number = self.accelerator.gather(torch.tensor([number], device=self.args.device)).max().item()
        return number
