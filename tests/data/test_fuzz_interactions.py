"""Random files of interactions: each reader gives what a slow parse by Python's own csv gives, or an error that names the file."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pytest
from fuzzing import fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from farzi_hf.data import load_interactions

Rows = list[tuple[str, str, str]]  # user, item and timestamp as they are written
Parse = Callable[[bytes], Rows]

FILES = {"ml-100k": "u.data", "ml-1m": "ratings.dat", "magazine": "Magazine_Subscriptions.csv"}  # fmt: skip


# -- the slow parse: a ValueError where a file says nothing for certain ----------------------------------------------


def number(text: str) -> str:
    """The text itself, which is the plain one of an integer."""
    if str(int(text)) != text:
        raise ValueError(text)
    return text


def decoded(text: bytes, **settings: str) -> str:
    return text.decode("utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", **settings).lstrip("\ufeff")


def lines_of(text: bytes) -> list[str]:
    return [line for line in re.split("\r\n|\n|\r", decoded(text)) if line]


def parse_movielens(delimiter: str) -> Parse:
    def parse(text: bytes) -> Rows:
        rows = [line.split(delimiter) for line in lines_of(text)]
        return [(number(user), number(item), time) for user, item, _, time in rows]

    return parse


def parse_magazine(text: bytes) -> Rows:
    # A byte that is no UTF-8 matters in the columns that are read, and not in the others.
    rows = [row for row in csv.reader(io.StringIO(decoded(text, errors="surrogateescape"), newline="")) if row]
    if rows and {"user", "item", "timestamp"} <= set(rows[0]):
        return parse_csv(",")(text)
    first, second = ({row[i] for row in rows} for i in (0, 1))
    if any(len(row) != 4 for row in rows):
        raise ValueError("a row of another length")
    if all(re.fullmatch("[+-]?[0-9]+", x) for x in first | second):
        return [(user, item, time) for user, item, _, time in rows]
    if all(x[:1] == "A" for x in first) != all(x[:1] == "A" for x in second):
        order = (0, 1) if all(x[:1] == "A" for x in first) else (1, 0)
        return [(row[order[0]], row[order[1]], row[3]) for row in rows]
    raise ValueError("no order of the columns")


def of_header(rows: list[list[str]]) -> Rows:
    header = rows[0]
    if any(len(row) != len(header) for row in rows) or len(set(header)) < len(header):
        raise ValueError("a row of another length")
    return [tuple(row[header.index(name)] for name in ("user", "item", "timestamp")) for row in rows[1:]]


def parse_csv(delimiter: str) -> Parse:
    def parse(text: bytes) -> Rows:
        stream = io.StringIO(decoded(text, errors="surrogateescape"), newline="")
        rows = of_header([row for row in csv.reader(stream, delimiter=delimiter) if row])
        return [tuple(value.encode().decode() for value in row) for row in rows]

    return parse


def parse_jsonl(text: bytes) -> Rows:
    rows = [json.loads(line) for line in decoded(text).encode().splitlines() if line.strip()]
    return [(row["user"], row["item"], row["timestamp"]) for row in rows]


def when(times: list) -> list:
    for kind in (int, Decimal):
        if all(re.fullmatch(r"-?\d+" if kind is int else r"-?\d+(\.\d+)?", str(time)) for time in times):
            return [kind(time) for time in times]
    if all(isinstance(time, int | float) and math.isfinite(time) for time in times):
        return times
    return [datetime.fromisoformat(time.replace("Z", "+00:00")) for time in times]


def expected(rows: Rows) -> list[list[str]]:
    """The users' histories, in any order of the users."""
    times, histories = when([time for *_, time in rows]), defaultdict(list)
    for place in sorted(range(len(rows)), key=times.__getitem__):
        user, item, _ = rows[place]
        if user in ("", None) or item in ("", None):
            raise ValueError("an empty id")
        histories[user].append(str(item))
    return sorted(histories.values())


def check(path: Path, name: str | Path, text: bytes, parse: Parse, valid: bool) -> None:
    path.write_bytes(text)
    found, refusal = None, None
    try:
        found = load_interactions(name, path if isinstance(name, str) else None, min_interactions=1)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert not valid, refusal
        assert path.name in refusal
        assert "\n" not in refusal
        return
    histories = sorted([str(found.item_ids[item - 1]) for item in sequence] for sequence in found.sequences)
    assert histories == expected(parse(text))


# -- files: well-formed ones, then a few of their bytes replaced -----------------------------------------------------

numbers = st.one_of(st.integers(1, 9), st.integers(-(2**63), 2**63 - 1)).map(str)
amazon_users, amazon_items = (st.text("0123456789ABCXYZ", min_size=1, max_size=3).map(start.__add__) for start in "AB")
words = st.one_of(
    st.sampled_from(["007", "7", "07", "NA", "null", "None", "nan", "1e3"]), st.text("ab 0é", min_size=1, max_size=3)
)
integer_times = st.one_of(st.integers(0, 3), st.integers(-(2**63), 2**63 - 1)).map(str)
bad_times = st.sampled_from(
    ["NaN", "nan", "inf", "12/31/2020", "", "0x10", "1e3", "010", "2020-02-30", "99999999999999999999"]
)
times = st.one_of(
    st.lists(integer_times, min_size=12, max_size=12),
    st.lists(st.decimals(-1000, 1000, places=3).map(str), min_size=12, max_size=12),
    st.lists(st.datetimes(datetime(1, 1, 2), datetime(9999, 1, 1)).map(datetime.isoformat), min_size=12, max_size=12),
)  # fmt: skip
starts = st.sampled_from(["", "\ufeff", "\n", "\ufeff\r\n\n"])
ends = st.sampled_from(["\n", "\r\n", "\r"])
JUNK = [b'"', b",", b"\t", b"::", b":", b"\n", b"\r", b" ", b"\x00", b"\x1f", b"\xff", b"\xef\xbb\xbf", b"\xff\xfe", b"-", b"0", b"0x", b"A", b"NaN",
        b"user", b"\xc3\xa9"]  # fmt: skip
damage = st.lists(st.tuples(st.integers(0, 200), st.integers(0, 3), st.sampled_from(JUNK)), max_size=3)


def damaged(text: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for place, removed, junk in changes:
        place %= len(text) + 1
        text = text[:place] + junk + text[place + removed :]
    return text


@st.composite
def tables(draw, users, items, moments=times) -> list[tuple[str, str, str]]:
    pairs = draw(st.lists(st.tuples(users, items), min_size=1, max_size=12))
    return [(user, item, time) for (user, item), time in zip(pairs, draw(moments), strict=False)]


def quoted(row: tuple[str, ...], delimiter: str, always: bool) -> str:
    stream = io.StringIO()
    csv.writer(
        stream, delimiter=delimiter, quoting=csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL, lineterminator=""
    ).writerow(row)
    return stream.getvalue()


@pytest.mark.fuzz
@fuzzed
@pytest.mark.parametrize(("name", "delimiter"), [("ml-100k", "\t"), ("ml-1m", "::")])
@given(tables(numbers, numbers), starts, ends, damage)
def test_movielens(tmp_path, name, delimiter, rows, start, end, changes):
    text = start + "".join(delimiter.join((user, item, "3", time)) + end for user, item, time in rows)
    check(tmp_path / FILES[name], name, damaged(text.encode(), changes), parse_movielens(delimiter), not changes)


@pytest.mark.fuzz
@fuzzed
@given(
    st.one_of(tables(numbers, numbers), tables(amazon_users, amazon_items)), st.sampled_from(["user first", "item first", "header"]),
    st.booleans(), starts, ends, damage,
)  # fmt: skip
def test_magazine(tmp_path, rows, form, always, start, end, changes):
    lines = [(user, item, "5.0", time) for user, item, time in rows]
    if form == "item first" and not rows[0][0][-1].isdigit():
        lines = [(item, user, *rest) for user, item, *rest in lines]
    elif form == "header":
        lines = [("timestamp", "asin", "user", "item"), *((time, "?", user, item) for user, item, time in rows)]
    text = start + "".join(quoted(line, ",", always) + end for line in lines)
    check(tmp_path / FILES["magazine"], "magazine", damaged(text.encode(), changes), parse_magazine, not changes)


@pytest.mark.fuzz
@fuzzed
@pytest.mark.parametrize(("suffix", "delimiter"), [("csv", ","), ("tsv", "\t")])
@given(st.one_of(tables(numbers, words), tables(words, numbers)), st.booleans(), starts, ends, damage)
def test_own_text_files(tmp_path, suffix, delimiter, rows, always, start, end, changes):
    path = tmp_path / f"own.{suffix}"
    lines = [("item", "timestamp", "other", "user"), *((item, time, "", user) for user, item, time in rows)]
    text = start + "".join(quoted(line, delimiter, always) + end for line in lines)
    check(path, path, damaged(text.encode(), changes), parse_csv(delimiter), not changes)


@pytest.mark.fuzz
@fuzzed
@given(st.lists(st.fixed_dictionaries({
    "user": st.one_of(st.integers(1, 3), st.integers()), "item": words,
    "timestamp": st.one_of(st.integers(0, 5), st.floats(), st.integers(), st.none()),
}), min_size=1, max_size=6), damage)  # fmt: skip
def test_own_json_lines(tmp_path, rows, changes):
    path = tmp_path / "own.jsonl"
    text = "\n".join(map(json.dumps, rows)).encode()
    times = [row["timestamp"] for row in rows]
    valid = (
        not changes
        and all(-(2**53) < row["user"] < 2**53 for row in rows)
        and all(isinstance(t, int) and abs(t) < 2**53 for t in times)
    )
    check(path, path, damaged(text, changes), parse_jsonl, valid)


@pytest.mark.fuzz
@fuzzed
@given(
    tables(numbers, numbers, st.lists(integer_times, min_size=12, max_size=12)),
    bad_times,
    st.integers(0, 11),
    st.data(),
)
def test_one_timestamp_that_is_none_is_refused_with_its_row(tmp_path, rows, bad, place, data):
    place %= len(rows)
    rows[place] = (*rows[place][:2], bad)
    name = data.draw(st.sampled_from(["ml-100k", "ml-1m", "magazine"]))
    delimiter = {"ml-100k": "\t", "ml-1m": "::", "magazine": ","}[name]
    path = tmp_path / FILES[name]
    path.write_text("".join(delimiter.join((user, item, "3", time)) + "\n" for user, item, time in rows))
    with pytest.raises(ValueError, match=rf"{path.name}: .*timestamp.* in row \d+ \(counted from 0\)"):
        load_interactions(name, path, min_interactions=1)


@pytest.mark.fuzz
@fuzzed
@pytest.mark.parametrize("name", [*FILES, "own.csv", "own.tsv", "own.json", "own.jsonl", "own.parquet"])
@given(st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(JUNK), max_size=60).map(b"".join)))
@example(b"")
@example(b"\xef\xbb\xbf")
def test_random_bytes_are_refused_by_name_or_read_as_python_reads_them(tmp_path, name, text):
    parses = {"ml-100k": parse_movielens("\t"), "ml-1m": parse_movielens("::"), "magazine": parse_magazine,
              "own.csv": parse_csv(","), "own.tsv": parse_csv("\t"), "own.jsonl": parse_jsonl, "own.json": parse_jsonl}  # fmt: skip
    path = tmp_path / FILES.get(name, name)
    check(path, name if name in FILES else path, text, parses.get(name), valid=False)
