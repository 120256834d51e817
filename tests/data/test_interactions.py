"""Interactions of known data sets and of one's own, in miniature; the split; and the real counts
where the data are at hand.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from datasets import Dataset, DatasetDict

from farzi_hf.data import (
    DataUnavailableError,
    Interactions,
    load_interactions,
    load_sample_interactions,
)
from farzi_hf.data.readers import SOURCES

# user, item, timestamp: user 7 has four rows, two of them equal, at one time two; user 5 has three,
# user 9 two
ROWS = [
    (7, 30, 5),
    (5, 20, 1),
    (7, 10, 2),
    (9, 20, 1),
    (7, 20, 5),
    (5, 30, 0),
    (9, 50, 2),
    (5, 40, 3),
    (7, 10, 2),
]
EXPECTED = [[3, 2, 4], [1, 1, 3, 2]]  # users 5 and 7; items 10, 20, 30, 40 as 1 … 4, 50 is nobody's


def lines(form: str, rows: list[tuple[int, int, int]] = ROWS) -> str:
    return "".join(form.format(u=u, i=i, t=t) + "\n" for u, i, t in rows)


def lists(interactions: Interactions) -> list[list[int]]:
    return [sequence.tolist() for sequence in interactions.sequences]


FILES = {
    "ml-100k": ("u.data", "{u}\t{i}\t3\t{t}"),
    "magazine": ("Magazine_Subscriptions.csv", "{u},{i},5.0,{t}"),
}
"""By name: the file, and the form of its lines."""
NUMBERED = lines("{u},{i},5.0,{t}")
HEADER = "user,item,timestamp\n"


@pytest.fixture(params=FILES)
def name(request) -> str:
    return request.param


@pytest.fixture
def path(name, tmp_path) -> Path:
    file, form = FILES[name]
    (tmp_path / file).write_text(lines(form))
    return tmp_path / file


@pytest.fixture
def magazine(tmp_path) -> Path:
    return tmp_path / "Magazine_Subscriptions.csv"


# -- known data sets -------------------------------------------------------------------------------


def test_a_users_items_by_time_then_row_numbered_and_filtered(name, path):
    interactions = load_interactions(name, path.parent)
    assert lists(interactions) == EXPECTED
    assert (interactions.num_items, interactions.item_titles) == (4, None)
    assert interactions.vocabulary == ["<pad>", "10", "20", "30", "40"]
    assert [str(user) for user in interactions.user_ids] == ["5", "7"]
    assert len(load_interactions(name, path.parent, min_interactions=2).sequences) == 3
    assert load_interactions(name, path.parent, min_interactions=4).num_items == 3
    with pytest.raises(
        ValueError, match="min_interactions=5 leaves no user: the most active one has 4; give less"
    ):
        load_interactions(name, path.parent, min_interactions=5)


@pytest.mark.parametrize("name", ["ml-100k"], indirect=True)
def test_titles_are_read_where_they_are(path, monkeypatch):
    # Latin-1, which knows no end of a line in \x85.
    titles = lines(
        "{i}|\x85Caf\xe9 {i} (1995)|01-Jan-1995||http", [(0, 20, 0), (0, 30, 0), (0, 99, 0)]
    )
    path.with_name("u.item").write_bytes(titles.encode("latin-1"))
    expected = ["<pad>", "10", "\x85Caf\xe9 20 (1995)", "\x85Caf\xe9 30 (1995)", "40"]
    assert load_interactions("ml-100k", path).item_titles == expected
    monkeypatch.setenv("HOME", str(path.parent))
    monkeypatch.setenv("USERPROFILE", str(path.parent))
    (path.parent / path.name).write_text("user\titem\ttimestamp\n" + lines("{u}\t{i}\t{t}"))
    for source in (path, f"~/{path.name}"):
        assert load_interactions(source).item_titles == expected


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff" + NUMBERED,
        "\n\r\n" + NUMBERED.replace("\n", "\r\n"),
        lines('"{u}",{i},5.0,{t}'),
        lines("B0{i},A{u},5.0,{t}"),
        lines("A{u},B0{i},5.0,{t}"),
        '\ufeff\n"timestamp","item","user"\n' + lines("{t},{i},{u}"),
    ],
    ids=["byte order mark", "ends of lines", "quotes", "Amazon's own", "user first", "header"],
)
def test_users_are_users_however_the_magazine_file_starts(magazine, text):
    magazine.write_text(text, newline="")
    assert lists(load_interactions("magazine", magazine.parent)) == EXPECTED


@pytest.mark.parametrize(
    "form",
    [
        "u{u},i{i},5.0,{t}",
        "b-{i},#oc-A{u},5.0,{t}",
        "{u}.0,x{i},5.0,{t}",
        "alice{u},{i},5.0,{t}",
        "{i},alice{u},5.0,{t}",
    ],
)
def test_columns_that_do_not_say_which_holds_the_users_are_refused(magazine, form):
    magazine.write_text(lines(form))
    with pytest.raises(
        ValueError, match=r"Magazine_.*csv does not say which column holds the users.*the line"
    ):
        load_interactions("magazine", magazine)


def test_a_folder_holds_the_file_once(name, path):
    for folder in ("first", "second"):
        path.with_name(folder).mkdir()
        path.with_name(folder).joinpath(path.name).write_bytes(path.read_bytes())
    path.unlink()
    with pytest.raises(
        ValueError,
        match=rf"data_dir=.* holds more than one {path.name}: pass the folder that has it",
    ):
        load_interactions(name, path.parent)
    assert lists(load_interactions(name, path.with_name("first"))) == EXPECTED
    path.with_name("first").joinpath(path.name).unlink()
    with pytest.raises(ValueError, match=r"data_dir=.* lacks .*https://"):
        load_interactions(name, path.with_name("first"))


@pytest.mark.parametrize(
    "cut",
    [
        lambda text: text[: text.rindex("\n", 0, -1) + 2],
        lambda text: "7\n5\n",
        lambda text: "",
        lambda text: "\r",
    ],
    ids=["within a line", "a column missing", "empty", "an end of a line"],
)
def test_a_file_cut_short_is_an_error(name, path, cut):
    whole = path.read_text()
    path.write_text(whole.rstrip("\n"))  # the last line is whole without its end
    assert lists(load_interactions(name, path)) == EXPECTED
    path.write_text(cut(whole), newline="")
    with pytest.raises(ValueError, match=rf"{path.name} (does not hold|holds no|has columns)"):
        load_interactions(name, path)


def test_without_folder_and_network_the_error_says_where_the_data_are(name, monkeypatch):
    def fail(*args, **kwargs):
        raise ConnectionError("nothing there")

    monkeypatch.setattr("farzi_hf.data.readers.DownloadManager.download_and_extract", fail)
    monkeypatch.setattr("farzi_hf.data.readers.load_dataset", fail)
    with pytest.raises(DataUnavailableError, match=r"https://.* pass data_dir"):
        load_interactions(name)
    with pytest.raises(
        DataUnavailableError,
        match=f"'ml-10k' is none of {', '.join(SOURCES)}, no file.*nothing there",
    ):
        load_interactions("ml-10k")


# -- timestamps and ids ----------------------------------------------------------------------------


def rows(timestamps: list, users: list | None = None, items: list | None = None) -> Dataset:
    """One user's rows unless `users` says otherwise, items in the order 0, 1, ….; through Arrow, so
    that types stay.
    """
    n = len(timestamps)
    return Dataset(
        pa.table(
            {"user": users or [1] * n, "item": items or list(range(n)), "timestamp": timestamps}
        )
    )


@pytest.mark.parametrize(
    "times",
    [
        [300, 9, 20],
        [3.5, -1.0, 2.25],
        ["300", "9", "20"],
        ["10.5", "9", "10.25"],
        pa.array([3, 1, 2], pa.date32()),
        [
            datetime.datetime(2021, 1, 1),
            datetime.datetime(1969, 12, 31),
            datetime.datetime(2020, 1, 1),
        ],
        pa.array([3, 1, 2], pa.timestamp("ns", "America/New_York")),
        ["2020-02-01", "2019-12-31", "2020-01-15"],
        ["2020-02-01 10:00", "2020-02-01T09:59:59.999", "2020-02-01 09:59:59.9999"],
        ["2020-02-01T10:00:00+01:00", "2020-02-01T08:00:00Z", "2020-02-01T10:30:00+0200"],
        [
            "2020-02-01T10:00:00.000000003",
            "2020-02-01T10:00:00.000000001",
            "2020-02-01T10:00:00.000000002",
        ],
        ["12/31/2020", "01/02/2019", "02/01/2019"],
        ["31.12.2020 09:00", "1.2.2020 10:00", "2.2.2020 9:59"],
        ["12/31/2020, 01:00:00 PM", "12/31/2020, 12:30:00 AM", "12/31/2020, 11:00:00 AM"],
        ["2020/2/1 10:00", "2020/1/31 11:00", "2020/2/1 9:59"],
        ["12/31/20", "02/01/19", "03/01/19"],
        ["05 3, 2014", "04 30, 2014", "05 1, 2014"],
        ["1 Feb 2020", "31 Dec 2019", "15 Jan 2020"],
        ["March 1, 2020", "December 2, 2019", "January 3, 2020"],
        [
            "Sat Feb 01 10:00:00 +0100 2020",
            "Sat Feb 01 08:00:00 +0000 2020",
            "Sat Feb 01 03:30:00 -0500 2020",
        ],
        ["02/02/2020", "01/01/2020", "01/01/2020"],
        ["2019-10-03 00:00:00 UTC", "2019-10-01 23:59:59 UTC", "2019-10-02 00:00:00 UTC"],
        ["10/13/2019 10:00 +0100", "10/13/2019 08:00 +0000", "10/13/2019 12:30 +0400"],
        pa.array([300, 9, 20], pa.decimal128(12)),
        pa.array([3, 1, 2], pa.decimal128(12, 3)),
    ],
    ids=[
        "integers",
        "floats",
        "integers as text",
        "decimals as text",
        "dates",
        "datetimes",
        "zoned datetimes",
        "ISO dates",
        "ISO times",
        "ISO zones",
        "ISO nanoseconds",
        "month first",
        "day first, with times",
        "month first, with halves of the day",
        "year first",
        "two digits of the year",
        "Amazon's dates",
        "short names of months",
        "names of months",
        "Twitter's dates",
        "day and month are the same",
        "a zone by its name",
        "month first, with zones",
        "decimals",
        "decimals with places",
    ],
)
def test_timestamps_order_as_what_they_mean(times):
    assert lists(load_interactions(rows(times))) == [[2, 3, 1]]


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (["12/31/2019", "31/12/2020", "02/01/2020"], "'../../20..'"),
        (["12/31/2019", "01/01/2020 10:00", "02/01/2020"], "'../../20...*'"),
        (["2019-12-31", "2020-02-30", "2020-01-01"], "'2020-02-30'"),
        (["2020-01-01", "2020-01-01T00:00Z", "2020-01-01"], "'2020-01-01T00:00Z'"),
        (["5", "2020-01-01", "0x6"], "'5'|'0x6'"),
        (["1", "2", "99999999999999999999"], "'99999999999999999999'"),
        ([1.0, float("nan"), 2.0], "of type double"),
        ([True, False, True], "of type bool"),
        ([datetime.timedelta(1)] * 3, "of type duration"),
        ([[1], [2], [3]], "of type list"),
    ],
)
def test_timestamps_that_could_mean_something_else_are_refused(times, reason):
    with pytest.raises(
        ValueError, match=rf"the data set: column 'timestamp' .*({reason}).*: give integers, finite"
    ):
        load_interactions(rows(times))


@pytest.mark.parametrize(
    ("times", "forms", "shown"),
    [
        (["01/01/2020", "07/08/2020", "11/12/2020"], "%m/%d/%Y and %d/%m/%Y", "07/08/2020"),
        (["1.2.2020 9:00", "3.3.2020 9:00"], "%m.%d.%Y %H:%M and %d.%m.%Y %H:%M", "1.2.2020 9:00"),
        (["12-11-10", "12-11-09"], "%m-%d-%y and %d-%m-%y", "12-11-10"),
        (["05 03, 2014", "04 10, 2014"], "%m %d, %Y and %d %m, %Y", "05 03, 2014"),
    ],
)
def test_dates_that_do_not_say_which_number_is_the_month_are_refused(times, forms, shown):
    message = (
        rf"the data set: column 'timestamp' may be read in two ways \({forms}\), because no date"
        rf" shows which, such as '{shown}': write dates as 2020-12-31"
    )
    with pytest.raises(ValueError, match=message):
        load_interactions(rows(times), min_interactions=1)


def test_a_column_is_not_read_as_two(tmp_path):
    given = {"user_column": "item", "item_column": "item"}
    message = "user_column, item_column and time_column are 'item', 'item', 'timestamp': name diff"
    with pytest.raises(ValueError, match=message):
        load_interactions(rows([1, 2, 3]), **given)
    path = tmp_path / "own.csv"
    path.write_text(HEADER + "1,2,3\n" * 4)
    with pytest.raises(ValueError, match=message):
        load_interactions(path, **given)


@pytest.mark.parametrize("name", ["user", "item", "timestamp"])
@pytest.mark.parametrize("value", [None, ""])
def test_empty_values_are_refused_with_their_row(name, value):
    table = {"user": ["a"] * 4, "item": ["b"] * 4, "timestamp": ["3"] * 4}
    table[name] = [*table[name][:2], value, value]
    message = rf"column '{name}' has 2 empty values in 4 rows, the first in row 2 \(counted from 0\): leave"
    with pytest.raises(ValueError, match=message):
        load_interactions(Dataset.from_dict(table))


def test_ids_are_kept_as_they_are():
    items = ["007", "7", " 7", "NA", "None", "1e3"]
    interactions = load_interactions(rows([1, 2, 3, 4, 5, 6], items=items))
    assert [interactions.item_ids[i - 1] for i in lists(interactions)[0]] == items
    assert len(load_interactions(rows([1] * 6, users=["007"] * 3 + ["7"] * 3)).sequences) == 2
    large = [2**63 + 1, 2**63 + 2, 5]
    assert load_interactions(rows([1] * 3, items=pa.array(large, pa.uint64()))).item_ids == sorted(
        large
    )


@pytest.mark.parametrize(
    "ids", [[1.0, 2.0, 2.5], [b"a", b"b", b"c"], [True, False, True], [[1], [2], [3]]], ids=str
)
def test_ids_of_another_type_are_refused(ids):
    for changed in ({"users": ids}, {"items": ids}):
        with pytest.raises(
            ValueError,
            match=r"the data set: column '(user|item)' is of type .*: give ids as integers or text",
        ):
            load_interactions(rows([1, 2, 3], **changed))


@pytest.mark.parametrize(
    ("items", "alike"),
    [
        (["1", "1.0", "2"], "'1' and '1.0'"),
        (["7", "5", "007"], "'7' and '007'"),
        (["1", "1.5", "b"], None),
        (["007", "NA", "null"], None),
    ],
)
def test_two_ids_that_would_be_one_number_stay_two_and_are_named(tmp_path, caplog, items, alike):
    (tmp_path / "own.csv").write_text(
        HEADER + "".join(f"u,{item},{t}\n" for t, item in enumerate(items))
    )
    assert load_interactions(tmp_path / "own.csv").item_ids == sorted(items)
    assert [f"own.csv: the items {alike} count as two" in text for text in caplog.messages] == [
        True
    ] * (alike is not None)


# -- data frames and files -------------------------------------------------------------------------


def test_tables():
    users, items, times = (list(column) for column in zip(*ROWS, strict=True))
    frame = pd.DataFrame({"user": users, "item": items, "timestamp": times})
    dated = pd.DataFrame(
        {
            "user": pd.Categorical(users),
            "item": [f"i{i}" for i in items],
            "timestamp": pd.to_datetime(times, unit="D"),
        }
    )
    other = Dataset.from_dict({**frame.to_dict("list"), "rating": [1] * 9})
    for table in (frame, dated, other, pa.table(frame)):
        assert lists(load_interactions(table)) == EXPECTED
    assert load_interactions(other).item_ids == [10, 20, 30, 40]
    with pytest.raises(
        ValueError,
        match=(
            r"the data set has columns \['user', 'rating'\]: 'item' must be there exactly once;"
        ),
    ):
        load_interactions(other.select_columns(["user", "rating"]))


@pytest.fixture(params=["csv", "tsv", "jsonl", "json", "parquet"])
def own_file(request, tmp_path):
    path = tmp_path / f"own.{request.param}"
    objects = [{"user": u, "item": i, "timestamp": t, "other": None} for u, i, t in ROWS]
    texts = {
        "csv": "timestamp,rating,user,item\n" + lines("{t},?,{u},{i}"),
        "tsv": '\ufeff"item"\tuser\ttimestamp\n' + lines('"{i}"\t{u}\t{t}'),
        "jsonl": "\n\n".join(map(json.dumps, objects)),
        "json": "\n" + json.dumps(objects, indent=1),
    }
    if request.param == "parquet":
        parquet.write_table(pa.Table.from_pylist(objects), path)
    else:
        path.write_text(texts[request.param], encoding="utf-8")
    return path


def test_a_file_is_read_from_disk(own_file, monkeypatch):
    monkeypatch.setattr(
        "farzi_hf.data.readers.load_dataset", lambda *args, **kwargs: pytest.fail("asked the Hub")
    )
    monkeypatch.chdir(own_file.parent)
    for given in (
        (str(own_file),),
        (own_file,),
        (own_file.name, own_file.parent),
        (own_file.name,),
    ):
        interactions = load_interactions(*given)
        assert lists(interactions) == EXPECTED
        assert interactions.item_ids == [10, 20, 30, 40]
    content = own_file.read_bytes()
    cut = len(content) - 20 if own_file.suffix == ".parquet" else content.rindex(b"\n", 0, -2) + 2
    own_file.write_bytes(content[:cut])
    with pytest.raises(ValueError, match=rf"{own_file.name}"):
        load_interactions(own_file)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.csv", None, "no file, folder or pattern matches"),
        ("own.dat", b"1,2,3", "own.dat has columns .*name yours with user_column"),
        ("own.csv", b"\x80\n", "own.csv does not hold a header .*codec can't"),
        ("own.csv", b"", r"own.csv does not hold a header .*\(it is empty\)"),
        ("own.csv", HEADER.encode(), "own.csv holds no interactions"),
        ("own.csv", b"user,user,item,timestamp\n1,2,3,4\n", "'user' must be there exactly once"),
        (
            "own.csv",
            b"name;what\n1;2\n",
            r"own.csv has columns \['name', 'what'\]: 'user' must be there exactly once",
        ),
        ("own.csv", b"user,item,timestamp\n1,2,3\n1,2\n", r"own.csv does not hold .*Row #3"),
        ("own.csv", b"user,item,timestamp\n\xe9,2,3\n", "own.csv .*UTF8.*save that as UTF-8"),
        (
            "own.csv",
            b"user,item,timestamp\n1,\x1b[31m\n",
            r"own.csv does not hold .*got 2: 1,\\x1b\[31m\)",
        ),
        ("own.csv", b"\xff\xfeu", "own.csv does not hold .*utf-16"),
        (
            "own.csv",
            b"user,item,timestamp\n1,2,\x1b[31m\n",
            r"own.csv: column 'timestamp' cannot be read as times .*\\x1b\[31m",
        ),
        ("own.jsonl", b'{"user": 1, "item"', "own.jsonl does not hold rows"),
        ("own.jsonl", b"[1, 2]", "own.jsonl .*, one per line"),
        (
            "own.jsonl",
            b'{"user": 1, "user": 2, "item": 3, "timestamp": 4}',
            "own.jsonl .*specified twice",
        ),
        (
            "own.jsonl",
            b'{"user": 1, "item": 3, "timestamp": 4}\n{"user": "1", "item": 3, "timestamp": 4}',
            "own.jsonl .*one type per column",
        ),
        (
            "own.jsonl",
            b'{"user": 1, "item": 3, "timestamp": 4}\n{"user": 1, "item": 3}',
            "column 'timestamp' has 1 empty",
        ),
        (
            "own.json",
            b'[{"user": 1, "item": 3}, {"user": [1], "item": 3}]',
            "own.json does not hold rows",
        ),
        (
            "own.json",
            b'[{"user": 1, "item": 2}, {"user": 1, "item": 3, "timestamp": 5}]',
            "column 'timestamp' has 1 empty",
        ),
        ("own.json", b'[{"user": 1, "item": 2}, 5]', "own.json does not hold rows"),
        ("own.json", b'[{"user": 1, "item": 2}, "user"]', "own.json does not hold rows"),
        (
            "own.json",
            b'[{"user": 1, "item": 2, "x": 99999999999999999999999}]',
            "own.json does not hold rows",
        ),
        (
            "own.json",
            b'[{"user": 1, "what": 3}]',
            r"own.json has columns \['user', 'what'\]: 'item' must be there exactly once",
        ),
        ("own.jsonl", b"[" * 100_000, "own.jsonl does not hold rows"),
        ("own.parquet", b"PAR1", "own.parquet is not a whole Parquet file"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_interactions(str(tmp_path / name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_file_may_say_its_encoding(tmp_path, encoding):
    (tmp_path / "own.csv").write_text(HEADER + lines("{u},é{i},{t}"), encoding=encoding)
    assert lists(load_interactions(tmp_path / "own.csv")) == EXPECTED
    (tmp_path / "own.jsonl").write_text(
        lines('{{"user": {u}, "item": "é{i}", "timestamp": {t}}}'), encoding=encoding
    )
    assert lists(load_interactions(tmp_path / "own.jsonl")) == EXPECTED


@pytest.mark.parametrize("times", [[3, 1, 2], ["2020-01-03", "2020-01-01", "2020-01-02"]])
def test_ids_in_json_may_look_like_dates(tmp_path, times):
    items = ["2020-01-01", "2020-01-02", "2020-01-01 00:00:00"]
    objects = [
        {"user": "1999-12-31", "item": i, "timestamp": t} for i, t in zip(items, times, strict=True)
    ]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, objects)))
    found = load_interactions(tmp_path / "own.jsonl")
    assert [found.item_ids[i - 1] for i in lists(found)[0]] == [items[1], items[2], items[0]]


@pytest.mark.parametrize("name", ["own.tsv", "own.inter"])
@pytest.mark.parametrize("last", ["categories, brand, colour", "a, b, c, d, e"])
def test_tabs_divide_where_the_name_says_so(tmp_path, name, last):
    (tmp_path / name).write_text(f"user_id\titem_id\t{last}\n" + lines("{u}\t{i}\tx, y, z"))
    assert len(load_interactions(tmp_path / name).sequences) == 2
    (tmp_path / name).write_text("user_id,item_id\n" + lines("{u},{i}"))
    assert len(load_interactions(tmp_path / name).sequences) == 2


# -- the split -------------------------------------------------------------------------------------


def test_the_split_is_of_users_80_10_10_disjoint_and_seeded():
    sequences = [np.array([user + 1] * 3) for user in range(57)]
    interactions = Interactions(sequences, 57)
    first, again, other = (interactions.strong_generalization_split(seed) for seed in (0, 0, 1))
    assert [len(first[name]) for name in ("train", "validation", "test")] == [47, 5, 5]
    users = [row[0] for split in first.values() for row in split["input_ids"]]
    assert sorted(users) == list(range(1, 58))
    assert all(first[name]["input_ids"] == again[name]["input_ids"] for name in first)
    assert first["test"]["input_ids"] != other["test"]["input_ids"]
    with pytest.raises(
        ValueError, match=r"the data have 9 users.* needs 10 or more; choose --held_out last_items"
    ):
        Interactions(sequences[:9], 57).strong_generalization_split(0)


def splits_of(interactions: Interactions, split: DatasetDict) -> dict[str, list[list]]:
    """The histories of each split, as original ids."""
    return {
        name: [[interactions.item_ids[i - 1] for i in row] for row in rows["input_ids"]]
        for name, rows in split.items()
    }


def test_leave_one_out_holds_out_the_last_items_of_each_user():
    data = load_interactions(
        rows(list(range(9)), users=[1] * 4 + [2] * 3 + [3] * 2, items=list("abcdxyzpq")),
        min_interactions=2,
    )
    expected = {
        "train": [list("ab"), ["x"], list("pq")],
        "validation": [list("abc"), list("xy")],
        "test": [list("abcd"), list("xyz")],
    }
    assert splits_of(data, data.leave_one_out_split()) == expected
    with pytest.raises(
        ValueError, match="the interactions have no splits of their own: give files"
    ):
        data.own_split()
    short = load_interactions(rows([1, 2], users=[1, 1]), min_interactions=2)
    with pytest.raises(ValueError, match="the validation split has no user: give longer histories"):
        short.leave_one_out_split()


def test_a_split_that_no_file_holds_is_named_with_what_helps(tmp_path):
    for part, first in (("train", 0), ("test", 100)):
        (tmp_path / f"{part}.csv").write_text(
            HEADER + "".join(f"{u},{i},{first + i}\n" for u in range(30) for i in range(4))
        )
    data = load_interactions(tmp_path)
    with pytest.raises(
        ValueError,
        match=r"the validation split has no user: .* a file validation.csv, or --held_out users",
    ):
        data.own_split()
    assert len(data.strong_generalization_split(0)["validation"]) == 3
    (tmp_path / "validation.csv").write_text((tmp_path / "test.csv").read_text())
    assert len(load_interactions(tmp_path).own_split()["validation"]) == 30


def test_splits_of_files_are_kept(tmp_path):
    files = {
        "train": "1,a,1 1,b,2 2,c,1 2,d,2 3,a,1",
        "valid": "1,c,3 3,b,0",
        "test": "1,d,9 4,a,1 4,b,2 5,a,1",
    }
    for name, lines in files.items():
        (tmp_path / f"my.{name}.csv").write_text(HEADER + "\n".join(lines.split()))
    data = load_interactions(tmp_path, min_interactions=1)
    in_python = DatasetDict(
        {
            name: Dataset.from_csv(str(tmp_path / f"my.{file}.csv"))
            for name, file in (("test", "test"), ("train", "train"), ("validation", "valid"))
        }
    )
    again = load_interactions(in_python, min_interactions=1)
    assert splits_of(again, again.own_split()) == splits_of(data, data.own_split())
    called_dev = DatasetDict(
        train=in_python["train"], dev=in_python["validation"], test=in_python["test"]
    )
    again = load_interactions(called_dev, min_interactions=1)  # it was left out
    assert splits_of(again, again.own_split()) == splits_of(data, data.own_split())
    with pytest.raises(ValueError, match="the data set: its 0 parts differ"):
        load_interactions(DatasetDict(full=in_python["train"]))
    # An earlier file comes before a later one, whatever its times are; user 5 has one item, and
    # nothing to predict.
    expected = {
        "train": [["a", "b"], ["c", "d"], ["a"]],
        "validation": [["a", "b", "c"], ["a", "b"]],
        "test": [["a", "b", "c", "d"], ["a", "b"]],
    }
    assert splits_of(data, data.own_split()) == expected


def test_users_and_items_with_few_rows_are_left_out_until_all_have_enough():
    users = [1, 1, 1, 2, 2, 3, 3, 3, 4]
    data = rows(list(range(9)), users=users, items=["a", "b", "c", "a", "b", "a", "b", "d", "d"])
    # c is rare; d is common, but only as long as user 4 counts
    found = load_interactions(data, min_interactions=2, min_item_interactions=2)
    assert found.item_ids == ["a", "b"]
    assert lists(found) == [[1, 2]] * 3
    with pytest.raises(
        ValueError,
        match=(
            "min_interactions=3 with min_item_interactions=2 leaves no user: the most active one"
            " has 3"
        ),
    ):
        load_interactions(data, min_interactions=3, min_item_interactions=2)


def test_sample_interactions_have_an_order_that_popularity_does_not_know():
    interactions, again = load_sample_interactions(300), load_sample_interactions(300)
    assert lists(interactions) == lists(again)
    shown = repr([interactions.item_titles, lists(interactions)])
    # Other viewers would change every figure of the demo.
    assert hashlib.sha256(shown.encode()).hexdigest()[:16] == "4fdca3e03a84df2f"
    assert len(interactions.item_titles) == interactions.num_items + 1
    pairs = [pair for row in lists(interactions) for pair in pairwise(row)]
    assert np.mean([following == previous + 1 for previous, following in pairs]) > 0.4
    assert max(np.bincount(np.concatenate(interactions.sequences))) < 0.05 * len(pairs)


# -- the real thing --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "variable", "counts"),
    [
        ("ml-100k", "FARZI_ML100K_DIR", (943, 1682, 100_000, 20)),
        ("magazine", "FARZI_MAGAZINE_DIR", (3092, 1305, 12_689, 3)),
    ],
)
def test_counts_of_the_real_data(name, variable, counts):
    if variable not in os.environ:
        pytest.skip(f"{variable} names no folder with {name}")
    interactions = load_interactions(name, os.environ[variable])
    lengths = [len(sequence) for sequence in interactions.sequences]
    assert (len(lengths), interactions.num_items, sum(lengths), min(lengths)) == counts


@pytest.mark.parametrize(
    ("given", "changes", "message"),
    [
        (None, {}, r"^name is a NoneType that makes no table .*; give a data frame, a Dataset"),
        ([1, 2], {}, "^name is a list that makes no table"),
        (3, {}, "^name is a int that makes no table"),
        ({}, {"min_interactions": "3"}, "^min_interactions must be an integer of at least 0, got"),
        ({}, {"min_interactions": -1}, "^min_interactions must be an integer of at least 0, got"),
        ({}, {"min_item_interactions": 1.5}, "^min_item_interactions must be an integer of at"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named(given, changes, message):
    with pytest.raises(ValueError, match=message):
        load_interactions(given, **changes)


def test_a_table_of_invoices_is_read_without_naming_its_columns(tmp_path):
    """As of the UCI's "Online Retail"."""
    path = tmp_path / "retail.csv"
    rows = [f"{i},A{j},12/{15 - j}/2010 8:26,1{i}" for i in range(4) for j in range(3)]
    path.write_text("\n".join(["InvoiceNo,StockCode,InvoiceDate,CustomerID", *rows]))
    found = load_interactions(path, min_interactions=1)
    assert found.vocabulary[1:] == ["A0", "A1", "A2"]
    assert [list(row) for row in found.sequences] == [[3, 2, 1]] * 4
