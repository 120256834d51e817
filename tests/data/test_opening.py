"""Packed files, encodings, and files that are not text."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import pickle
import sqlite3
import tarfile
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from fuzzing import fuzzed
from hypothesis import given
from hypothesis import strategies as st

from farzi_hf.data import load_interactions, load_text, recognise
from farzi_hf.data.opening import UnusableFileError, opened

TEXTS = [f"Row {i} of mine, café and ﬁn" for i in range(120)]
CLICKS = "user,item,timestamp\n" + "".join(
    f"u{user},é{item},{item}\n" for user in range(12) for item in range(4)
)


def rows_of(path: Path) -> list[str]:
    return sorted(row for split in load_text(path).values() for row in split["text"])


# -- packed files ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.txt.xz", "a.XZ", "a.jsonl.xz", "a.csv.xz"])
def test_xz_is_read(tmp_path, name):
    text = "\n".join(TEXTS)
    if "jsonl" in name:
        text = "\n".join(json.dumps({"text": row}) for row in TEXTS)
    if "csv" in name:
        text = "\n".join(["text", *TEXTS])
    path = tmp_path / name
    path.write_bytes(lzma.compress(text.encode()))
    assert recognise(path) == "text"
    assert rows_of(path) == sorted(TEXTS)


def test_interactions_in_xz(tmp_path):
    (tmp_path / "a.csv.xz").write_bytes(lzma.compress(CLICKS.encode()))
    rows = [{"user": user, "items": [1, 2, 3]} for user in range(5)]
    (tmp_path / "a.jsonl.xz").write_bytes(lzma.compress("\n".join(map(json.dumps, rows)).encode()))
    for name, users in (("a.csv.xz", 12), ("a.jsonl.xz", 5)):
        assert recognise(tmp_path / name) == "interactions"
        assert len(load_interactions(tmp_path / name).sequences) == users


@pytest.mark.parametrize("content", [lzma.compress(b"a\n" * 999)[:60], b"no xz at all", b""])
@pytest.mark.parametrize("name", ["a.txt.xz", "a.csv.xz", "a.jsonl.xz"])
def test_damaged_xz_is_named(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    for read in (load_text, load_interactions):
        with pytest.raises(ValueError, match=name):
            read(tmp_path / name)


# -- encodings -------------------------------------------------------------------------------------

ENCODINGS = [
    *("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"),
    *("utf-32", "utf-32-le", "utf-32-be"),
]


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl", "a.txt.gz"])
def test_unicode_with_and_without_a_mark(tmp_path, encoding, name):
    """Zeros of an encoding without a mark were characters of the text."""
    text = "\n".join(TEXTS)
    if name == "a.jsonl":
        text = "\n".join(json.dumps({"text": row}, ensure_ascii=False) for row in TEXTS)
    if name == "a.csv":
        text = "\n".join(["text", *TEXTS])
    content = text.encode(encoding)
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert recognise(tmp_path / name) == "text"
    assert rows_of(tmp_path / name) == sorted(TEXTS)


@pytest.mark.parametrize("encoding", ENCODINGS)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
def test_interactions_in_unicode(tmp_path, encoding, name):
    rows = [line.split(",") for line in CLICKS.split()[1:]]
    objects = (
        json.dumps({"user": user, "item": item}, ensure_ascii=False) for user, item, _ in rows
    )
    text = CLICKS if name == "a.csv" else "\n".join(objects)
    (tmp_path / name).write_bytes(text.encode(encoding))
    assert recognise(tmp_path / name) == "interactions"
    found = load_interactions(tmp_path / name)
    assert len(found.sequences) == 12
    assert found.item_ids == [f"é{item}" for item in range(4)]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-16-be", "utf-32"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt"])
def test_two_marks_are_no_part_of_what_is_read(tmp_path, encoding, name):
    """The second mark was a letter of the first user, column or row."""
    if name == "a.txt":
        (tmp_path / name).write_bytes(("\ufeff\ufeff" + "\n".join(TEXTS)).encode(encoding))
        assert rows_of(tmp_path / name) == sorted(TEXTS)
        return
    rows = [line.split(",") for line in CLICKS.split()[1:]]
    objects = (json.dumps({"user": user, "item": item}) for user, item, _ in rows)
    text = CLICKS if name == "a.csv" else "\n".join(objects)
    (tmp_path / name).write_bytes(("\ufeff\ufeff" + text).encode(encoding))
    found = load_interactions(tmp_path / name)
    assert len(found.sequences) == 12
    assert found.item_ids == [f"é{item}" for item in range(4)]


def test_a_mark_in_the_middle_of_a_text_stays(tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\ufeff two\n\ufeffthree".encode())
    with opened(tmp_path / "a.txt") as file:
        assert file.read() == "one\ufeff two\n\ufeffthree"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_an_encoding_that_is_cut_short_is_an_error(tmp_path, encoding):
    text = "\n".join(TEXTS) + "é"
    (tmp_path / "a.txt").write_bytes(text.encode(encoding)[:-1])
    with pytest.raises(ValueError, match=r"a\.txt.* cannot be read"):
        load_text(tmp_path / "a.txt")


@pytest.mark.parametrize("place", [0, 10, 5000, 100_000])
@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_zeros_are_no_text(tmp_path, name, place):
    text = "".join(json.dumps({"text": f"{row} {i}"}) + "\n" for i in range(20) for row in TEXTS)
    if name == "a.csv":
        text = "user,item\n" + "u,i\n" * 30_000
    content = text.encode()
    (tmp_path / name).write_bytes(content[:place] + b"\0" + content[place:])
    for read in (load_text, load_interactions):
        with pytest.raises(
            ValueError, match=r"is not text, because it holds NUL bytes: give a text"
        ):
            read(tmp_path / name)


def test_another_encoding_is_an_error_with_a_remedy(tmp_path):
    (tmp_path / "a.txt").write_bytes("\n".join(TEXTS[:1] * 50).replace("ﬁ", "fi").encode("latin-1"))
    with pytest.raises(ValueError, match=r"a text in another encoding: save that as UTF-8"):
        load_text(tmp_path / "a.txt")


LINES = st.lists(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), max_size=30),
    max_size=20,
)


@pytest.mark.fuzz
@fuzzed
@given(LINES, st.sampled_from(ENCODINGS), st.sampled_from(["", ".gz", ".bz2", ".xz"]))
def test_any_text_comes_back_or_is_refused(tmp_path, lines, encoding, packing):
    """Without a mark, letters of other scripts may be refused; they are never read with zeros."""
    text = "\n".join(lines)
    path = tmp_path / f"a.txt{packing}"
    pack = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}.get(packing, bytes)
    path.write_bytes(pack(text.encode(encoding)))
    refused = None
    read = ""
    try:
        with opened(path, newline="") as file:
            read = file.read()
    except (UnusableFileError, UnicodeDecodeError) as error:
        refused = error
    has_no_mark = encoding.endswith(("-le", "-be"))
    is_sure = not has_no_mark or (text.isascii() and len(text) > 1)
    assert "\0" not in read
    if is_sure:
        assert refused is None
        assert read == text.lstrip("\ufeff")


# -- files that are no text -------------------------------------------------------------------------


def zipped(name: str = "a.txt") -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as file:
        file.writestr(name, "\n".join(TEXTS))
    return stream.getvalue()


def tarred(mode: str) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode=mode) as file:
        content = "\n".join(TEXTS).encode()
        info = tarfile.TarInfo("a.txt")
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def in_a_file(path: Path) -> bytes:
    content = path.read_bytes()
    path.unlink()
    return content


def database(folder: Path) -> bytes:
    with sqlite3.connect(folder / "x") as connection:
        connection.execute("CREATE TABLE a (b)")
    connection.close()
    return in_a_file(folder / "x")


def in_parquet(folder: Path) -> bytes:
    parquet.write_table(pa.table({"text": TEXTS}), folder / "x")
    return in_a_file(folder / "x")


FOREIGN = {
    "a.zip": (lambda folder: zipped(), "unpack it"),
    "a.tar": (lambda folder: tarred("w"), "unpack it"),
    "a.tgz": (lambda folder: tarred("w:gz"), "unpack it"),
    "a.tar.gz": (lambda folder: tarred("w:gz"), "unpack it"),
    "a.tar.xz": (lambda folder: tarred("w:xz"), "unpack it"),
    "a.7z": (lambda folder: b"7z\xbc\xaf\x27\x1c\0\4" * 9, "unpack it"),
    "a.xlsx": (lambda folder: zipped("xl/workbook.xml"), "save its sheet as .csv"),
    "a.xls": (lambda folder: b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1\0" * 9, "save its sheet as .csv"),
    "a.docx": (lambda folder: zipped("word/document.xml"), "save it as plain text, .txt"),
    "a.pdf": (lambda folder: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "save it as plain text, .txt"),
    "a.rtf": (lambda folder: b"{\\rtf1\\ansi Hello}", "save it as plain text, .txt"),
    "a.sqlite": (database, "export its table as .csv or .parquet"),
    "a.pkl": (lambda folder: pickle.dumps(TEXTS, 4), "save its table as .parquet or .csv"),
    "a.npy": (lambda folder: b"\x93NUMPY\1\0v\0", "save its table as .parquet or .csv"),
    "a.csv": (lambda folder: zipped(), "save it as .csv"),
    "a.jsonl": (lambda folder: gzip.compress(CLICKS.encode()), "give it the ending of its packing"),
    "a.txt": (lambda folder: lzma.compress(b"a" * 9), "give it the ending of its packing"),
    "mine": (in_parquet, "give it the ending .parquet"),
}


@pytest.mark.parametrize(("name", "kind"), FOREIGN.items(), ids=FOREIGN)
def test_what_is_no_text_is_refused_with_the_remedy(tmp_path, name, kind):
    content, remedy = kind
    (tmp_path / name).write_bytes(content(tmp_path))
    for read in (recognise, load_text, load_interactions):
        with pytest.raises(ValueError, match=remedy) as caught:
            read(tmp_path / name)
        assert str(caught.value).count(name) == 1
        assert "\n" not in str(caught.value)


def test_a_text_may_have_any_name(tmp_path):
    for name in ("a.zip", "a.doc", "a.numbers", "PK.txt"):
        (tmp_path / name).write_text("\n".join([f"PK {name}", *TEXTS]), encoding="utf-8")
        assert recognise(tmp_path / name) == "text"
        assert rows_of(tmp_path / name) == sorted([f"PK {name}", *TEXTS])


def test_a_folder_of_archives_says_what_it_has(tmp_path):
    for name in ("a.zip", "b.zip", "c.pdf", "LICENSE"):
        (tmp_path / name).write_bytes(zipped())
    with pytest.raises(
        ValueError, match=r"; it has 2 \.zip, 1 without an ending, 1 \.pdf: (unpack|save) it"
    ):
        recognise(tmp_path)
