"""What libraries say of a stranger's file reaches a terminal escaped, while it is read."""

from __future__ import annotations

import io
import logging
import sys
import threading
import warnings

import pytest
from tqdm.auto import tqdm

from farzi_hf.cli.program import run
from farzi_hf.common import messages
from farzi_hf.common.messages import escaped_messages

HOSTILE = "a\x1b[2J\x07\x9b31m\u202eb\r\ud800"
SHOWN = r"a\x1b[2J\x07\x9b31m\u202eb\r\ud800"


@pytest.fixture
def heard(monkeypatch):
    """What a handler of a logger of another library writes."""
    logger = logging.getLogger("heard")
    stream = io.StringIO()
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(stream)])
    return logger, stream


def test_a_log_record_is_escaped_and_keeps_its_lines(heard):
    logger, stream = heard
    with escaped_messages:
        logger.warning("%s is\n\todd", HOSTILE)
        logger.warning(HOSTILE)
    plain = HOSTILE[:-1]  # pytest-xdist cannot send half a surrogate pair, which pytest reports
    logger.warning("as %s", plain)
    assert stream.getvalue() == f"{SHOWN} is\n\todd\n{SHOWN}\nas {plain}\n"


def test_a_record_without_such_text_is_left_alone(caplog):
    with escaped_messages:
        logging.getLogger("other").warning("%s and %d", "é", 3)
    (record,) = caplog.records
    assert (record.msg, record.args) == ("%s and %d", ("é", 3))


def test_the_traceback_of_a_record_is_escaped(heard):
    logger, stream = heard
    with escaped_messages:
        try:
            raise ValueError(HOSTILE)
        except ValueError:
            logger.exception("it fails")
    *_, last = stream.getvalue().splitlines()
    assert last == f"ValueError: {SHOWN}"


def test_a_warning_is_escaped():
    """pytest keeps warnings for itself, so this asks for the text that would be printed."""
    with escaped_messages:
        text = warnings.formatwarning(UserWarning(HOSTILE), UserWarning, "file.py", 1)
    assert text.startswith(f"file.py:1: UserWarning: {SHOWN}\n")


def test_a_record_that_does_not_fit_its_arguments_is_reported_by_logging(capsys, monkeypatch):
    logger = logging.getLogger("apart")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [logging.StreamHandler(io.StringIO())])
    with escaped_messages:
        logger.warning("%d of %s", HOSTILE)
    assert "Logging error" in capsys.readouterr().err


def test_the_words_of_a_progress_bar_are_escaped():
    stream = io.StringIO()
    with escaped_messages, tqdm([1, 2], HOSTILE, file=stream, unit=HOSTILE) as bar:
        bar.set_postfix_str(HOSTILE)
        list(bar)
    assert SHOWN in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_what_was_there_is_back_after_the_last_one_leaves():
    before = (logging.getLogRecordFactory(), warnings.formatwarning, tqdm.format_meter)
    inside, leave = threading.Event(), threading.Event()

    def wait() -> None:
        with escaped_messages:
            inside.set()
            leave.wait()

    other = threading.Thread(target=wait)
    with escaped_messages:
        with escaped_messages:
            other.start()
            inside.wait()
        assert logging.getLogRecordFactory() is not before[0]
    assert logging.getLogRecordFactory() is not before[0]
    leave.set()
    other.join()
    assert before == (logging.getLogRecordFactory(), warnings.formatwarning, tqdm.format_meter)


def test_what_somebody_else_puts_there_meanwhile_stays(monkeypatch):
    monkeypatch.setattr(logging, "_logRecordFactory", logging.getLogRecordFactory())
    with escaped_messages:
        logging.setLogRecordFactory(logging.makeLogRecord)
    assert logging.getLogRecordFactory() is logging.makeLogRecord


def test_a_program_escapes_what_libraries_say_and_the_error_that_ends_it(
    heard, monkeypatch, capsys
):
    logger, stream = heard

    def main() -> None:
        logger.warning(HOSTILE)
        raise KeyError(HOSTILE) from RuntimeError(HOSTILE)

    monkeypatch.setattr(sys, "excepthook", sys.__excepthook__)
    with pytest.raises(KeyError) as error:
        run(main, "farzi show")
    sys.excepthook(error.type, error.value, error.tb)
    assert stream.getvalue() == f"{SHOWN}\n"
    lines = capsys.readouterr().err.split("\n")
    assert f"RuntimeError: {SHOWN}" in lines
    assert all(line.isprintable() for line in lines)


def test_the_excepthook_of_others_stays(monkeypatch):
    mine = lambda *_: None  # noqa: E731
    monkeypatch.setattr(sys, "excepthook", mine)
    messages.escape_tracebacks()
    assert sys.excepthook is mine
