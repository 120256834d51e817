"""Help for all programs of this package: malloc settings, and errors that end a program with one
line instead of a traceback.
"""

import ctypes
import errno
import os
import platform
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from farzi_hf.common.messages import escape_tracebacks, escaped_messages
from farzi_hf.common.text import terminal_text
from farzi_hf.data import DataUnavailableError


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
    try:
        yield
    except (ValueError, DataUnavailableError, *more) as error:
        line = terminal_text(
            " ".join(str(error).split("\n")), most=2000
        )  # the Hub's errors have several lines
        sys.exit(f"{script}: {line}" if os.environ.get("RANK", "0") == "0" else 1)


def summary_at(name: str) -> str:
    """The summary in the folder of a run, `summary/` or `split-0/summary/`; any other folder or
    repository as it is.
    """
    if Path(name, "config.json").exists():
        return name
    places = (Path(name, "summary"), Path(name, "split-0", "summary"))
    return next((str(place) for place in places if (place / "config.json").is_file()), name)


def run(main: Callable[[], None], name: str | None = None) -> None:
    """Runs `main()` as a program. A full disk, or Ctrl-C outside of a training, ends it with one
    line; a closed pipe (`| head`) with none. What libraries say is escaped for the terminal.
    """
    script = name or Path(sys.argv[0]).name
    escape_tracebacks()
    try:
        with escaped_messages:
            main()
        sys.stdout.flush()
    except BrokenPipeError:  # of our own output: libraries for networks raise errors of their own
        os.dup2(
            os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno()
        )  # for what Python writes at its end
        sys.exit(1)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        sys.exit(f"{script}: {error}; make room and start it again")
    except KeyboardInterrupt:
        print(
            f"{script}: interrupted; start it again to go on from the last saved state",
            file=sys.stderr,
        )
        sys.exit(128 + signal.SIGINT)
