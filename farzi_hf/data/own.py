"""One's own text as sequences of ids, `load_text`; and what a data set holds, text or interactions,
`recognise`.
"""

import hashlib
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from datasets import DatasetDict, IterableDataset
from transformers import PreTrainedTokenizerBase

from farzi_hf.common.text import reason, terminal_text
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
from farzi_hf.data.readers import SOURCES
from farzi_hf.data.sequences import SPLITS, in_memory, stored_sequences
from farzi_hf.data.text import TEXTS, UNK, bpe_tokenizer, ids_of, word_tokenizer
from farzi_hf.data.tokenizer_file import load_tokenizer

logger = logging.getLogger(__name__)

TEXT, INTERACTIONS = "text", "interactions"
READ_BYTES = 256 << 20
"""Bytes of text that are read of a split at most."""
_LEARNT_BYTES = 16 << 20  # of which a tokenizer is learnt
_MOST_ENTRIES = (
    4996  # of a tokenizer that is made, beside 4 special tokens: a step's time grows with them
)
_SHARE = 0.05  # of the different rows, for validation and for test
_SNIFFED = 100  # files of which the first rows are looked at
_NUMBER = re.compile(r"-?\d+(\.\d+)?")
_HEAD, _LINES = 200, 5_000  # rows by which the columns are known, and wrapped lines
_OPTIONS = "name yours with text_column, or those of interactions with user_column and item_column"


class TextData(DatasetDict):
    """Train, validation and test with the columns `text` and `input_ids`.

    Attributes:
        tokenizer: made `input_ids`.
        column: the column of the source with the text; None: its files are plain text.
        split: how the splits came about, in words.
        description: what was read, in one line.
    """

    tokenizer: PreTrainedTokenizerBase
    column: str | None
    split: str
    description: str


def recognise(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    text_column: str | None = None,
    user_column: str | None = None,
    item_column: str | None = None,
    **hub: str | None,
) -> str:
    """What a data set holds, "text" or "interactions": by its name, its file's ending, the columns
    that are given, or those that it has.

    Args:
        hub: name, split and revision of a data set of the Hub, as in `load_text`.

    Raises:
        ValueError: its columns do not say it, and the message lists them; or columns of both are
            given.
        DataUnavailableError: there is no such data set within reach.
    """
    if source in (*TEXTS, *SOURCES, SAMPLE_INTERACTIONS):
        return TEXT if source in TEXTS else INTERACTIONS
    of_items = user_column or item_column
    if of_items and text_column:
        raise ValueError(
            f"text_column={text_column!r} is of text, but {of_items!r} of interactions: give one of"
            " them"
        )
    if of_items or text_column:
        return TEXT if text_column else INTERACTIONS
    files = files_of(source, data_dir)
    kind = kind_of(files)
    if kind in ("csv", "text") and _are_interactions(files, source):
        return INTERACTIONS
    if kind == "text":
        return TEXT
    head = _head(stream_of(source, data_dir, **hub), source)
    if kind != "csv" and hold_interactions(head):
        return INTERACTIONS
    if kind == "csv":
        _check_header(head, source)
    _text_column(head, source)  # raises where there is none
    return TEXT


def _are_interactions(files: Mapping[str, list[Path]], source: str | Path) -> bool:
    """Whether text files hold interactions, all of them or none.

    Raises:
        ValueError: some of them do, or they are tables that may be interactions.
    """
    paths = [path for part in files.values() for path in part][:_SNIFFED]
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
    """Your own text: a file, a folder or a pattern of .txt, .md, .jsonl, .json, .csv, .tsv,
    .parquet or .arrow, or a data set of the Hub.

    The source's own splits stay, of files such as train.txt, valid.txt and test.txt too. What is
    missing of them is taken from train: 5 % of the different rows each, by a hash, so that equal
    rows are in one split. Validation and test hold each row once, and none of train. Rows that are
    blank, or a single token without BOS and EOS, are left out.

    Args:
        column: the column with the text, or with the messages of chats, which the tokenizer's
            template writes out. By default `text`, the messages, the only column of text, or the
            only one with sentences.
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
    if rows not in (None, "line", "paragraph"):
        raise ValueError(f"rows={rows!r} is unknown: give line or paragraph, or leave it out")
    opened = partial(stream_of, path_or_repo, data_dir, name=name, split=split, revision=revision)
    files = find_files(path_or_repo, data_dir)
    kind = None if files is None else kind_of(files.splits)
    if files is not None:
        files.say_left_out(path_or_repo)
    if kind == "text":
        rows = rows or (
            "paragraph"
            if _is_wrapped(_head(opened(), path_or_repo, _LINES).get("text", []))
            else "line"
        )
        streams, read, where = opened(rows=rows), "text", f"a {rows} each"
    else:
        head = _head(opened(), path_or_repo)
        if kind == "csv":
            _say_skipped(files.splits)
            if column is None:
                _check_header(head, path_or_repo)
        if column is None or kind != "json":  # where a field may begin late
            column = _text_column(head, path_or_repo, column)
        streams, read, where = opened(column=column), column, f"in column {column!r}"
    if isinstance(tokenizer, (str, Path)):
        tokenizer = load_tokenizer(tokenizer)
    parts = {
        part: texts_of(x, read, tokenizer, path_or_repo, is_plain=kind == "text")
        for part, x in own_splits(streams, path_or_repo).items()
    }
    if kind == "json" and not any(parts.values()):
        _text_column(head, path_or_repo, column)  # says that there is none
    parts, said, duplicates = _split(parts, path_or_repo)
    if tokenizer is None:
        tokenizer = _made(parts["train"], vocab_size)
    splits = TextData()
    single = 0
    for part, texts in parts.items():
        rows_of = in_memory(text=pa.array(texts, pa.large_string()))
        rows_of = rows_of.map(
            lambda batch: {"input_ids": ids_of(tokenizer, batch["text"])}, batched=True
        )
        splits[part] = rows_of.select(np.flatnonzero(stored_sequences(rows_of)[1] > 1))
        single += len(rows_of) - len(splits[part])
    if single:
        logger.warning(
            "%s: %s rows of a single token are left out, because nothing can be predicted of them",
            terminal_text(path_or_repo),
            f"{single:,}",
        )
    sizes = [len(rows_of) for rows_of in splits.values()]
    said += f" ({' / '.join(f'{size:,}' for size in sizes)}){duplicates}"
    splits.tokenizer, splits.column, splits.split = tokenizer, column, said
    splits.description = f"{sum(sizes):,} rows of text, {where}; {said}; {len(tokenizer):,} tokens"
    return splits


# -- columns ---------------------------------------------------------------------------------------


def _head(
    streams: Mapping[str, IterableDataset], source: Any, rows: int = _HEAD
) -> Mapping[str, Sequence[Any]]:
    """The first rows, by columns."""
    return next(_batches(next(iter(streams.values())), rows, source), {})


def _batches(
    stream: IterableDataset, size: int, source: Any
) -> Iterator[Mapping[str, Sequence[Any]]]:
    """Rows, by columns."""
    try:
        yield from stream.iter(size)
    except Exception as error:  # each reader has errors of its own
        raise unreadable(source, error) from error


def _text_column(head: Mapping[str, Sequence[Any]], source: Any, given: str | None = None) -> str:
    """The column that is given, or that must hold the text."""
    words = {
        name: [
            len(x.split())
            for x in values
            if isinstance(x, str) and not re.fullmatch(r"[\d\s.,:+-]*", x)
        ]
        for name, values in head.items()
    }
    texts = [name for name, counts in words.items() if counts]
    chats = [name for name, values in head.items() if any(map(_is_chat, values))]
    prose = [name for name in texts if np.mean(words[name]) >= 4]
    choices = [{given} & head.keys()] if given else [{"text"} & {*texts}, chats, texts, prose]
    chosen = [next(iter(names)) for names in choices if len(names) == 1]
    if not chosen:
        wrong = f"no {given!r}" if given else "none that must be the text"
        raise ValueError(
            f"{source} has columns {', '.join(map(str, head)) or '(none: it is empty)'}, and"
            f" {wrong}: {_OPTIONS}"
        )
    return chosen[0]


def _check_header(head: Mapping[str, Sequence[Any]], source: Any) -> None:
    """Raises ValueError if the first line of a text file with columns is no header: it has a number
    where the rows have numbers too, beside cells of text.
    """
    names = [name for name in head if name]
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if len(numbers) == len(names):  # a table whose columns are counted
        return
    for name in numbers:
        if all(isinstance(x, str) and _NUMBER.fullmatch(x) for x in head[name]):
            raise ValueError(
                f"{source} has {name!r} in its first line, and numbers below it: write the names of"
                " the columns in a line above, or name the text_column"
            )


def _say_skipped(files: Mapping[str, list[Path]]) -> None:
    for path in [path for part in files.values() for path in part]:
        layout_of(path).say_skipped(path)


def _is_chat(value: Any) -> bool:
    first = value[0] if isinstance(value, list) and value else None
    return isinstance(first, dict) and {"role", "content"} <= first.keys()


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
    sizes, words = np.transpose(inner)
    width = np.quantile(sizes, 0.9)
    return width >= 40 and np.mean(sizes + 1 + words > 0.95 * width) >= 0.6


def texts_of(
    stream: IterableDataset, column: str, tokenizer: Any, source: Any, is_plain: bool = False
) -> list[str]:
    """The rows that are not blank, without blanks at their end. How many are left out is said, but
    for the blank lines of a plain text, which only divide it.
    """
    with ChatTemplate(tokenizer) as template:
        return _texts_of(stream, column, template, source, is_plain)


def _texts_of(
    stream: IterableDataset, column: str, template: ChatTemplate, source: Any, is_plain: bool
) -> list[str]:
    texts: list[str] = []
    size = 0
    blank = 0
    batches = _batches(stream.select_columns(column) if stream.features else stream, 1000, source)
    for row, value in enumerate(value for batch in batches for value in batch.get(column, ())):
        where = f"{source}: row {row} (counted from 0) of column {column!r}"
        text = (
            _written(value, template, where).lstrip("\n\ufeff").rstrip().encode(errors="replace")
        )  # half a surrogate pair
        if text:
            texts.append(text.decode())
        else:
            blank += 1
        size += len(text)
        if size >= READ_BYTES:
            logger.warning("%s: only the first %d MB of text are read", source, READ_BYTES >> 20)
            break
    if blank and not is_plain:
        logger.warning(
            "%s: %s of %s rows are left out, because column %s is empty there",
            terminal_text(source),
            f"{blank:,}",
            f"{blank + len(texts):,}",
            terminal_text(repr(column)),
        )
    return texts


def _written(value: Any, template: ChatTemplate, where: str) -> str:
    """A text or a number as it is, and a chat as the tokenizer's template writes it."""
    if value is None or value != value or value == []:
        return ""
    if isinstance(value, (str, int, float, bytes)):
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    if not _is_chat(value):
        raise ValueError(f"{where} holds neither text nor a chat, but {value!r:.80}: {_OPTIONS}")
    tokenizer = template.tokenizer
    named = f"tokenizer={getattr(tokenizer, 'name_or_path', None)!r}"
    if not template.is_there:
        raise ValueError(
            f"{where} holds chats, for a tokenizer's template, but {named} has none: give that of a"
            " chat model"
        )
    try:
        text = template.text(value).strip()
    except ValueError as error:
        raise ValueError(
            f"{where} holds a chat that the template of {named} refuses ({reason(error)}): mend the"
            " chat"
        ) from None
    # `ids_of` adds them.
    return text.removeprefix(tokenizer.bos_token or "").removesuffix(tokenizer.eos_token or "")


def _split(parts: Mapping[str, list[str]], source: Any) -> tuple[dict[str, list[str]], str, str]:
    """Train, validation and test, and how they came about and what was left out, in words."""
    keys = {part: _keys(texts) for part, texts in parts.items()}
    missing = [part for part in ("test", "validation") if part not in parts]
    different = np.unique(
        keys["train"]
    )  # the order of hashes is random, and the same in every data set
    if len(different) <= len(missing):
        remedy = "give at least 3, or files train.txt, valid.txt and test.txt"
        raise ValueError(
            f"{source} holds {len(different)} different rows of text that are not blank: {remedy}"
        )
    if len(different) < 100:
        few = "%s holds only %d different rows of text: figures on its held-out rows mean little"
        logger.warning(few, source, len(different))
    ends, start = np.searchsorted(different, [int(_SHARE * 2**64), int(2 * _SHARE * 2**64)]), 0
    texts, seen = (
        {part: np.array(rows, dtype=object) for part, rows in parts.items()},
        keys["train"],
    )
    for place, part in enumerate(missing):
        end = np.clip(
            ends[place], start + 1, len(different) - len(missing) + place
        )  # of few rows one each
        taken, start = np.isin(keys["train"], different[start:end]), end
        texts[part], keys[part] = texts["train"][taken], keys["train"][taken]
        texts["train"], keys["train"] = texts["train"][~taken], keys["train"][~taken]
    twice = 0
    for part in SPLITS[1:]:
        _, first = np.unique(keys[part], return_index=True)
        kept = np.sort(first if part in missing else first[~np.isin(keys[part][first], seen)])
        if not len(kept):
            raise ValueError(
                f"{source}: its split {part} has no row that is not in train too: give rows of"
                " their own"
            )
        twice += len(texts[part]) - len(kept)
        texts[part] = texts[part][kept]
    own = ", ".join(["its own splits", *(f"{part} split off by hash" for part in missing)])
    duplicates = f", {twice:,} duplicates left out of validation and test" if twice else ""
    return (
        {part: texts[part].tolist() for part in SPLITS},
        own if len(missing) < 2 else "90/5/5 split by hash",
        duplicates,
    )


def _keys(texts: list[str]) -> np.ndarray:
    """A hash of each text (n,), whatever its blanks are."""
    plain = (" ".join(text.split()).encode() for text in texts)
    return np.frombuffer(
        b"".join(hashlib.blake2b(x, digest_size=8).digest() for x in plain), np.uint64
    )


# -- the tokenizer ---------------------------------------------------------------------------------


def _made(texts: list[str], vocab_size: int | None) -> PreTrainedTokenizerBase:
    """The tokenizer that fits the training rows."""
    size = sum(map(len, texts))
    if any(UNK in text.split() for text in texts[:10_000]):
        return word_tokenizer(texts, vocab_size or _MOST_ENTRIES)
    # A counted bigram needs the fewest bits per byte with 6 to 11 √size entries, and up to 4 % more
    # with 5 √size (recipes/LOG.md).
    return bpe_tokenizer(
        texts[:: 1 + size // _LEARNT_BYTES],
        vocab_size or int(np.clip(5 * size**0.5, 300, _MOST_ENTRIES)),
    )
