"""A tokenizer that somebody else has saved, made of its `tokenizer.json` alone.

transformers' own loader reads any file that `tokenizer_config.json` names. Here that file gives
special tokens, lengths, sides and two switches, each with a check of its type, and no other entry
is looked at. The library that reads `tokenizer.json` can crash its process on a bad file, so
another process tries each file first.
"""

import hashlib
import inspect
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from farzi_hf.common.files import find_file, opened_plain
from farzi_hf.common.text import parse_mapping, reason, terminal_text
from farzi_hf.data.files import DataUnavailableError

TOKENIZER = "tokenizer.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
_CHAT_TEMPLATE = "chat_template.jinja"
_MODEL_CONFIG = "config.json"
_MIB = 2**20
TOKENIZER_LIMITS = {TOKENIZER: 64 * _MIB, TOKENIZER_CONFIG: 4 * _MIB}
"""The most bytes that are read of each."""
_MOST = {**TOKENIZER_LIMITS, _CHAT_TEMPLATE: _MIB, _MODEL_CONFIG: _MIB}

NAMED_TOKENS = (
    "bos_token",
    "eos_token",
    "unk_token",
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
)
_EXTRA_TOKENS = "extra_special_tokens"
_SETTINGS: dict[str, Any] = {
    **dict.fromkeys(NAMED_TOKENS, str),
    _EXTRA_TOKENS: list,
    "model_input_names": list,
    "model_max_length": int,
    "clean_up_tokenization_spaces": bool,
    "split_special_tokens": bool,
    **dict.fromkeys(("padding_side", "truncation_side"), ("left", "right")),
}
"""The settings that are read: their types, list: of texts, or their values. No other entry is
looked at.
"""


# -- from bytes ------------------------------------------------------------------------------------


def make_tokenizer(content: bytes, path: Path, settings: Mapping[str, Any], remedy: str) -> Any:
    """The tokenizer in `content`, which was read from the file `path`, with the settings that
    `plain_settings` gives. Raises ValueError, which ends with `remedy`, if there is none, or it
    takes too much time or memory.
    """
    from tokenizers import Tokenizer  # slow to import, and writing does not need them
    from transformers import PreTrainedTokenizerFast

    settings = dict(settings)
    extra = settings.pop(_EXTRA_TOKENS, ())
    try:
        _try_out(content)
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(content.decode("utf-8")), **settings
        )
        added = tokenizer.get_added_vocab()
        tokenizer.extra_special_tokens = [token for token in dict.fromkeys(extra) if token in added]
    except Exception as error:  # a parser of other people's files can raise anything
        what = terminal_text(f"{type(error).__name__}: {error}", 500)
        raise ValueError(f"no tokenizer can be made of {path} ({what}); {remedy}") from None
    return tokenizer


def plain_settings(content: bytes, path: Path) -> dict[str, Any]:
    """The settings in `content`, which was read from the `tokenizer_config.json` at `path`. Special
    tokens become plain text: tokenizer.json has their details. Raises ValueError for a setting of
    another type.
    """

    def text_of(token: Any) -> Any:
        return token.get("content") if isinstance(token, dict) else token

    written = parse_mapping(content, path)
    settings = {}
    for key in [key for key in _SETTINGS if written.get(key) is not None]:
        value = written[key]
        if key == _EXTRA_TOKENS and isinstance(value, dict | list):
            value = list(map(text_of, value.values() if isinstance(value, dict) else value))
        settings[key] = text_of(value) if key in NAMED_TOKENS else value
        if not _fits(settings[key], _SETTINGS[key]):
            raise ValueError(
                f"{path} has {key}={ascii(value)[:80]}, which is no such setting; mend or remove it"
            )
    return settings


def _fits(value: Any, kind: Any) -> bool:
    if isinstance(kind, tuple):
        return value in kind
    if kind is list:
        return type(value) is list and all(isinstance(part, str) for part in value)
    return type(value) is kind


# -- of a folder, or by a name ---------------------------------------------------------------------


def load_tokenizer(name: str | Path) -> Any:
    """The tokenizer in the folder `name`, which somebody else may have filled, or of that
    repository of the Hub.

    Of a folder only `tokenizer.json`, plain settings and the chat template are read, and no link is
    followed. A repository that the user chooses by its name is left to transformers' own loader,
    without code of it; but one that names files of this machine is refused.

    Raises:
        ValueError: there is no `tokenizer.json`, or no tokenizer can be made of it.
        DataUnavailableError: there is no such folder, and no such repository within reach.
    """
    if Path(name).is_dir():
        return _of_folder(Path(name))
    from transformers import AutoTokenizer
    from transformers.models.auto.tokenization_auto import get_tokenizer_config

    try:
        settings = get_tokenizer_config(str(name))
        named = [key for key, value in settings.items() if _is_file_here(key, value)]
        if not named:
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # each cause has an error of its own
        what = "is neither a folder nor a repository with a tokenizer"
        raise DataUnavailableError(f"tokenizer={str(name)!r} {what}: {reason(error)}") from error
    if named:
        raise ValueError(
            f"tokenizer={str(name)!r} would read the file {settings[named[0]]!r} of this machine"
            f" ({named[0]} in its {TOKENIZER_CONFIG}): choose another one"
        )
    if not tokenizer.is_fast:
        raise ValueError(f"tokenizer={str(name)!r} has no {TOKENIZER}: give a fast one")
    return tokenizer


def _is_file_here(key: str, value: Any) -> bool:
    is_of_files = key in ("vocab", "merges") or key.endswith(("_file", "_spm", "_ckpt"))
    return is_of_files and isinstance(value, str) and os.path.lexists(value)


def _of_folder(folder: Path) -> Any:
    content = _read(folder, TOKENIZER)
    if content is None:
        raise ValueError(f"tokenizer={str(folder)!r} has no {TOKENIZER}: give a fast one")
    written = _read(folder, TOKENIZER_CONFIG) or b"{}"
    path = folder / TOKENIZER_CONFIG
    settings = plain_settings(written, path)
    remedy = "give another tokenizer"
    tokenizer = make_tokenizer(content, folder / TOKENIZER, settings, remedy)
    config = parse_mapping(written, path)
    for token, text in _tokens_of_class(folder, config.get("tokenizer_class")).items():
        if token not in config and text in tokenizer.get_vocab():
            setattr(tokenizer, token, text)
    template = _read(folder, _CHAT_TEMPLATE)
    text = config.get("chat_template") if template is None else template.decode("utf-8", "replace")
    if isinstance(text, str):
        tokenizer.chat_template = text
    tokenizer.name_or_path = str(folder)
    return tokenizer


def _read(folder: Path, name: str) -> bytes | None:
    path = find_file(folder, name)
    if path is None:
        return None
    with opened_plain(path, _MOST[name]) as file:
        return file.read()


def _tokens_of_class(folder: Path, name: Any) -> dict[str, str]:
    """The special tokens that a tokenizer has by its class in transformers: GPT-2's own files do
    not name them. Without a name, the class is that of the folder's model.
    """
    from transformers import AddedToken, PreTrainedTokenizerBase
    from transformers.models.auto.tokenization_auto import (
        TOKENIZER_MAPPING_NAMES,
        tokenizer_class_from_name,
    )

    content = _read(folder, _MODEL_CONFIG) if name is None else None
    if content is not None:
        config = parse_mapping(content, folder / _MODEL_CONFIG)
        name = TOKENIZER_MAPPING_NAMES.get(str(config.get("model_type")))
    names = [str(name), str(name).removesuffix("Fast")]
    of_transformers = [each for each in names if each in TOKENIZER_MAPPING_NAMES.values()]
    kind = tokenizer_class_from_name(of_transformers[0]) if of_transformers else None
    if not isinstance(kind, type) or not issubclass(kind, PreTrainedTokenizerBase):
        return {}
    defaults = {
        parameter.name: parameter.default
        for parameter in inspect.signature(kind.__init__).parameters.values()
    }
    return {
        token: str(defaults[token])
        for token in NAMED_TOKENS
        if isinstance(defaults.get(token), str | AddedToken)
    }


# -- the trial -------------------------------------------------------------------------------------

_SECONDS = 3  # on the processor: a vocabulary of 260,000 entries takes one
_TIMEOUT = 60.0  # seconds on the clock: other programs may keep the processor busy
_SOUND: set[bytes] = set()  # SHA-256 of each tokenizer.json that has passed in this process


def _try_out(content: bytes) -> None:
    """Makes and uses the tokenizer in another process, or raises ValueError: a bad file can end the
    process that reads it.
    """
    import tokenizers

    digest = hashlib.sha256(content).digest()
    if digest in _SOUND:
        return
    memory = 2**28 + 40 * len(content)  # a vocabulary takes 30 times its file
    limits = [str(Path(tokenizers.__file__).parents[1]), str(memory), str(_SECONDS)]
    command = [sys.executable, "-I", "-B", "-c", f"{_SOURCE}_trial()", *limits]
    quiet = {**os.environ, "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        command, input=content, capture_output=True, timeout=_TIMEOUT, env=quiet, check=False
    )
    if done.returncode < 0:
        raise ValueError(
            f"it takes more than {_SECONDS} s, more than {memory / 2**20:.0f} MiB, or crashes its"
            " reader"
        )
    if done.returncode:
        raise ValueError(
            ascii(done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:])[2:-2]
        )
    _SOUND.add(digest)


def _trial() -> None:
    """What the other process runs, without an import of ours: it uses the tokenizer on stdin, or
    ends with one line that says why not.
    """
    import copy
    import sys
    from contextlib import suppress

    packages, memory, seconds = sys.argv[1:]
    with suppress(ImportError, OSError, ValueError):  # Windows has no such limits
        import resource

        for kind, limit in (("RLIMIT_AS", memory), ("RLIMIT_CPU", seconds), ("RLIMIT_CORE", 0)):
            resource.setrlimit(getattr(resource, kind), (int(limit), int(limit)))
    sys.path.append(packages)  # where the caller has found the library: -I leaves out PYTHONPATH
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(sys.stdin.buffer.read().decode("utf-8"))
        ids = sorted(tokenizer.get_vocab().values())
        largest = ids[-1] if ids else 0
        if largest > 1000 + 2 * len(ids):  # a copy walks all ids up to it, and so does show
            raise ValueError(f"its largest id is {largest}, though it has {len(ids)} entries")
        copy.deepcopy(tokenizer)  # transformers makes one
        for use in (
            lambda: tokenizer.decode(ids, skip_special_tokens=False),
            lambda: tokenizer.decode_batch([[i] for i in ids], skip_special_tokens=False),
            lambda: tokenizer.encode("A short text: 1, 2, 3."),
        ):
            with suppress(Exception):  # an error, such as a missing unknown token, is no crash
                use()
    except BaseException as error:  # Rust's panics are no Exception
        sys.exit(" ".join(f"{type(error).__name__}: {error}".split()))


_SOURCE = inspect.getsource(_trial)
