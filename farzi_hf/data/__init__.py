"""Data: readers of text and of interactions, the embedded samples, vocabularies, sequences of ids
and their windows.

All data become sequences of ids in a `datasets.Dataset` with the column `input_ids`. This room
imports `common` alone. From a path to ids:

- `files` finds the files of a path and their splits; `opening` makes UTF-8 of a file; `layout` and
  `forms` find out how a text file writes a table; `rows` reads one row after the other.
- Text: `own` recognises it and loads it, `text_splits` splits it, `text` has the named corpora and
  the tokenizers.
- Interactions: `columns` knows the names of columns, `tables` and `item_lists` make an item a row
  of any table, `text_tables` and `readers` read files, `interactions` makes and splits histories.
- Both: `sequences`, `streams`, `vocabulary`, `seeds`, `samples`.
"""

from farzi_hf.data.coding import StoredBytes, stored_bytes
from farzi_hf.data.files import DataUnavailableError
from farzi_hf.data.interactions import (
    SAMPLE_INTERACTIONS,
    Interactions,
    load_interactions,
    load_sample_interactions,
)
from farzi_hf.data.own import TextData, load_text, recognise
from farzi_hf.data.sequences import (
    IGNORED,
    SequenceCollator,
    check_sequences,
    evaluation_windows,
    flatten_sequences,
    head_sequences,
    minibatches,
    random_sequences,
    sequences_fingerprint,
    training_windows,
)
from farzi_hf.data.text import (
    TEXTS,
    bpe_tokenizer,
    load_docstrings,
    load_ptb,
    load_sample_text,
    tokenize,
    word_tokenizer,
)
from farzi_hf.data.vocabulary import Vocabulary, vocabulary_of

__all__ = [
    "IGNORED",
    "SAMPLE_INTERACTIONS",
    "TEXTS",
    "DataUnavailableError",
    "Interactions",
    "SequenceCollator",
    "StoredBytes",
    "TextData",
    "Vocabulary",
    "bpe_tokenizer",
    "check_sequences",
    "evaluation_windows",
    "flatten_sequences",
    "head_sequences",
    "load_docstrings",
    "load_interactions",
    "load_ptb",
    "load_sample_interactions",
    "load_sample_text",
    "load_text",
    "minibatches",
    "random_sequences",
    "recognise",
    "sequences_fingerprint",
    "stored_bytes",
    "tokenize",
    "training_windows",
    "vocabulary_of",
    "word_tokenizer",
]
