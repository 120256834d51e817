"""Measures one cell of the benchmark. One part runs inside the cell's process; the other starts it and limits memory and time."""

from __future__ import annotations

import ctypes
import gc
import json
import os
import platform
import signal
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from methods import Method, Ours, Problem
from safetensors.torch import load_file, save_file

from farzi_hf.cli.program import keep_freed_memory, return_freed_memory

LONG_REPETITION = 20.0  # seconds; a cell that takes longer is not repeated
REPETITIONS = 3
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_WARM_UP_STEPS = 2
_POLL = 0.05  # seconds between two looks at a process
_RESERVE = 1 << 30  # bytes that the machine keeps free
_OTHERS = (
    3 << 30
)  # usual bytes of the system and this program; if they hold more, the lack of memory is not the method's fault

Facts = dict[str, Any]


# -- inside ----------------------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Asks Linux to end this process when its parent process has ended, and to end it first when memory runs out."""
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def measure(problem: Problem, method: Method, steps: int, reference: Path, report: Callable[[Facts], None]) -> None:
    """Reports the cost of one meta-gradient: memory, relative error, time and, for our methods, G and R. Each is reported at once.

    The first run measures memory, and its malloc returns freed memory to the system. The next runs measure time, and their malloc
    keeps freed memory.
    """
    timer = Timer(problem.latents.device)
    return_freed_memory()
    _, warm_up = timer.result(lambda: problem.meta_gradient(method, _WARM_UP_STEPS))
    report({"warm_up_seconds": warm_up[0]})
    peak = PeakMemory(problem.latents.device)
    gradient = problem.meta_gradient(method, steps)
    report({"memory_bytes": peak.read(), "relative_error": relative_error(gradient, load(reference))})
    del gradient
    keep_freed_memory()
    problem.meta_gradient(method, _WARM_UP_STEPS)
    if isinstance(method, Ours):
        method.step_seconds(problem, timer)
    times: list[tuple[float, float]] = []
    step_times: list[tuple[float, float]] = []
    while len(times) < REPETITIONS and (not times or times[0][0] < LONG_REPETITION):
        times.append(timer(lambda: problem.meta_gradient(method, steps)))
        if isinstance(method, Ours):
            step_times.append(method.step_seconds(problem, timer))
        report(summarised(times, step_times, steps))


def summarised(times: Sequence[tuple[float, float]], step_times: Sequence[tuple[float, float]], steps: int) -> Facts:
    """The columns of a cell, from the (wall, CPU) seconds of all repetitions and from the seconds of G and R."""
    wall, cpu = zip(*times, strict=True)
    facts = {
        "repetitions": len(times),
        "seconds": statistics.median(wall), "seconds_min": min(wall),
        "cpu_seconds": statistics.median(cpu), "cpu_seconds_min": min(cpu),
    }  # fmt: skip
    if not step_times:
        return facts
    gradient, reverse = map(statistics.median, zip(*step_times, strict=True))
    ratios = {"R/G": reverse / gradient, "total/(T·G)": facts["seconds"] / (steps * gradient)}
    return {**facts, "G_seconds": gradient, "R_seconds": reverse, **ratios}


class Timer:
    """Wall and CPU seconds of a call. On a GPU, it waits until the GPU has finished."""

    def __init__(self, device: torch.device):
        self._wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None

    def __call__(self, function: Callable[[], Any]) -> tuple[float, float]:
        return self.result(function)[1]

    def result(self, function: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
        self._wait()
        wall, cpu = time.perf_counter(), time.process_time()
        result = function()
        self._wait()
        return result, (time.perf_counter() - wall, time.process_time() - cpu)


class PeakMemory:
    """The peak of the bytes in use since this object was made, minus the bytes in use at that time.

    On a CPU, these are pages of the process. The heap must first return its free memory to the system: free memory that a warm-up
    has left would hide a part of the peak. This works on Linux only; elsewhere `read` returns None.
    """

    def __init__(self, device: torch.device):
        self._cuda = device.type == "cuda"
        gc.collect()
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            self._before = torch.cuda.memory_allocated()
            return
        if platform.libc_ver()[0] == "glibc":
            ctypes.CDLL(None).malloc_trim(0)
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # sets VmHWM to VmRSS
        self._before = _status("VmRSS")

    def read(self) -> int | None:
        if self._cuda:
            return torch.cuda.max_memory_allocated() - self._before
        peak = _status("VmHWM")
        return None if peak is None else peak - self._before


def _status(field: str) -> int | None:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return None


def relative_error(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """‖found − expected‖ / ‖expected‖ over all tensors together, in float64."""
    found, expected = (torch.cat([x.flatten().cpu().double() for x in tensors]) for tensors in (found, expected))
    return float((found - expected).norm() / expected.norm())


def save(gradient: Sequence[torch.Tensor], path: Path) -> None:
    save_file(dict(zip(("latents", "decoder"), gradient, strict=True)), path)


def load(path: Path) -> list[torch.Tensor]:
    tensors = load_file(path)
    return [tensors["latents"], tensors["decoder"]]


# -- outside ---------------------------------------------------------------------------------------------------------


def unfinished(facts: Mapping[str, Any]) -> bool:
    """Whether a process failed for a reason that may not occur again."""
    return facts["status"] == "failed"


def run_limited(command: Sequence[str], environment: dict[str, str], memory_limit: int, time_limit: float) -> Facts:
    """Runs a process under limits, and returns its reports and the way it ended.

    The process gets the name of a file as its last argument. Each report is a line of JSON that it appends to this file.

    Args:
        memory_limit: bytes of resident memory. A process is also stopped before the machine runs out of memory.
        time_limit: seconds.

    Returns:
        All reports, `status` ("ok", "out of memory", "too slow" or "failed"), and a `note` if the status is not "ok".
    """
    with tempfile.TemporaryDirectory() as folder:
        reported, errors = Path(folder, "report"), Path(folder, "errors")
        reported.touch()
        with errors.open("w") as stderr:
            process = subprocess.Popen(
                [*command, str(reported)],
                env=environment,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                status, note = _watch(process, memory_limit, time_limit)
            finally:
                with suppress(ProcessLookupError):  # ends the process and its children
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
        if status == "failed" and not note:  # it ended by itself
            note = lines[-1] if lines else f"exit status {process.returncode}"
            if "out of memory" in note or "not enough memory" in note or note.startswith("MemoryError"):
                status = "out of memory"
        facts = {}
        for line in reported.read_text().splitlines():
            facts.update(json.loads(line))
    return {**facts, "status": status, "note": note}


def _watch(process: subprocess.Popen, memory_limit: int, time_limit: float) -> tuple[str, str]:
    """Waits for the process, and ends it if it exceeds a limit. Returns its status, and a note if it was ended."""
    import psutil  # part of the extra "bench"; the caller reports its absence

    watched, start, largest = psutil.Process(process.pid), time.monotonic(), 0
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            largest = max(largest, watched.memory_info().rss)
        if largest > memory_limit:
            return "out of memory", f"stopped at {largest / 2**30:.1f} GiB"
        memory = psutil.virtual_memory()
        if memory.available < _RESERVE:
            others = memory.total - memory.available - largest
            note = (
                f"stopped at {largest / 2**30:.1f} GiB, as nothing was left beside {others / 2**30:.1f} GiB of others"
            )
            return "out of memory" if others < _OTHERS else "failed", note
        if time.monotonic() - start > time_limit:
            return "too slow", f"stopped after {time_limit:,.0f} s"
        time.sleep(_POLL)
    if process.returncode == -signal.SIGKILL:
        return "out of memory", f"killed by the system at {largest / 2**30:.1f} GiB"
    return ("ok" if process.returncode == 0 else "failed"), ""
