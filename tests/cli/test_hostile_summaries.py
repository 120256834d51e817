"""The program `farzi` on a summary that somebody else wrote: one line names the file and the key,
and nothing moves the cursor.
"""

from __future__ import annotations

import io
import json
import logging
import re
import shutil
import time
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from tiny_artefacts import INNER, METRICS, RECIPE, WORDS, tiny, word_tokenizer
from tiny_models import tiny_model
from torch import Tensor

from farzi_hf.cli import main
from farzi_hf.report import markdown
from farzi_hf.summary import FarziData
from farzi_hf.summary.forms import teacher as teacher_form
from farzi_hf.summary.store import untrusted
from farzi_hf.summary.store.tensor_file import listed_files

HOSTILE = "a\x1b[2J\x07\x9b31m‮b\n| c\ud800"
"""It clears a screen, rings, turns red, writes backwards, breaks a line and a cell, and is no
Unicode.
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("saved") / "summary"
    inner = {**INNER, "steps": 2, "synthetic_batch_size": 2}
    tiny(inner=inner).save_pretrained(folder, word_tokenizer(), METRICS, RECIPE)
    return folder


@pytest.fixture
def summary(saved, tmp_path) -> Path:
    return shutil.copytree(saved, tmp_path / "summary")


def change(path: Path, **values: Any) -> None:
    """Changes entries of a JSON file, or of a recipe, which may be JSON too."""
    path.write_text(json.dumps({**yaml.safe_load(path.read_text()), **values}))


def refusal(*argv: str) -> str:
    """The line that the program ends with."""
    with pytest.raises(SystemExit) as stop:
        main(argv)
    line = stop.value.code
    assert isinstance(line, str)
    assert line.isprintable()
    assert len(line) < 2100
    return line


# -- farzi show ------------------------------------------------------------------------------------


def test_show_and_errors_escape_what_a_terminal_obeys(tmp_path, capsys):
    tiny(inner=INNER).save_pretrained(tmp_path / "summary", WORDS, METRICS, RECIPE)
    (tmp_path / "summary" / "vocabulary.json").write_text(
        json.dumps([HOSTILE, "x" * 5000, *WORDS[2:]])
    )
    change(tmp_path / "summary" / "config.json", vocabulary_hash=None)
    hostile = {"dataset": HOSTILE, "table": [{"method": HOSTILE, HOSTILE: 1.0, "long": "y" * 5000}]}
    change(tmp_path / "summary" / "metrics.json", **hostile)
    change(tmp_path / "summary" / "recipe.yaml", learner={"model_type": HOSTILE})
    main(["show", str(tmp_path / "summary"), "--sequences", "4", "--top_k", "7"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1000
    shown = r"a\x1b[2J\x07\x9b31m\u202eb\n¦ c\ud800"
    for part in (
        f"distilled from        | {shown}",
        f"| {shown} ",
        f"with a learner        | {shown}",
        f"{shown} 0.",
    ):
        assert any(part in line for line in lines), part
    assert len({line.count("|") for line in lines if line.startswith("| 0, ")}) == 1
    change(tmp_path / "summary" / "config.json", inputs=HOSTILE)
    assert r"\x1b[2J" in refusal("show", str(tmp_path / "summary"))


def test_a_table_escapes_its_cells():
    lines = markdown([{"a": HOSTILE, "b": "z" * 5000}]).splitlines()
    assert len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    assert all(line.isprintable() and line.count("|") == 3 for line in lines)
    assert "zz…zz" in lines[2]


@pytest.mark.parametrize(
    ("values", "key"),
    [
        *[
            ({"table": table}, "table")
            for table in (3, "text", [1], [[1]], {"a": 1}, [{}], [None], True)
        ],
        ({"table": [{"method": "a"}, {"x": 1.0, "x_std": "wide"}]}, "x_std"),
        ({"table": [{"x": None, "x_std": []}]}, "x_std"),
        ({"table": [{"x": 1.0, "x_interval": {"low": 1}}]}, "x_interval"),
        ({"data_bytes": "many"}, "data_bytes"),
        ({"full_data_seconds": [1]}, "full_data_seconds"),
        ({"student_seconds": 10**400}, "student_seconds"),
        ({"distillation_seconds": "NaN"}, "distillation_seconds"),
        ({"licence": 5}, "licence"),
    ],
    ids=str,
)
def test_show_names_the_entry_of_metrics_that_is_no_such_thing(summary, values, key):
    change(summary / "metrics.json", **values)
    line = refusal("show", str(summary))
    assert "metrics.json" in line
    assert key in line


@pytest.mark.parametrize(
    "table",
    [
        [{str(i): 1 for i in range(20_000)}, *[{"0": 1}] * 150_000],
        [{str(i): 1 for i in range(101)}],
        [{str(i): 1} for i in range(101)],
        [{"a": 1}] * 1001,
    ],
    ids=["both", "columns", "columns of all rows", "rows"],
)
def test_a_table_that_is_too_large_is_refused_before_any_work_on_it(summary, table):
    change(summary / "metrics.json", table=table)
    assert (summary / "metrics.json").stat().st_size < 2 * 2**20
    start = time.process_time()
    line = refusal("show", str(summary))
    assert "metrics.json" in line
    assert "no list of at most 1,000 rows, which map at most 100 columns" in line
    assert time.process_time() - start < 5


def test_show_prints_part_of_a_large_table_and_says_so(summary, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "2000")
    change(summary / "metrics.json", table=[{f"c{i}": "x" * 900 for i in range(30)}] * 70)
    main(["show", str(summary)])
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[-1] == "… and 20 rows and 10 columns more, in metrics.json"
    assert " c19 |" in printed
    assert " c20 |" not in printed
    assert len(printed) < 100_000


@pytest.mark.parametrize(
    "content",
    ["a: !!int ''", "a: !!float ''", "a: !!bool x", "a: !!timestamp x", "learner: {1: 2}"],
)
def test_show_names_the_line_of_a_recipe_that_is_no_plain_yaml(summary, content):
    (summary / "recipe.yaml").write_text(content)
    assert "recipe.yaml is not a readable YAML: line 1, column " in refusal("show", str(summary))


# -- farzi train -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner",
    [
        *[{"steps": steps} for steps in ("3", [3], 2.5, 0, -1, 10**12, True)],
        *[{"synthetic_batch_size": size} for size in (0, "x", -1, 2.0)],
        *[{"optimizer": optimizer} for optimizer in (["adam"], {}, 3, "lion")],
        *[{"lr": lr} for lr in (1e300, "x", -1, [1], True, 0)],
        *[
            {"eps": 1e300},
            {"weight_decay": 1e200},
            {"betas": 3},
            {"betas": ["a", "b"]},
            {"eps_root": "x"},
        ],
        *[
            {"lr_scheduler_type": name}
            for name in (3, ["linear"], "polynomial", "reduce_lr_on_plateau")
        ],
    ],
    ids=str,
)
def test_train_names_the_setting_of_the_inner_loop(summary, tmp_path, inner):
    settings = json.loads((summary / "config.json").read_text())["inner"]
    change(summary / "config.json", inner={**settings, **inner})
    change(summary / "recipe.yaml", learner=GPT2)
    line = refusal("train", str(summary), "--output_dir", str(tmp_path / "student"))
    assert "config.inner" in line
    assert next(iter(inner)) in line


GPT2 = {"model_type": "gpt2", "n_embd": 8, "n_layer": 1, "n_head": 1}


@pytest.mark.parametrize(
    ("learner", "key"),
    [
        *[
            (learner, "learner=")
            for learner in (3, "gpt2", [1], [["model_type", "gpt2"]], {"n_embd": 8})
        ],
        *[
            ({"model_type": kind}, "model_type")
            for kind in (3, ["gpt2"], None, "no such", "t5", "clip", HOSTILE)
        ],
        *[
            ({**GPT2, "n_embd": width}, "n_embd")
            for width in ("x", 10**5, -1, 0, 2.5, None, [8], 10**30)
        ],
        *[({**GPT2, "n_layer": layers}, "n_layer") for layers in (10**6, "1", -(10**9))],
        ({**GPT2, "n_head": 0}, "n_head"),
        ({**GPT2, "n_head": -1}, "does not run on ids alone"),
        *[({**GPT2, "dtype": dtype}, "dtype") for dtype in ("os", "load", 5, ["float32"], "int8")],
        *[
            ({**GPT2, "activation_function": name}, "activation_function")
            for name in ("exec", 5, "os.system")
        ],
        ({**GPT2, "initializer_range": 1e300}, "initializer_range"),
        ({**GPT2, "resid_pdrop": 5.0}, "resid_pdrop"),
        ({**GPT2, "pad_token_id": 10**9}, "pad_token_id"),
        ({**GPT2, "n_positions": 2}, "does not read 5 positions"),
        (
            {"model_type": "llama", "num_hidden_layers": 10**7, "hidden_size": 8},
            "num_hidden_layers",
        ),
        (
            {"model_type": "gpt_neo", "attention_types": [[["global"], 10**9]]},
            "attention_types is more than 256",
        ),
        (
            {"model_type": "gpt_neo", "attention_types": [[["a"] * 2, 10**6], [["b"], 1]]},
            "attention_types is more than 256",
        ),
        ({**GPT2, "eos_token_id": [10**9]}, "eos_token_id"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_train_names_the_field_of_the_learner(summary, tmp_path, learner, key):
    change(summary / "recipe.yaml", learner=learner)
    line = refusal("train", str(summary), "--output_dir", str(tmp_path / "student"))
    assert "recipe.yaml: learner" in line
    assert key in line
    assert "--learner {" not in line
    assert not (tmp_path / "student").exists()


@pytest.mark.parametrize(
    "more",
    [
        {"id2label": 5},
        {"num_labels": 10**9},
        {"to_dict": 3},
        {"auto_map": {"AutoConfig": "evil.Config"}},
        {"torch_dtype": "os"},
        {"attn_implementation": "user/kernel"},
        {"quantization_config": {"quant_method": "evil"}},
        {"text_config": {"dtype": "os"}},
        {"_name_or_path": "/etc/passwd"},
        {"n_inner": {"auto_map": 1}},
        {HOSTILE: "x"},
        {"n_inner": [[{"auto_map": 1}]]},
        {"summary_type": [["/etc/passwd"]]},
    ],
    ids=str,
)
def test_train_leaves_out_what_is_no_plain_field_of_the_learner(summary, tmp_path, caplog, more):
    """The first one lasts; the others are only looked at."""
    from farzi_hf.data import vocabulary_of
    from farzi_hf.summary.store.untrusted import learner_config

    change(summary / "recipe.yaml", learner={**GPT2, **more})
    farzi = FarziData.from_pretrained(summary)
    found = learner_config(
        farzi.results.recipe["learner"], farzi.config, vocabulary_of(farzi.processing_class), "F"
    )
    clean = learner_config(GPT2, farzi.config, vocabulary_of(farzi.processing_class), "F")
    assert found.to_dict() == clean.to_dict()
    if next(iter(more)) not in ("id2label", "quantization_config"):
        assert all(record.getMessage().isprintable() for record in caplog.records)


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        *[
            ({"dataset": name}, "dataset")
            for name in ([1], 3, "/etc/passwd", "outside.csv", "../outside.csv", "user/evil")
        ],
        *[
            ({"num_students": "x"}, "num_students"),
            ({"splits": 3}, "splits"),
            ({"baselines": [[1]]}, "baselines"),
        ],
        *[
            ({"vocab_size": "x"}, "vocab_size"),
            ({"max_length": [1]}, "max_length"),
            ({"teacher": 5}, "teacher"),
        ],
    ],
    ids=str,
)
def test_evaluation_reads_no_data_that_a_recipe_chooses(
    summary, tmp_path, monkeypatch, recipe, key
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.csv").write_text("user,item,timestamp\n1,2,3\n")
    change(summary / "recipe.yaml", **{"dataset": "sample", **recipe})
    line = refusal("train", str(summary), "--evaluate", "--output_dir", str(tmp_path / "student"))
    assert "recipe.yaml: " + key in line


# -- a teacher in the summary ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def teachers(tmp_path_factory) -> Path:
    """A folder of summaries that carry a teacher, by `storage-inputs`."""
    folder = tmp_path_factory.mktemp("teachers")
    for storage, inputs in (("coded5", "drawn"), ("exact", "drawn"), ("exact", "written")):
        farzi = FarziData.from_teacher(
            tiny_model("gpt2", len(WORDS)),
            inputs=inputs,
            sequence_length=4,
            num_sequences=6,
            storage=storage,
            tokenizer=word_tokenizer(),
        )
        farzi.save_pretrained(folder / f"{storage}-{inputs}")
    return folder


def copied(
    source: Path,
    folder: Path,
    tensors: dict | None = None,
    fields: dict | None = None,
    **config: Any,
) -> Path:
    """A copy with other entries of config.json, of its teacher, and of the tensors; functions
    change old values, None removes.
    """
    shutil.copytree(source, folder)
    old = json.loads((folder / "config.json").read_text())
    kept = {**old["teacher"], **(fields or {})}
    change(
        folder / "config.json",
        **{"teacher": {k: v for k, v in kept.items() if v is not None or k == "n_inner"}, **config},
    )
    if tensors:
        found, files = (
            load_file(folder / "farzi.safetensors"),
            listed_files(folder / "farzi.safetensors"),
        )
        for name, value in tensors.items():
            found[name] = value(found[name]).contiguous()
        save_file(
            found, folder / "farzi.safetensors", metadata={"farzi": json.dumps({"files": files})}
        )
    return folder


@pytest.mark.parametrize(
    ("teacher", "config", "key"),
    [
        *[
            ({"model_type": kind}, {}, "model_type")
            for kind in (3, ["gpt2"], None, "no such", "t5", "clip", HOSTILE)
        ],
        *[({"n_embd": width}, {}, "n_embd") for width in ("x", 10**5, -1, 0, 2.5, [8], 10**30)],
        *[({"n_layer": layers}, {}, "n_layer") for layers in (10**6, "1", -(10**9))],
        *[({"n_head": heads}, {}, "n_head") for heads in (0, 3)],
        *[({"dtype": dtype}, {}, "dtype") for dtype in ("os", 5, ["float32"], "int8")],
        *[({"activation_function": name}, {}, "activation_function") for name in ("exec", 5)],
        ({"n_positions": 2}, {}, "wpe.weight"),
        *[
            ({}, {"teacher": teacher}, "teacher")
            for teacher in (None, {}, [1], 3, "gpt2", [["model_type", "gpt2"]])
        ],
        *[
            ({}, {"num_sequences": count}, "num_sequences")
            for count in (2**31 - 1, 0, -1, "x", None)
        ],
        ({}, {"num_sequences": 1, "sequence_length": 100_000}, "sequence_length=100,000"),
        ({}, {"num_sequences": 1, "sequence_length": 2000}, "does not read 2000 ids"),
        *[({}, {"seed": seed}, "seed") for seed in (-1, 2**64, "x", None)],
        *[({}, {"inputs": inputs}, "inputs") for inputs in ("soft", HOSTILE, ["drawn"])],
        ({}, {"inputs": "tokens"}, "input_ids"),
        ({}, {"labels": "own"}, "student_start"),
        ({}, {"labels": "shared"}, "student_start"),
        *[({}, {"storage": storage}, "teacher.transformer.wte.weight") for storage in ("coded4",)],
        *[({}, {"storage": storage}, "frequencies") for storage in ("exact", "int5")],
        ({}, {"storage": HOSTILE}, "storage"),
        ({}, {"vocab_size": 9}, "frequencies"),
        ({"vocab_size": 9}, {"vocab_size": 9}, "frequencies"),
        ({}, {"vocab_size": 10**8}, "teacher"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_show_names_what_is_wrong_with_a_teacher(teachers, tmp_path, teacher, config, key):
    line = refusal(
        "show",
        str(copied(teachers / "coded5-drawn", tmp_path / "summary", None, teacher, **config)),
    )
    assert str(tmp_path / "summary") in line
    assert key in line
    assert "--learner" not in line


WEIGHT = "teacher.transformer.wte.weight"


def inflating(content: bytes) -> Callable[[Tensor], Tensor]:
    """A coded tensor that becomes `content`."""
    return lambda _: torch.frombuffer(bytearray(zlib.compress(content, 9, -15)), dtype=torch.uint8)


def with_first(value: float) -> Callable[[Tensor], Tensor]:
    return lambda x: torch.cat([torch.full_like(x.flatten()[:1], value), x.flatten()[1:]]).view_as(
        x
    )


@pytest.mark.parametrize(
    ("storage", "tensors", "message"),
    [
        *[
            ("exact", {WEIGHT: with_first(value)}, "NaN or infinity")
            for value in (float("nan"), float("inf"))
        ],
        *[
            ("exact", {WEIGHT: lambda x, v=value: torch.full_like(x, v)}, "predicts NaN")
            for value in (1e30, -3e38)
        ],
        *[
            ("exact", {"frequencies": with_first(value)}, "frequencies")
            for value in (float("nan"), -1.0, 3e38, 2.0)
        ],
        *[
            ("exact", {"frequencies": lambda x, v=value: torch.full_like(x, v)}, "frequencies")
            for value in (0.0, 1e-45, 3e38)
        ],
        ("exact", {"frequencies": lambda x: x[:-1]}, "frequencies"),
        ("exact", {WEIGHT: lambda x: x.T}, "wte.weight"),
        ("coded5", {"frequencies": inflating(b"\xff" * 7)}, "frequencies"),
        ("coded5", {"frequencies": inflating(b"\0" * 8)}, "does not hold the 7 numbers"),
        *[
            ("coded5", {f"{WEIGHT}.scale": with_first(value)}, "NaN or infinity")
            for value in (float("nan"), float("inf"))
        ],
        *[
            ("coded5", {WEIGHT: inflating(b"\0" * count)}, "does not hold the 112 numbers")
            for count in (0, 111, 113, 10**8)
        ],
        ("coded5", {WEIGHT: inflating(b"\x80" * 112)}, "more than 5 bits"),
        ("coded5", {WEIGHT: lambda x: x[:-2]}, "wte.weight"),
        ("coded5", {WEIGHT: lambda x: x[None]}, "wte.weight"),
        ("coded5", {WEIGHT: lambda x: torch.cat([x, x])}, "wte.weight"),
        ("coded5", {WEIGHT: lambda x: 255 - x}, "wte.weight"),
    ],
)
def test_damaged_numbers_of_a_teacher_are_refused(teachers, tmp_path, storage, tensors, message):
    line = refusal(
        "show", str(copied(teachers / f"{storage}-drawn", tmp_path / "summary", tensors))
    )
    assert str(tmp_path / "summary" / "farzi.safetensors") in line
    assert message in line


def test_few_bytes_do_not_become_a_model_of_gigabytes(teachers, tmp_path):
    """Zeros are coded a thousand to one."""
    wide = {"teacher.transformer.wpe.weight": inflating(b"\0" * 1000)}
    folder = copied(teachers / "coded5-drawn", tmp_path / "summary", wide, {"n_positions": 10**7})
    assert re.search(r"bytes cannot hold 160,00\d,\d+ numbers", refusal("show", str(folder)))


@pytest.mark.parametrize(
    "more",
    [
        {"auto_map": {"AutoModelForCausalLM": "evil.Evil"}},
        {"_name_or_path": "/etc/passwd"},
        {"attn_implementation": "user/kernel"},
        {"quantization_config": {"quant_method": "evil"}},
        {"text_config": {"dtype": "os"}},
        {"n_inner": None, HOSTILE: "x"},
        {"rope_theta": {"path": "/etc/passwd"}},
    ],
    ids=str,
)
def test_what_is_no_plain_field_of_a_teacher_is_left_out(teachers, tmp_path, more):
    """It does not come back in what is saved or exported either."""
    folder = copied(teachers / "coded5-drawn", tmp_path / "summary", None, more)
    farzi, clean = (
        FarziData.from_pretrained(folder),
        FarziData.from_pretrained(teachers / "coded5-drawn"),
    )
    assert farzi.teacher.config.to_dict().items() >= clean.teacher.config.to_dict().items()
    farzi.save_pretrained(tmp_path / "again")
    main(["export", str(folder), str(tmp_path / "exported"), "--teacher"])
    for text in ("evil.Evil", "/etc/passwd", "user/kernel"):
        assert not any(text.encode() in path.read_bytes() for path in tmp_path.glob("[ae]*/*.json"))


def test_a_teacher_that_writes_only_what_is_never_drawn(teachers, tmp_path):
    certain = {
        "frequencies": lambda x: torch.cat([torch.zeros(1), torch.full((6,), 1 / 6)]),
        "teacher.transformer.ln_f.bias": lambda x: torch.full_like(x, 100),
        WEIGHT: lambda x: torch.cat([torch.full((1, 16), 100.0), torch.zeros(6, 16)]),
    }
    farzi = FarziData.from_pretrained(
        copied(teachers / "exact-written", tmp_path / "summary", certain)
    )
    rows = farzi.endless().rows(0, 50)
    assert rows.min() > 0
    assert len(rows.unique()) == 6


# -- what transformers says of a config ------------------------------------------------------------

ESCAPE = "\x1b[2J\u202e"
ODD = {
    "rope_type": {"rope_type": ESCAPE},
    "factor": {"rope_type": "linear", "factor": ESCAPE},
    "beta_fast": {"rope_type": "yarn", "factor": 2.0, "beta_fast": ESCAPE},
    "long_factor": {
        "rope_type": "longrope",
        "factor": 2.0,
        "long_factor": ESCAPE,
        "short_factor": ESCAPE,
    },
    "another key": {"rope_type": "linear", "factor": 2.0, ESCAPE: 1},
}
"""Values of `rope_parameters` that transformers warns of, and prints."""
KINDS = {
    "llama": {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    | dict.fromkeys(("num_attention_heads", "num_key_value_heads"), 1)
}


@pytest.fixture
def heard():
    """What the loggers of libraries write on the standard error, to which their handlers keep.
    Models that this process has built before are forgotten: they are not built, and warned of, again.
    """
    for built in (untrusted._built, teacher_form._shapes_of_teacher):
        built.cache_clear()
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    loggers = [logging.getLogger(name) for name in (None, "transformers")]
    for logger in loggers:
        logger.addHandler(handler)
    yield stream
    for logger in loggers:
        logger.removeHandler(handler)


def is_harmless(text: str) -> bool:
    """Bars go back to the start of their line."""
    return re.sub(r"[\t\r\n]", " ", text).isprintable()


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    "load", [FarziData.from_pretrained, lambda path: main(["show", str(path)])]
)
def test_what_is_said_of_a_carried_teacher_is_escaped(tmp_path, heard, capfd, odd, load):
    teacher = tiny_model("llama", len(WORDS))
    farzi = FarziData.from_teacher(teacher, sequence_length=4, num_sequences=2)
    farzi.save_pretrained(tmp_path / "own")
    folder = copied(tmp_path / "own", tmp_path / "summary", None, {"rope_parameters": ODD[odd]})
    with suppress(ValueError, SystemExit):
        load(folder)
    assert "\\x1b[2J\\u202e" in heard.getvalue()
    assert is_harmless(heard.getvalue())
    assert is_harmless("".join(capfd.readouterr()))


@pytest.mark.parametrize("odd", ODD)
def test_what_is_said_of_a_learner_is_escaped(summary, tmp_path, heard, capfd, odd):
    learner = {"model_type": "llama", **KINDS["llama"], "rope_parameters": ODD[odd]}
    change(summary / "recipe.yaml", learner=learner)
    with suppress(SystemExit):
        main(["train", str(summary), "--output_dir", str(tmp_path / "student"), "--steps", "1"])
    assert "\\x1b[2J\\u202e" in heard.getvalue()
    assert is_harmless(heard.getvalue())
    assert is_harmless("".join(capfd.readouterr()))


@pytest.mark.parametrize("kind", ["gemma2", "gemma3_text", "qwen3"])
def test_layer_types_that_are_none_are_refused_and_escaped(summary, tmp_path, heard, kind):
    learner = {"model_type": kind, **KINDS["llama"], "layer_types": [ESCAPE]}
    change(summary / "recipe.yaml", learner=learner)
    refusal("train", str(summary), "--output_dir", str(tmp_path / "student"))
    assert is_harmless(heard.getvalue())


def test_an_error_of_a_load_is_one_line_that_a_terminal_can_show(teachers, tmp_path):
    """Whoever calls from Python sees it as it is."""
    fields = {"activation_function": ESCAPE}
    folder = copied(teachers / "exact-drawn", tmp_path / "summary", None, fields)
    with pytest.raises(ValueError, match=r"x1b\[2J") as refused:
        FarziData.from_pretrained(folder)
    assert str(refused.value).isprintable()


def test_a_teacher_that_overflows_while_it_writes_is_one_line(teachers, tmp_path):
    """It labels the row that a load tries, but not what it writes itself."""

    def overflows(x: Tensor) -> Tensor:
        x = x.clone()
        x[4] = 3e38  # an entry of the vocabulary that the tried row has not
        return x

    tried = {"teacher.transformer.wte.weight": overflows}
    folder = copied(teachers / "exact-written", tmp_path / "summary", tried)
    line = refusal("train", str(folder), "--steps", "2", "--output_dir", str(tmp_path / "out"))
    assert line.startswith("farzi train: teacher of ")
    assert "the teacher that the summary carries predicts NaN" in line
    assert not list(tmp_path.glob("out/*.safetensors"))


def test_a_plot_with_a_name_that_no_file_can_have_is_left_out(summary, capsys):
    tensors = load_file(summary / "farzi.safetensors")
    files = [*listed_files(summary / "farzi.safetensors"), f"plots/{'a' * 300}.png"]
    metadata = {"farzi": json.dumps({"files": files})}
    save_file(tensors, summary / "farzi.safetensors", metadata=metadata)
    main(["show", str(summary)])
    assert "101.2" in capsys.readouterr().out
    assert not FarziData.from_pretrained(summary).results.plots
