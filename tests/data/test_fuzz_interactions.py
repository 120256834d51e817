"""Random files of interactions: each reader gives what a slow parse by Python's own csv and json
gives, or an error that names the file.
"""

from __future__ import annotations

import csv
import io
import json
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

NAMES, RATINGS = ("user", "item", "timestamp"), ["user", "item", "rating", "timestamp"]

# -- the slow parse: an error where a file says nothing for certain --------------------------------


def decoded(text: bytes, **settings: str) -> str:
    return text.decode(
        "utf-16" if text[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8", **settings
    ).lstrip("\ufeff")


def cells(text: bytes, delimiter: str) -> list[list[str]]:
    # A byte that is no UTF-8 matters in the columns that are read, and not in the others.
    stream = io.StringIO(decoded(text, errors="surrogateescape"), newline="")
    return [row for row in csv.reader(stream, delimiter=delimiter) if row]


def parse_csv(delimiter: str, *names: str) -> Parse:
    def parse(text: bytes) -> Rows:
        nonlocal delimiter
        if not names:  # the mark that is most often in the first line
            line = next(
                filter(None, re.split("[\r\n]", decoded(text, errors="surrogateescape"))), ""
            )
            delimiter = max(",\t;", key=line.count)
        header, *rows = [*([list(names)] if names else []), *cells(text, delimiter)]
        if any(len(row) != len(header) for row in rows):
            raise ValueError("a row of another length")
        assert [header.count(name) for name in NAMES] in ([1, 1, 1], [1, 1, 0])
        for place, row in enumerate(rows):  # without a column of times, the order of the rows
            row.append(str(place))
        places = [
            *map(header.index, NAMES[:2]),
            header.index("timestamp") if "timestamp" in header else len(header),
        ]
        return [tuple(row[place].encode().decode() for place in places) for row in rows]

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
def test_random_bytes_are_refused_by_name_or_read_as_python_reads_them(tmp_path, name, text):
    parses = {
        "u.data": parse_csv("\t", *RATINGS),
        "own.csv": parse_csv(","),
        "own.tsv": parse_csv("\t"),
        "own.jsonl": parse_jsonl,
    }
    path = tmp_path / name
    check(path, "ml-100k" if name == "u.data" else path, text, parses.get(name), valid=False)
