"""The vocabulary of a summary: a tokenizer, or the list of its items' names; saved, loaded and told apart by its hash."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any


def token_strings(vocabulary: Any, size: int) -> list[str] | None:
    """The names of entries 0 … size − 1 of a tokenizer or list, `[id]` where it has none; `None` without vocabulary."""
    if vocabulary is None:
        return None
    names = [f"[{i}]" for i in range(size)]
    for i, token in _entries(vocabulary):
        if i < size:
            names[i] = token
    return names


def vocabulary_hash(vocabulary: Any) -> str:
    """SHA-256 over the (id, entry) pairs of a tokenizer or a list of strings: equal where all ids mean the same."""
    return hashlib.sha256(json.dumps(_entries(vocabulary)).encode()).hexdigest()


def is_text(vocabulary: Any) -> bool:
    """Whether entries are tokens of text rather than items."""
    return hasattr(vocabulary, "decode")


def text_of(vocabulary: Any, tokens: Sequence[str]) -> str:
    """Tokens as the text they stand for, special tokens included; items apart by bars."""
    if is_text(vocabulary):
        return vocabulary.decode(vocabulary.convert_tokens_to_ids(list(tokens)))
    return " | ".join(tokens)


def _entries(vocabulary: Any) -> list[tuple[int, str]]:
    if hasattr(vocabulary, "get_vocab"):
        return sorted((i, token) for token, i in vocabulary.get_vocab().items())
    return list(enumerate(vocabulary))
