"""One's own text as sequences of ids, `load_text`; and what a data set holds, text or interactions, `recognise`."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import DatasetDict, IterableDataset
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from farzi_hf.data.files import BUILDERS, DataUnavailableError, ending, files_of, reason, split_named, stream_of, utf8
from farzi_hf.data.interactions import SAMPLE_INTERACTIONS
from farzi_hf.data.readers import SOURCES, has_interactions, header_of
from farzi_hf.data.sequences import SPLITS, in_memory
from farzi_hf.data.text import TEXTS, UNK, bpe_tokenizer, ids_of, word_tokenizer

logger = logging.getLogger(__name__)

TEXT, INTERACTIONS = "text", "interactions"
READ_BYTES = 256 << 20
"""Bytes of text that are read of a split at most."""
_LEARNT_BYTES = 32 << 20  # of which a tokenizer is learnt
_SHARE = 0.05  # of rows, for validation and for test
_FEW = 100  # different rows
_HEAD = 200  # rows by which the columns are known
_LINES = 10_000  # by which wrapped text is known
_OPTIONS = "name the column with text_column, or those of interactions with user_column and item_column"
Columns = Mapping[str, Sequence[Any]]


class TextData(DatasetDict):
    """Train, validation and test with the columns `text` and `input_ids`.

    Attributes:
        tokenizer: made `input_ids`.
        column: the column of the source with the text; None: its files are plain text.
        description: what was read, in one line.
    """

    tokenizer: PreTrainedTokenizerBase
    column: str | None
    description: str


def recognise(
    source: str | Path, data_dir: str | Path | None = None, *, text_column: str | None = None, user_column: str | None = None,
    item_column: str | None = None, name: str | None = None, split: str | None = None, revision: str | None = None,
) -> str:  # fmt: skip
    """ "text" or "interactions": what a data set holds, by its name, its file's ending, the columns that are given, or those that it has.

    Raises:
        ValueError: its columns do not say it; the message lists them. Or columns of both are given.
        DataUnavailableError: see `data.files.stream_of`.
    """
    if source in TEXTS or source in SOURCES or source == SAMPLE_INTERACTIONS:
        return TEXT if source in TEXTS else INTERACTIONS
    given = user_column or item_column
    if given and text_column:
        raise ValueError(
            f"text_column={text_column!r} is of text, and user_column or item_column={given!r} of interactions: give one of them"
        )
    if given or text_column:
        return TEXT if text_column else INTERACTIONS
    files = files_of(source, data_dir)
    first = files["train"][0] if files else None
    kind = BUILDERS.get(ending(first)) if files else ""
    if kind == "text":
        return TEXT
    if kind in ("csv", None):
        header = header_of(first)
        if has_interactions(header) or kind is None:  # an unknown ending
            return INTERACTIONS if has_interactions(header) else TEXT
    head = _head(stream_of(source, data_dir, name=name, split=split, revision=revision), source)
    return INTERACTIONS if has_interactions(list(head)) else _text_column(head, source) and TEXT


def load_text(
    path_or_repo: str | Path, column: str | None = None, tokenizer: PreTrainedTokenizerBase | str | Path | None = None, *,
    data_dir: str | Path | None = None, name: str | None = None, split: str | None = None, revision: str | None = None,
    rows: str | None = None, vocab_size: int | None = None,
) -> TextData:  # fmt: skip
    """Your own text: a file, a folder or a pattern of .txt, .md, .jsonl, .json, .csv, .tsv, .parquet or .arrow, or a data set of the Hub.

    The source's own splits stay, of files such as train.txt, valid.txt and test.txt too. What is missing of them is taken from train: 5 % of
    the different rows each, by a hash, so that equal rows are in one split. Validation and test hold each row once, and none of train.

    Args:
        column: the column with the text, or with the messages of chats, which the tokenizer's template writes out. By default `text`,
            `messages`, the only column of text, or the only one with sentences.
        tokenizer: a fast one, or its name or folder. By default one is made of the training rows: of words if rare words are `<unk>` already,
            as in Penn Treebank, else byte-level BPE.
        data_dir: the folder in which the path begins.
        name, split, revision: of a data set of the Hub, as in `datasets.load_dataset`.
        rows: "line" or "paragraph", of plain text. By default a paragraph where lines are wrapped, else a line.
        vocab_size: of the tokenizer that is made; by default it fits the size of the text.

    Raises:
        ValueError: there is no column of text, too little text, text that is not UTF-8, or no usable tokenizer.
        DataUnavailableError: the data set or the tokenizer is not within reach.
    """
    if rows not in (None, "line", "paragraph"):
        raise ValueError(f"rows={rows!r} is unknown: give line or paragraph, or leave it out")
    plain = (files := files_of(path_or_repo, data_dir)) and BUILDERS.get(ending(files["train"][0]), "text") == "text"

    def opened(**builder: Any) -> Mapping[str, IterableDataset]:
        return stream_of(path_or_repo, data_dir, name=name, split=split, revision=revision, **builder)

    if plain:
        rows = rows or ("paragraph" if any(map(_is_wrapped, files["train"])) else "line")
        streams, column = opened(sample_by=rows), "text"
    else:
        streams = opened()
        column = _text_column(_head(streams, path_or_repo), path_or_repo, column)
    if isinstance(tokenizer, (str, Path)):
        tokenizer = _tokenizer(tokenizer)
    parts, cut = {}, False
    for part, stream in _own_splits(streams, path_or_repo).items():
        parts[part], was_cut = _texts(stream, column, tokenizer, path_or_repo)
        cut |= was_cut
    parts, said = _split(parts, path_or_repo)
    where = f"of text, a {rows} each" if plain else f"of text in column {column!r}"
    limit = f"; only the first {READ_BYTES >> 20} MB were read" if cut else ""
    description = f"{sum(map(len, parts.values())):,} rows {where}; {said}{limit}"
    if tokenizer is None:
        tokenizer = _made(parts["train"], vocab_size)
        description += f"; {len(tokenizer):,} tokens"
    splits = TextData()
    for part in SPLITS:
        texts = in_memory(text=pa.array(parts[part], pa.large_string()))
        splits[part] = texts.map(lambda batch: {"input_ids": ids_of(tokenizer, batch["text"])}, batched=True)
    splits.tokenizer, splits.column, splits.description = tokenizer, None if plain else column, description
    return splits


# -- columns ---------------------------------------------------------------------------------------------------------


def _head(streams: Mapping[str, IterableDataset], source: Any) -> Columns:
    """The first rows, by columns."""
    try:
        return next(streams[next(iter(streams))].iter(_HEAD), {})
    except Exception as error:  # each reader of `datasets` has errors of its own
        raise _unreadable(source, error) from error


def _unreadable(source: Any, error: BaseException) -> ValueError:
    return ValueError(
        f"{str(source)!r} cannot be read ({reason(error)}): it is damaged, not UTF-8, or not what its ending says"
    )


def _text_column(head: Columns, source: Any, given: str | None = None) -> str:
    """The column that is given, or that must hold the text."""
    if given is not None and given in head:
        return given
    texts = {name: [x for x in values if isinstance(x, str)] for name, values in head.items() if name is not None}
    texts = {name: values for name, values in texts.items() if values}
    chats = [name for name, values in head.items() if any(_is_chat(x) for x in values)]
    prose = [name for name, values in texts.items() if np.mean([len(x.split()) for x in values]) >= 4]
    choices = [[name for name in texts if name == "text"], chats, list(texts), prose]
    chosen = next((names[0] for names in choices if len(names) == 1), None)
    if given is not None or chosen is None:
        wrong = f"no {given!r}" if given else "none that must be the text"
        raise ValueError(
            f"{source} has columns {', '.join(map(str, head)) or '(none: it is empty)'}, and {wrong}: {_OPTIONS}"
        )
    return chosen


def _is_chat(value: Any) -> bool:
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(x, dict) and {"role", "content"} <= x.keys() for x in value)
    )


# -- rows ------------------------------------------------------------------------------------------------------------


def _is_wrapped(path: Path) -> bool:
    """Whether the lines of a plain text are cut where the next word has no room, and blank lines divide its paragraphs."""
    lines = utf8(path, 1 << 20).decode(errors="ignore").splitlines()[:_LINES]
    inner = [(line, following) for line, following in pairwise(lines) if line.strip() and following.strip()]
    if not inner or not any(not line.strip() for line in lines[:-1]):
        return False
    width = np.quantile([len(line) for line, _ in inner], 0.9)
    full = [len(line) + 1 + len(following.split()[0]) > 0.95 * width for line, following in inner]
    return width >= 40 and np.mean(full) >= 0.6


def _own_splits(streams: Mapping[str, IterableDataset], source: Any) -> dict[str, IterableDataset]:
    """Those of train, validation and test that there are; names such as dev mean one of them."""
    found = {part: streams[part] for part in SPLITS if part in streams}
    for name, stream in streams.items():
        if part := split_named(name):
            found.setdefault(part, stream)
    if len(streams) == 1:
        found = {"train": next(iter(streams.values()))}
    if "train" not in found:
        raise ValueError(f"{source} has the splits {', '.join(streams)}, and no train: choose one with split")
    return found


def _texts(stream: IterableDataset, column: str, tokenizer: Any, source: Any) -> tuple[list[str], bool]:
    """The rows that are not blank, without blanks at their end; and whether the limit has cut them."""
    texts, size = [], 0
    tables = stream.select_columns(column).with_format("arrow").iter(1000)
    while True:
        try:
            values = next(tables)[column]
        except StopIteration:
            return texts, False
        except Exception as error:  # each reader of `datasets` has errors of its own
            raise _unreadable(source, error) from error
        if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
            values = pa.array(_written(chat, tokenizer, column) for chat in values.to_pylist() if chat)
        values = pc.utf8_rtrim_whitespace(pc.utf8_ltrim(values.cast(pa.large_string()), characters="\n"))
        texts += filter(None, values.to_pylist())
        size += values.nbytes
        if size > READ_BYTES:
            return texts, True


def _written(chat: list[dict[str, str]], tokenizer: Any, column: str) -> str:
    if tokenizer is None or not tokenizer.chat_template:
        raise ValueError(
            f"column {column!r} holds chats, which a tokenizer's template writes out, but tokenizer={getattr(tokenizer, 'name_or_path', None)!r} "
            "has none: give the tokenizer of a chat model, or another text_column"
        )
    return tokenizer.apply_chat_template(chat, tokenize=False)


def _split(parts: dict[str, list[str]], source: Any) -> tuple[dict[str, list[str]], str]:
    """Train, validation and test, and how they came about, in words."""
    own = list(parts)
    keys = {part: _keys(texts) for part, texts in parts.items()}
    missing = [part for part in ("test", "validation") if part not in parts]
    different = np.unique(keys["train"])  # in the order of the hashes, which is random
    if len(different) < 1 + len(missing):
        raise ValueError(
            f"{source} holds {len(different)} different rows of text (lines or paragraphs that are not blank): give at least 3, or files "
            "train.txt, valid.txt and test.txt"
        )
    if len(different) < _FEW:
        logger.warning(
            "%s holds only %d different rows of text: no figure of them will mean much", source, len(different)
        )
    texts, hashes = np.array(parts["train"], dtype=object), keys["train"]
    for place, part in enumerate(missing):
        edges = [int(share * 2**64) for share in (place * _SHARE, (place + 1) * _SHARE)]
        if not ((different >= edges[0]) & (different < edges[1])).any():  # few rows: at least one each
            edges = [int(different[place]), int(different[place]) + 1]
        taken = (hashes >= edges[0]) & (hashes < edges[1])
        parts[part], keys[part] = texts[taken].tolist(), hashes[taken]
        texts, hashes = texts[~taken], hashes[~taken]
    parts["train"], keys["train"] = texts.tolist(), hashes
    twice = 0
    for part in SPLITS[1:]:
        _, first = np.unique(keys[part], return_index=True)
        kept = np.sort(first[~np.isin(keys[part][first], hashes)])
        twice += len(keys[part]) - len(kept)
        parts[part] = [parts[part][i] for i in kept]
        if not parts[part]:
            raise ValueError(f"{source}: its split {part} has no row that is not in train too: give rows of their own")
    said = {
        2: "90/5/5 split by hash",
        1: f"its own {' and '.join(own)}, {missing[0] if missing else ''} split off by hash",
    }
    said = said.get(len(missing), "its own train, validation and test")
    sizes = " / ".join(f"{len(parts[part]):,}" for part in SPLITS)
    duplicates = f", {twice:,} duplicates left out of validation and test" if twice else ""
    return parts, f"{said} ({sizes}){duplicates}"


def _keys(texts: list[str]) -> np.ndarray:
    """A hash of each text (n,), whatever its blanks are."""
    digests = b"".join(
        hashlib.blake2b(" ".join(text.split()).encode(errors="surrogatepass"), digest_size=8).digest() for text in texts
    )
    return np.frombuffer(digests, np.uint64)


# -- the tokenizer ---------------------------------------------------------------------------------------------------


def _tokenizer(name: str | Path) -> PreTrainedTokenizerBase:
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # each cause has an error of its own
        raise DataUnavailableError(
            f"tokenizer={str(name)!r} is no folder and no repository with a tokenizer: {reason(error)}"
        ) from error
    if not tokenizer.is_fast:
        raise ValueError(
            f"tokenizer={str(name)!r} is a {type(tokenizer).__name__}: give a fast one, with a file tokenizer.json"
        )
    return tokenizer


def _made(texts: list[str], vocab_size: int | None) -> PreTrainedTokenizerBase:
    """The tokenizer that fits the training rows."""
    size = sum(map(len, texts))
    texts = texts[:: max(1, size // _LEARNT_BYTES)]
    if any(UNK in text.split() for text in texts[:_LINES]):
        return word_tokenizer(texts, vocab_size or 10_000)
    # Heaps' law: the number of different words grows about as the square root of the text.
    return bpe_tokenizer(texts, vocab_size or int(np.clip(3.5 * size**0.5, 300, 8000)))
