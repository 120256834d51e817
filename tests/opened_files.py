"""What the process of test_opened_files.py does: it handles hostile summaries, and notes each file,
process, socket and import.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml
from pictures import png
from tiny_artefacts import METRICS, RECIPE, WORDS, tiny, word_tokenizer
from tiny_models import tiny_model

from farzi_hf.cli import main
from farzi_hf.data.tokenizer_file import load_tokenizer
from farzi_hf.summary import FarziData

EVENTS = {
    "open",
    "subprocess.Popen",
    "os.posix_spawn",
    "os.exec",
    "os.system",
    "os.fork",
    "socket.connect",
    "os.rename",
    "os.remove",
}
SETTINGS = (
    "vocab",
    "merges",
    "vocab_file",
    "merges_file",
    "tokenizer_file",
    "name_or_path",
    "spm_file",
    "sentencepiece_model_ckpt",
)
LEARNER = {
    "model_type": "gpt2",
    "n_embd": 8,
    "n_layer": 1,
    "n_head": 2,
    "n_positions": 8,
    "activation_function": "gelu_new",
}
NAMES = (
    "auto_map",
    "_name_or_path",
    "name_or_path",
    "code_revision",
    "attn_implementation",
    "_attn_implementation",
)
"""Keys that transformers has taken for names of files or repositories, beside those that a summary
has.
"""


def harmless(folder: Path) -> None:
    """A summary with files of all kinds. It can be trained on in two steps."""
    inner = {
        "optimizer": "adam",
        "lr": 0.01,
        "eps": 1e-4,
        "betas": [0.9, 0.999],
        "steps": 2,
        "synthetic_batch_size": 2,
    }
    plot = folder.parent / "curve.png"
    plot.write_bytes(png())
    tokenizer = word_tokenizer()
    tokenizer.chat_template = "{{ messages }}"
    tiny(inner=inner).save_pretrained(
        folder, tokenizer, METRICS, {**RECIPE, "learner": LEARNER}, [plot]
    )
    (folder / "special_tokens_map.json").write_text(json.dumps(tokenizer.special_tokens_map))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocabulary_hash": None}))
    (folder / "evil.py").write_text("print('the code of the summary runs')\nclass Evil: pass\n")


def harmless_teacher(folder: Path) -> None:
    """The same with a summary that carries a teacher, whose config may name all that a learner's
    may.
    """
    harmless(folder)
    plain = {"sequence_length": 4, "num_sequences": 4, "inputs": "written", "storage": "coded5"}
    farzi = FarziData.from_teacher(
        tiny_model("gpt2", len(WORDS)), tokenizer=word_tokenizer(), **plain
    )
    farzi.config.inner = {**farzi.config.inner, "steps": 2, "synthetic_batch_size": 2}
    farzi.config.teacher |= dict.fromkeys(NAMES, "plain")
    farzi.save_pretrained(folder, None, METRICS, {**RECIPE, "learner": LEARNER})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocabulary_hash": None}))


def files_of(folder: Path) -> dict[str, Any]:
    """The contents of the summary's files of text."""
    names = (
        "config.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "tokenizer.json",
        "metrics.json",
        "recipe.yaml",
    )
    return {name: yaml.safe_load((folder / name).read_text()) for name in names}


def places_of(content: Any, path: tuple = ()):
    """The paths to all texts in `content`."""
    if isinstance(content, str):
        yield path
    for key, part in (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    ):
        yield from places_of(part, (*path, key))


def with_text(content: Any, path: tuple, text: str) -> Any:
    """A copy of `content` with `text` at `path`."""
    if not path:
        return text
    copied = dict(content) if isinstance(content, dict) else list(content)
    copied[path[0]] = with_text(copied[path[0]], path[1:], text)
    return copied


def handle(
    world: Path, jobs: list[tuple[str, dict[str, Any], tuple[str, ...]]], answer: str
) -> None:
    """Does each job: writes a summary with its files, None: without, and performs its operations.
    Each one's log and events go to `world`.log.
    """
    read, write = os.pipe()
    os.write(write, answer.encode())
    os.close(write)
    os.dup2(read, 0)
    sys.stdin = open(0)  # noqa: SIM115
    log = os.open(world / "log", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1), os.dup2(log, 2)
    sys.stdout, sys.stderr = open(1, "w", buffering=1), open(2, "w", buffering=1)  # noqa: SIM115
    os.chdir(world / "cwd")
    found: list = []
    sys.addaudithook(
        lambda event, args: (
            found.append((event, [repr(a) if not isinstance(a, str) else a for a in args]))
            if event in EVENTS
            else None
        )
    )
    for number, (name, files, operations) in enumerate(jobs):
        folder = world / f"s{number}"
        shutil.copytree(world / ("teacher" if name.startswith("teacher") else "harmless"), folder)
        for file, content in files.items():
            (folder / file).unlink(missing_ok=True)
            if content is not None:
                (folder / file).write_text(json.dumps(content))
        for operation in operations:
            found.clear()
            with (world / "events").open("a") as events:
                print(
                    json.dumps([name, operation, None]), file=events
                )  # the last one, where the process hangs
                events.flush()
                perform(OPERATIONS[operation], folder, world / "out")
                print(json.dumps([name, operation, found]), file=events)


def perform(operation: Callable, folder: Path, out: Path) -> None:
    with suppress(ValueError, FileNotFoundError, SystemExit):
        try:
            operation(folder, out / folder.name)
        except SystemExit as end:
            print(end, file=sys.stderr)
            raise


OPERATIONS = {
    "tokenizer": lambda folder, out: load_tokenizer(folder),
    "load": lambda folder, out: FarziData.from_pretrained(folder),
    "save": lambda folder, out: FarziData.from_pretrained(folder).save_pretrained(out),
    "push": lambda folder, out: FarziData.from_pretrained(folder).push_to_hub(f"farzi-{out.name}"),
    "show": lambda folder, out: main(["show", str(folder)]),
    "train": lambda folder, out: main(["train", str(folder), "--output_dir", f"{out}-student"]),
    "export": lambda folder, out: main(["export", str(folder), f"{out}-teacher", "--teacher"]),
    "rows": lambda folder, out: main(["export", str(folder), f"{out}-rows", "--rows", "3"]),
}
