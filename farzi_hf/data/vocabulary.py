"""The vocabulary of a summary: the tokens of a tokenizer, a list of items' names, or none at all.

`vocabulary_of(processing_class)` wraps what users give. Each class knows its own words on the card,
its files and its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from farzi_hf.common.text import parse

ITEMS_FILE = "vocabulary.json"
"""The file that an `ItemVocabulary` is saved in."""
ITEMS_BYTES = 2**26
"""The most bytes of it that are read."""


class Vocabulary:
    """What the entries 0 … V − 1 of a summary stand for. This class itself is of entries without
    names, which cannot be read.

    Attributes:
        named: whether entries have names; without names there is no text.
        entries: the word for entries on the card.
        tags, task_categories: tags of the dataset repository, and its categories on the Hub.
        draw_power: made-up inputs draw an entry by its frequency to this power.
        small_learner: the arguments of `AutoConfig.for_model` for a small learner of such a
            vocabulary.
    """

    named: ClassVar[bool] = False
    entries: ClassVar[str] = "items"
    tags: ClassVar[tuple[str, ...]] = ()
    task_categories: ClassVar[tuple[str, ...]] = ()
    draw_power: ClassVar[float] = 1.0
    small_learner: ClassVar[Mapping[str, Any]] = {
        "model_type": "gpt2",
        "n_embd": 32,
        "n_layer": 1,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": False,
        "initializer_range": 0.1,
    }

    def pairs(self) -> list[tuple[int, str]]:
        """The (id, name) of all entries, sorted by id."""
        return []

    def __len__(self) -> int:
        """The number of entries with a name."""
        return len(self.pairs())

    def text(self, tokens: Sequence[str]) -> str:
        """Names of entries as one text."""
        raise ValueError(
            "processing_class is None, so tokens have no names; set it, or use as_hard_dataset"
        )

    def save(self, folder: Path) -> None:
        """Writes the vocabulary's files into `folder`."""

    def names(self, size: int) -> list[str]:
        """The names of the entries 0 … size − 1; `[id]` where an entry has none."""
        known = dict(self.pairs())
        return [known.get(i, f"[{i}]") for i in range(size)]

    @property
    def readable(self) -> Vocabulary:
        """The same entries with names for people."""
        return self

    def hash(self) -> str | None:
        """SHA-256 over the (id, name) pairs: two vocabularies have the same hash where all ids mean
        the same. None without names.
        """
        return hashlib.sha256(json.dumps(self.pairs()).encode()).hexdigest() if self.named else None

    def special_ids(self, names: Sequence[str]) -> dict[str, int | None]:
        """The ids of special tokens such as `pad_token_id`; None where the vocabulary has no such
        token.
        """
        return dict.fromkeys(names)


class TokenVocabulary(Vocabulary):
    """The tokens of a tokenizer."""

    named, entries, tags, task_categories = (
        True,
        "tokens",
        ("language-modeling",),
        ("text-generation",),
    )

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def pairs(self) -> list[tuple[int, str]]:
        return sorted((i, token) for token, i in self.tokenizer.get_vocab().items())

    @property
    def readable(self) -> Vocabulary:
        """Tokens as they stand in a text: a byte-level tokenizer calls a space Ġ. A part of a
        character keeps its name.
        """
        decode = self.tokenizer.convert_tokens_to_string
        texts = [
            (name, decode([name]))
            for name in self.names(1 + max((i for i, _ in self.pairs()), default=-1))
        ]
        return ItemVocabulary(
            [name if "\ufffd" in text or not text else text for name, text in texts]
        )

    def text(self, tokens: Sequence[str]) -> str:
        """The decoded text, special tokens included. A name that no token has stands for itself,
        unless the tokenizer has an unknown token.
        """
        pairs = zip(tokens, self.tokenizer.convert_tokens_to_ids(list(tokens)), strict=True)
        runs = [
            (known, list(run)) for known, run in groupby(pairs, lambda pair: pair[1] is not None)
        ]
        decode = self.tokenizer.decode
        return " ".join(
            decode([i for _, i in x]) if known else " ".join(name for name, _ in x)
            for known, x in runs
        )

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)

    def special_ids(self, names: Sequence[str]) -> dict[str, int | None]:
        return {name: getattr(self.tokenizer, name, None) for name in names}


class ItemVocabulary(Vocabulary):
    """The names of items, in a list: item i is entry i."""

    named, tags, task_categories, draw_power = True, ("recommendation",), ("other",), 0.5
    small_learner: ClassVar = {"model_type": "sasrec", "hidden_size": 32, "initializer_range": 0.1}

    def __init__(self, items: Sequence[str]) -> None:
        for i, name in enumerate(items):
            if not isinstance(name, str):
                raise ValueError(
                    f"processing_class[{i}] is {name!r}: give names that are text, such as str(id)"
                )
        self.items = items

    def pairs(self) -> list[tuple[int, str]]:
        return list(enumerate(self.items))

    def text(self, tokens: Sequence[str]) -> str:
        """The names with bars between them."""
        return " | ".join(tokens)

    def save(self, folder: Path) -> None:
        if wrong := [name for name in self.items if name.encode(errors="ignore").decode() != name]:
            raise ValueError(
                f"processing_class has the name {wrong[0]!r} with half a surrogate pair, which is"
                " no text: mend it"
            )
        (folder / ITEMS_FILE).write_text(
            json.dumps(list(self.items), ensure_ascii=False, indent=0), encoding="utf-8"
        )


def item_names(content: bytes, path: Path, most: int) -> list[str]:
    """The names of at most `most` items in `content`, which was read from a stranger's file `path`.
    Raises ValueError if it holds something else.
    """
    plain = content.replace(rb"\\", b"").replace(rb"\"", b"")
    between = plain.split(b'"', 4 * most)[::2]  # every second part is a name
    if b"".join(between).count(b",") >= 2 * most:  # before they take memory
        raise ValueError(
            f"{path} has far more than the {most:,} entries of config.json; fetch it again"
        )
    names = parse(content, path)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{path} is no list of strings, the names of the items; fetch the file again, or"
            " mend it"
        )
    return names


def vocabulary_of(processing_class: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, of a list of items' names, or of `None`."""
    if processing_class is None:
        return Vocabulary()
    return (TokenVocabulary if hasattr(processing_class, "get_vocab") else ItemVocabulary)(
        processing_class
    )
