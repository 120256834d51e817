"""Text as sequences of ids: the readers, the embedded sample corpus, the tokenizers.

A text data set is a ``datasets.DatasetDict`` with the splits ``train``, ``validation`` and ``test``
and a column ``text`` with one sentence per row. `tokenize` turns the text into a column
``input_ids`` of ids, with BOS first and EOS last.
"""

import ast
import hashlib
import logging
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from datasets import Dataset, DatasetDict, load_dataset
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE, WordLevel
from tokenizers.pre_tokenizers import ByteLevel, WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from farzi_hf.common.checks import check_size
from farzi_hf.data.files import DataUnavailableError
from farzi_hf.data.opening import opened
from farzi_hf.data.samples import SampleGrammar
from farzi_hf.data.sequences import SPLITS

logger = logging.getLogger(__name__)

PAD = "<pad>"
UNK = "<unk>"
BOS = "<s>"
EOS = "</s>"
SPECIAL_TOKENS = (PAD, UNK, BOS, EOS)

# -- Penn Treebank ---------------------------------------------------------------------------------

_PTB_FILES = {"train": "ptb.train.txt", "validation": "ptb.valid.txt", "test": "ptb.test.txt"}
# The main branch of the data set is a script, which `datasets` no longer runs. This branch is its
# Parquet export.
_PTB_REPO = "ptb-text-only/ptb_text_only"
_PTB_REVISION = "refs/convert/parquet"


def load_ptb(data_dir: str | Path | None = None) -> DatasetDict:
    """Penn Treebank in Mikolov's preparation: 42,068 / 3,370 / 3,761 sentences, one per row of the
    column ``text``.

    Its licence does not allow a copy in this package. It is read from ``data_dir``, else from the
    Hub or its cache.

    Args:
        data_dir: folder with ``ptb.train.txt``, ``ptb.valid.txt`` and ``ptb.test.txt``.

    Raises:
        ValueError: ``data_dir`` lacks one of the three files, or a file is neither UTF-8 nor UTF-16
            text.
        DataUnavailableError: there is no ``data_dir``, and the Hub cannot be reached.
    """
    if data_dir is not None:
        texts = {split: _lines(Path(data_dir) / name) for split, name in _PTB_FILES.items()}
        return _as_splits(texts)
    try:
        # Without a network, a snapshot is taken from the cache at once; load_dataset(repo) first
        # retries for half a minute.
        folder = snapshot_download(
            _PTB_REPO, repo_type="dataset", revision=_PTB_REVISION, allow_patterns="penn_treebank/*"
        )
        files = {split: f"{folder}/penn_treebank/{split}/*.parquet" for split in SPLITS}
        return load_dataset("parquet", data_files=files).rename_column("sentence", "text")
    except Exception as error:
        # No network, a proxy's answer, a repository that has moved: all mean the same.
        remedy = (
            f"pass --data_dir FOLDER with {', '.join(_PTB_FILES.values())}, or --dataset sample"
        )
        raise DataUnavailableError(f"Penn Treebank cannot be reached: {remedy}.") from error


def _as_splits(texts: Mapping[str, list[str]]) -> DatasetDict:
    return DatasetDict({split: Dataset.from_dict({"text": rows}) for split, rows in texts.items()})


def _lines(path: Path) -> list[str]:
    """The lines of a text file. str.splitlines would also split at characters inside a sentence."""
    try:
        with opened(path) as file:
            return [line.rstrip("\n") for line in file]
    except (OSError, UnicodeDecodeError) as error:
        remedy = f"data_dir has to hold {', '.join(_PTB_FILES.values())} in one of these encodings"
        raise ValueError(
            f"{path} cannot be read as UTF-8 or UTF-16 text ({error}): {remedy}"
        ) from None


# -- texts that every machine has ------------------------------------------------------------------


def load_sample_text(num_sentences: int = 10_000, seed: int = 0) -> DatasetDict:
    """The embedded corpus: distinct sentences of `data.samples.SampleGrammar`.

    They are split 80 / 10 / 10 %. As none occurs twice, the splits are disjoint.

    Args:
        num_sentences: the number of sentences in the three splits together, at least 10.
        seed: equal seeds give equal corpora.
    """
    check_size("num_sentences", num_sentences, 10)  # fewer leave a split empty
    grammar = SampleGrammar(seed)
    sentences: dict[str, None] = {}  # a set that keeps the order
    while len(sentences) < num_sentences:
        sentences[" ".join(grammar.sentence())] = None
    texts = list(sentences)
    held_out = num_sentences // 10
    return _as_splits(
        {
            "train": texts[: -2 * held_out],
            "validation": texts[-2 * held_out : -held_out],
            "test": texts[-held_out:],
        }
    )


def load_docstrings(folder: str | Path | None = None) -> DatasetDict:
    """The docstrings of Python's standard library, a paragraph per row of the column ``text``.

    They are those of all modules, classes and functions: a real corpus of English and code with a
    large vocabulary, without duplicates. All docstrings of a file are in one split: about 80 / 10 /
    10 % of the files, by a hash of their names. The texts depend on the version of Python. Nothing
    is imported or run.

    Args:
        folder: of Python files; by default the standard library, without its packages of tests and
            without what is installed.
    """
    root = Path(folder or sysconfig.get_path("stdlib"))
    split_of: dict[str, str] = {}  # each text has the split of its first file
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if folder is None and not _OTHER_PACKAGES.isdisjoint(name.parts):
            continue
        split = _split_of_file(name)
        for text in _docstrings(path):
            split_of.setdefault(text, split)
    return _as_splits(
        {split: [text for text in split_of if split_of[text] == split] for split in SPLITS}
    )


_OTHER_PACKAGES = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders of the standard library with tests, or with what is installed."""


def _split_of_file(name: Path) -> str:
    tenth = int(hashlib.sha256(name.as_posix().encode()).hexdigest(), 16) % 10
    return {0: "validation", 1: "test"}.get(tenth, "train")


def _docstrings(path: Path) -> Iterator[str]:
    """The paragraphs of all docstrings of a file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes in old files
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # a file that is broken on purpose, as an example
        return
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            paragraphs = re.split(r"\n\s*\n", ast.get_docstring(node) or "")
            yield from filter(None, map(str.strip, paragraphs))


TEXTS: dict[str, Callable[[str | Path | None], DatasetDict]] = {
    "ptb": load_ptb,
    "sample": lambda data_dir: load_sample_text(),
    "docstrings": load_docstrings,
}
"""Readers by the names that configs use. Each takes a folder or None and returns all splits with a
column ``text``.
"""

# -- tokenizers ------------------------------------------------------------------------------------


def word_tokenizer(sentences: Iterable[str], vocab_size: int = 2000) -> PreTrainedTokenizerFast:
    """A word-level tokenizer with the most frequent words. Equally frequent words are in
    alphabetical order.

    Ids: ``<pad>`` 0, ``<unk>`` 1, ``<s>`` 2 (BOS), ``</s>`` 3 (EOS), then the words. Text is split
    at blanks. Every sequence gets BOS and EOS. Decoding joins words with blanks. A literal
    ``<unk>`` in the text has id 1 and does not count as a word.

    Args:
        sentences: the training text.
        vocab_size: the number of words to keep, without special tokens. ``len(tokenizer)`` is at
            most ``vocab_size + 4``.
    """
    _check(sentences, vocab_size)
    counts = Counter(word for sentence in sentences for word in sentence.split())
    for token in SPECIAL_TOKENS:
        del counts[token]
    words = sorted(counts, key=lambda word: (-counts[word], word))[:vocab_size]
    ids = {token: i for i, token in enumerate((*SPECIAL_TOKENS, *words))}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    return _with_special_tokens(tokenizer)


def bpe_tokenizer(sentences: Iterable[str], vocab_size: int = 8000) -> PreTrainedTokenizerFast:
    """A byte-level BPE tokenizer, trained on the sentences. It has the special tokens of
    `word_tokenizer`, and no text is unknown to it.

    Args:
        sentences: the training text.
        vocab_size: the number of entries without special tokens, at least 256. ``len(tokenizer)``
            is at most ``vocab_size + 4``.
    """
    _check(sentences, vocab_size, least=256)  # one entry for each byte
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size + len(SPECIAL_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        show_progress=False,
        initial_alphabet=ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return _with_special_tokens(tokenizer)


def _check(sentences: Iterable[str], vocab_size: int, least: int = 1) -> None:
    check_size("vocab_size", vocab_size, least)
    if isinstance(sentences, str):  # its letters would be the sentences
        raise ValueError("sentences is one text: pass a list of them, such as [text].")


def _with_special_tokens(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    special = [(token, tokenizer.token_to_id(token)) for token in (BOS, EOS)]
    tokenizer.post_processor = TemplateProcessing(single=f"{BOS} $A {EOS}", special_tokens=special)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNK,
        bos_token=BOS,
        eos_token=EOS,
        clean_up_tokenization_spaces=False,  # "do n't" stays two words
    )


TOKENIZERS: dict[str, Callable[[Iterable[str], int], PreTrainedTokenizerFast]] = {
    "docstrings": bpe_tokenizer
}
"""What makes the tokenizer of a text of `TEXTS`, from its training sentences and the number of
entries, if it is not `word_tokenizer`.
"""


# -- from text to ids ------------------------------------------------------------------------------


def ids_of(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> list[list[int]]:
    """The ids of each text, with BOS first and EOS last if the tokenizer has such tokens.

    Many tokenizers add none, or one of them, by themselves.
    """
    if not texts:  # of which a tokenizer makes an error
        return []
    ids = tokenizer(texts, verbose=False)["input_ids"]
    as_it_adds = tokenizer("a")["input_ids"]
    bos = _as_list(tokenizer.bos_token_id)
    eos = _as_list(tokenizer.eos_token_id)
    first = bos if as_it_adds[:1] != bos else []
    last = eos if as_it_adds[-1:] != eos else []
    if not first and not last:
        return ids
    return [first + row + last for row in ids]


def ids_and_places_of(
    tokenizer: PreTrainedTokenizerBase, text: str
) -> tuple[list[int], list[tuple[int, int]]]:
    """The ids of a text as `ids_of` makes them, and where each is in the text: its first character
    and the one after its last. Tokens that are added have an empty place.
    """
    (ids,) = ids_of(tokenizer, [text])
    read = tokenizer(text, verbose=False, return_offsets_mapping=True)
    places = [tuple(place) for place in read["offset_mapping"]]
    first = next((i for i in range(len(ids)) if ids[i : i + len(places)] == read["input_ids"]), 0)
    after = len(ids) - first - len(places)
    return ids, [(0, 0)] * first + places + [(0, 0)] * after


def _as_list(token: int | None) -> list[int]:
    return [] if token is None else [token]


def tokenize(
    dataset: DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int | None = None
) -> DatasetDict:
    """Turns text into ids: one row of ``input_ids`` per sentence.

    Args:
        dataset: splits with a column ``text``. Rows that are empty, blank or null are left out.
        tokenizer: for instance of `word_tokenizer`.
        max_length: longer sequences keep their first ``max_length`` ids, and so lose their EOS.
            ``None`` keeps all.

    Raises:
        ValueError: there is no text in a column ``text``, a split has no sentence, or
            ``max_length`` is below 2.
        TypeError: there are no splits, or one of them is a stream.
    """
    has_splits = isinstance(dataset, Mapping)
    if not has_splits or not all(isinstance(split, Dataset) for split in dataset.values()):
        remedy = (
            "pass a DatasetDict, such as DatasetDict(train=dataset); of a stream, map the tokenizer"
        )
        raise TypeError(f"dataset is a {type(dataset).__name__}: {remedy}.")
    if max_length is not None and max_length < 2:
        raise ValueError(
            f"max_length={max_length} leaves nothing to predict: pass 2 or more, or None."
        )
    return DatasetDict(
        {
            name: _tokenize_split(name, split, tokenizer, max_length)
            for name, split in dataset.items()
        }
    )


def _tokenize_split(
    name: str, split: Dataset, tokenizer: PreTrainedTokenizerBase, max_length: int | None
) -> Dataset:
    if getattr(split.features.get("text"), "dtype", None) not in ("string", "large_string"):
        raise ValueError(
            f"dataset[{name!r}] has columns {split.features}, but no text in 'text': rename yours."
        )

    def encode(batch: dict[str, list[str | None]]) -> dict[str, list[list[int]]]:
        texts = [text for text in batch["text"] if text and text.strip()]
        return {"input_ids": [row[:max_length] for row in ids_of(tokenizer, texts)]}

    encoded = split.map(encode, batched=True, remove_columns=split.column_names)
    empty = len(split) - len(encoded)
    if 0 < empty < len(split):
        logger.warning(
            "dataset[%r]: %s of %s rows are left out, because they are empty",
            name,
            f"{empty:,}",
            f"{len(split):,}",
        )
    if len(encoded) == 0:
        raise ValueError(
            f"dataset[{name!r}] has {len(split)} rows and no sentence: pass a split with text."
        )
    return encoded
