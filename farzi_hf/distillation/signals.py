"""Ctrl-C, SIGTERM and SIGHUP: the work first reaches a point from which it can go on, and then the program ends.

Inside `noted_signals` the first signal is only noted, and a second one ends the program at once.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

logger = logging.getLogger(__name__)

# Windows has no SIGHUP.
_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class Interrupted(SystemExit):
    """A signal ended the work at a point from which it can go on. Its `code` is the usual one: 130, 143 or 129."""

    def __init__(self, number: int):
        super().__init__(128 + number)


class NotedSignal:
    """Remembers the first signal in `number`, which is 0 until then."""

    def __init__(self) -> None:
        self.number, self._process = 0, os.getpid()

    def __call__(self, number: int, frame: Any) -> None:
        """The handler."""
        if os.getpid() != self._process:  # a worker of a data loader: its parent ends it
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        if self.number:
            raise Interrupted(number)
        self.number = number
        if sys.stderr is not None and sys.stderr.isatty():  # for a person who can press the keys again
            logger.warning("%s: this step is finished and saved first; once more ends at once.", _name(number))


@contextmanager
def noted_signals() -> Iterator[NotedSignal]:
    """Inside this block, a signal is noted and does not end the program.

    A handler that the user has set stays, and an ignored signal stays ignored (SIGHUP under nohup). Python allows handlers only in the
    main thread, so nothing is noted in others.

    Raises:
        Interrupted: at the end of the block, if a signal was noted and nobody has acted on it.
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
        end(noted.number, "the work under way is finished")


def end(number: int, message: str) -> NoReturn:
    """Ends the program with one line, unless someone catches `Interrupted`."""
    logger.warning("%s: %s.", _name(number), message)
    raise Interrupted(number)


def _name(number: int) -> str:
    """For instance SIGINT."""
    return signal.Signals(number).name
