"""Interactions of the user's own: data sets, data frames and files; what is read exactly, and what is refused."""

from __future__ import annotations

import datetime
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from datasets import Dataset, DatasetDict
from own_rows import EXPECTED, ROWS, lines, lists

from farzi_hf.data import load_interactions

USERS, ITEMS, TIMES = (list(column) for column in zip(*ROWS, strict=True))


def rows(timestamps: list, users: list | None = None, items: list | None = None) -> Dataset:
    """One user's rows unless `users` says otherwise, items in the order 0, 1, ….; through Arrow, so that types stay."""
    n = len(timestamps)
    return Dataset(pa.table({"user": users or [1] * n, "item": items or list(range(n)), "timestamp": timestamps}))


# -- timestamps and ids ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "times",
    [
        [300, 9, 20], [3.5, -1.0, 2.25], ["300", "9", "20"], ["10.5", "9", "10.25"],
        pa.array([3, 1, 2], pa.date32()), pa.array([3 * 86_400_000, 86_400_000, 2 * 86_400_000], pa.date64()),
        [datetime.datetime(2021, 1, 1), datetime.datetime(1969, 12, 31), datetime.datetime(2020, 1, 1)],
        pa.array([3, 1, 2], pa.timestamp("ns", "America/New_York")),
        ["2020-02-01", "2019-12-31", "2020-01-15"], ["2020-02-01 10:00", "2020-02-01T09:59:59.999", "2020-02-01 09:59:59.9999"],
        ["2020-02-01T10:00:00+01:00", "2020-02-01T08:00:00Z", "2020-02-01T10:30:00+0200"],
        ["2020-02-01T10:00:00.000000003", "2020-02-01T10:00:00.000000001", "2020-02-01T10:00:00.000000002"],
    ],
    ids=["integers", "floats", "integers as text", "decimals as text", "dates", "dates in milliseconds", "datetimes", "zoned datetimes",
         "ISO dates", "ISO times", "ISO zones", "ISO nanoseconds"],
)  # fmt: skip
def test_timestamps_order_as_what_they_mean(times):
    interactions = load_interactions(rows(times))
    assert lists(interactions) == [[2, 3, 1]]


@pytest.mark.parametrize(
    ("times", "row", "value"),
    [
        (["12/31/2019", "01/01/2020", "02/01/2020"], 0, "'12/31/2019'"), (["2019-12-31", "2020-01-01", "01/02/2020"], 2, "'01/02/2020'"),
        (["2019-12-31", "2020-02-30", "2020-01-01"], 1, "'2020-02-30'"),
            (["2020-01-01", "2020-01-01T00:00Z", "2020-01-01"], 1, "'2020-01-01T00:00Z'"),
        (["5", "2020-01-01", "6"], 1, "'2020-01-01'"), (["5", "05", "6"], 1, "'05'"),
            (["1", "2", "99999999999999999999"], 2, "'99999999999999999999'"),
        (["1.5", "9007199254740993", "2"], 1, "'9007199254740993'"), ([1.0, float("nan"), 2.0], 1, "nan"), ([1.0, 2.0, float("-inf")], 2, "-inf"),
        ([True, False, True], 0, "True"), ([datetime.timedelta(1)] * 3, 0, r"datetime\.timedelta\(days=1\)"), ([[1], [2], [3]], 0, r"\[1\]"),
    ],
)  # fmt: skip
def test_timestamps_that_could_mean_something_else_are_refused_with_their_row(times, row, value):
    with pytest.raises(
        ValueError, match=rf"the data set: timestamp {value} in row {row} \(counted from 0\) .*: give integers, finite"
    ):
        load_interactions(rows(times))


@pytest.mark.parametrize("name", ["user", "item", "timestamp"])
@pytest.mark.parametrize("value", [None, ""])
def test_empty_values_are_refused_with_their_row(name, value):
    table = {"user": ["a"] * 4, "item": ["b"] * 4, "timestamp": ["3"] * 4}
    table[name] = [*table[name][:2], value, value]
    with pytest.raises(
        ValueError, match=rf"column '{name}' has 2 empty values in 4 rows, the first in row 2 \(counted from 0\)"
    ):
        load_interactions(Dataset.from_dict(table))


def test_ids_are_kept_as_they_are():
    items = ["007", "7", " 7", "NA", "None", "1e3"]
    interactions = load_interactions(rows([1, 2, 3, 4, 5, 6], items=items))
    assert [interactions.item_ids[i - 1] for i in lists(interactions)[0]] == items
    assert len(load_interactions(rows([1] * 6, users=["007"] * 3 + ["7"] * 3)).sequences) == 2
    large = [2**63 + 1, 2**63 + 2, 5]
    assert load_interactions(rows([1] * 3, items=pa.array(large, pa.uint64()))).item_ids == sorted(large)


@pytest.mark.parametrize("ids", [[1.0, 2.0, 2.5], [b"a", b"b", b"c"], [True, False, True], [[1], [2], [3]]], ids=str)
def test_ids_of_another_type_are_refused(ids):
    for changed in ({"users": ids}, {"items": ids}):
        with pytest.raises(ValueError, match=r"(user|item) .* in row 0 .* is of type .*: give ids as integers or text"):
            load_interactions(rows([1, 2, 3], **changed))


# -- data frames and files -------------------------------------------------------------------------------------------


def test_a_data_frame():
    frame = pd.DataFrame({"user": USERS, "item": ITEMS, "timestamp": TIMES, "other": [object] * 9})
    assert lists(load_interactions(frame.drop(columns="other"))) == EXPECTED
    dated = pd.DataFrame(
        {"user": pd.Categorical(USERS), "item": [f"i{i}" for i in ITEMS], "timestamp": pd.to_datetime(TIMES, unit="D")}
    )
    assert lists(load_interactions(dated)) == EXPECTED
    assert lists(load_interactions(pa.table({"user": USERS, "item": ITEMS, "timestamp": TIMES}))) == EXPECTED


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        ({"user": [1, 2]}, r"the data set has columns \['user'\], but no item, timestamp"),
        ({"user": [1, "2"], "item": [1, 2], "timestamp": [1, 2]}, "the data frame cannot be read .*: give each column one type"),
        ({"user": [1.0, float("nan")], "item": [1, 2], "timestamp": [1, 2]}, "column 'user' has 1 empty values"),
        ({"user": [1, 2], "item": [1, 2], "timestamp": [1, pd.NaT]}, "cannot be read|column 'timestamp' has 1 empty values"),
    ],
)  # fmt: skip
def test_a_data_frame_that_cannot_be_used(frame, message):
    with pytest.raises(ValueError, match=message):
        load_interactions(pd.DataFrame(frame))


@pytest.mark.parametrize("data", [DatasetDict(), {"user": [1]}, [1, 2], None, 3], ids=lambda data: type(data).__name__)
def test_what_is_no_table_is_refused_in_one_line(data):
    with pytest.raises(
        TypeError, match=f"name is a {type(data).__name__}; give one of ml-100k, .* or a data frame"
    ) as caught:
        load_interactions(data)
    assert "\n" not in str(caught.value)


def as_json(rows: list[tuple[int, int, int]]) -> list[dict]:
    return [{"user": u, "item": i, "timestamp": t, "other": None} for u, i, t in rows]


@pytest.fixture(params=["csv", "tsv", "json", "jsonl", "parquet"])
def own_file(request, tmp_path):
    path = tmp_path / f"own.{request.param}"
    texts = {
        "csv": "timestamp,rating,user,item\n" + lines("{t},?,{u},{i}"), "tsv": '\ufeff"item"\tuser\ttimestamp\n' + lines('"{i}"\t{u}\t{t}'),
        "json": json.dumps(as_json(ROWS), indent=1), "jsonl": "\n\n".join(map(json.dumps, as_json(ROWS))),
    }  # fmt: skip
    if request.param == "parquet":
        parquet.write_table(pa.Table.from_pylist(as_json(ROWS)), path)
    else:
        path.write_text(texts[request.param], encoding="utf-8")
    return path


@pytest.fixture
def no_network(monkeypatch):
    monkeypatch.setattr("farzi_hf.data.readers.load_dataset", lambda *args, **kwargs: pytest.fail("asked the Hub"))


@pytest.mark.usefixtures("no_network")
def test_a_file_is_read_from_disk(own_file, monkeypatch):
    for given in ((str(own_file),), (own_file,), (own_file.name, own_file.parent)):
        interactions = load_interactions(*given)
        assert lists(interactions) == EXPECTED
        assert interactions.item_ids == [10, 20, 30, 40]
    monkeypatch.chdir(own_file.parent)
    assert lists(load_interactions(own_file.name)) == EXPECTED


@pytest.mark.usefixtures("no_network")
def test_a_file_cut_short_is_refused_by_name(own_file):
    content = own_file.read_bytes()
    cut = len(content) - 20 if own_file.suffix == ".parquet" else content.rindex(b"\n", 0, -2) + 2
    own_file.write_bytes(content[:cut])
    with pytest.raises(ValueError, match=rf"{own_file.name}"):
        load_interactions(own_file)


@pytest.mark.usefixtures("no_network")
@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("own.csv", None, "own.csv is no file: check the name"), ("own.dat", None, "own.dat is no file"), ("own.XLSX", None, "own.XLSX is no file"),
        ("own.dat", b"1,2,3", "own.dat is of a kind that is not read here: give .csv, .tsv, .parquet, .json, .jsonl"),
        ("own", "folder", "own is a folder: give one of its files"), ("own", b"1,2,3", "own is of a kind that is not read here"),
        ("own.csv", b"\x80\n", "own.csv does not hold a header .*decode byte"), ("own.csv", b"", "own.csv does not hold a header"),
        ("own.csv", b"user,item,timestamp\n", "own.csv holds no interactions"),
        ("own.csv", b"user,user,item,timestamp\n1,2,3,4\n", "user more than once"),
        ("own.csv", b"user;item;timestamp\n1;2;3\n", "has columns .*but no user"),
        ("own.csv", b"user,item,timestamp\n1,2,3\n1,2\n", r"own.csv does not hold .*Row #3"),
        ("own.csv", b"user,item,timestamp\n\xe9,2,3\n", "own.csv .*UTF8"),
        ("own.csv", b"user,item,timestamp\n1,\x1b[31m\n", r"own.csv does not hold .*got 2: 1,\\x1b\[31m\)"),
        ("own.csv", "user,item,timestamp\n1,2,3\n".encode("utf-16-le"), "own.csv .*zero bytes, as UTF-16 does: convert it with `iconv"),
        ("own.csv", b"\xff\xfeu", "own.csv begins as UTF-16, but is none"),
        ("own.csv", b"user,item,timestamp\n1,2,12/31/2020\n", "own.csv: timestamp '12/31/2020' in row 0"),
        ("own.json", b'{"user": 1, "item"', "own.json does not hold rows"), ("own.json", b"[1, 2]", "own.json does not hold rows"),
        ("own.json", b'[["u", "i", 1], ["u", "i", 2]]', r'own.json does not hold rows {"user": …, .*list'),
        ("own.json", b'[{"user": 1, "user": 2, "item": 3, "timestamp": 4}]', "own.json .*names a column twice"),
        ("own.json", b'[{"user": 1, "item": 3, "timestamp": 4}, {"user": "1", "item": 3, "timestamp": 4}]', "own.json .*one type per column"),
        ("own.json", b'[{"user": 1, "item": 3, "timestamp": 4}, {"user": 1, "item": 3}]', "column 'timestamp' has 1 empty"),
        ("own.json", b"[" * 100_000, "own.json does not hold rows"), ("own.parquet", b"PAR1", "own.parquet is no whole Parquet file"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_used_is_refused_at_once(tmp_path, name, content, message):
    if content == "folder":
        (tmp_path / name).mkdir()
    elif content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as caught:
        load_interactions(str(tmp_path / name))
    assert "\n" not in str(caught.value)


def test_a_folder_beside_a_data_set_is_refused():
    with pytest.raises(ValueError, match="data_dir='folder' is for files, and name is a Dataset: leave it out"):
        load_interactions(rows([1, 2, 3]), "folder")


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_a_file_may_say_its_encoding(tmp_path, encoding):
    (tmp_path / "own.csv").write_text("user,item,timestamp\n" + lines("{u},é{i},{t}"), encoding=encoding)
    assert lists(load_interactions(tmp_path / "own.csv")) == EXPECTED


@pytest.mark.parametrize(
    ("items", "alike"), [(["1", "1.0", "2"], "'1' and '1.0'"), (["7", "5", "007"], "'7' and '007'"), (["1", "1.5", "b"], None),
     (["007", "NA", "null"], None)]
)  # fmt: skip
def test_two_ids_that_would_be_one_number_stay_two_and_are_named(tmp_path, caplog, items, alike):
    (tmp_path / "own.csv").write_text(
        "user,item,timestamp\n" + "".join(f"u,{item},{t}\n" for t, item in enumerate(items))
    )
    assert load_interactions(tmp_path / "own.csv").item_ids == sorted(items)
    assert [f"own.csv: the items {alike} stay two" in text for text in caplog.messages] == [True] * (alike is not None)
