"""Interactions in the forms that people have them in: each is read, or refused with a remedy, and
never taken for a text.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from datasets import Dataset, DatasetDict
from hub_server import Repository

from farzi_hf.data import load_interactions, load_text, recognise
from farzi_hf.data.layout import layout_of

Rating = tuple[int, int, int, int]

USERS = 30
HISTORIES = {
    user: [10 + (3 * user + step * step) % 17 for step in range(3 + user % 3)]
    for user in range(1, 1 + USERS)
}
RATINGS: list[Rating] = [
    (user, item, 1 + item % 5, 978_300_000 + 1000 * user + step)
    for user, history in HISTORIES.items()
    for step, item in enumerate(history)
]
PROSE = [f"the {i} cat, the dog and mat number {i % 7}" for i in range(120)]


def lines(form: str, rows: list[Rating] = RATINGS) -> str:
    return "".join(form.format(u=u, i=i, r=r, t=t) + "\n" for u, i, r, t in rows)


def histories(path: Path) -> list[list[int]]:
    """The items of all users, by user."""
    found = load_interactions(path)
    return [[int(found.item_ids[item - 1]) for item in history] for history in found.sequences]


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# -- text with columns -----------------------------------------------------------------------------

HEADER = "user_id{0}item_id{0}rating{0}timestamp\n"
FORM = "{{u}}{0}{{i}}{0}{{r}}{0}{{t}}"
MARKS = [",", "\t", ";", "|", "::", " ", "   "]
NAMES = ["a.csv", "a.tsv", "a.dat", "a.data", "a.txt", "a", "a.base"]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mark", MARKS, ids=repr)
@pytest.mark.parametrize("header", [HEADER, ""], ids=["header", "no header"])
def test_any_mark_divides_columns(tmp_path, name, mark, header):
    path = write(tmp_path / name, header.format(mark) + lines(FORM.format(mark)))
    assert recognise(path) == "interactions"
    assert histories(path) == list(HISTORIES.values())


def test_the_times_order_the_rows_whatever_divides_them(tmp_path):
    for mark in MARKS:
        backwards = lines(FORM.format(mark), RATINGS[::-1])
        assert histories(write(tmp_path / "ratings.dat", backwards)) == list(HISTORIES.values())


TITLES = [
    "# exported on Monday",
    "# exported on Monday, by me, for you",
    "% bip weighted\n% 3 4 5",
    "sep=,",
    "My clicks",
    "My clicks, of 2024",
    "Clicks\n\nof my shop\n",
    "// a comment\n# another one",
]


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("name", ["a.csv", "a.txt"])
def test_a_title_or_a_comment_before_the_header_is_left_out_and_said(tmp_path, name, title, caplog):
    path = write(tmp_path / name, f"{title}\nuser_id,item_id,ts\n" + lines("{u},{i},{t}"))
    assert recognise(path) == "interactions"
    assert histories(path) == list(HISTORIES.values())
    first = 2 + title.count("\n")
    assert f"a{path.suffix}: the lines before line {first} are left out" in caplog.text


@pytest.mark.parametrize("title", [title for title in TITLES if title[0] in "#%/"])
def test_a_comment_before_rows_without_a_header(tmp_path, title):
    for mark in ("\t", " ", "::"):
        path = write(tmp_path / "a.dat", f"{title}\n" + lines(FORM.format(mark)))
        assert recognise(path) == "interactions"
        assert histories(path) == list(HISTORIES.values())


WRITTEN = {
    "a comment that is the header": ("#user_id,item_id,ts\n", "{u},{i},{t}"),
    "a mark of the encoding": ("\ufeffuserId,movieId,rating,timestamp\n", "{u},{i},{r},{t}"),
    "blanks beside the marks": ("user, item, time\n", "{u}, {i}, {t}"),
    "marks inside quotes": ("user,item,note,ts\n", '{u},{i},"a, b",{t}'),
    "aligned columns": ("user   item     time\n", "{u:<6} {i:<8} {t}"),
    "a table of psql": (" user | item | time \n", " {u:>4} | {i:>4} | {t} "),
    "dates": ("user,item,date\n", "{u},{i},2020-01-{u:02}"),
    "typed names": ("user_id:token\titem_id:token\ttimestamp:float\n", "{u}\t{i}\t{t}"),
    "no header, users of Amazon": ("", "A{u:02}X,{i},{r}.0,{t}"),
    "no header, users of Amazon last": ("", "B{i},A{u:02},{r}.0,{t}"),
    "no header, times and no ratings": ("", "{u},{i},{t}"),
    "no header, users and items": ("", "{u} {i}"),
}


@pytest.mark.parametrize(("header", "form"), WRITTEN.values(), ids=WRITTEN)
@pytest.mark.parametrize("name", ["a.csv", "a.txt", "a.inter"])
def test_tables_as_people_write_them(tmp_path, name, header, form):
    path = write(tmp_path / name, header + lines(form))
    assert recognise(path) == "interactions"
    found = load_interactions(path)
    read = [[found.item_ids[item - 1] for item in history] for history in found.sequences]
    assert [[int(str(item).lstrip("B")) for item in history] for history in read] == list(
        HISTORIES.values()
    )


def test_lines_of_a_user_and_all_items(tmp_path, caplog):
    """As FMLP, S3-Rec and LightGCN have them."""
    for name, mark in (("a.txt", " "), ("a.csv", ","), ("a.tsv", "\t")):
        rows = [mark.join(map(str, (user, *items))) for user, items in HISTORIES.items()]
        path = write(tmp_path / name, "\n".join(rows))
        assert recognise(path) == "interactions"
        assert histories(path) == list(HISTORIES.values())
        assert f"{name} has no header: its columns are read as user, items" in caplog.text


TABLES = {
    "u.user": "{u}|24|M|technician|8571{r}",
    "users.dat": "{u}::F::1::10::48067",
    "movies.dat": "{u}::Toy Story {i} (1995)::Animation|Children's",
    "three columns": "{u} {i} {r}",
    "three columns.txt": "{u}\t{i}\t{r}",
    "words.txt": "alice{u}|matrix{i}",
    "checkins.txt": "{u}\t2010-10-19T23:55:27Z\t30.2359\t-97.7951\t{i}",
    "baskets.dat": "{i} {r} 7 9",
    "bars.dat": "{i}|{r}|7|9",
}


@pytest.mark.parametrize(("name", "form"), TABLES.items(), ids=TABLES)
def test_tables_that_do_not_say_what_they_hold_are_no_text(tmp_path, name, form):
    path = write(tmp_path / name, lines(form))
    with pytest.raises(ValueError, match=r"looks like a table .*: write them in its first line"):
        recognise(path)
    assert recognise(path, text_column="line") == "text"
    assert len(load_text(path)["train"]) > 20


@pytest.mark.parametrize("name", ["a.csv", "a.tsv"])
def test_a_header_that_is_a_row_is_no_header_of_text(tmp_path, name):
    mark = "\t" if name == "a.tsv" else ","
    rows = [f"{i}{mark}the cat number {i} sat" for i in range(50)]
    path = write(tmp_path / name, "\n".join(rows))
    for read in (recognise, load_text):
        with pytest.raises(ValueError, match="has '0' in its first line, and numbers below it"):
            read(path)
    counted = write(tmp_path / name, "\n".join([f"0{mark}1", *rows]))  # as pandas counts columns
    assert load_text(counted).column == "1"


TEXTS: dict[str, Callable[[list[str]], str]] = {
    "prose.txt": lambda rows: "\n".join(rows),
    "semicolons.txt": lambda rows: "\n".join(row.replace(",", ";") for row in rows),
    "title.txt": lambda rows: "# A title\n" + "\n".join(rows),
    "users.txt": lambda rows: "user, item and more\n" + "\n".join(rows),
    "numbered.txt": lambda rows: "\n".join(f"{i}. {row}" for i, row in enumerate(rows)),
    "labels.txt": lambda rows: "\n".join(f"ham\t{row}" for row in rows),
    "numbers.txt": lambda rows: "\n".join(map(str, range(100))),
    "table.md": lambda rows: "\n".join([*rows, "| a | b |", "|---|---|", "| 1 | 2 |"]),
    "one.csv": lambda rows: "text\n" + "\n".join(rows),
}


@pytest.mark.parametrize(("name", "of"), TEXTS.items(), ids=TEXTS)
def test_text_stays_text(tmp_path, name, of):
    path = write(tmp_path / name, of(PROSE))
    assert recognise(path) == "text"
    rows = [row for split in load_text(path).values() for row in split["text"]]
    header = name.endswith(".csv")
    assert sorted(rows) == sorted(path.read_text().split("\n")[header:])


TEXT_TABLES = {
    "a comment": ("# of mine\n", "id,text", "{i},the cat {i} sat"),
    "a comment with a comma": ("# of mine, of 2024\n", "id,text", "{i},the cat {i} sat"),
    "a title": ("My reviews\n", "text,label", "the cat {i} sat,pos"),
    "a title in two lines": ("My reviews\nof 2024\n\n", "text;label", "the cat {i} sat;pos"),
    "a bar": ("", "text|label", "the cat {i}, sat|pos"),
    "two colons": ("", "text::label", "the cat: {i}, sat::pos"),
    "a name that begins as a comment": ("", "#id,text", "{i},the cat {i} sat"),
}


@pytest.mark.parametrize(("title", "header", "form"), TEXT_TABLES.values(), ids=TEXT_TABLES)
def test_a_table_of_text_after_a_title(tmp_path, title, header, form, caplog):
    """Its rows were whole lines of a column with the name of the title."""
    rows = [form.format(i=i) for i in range(60)]
    path = write(tmp_path / "a.csv", "\n".join([title + header, *rows]))
    assert recognise(path) == "text"
    data = load_text(path)
    assert data.column == "text"
    assert all("cat" in row and "pos" not in row for row in data["train"]["text"])
    assert ("are left out; the columns begin there" in caplog.text) == bool(title)


def test_a_folder_of_several_tables_is_refused_with_a_name(tmp_path):
    write(tmp_path / "movies.dat", lines(TABLES["movies.dat"]))
    ratings = write(tmp_path / "ratings.dat", lines(FORM.format("::")))
    with pytest.raises(
        ValueError, match=r"has interactions in ratings\.dat and none in movies\.dat: name the file"
    ):
        recognise(tmp_path)
    assert recognise(f"{tmp_path}/rat*.dat") == "interactions"
    assert histories(ratings) == list(HISTORIES.values())


def test_named_columns_are_found_after_a_title_too(tmp_path):
    text = "Visits\nwho;what;when\n" + lines("{u};{i};-{t}")
    path = write(tmp_path / "a.csv", text)
    names = {"user_column": "who", "item_column": "what"}
    found = load_interactions(path, **names)
    assert found.columns == ["who", "what", ""]
    assert len(found.sequences) == USERS
    backwards = load_interactions(path, **names, time_column="when")
    pairs = zip(backwards.sequences, found.sequences, strict=True)
    assert all(one.tolist() == other.tolist()[::-1] for one, other in pairs)


def test_the_layout_is_that_of_the_first_rows(tmp_path):
    path = write(tmp_path / "a.csv", "# a\n\n# b\nuser|item\n" + lines("{u}|{i}"))
    layout = layout_of(path)
    assert (layout.mark, layout.header, layout.skipped) == ("|", ("user", "item"), 3)
    assert layout.holds_interactions
    assert layout.form is None


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
@pytest.mark.parametrize("mark", ["::", " ", "  \t "])
def test_marks_of_several_characters_in_long_files(tmp_path, mark, end):
    """The file is read in parts, and a mark may begin in one and end in the next."""
    rows = [(user, step, 1, 10**9 + step) for user in range(900) for step in range(100)]
    text = lines(FORM.format(mark), rows).replace("\n", f"{mark if mark != '::' else ''}{end}")
    path = tmp_path / "ratings.dat"
    path.write_bytes(text.encode())
    found = load_interactions(path)
    assert len(found.sequences) == 900
    assert all(history.tolist() == list(range(1, 101)) for history in found.sequences)


# -- lists -----------------------------------------------------------------------------------------

LISTS = list(HISTORIES.values())
LIST_NAMES = [
    ("user", "items"),
    ("user_id", "item_ids"),
    ("userId", "history"),
    ("reviewerID", "sequence"),
    ("uid", "item_sequence"),
    ("session_id", "clicks"),
]


def write_lists(path: Path, columns: dict[str, list]) -> Path:
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".csv":
        pd.DataFrame(columns).to_csv(path, index=False)
    elif path.suffix == ".json":
        rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        path.write_text(json.dumps(rows))
    else:
        Dataset.from_dict(columns).to_json(path)
    return path


@pytest.mark.parametrize("names", LIST_NAMES, ids=str)
@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl", "a.json", "a.csv"])
@pytest.mark.parametrize("kind", [int, str])
def test_rows_of_a_user_and_a_list_of_items(tmp_path, names, name, kind):
    items = [[kind(item) for item in history] for history in LISTS]
    users = [f"u{user:02}" for user in HISTORIES]
    path = write_lists(tmp_path / name, dict(zip(names, (users, items), strict=True)))
    assert recognise(path) == "interactions"
    assert histories(path) == LISTS
    what = f"(columns {names[0]!r}, {names[1]!r}, times: the order of the rows)"
    assert load_interactions(path).description.endswith(what)


def test_lists_in_memory_and_names_that_are_given():
    users = list(HISTORIES)
    frame = pd.DataFrame({"user": users, "items": LISTS})
    other = Dataset.from_dict({"who": users, "what": LISTS})
    for data, given in (
        (frame, {}),
        (Dataset.from_pandas(frame), {}),
        (pa.table({"user": users, "items": pa.array(LISTS, pa.large_list(pa.int32()))}), {}),
        (other, {"user_column": "who", "item_column": "what"}),
    ):
        found = load_interactions(data, **given)
        read = [[found.item_ids[item - 1] for item in history] for history in found.sequences]
        assert read == LISTS


def test_lists_of_the_hub(hub):
    rows = [json.dumps({"user_id": u, "item_ids": its}) for u, its in HISTORIES.items()]
    repository = hub.repositories.setdefault("me/lists", Repository())
    repository.commit("main", {"train.jsonl": "\n".join(rows).encode()})
    assert recognise("me/lists") == "interactions"
    found = load_interactions("me/lists")
    read = [[found.item_ids[item - 1] for item in history] for history in found.sequences]
    assert read == LISTS


def test_lists_of_times_order_the_items(tmp_path):
    times = [[-place for place in range(len(history))] for history in LISTS]
    columns = {"user": list(HISTORIES), "items": LISTS, "timestamps": times}
    backwards = [history[::-1] for history in LISTS]
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        assert histories(write_lists(tmp_path / name, columns)) == backwards
    columns["timestamps"][3] = [1]
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        with pytest.raises(
            ValueError,
            match=r"row 3 \(counted from 0\) has 4 in 'items' and 1 in 'timestamps': give a time",
        ):
            load_interactions(write_lists(tmp_path / name, columns))


def test_a_time_for_the_whole_list_orders_the_lists(tmp_path):
    columns = {"user": [1, 1], "items": [[1, 2, 3], [4, 5]], "date": ["2020-01-02", "2020-01-01"]}
    for name in ("a.parquet", "a.jsonl", "a.csv"):
        assert histories(write_lists(tmp_path / name, columns)) == [[4, 5, 1, 2, 3]]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_rows_that_are_a_list_and_nothing_else_are_users(tmp_path, name):
    path = write_lists(tmp_path / name, {"length": list(map(len, LISTS)), "item_ids": LISTS})
    assert recognise(path) == "interactions"
    assert histories(path) == LISTS
    assert "(columns users: a row each, 'item_ids', times" in load_interactions(path).description
    for part, rows in (("train", LISTS[:20]), ("test", LISTS[20:])):
        write_lists(tmp_path / f"{part}.{name[2:]}", {"items": rows})
    path.unlink()
    assert histories(tmp_path) == LISTS  # the first rows of both files are two users


def test_splits_of_lists_in_memory():
    data = DatasetDict(
        train=Dataset.from_dict({"user": [1, 2], "items": [[1, 2], [3, 4]]}),
        test=Dataset.from_dict({"user": [2, 1], "items": [[5], [6]]}),
    )
    found = load_interactions(data)
    assert [history.tolist() for history in found.sequences] == [[1, 2, 6], [3, 4, 5]]


def test_recboles_lists(tmp_path):
    rows = ["\t".join((f"u{u}", " ".join(f"i{x}" for x in its))) for u, its in HISTORIES.items()]
    path = write(tmp_path / "a.inter", "user_id:token\titem_id_list:token_seq\n" + "\n".join(rows))
    assert recognise(path) == "interactions"
    assert len(load_interactions(path).sequences) == USERS


CELLS = {
    "[1, 2, 3]": ["1", "2", "3"],
    "[1 2\n 3]": ["1", "2", "3"],
    "['a', 'b c', 'a']": ["a", "b c", "a"],
    '["a", "b, c", "it\'s"]': ["a", "b, c", "it's"],
    "[a, b, c]": ["a", "b", "c"],
    " [ ] ": [],
}


@pytest.mark.parametrize(("cell", "expected"), CELLS.items(), ids=CELLS)
def test_lists_that_a_cell_writes(tmp_path, cell, expected):
    frame = pd.DataFrame({"user": ["u", "v"], "items": [cell, "[9]"]})
    frame.to_csv(tmp_path / "a.csv")
    assert recognise(tmp_path / "a.csv") == "interactions"
    found = load_interactions(tmp_path / "a.csv", min_interactions=1)
    read = [[str(found.item_ids[item - 1]) for item in history] for history in found.sequences]
    assert read == [history for history in (expected, ["9"]) if history]


@pytest.mark.parametrize(
    "cell", ["[1 2 3 ... 7 8 9]", r"['a\'b', 'c']", "['a' 'b'", "Toy Story", "[1], [2]"]
)
def test_cells_that_do_not_say_where_an_id_ends_are_refused(tmp_path, cell):
    """NumPy leaves out most of a long array."""
    rows = [cell] * 3 if cell.startswith("[") else [cell, "Heat", "Alien"]
    pd.DataFrame({"user": ["a", "b", "c"], "items": rows}).to_csv(tmp_path / "a.csv")
    with pytest.raises(
        ValueError, match=r"a\.csv: column 'items' has texts such as .* where an id ends: write"
    ):
        load_interactions(tmp_path / "a.csv")


def test_a_column_with_the_name_of_a_list_may_hold_an_item_a_row(tmp_path):
    text = "user,items,timestamp\n" + lines("{u},{i},{t}")
    assert histories(write(tmp_path / "a.csv", text)) == LISTS
    with pytest.raises(
        ValueError, match="'items' has one item in each row, and no column holds the users"
    ):
        load_interactions(pa.table({"items": [1, 2, 3]}))


@pytest.mark.parametrize(
    "items", [[[1.5, 2.0]], [[[1], [2]]], [[{"id": 1, "ts": 2}]], [[b"a", b"b"]]], ids=str
)
def test_lists_of_other_values_are_refused(items):
    with pytest.raises(ValueError, match=r"column 'items' is of type .*: give ids as integers or"):
        load_interactions(pa.table({"user": [1], "items": items}))


def test_empty_lists_are_users_without_items(tmp_path):
    table = pa.table({"user": [1, 2, 3, 4], "items": [[], [5, 6, 7], None, [7, 6, 5]]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert histories(tmp_path / "a.parquet") == [[5, 6, 7], [7, 6, 5]]
    with pytest.raises(ValueError, match="holds no interactions"):
        load_interactions(table.slice(0, 1))


CHATS = [
    {"user": f"hello how are you {i}", "assistant": "fine, and you today?", "history": []}
    for i in range(40)
]


def test_chats_with_a_user_are_no_interactions(tmp_path):
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join(map(json.dumps, CHATS)))
    with pytest.raises(ValueError, match="has columns user, assistant, history, and several"):
        recognise(path)
    path.write_text("\n".join(json.dumps({"history": ["a b"], "text": "a b c d"}) for _ in CHATS))
    assert recognise(path) == "text"


def test_ids_in_lists_may_look_like_dates(tmp_path):
    row = {"user": "1999-12-31", "items": ["2020-01-02", "2020-01-01", "2020-01-01 00:00:00"]}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    found = load_interactions(tmp_path / "a.jsonl")
    assert [found.item_ids[item - 1] for item in found.sequences[0]] == row["items"]


def test_many_lists_need_little_memory_and_time(tmp_path):
    rng = np.random.default_rng(0)
    items = pa.array(rng.integers(0, 1000, 2_000_000))
    lists = pa.LargeListArray.from_arrays(np.arange(0, 2_000_001, 20), items)
    found = load_interactions(pa.table({"user": np.arange(100_000), "items": lists}))
    assert len(found.sequences) == 100_000
    assert np.array_equal(np.concatenate(found.sequences) - 1, items.to_numpy())
