"""Hostile summaries open nothing outside their folder, start nothing, connect to nobody, ask
nothing, and carry no file away.

Paths to canaries stand in every text of a summary, under every tokenizer class of transformers. An
audit hook notes what Python opens. Rust and C++ raise no event: one canary is a pipe, and whoever
opens it waits for ever.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from itertools import cycle
from pathlib import Path

import huggingface_hub
import opened_files
import pytest
from opened_files import (
    LEARNER,
    NAMES,
    SETTINGS,
    files_of,
    harmless,
    harmless_teacher,
    places_of,
    with_text,
)
from trainer_runs import forked
from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

import farzi_hf

SECRET = "hunter2swordfish"
ROOT = Path(__file__).parents[3]
KINDS = sorted({name for name in TOKENIZER_MAPPING_NAMES.values() if name})
CANARIES = {
    "words": "\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", SECRET]),
    "vocab.json": json.dumps(
        {"<unk>": 0, "[UNK]": 1, "a": 2, "b": 3, "ab": 4, "<s>": 5, SECRET: 6}
    ),
    "merges.txt": f"#version: 0.2\na b\n{SECRET} {SECRET}",
    "code.py": f"print({SECRET!r})\nclass Evil: pass",
}


@pytest.fixture
def world(tmp_path) -> Path:
    for name in ("cwd", "out", "outside"):
        (tmp_path / name).mkdir()
    for name, text in CANARIES.items():
        (tmp_path / "outside" / name).write_text(text)
    os.mkfifo(tmp_path / "outside" / "pipe")
    harmless(tmp_path / "harmless")
    harmless_teacher(tmp_path / "teacher")
    return tmp_path


def canaries(world: Path) -> list[str]:
    """Paths of all canaries, absolute, and relative both to the summary and to the
    working folder.
    """
    names = ("pipe", *CANARIES)
    return [str(world / "outside" / name) for name in names] + [
        f"../outside/{name}" for name in names
    ]


def with_settings(files: dict, kind: str, canary: str, merges: str, file: str) -> dict:
    """A summary without tokenizer.json, whose settings name files."""
    named = {
        **dict.fromkeys(SETTINGS, canary),
        "merges": merges,
        "init_inputs": [canary],
        "auto_map": {"AutoTokenizer": [canary, None]},
    }
    settings = {**files["tokenizer_config.json"], "tokenizer_class": kind}
    return {"tokenizer.json": None, "tokenizer_config.json": settings, file: {**settings, **named}}


def learners(world: Path, canary: str) -> list[dict]:
    """Learners whose code or weights come from elsewhere. A model_type without a causal language
    model makes transformers ask.
    """
    own = {
        "auto_map": {"AutoModelForCausalLM": "evil.Evil", "AutoConfig": "evil.Evil"},
        "name_or_path": str(world / "s1"),
    }
    far = dict.fromkeys(NAMES, canary) | {
        "auto_map": dict.fromkeys(["AutoModelForCausalLM", "AutoConfig"], canary)
    }
    return [
        {**LEARNER, "model_type": kind, **names}
        for kind in ("gpt2", "vit")
        for names in (own, {**own, "_name_or_path": canary}, far)
    ]


def jobs_of(world: Path, full: bool) -> list:
    """Jobs for `opened_files.handle`: harmless summaries come first."""
    files, paths = files_of(world / "harmless"), canaries(world)
    after = cycle([*[("load",)] * 5, ("save", "show")])
    turn = cycle(paths)
    every = [
        ("harmless", {}, ("load", "save", "push", "show", "train", "tokenizer")),
        ("teacher", {}, ("load", "save", "push", "show", "train", "export", "rows")),
    ]
    for kind in KINDS:
        for file in ("tokenizer_config.json", "special_tokens_map.json"):
            for canary in paths if full else [next(turn)]:
                merges = canary.replace("vocab.json", "merges.txt")
                operations = ("save", "show", "push") if full else next(after)
                every.append(
                    (
                        f"{kind} {file} {canary}",
                        with_settings(files, kind, canary, merges, file),
                        (*operations, "tokenizer"),
                    )
                )
    for file, content in files.items():
        for place in places_of(content):
            for canary in paths if full else [next(turn)]:
                operations = ("save", "push", "show", "train") if full else next(after)
                if file.startswith("tokenizer"):
                    operations = (*operations, "tokenizer")
                every.append(
                    (
                        f"{file} {place} {canary}",
                        {file: with_text(content, place, canary)},
                        operations,
                    )
                )
    config = files_of(world / "teacher")["config.json"]
    for place in places_of(config):
        for canary in paths if full else [next(turn)]:
            operations = (
                ("save", "push", "show", "train", "export", "rows") if full else ("load", "export")
            )
            every.append(
                (
                    f"teacher {place} {canary}",
                    {"config.json": with_text(config, place, canary)},
                    operations,
                )
            )
    for canary in paths if full else paths[:1]:
        for learner in learners(world, canary):
            recipe = {**files["recipe.yaml"], "learner": learner}
            every.append(
                (
                    f"recipe.yaml {learner}",
                    {"recipe.yaml": recipe},
                    ("train", "save") if full else ("train",),
                )
            )
    hard = {"tokenizer_class": "BertTokenizer", "vocab": str(world / "outside" / "words")}
    every.append(("push", {"tokenizer.json": None, "tokenizer_config.json": hard}, ("push",)))
    return every


def check(world: Path, hub, jobs: list, answer: str, limit: float) -> None:
    process = forked().Process(target=opened_files.handle, args=(world, jobs, answer))
    process.start()
    process.join(limit)
    hangs = process.is_alive()
    process.kill()
    process.join()
    events = [json.loads(line) for line in (world / "events").read_text().splitlines()]
    assert not hangs, f"it waits at {events[-1]}"
    assert process.exitcode == 0, (world / "log").read_text()[-3000:]
    seen = defaultdict(list)
    for name, operation, found in events:
        for event, args in found or ():
            seen[event].append((name, operation, args))
    assert len([done for *_, done in events if done is not None]) == sum(
        len(operations) for *_, operations in jobs
    )
    check_opened(world, seen.pop("open"))
    check_started(seen)
    assert {tuple(args[1:]) for _, _, args in seen["socket.connect"]} <= {
        (str(("127.0.0.1", int(hub.url.rpartition(":")[2]))),)
    }
    for text in (SECRET, "Do you wish to run", "the code of the summary runs"):
        assert text not in (world / "log").read_text()
    kept = [path.read_bytes() for path in (world / "out").rglob("*") if path.is_file()]
    pushed = [
        content
        for repository in hub.repositories.values()
        for content in repository.files().values()
    ]
    for model in ("s0-student", "s1-student", "s1-teacher"):
        assert (world / "out" / model / "model.safetensors").exists()
    assert len(kept) > 30
    assert len(pushed) > 10
    assert not any(SECRET.encode() in content for content in kept + pushed)


def check_opened(world: Path, opened: list) -> None:
    """Each file is one of the summary, the output, the packages, a temporary folder or the Hub's
    cache, or a harmless summary needs it too.
    """
    packages = [
        sys.prefix,
        sys.base_prefix,
        str(ROOT / "tests"),
        *farzi_hf.__path__,
        *filter(None, [sys.pycache_prefix]),
    ]
    scratch = [huggingface_hub.constants.HF_HOME, f"{tempfile.gettempdir()}/tmp"]
    usual = {args[0] for name, _, args in opened if name == "harmless"}
    assert len(opened) > 400
    for name, operation, args in opened:
        path = args[0]
        if path.isdigit() or path in usual:  # a descriptor, or opened for every summary
            continue
        full = os.path.normpath(world / "cwd" / path)
        inside = any(
            full.startswith(f"{world}/{part}")
            for part in ("s", "out/", "events", "cwd/outputs", "harmless", "teacher")
        )
        assert inside or full.startswith(tuple(packages + scratch)), (
            f"{name}: {operation} opens {path}"
        )
        assert not full.startswith(f"{world}/outside"), f"{name}: {operation} opens {path}"
        assert not (full.startswith(f"{world}/s") and full.endswith((".py", ".pyc"))), (
            f"{name}: {operation} imports {path}"
        )


def check_started(seen: dict) -> None:
    """The one process that starts is this Python, with the program that tries a tokenizer."""
    for event in ("os.exec", "os.system", "os.posix_spawn", "os.fork"):
        assert not seen[event]
    for name, operation, args in seen["subprocess.Popen"]:
        assert "def _trial() -> None:" in args[1], f"{name}: {operation} starts {args}"
        assert args[0] == sys.executable


@pytest.mark.parametrize(
    "answer", [pytest.param("y\ny\n", marks=pytest.mark.slow), ""], ids=["yes", "closed"]
)
def test_hostile_summaries_touch_nothing_else(world, hub, answer):
    jobs = jobs_of(world, full=False)
    check(world, hub, jobs if answer else jobs[:2] + jobs[-7:], answer, 100)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_all_hostile_summaries_touch_nothing_else(world, hub):
    check(world, hub, jobs_of(world, full=True), "y\n" * 1000, 3500)
