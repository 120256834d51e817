"""What `FarziTrainer` measures, warns of and shows."""

import logging
import sys
from typing import Any

import psutil
import torch
from transformers import TrainerCallback, TrainerState

try:
    import resource
except ImportError:  # Windows
    resource = None

logger = logging.getLogger(__name__)

CHAOTIC = 100.0  # norm of a meta-gradient


def peak_memory(device: torch.device) -> int:
    """The peak memory in bytes: of all tensors on a CUDA device; else of this process, since its start.

    For a process, the system counts the peak: the working set on Windows, the resident set on Linux and macOS.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if resource is None:
        return psutil.Process().memory_info().peak_wset
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


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


def without_prediction_bar(progress: type[TrainerCallback]) -> type[TrainerCallback]:
    """A class of Trainer's progress bars without that of an evaluation, which is of one student; a resume's time left is by its own steps."""

    def on_train_begin(self: Any, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        progress.on_train_begin(self, args, state, control, **kwargs)
        if (bar := getattr(self, "training_bar", None)) is not None:
            bar.initial = bar.n = self.current_step = state.global_step

    own = {"on_prediction_step": TrainerCallback.on_prediction_step, "on_train_begin": on_train_begin}
    return type(progress.__name__, (progress,), own)
