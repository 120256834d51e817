"""Callbacks of `FarziTrainer`: figures for its log, warnings, deletion of old checkpoints, and progress bars."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import psutil
import torch
from accelerate import Accelerator
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from farzi_hf.distillation.checkpoints import keep_last

try:
    import resource
except ImportError:  # Windows
    resource = None

logger = logging.getLogger(__name__)

CHAOTIC = 100.0  # norm of a meta-gradient
DIVERGED = 1.1  # times the outer loss at the start
_LAST_LOGS = 5

# -- figures of the log ----------------------------------------------------------------------------------------------


class StepFigures(TrainerCallback):
    """Measures `seconds_per_step`, for outer steps only, and `peak_memory_gib`. The trainer adds both to its log."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begin, self._seconds, self._steps = 0.0, 0.0, 0

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self._seconds, self._steps = 0.0, 0

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._begin = time.perf_counter()

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self._seconds += time.perf_counter() - self._begin
        self._steps += 1

    def since_last_log(self) -> dict[str, float]:
        """The figures since the last call. The counters are then reset."""
        seconds = self._seconds / max(1, self._steps)
        self._seconds, self._steps = 0.0, 0
        return {"seconds_per_step": seconds, "peak_memory_gib": peak_memory(self._device) / 2**30}


def peak_memory(device: torch.device) -> int:
    """The peak memory in bytes: of all tensors on a CUDA device; else of this process, since its start.

    For a process, the system counts the peak: the working set on Windows, the resident set on Linux and macOS.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        memory = psutil.Process().memory_info()
        return getattr(memory, "peak_wset", memory.rss)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class MeanCorrection:
    """The mean of finite losses only. Trainer divides its sum, in which the others are 0, by all of them."""

    def __init__(self) -> None:
        self._finite, self._all = 0, 0

    def count(self, finite: bool) -> None:
        """Counts one loss of this process."""
        self._finite += finite
        self._all += 1

    def factor(self, accelerator: Accelerator) -> float:
        """What Trainer's mean is multiplied by; NaN if no loss was finite. All processes call this."""
        counts = torch.tensor([self._finite, self._all], dtype=torch.float64, device=accelerator.device)
        finite, number = accelerator.reduce(counts, reduction="sum").tolist()
        return number / finite if finite else math.nan


# -- warnings --------------------------------------------------------------------------------------------------------


class ChaosWarning(TrainerCallback):
    """Warns once if the meta-gradient is far too large. It looks at the norm before clipping, because clipping hides the problem."""

    def __init__(self) -> None:
        self._warned = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict | None = None,
        **kwargs: Any,
    ) -> None:
        norm = (logs or {}).get("grad_norm", 0.0)
        if norm > CHAOTIC and not self._warned:
            self._warned = True
            logger.warning(
                "Step %d: the norm of the meta-gradient is %.3g, but about 0.1 is usual. The learner's training is chaotic, and its exact "
                "gradient is useless. Set a window (a fifth of inner_steps is a good first try), or raise inner_epsilon.",
                state.global_step,
                norm,
            )


class DivergenceWarning(TrainerCallback):
    """Warns once if the outer loss has stayed well above its first value."""

    def __init__(self) -> None:
        self._warned = False

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict | None = None,
        **kwargs: Any,
    ) -> None:
        entries = [entry for entry in state.log_history if "loss" in entry]
        if self._warned or "loss" not in (logs or {}) or not diverged([entry["loss"] for entry in entries]):
            return
        self._warned, last = True, entries[-_LAST_LOGS:]
        logger.warning(
            "Step %d: the outer loss has been above its start since step %d: its mean is %.3g, and it began at %.3g. The distillation diverges. "
            "Go on from an earlier checkpoint, or start a new run, with a smaller learning_rate or inner_learning_rate, a window, or a "
            "larger inner_epsilon.",
            state.global_step,
            last[0]["step"],
            np.mean([entry["loss"] for entry in last]),
            entries[0]["loss"],
        )


def diverged(losses: Sequence[float]) -> bool:
    """Whether each of the last five logged losses is well above the first logged loss."""
    return len(losses) > _LAST_LOGS and all(loss > DIVERGED * losses[0] for loss in losses[-_LAST_LOGS:])


# -- checkpoints -----------------------------------------------------------------------------------------------------


class KeepLastCheckpoints(TrainerCallback):
    """Keeps the `limit` latest checkpoints and the best one. If `limit` is None or 0, it keeps all. It never touches folders of others."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if args.should_save and self._limit:
            keep_last(args.output_dir, self._limit, state.best_model_checkpoint)


class LocatedBest(TrainerCallback):
    """Gives a run that goes on the best checkpoint where it lies now; Trainer would take the path from the state of the checkpoint."""

    def __init__(self, best: str | None) -> None:
        self._best = best

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.best_model_checkpoint = self._best


class CurrentIntervals(TrainerCallback):
    """Applies the present `logging_steps`, `eval_steps` and `save_steps` at a resume. Trainer would take those of the checkpoint."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        state.compute_steps(args, state.max_steps)


# -- progress --------------------------------------------------------------------------------------------------------


class StudentProgress(TrainerCallback):
    """One progress bar for all students of an evaluation. A student counts its training as one unit, and each batch as one."""

    def __init__(self) -> None:
        self._bar: tqdm | None = None

    @contextmanager
    def shown(self, students: int, batches: int, disable: bool) -> Iterator[None]:
        """Shows the bar. Enter this context before the first training."""
        title = f"{students} student{'s' * (students > 1)}"
        total = students * (batches + 1)
        with tqdm(total=total, desc=title, disable=disable, leave=False, dynamic_ncols=True) as self._bar:
            yield
        self._bar = None

    def trained(self) -> None:
        """Call this when a student is trained."""
        self._bar.update()

    def on_prediction_step(self, *args: Any, **kwargs: Any) -> None:
        if self._bar is not None:
            self._bar.update()


def without_prediction_bar(progress: type[TrainerCallback]) -> type[TrainerCallback]:
    """A class of Trainer's progress bars without the bar of an evaluation. That bar starts late and shows only one student."""
    return type(progress.__name__, (progress,), {"on_prediction_step": TrainerCallback.on_prediction_step})


@contextmanager
def phase(text: str, disable: bool = False) -> Iterator[None]:
    """Shows `text` on the terminal while the context is open."""
    with tqdm(desc=text, bar_format="{desc} …", disable=disable, leave=False, dynamic_ncols=True):
        yield
