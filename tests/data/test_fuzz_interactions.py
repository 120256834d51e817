"""Random files of interactions: each reader gives what a slow parse by Python's own csv and json
gives, or an error that names the file. Whatever divides the columns, and whatever comes before them,
interactions are never taken for a text, nor a text for interactions.
"""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path

import pandas as pd
import pytest
from fuzzing import fuzzed
from hypothesis import example, given
from hypothesis import strategies as st

from farzi_hf.data import load_interactions, recognise
from farzi_hf.data.files import stream_of

Rows = list[tuple[str, str, str]]  # user, item and timestamp as they are written
Parse = Callable[[bytes], Rows]

NAMES, RATINGS = ("user", "item", "timestamp"), ["user", "item", "rating", "timestamp"]

# -- the slow parse: an error where a file says nothing for certain --------------------------------


def decoded(text: bytes, **settings: str) -> str:
    return text.decode(
        "utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", **settings
    ).lstrip("\ufeff")


def cells(text: bytes, delimiter: str) -> list[list[str]]:
    # A byte that is not UTF-8 matters in the columns that are read, and not in the others.
    stream = io.StringIO(decoded(text, errors="surrogateescape"), newline="")
    return [row for row in csv.reader(stream, delimiter=delimiter) if row]


def parse_named(rows: list[list[str]]) -> Rows:
    """The rows after a header."""
    header, *rows = rows
    if any(len(row) != len(header) for row in rows):
        raise ValueError("a row of another length")
    header = [
        re.sub(r"(?<=\w)[_ -](?=\w)", "", name.strip().lstrip("#%").strip()).lower()
        for name in header
    ]
    if [header.count(name) for name in NAMES] not in ([1, 1, 1], [1, 1, 0]):
        raise ValueError("a header without the names")
    places = [header.index(name) for name in NAMES if name in header]
    times = [] if "timestamp" in header else [None]
    return [
        tuple(
            str(row) if place is None else cells[place].encode().decode()
            for place in (*places, *times)  # the order of the rows
        )
        for row, cells in enumerate(rows)
    ]


def parse_csv(delimiter: str, *names: str) -> Parse:
    def parse(text: bytes) -> Rows:
        if names:
            return parse_named([list(names), *cells(text, delimiter)])
        content = decoded(text, errors="surrogateescape")
        lines = list(io.StringIO(content, newline=""))
        for first in range(11):  # lines of a title may come before the header
            rest = "".join(lines[first:])
            line = rest.lstrip("\r\n").partition("\n")[0].partition("\r")[0]
            mark = max(",\t;|", key=line.count)
            if mark not in line:
                continue
            try:
                return parse_named(cells(rest.encode(errors="surrogateescape"), mark))
            except (ValueError, csv.Error):
                continue
        raise ValueError("no header and rows")

    return parse


def parse_jsonl(text: bytes) -> Rows:
    rest, rows = decoded(text).strip(), []
    while rest:
        row, end = json.JSONDecoder().raw_decode(rest)
        rows.append((row["user"], row["item"], row.get("timestamp", len(rows))))
        rest = rest[end:].strip()
    return rows


def when(times: list) -> list:
    try:
        return [Decimal(time) for time in times]
    except ArithmeticError:
        return [datetime.fromisoformat(time.replace("Z", "+00:00")) for time in times]


def expected(rows: Rows) -> list[list[str]]:
    """The users' histories, in any order of the users."""
    times, histories = when([time for *_, time in rows]), defaultdict(list)
    for place in sorted(range(len(rows)), key=times.__getitem__):
        user, item, _ = rows[place]
        assert user not in ("", None)
        assert item not in ("", None)
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
    histories = sorted(
        [str(found.item_ids[item - 1]) for item in sequence] for sequence in found.sequences
    )
    assert histories == expected(parse(text))


# -- files: well-formed ones, then a few of their bytes replaced -----------------------------------

numbers = st.one_of(st.integers(1, 9), st.integers(0, 2**63 - 1)).map(str)
words = st.one_of(
    st.sampled_from(["007", "7", "07", "NA", "null", "None", "nan", "1e3"]),
    st.text("ab 0é", min_size=1, max_size=3),
)
times = st.one_of(
    st.lists(
        st.one_of(st.integers(0, 3), st.integers(-(2**52), 2**52)).map(str),
        min_size=12,
        max_size=12,
    ),
    st.lists(st.decimals(-1000, 1000, places=3).map(str), min_size=12, max_size=12),
    st.lists(
        st.datetimes(datetime(1, 1, 2), datetime(9999, 1, 1)).map(datetime.isoformat),
        min_size=12,
        max_size=12,
    ),
)
starts = st.sampled_from(["", "\ufeff", "\n", "\ufeff\r\n\n"])
ends = st.sampled_from(["\n", "\r\n", "\r"])
JUNK = [
    b'"',
    b",",
    b"\t",
    b"::",
    b"|",
    b"# ",
    b":",
    b"\n",
    b"\r",
    b" ",
    b"\x00",
    b"\x1f",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\xff\xfe",
    b"-",
    b"0",
    b"0x",
    b"A",
    b"NaN",
    b"user",
    b"\xc3\xa9",
]
damage = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 3), st.sampled_from(JUNK)), max_size=3
)


def damaged(text: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
    for place, removed, junk in changes:
        place %= len(text) + 1
        text = text[:place] + junk + text[place + removed :]
    return text


@st.composite
def tables(draw, users, items) -> list[tuple[str, str, str]]:
    pairs = draw(st.lists(st.tuples(users, items), min_size=1, max_size=12))
    return [(user, item, time) for (user, item), time in zip(pairs, draw(times), strict=False)]


def quoted(row: tuple[str, ...], delimiter: str, always: bool) -> str:
    stream = io.StringIO()
    quoting = csv.QUOTE_ALL if always else csv.QUOTE_MINIMAL
    csv.writer(stream, delimiter=delimiter, quoting=quoting, lineterminator="").writerow(row)
    return stream.getvalue()


@pytest.mark.fuzz
@fuzzed
@pytest.mark.parametrize(
    ("name", "delimiter"), [("own.csv", ","), ("own.tsv", "\t"), ("u.data", "\t")]
)
@given(
    st.one_of(tables(numbers, words), tables(words, numbers)), st.booleans(), starts, ends, damage
)
def test_text_files(tmp_path, name, delimiter, rows, always, start, end, changes):
    path, names = (
        tmp_path / name,
        RATINGS if name == "u.data" else ["item", "timestamp", "other", "user"],
    )
    table = [dict(zip(NAMES, row, strict=True)) for row in rows]
    lines = [
        *([] if name == "u.data" else [names]),
        *([row.get(name, "") for name in names] for row in table),
    ]
    text = start + "".join(quoted(line, delimiter, always) + end for line in lines)
    parse = parse_csv(delimiter, *(names if name == "u.data" else ()))
    check(
        path,
        "ml-100k" if name == "u.data" else path,
        damaged(text.encode(), changes),
        parse,
        not changes,
    )


@pytest.mark.fuzz
@fuzzed
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "user": st.one_of(st.integers(1, 3), st.integers()),
                "item": words,
                "timestamp": st.one_of(
                    st.integers(-(2**52), 2**52), st.floats(-(2**52), 2**52), st.none()
                ),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    damage,
)
def test_own_json_lines(tmp_path, rows, changes):
    path = tmp_path / "own.jsonl"
    text = "\n".join(map(json.dumps, rows)).encode()
    valid = all(isinstance(row["timestamp"], int) and abs(row["user"]) < 2**63 for row in rows)
    check(path, path, damaged(text, changes), parse_jsonl, valid and not changes)


@pytest.mark.fuzz
@fuzzed
@pytest.mark.parametrize("name", ["u.data", "own.csv", "own.tsv", "own.jsonl", "own.parquet"])
@given(
    st.one_of(st.binary(max_size=200), st.lists(st.sampled_from(JUNK), max_size=60).map(b"".join))
)
@example(b"")
@example(b"\xef\xbb\xbf")
@example(b"\xef\xbb\xbf\xef\xbb\xbf\t007\t1\t2\n")
def test_random_bytes_are_refused_by_name_or_read_as_python_reads_them(tmp_path, name, text):
    parses = {
        "u.data": parse_csv("\t", *RATINGS),
        "own.csv": parse_csv(","),
        "own.tsv": parse_csv("\t"),
        "own.jsonl": parse_jsonl,
    }
    path = tmp_path / name
    check(path, "ml-100k" if name == "u.data" else path, text, parses.get(name), valid=False)


# -- any form of a table, and of a text ------------------------------------------------------------

ids = st.one_of(st.integers(0, 10**6).map(str), st.text("abyz019é.-", min_size=1, max_size=6))
PACKINGS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}
ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-32-le"]
USER_NAMES = ["user", "user_id", "userId", "reviewerID", "user_id:token"]
ITEM_NAMES = ["item", "movieId", "item-id", "parent_asin", "item_id:token"]
LIST_NAMES = ["items", "item_ids", "history", "sequence", "itemList"]
letters = st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=8)
proses = st.lists(st.one_of(letters, letters.map(lambda word: f"{word},")), min_size=5, max_size=12)
titles = st.lists(
    st.one_of(
        proses.map(" ".join),
        proses.map(lambda words: f"# {' '.join(words)}"),
        st.sampled_from(["", "# a, b", "% bip", "My clicks", "// of 2024"]),
    ),
    max_size=4,
)


@st.composite
def sequences(draw) -> list[tuple[str, str, str]]:
    """Rows of users, items and times; every user has three at least."""
    rows = []
    for user in draw(st.lists(ids, min_size=1, max_size=5, unique=True)):
        items = draw(st.lists(ids, min_size=3, max_size=6))
        starts = draw(st.integers(10**9, 10**10))
        rows += [(user, item, str(starts + place)) for place, item in enumerate(items)]
    return rows


def read_histories(path: Path) -> list[list[str]]:
    found = load_interactions(path)
    return sorted(
        [str(found.item_ids[item - 1]) for item in sequence] for sequence in found.sequences
    )


@pytest.mark.fuzz
@fuzzed
@given(
    sequences(),
    st.sampled_from([",", "\t", ";", "|", "::", " ", "  \t "]),
    st.sampled_from(["a.csv", "a.tsv", "a.dat", "a.txt", "a", "a.inter"]),
    st.tuples(st.sampled_from(USER_NAMES), st.sampled_from(ITEM_NAMES)),
    st.booleans(),
    titles,
    st.sampled_from(ENCODINGS),
    st.sampled_from(list(PACKINGS)),
    ends,
)
def test_a_table_in_any_form(
    tmp_path, rows, mark, name, names, has_times, title, encoding, packing, end
):
    header = (*names, "ts") if has_times else names
    table = [header, *(row[: len(header)] for row in rows)]
    text = end.join([*title, *(mark.join(row) for row in table), ""])
    path = tmp_path / f"{name}{packing}"
    path.write_bytes(PACKINGS[packing](text.encode(encoding)))
    assert recognise(path) == "interactions"
    assert read_histories(path) == expected(rows)


@pytest.mark.fuzz
@fuzzed
@given(
    sequences(),
    st.sampled_from([",", "\t", ";", "|", "::", " ", "  \t "]),
    st.sampled_from(["a.csv", "a.tsv", "a.dat", "a.txt", "a", "a.inter"]),
    st.sampled_from(["{u}{m}{i}{m}4.5{m}{t}", "{u}{m}{i}{m}{t}", "{u}{m}{i}", "{u}{m}{i}{m}3"]),
    titles,
)
def test_a_table_without_a_header_is_read_or_refused(tmp_path, rows, mark, name, form, title):
    text = "\n".join([*title, *(form.format(u=u, i=i, t=t, m=mark) for u, i, t in rows)])
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    kind = read = refusal = None
    try:
        kind = recognise(path)
        read = read_histories(path)
    except ValueError as error:
        refusal = str(error)
    if refusal is not None:
        assert name in refusal
        return
    assert kind == "interactions"
    assert read == expected(rows)


@pytest.mark.fuzz
@fuzzed
@given(
    sequences(),
    st.sampled_from(["a.jsonl", "a.json", "a.parquet", "a.csv"]),
    st.tuples(st.sampled_from(USER_NAMES), st.sampled_from(LIST_NAMES)),
    st.booleans(),
)
def test_lists_of_items_in_any_form(tmp_path, rows, name, names, has_times):
    lists = defaultdict(list)
    times = defaultdict(list)
    for user, item, time in rows:
        lists[user].insert(0, item)
        times[user].insert(0, int(time))
    columns = {names[0]: list(lists), names[1]: list(lists.values())}
    if has_times:
        columns["timestamps"] = list(times.values())
    path = tmp_path / name
    frame = pd.DataFrame(columns)
    if name == "a.parquet":
        frame.to_parquet(path)
    elif name == "a.csv":
        frame.to_csv(path)
    else:
        frame.to_json(path, orient="records", lines=name == "a.jsonl")
    assert recognise(path) == "interactions"
    histories = expected(rows) if has_times else sorted(lists.values())
    assert read_histories(path) == histories


@pytest.mark.fuzz
@fuzzed
@given(
    st.lists(proses.map(" ".join), min_size=4, max_size=30, unique=True),
    st.sampled_from(["a.txt", "a.md", "a", "a.dat", "a.csv"]),
    st.sampled_from(ENCODINGS),
)
def test_a_text_is_no_table(tmp_path, rows, name, encoding):
    header = ["text"] if name == "a.csv" else []
    path = tmp_path / name
    path.write_bytes("\n".join([*header, *rows]).encode(encoding))
    assert recognise(path) == "text"
    read = [row["text"].rstrip("\n") for row in stream_of(path, column="text")["train"]]
    assert read == rows
