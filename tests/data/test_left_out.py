"""What is left out of data of one's own is said in one line: how many, and why. Links are not
followed.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from datasets import Dataset, DatasetDict

from farzi_hf.data import Interactions, load_interactions, load_text, tokenize
from farzi_hf.data.files import files_of

ROWS = [f"row {i} of mine is here" for i in range(200)]
SECRET = [f"secret {i} of another folder" for i in range(200)]


def rows_of(source: str | Path) -> set[str]:
    return {row for split in load_text(source).values() for row in split["text"]}


def lines(path: Path, rows: list[str] = ROWS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(rows))
    return path


# -- rows ------------------------------------------------------------------------------------------


def test_users_and_items_with_few_rows(tmp_path, caplog):
    """A thousand of 1,060 users were left out without a word."""
    few = [(f"few{user}", f"i{user % 9}", place) for user in range(1000) for place in range(2)]
    many = [(f"many{user}", f"j{place}", place) for user in range(60) for place in range(4)]
    table = "".join(f"{user},{item},{time}\n" for user, item, time in few + many)
    (tmp_path / "a.csv").write_text("user,item,timestamp\n" + table)
    assert len(load_interactions(tmp_path / "a.csv").sequences) == 60
    (said,) = caplog.messages
    assert said.endswith(
        "a.csv: 1,000 of 1,060 users and 9 of 13 items are left out, with 2,000 of 2,240 rows,"
        " because of min_interactions=3"
    )
    caplog.clear()
    load_interactions(tmp_path / "a.csv", min_interactions=1, min_item_interactions=61)
    assert caplog.messages[0].endswith(
        "60 of 1,060 users and 4 of 13 items are left out, with 240 of 2,240 rows, because of"
        " min_interactions=1 and min_item_interactions=61"
    )
    caplog.clear()
    load_interactions(tmp_path / "a.csv", min_interactions=1)
    assert caplog.messages == []


def test_users_whose_only_item_is_held_out_alone(tmp_path, caplog):
    for name, rows in (("train", "1,a,1 1,b,2"), ("test", "1,c,3 2,a,1 3,a,1")):
        (tmp_path / f"{name}.csv").write_text("user,item,timestamp\n" + "\n".join(rows.split()))
    (tmp_path / "valid.csv").write_text("user,item,timestamp\n1,d,3\n")
    data = load_interactions(tmp_path, min_interactions=1)
    caplog.clear()
    assert len(data.own_split()["test"]) == 1
    assert caplog.messages == [
        "2 users are left out of test, because they have a single item, which predicts none"
    ]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet", "a.csv"])
def test_empty_texts(tmp_path, name, caplog):
    """A hundred of 300 null texts were left out without a word."""
    texts = [None if i % 3 == 0 else f"row {i} of mine is here" for i in range(300)]
    if name == "a.parquet":
        parquet.write_table(pa.table({"text": texts}), tmp_path / name)
    elif name == "a.jsonl":
        (tmp_path / name).write_text("\n".join(json.dumps({"text": text}) for text in texts))
    else:
        (tmp_path / name).write_text("id,text\n" + "\n".join(f"7,{text or ''}" for text in texts))
    load_text(tmp_path / name)
    (said,) = caplog.messages
    assert said.endswith(
        f"{name}: 100 of 300 rows are left out, because column 'text' is empty there"
    )


def test_blank_lines_of_a_plain_text_are_no_rows(tmp_path, caplog):
    lines(tmp_path / "a.txt", [line for row in ROWS for line in (row, "", " ")])
    assert len(rows_of(tmp_path / "a.txt")) == 200
    assert caplog.messages == []


def test_rows_of_a_single_token(tmp_path, tokenizer, caplog):
    bare = type(tokenizer)(tokenizer_object=tokenizer.backend_tokenizer, unk_token="<unk>")
    bare.backend_tokenizer.post_processor = None
    lines(tmp_path / "a.txt", [*(f"{row} {row}" for row in ROWS), "a", "b", "c"])
    data = load_text(tmp_path / "a.txt", tokenizer=bare)
    assert sum(map(len, data.values())) == 200
    (said,) = caplog.messages
    assert said.endswith(
        "a.txt: 3 rows of a single token are left out, because nothing can be predicted of them"
    )


def test_empty_rows_of_a_dataset(tokenizer, caplog):
    texts = Dataset.from_dict({"text": ["a b", None, "", "c d", "  "]})
    assert len(tokenize(DatasetDict(train=texts), tokenizer)["train"]) == 2
    assert caplog.messages == ["dataset['train']: 3 of 5 rows are left out, because they are empty"]


# -- files -----------------------------------------------------------------------------------------


def test_files_with_another_ending(tmp_path, caplog):
    """All but one ending of a folder was left out without a word."""
    lines(tmp_path / "deep" / "a.txt")
    for name in ("b.md", "c.md", "d.csv", "LICENSE", "deep/e.py", ".hidden"):
        lines(tmp_path / name, ["x"])
    assert rows_of(tmp_path) == set(ROWS)
    (said,) = caplog.messages
    assert said.endswith(
        ": 5 files are left out (2 .md, 1 without an ending, 1 .csv, 1 .py), because those of one"
        " ending are read (.txt); to read others, name them"
    )
    caplog.clear()
    for source in (tmp_path / "deep" / "a.txt", f"{tmp_path}/deep/*.txt"):
        assert rows_of(source) == set(ROWS)
    assert caplog.messages == []
    (tmp_path / "clicks").mkdir()
    (tmp_path / "clicks" / "a.csv").write_text("user,item\n1,2\n1,3\n1,4\n")
    lines(tmp_path / "clicks" / "\x1b[31m.\x1b[2J", ["x"])
    load_interactions(tmp_path / "clicks")
    (said,) = caplog.messages
    assert "1 file is left out (1 .\\x1b[2j), because those of one ending are read (.csv)" in said


def test_links_in_a_folder_are_not_followed_and_said(tmp_path, caplog):
    """A link to a file of another folder was read without a word."""
    outside = lines(tmp_path / "outside" / "secret.txt", SECRET)
    folder = tmp_path / "data"
    lines(folder / "mine.txt")
    (folder / "link.txt").symlink_to(outside)
    (folder / "links").symlink_to(outside.parent)
    (folder / "again.txt").symlink_to(folder / "mine.txt")
    (folder / "broken.txt").symlink_to(folder / "nothing.txt")
    for source, number in ((folder, 4), (f"{folder}/*.txt", 3), (f"{folder}/**/*.txt", 4)):
        caplog.clear()
        assert rows_of(source) == set(ROWS)
        (said,) = caplog.messages
        assert said.endswith(f": {number} links are not followed; to read others, name them")
    (folder / "mine.txt").unlink()
    with pytest.raises(ValueError, match=r"no file, folder .*; 4 links are not followed$"):
        load_text(folder)
    # What the user names is read.
    assert rows_of(folder / "link.txt") == set(SECRET)
    assert rows_of(folder / "links") == set(SECRET)


def test_links_of_the_hubs_cache_are_followed(tmp_path):
    repository = tmp_path / "datasets--me--mine"
    blob = lines(repository / "blobs" / "0123abcd")
    snapshot = repository / "snapshots" / "main"
    (snapshot / "data").mkdir(parents=True)
    (snapshot / "data" / "a.txt").symlink_to(os.path.relpath(blob, snapshot / "data"))
    (snapshot / "b.txt").symlink_to(lines(tmp_path / "secret.txt", SECRET))
    assert files_of(snapshot) == {"train": [snapshot / "data" / "a.txt"]}
    assert rows_of(snapshot / "data") == set(ROWS)


def test_titles_that_are_a_link_are_not_read(tmp_path, caplog):
    ratings = "".join(f"1\t{item}\t3\t{item}\n" for item in range(4))
    lines(tmp_path / "titles", ["1|Secret|"])
    (tmp_path / "u.data").write_text(ratings)
    (tmp_path / "u.item").symlink_to(tmp_path / "titles")
    found = load_interactions(tmp_path / "u.data")
    assert isinstance(found, Interactions)
    assert found.item_titles is None
    assert "u.item is a link, which is not followed: items have no titles" in caplog.text
