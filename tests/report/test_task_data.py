"""Data that a run names: the task is recognised, the recipe names no folder, and a summary's own
tokenizer reads its data again.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import pytest
from datasets import DatasetDict

from farzi_hf.data import bpe_tokenizer
from farzi_hf.report import RunSettings, TaskData
from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.tasks import LanguageModeling, Recommendation

SENTENCES = [f"the {i} cat sat on mat number {i % 7}" for i in range(200)]
RATINGS = "user_id,item_id,ts\n" + "".join(
    f"u{u},i{(u + t) % 9},{t}\n" for u in range(20) for t in range(4)
)


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.jsonl").write_text(
        "\n".join(json.dumps({"n": i, "body": text}) for i, text in enumerate(SENTENCES))
    )
    (tmp_path / "inter.csv").write_text(RATINGS)
    (tmp_path / "ptb").mkdir()
    (tmp_path / "ptb" / "a.txt").write_text("\n".join(SENTENCES))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "task", "words"),
    [
        (
            "mine.jsonl",
            LanguageModeling,
            "200 rows of text, in column 'body'; 90/5/5 split by hash",
        ),
        ("ptb", LanguageModeling, "200 rows of text, a line each"),
        ("inter.csv", Recommendation, "80 interactions of 20 users with 9 items"),
    ],
)
def test_a_path_is_all_that_a_run_needs(folder, name, task, words, monkeypatch):
    data = RunSettings(dataset=str(folder / name)).load()
    assert data.task_class is task
    assert isinstance(data.task, task)
    assert data.description.startswith(words)
    assert data.splits(0).keys() == {"train", "validation", "test"}
    recipe = data.recipe([0])
    assert str(folder) not in json.dumps(recipe)
    assert recipe["dataset"] == name + "/" * (name == "ptb")  # ptb alone is Penn Treebank
    assert recipe["task"] == data.settings.task
    assert data.settings.data_dir == str(folder)
    again = RunSettings(**{**recipe, "data_dir": str(folder)}).load()
    assert again.identity(0) == data.identity(0)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(
        "farzi_hf.report.task_data.recognise", lambda *_, **__: pytest.fail("looked again")
    )
    assert RunSettings(**{**recipe, "dataset": f"./{name}"}).load().identity(0) == data.identity(0)


def test_known_data_sets_and_their_recipes_are_as_before():
    settings = RunSettings(dataset="sample")
    assert (settings.task, settings.vocab_size, settings.max_length) == ("text", 2000, None)
    assert settings.load().recipe([0]).keys() == {
        "dataset",
        "vocab_size",
        "max_length",
        "learner",
        "teacher",
    }
    recipe = RunSettings(dataset="ml-100k").load().recipe([0])
    assert recipe.keys() == {"dataset", "min_interactions", "learner", "teacher", "splits"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "images"}, "task='images' is unknown: give one of text, interactions"),
        (
            {"dataset": "inter.csv", "held_out": "all"},
            "held_out='all' is unknown: give one of users",
        ),
        ({"dataset": "no-such.csv"}, "no file, folder or pattern matches '.*no-such.csv'"),
        (
            {"dataset": "inter.csv", "held_out": "last_items", "splits": [0, 1]},
            r"splits=\[0, 1\], but held_out='last_items' has one split for all seeds",
        ),
        ({"text_column": "body", "user_column": "n"}, "text_column='body' is for text"),
        ({"licence": "Apache 2.0"}, r"licence 'Apache 2\.0': .*such as cc-by-4\.0, apache-2\.0"),
    ],
)
def test_what_cannot_be_meant_is_refused(folder, settings, message):
    with pytest.raises(ValueError, match=message):
        RunSettings(**{"dataset": "mine.jsonl", "data_dir": str(folder), **settings})


OF_TASKS = {
    "mine.jsonl": {
        "min_interactions": 5,
        "min_item_interactions": 2,
        "held_out": "users",
        "time_column": "time",
        "splits": [1],
    },
    "inter.csv": {
        "vocab_size": 500,
        "max_length": 20,
        "rows": "line",
        "tokenizer": "gpt2",
    },
}


@pytest.mark.parametrize(
    ("name", "setting"),
    [(name, setting) for name, settings in OF_TASKS.items() for setting in settings],
)
def test_settings_of_the_other_task_are_refused(folder, name, setting):
    """They had no effect, and nothing said so."""
    value = OF_TASKS[name][setting]
    message = rf"{setting}=.* is for (text|interactions), and '{name}' is read as .*: leave it out"
    with pytest.raises(ValueError, match=message):
        RunSettings(dataset=name, data_dir=str(folder), **{setting: value})


def test_rows_longer_than_max_length_become_pieces(folder):
    whole = RunSettings(dataset=str(folder / "mine.jsonl"), vocab_size=256).load().splits(0)
    cut = (
        RunSettings(dataset=str(folder / "mine.jsonl"), vocab_size=256, max_length=8)
        .load()
        .splits(0)
    )
    for part, rows in whole.items():
        pairs = [pair for row in rows["input_ids"] for pair in pairwise(row)]
        assert [pair for row in cut[part]["input_ids"] for pair in pairwise(row)] == pairs
        assert max(map(len, cut[part]["input_ids"])) == 8


@pytest.mark.parametrize(
    ("held_out", "sizes"), [(None, (16, 2, 2)), ("users", (16, 2, 2)), ("last_items", (20, 20, 20))]
)
def test_interactions_are_split_as_the_settings_say(folder, held_out, sizes):
    data = RunSettings(
        dataset=str(folder / "inter.csv"), held_out=held_out, min_item_interactions=2
    ).load()
    assert tuple(map(len, data.splits(0).values())) == sizes
    assert data.task.split_label == (
        "the last item of each user" if held_out == "last_items" else "users 80 / 10 / 10 %"
    )
    files = folder / "parts"
    files.mkdir()
    for name in ("train", "valid", "test"):
        (files / f"{name}.csv").write_text(RATINGS.replace("u1,", f"{name},"))
    own = RunSettings(dataset=str(files)).load()
    assert own.task.split_label == "the data set's own train, validation and test"
    assert len(own.splits(0)["test"]) == 20
    with pytest.raises(ValueError, match=r"splits=\[0, 1\], but .* has splits of its own"):
        RunSettings(dataset=str(files), splits=[0, 1]).load().splits(0)


# -- the data of a summary -------------------------------------------------------------------------


def summary_of(data: TaskData, **recipe) -> FarziData:
    names, folder = data.task.processing_class, Path(data.settings.data_dir, "summary")
    FarziData(FarziDataConfig(2, 4, 3, len(names))).save_pretrained(
        folder, names, recipe={**data.recipe([0]), **recipe}
    )
    return FarziData.from_pretrained(folder)


@pytest.mark.parametrize("name", ["mine.jsonl", "inter.csv", "ptb"])
def test_the_data_of_a_summary_have_its_vocabulary(folder, name, monkeypatch):
    data = RunSettings(dataset=str(folder / name)).load()
    farzi = summary_of(data)
    monkeypatch.setattr("farzi_hf.data.own._made", lambda *_: pytest.fail("another tokenizer"))
    found = TaskData.of_summary(farzi, str(folder))
    assert found.fingerprint(0) == data.fingerprint(0)
    assert asdict(found.settings) == asdict(data.settings)


def test_chats_of_a_summary_need_the_tokenizer_with_the_template(folder, monkeypatch):
    chats = [{"messages": [{"role": "user", "content": text}]} for text in SENTENCES]
    (folder / "chats.jsonl").write_text("\n".join(map(json.dumps, chats)))
    tokenizer = bpe_tokenizer(SENTENCES, 300)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}{% endfor %}"
    )
    tokenizer.save_pretrained(folder / "tokenizer")
    monkeypatch.chdir(folder)
    data = RunSettings(dataset="chats.jsonl", tokenizer="tokenizer").load()
    assert data.settings.tokenizer == str(
        folder / "tokenizer"
    )  # also for a second run, from another folder
    farzi = summary_of(data)
    with pytest.raises(ValueError, match=r"holds chats.*give that of a chat model"):
        TaskData.of_summary(farzi, str(folder))
    found = TaskData.of_summary(farzi, str(folder), tokenizer="tokenizer")
    assert found.fingerprint(0) == data.fingerprint(0)


def test_a_strangers_recipe_chooses_neither_tokenizer_nor_files(folder):
    text = RunSettings(dataset=str(folder / "mine.jsonl")).load()
    farzi = summary_of(text, tokenizer="some/repository")
    assert TaskData.of_summary(farzi, str(folder)).task.processing_class is farzi.processing_class
    for dataset in ("../mine.jsonl", "..", "../", "//", ".", "", "me/mine", 5):
        with pytest.raises(ValueError, match=r"recipe.yaml: dataset=.* chooses no files"):
            TaskData.of_summary(summary_of(text, dataset=dataset), str(folder))
    with pytest.raises(ValueError, match=r"no file, folder or pattern matches .*no-such.jsonl"):
        TaskData.of_summary(summary_of(text, dataset="no-such.jsonl"), str(folder))
    other = bpe_tokenizer(SENTENCES, 300)
    other.save_pretrained(folder / "other")
    with pytest.raises(ValueError, match="vocabulary"):
        TaskData.of_summary(farzi, str(folder), tokenizer=str(folder / "other"))
    assert isinstance(text.splits(0), DatasetDict)


# -- licences --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset", "licence", "message"),
    [
        ("ptb", None, r"show_rows=True with licence='other'"),
        ("ml-100k", None, r"show_rows=True with licence='other'"),
        ("inter.csv", None, r"show_rows=True with licence=None.*such as cc-by-4.0"),
        ("inter.csv", "proprietary", r"show_rows=True with licence='proprietary'"),
        ("ptb", "mit", r"licence='mit': that of ptb is 'other'; leave it out"),
    ],
)
def test_rows_are_not_shown_where_no_licence_allows_it(folder, dataset, licence, message):
    place = {"data_dir": str(folder)} if dataset == "inter.csv" else {}
    with pytest.raises(ValueError, match=message):
        RunSettings(dataset=dataset, licence=licence, show_rows=True, **place)


def test_a_licence_belongs_to_a_run_and_not_to_what_a_summary_is_made_of(folder):
    assert RunSettings(dataset="sample", show_rows=True).licence == "apache-2.0"
    assert RunSettings(dataset="ptb").load().of_the_run == {}
    given = {"licence": "odbl", "language": "de", "show_rows": True}
    data = RunSettings(dataset=str(folder / "inter.csv"), **given).load()
    given["data_dir"] = str(folder)
    assert data.of_the_run == given
    assert not given.keys() & data.recipe([0]).keys()
