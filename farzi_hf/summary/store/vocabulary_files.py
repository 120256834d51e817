"""Reading a vocabulary from an artefact: a tokenizer's files, or the list of the items' names."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from farzi_hf.summary.store.folder import ArtefactFolder
from farzi_hf.summary.store.layout import TOKENIZER_CONFIG, TOKENIZER_FILES, VOCABULARY
from farzi_hf.summary.store.untrusted_text import as_mapping, parse_json


def load_vocabulary(artefact: ArtefactFolder, most: int) -> Any:
    """The tokenizer or the item list saved in an artefact, `None` where it has neither.

    Args:
        most: V, the most names of items.

    Raises:
        ValueError: the files hold neither. Code that comes with a tokenizer is never run.
    """
    if (path := artefact.find(TOKENIZER_CONFIG)) is not None:
        return _load_tokenizer(artefact, path)
    if (path := artefact.find(VOCABULARY)) is None:
        return None
    content = artefact.read(VOCABULARY)
    if content.count(b",") > 8 * most + 1000:  # before they take memory; names may have some commas themselves
        raise ValueError(
            f"{path} brings a vocabulary of far more than the {most:,} entries of config.json; fetch it again"
        )
    names = parse_json(content, path)
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{path} is no list of strings, the names of the items; fetch the file again, or mend it")
    return names


def _load_tokenizer(artefact: ArtefactFolder, path: Path) -> Any:
    """Loads from a copy, because transformers follows links and reads files of many names."""
    from transformers import AutoTokenizer, PreTrainedConfig  # slow to import, and writing does not need it

    names = [name for name in artefact.present(TOKENIZER_FILES) if name != TOKENIZER_CONFIG]
    settings = _tokenizer_settings(artefact, path)
    with tempfile.TemporaryDirectory() as copy:
        artefact.copy(Path(copy), names)
        (Path(copy) / TOKENIZER_CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        try:
            # With a config given, transformers does not read ours, and does not warn that "farzi_data" is no model.
            tokenizer = AutoTokenizer.from_pretrained(
                copy, config=PreTrainedConfig(), trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # a parser of other people's files can raise anything
            reason = f"{type(error).__name__}: {error}".replace(copy, str(artefact.folder))
            raise ValueError(
                f"no tokenizer can be made of {path} and the files beside it ({reason}); fetch them again, or remove them "
                "and set processing_class to a tokenizer of your own"
            ) from error
    tokenizer.name_or_path = str(artefact.folder)
    return tokenizer


def _tokenizer_settings(artefact: ArtefactFolder, path: Path) -> dict[str, Any]:
    """The tokenizer's config without entries that name files: only the files beside it count."""
    settings = as_mapping(parse_json(artefact.read(TOKENIZER_CONFIG), path), path)
    return {name: value for name, value in settings.items() if name != "init_inputs" and not name.endswith("_file")}
