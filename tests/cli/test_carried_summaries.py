"""The program `farzi` on a summary that carries its teacher, and what it exports of
all summaries.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from tiny_artefacts import INNER, WORDS, tiny, word_tokenizer
from tiny_models import tiny_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from farzi_hf.cli import main
from farzi_hf.summary import FarziData

LLAMA = {
    "model_type": "llama",
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 1,
    "intermediate_size": 8,
}


def carried(kind: str = "gpt2", vocabulary=None, **changes) -> FarziData:
    settings = {
        "sequence_length": 4,
        "num_sequences": 6,
        "storage": "coded5",
        "tokenizer": vocabulary,
        **changes,
    }
    farzi = FarziData.from_teacher(tiny_model(kind, len(WORDS)), **settings)
    farzi.config.inner = {**INNER, "steps": 2, "synthetic_batch_size": 2}
    return farzi


def saved(farzi: FarziData, folder: Path) -> str:
    farzi.save_pretrained(folder / "summary")
    return str(folder / "summary")


def rows_in(folder: Path):
    return load_dataset(str(folder), split="train", cache_dir=str(folder.parent / "cache"))


@pytest.mark.parametrize(
    ("kind", "vocabulary"), [("gpt2", word_tokenizer()), ("llama", None), ("sasrec", WORDS)]
)
def test_the_teacher_becomes_a_folder_of_transformers(kind, vocabulary, tmp_path, capsys):
    farzi = carried(kind, vocabulary)
    (tmp_path / "teacher").mkdir()  # an empty folder is welcome
    main(["export", saved(farzi, tmp_path), str(tmp_path / "teacher"), "--teacher"])
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "teacher")
    ids = torch.arange(1, 5)[None]
    torch.testing.assert_close(model(ids).logits, farzi.teacher(ids).logits)
    assert not any(path.name.startswith(".farzi") for path in tmp_path.iterdir())
    assert ("import farzi_hf.models" in capsys.readouterr().out) == (kind == "sasrec")
    if kind == "gpt2":
        assert model.config.use_cache  # generating is fast, as with any model
        assert (
            AutoTokenizer.from_pretrained(tmp_path / "teacher").get_vocab()
            == vocabulary.get_vocab()
        )
    if kind == "sasrec":
        assert json.loads((tmp_path / "teacher" / "vocabulary.json").read_text()) == WORDS


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_rows_of_a_teacher_are_those_of_the_stream(kind, tmp_path):
    farzi = carried(vocabulary=word_tokenizer())
    arguments = [
        "export",
        saved(farzi, tmp_path),
        str(tmp_path / "rows"),
        "--rows",
        "9",
        "--format",
        kind,
    ]
    main([*arguments, "--top_k", "3", "--seed", "5"])
    assert {path.name for path in (tmp_path / "rows").iterdir()} == {
        f"train.{kind}",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    rows = rows_in(tmp_path / "rows")
    assert rows.column_names == [
        "input_ids",
        "labels",
        "likeliest_ids",
        "likeliest_probabilities",
        "text",
    ]
    ids = torch.tensor(rows["input_ids"][:])
    assert torch.equal(ids, farzi.endless(5).rows(0, 9))
    top = farzi.teacher(ids).logits.softmax(-1).topk(3)
    assert torch.equal(torch.tensor(rows["likeliest_ids"][:]), top.indices)
    torch.testing.assert_close(torch.tensor(rows["likeliest_probabilities"][:]), top.values)
    assert rows["text"][0].split() == [WORDS[i] for i in ids[0]]


def test_labels_are_drawn_from_what_a_student_should_predict(tmp_path, monkeypatch):
    monkeypatch.setattr("farzi_hf.cli.export._ROWS", 700)  # several parts
    farzi = carried(inputs="tokens", num_sequences=2)
    main(["export", saved(farzi, tmp_path), str(tmp_path / "rows"), "--rows", "4000"])
    rows = rows_in(tmp_path / "rows")
    ids, labels = torch.tensor(rows["input_ids"][:]), torch.tensor(rows["labels"][:])
    assert torch.equal(
        ids.view(2000, 2, 4), farzi.input_ids.expand(2000, 2, 4).long()
    )  # stored rows, in turn
    assert torch.equal(labels[:, 0], ids[:, 0])
    expected = farzi.teacher(ids[:2]).logits.softmax(-1)[:, :-1]
    found = (
        torch.nn.functional.one_hot(labels.view(2000, 2, 4)[..., 1:], len(WORDS)).float().mean(0)
    )
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)


@pytest.mark.parametrize("form", [{}, {"inputs": "tokens", "labels": "own"}], ids=["shared", "own"])
def test_rows_of_a_fixed_summary(form, tmp_path):
    farzi = tiny(**form)
    main(["export", saved(farzi, tmp_path), str(tmp_path / "rows"), "--rows", "6"])
    rows = rows_in(tmp_path / "rows")
    ids, position = torch.tensor(rows["input_ids"][:]), farzi.decode(7)[1][2]
    assert ids.shape == (6, 5)
    assert "text" not in rows.column_names
    if form:
        assert torch.equal(ids, farzi.input_ids[[0, 1, 2, 3, 0, 1]].long())
        assert rows[1]["likeliest_ids"][2] == position["label_tokens"]
        assert len(rows[0]["likeliest_ids"]) == 5
    else:
        assert rows["labels"][:] == rows["input_ids"][:]
        assert rows[1]["likeliest_ids"][1] == position["tokens"]  # the next input
        assert len(rows[0]["likeliest_ids"]) == 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["taken", "--teacher"],
            r"OUT '.*taken' is not empty, a file or a link, or the working directory: choose",
        ),
        (["file", "--rows", "3"], r"OUT '.*file' is not empty, a file or a link"),
        (["new", "--rows", "0"], "--rows must be an integer of at least 1, got 0"),
        (
            ["new", "--rows", "2", "--top_k", "-1"],
            "--top_k must be an integer of at least 1, got -1",
        ),
        (["new", "--rows", "2", "--seed", "-1"], "--seed=-1 is not usable"),
        (["new", "--teacher"], "--teacher: .* has labels='shared' and no teacher; use --rows"),
        (["file/new", "--rows", "2"], "file"),
    ],
    ids=str,
)
def test_mistakes_write_nothing(arguments, message, tmp_path):
    summary = saved(tiny(), tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "mine").write_text("mine")
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit, match=f"farzi export: .*{message}"):
        main(["export", summary, str(tmp_path / arguments[0]), *arguments[1:]])
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "taken" / "mine").read_text() == "mine"


def test_the_folder_that_one_is_in_is_not_replaced(tmp_path, monkeypatch):
    summary, here = saved(tiny(), tmp_path), tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    for out in (".", str(here)):
        with pytest.raises(
            SystemExit,
            match=(
                f"farzi export: OUT '{out}' is not empty, a file or a link, or the working"
                " directory: choose a new or empty folder"
            ),
        ):
            main(["export", summary, out, "--rows", "3"])
    assert here.stat().st_nlink > 0
    assert not list(here.iterdir())


def test_an_interrupted_export_leaves_nothing(tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    summary = saved(carried(), tmp_path)
    monkeypatch.setattr("farzi_hf.data.vocabulary.Vocabulary.save", interrupted)
    with pytest.raises(SystemExit):
        main(["export", summary, str(tmp_path / "out"), "--rows", "3"])
    assert [path.name for path in tmp_path.iterdir()] == ["summary"]


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ("drawn", "drawn ids, any number of rows of 4"),
        ("written", "written ids, any number"),
        ("tokens", "fixed ids, 6 rows of 4"),
    ],
)
def test_show_says_what_the_summary_is(inputs, words, tmp_path, capsys):
    farzi = carried(vocabulary=word_tokenizer(), inputs=inputs)
    main(["show", saved(farzi, tmp_path), "--sequences", "2", "--positions", "3"])
    shown = capsys.readouterr().out
    numbers = sum(x.numel() for x in farzi.teacher.parameters())
    assert f"gpt2, {numbers:,} numbers: at most 5 bits a number" in shown
    assert words in shown
    assert "numbers per position" not in shown
    assert f"{farzi.nbytes:,}" in shown
    position = farzi.decode(4)[1][2]
    line = next(line for line in shown.splitlines() if line.startswith("| 1, 2"))
    assert line.split("|")[2].strip() == position["tokens"][0]
    assert f"{position['label_tokens'][0]} {position['label_probabilities'][0]:.2f}" in line


@pytest.mark.parametrize("inputs", ["drawn", "written", "tokens"])
def test_train_makes_a_student_of_another_architecture(inputs, tmp_path, capsys):
    summary = saved(carried(vocabulary=word_tokenizer(), inputs=inputs), tmp_path)
    main(
        [
            "train",
            summary,
            "--learner",
            json.dumps(LLAMA),
            "--output_dir",
            str(tmp_path / "student"),
        ]
    )
    assert "2 steps on" in capsys.readouterr().out
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "student").config.model_type == "llama"


def test_a_pushed_summary_teaches_as_before(hub, tmp_path):
    farzi = carried(vocabulary=word_tokenizer())
    main(["push", saved(farzi, tmp_path), "farzi-carried"])
    again = FarziData.from_pretrained("user/farzi-carried")
    assert all(torch.equal(again.tensors[name], x) for name, x in farzi.tensors.items())
    assert (
        again.as_hard_dataset(2)["input_ids"][:].tolist()
        == farzi.as_hard_dataset(2)["input_ids"][:].tolist()
    )
    main(["export", "user/farzi-carried", str(tmp_path / "teacher"), "--teacher"])
    ids = torch.arange(1, 5)[None]
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "teacher")
    torch.testing.assert_close(exported(ids).logits, farzi.teacher(ids).logits)
