"""Tokenizers that are saved with a summary and read from tokenizer.json alone: they encode, decode
and hash as before, or are refused in time.
"""

from __future__ import annotations

import ast
import json
import logging
import os
import re
import resource
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_artefacts import METRICS, RECIPE, WORDS, tiny, word_tokenizer
from tiny_tokenizers import KINDS, facts
from trainer_runs import forked
from transformers import ByT5Tokenizer

import farzi_hf.data
from farzi_hf.data import vocabulary_of
from farzi_hf.summary import FarziData


@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_means_the_same_after_saving_and_loading_twice(tmp_path, kind):
    before = kind()
    farzi = tiny(vocab_size=len(before))
    for folder in (tmp_path / "first", tmp_path / "second"):
        farzi.save_pretrained(folder, *([before] if folder.name == "first" else []))
        farzi = FarziData.from_pretrained(folder)
        assert facts(farzi.processing_class) == facts(before)
        assert farzi.config.vocabulary_hash == vocabulary_of(before).hash()


def test_a_tokenizer_without_a_file_of_its_own_is_left_out_with_a_warning(tmp_path, caplog):
    tokenizer = ByT5Tokenizer()
    farzi = tiny(vocab_size=len(tokenizer))
    farzi.save_pretrained(tmp_path / "new", tokenizer)
    assert "without the tokenizer" in caplog.text
    loaded = FarziData.from_pretrained(tmp_path / "new")
    assert loaded.processing_class is None


def test_a_folder_without_tokenizer_json_loads_without_a_tokenizer(tmp_path, caplog):
    tiny().save_pretrained(tmp_path, word_tokenizer())
    (tmp_path / "tokenizer.json").unlink()
    farzi = FarziData.from_pretrained(tmp_path)
    assert farzi.processing_class is None
    assert "has a tokenizer_config.json but no tokenizer.json" in caplog.text
    caplog.clear()
    farzi.save_pretrained(tmp_path, word_tokenizer())
    assert FarziData.from_pretrained(tmp_path).processing_class is not None
    assert caplog.text == ""


def test_only_files_of_a_tokenizer_that_are_read_are_saved(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.chat_template = {"default": "{{ messages }}", "tools": "{{ tools }}"}
    tiny().save_pretrained(tmp_path, tokenizer)
    assert {path.name for path in tmp_path.iterdir()} & {
        "chat_template.jinja",
        "additional_chat_templates",
    } == set()
    assert FarziData.from_pretrained(tmp_path).processing_class.chat_template is None


@pytest.mark.parametrize("indent", [0, None])
def test_names_with_commas_quotes_and_backslashes_are_loaded(tmp_path, indent):
    names = [
        f'{i}, "red", 4", ' + "soft, " * 12 + "\\\n" * (i % 3) + "\\" * (i % 4) for i in range(500)
    ]
    tiny(vocab_size=500).save_pretrained(tmp_path, names)
    (tmp_path / "vocabulary.json").write_text(json.dumps(names, indent=indent))
    assert FarziData.from_pretrained(tmp_path).processing_class == names


# -- files that end the process that reads them ----------------------------------------------------


def hostile(**parts) -> str:
    model = {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"}
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **parts})


def pairs(prefix: str, *tokens: str) -> dict:
    first, second, *_ = tokens
    vocabulary = {token: i for i, token in enumerate(tokens)}
    return {
        "model": {
            "type": "BPE",
            "vocab": vocabulary,
            "merges": [[first, second]],
            "continuing_subword_prefix": prefix,
        }
    }


def grows(name: str) -> dict:
    steps = [{"type": "Replace", "pattern": {"Regex": "."}, "content": "x" * 100}] * 8
    return {"type": "Sequence", name: steps}


ADDED = {
    "id": 2,
    "content": "zz",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": True,
    "special": True,
}
PAD = {
    "direction": "Right",
    "pad_to_multiple_of": None,
    "pad_id": 0,
    "pad_type_id": 0,
    "pad_token": "a",
}
KILLERS = {
    "an empty charsmap": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}},
    "a charsmap that says it is huge": {
        "normalizer": {"type": "Precompiled", "precompiled_charsmap": "/" * 16}
    },
    "a prefix longer than the tokens": pairs("x" * 50, "a", "b", "ab"),
    "a prefix that cuts a letter": pairs("é", "a", "aé", "aaé", "é"),
    "a prefix within a letter": pairs("x", "a", "é", "aé"),
    "a strip past the end": {
        "decoder": {"type": "Strip", "content": "a", "start": 0, "stop": 10**9}
    },
    "a stride longer than the text": {
        "truncation": {
            "direction": "Right",
            "max_length": 1,
            "strategy": "LongestFirst",
            "stride": 5,
        }
    },
    "chunks of no length": {"pre_tokenizer": {"type": "FixedLength", "length": 0}},
    "a pad without end": {"padding": {"strategy": {"Fixed": 10**15}, **PAD}},
    "a decoder that grows": {"decoder": grows("decoders")},
    "a normalizer that grows": {"normalizer": grows("normalizers")},
    "an added token that grows": {"normalizer": grows("normalizers"), "added_tokens": [ADDED]},
}


@pytest.mark.parametrize("killer", KILLERS.values(), ids=KILLERS)
def test_a_tokenizer_that_ends_its_reader_is_refused_in_five_seconds(tmp_path, killer, capfd):
    tiny().save_pretrained(tmp_path, word_tokenizer())
    (tmp_path / "tokenizer.json").write_text(hostile(**killer))
    before = sum(os.times()[:4])
    start = time.monotonic()
    with pytest.raises(
        ValueError, match=r"no tokenizer can be made of .*tokenizer\.json.*set processing_class"
    ):
        FarziData.from_pretrained(tmp_path)
    assert sum(os.times()[:4]) - before < 5  # on the processor, of this process and its children
    assert time.monotonic() - start < 60
    assert (
        capfd.readouterr().err == ""
    )  # Rust's messages of a crash stay with the process that crashed


def test_the_process_that_tries_a_tokenizer_imports_nothing_of_the_working_folder(
    tmp_path, monkeypatch
):
    tiny().save_pretrained(tmp_path, farzi_hf.data.word_tokenizer(["the cat"], vocab_size=3))
    for name in ("tokenizers", "resource", "contextlib", "json"):
        (tmp_path / f"{name}.py").write_text("open('ran', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert FarziData.from_pretrained(tmp_path).processing_class is not None
    assert not (tmp_path / "ran").exists()


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("pad_token", 5),
        ("pad_token", {"text": "x"}),
        ("pad_token", ["x"]),
        ("extra_special_tokens", "x"),
        ("extra_special_tokens", [5]),
        ("model_max_length", "10"),
        ("model_max_length", True),
        ("padding_side", "up"),
        ("padding_side", ["left"]),
        ("clean_up_tokenization_spaces", "x"),
        ("model_input_names", "x"),
        ("split_special_tokens", 1),
    ],
)
def test_a_setting_of_another_kind_is_named(tmp_path, key, value):
    tiny().save_pretrained(tmp_path, word_tokenizer())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({key: value}))
    with pytest.raises(ValueError, match=rf"tokenizer_config\.json has {key}="):
        FarziData.from_pretrained(tmp_path)


def test_special_tokens_in_three_spellings(tmp_path):
    tokenizer = word_tokenizer()
    tokenizer.add_special_tokens({"extra_special_tokens": ["the", "cat"]})
    tiny().save_pretrained(tmp_path, tokenizer)
    described = {"__type": "AddedToken", "content": "</s>", "lstrip": True}
    config = {
        "pad_token": "<pad>",
        "bos_token": None,
        "eos_token": described,
        "extra_special_tokens": ["the", {"content": "cat"}, "new"],
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    loaded = FarziData.from_pretrained(tmp_path).processing_class
    assert loaded.special_tokens_map == {"eos_token": "</s>", "pad_token": "<pad>"}
    assert loaded.extra_special_tokens == ["the", "cat"]  # none is added to the vocabulary
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"extra_special_tokens": {"image_token": "the"}})
    )
    assert FarziData.from_pretrained(tmp_path).processing_class.extra_special_tokens == ["the"]


# -- code of repositories --------------------------------------------------------------------------


ROOT = Path(__file__).parents[3]


def calls_of(path: Path):
    """The calls of transformers' own classes that could load code."""
    for node in ast.walk(ast.parse(path.read_text())):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("from_pretrained", "from_config")
        ):
            owner = ast.unparse(node.func.value)
            if owner.startswith("Auto") or "Model" in owner:
                yield ast.unparse(node)


def test_no_call_of_ours_runs_code_of_a_repository():
    found = [
        call
        for folder in ("farzi_hf", "recipes")
        for path in (ROOT / folder).rglob("*.py")
        for call in calls_of(path)
    ]
    assert len(found) > 3
    assert [call for call in found if "trust_remote_code=False" not in call] == []


@pytest.mark.parametrize(
    ("call", "file"),
    [(r"yaml\.\w*load", "text.py"), (r"AutoTokenizer\.from_pretrained", "tokenizer_file.py")],
)
def test_yaml_and_tokenizers_are_read_in_one_place_each(call, file):
    """The first refuses tags and aliases, the second reads no file that a folder's files name."""
    readers = {
        path.name
        for folder in ("farzi_hf", "recipes")
        for path in (ROOT / folder).rglob("*.py")
        if re.search(call, path.read_text())
    }
    assert readers == {file}


def test_a_recipe_loses_what_names_code_with_a_warning(tmp_path, caplog):
    nested = {
        "model_type": "x",
        "_name_or_path": "user/evil",
        "layer_types": ["full", "user/kernel"],
        "parts": [{"auto_map": {}}],
    }
    learner = {
        "model_type": "gpt2",
        "n_embd": 16,
        "auto_map": {"AutoModelForCausalLM": "user/evil--m.M"},
        "code_revision": "main",
        "attn_implementation": "user/kernel",
        "text_config": nested,
        "activation_function": "gelu",
    }
    recipe = {
        "seed": 0,
        "learner": learner,
        "teacher": {"model_type": "gpt2", "name_or_path": "gpt2"},
    }
    tiny().save_pretrained(tmp_path / "own", word_tokenizer(), recipe={"seed": 0})
    (tmp_path / "own" / "recipe.yaml").write_text(json.dumps(recipe))
    caplog.set_level(logging.WARNING)
    farzi = FarziData.from_pretrained(tmp_path / "own")
    assert farzi.results.recipe == {
        "seed": 0,
        "learner": {
            "model_type": "gpt2",
            "n_embd": 16,
            "text_config": {"model_type": "x", "parts": [{}]},
            "activation_function": "gelu",
        },
        "teacher": {"model_type": "gpt2"},
    }
    keys = (
        "learner.auto_map",
        "learner.code_revision",
        "learner.attn_implementation",
        "learner.text_config._name_or_path",
        "learner.text_config.layer_types",
        "learner.text_config.parts[0].auto_map",
        "teacher.name_or_path",
    )
    for key in keys:
        assert f"recipe.yaml: {key} is left out" in caplog.text
    caplog.clear()
    farzi.save_pretrained(tmp_path / "again")
    assert caplog.text == ""  # one warning for each


# -- what a load may cost: each in a process of its own, with its seconds and its memory -----------

SECONDS, BYTES = 5, 500 * 10**6


def measured(folder: Path, answer: Path) -> None:
    """Loads the summary, and leaves its refusal, the seconds and the bytes in `answer`."""
    before, start, refusal = (
        resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
        time.process_time(),
        "",
    )
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
    (folder / "farzi.safetensors").write_bytes(
        struct.pack("<Q", len(text)) + text + content[8 + size :]
    )


def many_tensors(folder: Path, count: int) -> None:
    content = (folder / "farzi.safetensors").read_bytes()
    end = len(content) - 8 - struct.unpack("<Q", content[:8])[0]
    header(
        folder,
        {f"x{i}": {"dtype": "U8", "shape": [0], "data_offsets": [end, end]} for i in range(count)},
    )


def many_files(folder: Path, count: int) -> None:
    header(
        folder,
        {
            "__metadata__": {
                "farzi": json.dumps({"files": [f"plots/{i}.png" for i in range(count)]})
            }
        },
    )


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
    "names of tensors": (
        lambda folder: many_tensors(folder, 300_000),
        "farzi.safetensors has a header of",
    ),
    "fewer names of tensors": (lambda folder: many_tensors(folder, 12_000), "farzi.safetensors"),
    "names of files": (
        lambda folder: many_files(folder, 40_000),
        "farzi.safetensors lists 40,000 files",
    ),
    "plots": (many_plots, "plots has images of"),
    "60 million empty names": (
        lambda f: items(f, b"[" + b'"",' * 60_000_000 + b'""]'),
        "vocabulary.json is larger",
    ),
    "20 million empty names": (
        lambda f: items(f, b"[" + b'"",' * 20_000_000 + b'""]'),
        "far more than the 7 entries",
    ),
    "12 million quotes": (
        lambda f: items(f, b"[" + rb'"\"",' * 12_000_000 + b'""]'),
        "far more than the 7 entries",
    ),
    "12 million backslashes": (
        lambda f: items(f, b"[" + rb'"\\",' * 12_000_000 + b'""]'),
        "far more than the 7 entries",
    ),
    "12 million lines": (
        lambda f: items(f, b"[\n" + b'"a",\n' * 12_000_000 + b'""]'),
        "far more than the 7 entries",
    ),
    "20 million lists": (
        lambda f: items(f, b"[" + b"[]," * 20_000_000 + b"[]]"),
        "far more than the 7 entries",
    ),
    "metrics": (lambda folder: nested(folder, "metrics.json", 2**21 - 99), ""),
    "config": (lambda folder: nested(folder, "config.json", 2**20 - 99), "config.json"),
    "recipe": (lambda folder: nested(folder, "recipe.yaml", 2**17 - 99), ""),
}


@pytest.mark.parametrize(
    "case",
    [
        # It is like the config, and takes seconds.
        pytest.param(case, marks=pytest.mark.slow) if case == "metrics" else case
        for case in CASES
    ],
)
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
        ValueError,
        match="plots has images of 100,663,296 bytes, more than the 67,108,864 that are read",
    ):
        tiny().save_pretrained(tmp_path / "new", plots=plots)
