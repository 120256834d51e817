"""Help for all programs of this package: malloc settings, and errors that end a program with one
line instead of a traceback.
"""

import ctypes
import errno
import gc
import os
import platform
import re
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from farzi_hf.common.messages import escape_tracebacks, escaped_messages
from farzi_hf.common.text import terminal_text


def keep_freed_memory(mmap_threshold: int = 1 << 30, trim_threshold: int = -1) -> None:
    """Tells glibc's malloc to keep freed memory. Other C libraries are not changed.

    An inner loop allocates and frees the same large tensors at every step. If each gets a new
    mapping, whose pages the system must clear, this costs a tenth of the time of a PTB run on one
    core.

    The arguments are M_…_THRESHOLD of mallopt(3): how many bytes get a mapping of their own, and
    how many that are free at its end shrink the heap. By default it never shrinks.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(-3, mmap_threshold)
        libc.mallopt(-1, trim_threshold)


@contextmanager
def ends_in_one_line(script: str, *more: type[Exception]) -> Iterator[None]:
    """A context in which ValueError, missing data and the types in `more` end the program with one
    line, which the first process alone prints.
    """
    from farzi_hf.data import DataUnavailableError  # a help screen needs no data

    try:
        yield
    except (ValueError, DataUnavailableError, *more) as error:
        end(script, error, remedy_of(error) or "")


def end(script: str, error: BaseException, remedy: str) -> NoReturn:
    """Ends the program with a line, which the first process alone prints."""
    # The Hub's errors have several lines.
    said = terminal_text(" ".join(str(error).split("\n")), most=2000) or type(error).__name__
    line = f"{script}: {said}; {remedy}" if remedy else f"{script}: {said}"
    sys.exit(line if os.environ.get("RANK", "0") == "0" else 1)


_NO_ROOM = {getattr(errno, name) for name in ("ENOSPC", "EDQUOT", "EFBIG") if hasattr(errno, name)}
_REFUSED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR}
_NO_MEMORY = re.compile(
    r"allocate memory|out of memory|bad_alloc|failed to map segment|start new thread", re.IGNORECASE
)
_OF_RUST = re.compile(r"\(os error (\d+)\)")


def remedy_of(error: BaseException | None) -> str | None:
    """What to do about an error that comes from the machine: its disk, its memory, its files. None
    for an error of another kind.
    """
    is_of_files = isinstance(error, OSError)
    while error is not None:
        of_rust = _OF_RUST.search(str(error))
        number = int(of_rust[1]) if of_rust else getattr(error, "errno", None)
        if number in _REFUSED and (variable := _cache_of(getattr(error, "filename", None))):
            return f"set {variable} to a folder in which you may write"
        if number == errno.EROFS:
            return "name a folder in which you may write"
        if number in _NO_ROOM:
            return "make room and start it again"
        is_of_memory = isinstance(error, MemoryError) or number == errno.ENOMEM
        if is_of_memory or _NO_MEMORY.search(str(error)):
            return "there is too little memory: free some, or raise the limit (ulimit -v)"
        error = error.__cause__ or error.__context__
    return "" if is_of_files else None


def _cache_of(path: Any) -> str | None:
    """The variable that says where a cache of Hugging Face is, if the path is in one."""
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    caches = {name: os.environ.get(name) for name in ("HF_DATASETS_CACHE", "HF_HUB_CACHE")}
    for name, cache in {**caches, "HF_HOME": home}.items():
        if cache and isinstance(path, str) and Path(path).is_relative_to(Path(cache).expanduser()):
            return name
    return None


def summary_at(name: str) -> str:
    """The summary in the folder of a run, `summary/` or `split-0/summary/`; any other folder or
    repository as it is.

    Raises:
        ValueError: it is a file.
    """
    if Path(name).is_file():
        raise ValueError(f"{name!r} is a file, not a summary; farzi distil DATA makes one of data")
    if Path(name, "config.json").exists():
        return name
    places = (Path(name, "summary"), Path(name, "split-0", "summary"))
    return next((str(place) for place in places if (place / "config.json").is_file()), name)


def leave_process_group() -> None:
    """Ends the process group that a launcher of several processes asked for, if there is one.

    Threads of gloo may still hold tensors when Python ends. A thread that frees one then is stopped
    in a destructor, and the process aborts ("terminate called without an active exception"), though
    all of its work is done: https://github.com/pytorch/pytorch/pull/179291.
    """
    # A program that has not imported torch, which takes seconds, has no group.
    distributed = sys.modules.get("torch.distributed")
    if distributed and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        # Models that were wrapped for several processes refer to the group, and to themselves.
        gc.collect()


def run(main: Callable[[], None], name: str | None = None) -> None:
    """Runs `main()` as a program. A file that cannot be read or written, too little memory, or
    Ctrl-C outside of a training ends it with one line; a closed pipe (`| head`) with none. What
    libraries say is escaped for the terminal.
    """
    script = name or Path(sys.argv[0]).name
    escape_tracebacks()
    try:
        with escaped_messages:
            main()
        leave_process_group()
        sys.stdout.flush()
    except BrokenPipeError:  # of our own output: libraries for networks raise errors of their own
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python writes at its end
        sys.exit(1)
    except Exception as error:
        if (remedy := remedy_of(error)) is None:
            raise
        end(script, error, remedy)
    except KeyboardInterrupt:
        print(
            f"{script}: interrupted; started again, it goes on from what it has saved, if anything",
            file=sys.stderr,
        )
        sys.exit(128 + signal.SIGINT)
