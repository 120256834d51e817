"""What libraries say of a file that a stranger wrote, on its way to a terminal: log records,
warnings, the words of progress bars, and tracebacks.

transformers, for one, logs the values of a config that it finds odd. Here all of it goes through
`terminal_text`, with its line breaks. Nothing is hidden, and nothing is said later or twice.
"""

import logging
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import ContextDecorator, ExitStack
from threading import Lock
from types import TracebackType
from typing import Any

from farzi_hf.common.text import terminal_lines


class _Escaping(ContextDecorator):
    """A context, which may be entered again within itself and by several threads. Until the last
    one leaves it, messages of the whole process are escaped, which changes none that a terminal
    can show as it is.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._installed = ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._install()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._installed.close()

    def _install(self) -> None:
        from tqdm.std import tqdm  # takes long, and not all who import this room have bars

        make_record = logging.getLogRecordFactory()
        format_warning = warnings.formatwarning
        format_bar = tqdm.format_meter

        def record(*args: Any, **kwargs: Any) -> logging.LogRecord:
            return _escaped_record(make_record(*args, **kwargs))

        def formatted_warning(*args: Any, **kwargs: Any) -> str:
            return terminal_lines(format_warning(*args, **kwargs))

        def bar(*args: Any, **kwargs: Any) -> str:
            words = ("prefix", "postfix", "unit")
            shown = {name: terminal_lines(kwargs[name]) for name in words if kwargs.get(name)}
            return format_bar(*args, **{**kwargs, **shown})

        self._replace(logging.getLogRecordFactory, logging.setLogRecordFactory, record)
        self._replace(
            lambda: warnings.formatwarning,
            lambda function: setattr(warnings, "formatwarning", function),
            formatted_warning,
        )
        self._replace(
            lambda: tqdm.format_meter,
            lambda function: setattr(tqdm, "format_meter", staticmethod(function)),
            bar,
        )

    def _replace(
        self, get: Callable[[], Callable], put: Callable[[Callable], None], function: Callable
    ) -> None:
        """Puts `function` in the place of another one, until the end; but a third one, which
        somebody has put there meanwhile, stays.
        """
        before = get()

        def restore() -> None:
            if get() is function:
                put(before)

        put(function)
        self._installed.callback(restore)


escaped_messages = _Escaping()
"""The context, and the decorator of functions that run within it."""


def _escaped_record(record: logging.LogRecord) -> logging.LogRecord:
    try:
        message = record.getMessage()
    except Exception:  # it does not fit its arguments, which logging reports, with their repr
        return record
    if terminal_lines(message) != message:
        record.msg = terminal_lines(message)
        record.args = ()
    if record.exc_info:
        lines = traceback.format_exception(*record.exc_info)
        record.exc_text = terminal_lines("".join(lines).rstrip("\n"))
    return record


def escape_tracebacks() -> None:
    """From now on, an error that ends the program is printed escaped."""

    def show(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
        lines = traceback.format_exception(kind, error, where)
        print(terminal_lines("".join(lines)), end="", file=sys.stderr)

    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = show
