"""What `FarziTrainer` measures and shows."""

import sys
from typing import Any

import psutil
import torch
from transformers import TrainerCallback, TrainerState

try:
    import resource
except ImportError:  # Windows
    resource = None


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


def without_prediction_bar(progress: type[TrainerCallback]) -> type[TrainerCallback]:
    """A class of Trainer's progress bars without that of an evaluation, which is of one student; a resume's time left is by its own steps."""

    def on_train_begin(self: Any, args: Any, state: TrainerState, control: Any, **kwargs: Any) -> None:
        progress.on_train_begin(self, args, state, control, **kwargs)
        if (bar := getattr(self, "training_bar", None)) is not None:
            bar.initial = bar.n = self.current_step = state.global_step

    own = {"on_prediction_step": TrainerCallback.on_prediction_step, "on_train_begin": on_train_begin}
    return type(progress.__name__, (progress,), own)
