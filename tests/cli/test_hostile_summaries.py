"""The program `farzi` on a summary that somebody else wrote: one line names the file and the key, and nothing moves the cursor."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tiny_artefacts import INNER, METRICS, RECIPE, WORDS, tiny, word_tokenizer

from farzi_hf.cli import main
from farzi_hf.report import markdown
from farzi_hf.summary import FarziData

HOSTILE = "a\x1b[2J\x07\x9b31m‮b\n| c\ud800"
"""It clears a screen, rings, turns red, writes backwards, breaks a line and a cell, and is no Unicode."""


@pytest.fixture
def summary(tmp_path) -> Path:
    inner = {**INNER, "steps": 2, "synthetic_batch_size": 2}
    tiny(inner=inner).save_pretrained(tmp_path / "summary", word_tokenizer(), METRICS, RECIPE)
    return tmp_path / "summary"


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


# -- farzi show ------------------------------------------------------------------------------------------------------


def test_show_and_errors_escape_what_a_terminal_obeys(tmp_path, capsys):
    tiny(inner=INNER).save_pretrained(tmp_path / "summary", WORDS, METRICS, RECIPE)
    (tmp_path / "summary" / "vocabulary.json").write_text(json.dumps([HOSTILE, "x" * 5000, *WORDS[2:]]))
    change(tmp_path / "summary" / "config.json", vocabulary_hash=None)
    hostile = {"dataset": HOSTILE, "table": [{"method": HOSTILE, HOSTILE: 1.0, "long": "y" * 5000}]}
    change(tmp_path / "summary" / "metrics.json", **hostile)
    change(tmp_path / "summary" / "recipe.yaml", learner={"model_type": HOSTILE})
    main(["show", str(tmp_path / "summary"), "--sequences", "4", "--top_k", "7"])
    lines = capsys.readouterr().out.splitlines()
    assert all(line.isprintable() for line in lines)
    assert max(map(len, lines)) < 1000
    shown = r"a\x1b[2J\x07\x9b31m\u202eb\n¦ c\ud800"
    for part in (f"distilled from        | {shown}", f"| {shown} ", f"with a learner        | {shown}", f"{shown} 0."):
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
        *[({"table": table}, "table") for table in (3, "text", [1], [[1]], {"a": 1}, [{}], [None], True)],
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


# -- farzi train -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "inner",
    [
        *[{"steps": steps} for steps in ("3", [3], 2.5, 0, -1, 10**12, True)],
        *[{"synthetic_batch_size": size} for size in (0, "x", -1, 2.0)],
        *[{"optimizer": optimizer} for optimizer in (["adam"], {}, 3, "lion")],
        *[{"lr": lr} for lr in (1e300, "x", -1, [1], True, 0)],
        *[{"eps": 1e300}, {"weight_decay": 1e200}, {"betas": 3}, {"betas": ["a", "b"]}, {"eps_root": "x"}],
        *[{"lr_scheduler_type": name} for name in (3, ["linear"], "polynomial", "reduce_lr_on_plateau")],
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
        *[(learner, "learner=") for learner in (3, "gpt2", [1], [["model_type", "gpt2"]], {"n_embd": 8})],
        *[({"model_type": kind}, "model_type") for kind in (3, ["gpt2"], None, "no such", "t5", "clip", HOSTILE)],
        *[({**GPT2, "n_embd": width}, "n_embd") for width in ("x", 10**5, -1, 0, 2.5, None, [8], 10**30)],
        *[({**GPT2, "n_layer": layers}, "n_layer") for layers in (10**6, "1", -(10**9))],
        ({**GPT2, "n_head": 0}, "n_head"),
        ({**GPT2, "n_head": -1}, "does not read 5 positions"),
        *[({**GPT2, "dtype": dtype}, "dtype") for dtype in ("os", "load", 5, ["float32"], "int8")],
        *[({**GPT2, "activation_function": name}, "activation_function") for name in ("exec", 5, "os.system")],
        ({**GPT2, "initializer_range": 1e300}, "initializer_range"),
        ({**GPT2, "resid_pdrop": 5.0}, "resid_pdrop"),
        ({**GPT2, "pad_token_id": 10**9}, "pad_token_id"),
        ({**GPT2, "n_positions": 2}, "does not read 5 positions"),
        ({"model_type": "llama", "num_hidden_layers": 10**7, "hidden_size": 8}, "num_hidden_layers"),
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
        {"id2label": 5}, {"num_labels": 10**9}, {"to_dict": 3}, {"auto_map": {"AutoConfig": "evil.Config"}}, {"torch_dtype": "os"},
        {"attn_implementation": "user/kernel"}, {"quantization_config": {"quant_method": "evil"}}, {"text_config": {"dtype": "os"}},
        {"_name_or_path": "/etc/passwd"}, {"n_inner": {"auto_map": 1}}, {HOSTILE: "x"},
    ],
    ids=str,
)  # fmt: skip
def test_train_leaves_out_what_is_no_plain_field_of_the_learner(summary, tmp_path, caplog, more):
    """The first one lasts; the others are only looked at."""
    from farzi_hf.data import vocabulary_of
    from farzi_hf.summary.store.untrusted import learner_config

    change(summary / "recipe.yaml", learner={**GPT2, **more})
    farzi = FarziData.from_pretrained(summary)
    found = learner_config(farzi.results.recipe["learner"], farzi.config, vocabulary_of(farzi.processing_class), "F")
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
        *[({"num_students": "x"}, "num_students"), ({"splits": 3}, "splits"), ({"baselines": [[1]]}, "baselines")],
        *[({"vocab_size": "x"}, "vocab_size"), ({"max_length": [1]}, "max_length"), ({"teacher": 5}, "teacher")],
    ],
    ids=str,
)
def test_evaluation_reads_no_data_that_a_recipe_chooses(summary, tmp_path, monkeypatch, recipe, key):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outside.csv").write_text("user,item,timestamp\n1,2,3\n")
    change(summary / "recipe.yaml", **{"dataset": "sample", **recipe})
    line = refusal("train", str(summary), "--evaluate", "--output_dir", str(tmp_path / "student"))
    assert "recipe.yaml: " + key in line
