"""The artefact: a summary on disk and on the Hub, with its card, its viewer and its tables; and files that survive a crash.

It works on tensors, a config and rows, and knows no `FarziData`. It imports data and models.
Its doors are `write_artefact`, `read_artefact`, `push_folder` and `fetch_artefact`.
"""

from farzi_hf.artefact.card import render_card
from farzi_hf.artefact.folder import ArtefactFolder, read_artefact
from farzi_hf.artefact.hub import fetch_artefact, push_folder
from farzi_hf.artefact.writing import Results, write_artefact

__all__ = [
    "ArtefactFolder", "Results", "fetch_artefact", "push_folder", "read_artefact", "render_card", "write_artefact",
]  # fmt: skip
