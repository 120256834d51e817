"""Chats as the template of a tokenizer writes them out.

A template is a program of whoever made the tokenizer, in Jinja. transformers runs it in a sandbox,
in which it can still loop without end or fill the memory. So it runs in a process of its own, with
limits of time and memory.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Timer
from types import TracebackType
from typing import IO, Any

import transformers

_SECONDS = 5  # on the processor, of one chat: a template takes a thousandth
_TIMEOUT = 60.0  # seconds on the clock, of one chat: other programs may keep the processor busy
_MEMORY = 2**30  # of the process; with transformers and NumPy alone it takes a fifth


class ChatTemplate:
    """The chat template of a tokenizer. The process starts with the first chat, in a second, and
    ends with the context.

    Args:
        tokenizer: None, or one without a template, writes no chats.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._process: subprocess.Popen | None = None
        self._errors: IO[bytes] | None = None

    def __enter__(self) -> ChatTemplate:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._end()

    @property
    def is_there(self) -> bool:
        """Whether it can write chats."""
        return bool(getattr(self.tokenizer, "chat_template", None))

    def text(self, chat: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> str:
        """The chat, messages with `role` and `content`, as one text.

        Args:
            tools: definitions of tools that the template should write, if there are any.

        Raises:
            ValueError: the template refuses it, takes more than 5 s or 1 GiB, or is none.
        """
        if self._process is None:
            self._start()
        answer = self._answer([_without_none(chat), _without_none(tools) or None])
        if "error" in answer:
            raise ValueError(answer["error"])
        return answer["text"]

    def _start(self) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 closed with the process
        packages = str(Path(transformers.__file__).parents[1])
        limits = [packages, str(_MEMORY), str(_SECONDS)]
        quiet = {"TRANSFORMERS_VERBOSITY": "error", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-B", "-c", f"{_SOURCE}_serve()", *limits],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **quiet},
        )
        self._send([self.tokenizer.get_chat_template(), self.tokenizer.special_tokens_map])

    def _answer(self, chat_and_tools: list[Any]) -> dict[str, str]:
        clock = Timer(_TIMEOUT, self._process.kill)
        clock.start()
        try:
            self._send(chat_and_tools)
            line = self._process.stdout.readline()
        finally:
            clock.cancel()
        if line.endswith(b"\n"):
            return json.loads(line)
        self._process.wait()
        self._errors.seek(0)
        last = self._errors.read().decode("utf-8", "replace").strip().splitlines()[-1:]
        if self._process.returncode < 0 or not last:
            last = [f"it takes more than {_SECONDS} s, or more than {_MEMORY >> 20:,} MiB"]
        self._end()
        return {"error": last[0]}

    def _send(self, value: Any) -> None:
        # Data sets hold dates and other values in their messages, beside those that are written.
        line = json.dumps(value, default=str) + "\n"
        with suppress(BrokenPipeError):  # it has ended, and its answer will say why
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def _end(self) -> None:
        if self._process is None:
            return
        with suppress(BrokenPipeError):  # it has ended before
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()
        self._errors.close()
        self._process = None


def _without_none(value: Any) -> Any:
    """The value without what Arrow fills in: a key that only other rows have is None there."""
    if isinstance(value, Mapping):
        return {key: _without_none(x) for key, x in value.items() if x is not None}
    if isinstance(value, (list, tuple)):
        return [_without_none(x) for x in value]
    return value


def _serve() -> None:
    """What the other process runs, without an import of ours: it reads the template and the special
    tokens, and then a chat a line, and answers each with a line.
    """
    import json
    import signal
    import sys
    from contextlib import suppress

    packages, memory, seconds = sys.argv[1:]
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (int(memory), int(memory)))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.path.append(packages)  # where the caller has found the library: -I leaves out PYTHONPATH
    from transformers.utils.chat_template_utils import render_jinja_template

    template, tokens = json.loads(sys.stdin.buffer.readline())
    for line in sys.stdin.buffer:
        if hasattr(signal, "setitimer"):  # its signal ends the process, also within a C function
            signal.setitimer(signal.ITIMER_PROF, float(seconds))
        try:
            chat, tools = json.loads(line)
            how = {"tools": tools, "chat_template": template, **tokens}
            texts, _ = render_jinja_template([chat], **how)
            answer = {"text": texts[0]}
        except MemoryError:
            answer = {"error": f"it takes more than {int(memory) >> 20:,} MiB"}
        except Exception as error:  # a template raises what it likes
            answer = {"error": str(error) or type(error).__name__}
        if hasattr(signal, "setitimer"):
            signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n")
        sys.stdout.buffer.flush()


_SOURCE = inspect.getsource(_serve)
