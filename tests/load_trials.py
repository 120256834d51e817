"""Loads of summaries that somebody else has made, each in a process of its own, with limits of its
memory and its time. One process that has imported everything forks them.
"""

from __future__ import annotations

import json
import math
import os
import re
import resource
import select
import shutil
import signal
import struct
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout, suppress
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import torch
from tiny_artefacts import tiny
from tiny_models import tiny_model
from trainer_runs import forked
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
)

from farzi_hf.cli import main
from farzi_hf.summary import FarziData
from farzi_hf.summary.store.tensor_file import SHARES, STORAGES, TEACHER

SECONDS, BYTES = 5, 500 * 10**6
OF_A_NUMBER = (1e-7, 12)
"""What docs/trust.md promises for a load, and for each number of its tensors."""
_PATIENCE = 90
"""Seconds on the clock after which a process is ended, on a machine with other work."""
_NUMBERS = 2**26
"""The most numbers of tensors that are written: beyond, a file lists no teacher."""
_SMALL = {
    "labels": None,
    "vocab_size": 2,
    "num_sequences": 1,
    "sequence_length": 2,
    "latent_dim": 1,
}
_NO_MEMORY = re.compile(r"allocate|MemoryError|out of memory|bad_alloc", re.IGNORECASE)

Config = Mapping[str, Any]
"""Of a summary, as config.json holds it."""


class Outcome(NamedTuple):
    """What became of a load, or of `farzi show`.

    Attributes:
        error: what it was refused with; "" if it was not.
        seconds: on the processor.
        fault: what no summary may do; "" otherwise.
    """

    error: str
    seconds: float
    fault: str


def trial(folder: Path, config: Config, fill: int = 0, show: bool = False) -> Outcome:
    """Writes a summary with that config, whose numbers are all `fill`, and loads it; or prints it
    with `farzi show`.
    """
    made = _in_a_process(lambda: write_summary(folder, config, fill))
    if made != "":  # a model that nobody can make; its config can be loaded all the same
        write_summary(folder, {**config, **_SMALL}, fill)
        (folder / "config.json").write_text(json.dumps(dict(config)))
    numbers = int((folder / "numbers").read_text())
    seconds = SECONDS + OF_A_NUMBER[0] * numbers
    nbytes = BYTES + OF_A_NUMBER[1] * numbers
    answer = _in_a_process(lambda: _loaded(folder, show, seconds), nbytes, seconds)
    shutil.rmtree(folder)
    if answer.startswith("{"):
        return Outcome(**json.loads(answer))
    return Outcome("", 0.0, answer)


def _loaded(folder: Path, show: bool, most: float) -> str:
    """Loads the summary, in at most so many seconds; the `Outcome` in JSON."""
    error = fault = ""
    start = time.process_time()
    try:
        if show:
            with redirect_stdout(StringIO()):
                main(["show", str(folder)])
        else:
            FarziData.from_pretrained(folder)
    except (ValueError, SystemExit) as refusal:
        error = str(refusal)
    except BaseException as other:
        fault = f"{type(other).__name__}: {other}"
    seconds = time.process_time() - start
    if _NO_MEMORY.search(error):
        fault = f"too many bytes: {error}"
    elif seconds > most:
        fault = f"{seconds:.1f} seconds: {error}"
    return json.dumps(Outcome(error, seconds, fault)._asdict())


def _in_a_process(
    work: Callable[[], str | None], nbytes: int = 4 * 10**9, seconds: float = SECONDS
) -> str:
    """What `work` returns, in a process that may take so many bytes more than this one, and three
    times so many seconds; or what ended it.
    """
    source, sink = os.pipe()
    process = os.fork()
    if process == 0:
        os.close(source)
        try:
            _limit(nbytes, 3 * seconds)
            answer = work() or ""
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        with os.fdopen(sink, "wb") as file:
            file.write(answer.encode("utf-8", "replace"))
        os._exit(0)
    os.close(sink)
    content = b""
    end = time.monotonic() + _PATIENCE
    with os.fdopen(source, "rb") as file:
        while time.monotonic() < end:
            if select.select([file], [], [], 1)[0]:
                content = file.read()
                break
        else:
            os.kill(process, signal.SIGKILL)
    status = os.waitpid(process, 0)[1]
    if status:
        return f"ended by signal {status & 127}"
    return content.decode()


def _limit(nbytes: int, seconds: float) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + nbytes, used + nbytes))
    end = math.ceil(time.process_time() + seconds)
    resource.setrlimit(resource.RLIMIT_CPU, (end, end))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)


# -- writing them ----------------------------------------------------------------------------------


def write_summary(folder: Path, config: Config, fill: int) -> None:
    """Writes a summary whose coded numbers are all `fill`: a few kilobytes, however large the
    tensors are.
    """
    shapes = shapes_of(config)
    numbers = sum(map(math.prod, shapes.values()))
    if numbers > _NUMBERS:
        raise ValueError("it has too many numbers to be written")
    learnt = [name for name in shapes if name not in (SHARES, "input_ids")]
    layout = STORAGES[config["storage"]].layout(shapes, learnt)
    header: dict[str, Any] = {"__metadata__": {"farzi": json.dumps({"files": []})}}
    content = b""
    for name, stored in layout.items():
        kind = "F16" if "F16" in stored.dtypes else min(stored.dtypes)
        if stored.shape is None:
            part = _deflated(fill, math.prod(shapes[name]))
        else:
            part = struct.pack("<e", fill) if kind == "F16" else bytes(2)
            part *= math.prod(stored.shape)
        shape = [len(part)] if stored.shape is None else list(stored.shape)
        places = [len(content), len(content) + len(part)]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": places}
        content += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "farzi.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    (folder / "numbers").write_text(str(numbers))


def shapes_of(config: Config) -> dict[str, tuple[int, ...]]:
    """The shapes of a summary's tensors, without any limit."""
    count, length, entries = (
        config[name] for name in ("num_sequences", "sequence_length", "vocab_size")
    )
    shapes: dict[str, tuple[int, ...]] = {}
    if config["inputs"] == "soft":
        width = config["latent_dim"]
        shapes |= {"latents": (count, length, width), "decoder": (width, entries)}
    elif config["inputs"] == "tokens":
        shapes["input_ids"] = (count, length)
    else:
        shapes[SHARES] = (entries,)
    if config["labels"] == "own":
        width = config["label_dim"]
        shapes |= {"label_latents": (count, length, width), "label_decoder": (width, entries)}
    if config["labels"] == "teacher":
        teacher = {"num_items": entries - 1, "vocab_size": entries, **config["teacher"]}
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**teacher))
        shapes |= {TEACHER + name: tuple(x.shape) for name, x in model.named_parameters()}
    return shapes


def _deflated(fill: int, count: int) -> bytes:
    coder = zlib.compressobj(9, zlib.DEFLATED, -15)
    return coder.compress(bytes([fill]) * count) + coder.flush()


# -- the process that forks them -------------------------------------------------------------------


def serve(connection: Any, folder: Path) -> None:
    """Answers trials until there is a None."""
    warm = FarziData.from_teacher(tiny_model("gpt2"), sequence_length=4, storage="coded2")
    for name, farzi in (("carried", warm), ("soft", tiny())):
        farzi.save_pretrained(folder / name)
        FarziData.from_pretrained(folder / name)
        with redirect_stdout(StringIO()):
            main(["show", str(folder / name)])
    while (arguments := connection.recv()) is not None:
        kind = (arguments["config"].get("teacher") or {}).get("model_type")
        if kind is not None:
            _ = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[kind]]  # imports it
        connection.send(trial(folder / "summary", **arguments))


@contextmanager
def trials(folder: Path) -> Iterator[Callable[..., Outcome]]:
    """`trial` without its folder, in processes that begin with all imports done."""
    ours, theirs = forked().Pipe()
    process = forked().Process(target=serve, args=(theirs, folder))
    process.start()
    theirs.close()  # so that a process that has ended is an end of the file, and no wait for ever

    def ask(**arguments: Any) -> Outcome:
        try:
            ours.send(arguments)
            return ours.recv()
        except (EOFError, OSError) as error:
            process.join(10)
            raise RuntimeError(
                f"the process of the trials ended with {process.exitcode}, asked for {arguments}"
            ) from error

    try:
        yield ask
    finally:
        with suppress(OSError):  # it may have ended
            ours.send(None)
        process.join(10)
        process.kill()
