"""What a summary that somebody else wrote may cost: each load in a process of its own, with its seconds and its memory."""

from __future__ import annotations

import json
import os
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_artefacts import METRICS, RECIPE, WORDS, tiny, word_tokenizer
from trainer_runs import forked

from farzi_hf.summary import FarziData

SECONDS, BYTES = 5, 500 * 10**6


def measured(folder: Path, answer: Path) -> None:
    """Loads the summary, and leaves its refusal, the seconds and the bytes in `answer`."""
    before, start, refusal = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), ""
    try:
        FarziData.from_pretrained(folder)
    except ValueError as error:
        refusal = str(error)
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    answer.write_text(json.dumps([refusal, time.process_time() - start, 1024 * memory]))


def header(folder: Path, entries: dict[str, object]) -> None:
    """Writes these entries into the header of the tensor file, beside those that it has."""
    content = (folder / "farzi.safetensors").read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    text = json.dumps({**json.loads(content[8 : 8 + size]), **entries}).encode()
    (folder / "farzi.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + content[8 + size :])


def many_tensors(folder: Path, count: int) -> None:
    content = (folder / "farzi.safetensors").read_bytes()
    end = len(content) - 8 - struct.unpack("<Q", content[:8])[0]
    header(folder, {f"x{i}": {"dtype": "U8", "shape": [0], "data_offsets": [end, end]} for i in range(count)})


def many_files(folder: Path, count: int) -> None:
    header(folder, {"__metadata__": {"farzi": json.dumps({"files": [f"plots/{i}.png" for i in range(count)]})}})


def many_plots(folder: Path) -> None:
    """100 plots of 32 MiB: holes, which take no room on the disk."""
    names = [f"plots/{i}.png" for i in range(100)]
    (folder / "plots").mkdir()
    for name in names:
        (folder / name).touch()
        os.truncate(folder / name, 2**25)
    header(folder, {"__metadata__": {"farzi": json.dumps({"files": names})}})


def items(folder: Path, content: bytes) -> None:
    tiny().save_pretrained(folder, WORDS)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "vocabulary_hash": None}))
    (folder / "vocabulary.json").write_bytes(content)


def nested(folder: Path, name: str, size: int) -> None:
    (folder / name).write_bytes(b'{"a": [' + b"[]," * (size // 3) + b"[]]}")


CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "names of tensors": (lambda folder: many_tensors(folder, 300_000), "farzi.safetensors has a header of"),
    "fewer names of tensors": (lambda folder: many_tensors(folder, 12_000), "farzi.safetensors"),
    "names of files": (lambda folder: many_files(folder, 40_000), "farzi.safetensors lists 40,000 files"),
    "plots": (many_plots, "plots has images of"),
    "60 million empty names": (lambda f: items(f, b"[" + b'"",' * 60_000_000 + b'""]'), "vocabulary.json is larger"),
    "20 million empty names": (lambda f: items(f, b"[" + b'"",' * 20_000_000 + b'""]'), "far more than the 7 entries"),
    "20 million lists": (lambda f: items(f, b"[" + b"[]," * 20_000_000 + b"[]]"), "far more than the 7 entries"),
    "metrics": (lambda folder: nested(folder, "metrics.json", 2**21 - 99), ""),
    "config": (lambda folder: nested(folder, "config.json", 2**20 - 99), "config.json"),
    "recipe": (lambda folder: nested(folder, "recipe.yaml", 2**17 - 99), ""),
}


@pytest.mark.parametrize("case", CASES)
def test_a_load_costs_little_or_is_refused(tmp_path, case):
    spoil, message = CASES[case]
    folder, answer = tmp_path / "summary", tmp_path / "answer.json"
    tiny().save_pretrained(folder, word_tokenizer(), METRICS, RECIPE)
    spoil(folder)
    process = forked().Process(target=measured, args=(folder, answer))
    process.start()
    process.join(60)
    process.kill()
    refusal, seconds, memory = json.loads(answer.read_text())
    assert message in refusal
    assert bool(message) == bool(refusal)
    assert seconds < SECONDS
    assert memory < BYTES


def test_what_would_be_refused_is_not_saved(tmp_path):
    plots = [tmp_path / f"{i}.png" for i in range(3)]
    for plot in plots:
        plot.touch()
        os.truncate(plot, 2**25)
    with pytest.raises(
        ValueError, match="plots has images of 100,663,296 bytes, more than the 67,108,864 that are read"
    ):
        tiny().save_pretrained(tmp_path / "new", plots=plots)
