"""Artefacts and settings with random damage: loaded whole, or refused by name; nothing on the disk
changes.
"""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from fuzzing import fuzzed
from hypothesis import example, given
from hypothesis import strategies as st
from pictures import png
from safetensors.torch import load_file, save_file
from tiny_artefacts import METRICS, RECIPE, WORDS, tiny, word_tokenizer
from tiny_models import tiny_model

from farzi_hf.cli import main
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.store.untrusted import learner_config

T = TypeVar("T")
SECONDS = 20  # of one load, as this process spends them: other work on the machine does not count
NAMES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "../outside/precious",
            "/etc/passwd",
            "plots/../../outside/precious",
            "precious",
            "plots/x.png",
            "README.md",
            ".farzi-lock",
        ]
    ),
)
VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.integers(2**31 - 1, 2**70),
        st.floats(),
        st.text(max_size=8),
        st.sampled_from(["cat", "WordLevel", 0, -1, 1, 7, 4, 1e308, -0.0]),
        st.sampled_from(["\x1b[2J", "\u202e\x9b31m", "a\x07\nb"]),
    ),
    lambda part: st.one_of(
        st.lists(part, max_size=3), st.dictionaries(st.text(max_size=8), part, max_size=3)
    ),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> list[Path]:
    """One artefact with a tokenizer, one with a list of items, one that carries a teacher."""
    folders = [tmp_path_factory.mktemp("originals") / kind for kind in ("text", "items", "teacher")]
    plot = folders[0].parent / "curve.png"
    plot.write_bytes(png())
    for folder, vocabulary in zip(
        folders, (word_tokenizer(), WORDS, word_tokenizer()), strict=True
    ):
        farzi = tiny(inner={"lr": 0.01})
        if folder.name == "teacher":
            teacher = tiny_model("gpt2", len(WORDS))
            farzi = FarziData.from_teacher(
                teacher, sequence_length=5, num_sequences=4, storage="coded5"
            )
        farzi.save_pretrained(folder, vocabulary, METRICS, RECIPE, [plot])
    return folders


@pytest.fixture
def world(tmp_path) -> Path:
    """A folder to put an artefact in, beside one that is none of its business."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "precious").write_text("mine")
    return tmp_path


# -- damage: functions of a folder and of a source of random choices -------------------------------


def some_file(folder: Path, data: st.DataObject, ending: str = "") -> Path:
    return data.draw(
        st.sampled_from(sorted(path for path in folder.rglob(f"*{ending}") if path.is_file())),
        label="file",
    )


def bytes_changed(folder: Path, data: st.DataObject) -> None:
    path = some_file(folder, data)
    content = bytearray(path.read_bytes())
    # The beginning holds the header of the tensors, the first keys of JSON.
    for place in data.draw(
        st.lists(st.integers(0, max(0, min(len(content), 2000) - 1)), max_size=5), label="places"
    ):
        if content:
            content[place] = data.draw(st.integers(0, 255))
    path.write_bytes(content)


def replaced(folder: Path, data: st.DataObject) -> None:
    some_file(folder, data).write_bytes(data.draw(st.binary(max_size=200)))


def removed(folder: Path, data: st.DataObject) -> None:
    some_file(folder, data).unlink()


def resized(folder: Path, data: st.DataObject) -> None:
    os.truncate(some_file(folder, data), data.draw(st.integers(0, 1000) | st.integers(0, 2**35)))


def linked(folder: Path, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(folder.rglob("*"))), label="linked")
    outside, target = (
        folder.parent / "outside" / "moved",
        data.draw(st.sampled_from(["itself", "precious", "moved", "/dev/zero", "nothing"])),
    )
    if target == "moved" or path.is_dir():
        shutil.move(path, outside)
        path.symlink_to(outside)
    else:
        path.unlink()
        path.symlink_to(path if target == "itself" else folder.parent / "outside" / target)


def of_another_kind(folder: Path, data: st.DataObject) -> None:
    path = some_file(folder, data)
    path.unlink()
    data.draw(st.sampled_from([os.mkdir, os.mkfifo]))(path)


def check_not_special(path: Path) -> None:
    """Raises OSError for the pipe that `of_another_kind` may have made: to open it would wait for
    somebody at its other end, for ever.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is not a file")


def json_changed(folder: Path, data: st.DataObject) -> None:
    path = some_file(folder, data, ".json")
    with suppress(ValueError):  # damaged before
        content = json.loads(path.read_bytes())
        places = list(places_of(content))
        holder, key = data.draw(st.sampled_from(places)) if places else (None, None)
        if holder is None:
            content = data.draw(VALUES)
        elif data.draw(st.booleans(), label="new key") and isinstance(holder, dict):
            holder[data.draw(st.text(max_size=12))] = holder.pop(key)
        else:
            holder[key] = data.draw(VALUES, label=str(key))
        path.write_text(json.dumps(content))


CANARIES = st.sampled_from(
    ["../outside/precious", "/etc/passwd", "outside/precious", "user/repository", "\x1b[2J"]
)
KEYS = st.sampled_from(
    [
        "vocab",
        "merges",
        "vocab_file",
        "tokenizer_class",
        "auto_map",
        "pad_token",
        "extra_special_tokens",
        "chat_template",
        "model_max_length",
        "padding_side",
        "model_input_names",
        "added_tokens_decoder",
        "init_inputs",
        "save_pretrained",
        "backend",
        "add_bos_token",
    ]
)
PARTS = {
    "normalizer": ["Precompiled", "Replace", "Strip", "Prepend", "NFC"],
    "pre_tokenizer": ["FixedLength", "Split", "ByteLevel", "Metaspace"],
    "decoder": ["Strip", "Replace", "WordPiece", "CTC", "ByteLevel"],
    "post_processor": ["TemplateProcessing", "RobertaProcessing"],
    "model": ["BPE", "WordLevel", "WordPiece", "Unigram"],
}
FIELDS = st.sampled_from(
    [
        "precompiled_charsmap",
        "pattern",
        "content",
        "start",
        "stop",
        "length",
        "behavior",
        "invert",
        "prepend",
        "vocab",
        "merges",
        "unk_token",
        "unk_id",
        "continuing_subword_prefix",
        "replacement",
        "single",
        "pair",
        "special_tokens",
        "sep",
        "cls",
    ]
)
TEXTS = st.one_of(
    VALUES,
    CANARIES,
    st.text("aé/=", max_size=20),
    st.just({"Regex": "."}),
    st.just({"a": 0, "é": 1, "aé": 2}),
    st.just([["a", "é"]]),
)


def tokenizer_changed(folder: Path, data: st.DataObject) -> None:
    """Parts of the tokenizer that the library knows, with fields of any value."""
    path = folder / "tokenizer.json"
    check_not_special(path)
    part = data.draw(st.sampled_from(sorted(PARTS)), label="part")
    fields = data.draw(st.dictionaries(FIELDS, TEXTS, max_size=6), label="fields")
    with suppress(ValueError, TypeError):  # damaged before
        kind = {"type": data.draw(st.sampled_from(PARTS[part]))}
        path.write_text(json.dumps({**json.loads(path.read_bytes()), part: {**kind, **fields}}))


def settings_changed(folder: Path, data: st.DataObject) -> None:
    """The tokenizer's settings, in either file, with names of files and with values of any kind."""
    path = folder / data.draw(st.sampled_from(["tokenizer_config.json", "special_tokens_map.json"]))
    check_not_special(path)
    path.write_text(
        json.dumps(
            data.draw(
                st.dictionaries(KEYS, st.one_of(VALUES, CANARIES), max_size=5), label="settings"
            )
        )
    )


def learner_changed(folder: Path, data: st.DataObject) -> None:
    """The learner of the recipe, with names of code and files, at any depth."""
    check_not_special(folder / "recipe.yaml")
    names = st.sampled_from(
        ["auto_map", "_name_or_path", "attn_implementation", "model_type", "text_config", "n_embd"]
    )
    learner = data.draw(
        st.recursive(
            st.one_of(VALUES, CANARIES), lambda part: st.dictionaries(names, part, max_size=3)
        ),
        label="learner",
    )
    with suppress(ValueError):  # it holds what UTF-8 cannot
        (folder / "recipe.yaml").write_text(json.dumps({"learner": learner, "teacher": learner}))


def teacher_changed(folder: Path, data: st.DataObject) -> None:
    """The config of a carried teacher, and bytes of one of its coded tensors, which no checksum
    protects any more.
    """
    check_not_special(folder / "config.json")
    check_not_special(folder / "farzi.safetensors")
    kinds = st.sampled_from(["gpt2", "llama", "mamba", "sasrec", "farzi_rnn", "t5", "\x1b"])
    values = st.one_of(VALUES, CANARIES, ROPE)
    fields = st.dictionaries(st.sampled_from(READ_LEARNER), values, max_size=2)
    with suppress(Exception):  # damaged before
        config = json.loads((folder / "config.json").read_bytes())
        config["teacher"] |= data.draw(fields, label="fields")
        if data.draw(st.booleans(), label="another kind"):
            config["teacher"]["model_type"] = data.draw(kinds)
        (folder / "config.json").write_text(json.dumps(config))
        tensors = load_file(folder / "farzi.safetensors")
        name = data.draw(st.sampled_from(sorted(tensors)), label="tensor")
        if tensors[name].dtype == torch.uint8:
            coded = (
                data.draw(st.binary(max_size=40))
                if data.draw(st.booleans())
                else zlib.compress(b"\0" * 10**6, 9, -15)
            )
            tensors[name] = torch.frombuffer(bytearray(coded or b"\0"), dtype=torch.uint8)
        save_file(tensors, folder / "farzi.safetensors")


def places_of(content: Any):
    """All pairs of a list or mapping in `content` and an index or key of it."""
    pairs = (
        content.items()
        if isinstance(content, dict)
        else enumerate(content)
        if isinstance(content, list)
        else ()
    )
    for key, value in pairs:
        yield content, key
        yield from places_of(value)


def yaml_changed(folder: Path, data: st.DataObject) -> None:
    parts = st.sampled_from(
        [
            ": ",
            "- ",
            "&a ",
            "*a",
            "[",
            "]",
            "{",
            "}",
            "\n",
            "  ",
            "!!",
            "!!python/name:os.system",
            *[
                f"!!{kind} "
                for kind in ("int", "float", "bool", "timestamp", "binary", "set", "map")
            ],
            "learner: ",
            "1: 2",
            "0x",
            ":1" * 400,
            "<<",
            "? ",
            "1e400",
            "2024-01-01",
            "x",
            "|",
        ]
    )
    path = folder / "recipe.yaml"
    check_not_special(path)
    path.write_text("".join(data.draw(st.lists(parts, max_size=30), label="yaml")))


def tensors_changed(folder: Path, data: st.DataObject) -> None:
    path = folder / "farzi.safetensors"
    check_not_special(path)
    with suppress(Exception):  # damaged before
        tensors = load_file(path)
        name = data.draw(st.sampled_from(["latents", "decoder", "extra", *sorted(tensors)]))
        shape = data.draw(st.sampled_from([(4, 5, 3), (3, 7), (7, 3), (0,), (), (1, 1)]))
        dtype = data.draw(
            st.sampled_from(
                [
                    torch.float32,
                    torch.float64,
                    torch.float16,
                    torch.bfloat16,
                    torch.int64,
                    torch.bool,
                    torch.complex64,
                ]
            )
        )
        value = data.draw(st.sampled_from([0.0, 1.0, 1e30, float("nan"), float("inf")]))
        tensors[name] = torch.full(shape, value).to(dtype)
        files = data.draw(st.one_of(VALUES, st.lists(NAMES, max_size=5)), label="files")
        entry = data.draw(st.sampled_from(["files", "farzi", "other"]))
        save_file(
            tensors,
            path,
            metadata={
                entry: json.dumps(files if entry == "files" else {"files": files, "sha256": {}})
            },
        )


def not_copied(folder: str, names: list[str]) -> list[str]:
    """The copy itself, and holes of gigabytes, which would be written out."""
    return [
        name
        for name in names
        if name == ".farzi-committed" or os.lstat(Path(folder, name)).st_size > 2**24
    ]


def committed(folder: Path, data: st.DataObject) -> None:
    """An interrupted save, with damage of its own."""
    target = folder / ".farzi-committed"
    if not target.exists():
        with suppress(shutil.Error):  # a pipe cannot be copied
            shutil.copytree(folder, target, symlinks=True, ignore=not_copied)
        for path in data.draw(
            st.sets(st.sampled_from(sorted(path for path in target.rglob("*") if path.is_file())))
        ):
            path.unlink()


DAMAGE = [
    bytes_changed,
    replaced,
    removed,
    resized,
    linked,
    of_another_kind,
    json_changed,
    yaml_changed,
    tensors_changed,
    committed,
    tokenizer_changed,
    settings_changed,
    learner_changed,
    teacher_changed,
]


@fuzzed
@given(data=st.data())
def test_a_damaged_artefact_is_loaded_whole_or_refused_and_nothing_changes(
    originals, world, heard, data
):
    folder = world / "artefact"
    shutil.copytree(data.draw(st.sampled_from(originals)), folder)
    try:
        for damage in data.draw(
            st.lists(st.sampled_from(DAMAGE), min_size=1, max_size=3), label="damage"
        ):
            with suppress(IndexError, OSError):  # it met the damage done before
                damage(folder, data)
        check_load(folder, world)
        assert re.sub(r"[\n\t]", " ", heard.getvalue()).isprintable()
        outside = listing_without_content(world / "outside")
        with suppress(ValueError, FileNotFoundError):
            tiny().save_pretrained(folder, word_tokenizer())
        assert listing_without_content(world / "outside") == outside
    finally:
        shutil.rmtree(folder)
        shutil.rmtree(world / "outside")
        (world / "outside").mkdir()
        (world / "outside" / "precious").write_text("mine")


ROWS = st.lists(
    st.dictionaries(
        st.sampled_from(["x", "x_std", "x_interval", "method", "\x1b|"]), VALUES, max_size=3
    ),
    max_size=3,
)
LARGE_ROWS = st.builds(
    lambda columns, rows: [{str(i): 1 for i in range(columns)}, *[{"0": 1}] * rows],
    st.sampled_from([1, 30, 100, 101, 20_000]),
    st.sampled_from([1, 70, 999, 1000, 200_000]),
)
"""Tables that are wide, long, or both: a card pads each row to all columns."""
READ_METRICS = (
    "table",
    "dataset",
    "data_bytes",
    "data_sequences",
    "split",
    "licence",
    "licence_text",
    "command",
    "device",
    "learner_parameters",
    "distillation_seconds",
    "student_seconds",
    "full_data_seconds",
    "full_data_steps",
    "privacy",
)
SMALL = {
    **{"n_embd": 8, "n_layer": 1, "n_head": 1, "hidden_size": 8, "intermediate_size": 8},
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1),
}
"""Of a model of any kind; other kinds leave out what they do not know."""
READ_INNER = (
    "steps",
    "synthetic_batch_size",
    "optimizer",
    "lr",
    "betas",
    "eps",
    "eps_root",
    "momentum",
    "weight_decay",
    "lr_scheduler_type",
)
READ_LEARNER = (
    "n_embd",
    "n_layer",
    "n_head",
    "n_positions",
    "activation_function",
    "dtype",
    "attn_pdrop",
    "initializer_range",
    "rope_scaling",
    "rope_parameters",
    "layer_types",
)
ROPE = st.dictionaries(
    st.sampled_from(
        ["rope_type", "rope_theta", "factor", "beta_fast", "beta_slow", "long_factor", "\x1b[2J"]
    ),
    st.one_of(VALUES, st.sampled_from(["linear", "dynamic", "yarn", "longrope", "llama3"])),
    max_size=4,
)
"""What transformers checks of a config itself, and warns of with the value that it has found."""


@fuzzed
@given(
    metrics=st.dictionaries(
        st.sampled_from(READ_METRICS), st.one_of(VALUES, ROWS, LARGE_ROWS), max_size=3
    ),
    inner=st.dictionaries(st.sampled_from(READ_INNER), VALUES, max_size=3),
    recipe=st.dictionaries(
        st.sampled_from(["dataset", "learner", "teacher", "input_sequences", "seed"]),
        VALUES,
        max_size=2,
    ),
    learner=st.dictionaries(st.sampled_from(READ_LEARNER), st.one_of(VALUES, ROPE), max_size=2),
    kind=st.sampled_from(["gpt2", "llama", "gemma3_text", "phi3"]),
)
@example(
    {"student_seconds": 0, "full_data_seconds": 5e-324, "distillation_seconds": 1e17},
    {},
    {},
    {},
    "gpt2",
)
@example({}, {}, {}, {"rope_parameters": {"rope_type": "linear", "factor": "\x1b[2J"}}, "llama")
def test_what_others_say_of_a_summary_is_used_or_refused(
    originals, world, heard, metrics, inner, recipe, learner, kind
):
    """Shown, saved again, and made into a student and its settings. Python's JSON also writes and
    reads NaN.
    """
    folder = world / "artefact"
    shutil.copytree(originals[0], folder)
    try:
        (folder / "metrics.json").write_text(json.dumps(metrics))
        recipe = {
            "learner": {"model_type": kind, **SMALL, **learner},
            **recipe,
        }
        (folder / "recipe.yaml").write_text(json.dumps(recipe))
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(
            json.dumps({**config, "inner": {"optimizer": "adam", "lr": 0.1, "steps": 1, **inner}})
        )
        shown, start = io.StringIO(), time.process_time()
        with redirect_stdout(shown), suppress(SystemExit):
            main(["show", str(folder)])
        assert all(line.isprintable() for line in shown.getvalue().split("\n"))
        assert len(shown.getvalue()) < 200_000
        farzi, refusal = outcome(lambda: FarziData.from_pretrained(folder))
        assert time.process_time() - start < SECONDS
        if farzi is None:
            assert any(name in refusal for name in ("metrics.json", "recipe.yaml", "config.json"))
            return
        outcome(lambda: farzi.training_arguments(world / "student"))
        _, refusal = outcome(lambda: farzi.save_pretrained(folder))
        assert not refusal or refusal.startswith("metrics.json would have")  # it is indented
        settings, refusal = outcome(
            lambda: learner_config(
                farzi.results.recipe["learner"],
                farzi.config,
                farzi.vocabulary,
                "recipe.yaml: learner",
            )
        )
        assert settings is not None or refusal.startswith("recipe.yaml: learner")
        assert re.sub(r"[\n\t]", " ", heard.getvalue()).isprintable()
    finally:
        shutil.rmtree(folder)


@pytest.fixture
def heard():
    """What the loggers of libraries write on the standard error, to which their handlers keep."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    loggers = [logging.getLogger(name) for name in (None, "transformers")]
    for logger in loggers:
        logger.addHandler(handler)
    yield stream
    for logger in loggers:
        logger.removeHandler(handler)


def outcome(make: Callable[[], T]) -> tuple[T | None, str]:
    """What `make` gives, or how it refuses: in one line that a terminal can show."""
    try:
        return make(), ""
    except (ValueError, TypeError, FileNotFoundError) as error:
        refusal = str(error)
    assert refusal.isprintable()
    return None, refusal


def check_load(folder: Path, world: Path) -> None:
    before, start = listing_without_content(world), time.process_time()
    farzi, refusal = outcome(lambda: FarziData.from_pretrained(folder))
    if farzi is None:
        assert str(folder) in refusal or "folder_or_repo" in refusal
    else:
        assert all(torch.isfinite(parameter).all() for parameter in farzi.parameters())
        assert torch.isfinite(farzi(torch.arange(farzi.config.num_sequences)).float()).all()
    assert time.process_time() - start < SECONDS
    assert listing_without_content(world) == before


def listing_without_content(folder: Path) -> dict[str, tuple]:
    """Files of many gigabytes that are holes would take long to read."""
    found = [
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]
    return {
        str(path): (*(facts := path.lstat())[:4], facts.st_size, facts.st_mtime_ns)
        for path in found
    }


# -- settings --------------------------------------------------------------------------------------


SUMMARY_FIELDS = (
    "num_sequences",
    "sequence_length",
    "latent_dim",
    "vocab_size",
    "tau",
    "latent_std",
    "inner",
    "vocabulary_hash",
    "inputs",
    "labels",
    "teacher",
    "seed",
    "storage",
)


@fuzzed
@given(values=st.dictionaries(st.sampled_from(SUMMARY_FIELDS), VALUES, max_size=4))
@example({"tau": 10**400})
@example({"inner": {"a": float("nan")}})
def test_a_config_of_a_summary_is_made_or_refused_by_the_name_of_a_field(tmp_path, values):
    config, refusal = outcome(lambda: FarziDataConfig(**values))
    if config is None:
        assert any(name in refusal for name in values)
        return
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    assert (
        FarziDataConfig.from_json(path.read_bytes(), path).to_diff_dict() == config.to_diff_dict()
    )
