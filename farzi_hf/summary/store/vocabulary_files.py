"""The vocabulary's files of an artefact: a tokenizer's, or the list of the items' names.

A tokenizer is made of `tokenizer.json` alone, with plain settings from two other files: transformers' own loader reads any file that those name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

from farzi_hf.data import Vocabulary
from farzi_hf.summary.store import tokenizer_probe
from farzi_hf.summary.store.folder import (
    CHAT_TEMPLATES,
    OTHER_TOKENIZER_FILES,
    SPECIAL_TOKENS,
    TOKENIZER,
    TOKENIZER_CONFIG,
    TOKENIZER_FILES,
    VOCABULARY,
    ArtefactFolder,
)  # fmt: skip
from farzi_hf.summary.store.text import as_mapping, parse_json

logger = logging.getLogger(__name__)

_SECONDS = 3  # on the processor: a vocabulary of 260,000 entries takes one
_TIMEOUT = 60.0  # seconds on the clock: other programs may keep the processor busy
_SOUND: set[bytes] = set()  # SHA-256 of each tokenizer.json that the probe has passed in this process


_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_EXTRA_TOKENS = ("additional_special_tokens", "extra_special_tokens")  # the old name and the new one
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(_NAMED_TOKENS, str), **dict.fromkeys(_EXTRA_TOKENS, list), "chat_template": str, "model_input_names": list,
    "model_max_length": int, "clean_up_tokenization_spaces": bool, "split_special_tokens": bool,
    **dict.fromkeys(("padding_side", "truncation_side"), ("left", "right")),
}  # fmt: skip
"""The settings that are read: their types, list: of texts, or their values. No other entry of the two files is looked at."""


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    return type(value) is kind and (kind is not list or all(isinstance(part, str) for part in value))


def save_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Writes the vocabulary's files into `folder`. A tokenizer that has no tokenizer.json could not be read back: it is left out, with a warning."""
    before = set(folder.iterdir())
    vocabulary.save(folder)
    if (folder / TOKENIZER_CONFIG).exists() and not (folder / TOKENIZER).exists():
        for path in set(folder.iterdir()) - before:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        logger.warning(
            "Saved without the tokenizer, which writes no %s; set farzi.processing_class after loading.", TOKENIZER
        )


def load_vocabulary(artefact: ArtefactFolder, most: int) -> Any:
    """The tokenizer or the item list saved in an artefact, `None` where it has neither.

    Args:
        most: V, the most names of items.

    Raises:
        ValueError: the files hold neither, or the tokenizer takes too much time or memory. Code that comes with a tokenizer is never run.
    """
    if artefact.find(TOKENIZER) is not None:
        return _load_tokenizer(artefact)
    if (path := artefact.find(VOCABULARY)) is None:
        if others := artefact.present((*TOKENIZER_FILES, *OTHER_TOKENIZER_FILES)):
            logger.warning(
                "%s has %s but no %s: the summary is loaded without a tokenizer. Set farzi.processing_class to a tokenizer that has one; "
                "farzi.save_pretrained then adds it.", artefact.folder, ascii(others[0]), TOKENIZER,
            )  # fmt: skip
        return None
    content = artefact.read(VOCABULARY)
    if content.count(b",") > 8 * most + 1000:  # before they take memory; names may have some commas themselves
        raise ValueError(
            f"{path} brings a vocabulary of far more than the {most:,} entries of config.json; fetch it again"
        )
    names = parse_json(content, path)
    if not _fits(names, list):
        raise ValueError(f"{path} is no list of strings, the names of the items; fetch the file again, or mend it")
    return names


def _load_tokenizer(artefact: ArtefactFolder) -> Any:
    from tokenizers import Tokenizer  # slow to import, and writing does not need them
    from transformers import PreTrainedTokenizerFast

    settings = {**_settings(artefact, SPECIAL_TOKENS), **_settings(artefact, TOKENIZER_CONFIG)}
    extra = [token for name in _EXTRA_TOKENS for token in settings.pop(name, ())]
    if templates := _chat_templates(artefact):
        settings["chat_template"] = templates.get("default") if len(templates) == 1 else templates
    content = artefact.read(TOKENIZER)
    try:
        _try_out(content)
        backend = _NotCopied(Tokenizer.from_str(content.decode("utf-8")))
        tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, **settings)
        known = tokenizer.get_added_vocab()
        tokenizer.extra_special_tokens = [token for token in dict.fromkeys(extra) if token in known]
    except Exception as error:  # a parser of other people's files can raise anything
        raise ValueError(
            f"no tokenizer can be made of {artefact.path(TOKENIZER)} ({type(error).__name__}: {error}); fetch it again, or remove "
            "the tokenizer's files and set processing_class to a tokenizer of your own"
        ) from error
    tokenizer.name_or_path = str(artefact.folder)
    return tokenizer


class _NotCopied:
    """Gives the tokenizer in place of the copy that transformers asks for, which takes as long as loading."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    def __deepcopy__(self, memo: Any) -> Any:
        return self._tokenizer


def _settings(artefact: ArtefactFolder, name: str) -> dict[str, Any]:
    """The entries of the file `name` that `_SETTINGS` knows. Special tokens become plain text: tokenizer.json has their details."""
    if (path := artefact.find(name)) is None:
        return {}
    found = as_mapping(parse_json(artefact.read(name), path), path)
    found = {key: value for key, value in found.items() if key in _SETTINGS and value is not None}
    for key in found.keys() & {*_NAMED_TOKENS}:
        found[key] = _content(found[key])
    for key in found.keys() & {*_EXTRA_TOKENS}:
        tokens = list(found[key].values()) if isinstance(found[key], dict) else found[key]  # by name, or in a list
        found[key] = list(map(_content, tokens)) if isinstance(tokens, list) else tokens
    for key, value in found.items():
        if not _fits(value, _SETTINGS[key]):
            raise ValueError(
                f"{path} has {key}={ascii(value)[:80]}, which is no such setting; mend or remove the entry"
            )
    return found


def _content(token: Any) -> Any:
    return token.get("content") if isinstance(token, dict) else token


def _chat_templates(artefact: ArtefactFolder) -> dict[str, str]:
    """The templates in files of their own by name; the main one is the default."""
    names = artefact.present(CHAT_TEMPLATES)
    stems = (PurePosixPath(name).stem if "/" in name else "default" for name in names)
    return {stem: artefact.read(name).decode("utf-8") for stem, name in zip(stems, names, strict=True)}


def _try_out(content: bytes) -> None:
    """Makes and uses the tokenizer in another process, because a bad file can end the process that reads it.

    Raises:
        ValueError: the other process has failed.
    """
    import tokenizers

    digest = hashlib.sha256(content).digest()
    if digest in _SOUND:
        return
    packages, memory = (
        Path(tokenizers.__file__).parents[1],
        2**28 + 40 * len(content),
    )  # a vocabulary takes 30 times its file
    command = [sys.executable, "-I", "-B", tokenizer_probe.__file__, str(packages), str(memory), str(_SECONDS)]
    quiet = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(command, input=content, capture_output=True, timeout=_TIMEOUT, env=quiet, check=False)
    if done.returncode < 0:
        raise ValueError(f"it takes more than {_SECONDS} s, more than {memory / 2**20:.0f} MiB, or crashes its reader")
    if done.returncode:
        raise ValueError(ascii(done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:])[2:-2])
    _SOUND.add(digest)
