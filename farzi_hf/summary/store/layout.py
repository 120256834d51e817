"""The files that an artefact may have: a closed list of names, with a size limit for each file that is read into memory.

The metadata of an artefact's tensors list its files. That list is not trusted: only files whose names are also in the list here
are read, pushed, moved or removed.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

from farzi_hf.data.vocabulary import ITEMS_FILE

TENSORS = "farzi.safetensors"
CONFIG = "config.json"
CARD = "README.md"
RECIPE = "recipe.yaml"
METRICS = "metrics.json"
VIEWER = "viewer.html"
PLOTS = "plots"
VOCABULARY = ITEMS_FILE
TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"

_MIB = 2**20
PLOTS_LIMIT, FILES_LIMIT = 64 * _MIB, 1000
"""The most bytes of all plots together, and the most files."""
_TABLES = ("latents", "decoder", "tokens", "labels", "label_decoder")
_IMAGES = ("png", "jpg", "jpeg", "svg", "webp", "gif", "pdf")
CHAT_TEMPLATES = ("chat_template.jinja", "additional_chat_templates/*.jinja")
TOKENIZER_FILES = (TOKENIZER, TOKENIZER_CONFIG, SPECIAL_TOKENS, *CHAT_TEMPLATES)
OTHER_TOKENIZER_FILES = (
    "tokenizer.model", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "spiece.model", "sentencepiece.bpe.model",
    "sentencepiece.model", "spm.model", "tiktoken.model", "tekken.json", "normalizer.json",
)  # fmt: skip
"""Files that a tokenizer writes beside tokenizer.json, or wrote under earlier versions. They are replaced as all others, and never read."""

_RESULT_FILES = {RECIPE: _MIB // 8, METRICS: 2 * _MIB, **{f"{PLOTS}/*.{kind}": 32 * _MIB for kind in _IMAGES}}
LOADED_FILES: dict[str, int | None] = {
    TENSORS: None, CONFIG: _MIB, **_RESULT_FILES, VOCABULARY: 64 * _MIB, **dict.fromkeys(TOKENIZER_FILES, 4 * _MIB),
    TOKENIZER: 64 * _MIB,
}  # fmt: skip
"""The files that `FarziData.from_pretrained` reads: patterns of names, and the most bytes of each. None: the file is not read at once."""
SHOWN_FILES: dict[str, int | None] = dict.fromkeys(
    (CARD, VIEWER, *(f"{name}/train-*.parquet" for name in _TABLES), *OTHER_TOKENIZER_FILES)
)
"""The files for people and for `datasets`, and those that are not read."""

FOLDERS = tuple(sorted({pattern.split("/")[0] for pattern in (*LOADED_FILES, *SHOWN_FILES) if "/" in pattern}))
# Such a name is a plain one on every system: it has no drive, no stream and no `..`, and is not hidden.
_PLAIN = re.compile(r"(?!\.)[^/\\:*?\"<>|\x00-\x1f]+")


def is_known(name: str) -> bool:
    """Whether an artefact has a place for the file `name`, a path relative to its folder with slashes."""
    return pattern_of(name) is not None


def size_limit(name: str) -> int | None:
    """The most bytes that the known file `name` may have; None where there is no limit."""
    return {**LOADED_FILES, **SHOWN_FILES}[pattern_of(name)]


def pattern_of(name: str) -> str | None:
    """The pattern of LOADED_FILES or SHOWN_FILES that `name` matches; None if there is none."""
    parts = name.split("/")
    if not all(_PLAIN.fullmatch(part) for part in parts):
        return None
    found = (p for p in (*LOADED_FILES, *SHOWN_FILES) if p.count("/") == name.count("/") and fnmatchcase(name, p))
    return next(found, None)
