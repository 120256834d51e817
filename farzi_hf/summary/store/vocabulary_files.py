"""The tokenizer and the names of items of an artefact: writing their files, and reading those that
somebody else may have written.

A tokenizer is made of `tokenizer.json` alone: see `farzi_hf.data.tokenizer_file`.
"""

import logging
import shutil
from pathlib import Path
from typing import Any

from farzi_hf.data import Vocabulary
from farzi_hf.data.tokenizer_file import (
    TOKENIZER,
    TOKENIZER_CONFIG,
    make_tokenizer,
    plain_settings,
)
from farzi_hf.data.vocabulary import item_names
from farzi_hf.summary.store import folder as layout
from farzi_hf.summary.store.folder import ArtefactFolder, pattern_of

logger = logging.getLogger(__name__)


def save_vocabulary(vocabulary: Vocabulary, folder: Path) -> None:
    """Writes the vocabulary's files into the empty `folder`, without those that are never read. A
    tokenizer needs a tokenizer.json.
    """
    vocabulary.save(folder)
    for path in list(folder.iterdir()):
        if not pattern_of(path.name):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    if (folder / TOKENIZER_CONFIG).exists() and not (folder / TOKENIZER).exists():
        logger.warning(
            "Saved without the tokenizer, which has no tokenizer.json; set processing_class after"
            " loading."
        )


def load_vocabulary(artefact: ArtefactFolder, most: int) -> Any:
    """The tokenizer or the list of at most `most` items saved in an artefact, `None` where it has
    neither. No code is run. Raises ValueError if the files hold neither, or the tokenizer takes too
    much time or memory.
    """
    if artefact.find(TOKENIZER) is not None:
        return _load_tokenizer(artefact)
    path = artefact.find(layout.VOCABULARY)
    if path is not None:
        return item_names(artefact.read(layout.VOCABULARY), path, most)
    if artefact.find(TOKENIZER_CONFIG) is not None:
        logger.warning(
            "%s has a %s but no %s: the summary is loaded without a tokenizer. Set"
            " farzi.processing_class to a tokenizer that has one; farzi.save_pretrained then"
            " adds it.",
            artefact.folder,
            TOKENIZER_CONFIG,
            TOKENIZER,
        )
    return None


def _load_tokenizer(artefact: ArtefactFolder) -> Any:
    settings: dict[str, Any] = {}
    path = artefact.find(TOKENIZER_CONFIG)
    if path is not None:
        settings = plain_settings(artefact.read(TOKENIZER_CONFIG), path)
    return make_tokenizer(
        artefact.read(TOKENIZER),
        artefact.path(TOKENIZER),
        settings,
        "fetch it again, or remove the tokenizer's files and set processing_class to a tokenizer of"
        " your own",
    )
