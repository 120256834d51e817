"""A search of texts for rows of data: runs of eight words, and runs of five items of a user.

Both sides are cut into words, small letters and digits without anything between. A run is then a
number, so millions of them are compared at once.
"""

from __future__ import annotations

import base64
import bz2
import csv
import gzip
import html
import io
import json
import lzma
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from farzi_hf.data import load_interactions

WORDS = 8
"""Of a run of text."""

NAMED = 4
"""Different words with letters that a run of text has. Others are numbers, or formulas."""

ITEMS = 5
"""Of a run of interactions."""

DIFFERENT = 4
"""Different items of such a run. Others are the same number, again and again."""

_WORD = re.compile(r"[a-z0-9]+")
_PLAIN = re.compile(r"[a-z]+")
_OF_ITEMS = {".csv", ".dat", ".data", ".inter", ".tsv"}
"""Endings of files of interactions; others are texts."""

_BETWEEN_USERS = 2**63
_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_OPENERS = {".gz": gzip.decompress, ".xz": lzma.decompress, ".bz2": bz2.decompress}


# -- what a file says ------------------------------------------------------------------------------


def words_of(text: str) -> list[str]:
    """The words of a text, without its markup: entities, and backslashes with what they escape."""
    plain = re.sub(r"\\([nrt](?![a-z])|u[0-9a-f]{4})?", " ", html.unescape(text).lower())
    return _WORD.findall(plain)


def texts_of(name: str, content: bytes) -> Iterator[str]:
    """Everything that a file says, read in each way that somebody could: as it stands, down the
    columns of its tables, and as the page shows it. ValueError if it is not text, and nothing that
    holds texts.
    """
    ending = Path(name).suffix.lower()
    if ending in _OPENERS:
        yield from texts_of(Path(name).stem, _OPENERS[ending](content))
        return
    if ending == ".zip":
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for inner in archive.namelist():
                yield from texts_of(inner, archive.read(inner))
        return
    if ending == ".parquet":
        columns = pq.read_table(io.BytesIO(content)).to_pydict().values()
        yield from (" ".join(strings_of(column)) for column in columns)
        return
    if ending == ".safetensors":  # numbers, after a header that names them
        end = 8 + int.from_bytes(content[:8], "little")
        yield content[8:end].decode("utf-8")
        return
    text = content.decode("utf-8")
    yield text
    if ending in (".json", ".ipynb"):
        yield " ".join(strings_of(json.loads(text)))
    elif ending == ".jsonl":
        yield " ".join(strings_of([json.loads(line) for line in text.splitlines()]))
    elif ending in (".html", ".svg"):
        yield re.sub(r"<[^<>]*>", " ", text)
        yield from _of_viewer(text)
    elif ending in (".csv", ".tsv"):
        delimiter = "\t" if ending == ".tsv" else ","
        yield from _columns(csv.reader(io.StringIO(text), delimiter=delimiter))
    elif ending == ".md":
        lines = [line.strip() for line in text.splitlines()]
        yield from _columns(line[1:-1].split(" | ") for line in lines if line.startswith("|"))


def strings_of(value: Any) -> Iterator[str]:
    """All texts and numbers in a value of JSON, in their order."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            yield from strings_of(part)
    elif value is not None:
        yield str(value)


def _columns(rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Each column from top to bottom: the first word of each cell, where a position has one."""
    columns: dict[int, list[str]] = {}
    for row in rows:
        for number, cell in enumerate(row):
            columns.setdefault(number, []).extend(words_of(cell)[:1])
    yield from (" ".join(column) for column in columns.values())


def _of_viewer(page: str) -> Iterator[str]:
    """What the page to browse a summary shows: inputs, and the likeliest entries."""
    start = r'<script type="application/json" id="summary">'
    data = re.search(start + r"(\{.*?\})</script>", page, re.S)
    if data is None:  # another page, or the template
        return
    summary = json.loads(data[1])
    names = summary["tokens"]
    likeliest = np.frombuffer(base64.b64decode(summary["ids"]), "<u4")
    yield " ".join(names[i] for i in likeliest[:: summary["likeliest"]])
    for row in summary["input_ids"] or ():
        yield " ".join(names[i] for i in row)


# -- runs ------------------------------------------------------------------------------------------


def numbers_of(words: Sequence[str]) -> np.ndarray:
    """(n,) a number for each word, the same for the same word, in this process."""
    return np.fromiter(map(hash, words), np.int64, len(words)).view(np.uint64)


def runs(numbers: np.ndarray, length: int) -> np.ndarray:
    """(n − length + 1,) one number for each run of so many numbers; equal runs have equal ones."""
    count = max(0, len(numbers) - length + 1)
    found = np.zeros(count, np.uint64)
    for offset in range(length):
        found = found * _FACTOR + (numbers[offset : offset + count] ^ (_FACTOR >> np.uint64(7)))
        found ^= found >> np.uint64(29)
    return found


def is_in(values: np.ndarray, ordered: np.ndarray) -> np.ndarray:
    """Whether each value is one of the ordered values, of which there are many."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    places = np.searchsorted(ordered, values).clip(max=len(ordered) - 1)
    return ordered[places] == values


@dataclass
class Texts:
    """The runs of words of some data."""

    ordered: np.ndarray
    """The runs, in their order."""

    @classmethod
    def of_files(cls, paths: Iterable[Path]) -> Texts:
        """Reads text files and rows of JSON, which may be compressed."""
        parts = [np.zeros(0, np.uint64)]
        for path in paths:
            *_, text = texts_of(path.name, path.read_bytes())
            parts.append(runs(numbers_of(words_of(text)), WORDS))
        return cls(np.sort(np.concatenate(parts)))

    def found(self, words: Sequence[str]) -> list[str]:
        """The runs of the data that stand in a text."""
        hits = is_in(runs(numbers_of(words), WORDS), self.ordered)
        shown = (words[i : i + WORDS] for i in np.flatnonzero(hits))
        return [" ".join(run) for run in shown if len({*filter(_PLAIN.fullmatch, run)}) >= NAMED]


@dataclass
class Histories:
    """The runs of items of some interactions, under one kind of names."""

    items: dict[tuple[str, ...], int]
    """The number of an item, from 1, by the words of its name."""

    longest: dict[str, int]
    """The words of the longest name that begins with a word."""

    ordered: np.ndarray
    """The runs, in their order."""

    @classmethod
    def of(cls, ordered: np.ndarray, names: Sequence[Any]) -> Histories:
        """Runs of the items 0 … n, with n + 1 names."""
        items: dict[tuple[str, ...], int] = {}
        longest: dict[str, int] = {}
        for number, name in enumerate(names, 1):
            words = tuple(words_of(str(name)))
            if words:
                items.setdefault(words, number)
                longest[words[0]] = max(len(words), longest.get(words[0], 0))
        return cls(items, longest, ordered)

    @classmethod
    def of_file(cls, path: Path) -> list[Histories]:
        """Of a file of interactions: with the numbers of its items, and with their ids or titles."""
        data = load_interactions(str(path), min_interactions=1)
        between = np.array([_BETWEEN_USERS], np.uint64)
        items = [part for row in data.sequences for part in (row.astype(np.uint64) + 1, between)]
        ordered = np.sort(runs(np.concatenate(items), ITEMS))
        kinds = (range(data.num_items + 1), data.vocabulary)
        return [cls.of(ordered, names) for names in kinds]

    def found(self, words: Sequence[str]) -> list[str]:
        """The runs of the data that stand in a text."""
        numbers, names = self._read(words)
        hits = np.flatnonzero(is_in(runs(np.array(numbers, np.uint64), ITEMS), self.ordered))
        shown = []
        for i in hits:
            run = numbers[i : i + ITEMS]
            counts_up = len(set(np.diff(run).tolist())) == 1  # as 2, 3, 4, 5, 6 do in many texts
            if len(set(run)) >= DIFFERENT and not counts_up:
                shown.append(" | ".join(names[i : i + ITEMS]))
        return shown

    def _read(self, words: Sequence[str]) -> tuple[list[int], list[str]]:
        """The items that a text names, one after the other, and their names; one 0 for all words
        between two of them that belong to no name.
        """
        numbers: list[int] = []
        names: list[str] = []
        place = 0
        begins_a_name = self.longest.__contains__
        for first in compress(range(len(words)), map(begins_a_name, words)):
            if first < place:
                continue  # within the name before
            if first > place:
                numbers.append(0)
                names.append("")
            length = self.longest[words[first]]
            while length > 1 and tuple(words[first : first + length]) not in self.items:
                length -= 1
            name = tuple(words[first : first + length])
            numbers.append(self.items.get(name, 0))
            names.append(" ".join(name))
            place = first + length
        return numbers, names


def data_of(folder: Path) -> tuple[Texts, list[Histories]]:
    """All data in a folder: interactions, and texts."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    of_items = [path for path in files if _OF_ITEMS.intersection(path.suffixes)]
    histories = [part for path in of_items for part in Histories.of_file(path)]
    return Texts.of_files(path for path in files if path not in of_items), histories


def rows_in(name: str, content: bytes, texts: Texts, histories: Iterable[Histories]) -> list[str]:
    """The runs of these data that a file holds."""
    runs_of_file: dict[str, None] = {}
    for text in texts_of(name, content):
        words = words_of(text)
        for data in (texts, *histories):
            runs_of_file |= dict.fromkeys(data.found(words))
    return list(runs_of_file)
