"""The text data sets that configs can name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

from datasets import DatasetDict
from transformers import PreTrainedTokenizerFast

from farzi_hf.data.docstrings import bpe_tokenizer, load_docstrings
from farzi_hf.data.text import load_ptb, load_sample_text, word_tokenizer

TEXTS: dict[str, Callable[[str | Path | None], DatasetDict]] = {
    "ptb": load_ptb,
    "sample": lambda data_dir: load_sample_text(),
    "docstrings": load_docstrings,
}
"""Readers by the names that configs use. Each takes a folder or None and returns all splits with a column ``text``."""

TOKENIZERS: dict[str, Callable[[Iterable[str], int], PreTrainedTokenizerFast]] = {"docstrings": bpe_tokenizer}
"""What makes the tokenizer of a text, from its training sentences and the number of entries. Where a name is missing, it is `word_tokenizer`."""


def tokenizer_of(name: str, sentences: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """The tokenizer of a text data set, made from its training sentences."""
    return TOKENIZERS.get(name, word_tokenizer)(sentences, vocab_size)
