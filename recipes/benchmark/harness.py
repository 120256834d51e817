"""The harness of the benchmarks: each cell is measured in a process of its own, under limits, and
its row is kept.

A cell is a dict of settings. A benchmark has a function `measure(report, **cell)`, which calls
`report(facts)` as soon as it knows something. `in_process` runs it in a fresh interpreter;
`complete` does so for all cells of a table that have no row yet.
"""

import ctypes
import gc
import hashlib
import inspect
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from farzi_hf.cli.program import keep_freed_memory
from farzi_hf.cli.run_folder import check_files
from farzi_hf.common.text import numbers_of
from farzi_hf.report import save_json
from farzi_hf.report.rendering import commit_of

REPOSITORY = Path(__file__).resolve().parents[2]
PR_SET_PDEATHSIG = 1  # of <sys/prctl.h>
_POLL = 0.05  # seconds between two looks at a process
_RESERVE = 1 << 30  # bytes that the machine keeps free
# Usual bytes of the system and this program. If they hold more, the lack of memory is not the
# method's fault.
_OTHERS = 3 << 30

Facts = dict[str, Any]
Report = Callable[[Facts], None]

# -- inside the process of a cell ------------------------------------------------------------------


def return_freed_memory() -> None:
    """The opposite of `keep_freed_memory`, and slower: the memory in use then equals that of the
    present tensors, without holes in the heap.
    """
    keep_freed_memory(1 << 20, 1 << 20)


def end_with_parent() -> None:
    """Asks Linux to end this process when its parent process has ended, and to end it first when
    memory runs out.
    """
    if platform.system() == "Linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


class Timer:
    """Wall and CPU seconds of a call. On a GPU, it waits until the GPU has finished."""

    def __init__(self, device: str = "cpu"):
        self._wait = torch.cuda.synchronize if torch.device(device).type == "cuda" else lambda: None

    def __call__(self, function: Callable[[], Any]) -> tuple[float, float]:
        return self.result(function)[1]

    def result(self, function: Callable[[], Any]) -> tuple[Any, tuple[float, float]]:
        """The result of the call, and its seconds."""
        self._wait()
        wall = time.perf_counter()
        cpu = time.process_time()
        result = function()
        self._wait()
        return result, (time.perf_counter() - wall, time.process_time() - cpu)


class PeakMemory:
    """The peak of the bytes in use since this object was made, minus the bytes in use at that time.

    On a CPU, these are pages of the process. The heap must first return its free memory to the
    system: free memory that a warm-up has left would hide a part of the peak. This works on Linux
    only; elsewhere `read` returns None.
    """

    def __init__(self, device: str = "cpu"):
        self._cuda = torch.device(device).type == "cuda"
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
        """Bytes."""
        if self._cuda:
            return torch.cuda.max_memory_allocated() - self._before
        peak = _status("VmHWM")
        # The kernel counts pages in batches, so a peak can lag behind.
        return None if peak is None else max(0, peak - self._before)


def _status(field: str) -> int | None:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return 1024 * int(line.split()[1])
    return None


# -- outside ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """Limits of a process: GiB of resident memory, seconds, and threads. A process is also stopped
    before the machine runs out of memory.
    """

    memory: float
    seconds: float
    threads: int = 1


def in_process(measure: Callable[..., None], cell: Facts, limits: Limits) -> Facts:
    """What `measure(report, **cell)` reports in a process of its own; see `run_limited`."""
    path = Path(inspect.getfile(measure))
    folders = (REPOSITORY, path.parent, Path(__file__).parent)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "OMP_NUM_THREADS": str(limits.threads),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    command = [
        sys.executable,
        __file__,
        path.stem,
        measure.__name__,
        json.dumps(cell),
        str(limits.threads),
    ]
    return run_limited(command, variables, limits)


def run_limited(command: Sequence[str], environment: Mapping[str, str], limits: Limits) -> Facts:
    """Runs a process under limits: its reports, lines of JSON that it appends to the file that its
    last argument names, and how it ended: `status` ("ok", "out of memory", "too slow" or "failed")
    and a `note`.
    """
    with tempfile.TemporaryDirectory() as folder:
        reported = Path(folder, "report")
        errors = Path(folder, "errors")
        reported.touch()
        with errors.open("w") as stderr:
            streams = {"stdout": subprocess.DEVNULL, "stderr": stderr}
            process = subprocess.Popen(
                [*command, str(reported)], env=environment, start_new_session=True, **streams
            )
            try:
                status, note = _watch(process, limits)
            finally:
                with suppress(ProcessLookupError):  # ends the process and its children
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        lines = [line for line in errors.read_text(errors="replace").splitlines() if line.strip()]
        if status == "failed" and not note:  # it ended by itself
            note = lines[-1] if lines else f"exit status {process.returncode}"
            if (
                "out of memory" in note
                or "not enough memory" in note
                or note.startswith("MemoryError")
            ):
                status = "out of memory"
        facts: Facts = {}
        for line in reported.read_text().splitlines():
            facts.update(json.loads(line))
    return {**facts, "status": status, "note": note}


def _watch(process: subprocess.Popen, limits: Limits) -> tuple[str, str]:
    """Waits for the process, and ends it if it exceeds a limit. Returns its status, and a note if
    it was ended.
    """
    import psutil  # part of the extra "bench"; the caller reports its absence

    watched = psutil.Process(process.pid)
    start = time.monotonic()
    largest = 0
    while process.poll() is None:
        with suppress(psutil.NoSuchProcess):
            largest = max(largest, watched.memory_info().rss)
        gibibytes = f"{largest / 2**30:.1f} GiB"
        if largest > limits.memory * 2**30:
            return "out of memory", f"stopped at {gibibytes}"
        memory = psutil.virtual_memory()
        if memory.available < _RESERVE:
            others = memory.total - memory.available - largest
            note = (
                f"stopped at {gibibytes}, as nothing was left beside {others / 2**30:.1f} GiB of"
                " others"
            )
            return "out of memory" if others < _OTHERS else "failed", note
        if time.monotonic() - start > limits.seconds:
            return "too slow", f"stopped after {limits.seconds:,.0f} s"
        time.sleep(_POLL)
    if process.returncode == -signal.SIGKILL:
        return "out of memory", f"killed by the system at {largest / 2**30:.1f} GiB"
    return ("ok" if process.returncode == 0 else "failed"), ""


# -- the rows of a table ---------------------------------------------------------------------------


def unfinished(facts: Mapping[str, Any]) -> bool:
    """Whether a process failed for a reason that may not occur again."""
    return facts["status"] == "failed"


def read_rows(folder: Path, files: Sequence[str]) -> list[Facts]:
    """The rows of earlier runs in the first of `files`, which `complete` writes. Raises ValueError
    if no benchmark has written those that exist.
    """
    rows: Any = []
    with suppress(OSError, ValueError):
        rows = numbers_of(json.loads((folder / files[0]).read_text(encoding="utf-8")))
    ours = isinstance(rows, list) and all(
        isinstance(row, dict) and row.keys() >= {"status", "code"} for row in rows
    )
    check_files(folder, files, ours and bool(rows))
    return rows


def complete(
    path: Path,
    rows: Sequence[Facts],
    cells: Sequence[Facts],
    run: Callable[[Facts], Facts],
    settings: Facts,
    code: str,
) -> list[Facts]:
    """The rows with these settings, after `run(cell)` has measured the cells that have none. Each
    new row is saved at once.

    A cell is measured again if it failed, or if the code has changed since. Rows of cells that are
    not asked for stay, and so do rows with other settings in the file, which are not returned.

    Args:
        path: the JSON file of all rows.
        rows: those of earlier runs.
        settings: all that a row depends on beside its cell and the code.
        code: see `code_hash`.
    """

    def key(row: Facts) -> tuple[Any, ...]:
        return tuple(row[name] for name in cells[0])

    others = [row for row in rows if not settings.items() <= row.items()]
    known = {key(row): row for row in rows if row not in others}
    missing = [
        cell
        for cell in cells
        if known.get(key(cell), {}).get("code") != code or unfinished(known[key(cell)])
    ]
    for cell in (bar := tqdm(missing)):
        bar.set_description(", ".join(f"{name} {value}" for name, value in cell.items()))
        known[key(cell)] = {**cell, **run(cell), **settings, **environment(), "code": code}
        save_json([*known.values(), *others], path)
    return list(known.values())


def environment() -> dict[str, str]:
    """Facts about the software, for a table."""
    facts = {
        "malloc": "timed with freed memory kept" if platform.libc_ver()[0] == "glibc" else "default"
    }
    facts |= {"python": platform.python_version()}
    for package in ("transformers", "higher", "torchopt"):
        with suppress(PackageNotFoundError):
            facts[package] = version(package)
    return {**facts, "date": time.strftime("%Y-%m-%d"), **commit_of(Path(__file__).resolve())}


def processor() -> str:
    """The name of the processor."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def code_hash(*names: str) -> str:
    """A hash of the package and of the scripts `names`. In contrast to the commit, it sees
    uncommitted changes and ignores all other files.
    """
    package = REPOSITORY / "farzi_hf"
    files = {
        *package.rglob("*.py"),
        *(Path(__file__).with_name(f"{name}.py") for name in ("harness", *names)),
    }
    return hashlib.sha256(b"".join(path.read_bytes() for path in sorted(files))).hexdigest()[:12]


def _main(module: str, function: str, cell: str, threads: str, reported: str) -> None:
    """The process of a cell."""
    end_with_parent()
    torch.set_num_threads(int(threads))
    with Path(reported).open("a", encoding="utf-8") as file:
        measure = getattr(import_module(module), function)
        measure(lambda facts: print(json.dumps(facts), file=file, flush=True), **json.loads(cell))


if __name__ == "__main__":
    _main(*sys.argv[1:])
