"""The vocabulary of a summary: the tokens of a tokenizer, a list of items' names, or none at all.

`vocabulary_of(processing_class)` wraps what users give. Each class knows its own words on the card,
its files and its hash.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence, Set
from itertools import groupby
from pathlib import Path
from typing import Any, ClassVar

from farzi_hf.common.text import parse

ITEMS_FILE = "vocabulary.json"
"""The file that an `ItemVocabulary` is saved in."""
ITEMS_BYTES = 2**26
"""The most bytes of it that are read."""


class Vocabulary:
    """What the entries 0 … V − 1 of a summary stand for.

    This class itself is of entries without names, which cannot be read.
    """

    named: ClassVar[bool] = False
    """Whether entries have names; without names there is no text."""
    entries: ClassVar[str] = "items"
    """The word for entries on the card."""
    tags: ClassVar[tuple[str, ...]] = ()
    """Tags of the dataset repository."""
    task_categories: ClassVar[tuple[str, ...]] = ()
    """The repository's categories on the Hub."""
    draw_power: ClassVar[float] = 1.0
    """Made-up inputs draw an entry by its frequency to this power."""
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
    """The arguments of `AutoConfig.for_model` for a small learner of such a vocabulary."""

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
        names = dict(self.pairs())
        return [names.get(i, f"[{i}]") for i in range(size)]

    @property
    def readable(self) -> Vocabulary:
        """The same entries with names for people."""
        return self

    def hash(self) -> str | None:
        """SHA-256 over the (id, name) pairs; None without names.

        Two vocabularies have the same hash where all ids mean the same.
        """
        if not self.named:
            return None
        return hashlib.sha256(json.dumps(self.pairs()).encode()).hexdigest()

    def special_ids(self, names: Sequence[str]) -> dict[str, int | None]:
        """The ids of special tokens such as `pad_token_id`; None where there is no such token."""
        return dict.fromkeys(names)


class TokenVocabulary(Vocabulary):
    """The tokens of a tokenizer."""

    named = True
    entries = "tokens"
    tags = ("language-modeling",)
    task_categories = ("text-generation",)

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer

    def pairs(self) -> list[tuple[int, str]]:
        return sorted((i, token) for token, i in self.tokenizer.get_vocab().items())

    @property
    def readable(self) -> Vocabulary:
        """Tokens as they stand in a text: a byte-level tokenizer calls a space Ġ."""
        largest = max((i for i, _ in self.pairs()), default=-1)
        return ItemVocabulary([self._as_text(name) for name in self.names(1 + largest)])

    def _as_text(self, token: str) -> str:
        """A part of a character, or nothing, keeps the token's name."""
        text = self.tokenizer.convert_tokens_to_string([token])
        is_part = "\ufffd" in text
        return token if is_part or not text else text

    def text(self, tokens: Sequence[str]) -> str:
        """The decoded text, special tokens included.

        A name that no token has stands for itself, unless the tokenizer has an unknown token.
        """
        ids = self.tokenizer.convert_tokens_to_ids(list(tokens))
        pairs = zip(tokens, ids, strict=True)
        parts = []
        for has_id, run in groupby(pairs, lambda pair: pair[1] is not None):
            if has_id:
                parts.append(self.tokenizer.decode([i for _, i in run]))
            else:
                parts.append(" ".join(name for name, _ in run))
        return " ".join(parts)

    def save(self, folder: Path) -> None:
        self.tokenizer.save_pretrained(folder)

    def special_ids(self, names: Sequence[str]) -> dict[str, int | None]:
        return {name: getattr(self.tokenizer, name, None) for name in names}


class ItemVocabulary(Vocabulary):
    """The names of items, in a list: item i is entry i."""

    named = True
    tags = ("recommendation",)
    task_categories = ("other",)
    draw_power = 0.5
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
        for name in self.items:
            if name.encode(errors="ignore").decode() != name:
                raise ValueError(
                    f"processing_class has the name {name!r} with half a surrogate pair, which is"
                    " no text: mend it"
                )
        names = json.dumps(list(self.items), ensure_ascii=False, indent=0)
        (folder / ITEMS_FILE).write_text(names, encoding="utf-8")


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
            f"{path} is not a list of strings, the names of the items; fetch the file again, or"
            " mend it"
        )
    return names


def is_list(names: Any) -> bool:
    """Whether these are several names in an order."""
    is_another = isinstance(names, str | bytes | Mapping | Set)
    return hasattr(names, "__len__") and not is_another


def vocabulary_of(processing_class: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, of a list of items' names, or of `None`. Raises ValueError for
    anything else.
    """
    if processing_class is None:
        return Vocabulary()
    if hasattr(processing_class, "get_vocab"):
        return TokenVocabulary(processing_class)
    if not is_list(processing_class):
        raise ValueError(
            f"processing_class={processing_class!r:.200} is neither a tokenizer nor a list of"
            " names: give a tokenizer that AutoTokenizer has loaded, or the names of all items"
        )
    return ItemVocabulary(processing_class)
