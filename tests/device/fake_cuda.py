"""A CUDA device without hardware, as a plugin of pytest (see `make test-device`) or for a script:

    PYTHONPATH=tests/device python -m pytest -p fake_cuda …
    PYTHONPATH=.:tests python tests/device/fake_cuda.py SCRIPT

It has to be there before torch is imported, and it changes torch for the whole process. Where
PyTorch is built for GPUs, it changes nothing: the same tests then run on a real one.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.util
import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

# As in tests/conftest.py, which comes after torch where this is a plugin: with other threads than
# the processes that it starts, a test would compare with other sums.
os.environ["OMP_NUM_THREADS"] = "1"

SOURCE = Path(__file__).with_suffix(".cpp")
TORCH = Path(importlib.util.find_spec("torch").origin).parent
VERSION = runpy.run_path(str(TORCH / "version.py"))
NAME = (
    "fake_cuda_"
    + hashlib.sha256(VERSION["__version__"].encode() + SOURCE.read_bytes()).hexdigest()[:12]
)
# Not the folder of temporary files: tests have another one than the program that builds this.
FOLDER = Path(os.environ.get("FAKE_CUDA_BUILD") or Path("/tmp") / f"fake_cuda-{os.getuid()}")
LIBRARY = FOLDER / f"{NAME}.so"
MAKE = """if True:
    import sys
    from torch.utils.cpp_extension import load
    name, source, folder = sys.argv[1:]
    load(name, [source], extra_cflags=["-O1", "-g0", "-w"], build_directory=folder, is_python_module=False)
"""


def is_needed() -> bool:
    """Whether this build of torch has no GPUs."""
    return not (VERSION["cuda"] or VERSION.get("hip"))


def is_built() -> bool:
    """Whether `build` has nothing to do."""
    return LIBRARY.exists()


def build() -> None:
    """Compiles the device, for half a minute. Ends the process with the compiler's message where
    that fails.
    """
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    made = subprocess.run(
        [sys.executable, "-c", MAKE, NAME, str(SOURCE), str(FOLDER)], capture_output=True, text=True
    )
    if made.returncode:
        sys.exit(
            "fake_cuda.cpp was not compiled (it needs a C++ compiler and"
            f" ninja):\n{made.stderr[-2000:]}"
        )


def install() -> None:
    """Loads the device, and tells torch's Python about it. It is compiled first, and left away
    where torch has GPUs.
    """
    if not is_needed():
        return
    if not is_built():
        build()
    for library in (TORCH / "lib/libtorch_global_deps.so", TORCH / "lib/libtorch_cpu.so", LIBRARY):
        ctypes.CDLL(
            str(library), ctypes.RTLD_GLOBAL
        )  # torch asks for its CUDA hooks once, when it is imported

    import torch

    def answer(
        value,
    ):  # each is a function of its own: torch.compile tells functions apart by identity
        return lambda *args, **kwargs: value

    device = torch.ops.fake_cuda
    properties = SimpleNamespace(
        total_memory=80 << 30,
        name="fake",
        major=9,
        minor=0,
        multi_processor_count=132,
        warp_size=32,
    )
    for name, value in {
        "_lazy_init": None,
        "_is_in_bad_fork": False,
        "is_available": True,
        "is_initialized": True,
        "is_bf16_supported": True,
        "device_count": 1,
        "current_device": 0,
        "set_device": None,
        "synchronize": None,
        "empty_cache": None,
        "ipc_collect": None,
        "get_device_properties": properties,
        "get_device_name": "fake",
        "get_device_capability": (9, 0),
        "mem_get_info": (80 << 30, 80 << 30),
    }.items():
        for module in (
            torch.cuda,
            torch.cuda.random,
            torch.cuda.memory,
        ):  # they import names from each other
            if hasattr(module, name):
                setattr(module, name, answer(value))
    torch.cuda.default_generators = (torch.Generator("cuda"),)
    torch.cuda.memory_allocated = lambda *args: device.memory(False)
    torch.cuda.max_memory_allocated = lambda *args: device.memory(True)
    torch.cuda.reset_peak_memory_stats = lambda *args: device.reset_peak()
    torch.backends.cudnn.is_acceptable = answer(False)
    torch._C._cuda_getDevice, torch._C._cuda_setDevice = answer(0), answer(None)


def pytest_load_initial_conftests() -> None:
    install()


if __name__ == "__main__":
    install()
    runpy.run_path(sys.argv[1], run_name="__main__")
