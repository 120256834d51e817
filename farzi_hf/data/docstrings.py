"""The docstrings of Python's standard library: a real corpus of English and code that every machine has, with a large vocabulary."""

from __future__ import annotations

import ast
import hashlib
import re
import sysconfig
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerFast

from farzi_hf.data.interactions import SPLITS
from farzi_hf.data.text import BOS, EOS, PAD, SPECIAL_TOKENS, UNK, check_sentences

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_BLANK_LINES = re.compile(r"\n\s*\n")
_HELD_OUT = {0: "validation", 1: "test"}  # of ten parts


def load_docstrings(folder: str | Path | None = None) -> DatasetDict:
    """The docstrings of all modules, classes and functions: a paragraph per row of the column ``text``, without duplicates.

    All docstrings of a file are in one split: about 80 / 10 / 10 % of the files, by a hash of their names. The texts depend on the version
    of Python. Nothing is imported or run.

    Args:
        folder: of Python files; by default the standard library, without its packages of tests and without what is installed.

    Raises:
        ValueError: a split has no docstring.
    """
    root = Path(folder or sysconfig.get_path("stdlib"))
    texts: dict[str, dict[str, None]] = {split: {} for split in SPLITS}  # sets that keep the order
    seen: set[str] = set()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if folder is None and {"site-packages", "dist-packages", "test", "tests", "idle_test"} & set(name.parts):
            continue
        part = int(hashlib.sha256(name.as_posix().encode()).hexdigest(), 16) % 10
        new = dict.fromkeys(text for text in _docstrings(path) if text not in seen)
        seen.update(new)
        texts[_HELD_OUT.get(part, "train")].update(new)
    if empty := [split for split, found in texts.items() if not found]:
        raise ValueError(
            f"data_dir={str(root)!r} has no docstrings for {', '.join(empty)}: give a folder with more files"
        )
    return DatasetDict({split: Dataset.from_dict({"text": list(found)}) for split, found in texts.items()})


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in old files
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a file that is broken on purpose, as an example
        return
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)):
            yield from filter(None, map(str.strip, _BLANK_LINES.split(text)))


def bpe_tokenizer(sentences: Iterable[str], vocab_size: int = 8000) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on the sentences. It has the special tokens of `word_tokenizer`, and no text is unknown to it.

    Args:
        sentences: the training text.
        vocab_size: the number of entries without special tokens, at least 256. ``len(tokenizer)`` is at most ``vocab_size + 4``.
    """
    if vocab_size < 256:
        raise ValueError(f"vocab_size={vocab_size} has no room for all bytes: give 256 or more.")
    check_sentences(sentences)
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size + len(SPECIAL_TOKENS), special_tokens=list(SPECIAL_TOKENS), show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )  # fmt: skip
    tokenizer.train_from_iterator(sentences, trainer)
    special = [(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)]
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, unk_token=UNK, bos_token=BOS, eos_token=EOS,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
