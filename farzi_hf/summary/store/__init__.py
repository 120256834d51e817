"""The artefact: a summary on disk and on the Hub, with card, viewer and tables, and writing that survives a crash.

It works on tensors, a config and rows, and does not know `FarziData`. It imports data and models.
Exports `write_artefact`, `read_artefact`, `push_folder`, `fetch_artefact`, `render_card` and the types that these need.
"""

from farzi_hf.summary.store.card import render_card
from farzi_hf.summary.store.folder import ArtefactFolder, read_artefact
from farzi_hf.summary.store.hub import fetch_artefact, push_folder
from farzi_hf.summary.store.writing import Results, write_artefact

__all__ = [
    "ArtefactFolder", "Results", "fetch_artefact", "push_folder", "read_artefact", "render_card", "write_artefact",
]  # fmt: skip
