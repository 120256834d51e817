"""Data of one's own: whether they are text or interactions, `recognise`, and text as sequences of
ids, `load_text`.

A text goes through these steps: the column that holds it is found, its rows are read as texts,
split into train, validation and test, and turned into ids by a tokenizer that is given or made.
"""

import json
import logging
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import Dataset, DatasetDict, IterableDataset
from transformers import PreTrainedTokenizerBase

from farzi_hf.common.checks import check_size
from farzi_hf.common.text import count_of, reason, terminal_text
from farzi_hf.data.chat_template import ChatTemplate
from farzi_hf.data.columns import hold_interactions
from farzi_hf.data.files import (
    files_of,
    find_files,
    kind_of,
    own_splits,
    stream_of,
    unreadable,
)
from farzi_hf.data.interactions import SAMPLE_INTERACTIONS
from farzi_hf.data.layout import is_table, layout_of
from farzi_hf.data.opening import UnusableFileError
from farzi_hf.data.pairs import COMPLETION, PROMPT, are_pairs, whole
from farzi_hf.data.readers import SOURCES
from farzi_hf.data.sequences import in_memory, stored_sequences
from farzi_hf.data.text import TEXTS, UNK, bpe_tokenizer, ids_of, word_tokenizer
from farzi_hf.data.text_splits import split_texts
from farzi_hf.data.tokenizer_file import load_tokenizer

logger = logging.getLogger(__name__)

TEXT = "text"
INTERACTIONS = "interactions"
TOOLS = "tools"
"""The column with the definitions of the tools that a row's chat may call."""
_WHOLE = "prompt and completion"
"""A column that is added where rows have both."""
READ_BYTES = 256 << 20
"""Bytes of text that are read of a split at most."""
_FILES_LOOKED_AT = 100  # to decide what they hold
_HEAD_ROWS = 200  # by which the columns are known
_HEAD_LINES = 5_000  # by which wrapped lines are known
_ROWS_AT_ONCE = 1000
_LEARNT_BYTES = 16 << 20  # of the text, of which a tokenizer is learnt
_MOST_ENTRIES = 4996  # of a tokenizer that is made, beside 4 special tokens: a step's time grows
_WORDS_OF_SENTENCES = 4  # that a row has on average, if a column holds sentences
_OPTIONS = (
    "name yours with text_column, or those of interactions with user_column and item_column"
    " (--text_column, --user_column and --item_column on the command line)"
)
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_NO_WORDS = re.compile(r"[\d\s.,:+-]*")  # numbers, dates and times

Columns = Mapping[str, Sequence[Any]]
"""A few rows by columns."""


class TextData(DatasetDict):
    """Train, validation and test with the columns `text` and `input_ids`.

    Attributes:
        tokenizer: made `input_ids`.
        column: the column of the source with the text; None: its files are plain text, or rows are
            prompts with completions.
        split: how the splits came about, in words.
        description: what was read, in one line.
    """

    tokenizer: PreTrainedTokenizerBase
    column: str | None
    split: str
    description: str


# -- text or interactions --------------------------------------------------------------------------


def recognise(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    text_column: str | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    **hub: str | None,
) -> str:
    """What a data set holds, "text" or "interactions".

    By its name, its file's ending, the columns that are given, or those that it has.

    Args:
        hub: name, split and revision of a data set of the Hub, as in `load_text`.

    Raises:
        ValueError: its columns do not say it, and the message lists them; or columns of both are
            given.
        DataUnavailableError: there is no such data set within reach.
    """
    if source in TEXTS:
        return TEXT
    if source in (*SOURCES, SAMPLE_INTERACTIONS):
        return INTERACTIONS
    of_interactions = user_column or item_column
    if of_interactions and text_column:
        raise ValueError(
            f"text_column={text_column!r} is for text, but {of_interactions!r} for interactions:"
            " give one of them"
        )
    if text_column:
        return TEXT
    if of_interactions:
        return INTERACTIONS
    files = files_of(source, data_dir)
    kind = kind_of(files)
    if kind in ("csv", "text") and _are_interactions(files, source):
        return INTERACTIONS
    if kind == "text":
        return TEXT
    head = _head(stream_of(source, data_dir, **hub), source)
    if kind == "csv":
        _check_header(head, source)
    elif hold_interactions(head):
        return INTERACTIONS
    if not are_pairs(head):
        _text_column(head, source)  # raises where there is none
    return TEXT


def _are_interactions(files: Mapping[str, list[Path]], source: str | Path) -> bool:
    """Whether text files hold interactions, all of them or none.

    Raises:
        ValueError: some of them do, or one is a table of which nothing says what it holds.
    """
    paths = [path for part in files.values() for path in part][:_FILES_LOOKED_AT]
    holding = [path for path in paths if _holds_interactions(path)]
    others = [path for path in paths if path not in holding]
    if holding and others:
        raise ValueError(
            f"{source} has interactions in {holding[0].name} and none in {others[0].name}: name the"
            " file that you want, or a pattern"
        )
    if kind_of(files) == "text":
        for path in others:
            if is_table(path):
                raise ValueError(
                    f"{path} looks like a table without the names of its columns: write them in its"
                    " first line, such as user,item,timestamp, or choose --task text if its lines"
                    " are texts"
                )
    return bool(holding)


def _holds_interactions(path: Path) -> bool:
    try:
        return layout_of(path).holds_interactions
    except UnusableFileError:
        raise
    except ValueError:  # it is empty, or damaged, which reading will say
        return False


# -- text ------------------------------------------------------------------------------------------


def load_text(
    path_or_repo: str | Path,
    column: str | None = None,
    tokenizer: PreTrainedTokenizerBase | str | Path | None = None,
    *,
    data_dir: str | Path | None = None,
    name: str | None = None,
    split: str | None = None,
    revision: str | None = None,
    rows: str | None = None,
    vocab_size: int | None = None,
) -> TextData:
    """Your own text: a file, a folder or a pattern, or a data set of the Hub.

    Files may be .txt, .md, .jsonl, .json, .csv, .tsv, .parquet or .arrow. The source's own splits
    stay, of files such as train.txt, valid.txt and test.txt too. What is missing of them is taken
    from train: 5 % of the different rows each, by a hash, so that equal rows are in one split.
    Validation and test hold each row once, and none of train. Rows that are blank, or a single
    token without BOS and EOS, are left out.

    Args:
        column: the column with the text, or with the messages of chats, which the tokenizer's
            template writes out. By default `prompt` and `completion`, one after the other, if there
            are both; else `text`, the messages, the only column of text, or the only one with
            sentences.
        tokenizer: a fast one, or its name or folder. By default one is made of the training rows:
            of words if rare words are `<unk>` already, as in Penn Treebank, else byte-level BPE.
        data_dir: the folder in which the path begins.
        name, split, revision: of a data set of the Hub, as in `datasets.load_dataset`.
        rows: "line" or "paragraph", of plain text. By default a paragraph where lines are wrapped,
            else a line.
        vocab_size: of the tokenizer that is made; by default it fits the size of the text.

    Raises:
        ValueError: there is no column of text, too little text, text that is not UTF-8, or no
            usable tokenizer.
        DataUnavailableError: the data set or the tokenizer is not within reach.
    """
    if not isinstance(path_or_repo, str | os.PathLike):
        raise ValueError(
            f"path_or_repo is a {type(path_or_repo).__name__}; give a file, a folder, a pattern or"
            " the name of a data set of the Hub; of rows that you have already,"
            " farzi_hf.data.tokenize makes ids"
        )
    if vocab_size is not None:
        check_size("vocab_size", vocab_size)
    is_tokenizer = tokenizer is None or isinstance(tokenizer, str | os.PathLike)
    if not is_tokenizer and not hasattr(tokenizer, "get_vocab"):
        raise ValueError(f"tokenizer={tokenizer!r:.200} is none; give one, its name or its folder")
    streams = partial(stream_of, path_or_repo, data_dir, name=name, split=split, revision=revision)
    files = find_files(path_or_repo, data_dir)
    kind = None if files is None else kind_of(files.splits)
    if files is not None:
        files.say_left_out(path_or_repo)
    reading = _reading(streams, path_or_repo, column, kind, rows)
    if kind == "csv":
        _say_skipped(files.splits)
    if isinstance(tokenizer, (str, Path)):
        tokenizer = load_tokenizer(tokenizer)
    texts = {
        part: texts_of(stream, reading.column, tokenizer, path_or_repo, kind == "text")
        for part, stream in own_splits(reading.streams, path_or_repo).items()
    }
    if kind == "json" and not any(texts.values()):
        # It says that there is none.
        _text_column(_head(streams(), path_or_repo), path_or_repo, reading.column)
    splits = split_texts(texts, path_or_repo)
    if tokenizer is None:
        tokenizer = _made(splits.texts["train"], vocab_size)
    data = TextData(_with_ids(splits.texts, tokenizer, path_or_repo))
    sizes = [len(part) for part in data.values()]
    data.tokenizer = tokenizer
    is_given = kind == "text" or reading.column == _WHOLE
    data.column = column if is_given else reading.column
    data.split = f"{splits.origin} ({' / '.join(f'{size:,}' for size in sizes)})"
    if splits.duplicates:
        count = count_of(splits.duplicates, "duplicate")
        data.split += f", {count} left out of validation and test"
    data.description = (
        f"{sum(sizes):,} rows of text, {reading.where}; {data.split}; {len(tokenizer):,} tokens"
    )
    return data


@dataclass(frozen=True)
class _Reading:
    """How the rows of a source are read."""

    streams: Mapping[str, IterableDataset]
    """The rows, by split."""
    column: str
    """The column of these rows that holds the text."""
    where: str
    """What a row is, in words."""


Streams = Callable[..., Mapping[str, IterableDataset]]
"""`stream_of` of one source."""


def _reading(
    streams: Streams, source: str | Path, column: str | None, kind: str | None, rows: str | None
) -> _Reading:
    """How a source is read.

    Args:
        streams: its rows.
        column, rows: as in `load_text`.
        kind: of its files, see `kind_of`.

    Raises:
        ValueError: `rows` is unknown, or there is no column of text.
    """
    if rows not in (None, "line", "paragraph"):
        raise ValueError(f"rows={rows!r} is unknown: give line or paragraph, or leave it out")
    if kind == "text":
        return _plain_text(streams, source, rows)
    head = _head(streams(), source)
    if column is None and are_pairs(head):
        wholes = {part: stream.map(_with_the_whole) for part, stream in streams().items()}
        return _Reading(wholes, _WHOLE, f"of {PROMPT!r} and {COMPLETION!r}")
    column = _column_to_read(head, source, column, kind)
    has_tools = TOOLS in head and any(map(_is_chat, head.get(column, ())))
    read = streams() if has_tools else streams(column=column)
    return _Reading(read, column, f"in column {column!r}")


def first_texts(
    source: str | Path, tokenizer: Any, column: str | None = None, rows: str | None = None
) -> list[str]:
    """The rows of a text that are not blank, as `load_text` reads them: of the train split, if
    there are several.

    Args:
        tokenizer: writes out chats.
        column, rows: as in `load_text`, found in the same way.

    Raises:
        ValueError: as `load_text`, if the rows cannot be read.
    """
    kind = kind_of(files_of(source))
    reading = _reading(partial(stream_of, source), source, column, kind, rows)
    stream = reading.streams.get("train", next(iter(reading.streams.values())))
    return texts_of(stream, reading.column, tokenizer, source, kind == "text")


def _plain_text(streams: Streams, source: str | Path, rows: str | None) -> _Reading:
    """The rows of plain text: paragraphs where lines are wrapped, unless `rows` says it."""
    if rows is None:
        lines = _head(streams(), source, _HEAD_LINES).get("text", [])
        rows = "paragraph" if _is_wrapped(lines) else "line"
    return _Reading(streams(rows=rows), "text", f"a {rows} each")


def _with_the_whole(row: Mapping[str, Any]) -> dict[str, Any]:
    """What is added to a row that is a pair."""
    return {_WHOLE: whole(row)}


def _column_to_read(head: Columns, source: str | Path, given: str | None, kind: str | None) -> str:
    """The column with the text. A field of JSON that is given may begin after the first rows."""
    if kind == "csv" and given is None:
        _check_header(head, source)
    if kind == "json" and given is not None:
        return given
    return _text_column(head, source, given)


def _say_skipped(files: Mapping[str, list[Path]]) -> None:
    for part in files.values():
        for path in part:
            layout_of(path).say_skipped(path)


def _with_ids(
    texts: Mapping[str, list[str]], tokenizer: PreTrainedTokenizerBase, source: str | Path
) -> dict[str, Dataset]:
    """The rows that have two ids or more, with their ids."""
    splits = {}
    single = 0
    for part, its_texts in texts.items():
        rows = in_memory(text=pa.array(its_texts, pa.large_string()))
        rows = rows.map(lambda batch: {"input_ids": ids_of(tokenizer, batch["text"])}, batched=True)
        _, lengths = stored_sequences(rows)
        splits[part] = rows.select(np.flatnonzero(lengths > 1))
        single += len(rows) - len(splits[part])
    if single:
        logger.warning(
            "%s: %s rows of a single token are left out, because nothing can be predicted of them",
            terminal_text(source),
            f"{single:,}",
        )
    return splits


# -- columns ---------------------------------------------------------------------------------------


def _head(streams: Mapping[str, IterableDataset], source: Any, rows: int = _HEAD_ROWS) -> Columns:
    """The first rows, by columns."""
    first_stream = next(iter(streams.values()))
    return next(_batches(first_stream, rows, source), {})


def _batches(stream: IterableDataset, size: int, source: Any) -> Iterator[Columns]:
    """Rows, by columns."""
    try:
        yield from stream.iter(size)
    except Exception as error:  # each reader has errors of its own
        raise unreadable(source, error) from error


def _text_column(head: Columns, source: Any, given: str | None = None) -> str:
    """The column that is given, or that must hold the text: the only one of the first kind that has
    exactly one.
    """
    words = {name: _numbers_of_words(values) for name, values in head.items()}
    of_text = {name for name in head if words[name]}
    of_chats = {name for name, values in head.items() if any(map(_is_chat, values))}
    of_sentences = {name for name in of_text if np.mean(words[name]) >= _WORDS_OF_SENTENCES}
    kinds = [{"text"} & of_text, of_chats, of_text, of_sentences]
    if given:
        kinds = [{given} & head.keys()]
    for names in kinds:
        if len(names) == 1:
            return next(iter(names))
    columns = ", ".join(map(str, head)) or "(none: it is empty)"
    sentences = [name for name in head if name in of_sentences]
    if given:
        wrong = f"no {given!r}: {_OPTIONS}"
    elif len(sentences) > 1:
        shown = ", ".join(sentences)
        wrong = f"several hold text ({shown}): write them together in a column text, or {_OPTIONS}"
    elif of_others := [name for name, values in head.items() if any(map(_is_share_gpt, values))]:
        wrong = (
            f"the messages of {of_others[0]!r} have from and value: write them with role (user,"
            " assistant, system) and content"
        )
    else:
        wrong = f"none that must be the text: {_OPTIONS}"
    raise ValueError(f"{source} has columns {columns}, and {wrong}")


def _numbers_of_words(values: Sequence[Any]) -> list[int]:
    """Of the texts that are more than numbers, dates and times."""
    texts = [value for value in values if isinstance(value, str)]
    return [len(text.split()) for text in texts if not _NO_WORDS.fullmatch(text)]


def _check_header(head: Columns, source: Any) -> None:
    """Raises ValueError if the first line of a text file with columns is no header: it has a number
    where the rows have numbers too, beside cells of text.
    """
    names = [name for name in head if name]
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if len(numbers) == len(names):  # a table whose columns are counted
        return
    for name in numbers:
        if all(isinstance(cell, str) and _NUMBER.fullmatch(cell) for cell in head[name]):
            raise ValueError(
                f"{source} has {name!r} in its first line, and numbers below it: write the names of"
                " the columns in a line above, or name the text_column"
            )


def _is_chat(value: Any) -> bool:
    return _are_messages(value, {"role", "content"})


def _is_share_gpt(value: Any) -> bool:
    """Whether it is a chat as ShareGPT writes it, which no template of a tokenizer reads."""
    return _are_messages(value, {"from", "value"})


def _are_messages(value: Any, names: set[str]) -> bool:
    if not isinstance(value, list) or not value:
        return False
    return isinstance(value[0], dict) and names <= value[0].keys()


# -- rows ------------------------------------------------------------------------------------------


def _is_wrapped(lines: Sequence[str]) -> bool:
    """Whether lines of a plain text end where the next word has no room, and blank lines divide its
    paragraphs.
    """
    inner = [
        (len(line.rstrip()), len(after.split()[0]))
        for line, after in pairwise(lines)
        if line.strip() and after.strip()
    ]
    if not inner or all(line.strip() for line in lines):
        return False
    sizes, next_words = np.transpose(inner)
    width = np.quantile(sizes, 0.9)
    is_full = sizes + 1 + next_words > 0.95 * width
    return width >= 40 and np.mean(is_full) >= 0.6


def texts_of(
    stream: IterableDataset, column: str, tokenizer: Any, source: Any, is_plain: bool = False
) -> list[str]:
    """The rows that are not blank, without blanks at their end. How many are left out is said, but
    for the blank lines of a plain text, which only divide it.
    """
    if stream.features:
        read = [name for name in (column, TOOLS) if name in stream.features]
        stream = stream.select_columns(read)
    with ChatTemplate(tokenizer) as template:
        return _texts_of(stream, column, template, source, is_plain)


def _texts_of(
    stream: IterableDataset, column: str, template: ChatTemplate, source: Any, is_plain: bool
) -> list[str]:
    texts = []
    size = 0
    for row, (value, tools) in enumerate(_values(stream, column, source)):
        where = f"{source}: row {row} (counted from 0) of column {column!r}"
        text = _written(value, template, where, tools).lstrip("\n\ufeff").rstrip()
        content = text.encode(errors="replace")  # without halves of surrogate pairs
        size += len(content)
        texts.append(content.decode())
        if size >= READ_BYTES:
            logger.warning("%s: only the first %d MB of text are read", source, READ_BYTES >> 20)
            break
    filled = [text for text in texts if text]
    if len(filled) < len(texts) and not is_plain:
        logger.warning(
            "%s: %s of %s rows are left out, because column %s is empty there",
            terminal_text(source),
            f"{len(texts) - len(filled):,}",
            f"{len(texts):,}",
            terminal_text(repr(column)),
        )
    return filled


def whole_rows(stream: IterableDataset, source: Any) -> Iterator[dict[str, Any]]:
    """The rows with all their columns."""
    for batch in _batches(stream, _ROWS_AT_ONCE, source):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def text_of(value: Any, template: ChatTemplate, where: str, tools: Any = None) -> str:
    """A text or a number as it is, and a chat as the tokenizer's template writes it; without blanks
    at its end. "" of nothing.

    Args:
        where: names the row in an error.
        tools: definitions of tools that the template should write, or the same as JSON.

    Raises:
        ValueError: it is neither, or the tokenizer cannot write it.
    """
    text = _written(value, template, where, tools).lstrip("\n\ufeff").rstrip()
    return text.encode(errors="replace").decode()  # without halves of surrogate pairs


def _values(stream: IterableDataset, column: str, source: Any) -> Iterator[tuple[Any, Any]]:
    """The values of a column, and the tools of their rows; None where there are none."""
    for batch in _batches(stream, _ROWS_AT_ONCE, source):
        values = batch.get(column, ())
        yield from zip(values, batch.get(TOOLS, [None] * len(values)), strict=True)


def _written(value: Any, template: ChatTemplate, where: str, tools: Any = None) -> str:
    """A text or a number as it is, and a chat as the tokenizer's template writes it."""
    is_nan = value != value
    if value is None or is_nan or value == []:
        return ""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, (str, int, float)):
        return str(value)
    if not _is_chat(value):
        raise ValueError(f"{where} holds neither text nor a chat, but {value!r:.80}: {_OPTIONS}")
    return _chat_text(value, template, where, tools)


def _chat_text(
    messages: list[dict[str, Any]], template: ChatTemplate, where: str, tools: Any
) -> str:
    """A chat as the tokenizer's template writes it, without BOS and EOS, which `ids_of` adds."""
    tokenizer = template.tokenizer
    named = f"tokenizer={getattr(tokenizer, 'name_or_path', None)!r}"
    if not template.is_there:
        raise ValueError(
            f"{where} holds chats, for a tokenizer's template, but {named} has none: give that of a"
            " chat model (--tokenizer on the command line), or write each chat into a column text"
        )
    try:
        tools = json.loads(tools) if isinstance(tools, str) and tools else tools
        text = template.text(messages, tools).strip()
    except ValueError as error:
        raise ValueError(
            f"{where} holds a chat that the template of {named} refuses ({reason(error)}): mend the"
            " chat"
        ) from None
    without_bos = text.removeprefix(tokenizer.bos_token or "")
    return without_bos.removesuffix(tokenizer.eos_token or "")


# -- the tokenizer ---------------------------------------------------------------------------------


def _made(texts: list[str], vocab_size: int | None) -> PreTrainedTokenizerBase:
    """The tokenizer that fits the training rows."""
    size = sum(map(len, texts))
    if any(UNK in text.split() for text in texts[:10_000]):
        return word_tokenizer(texts, vocab_size or _MOST_ENTRIES)
    # A counted bigram needs the fewest bits per byte with 6 to 11 √size entries, and up to 4 % more
    # with 5 √size (recipes/LOG.md).
    entries = int(np.clip(5 * size**0.5, 300, _MOST_ENTRIES))
    every = 1 + size // _LEARNT_BYTES
    return bpe_tokenizer(texts[::every], vocab_size or entries)
