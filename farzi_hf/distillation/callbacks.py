"""Callbacks of `FarziTrainer`: figures for its log, warnings, and progress bars."""

from __future__ import annotations

import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psutil
import torch
from accelerate import Accelerator
from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerState

try:
    import resource
except ImportError:  # Windows
    resource = None

logger = logging.getLogger(__name__)

CHAOTIC = 100.0  # norm of a meta-gradient

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


class FiniteMeans:
    """The means of finite losses only, since the last log and of the whole run. Trainer divides its sums, in which the others are 0, by all.

    `counts` are losses of this process: the finite ones and all since the last log, then the same of the run.
    """

    def __init__(self, counts: Sequence[float] = (0, 0, 0, 0)) -> None:
        self.counts = [int(count) for count in counts]

    def count(self, finite: bool) -> None:
        """Counts one loss of this process."""
        self.counts = [n + more for n, more in zip(self.counts, (finite, 1, finite, 1), strict=True)]

    def factor_since_log(self, accelerator: Accelerator) -> float:
        """What Trainer's mean since the last log is multiplied by; NaN if no loss was finite. All processes call this at a log."""
        factor, self.counts[:2] = self._factor(self.counts[:2], accelerator), [0, 0]
        return factor

    def factor_of_run(self, accelerator: Accelerator) -> float:
        """The same for the mean of the whole run."""
        return self._factor(self.counts[2:], accelerator)

    @staticmethod
    def _factor(counts: Sequence[int], accelerator: Accelerator) -> float:
        both = torch.tensor(counts, dtype=torch.float64, device=accelerator.device)
        finite, number = accelerator.reduce(both, reduction="sum").tolist()
        return number / finite if finite else math.nan


# -- a warning --------------------------------------------------------------------------------------------------------


class ChaosWarning(TrainerCallback):
    """Warns once if the norm of the meta-gradient is far too large, before clipping, which hides that."""

    said = False

    def on_log(self, args: Any, state: TrainerState, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        norm = (logs or {}).get("grad_norm", 0.0)
        if norm > CHAOTIC and not self.said:
            self.said = True
            logger.warning(
                "Step %d: the norm of the meta-gradient is %.3g, but about 0.1 is usual. The learner's training is chaotic, and its exact "
                "gradient is useless. Set a window (a fifth of inner_steps is a good first try), or raise inner_epsilon.", state.global_step, norm,
            )  # fmt: skip


# -- progress --------------------------------------------------------------------------------------------------------


def without_prediction_bar(progress: type[TrainerCallback]) -> type[TrainerCallback]:
    """A class of Trainer's progress bars without the bar of an evaluation, which starts late and shows only one student."""
    return type(progress.__name__, (progress,), {"on_prediction_step": TrainerCallback.on_prediction_step})


@contextmanager
def phase(text: str, disable: bool = False) -> Iterator[None]:
    """Shows `text` on the terminal while the context is open."""
    with tqdm(desc=text, bar_format="{desc} …", disable=disable, leave=False, dynamic_ncols=True):
        yield
