"""Reading a vocabulary from an artefact: a tokenizer's files, or the list of the items' names."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from farzi_hf.artefact.folder import ArtefactFolder
from farzi_hf.artefact.layout import TOKENIZER_CONFIG, TOKENIZER_FILES, VOCABULARY
from farzi_hf.artefact.untrusted_text import as_mapping, parse_json


def load_vocabulary(artefact: ArtefactFolder) -> Any:
    """The tokenizer or the item list saved in an artefact, `None` where it has neither.

    Raises:
        ValueError: neither can be made of what the files hold. Code that a tokenizer brings along is never run.
    """
    if (path := artefact.find(TOKENIZER_CONFIG)) is not None:
        return _load_tokenizer(artefact, path)
    if (path := artefact.find(VOCABULARY)) is None:
        return None
    names = parse_json(artefact.read(VOCABULARY), path)
    if not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise ValueError(f"{path} is no list of strings, the names of the items; fetch the file again, or mend it")
    return names


def _load_tokenizer(artefact: ArtefactFolder, path: Path) -> Any:
    """From a copy: transformers follows links, and looks for files of many names in the folder that it is given."""
    from transformers import AutoTokenizer, PreTrainedConfig  # heavy, and not needed by those who only write

    names = [name for name in artefact.present(TOKENIZER_FILES) if name != TOKENIZER_CONFIG]
    settings = _tokenizer_settings(artefact, path)
    with tempfile.TemporaryDirectory() as copy:
        artefact.copy(Path(copy), names)
        (Path(copy) / TOKENIZER_CONFIG).write_text(json.dumps(settings), encoding="utf-8")
        try:
            # Given a config, it does not read ours and warn that "farzi_data" is no model.
            tokenizer = AutoTokenizer.from_pretrained(
                copy, config=PreTrainedConfig(), trust_remote_code=False, local_files_only=True
            )
        except Exception as error:  # whatever a parser of other people's files comes upon
            reason = f"{type(error).__name__}: {error}".replace(copy, str(artefact.folder))
            raise ValueError(
                f"no tokenizer can be made of {path} and the files beside it ({reason}); fetch them again, or remove them "
                "and set processing_class to a tokenizer of your own"
            ) from error
    tokenizer.name_or_path = str(artefact.folder)
    return tokenizer


def _tokenizer_settings(artefact: ArtefactFolder, path: Path) -> dict[str, Any]:
    """The tokenizer's config, without what names files: those beside it are the ones that count."""
    settings = as_mapping(parse_json(artefact.read(TOKENIZER_CONFIG), path), path)
    return {name: value for name, value in settings.items() if name != "init_inputs" and not name.endswith("_file")}
