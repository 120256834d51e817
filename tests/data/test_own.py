"""One's own data: which files a path means, which columns hold what, how text is split and
tokenized, and hostile files.
"""

from __future__ import annotations

import bz2
import copy
import csv
import gzip
import json
import os
import re
import tracemalloc
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet
import pytest
from datasets import Dataset, DatasetDict
from fuzzing import fuzzed
from hub_server import Repository
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import PreTrainedTokenizerFast

from farzi_hf.cli.front_door import TRIALS
from farzi_hf.data import (
    DataUnavailableError,
    TextData,
    check_sequences,
    load_interactions,
    load_text,
    recognise,
    tokenize,
)
from farzi_hf.data import own as module
from farzi_hf.data.files import files_of, split_named, stream_of
from farzi_hf.report.tables import save_json
from farzi_hf.report.trial_folder import KEPT
from farzi_hf.summary.store.folder import TENSORS

SENTENCES = [f"the {i} cat sat on mat number {i % 7}" for i in range(300)]
RATINGS = [(u, i, 1000 * u + i) for u in range(12) for i in range(4)]


def write(path: Path, rows: list[dict]) -> Path:
    """A file of the kind that its name says."""
    if path.suffix in (".csv", ".tsv"):
        Dataset.from_list(rows).to_csv(path, sep="\t" if path.suffix == ".tsv" else ",")
    elif path.suffix == ".parquet":
        Dataset.from_list(rows).to_parquet(path)
    else:
        path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


def texts(data: DatasetDict) -> dict[str, list[str]]:
    return {part: list(rows["text"]) for part, rows in data.items()}


def everything(data: DatasetDict) -> list[str]:
    return [text for its in texts(data).values() for text in its]


def lines(path: Path, rows: list[str] = SENTENCES) -> Path:
    path.write_text("\n".join(rows), encoding="utf-8")
    return path


# -- text: files and columns -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_a_column_of_text_of_a_file(tmp_path, ending):
    rows = [{"id": f"a{i}", "body": text, "n": i} for i, text in enumerate(SENTENCES)]
    path = write(tmp_path / f"mine.{ending}", rows)
    assert recognise(path) == "text"
    data = load_text(path)
    assert isinstance(data, TextData)
    assert data.column == "body"
    assert sorted(everything(data)) == sorted(SENTENCES)
    sizes = " / ".join(str(len(data[part])) for part in data)
    assert data.description.startswith(
        f"300 rows of text, in column 'body'; 90/5/5 split by hash ({sizes}); "
    )
    row = data["train"][0]
    assert row.keys() == {"text", "input_ids"}
    assert data.tokenizer.decode(row["input_ids"], skip_special_tokens=True) == row["text"]
    assert (row["input_ids"][0], row["input_ids"][-1]) == (
        data.tokenizer.bos_token_id,
        data.tokenizer.eos_token_id,
    )


@pytest.mark.parametrize(
    ("name", "opened"),
    [
        ("a.txt", open),
        ("a.md", open),
        ("notes", open),
        ("a.txt.gz", gzip.open),
        ("a.txt.bz2", bz2.open),
    ],
)
def test_plain_text_has_a_row_per_line(tmp_path, name, opened):
    with opened(tmp_path / name, "wt", encoding="utf-8-sig") as file:
        file.write("\n\n".join(SENTENCES) + "\n  \n")
    data = load_text(tmp_path / name)
    assert recognise(tmp_path / name) == "text"
    assert sorted(everything(data)) == sorted(SENTENCES)
    assert data.column is None
    assert data.description.startswith("300 rows of text, a line each; ")


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.csv"])
def test_text_in_utf_16(tmp_path, name):
    path = tmp_path / name
    (
        write(path, [{"text": f"é {text}"} for text in SENTENCES])
        if name != "a.txt"
        else lines(path, [f"é {x}" for x in SENTENCES])
    )
    path.write_text(path.read_text("utf-8"), "utf-16")
    assert recognise(path) == "text"
    assert sorted(everything(load_text(path))) == sorted(f"é {text}" for text in SENTENCES)


@pytest.mark.slow
def test_cells_of_any_length_keep_their_columns(tmp_path):
    """Also where the header's first rows are megabytes, or a row ends early."""
    with (tmp_path / "long.csv").open("w", newline="") as file:
        csv.writer(file).writerows(
            [
                ("id", "abstract", "text"),
                *((i, f"a {i} " + "word " * 1200, f"b {i} " + "word " * 1200) for i in range(120)),
            ]
        )
    for column in (None, "text"):
        assert load_text(tmp_path / "long.csv", column, vocab_size=256).column == "text"
    rows = [f"{i},title,{text}" for i, text in enumerate(SENTENCES)]
    data = load_text(
        lines(tmp_path / "short.csv", ["id,title,text", *rows[:9], "7", *rows[9:], "8,title"])
    )
    assert sorted(everything(data)) == sorted(SENTENCES)
    huge = [f"{i} " + "long words " * 13_000 for i in range(3)]
    path = lines(
        tmp_path / "huge.csv", ["id,text", *(f"{i},{text}" for i, text in enumerate(huge))]
    )
    assert recognise(path) == "text"
    assert {text.split()[0] for text in everything(load_text(path, vocab_size=256))} == {
        "0",
        "1",
        "2",
    }


def test_cells_stay_as_they_are_written(tmp_path):
    """Whatever type the first rows seem to have."""
    rows = ["007", "NA", "None", "1.50", *SENTENCES]
    path = lines(tmp_path / "a.tsv", ["text\tnote", *(f"{row}\t" for row in rows)])
    assert sorted(everything(load_text(path))) == sorted(rows)


def test_a_file_of_json_without_the_column_of_the_others_is_refused(tmp_path):
    """It was left out without a word."""
    write(tmp_path / "a.jsonl", [{"text": text} for text in SENTENCES])
    write(tmp_path / "b.jsonl", [{"body": text} for text in SENTENCES[:20]])
    with pytest.raises(
        ValueError,
        match=r"^'.*': no row of b\.jsonl has 'text': leave that file out, or give it this column$",
    ):
        load_text(tmp_path)
    (tmp_path / "a.jsonl").rename(tmp_path / "train.jsonl")
    (tmp_path / "b.jsonl").rename(tmp_path / "test.jsonl")
    with pytest.raises(ValueError, match=r"no row of (test|train)\.jsonl has '(text|body)'"):
        load_text(tmp_path)


def test_a_field_of_json_may_begin_late_and_have_several_types(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "\n".join(json.dumps({"text": text}) for text in SENTENCES[:100]) + "\n\n"
    )
    write(
        tmp_path / "b.jsonl",
        [{"x": i if i % 2 else str(i), "text": text} for i, text in enumerate(SENTENCES[100:200])],
    )
    write(
        tmp_path / "c.jsonl",
        [
            {"id": 1},
            {"text": None},
            *({"text": text} for text in SENTENCES[200:]),
            {"text": "half \ud800"},
        ],
    )
    expected = sorted([*SENTENCES, "half ?"])
    assert sorted(everything(load_text(tmp_path))) == expected
    assert sorted(everything(load_text(tmp_path, "text"))) == expected
    (tmp_path / "a.json").write_text(
        json.dumps([{"x": 1}, *({"text": text} for text in SENTENCES)], indent=1)
    )
    assert sorted(everything(load_text(tmp_path / "a.json"))) == sorted(SENTENCES)


def test_wrapped_lines_are_paragraphs(tmp_path):
    words = " ".join(SENTENCES).split()
    paragraphs = []
    for start in range(0, len(words), 60):  # as `fmt` fills lines of 50
        wrapped = [""]
        for word in words[start : start + 60]:
            wrapped = wrapped if len(wrapped[-1]) + len(word) < 50 else [*wrapped, ""]
            wrapped[-1] = f"{wrapped[-1]} {word}".strip()
        paragraphs.append("\n".join(wrapped))
    path = tmp_path / "book.txt"
    path.write_text("\n\n\n".join(paragraphs), encoding="utf-8")
    data = load_text(path)
    assert sorted(everything(data)) == sorted(paragraphs)
    assert "a paragraph each" in data.description
    assert len(load_text(path, rows="line")["train"]) > 3 * len(data["train"])
    with pytest.raises(ValueError, match="rows='page' is unknown: give line or paragraph"):
        load_text(path, rows="page")
    path.write_text("\n \t\n".join(paragraphs), encoding="utf-8")  # a line of blanks is blank too
    assert sorted(everything(load_text(path))) == sorted(paragraphs)
    path.write_text(
        "\n\n".join("\n".join(SENTENCES[i : i + 4]) for i in range(0, 300, 4)), encoding="utf-8"
    )  # verses
    assert "a line each" in load_text(path).description


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"title": "a b", "text": "c"}, "text"),
        ({"label": 3, "review": "x"}, "review"),
        ({"id": "a1", "body": "one two three four"}, "body"),
        ({"prompt": "a b c d e", "messages": [{"role": "user", "content": "hello"}]}, "messages"),
        ({"question": "one two three four", "answer": "one two three four"}, None),
        ({"a": 1, "b": 2.5}, None),
        ({"id": "x", "url": "y"}, None),
        ({"input": "one two three four", "output": "one two three four"}, None),
    ],
)
def test_the_column_that_can_only_be_the_text(tmp_path, columns, expected):
    path = write(tmp_path / "mine.jsonl", [columns] * 5)
    if expected is None:
        names = ", ".join(columns)
        for read in (recognise, load_text):
            with pytest.raises(
                ValueError,
                match=f"mine.jsonl has columns {names}, and (none that must|several hold text)"
                ".* text_column, or",
            ) as caught:
                read(path)
            assert "user_column" in str(caught.value)
        assert recognise(path, text_column="a") == "text"
    else:
        assert recognise(path) == "text"
        assert (
            module._text_column({name: [value] for name, value in columns.items()}, path)
            == expected
        )
    with pytest.raises(
        ValueError, match=r"mine.jsonl has columns .*, and no 'other': name yours with text_column"
    ):
        load_text(path, "other")


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_prompts_and_completions_are_one_text(tmp_path, ending, caplog):
    rows = [
        {"id": i, "prompt": f"Say {i}.", "completion": text} for i, text in enumerate(SENTENCES)
    ]
    path = tmp_path / f"pairs.{ending}"
    if ending == "jsonl":
        write(path, [*rows, {"id": -1, "prompt": "Say it.", "completion": None}])
    else:
        getattr(Dataset.from_list(rows), f"to_{ending}")(path)
    assert recognise(path) == "text"
    data = load_text(path)
    assert set(everything(data)) == {f"{row['prompt']}\n{row['completion']}" for row in rows}
    assert data.column is None  # a run that reads them again finds them again
    assert "of 'prompt' and 'completion'" in data.description
    assert ("1 of" in caplog.text) == (ending == "jsonl")
    assert set(everything(load_text(path, "completion"))) == set(SENTENCES)


def test_prompts_and_completions_are_one_chat(tmp_path, tokenizer):
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }};{% endfor %}"
    )
    rows = [
        {
            "prompt": [{"role": "user", "content": text}],
            "completion": [{"role": "assistant", "content": "yes"}],
        }
        for text in SENTENCES
    ]
    path = write(tmp_path / "pairs.jsonl", rows)
    found = load_text(path, tokenizer=tokenizer)
    assert set(everything(found)) == {f"user: {text};assistant: yes;" for text in SENTENCES}
    path = write(tmp_path / "mixed.jsonl", [{"prompt": "a", "completion": ["b"]}] * 5)
    with pytest.raises(
        ValueError, match=r"row 0 .* holds neither text nor a chat, but \['a', \['b"
    ):
        load_text(path)


@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_tools_of_a_chat_go_through_the_template(tmp_path, tokenizer, ending):
    """They were left out without a word. Parquet fills in keys that only other rows have."""
    rows = [
        {
            "messages": [{"role": "user", "content": text}],
            "tools": [{"name": "add", ("a" if i % 2 else "b"): 1}],
        }
        for i, text in enumerate(SENTENCES)
    ]
    path = tmp_path / f"chat.{ending}"
    if ending == "parquet":
        Dataset.from_list(rows).to_parquet(path)
    else:
        write(path, rows)
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = "{{ tools | tojson }} {{ messages[0]['content'] }}"
    found = set(everything(load_text(path, tokenizer=tokenizer)))
    assert found == {f"{json.dumps(row['tools'])} {row['messages'][0]['content']}" for row in rows}


def test_chats_go_through_the_template(tmp_path, tokenizer):
    rows = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "yes"}]}
        for text in SENTENCES
    ]
    path = write(tmp_path / "chat.jsonl", rows)
    for other in (None, tokenizer):
        with pytest.raises(
            ValueError, match=r"column 'messages' holds chats.* has none: give that of a chat model"
        ):
            load_text(path, tokenizer=other)
    tokenizer = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer,
        eos_token="</s>",
        bos_token="<s>",
        unk_token="<unk>",
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}"
    )
    data = load_text(path, tokenizer=tokenizer)
    expected = {f"user: {text}\nassistant: yes" for text in SENTENCES}
    assert set(everything(data)) == expected
    assert data.column == "messages"
    tokenizer.chat_template = (
        "{{ bos_token }}" + tokenizer.chat_template + "{{ eos_token }}\n"
    )  # there once, as of any text
    again = load_text(path, tokenizer=tokenizer)
    assert [row["input_ids"] for row in again["train"]] == [
        row["input_ids"] for row in data["train"]
    ]
    tokenizer.chat_template = (
        "{% if messages[0]['content'][4] == '7' %}{{ raise_exception('No 7') }}{% endif %}text"
    )
    with pytest.raises(
        ValueError,
        match=(
            r"chat.jsonl: row 7 \(counted from 0\) of column 'messages' .* refuses \(No 7\): mend"
        ),
    ):
        load_text(path, tokenizer=tokenizer)


@pytest.mark.parametrize("value", [{"a": 1}, ["a", "b"]], ids=str)
@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_a_column_of_other_values_is_refused_with_its_row(tmp_path, name, value):
    path = write(
        tmp_path / name,
        [{"text": text, "meta": None if i < 2 else value} for i, text in enumerate(SENTENCES)],
    )
    assert len(everything(load_text(path))) == 300
    with pytest.raises(
        ValueError,
        match=(
            r"row 2 \(counted from 0\) of column 'meta' holds neither text nor a chat.*text_column"
        ),
    ):
        load_text(path, "meta")


# -- text: splits ----------------------------------------------------------------------------------


def test_the_split_is_by_hash_equal_rows_are_together_and_growth_moves_none(tmp_path):
    rows = [text for text in SENTENCES for _ in range(3)]
    first = load_text(lines(tmp_path / "a.txt", rows))
    parts = {part: set(its) for part, its in texts(first).items()}
    assert sum(map(len, parts.values())) == 300
    assert min(len(parts["validation"]), len(parts["test"])) > 5
    assert len(first["test"]) == len(parts["test"])
    assert len(first["train"]) == 3 * len(parts["train"])
    twice = 2 * (len(parts["validation"]) + len(parts["test"]))
    assert f"), {twice} duplicates left out of validation and test; " in first.description
    more = load_text(
        lines(tmp_path / "b.txt", [*SENTENCES, *(f"another row {i}" for i in range(300))])
    )
    assert all(parts[part] <= set(its) for part, its in texts(more).items())


def test_own_splits_stay_without_what_train_holds(tmp_path):
    for name, rows in (
        ("train", SENTENCES[:200]),
        ("valid", SENTENCES[190:230]),
        ("test", [*SENTENCES[230:], *SENTENCES[230:]]),
    ):
        lines(tmp_path / f"my.{name}.txt", rows)
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "LICENSE.md").write_text("no")
    expected = {"train": SENTENCES[:200], "validation": SENTENCES[200:230], "test": SENTENCES[230:]}
    for source in (tmp_path, f"{tmp_path}/*.txt"):
        data = load_text(source)
        assert texts(data) == expected
        assert (
            "; its own splits (200 / 30 / 70), 80 duplicates left out of validation and test; "
            in data.description
        )
    (tmp_path / "my.valid.txt").unlink()
    data = load_text(tmp_path)
    assert texts(data)["test"] == expected["test"]
    assert set(texts(data)["validation"]) | set(texts(data)["train"]) == set(expected["train"])
    assert "its own splits, validation split off by hash (" in data.description
    lines(tmp_path / "my.test.txt", SENTENCES[:20])
    with pytest.raises(ValueError, match="its split test has no row that is not in train too"):
        load_text(tmp_path)


@pytest.mark.parametrize("few", [1, 2, 3, 5, 40])
def test_few_rows_are_split_with_a_warning_or_refused(tmp_path, few, caplog):
    path = lines(tmp_path / "few.txt", SENTENCES[:few] * 2)
    if few < 3:
        with pytest.raises(
            ValueError, match=rf"few.txt holds {few} different rows of text .*give at least 3"
        ):
            load_text(path)
        return
    data = load_text(path)
    parts = {part: set(its) for part, its in texts(data).items()}
    assert all(parts.values())
    assert sum(map(len, parts.values())) == few
    assert f"few.txt holds only {few} different rows of text" in caplog.text


# -- text: tokenizers ------------------------------------------------------------------------------


def test_the_tokenizer_fits_the_text_or_is_the_one_given(tmp_path, tokenizer):
    path = lines(tmp_path / "a.txt")
    data = load_text(path)
    assert 300 < len(data.tokenizer) < 500  # of 8 kB
    assert len(load_text(path, vocab_size=270).tokenizer) == 274
    words = load_text(
        lines(tmp_path / "words.txt", [f"{text} <unk>" for text in SENTENCES])
    ).tokenizer
    assert {"cat", "mat", "299"} < words.get_vocab().keys() | {"299"}
    assert words("cat <unk>")["input_ids"][2] == words.unk_token_id
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    for same in (tokenizer, str(tmp_path / "tokenizer"), tmp_path / "tokenizer"):
        ids = load_text(path, tokenizer=same)["train"]["input_ids"]
        assert ids == tokenizer(texts(data)["train"])["input_ids"]
    with pytest.raises(
        DataUnavailableError,
        match="tokenizer='no/such' is neither a folder nor a repository with a tokenizer",
    ):
        load_text(path, tokenizer="no/such")


def test_a_tokenizer_that_adds_no_ends_gets_them(tokenizer):
    bare = type(tokenizer)(
        tokenizer_object=tokenizer.backend_tokenizer, eos_token="</s>", unk_token="<unk>"
    )
    bare.backend_tokenizer.post_processor = None
    rows = tokenize(DatasetDict(train=Dataset.from_dict({"text": ["a b", "c"]})), bare)["train"][
        "input_ids"
    ]
    assert rows == [[*bare("a b")["input_ids"], 3], [*bare("c")["input_ids"], 3]]
    assert [len(row) for row in rows] == [3, 2]


def test_rows_without_two_ids_are_left_out(tmp_path):
    """Nothing can be predicted of them."""
    words = {"<unk>": 0, **{f"w{i}": i + 1 for i in range(50)}}
    backend = Tokenizer(WordLevel(words, unk_token="<unk>"))
    backend.pre_tokenizer = WhitespaceSplit()
    bare = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")
    for part in ("train", "valid", "test"):
        lines(
            tmp_path / f"{part}.txt",
            [f"{part}", *(f"{part} w{i} w{i * 7 % 50}" for i in range(20))],
        )
    data = load_text(tmp_path, tokenizer=bare)
    for rows in data.values():
        check_sequences(rows, len(bare))
        assert len(rows) == 20
    assert data.description.startswith(
        "60 rows of text, a line each; its own splits (20 / 20 / 20); "
    )
    assert len(everything(load_text(tmp_path))) == 63


# -- text: the Hub ---------------------------------------------------------------------------------


def test_a_data_set_of_the_hub_is_streamed_up_to_a_limit(hub, monkeypatch, caplog):
    rows = [{"id": i, "sentence": text} for i, text in enumerate(SENTENCES)]
    repository = hub.repositories.setdefault("me/mine", Repository())
    files = {"train.jsonl": rows[:200], "test.jsonl": rows[200:]}
    repository.commit(
        "main", {name: "\n".join(map(json.dumps, part)).encode() for name, part in files.items()}
    )
    assert recognise("me/mine") == "text"
    data = load_text("me/mine")
    assert set(texts(data)["test"]) == set(SENTENCES[200:])
    assert data.column == "sentence"
    alone = load_text("me/mine", split="test")
    assert set(everything(alone)) == set(SENTENCES[200:])
    monkeypatch.setattr(module, "READ_BYTES", 500)
    assert 10 < len(everything(load_text("me/mine", split="test"))) < 20
    assert "me/mine: only the first 0 MB of text are read" in caplog.text
    with pytest.raises(DataUnavailableError, match=r"'me/other' is neither a file nor on the Hub"):
        load_text("me/other")


def test_a_missing_spreadsheet_is_not_looked_for_on_the_hub(monkeypatch):
    """Nobody has a data set of that name, and five retries take half a minute."""
    monkeypatch.setattr("farzi_hf.data.files.load_dataset", None)  # calling it fails
    remedy = r"^no file 'orders.xlsx'; .*\.xlsx is a spreadsheet: save its sheet as .csv$"
    with pytest.raises(ValueError, match=remedy):
        load_interactions("orders.xlsx")
    with pytest.raises(ValueError, match=remedy):
        recognise("orders.xlsx")


def test_a_missing_file_is_compared_with_its_neighbours(tmp_path):
    (tmp_path / "orders.csv").touch()
    (tmp_path / ".orderz.csv").touch()
    missing = re.escape(str(tmp_path / "order.csv"))
    with pytest.raises(ValueError, match=f"matches '{missing}': did you mean orders.csv\\?$"):
        load_interactions(tmp_path / "order.csv")


# -- interactions ----------------------------------------------------------------------------------

USUAL = [
    ("user_id", "item_id", "ts"),
    ("userId", "movieId", "timestamp"),
    ("reviewerID", "asin", "unixReviewTime"),
    ("uid", "iid", "time"),
    ("user_id:token", "item_id:token", "timestamp:float"),
    ("User", "Parent ASIN", "date"),
    ("customer_id", "product_id", None),
]


@pytest.mark.parametrize("names", USUAL)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet", "a.inter"])
def test_columns_with_usual_names(tmp_path, names, name):
    rows = [
        dict(zip(("rating", *(n for n in names if n)), (5, *row), strict=False)) for row in RATINGS
    ]
    path = tmp_path / name
    if name == "a.inter":
        path.write_text(
            "\n".join(
                "\t".join(map(str, row))
                for row in (rows[0].keys(), *(row.values() for row in rows))
            )
        )
    else:
        write(path, rows)
    assert recognise(path) == "interactions"
    found = load_interactions(path)
    assert [sequence.tolist() for sequence in found.sequences] == [[1, 2, 3, 4]] * 12
    times = repr(names[2]) if names[2] else "times: the order of the rows"
    assert (
        found.description
        == f"48 interactions of 12 users with 4 items (columns {names[0]!r}, {names[1]!r}, {times})"
    )


def test_interactions_of_the_hub(hub):
    repository = hub.repositories.setdefault("me/clicks", Repository())
    rows = [json.dumps({"user_id": f"00{u}", "item_id": f"0{i}", "ts": t}) for u, i, t in RATINGS]
    repository.commit(
        "main",
        {"train.jsonl": "\n".join(rows[:24]).encode(), "test.jsonl": "\n".join(rows[24:]).encode()},
    )
    repository.commit("other", {"train.jsonl": "\n".join(rows).encode()})
    assert recognise("me/clicks") == "interactions"
    assert [
        len(load_interactions("me/clicks", **given).sequences)
        for given in ({}, {"split": "test"}, {"revision": "other"})
    ] == [6, 6, 12]
    found = load_interactions("me/clicks")
    assert found.item_ids == ["00", "01", "02", "03"]


def test_columns_that_are_named(tmp_path):
    rows = [
        {"who": u, "what": i, "when": -t, "user": 1, "item": 1, "note": "some words of text"}
        for u, i, t in RATINGS
    ]
    path = write(tmp_path / "a.csv", rows)
    given = {"user_column": "who", "item_column": "what"}
    assert recognise(path, **given) == "interactions"
    assert recognise(path, text_column="note") == "text"
    with pytest.raises(
        ValueError,
        match="text_column='note' is for text, but 'who' for interactions: give one of them",
    ):
        recognise(path, text_column="note", **given)
    assert [s.tolist() for s in load_interactions(path, **given).sequences] == [[1, 2, 3, 4]] * 12
    assert load_interactions(path, **given, time_column="when").sequences[0].tolist() == [
        4,
        3,
        2,
        1,
    ]
    with pytest.raises(
        ValueError,
        match=r"a.csv has columns .*: 'Who' must be there exactly once; name yours with user",
    ):
        load_interactions(path, user_column="Who")


@pytest.mark.parametrize("mark", ["\t", ",", ";"])
def test_ratings_without_a_header_and_files_of_a_folder(tmp_path, mark):
    halves = RATINGS[:30], RATINGS[30:]
    for name, rows in zip(("part-0.data", "part-1.data"), halves, strict=True):
        (tmp_path / name).write_text(
            "".join(mark.join(map(str, (u, i, 5.0, t))) + "\n" for u, i, t in rows)
        )
    (tmp_path / "README").write_text("of others")
    assert recognise(tmp_path) == "interactions"
    assert [s.tolist() for s in load_interactions(tmp_path).sequences] == [[1, 2, 3, 4]] * 12
    (tmp_path / "part-2.data").write_text("user,item,timestamp\nA,B,5\n")
    with pytest.raises(ValueError, match="its 3 parts differ"):
        load_interactions(tmp_path)


# -- paths and hostile files -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("ptb.valid.txt", "validation"),
        ("train/part-0.arrow", "train"),
        ("dev.tsv", "validation"),
        ("testing_2.csv", "test"),
        ("trainer.txt", None),
        ("train_test.txt", None),
        ("contest.txt", None),
        ("train-00000-of-00002.parquet", "train"),
        ("val2.txt", "validation"),
    ],
)
def test_a_name_says_a_split(name, split):
    assert split_named(name) == split


def test_what_a_path_means(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("test.txt", "deep/er/a.jsonl", "deep/er/b.jsonl", "deep/c.md"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x" * (20 if name.endswith("jsonl") else 10))
    assert files_of("test.txt") == {"train": [Path("test.txt")]}
    assert files_of("*.txt") == {"train": [Path("test.txt")]}
    assert files_of("deep") == {"train": [Path("deep/er/a.jsonl"), Path("deep/er/b.jsonl")]}
    assert files_of("**/*.md") == {"train": [Path("deep/c.md")]}
    assert files_of("deep/e*/**") == files_of("deep")
    assert files_of("c.md", "deep") == {"train": [Path("deep/c.md")]}
    Path("deep/x.py").write_text("x = 1")
    assert files_of("deep/*.py") == {"train": [Path("deep/x.py")]}
    assert files_of("user/name") is None
    for wrong in ("nothing.txt", "*.csv", "a/b/c", "./user/name", Path("user/name")):
        with pytest.raises(ValueError, match="no file, folder or pattern matches"):
            files_of(wrong)
    with pytest.raises(ValueError, match="no file, folder"):
        files_of("user/name", tmp_path)


@pytest.mark.parametrize("name", ["a [1990].txt", "a [1990].csv", "a [1990].parquet"])
def test_brackets_in_a_name_that_exists_are_no_pattern(tmp_path, name):
    folder = tmp_path / "[work]"
    folder.mkdir()
    rows = [{"text": text} for text in SENTENCES]
    path = write(folder / name, rows) if ".txt" not in name else lines(folder / name)
    for source in (path, folder, f"{folder}/*", f"{tmp_path}/[[]work]/*"):
        assert recognise(source) == "text"
        assert sorted(everything(load_text(source))) == sorted(SENTENCES)


def test_names_say_splits_only_where_one_says_train(tmp_path):
    for name in ("a.md", "b.md", "dev.md", "test-results.md"):
        (tmp_path / name).write_text("x")
    assert files_of(tmp_path) == {
        "train": [tmp_path / name for name in ("a.md", "b.md", "dev.md", "test-results.md")]
    }
    (tmp_path / "train.md").write_text("x")
    parts = {
        "train": ["a.md", "b.md", "train.md"],
        "validation": ["dev.md"],
        "test": ["test-results.md"],
    }
    assert files_of(tmp_path) == {
        part: [tmp_path / name for name in names] for part, names in parts.items()
    }


def test_what_this_library_has_written_is_no_data(tmp_path, monkeypatch):
    """`farzi distil .` would read its own trials and summary when it goes on."""
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "mine.jsonl", ["{}"])
    run = tmp_path / "farzi-data" / "checkpoint-2"
    ran = tmp_path / "ran"
    for place in (
        tmp_path / "elsewhere" / TENSORS,
        run / "state.jsonl",
        ran / "recipe.yaml",
        ran / "table.md",
        ran / "split-0" / "start.jsonl",
    ):
        place.parent.mkdir(parents=True, exist_ok=True)
        lines(place)
    for name in ("farzi-data", "out"):
        save_json({"settings": {}, "trials": {}}, tmp_path / name / TRIALS / KEPT)
        lines(tmp_path / name / "table.jsonl")
    lines(tmp_path / "elsewhere" / "tokenizer.jsonl")
    for source in (".", tmp_path):
        assert files_of(source) == {"train": [Path(source, "mine.jsonl")]}
    named = [Path("farzi-data/checkpoint-2/state.jsonl"), Path("farzi-data/table.jsonl")]
    assert files_of("farzi-data") == {"train": named}  # what the user names


def test_chats_of_share_gpt_are_named_with_their_remedy(tmp_path):
    chats = [[{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]] * 3
    path = tmp_path / "chats.jsonl"
    lines(path, [json.dumps({"conversations": chat}) for chat in chats])
    with pytest.raises(
        ValueError,
        match="the messages of 'conversations' have from and value: write them with role",
    ):
        load_text(path)


def test_a_summary_is_no_data(tmp_path):
    """Its tokens were read as the text to distil."""
    run = tmp_path / "my run"
    summary = run / "summary"
    summary.mkdir(parents=True)
    for place in (run / "recipe.yaml", summary / TENSORS, summary / "tokens.jsonl"):
        lines(place)
    for folder in (run, summary):
        with pytest.raises(
            ValueError, match=r"is a summary, and no data: farzi show '.*' shows it, farzi train '"
        ):
            load_text(folder)
    assert files_of(summary / "*.jsonl") == {"train": [summary / "tokens.jsonl"]}
    (summary / "config.json").write_text('{"model_type": "farzi_counted"}')
    with pytest.raises(ValueError, match=r"is a counted model, and no data: farzi count .* uses"):
        load_text(summary)
    # Chosen rows of somebody's data are data.
    (summary / "config.json").write_text('{"inputs": "rows"}')
    assert files_of(summary) == {"train": [summary / "tokens.jsonl"]}


def test_other_folders_with_such_names_are_data(tmp_path):
    found = [tmp_path / "clinic" / TRIALS / KEPT, tmp_path / "kitchen" / "recipe.yaml.json"]
    for path in found:
        path.parent.mkdir(parents=True)
        path.write_text('{"text": "a b c d"}')
    assert files_of(tmp_path) == {"train": found}


HOSTILE = [
    b"",
    b"\n\n",
    b"\x00\xff\xfe\x80" * 300,
    b"\xff\xfea",
    b"text\n",
    b"a,a\n1,2\n",
    b"{",
    b"[1, 2]",
    b'{"text": 1}\n{"text": "a"}',
    b"PAR1",
    b"[" * 5000,
]


@pytest.mark.parametrize("content", HOSTILE, ids=[repr(content[:12]) for content in HOSTILE])
@pytest.mark.parametrize(
    "name",
    ["a.txt", "a.jsonl", "a.json", "a.csv", "a.tsv", "a.parquet", "a.arrow", "a.txt.gz", "a.bin"],
)
def test_hostile_files_are_one_clear_error(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for read in (recognise, load_text, load_interactions):
        error = None
        try:
            read(tmp_path / name)
        except ValueError as raised:
            error = str(raised)
        assert (name in error and "\n" not in error) if error else read is recognise


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes")
def test_pipes_and_addresses_are_named(tmp_path):
    os.mkfifo(tmp_path / "pipe.txt")
    for read in (recognise, load_text, load_interactions):
        with pytest.raises(ValueError, match=r"pipe.txt' is a pipe or a device, and no file: save"):
            read(tmp_path / "pipe.txt")
        with pytest.raises(ValueError, match=r"'https://x\.y/z\.txt' is an address, which is not"):
            read("https://x.y/z.txt")


def test_one_huge_line_is_too_few_rows(tmp_path):
    message = (
        r"holds 1 different rows of text .* the longest has 4,999,999 characters, so break it into"
        " lines"
    )
    with pytest.raises(ValueError, match=message):
        load_text(lines(tmp_path / "text8.txt", ["word " * 1_000_000]))


def test_columns_of_text_that_could_each_be_meant_are_named(tmp_path):
    rows = [{"id": 1, "input": "one two three four", "output": "five six seven eight"}] * 5
    message = r"several hold text \(input, output\): write them together in a column text, or"
    with pytest.raises(ValueError, match=message):
        load_text(write(tmp_path / "pairs.jsonl", rows))


ROWS = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r<"), max_size=20),
    min_size=3,
    max_size=40,
)  # no <s>


@fuzzed
@given(ROWS)
def test_rows_come_back_as_they_were_written(tmp_path, rows):
    path = write(tmp_path / "a.jsonl", [{"text": row} for row in rows])
    expected = {" ".join(row.split()) for row in rows} - {""}
    numbers = not any(
        re.search(r"[^\d\s.,:+-]", row) for row in rows
    )  # which may be anything but text
    if len(expected) < 3 or numbers:
        with pytest.raises(ValueError, match=r"different rows|a.jsonl has columns"):
            load_text(path)
        return
    data = load_text(path, vocab_size=256)
    found = [{" ".join(row.split()) for row in its} for its in texts(data).values()]
    assert set.union(*found) == expected
    assert sum(map(len, found)) == len(expected)
    for its in data.values():
        assert [
            data.tokenizer.decode(ids, skip_special_tokens=True) for ids in its["input_ids"]
        ] == list(its["text"])


def test_reading_files_of_ones_own_asks_the_hub_nothing(tmp_path, monkeypatch):
    """`datasets` would count the use of its reader there, and wait for seconds where there is no
    network.
    """
    asked = []
    monkeypatch.setattr("datasets.config.HF_UPDATE_DOWNLOAD_COUNTS", True)
    monkeypatch.setattr("datasets.load.get_session", lambda: asked.append(1))
    load_text(lines(tmp_path / "mine.txt", [f"row {i} of mine" for i in range(200)]))
    assert asked == []
    assert datasets.config.HF_UPDATE_DOWNLOAD_COUNTS


def test_reading_files_of_ones_own_needs_no_cache(tmp_path, monkeypatch):
    """`datasets` made a folder in its cache, which may not be writable."""
    rows = [{"text": f"row {i} of mine"} for i in range(200)]
    sources = [write(tmp_path / f"mine.{kind}", rows) for kind in ("jsonl", "csv", "parquet")]
    sources.append(lines(tmp_path / "mine.txt", [row["text"] for row in rows]))
    file = lines(tmp_path / "file", ["no folder"])
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(file / "cache"))
    for source in sources:
        assert sum(map(len, texts(load_text(source)).values())) == 200
        assert sum(map(len, texts(load_text(source)).values())) == 200  # a stream begins anew


def test_arrow_files_of_both_forms_are_read(tmp_path):
    table = pa.table({"text": [f"row {i} of mine is here" for i in range(40)], "n": range(40)})
    for name, new in (("stream", pa.ipc.new_stream), ("file", pa.ipc.new_file)):
        with (
            pa.OSFile(str(tmp_path / f"{name}.arrow"), "wb") as sink,
            new(sink, table.schema) as writer,
        ):
            writer.write_table(table)
        assert sum(map(len, texts(load_text(tmp_path / f"{name}.arrow")).values())) == 40
    items = pa.table(
        {
            "user": [i // 5 for i in range(100)],
            "item": [i % 7 for i in range(100)],
            "timestamp": range(100),
        }
    )
    with (
        pa.OSFile(str(tmp_path / "items.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, items.schema) as writer,
    ):
        writer.write_table(items)
    assert recognise(tmp_path / "items.arrow") == "interactions"
    assert len(load_interactions(tmp_path / "items.arrow").sequences) == 20


def test_a_named_field_of_json_may_begin_after_the_first_rows(tmp_path):
    rows = [{"n": i, **({"body": f"row {i} of mine"} if i >= 250 else {})} for i in range(300)]
    (tmp_path / "late.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert sum(map(len, texts(load_text(tmp_path / "late.jsonl", "body")).values())) == 50


def test_json_values_may_take_several_lines(tmp_path):
    rows = [{"text": f"row {i} of mine", "n": {"deep": i}} for i in range(30)]
    for name, content in (
        ("pretty", "\n".join(json.dumps(row, indent=1) for row in rows)),
        ("one", " ".join(map(json.dumps, rows))),
        ("array", json.dumps(rows)),
        ("wide", json.dumps(rows, indent=2)),
    ):
        (tmp_path / f"{name}.json").write_text(f"\n {content}\n")
        assert sum(map(len, texts(load_text(tmp_path / f"{name}.json")).values())) == 30


def test_only_the_column_of_text_is_read(tmp_path):
    """Others may be wide, or have values that are of no use."""
    wide = pa.array([[0.0] * 1000] * 2000, pa.list_(pa.float32()))
    table = pa.table({"text": [f"row {i} of mine is here" for i in range(2000)], "wide": wide})
    pa.parquet.write_table(table, tmp_path / "wide.parquet")
    rows = next(iter(stream_of(tmp_path / "wide.parquet", column="text")["train"]))
    assert rows == {"text": "row 0 of mine is here"}
    tracemalloc.start()
    load_text(tmp_path / "wide.parquet", "text", vocab_size=300)
    assert (
        tracemalloc.get_traced_memory()[1] < 60 << 20
    )  # all numbers as objects of Python take more
    tracemalloc.stop()


def test_a_file_without_the_column_is_named(tmp_path):
    (tmp_path / "a.csv").write_text(
        "text,n\n" + "\n".join(f"row {i} of mine,{i}" for i in range(10))
    )
    (tmp_path / "b.csv").write_text(
        "body,n\n" + "\n".join(f"row {i} of mine,{i}" for i in range(10))
    )
    with pytest.raises(ValueError, match=r"no row of b\.csv has 'text': leave that file out"):
        load_text(tmp_path, "text")


def test_a_broken_row_is_named(tmp_path):
    (tmp_path / "a.jsonl").write_text(
        "\n".join([*(json.dumps({"text": f"row {i} of mine"}) for i in range(20)), "{broken"])
    )
    with pytest.raises(ValueError, match=r"cannot be read \(a\.jsonl, after 20 rows: "):
        load_text(tmp_path / "a.jsonl")


def test_numbers_and_bytes_are_rows_and_what_is_no_number_is_none(tmp_path):
    pa.parquet.write_table(pa.table({"n": range(6)}), tmp_path / "n.parquet")
    read = module.texts_of(stream_of(tmp_path / "n.parquet", column="n")["train"], "n", None, "n")
    assert read == ["0", "1", "2", "3", "4", "5"]
    pa.parquet.write_table(
        pa.table({"text": [f"row {i} é".encode() for i in range(20)]}), tmp_path / "b.parquet"
    )
    assert sum(map(len, texts(load_text(tmp_path / "b.parquet", "text")).values())) == 20
    (tmp_path / "a.jsonl").write_text('{"text": NaN}\n{"text": null}\n{"text": []}\n{"text": 0}')
    assert module.texts_of(
        stream_of(tmp_path / "a.jsonl", column="text")["train"], "text", None, "a"
    ) == ["0"]


def test_rows_that_end_in_a_delimiter_keep_their_columns(tmp_path):
    (tmp_path / "a.csv").write_text(
        "text,label\n" + "\n".join(f"the text {i} is this,the label,\n" for i in range(20))
    )
    assert all(
        row.startswith("the text")
        for rows in texts(load_text(tmp_path / "a.csv", "text")).values()
        for row in rows
    )


TEXTS_WITH_COMMAS = [f"Sentence {i}, with a comma, and more" for i in range(120)]


@pytest.mark.parametrize("name", ["one.csv", "one.tsv"])
def test_a_single_column_is_whole_lines(tmp_path, name):
    """They were cut at their first comma, without a word."""
    path = tmp_path / name
    path.write_text("\n".join(["text", *TEXTS_WITH_COMMAS]))
    assert sorted(everything(load_text(path))) == sorted(TEXTS_WITH_COMMAS)
    path.write_text("\n".join(["text", *(f'"{text}"' for text in TEXTS_WITH_COMMAS)]))
    assert sorted(everything(load_text(path))) == sorted(TEXTS_WITH_COMMAS)


@pytest.mark.filterwarnings("ignore::pandas.errors.ParserWarning")  # as users have it
@pytest.mark.parametrize("place", [0, 1, 1500])
def test_lines_with_more_cells_than_the_header_are_refused(tmp_path, place):
    """Their last cells were left out, without a word."""
    lines = [f"row {i} of mine,{i}" for i in range(2000)]
    lines[place] = "Hi, there you are,0"
    (tmp_path / "a.csv").write_text("\n".join(["text,n", *lines]))
    with pytest.raises(ValueError, match=r"a\.csv.* cannot be read"):
        load_text(tmp_path / "a.csv", "text")


@pytest.mark.parametrize("ending", [".GZ", ".Bz2"])
def test_capital_endings_of_a_compression(tmp_path, ending):
    packed = {".GZ": gzip.compress, ".Bz2": bz2.compress}[ending]("\n".join(SENTENCES).encode())
    (tmp_path / f"MINE.TXT{ending}").write_bytes(packed)
    assert sorted(everything(load_text(tmp_path / f"MINE.TXT{ending}"))) == sorted(SENTENCES)


def test_an_empty_table_is_called_empty(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"")
    with pytest.raises(ValueError, match=r"a\.csv' is an empty file: give one with rows"):
        recognise(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("source", "changes", "message"),
    [
        (None, {}, r"^path_or_repo is a NoneType; give a file, a folder, a pattern"),
        (["a text"], {}, r"^path_or_repo is a list; .*farzi_hf\.data\.tokenize makes ids"),
        (Dataset.from_dict({"text": ["a"]}), {}, "^path_or_repo is a Dataset; give a file"),
        ("a.txt", {"vocab_size": 0}, "^vocab_size must be an integer of at least 1, got 0"),
        ("a.txt", {"vocab_size": "300"}, "^vocab_size must be an integer of at least 1, got '300'"),
        ("a.txt", {"tokenizer": 3}, "^tokenizer=3 is none; give one, its name or its folder"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(tmp_path, monkeypatch, source, changes, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("\n".join(f"a text {i}" for i in range(50)))
    with pytest.raises(ValueError, match=message):
        load_text(source, **changes)
