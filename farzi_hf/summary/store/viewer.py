"""viewer.html: a page to browse the synthetic sequences. It needs a browser and no server.

The page holds latents and decoder in float32, and computes the distributions that it shows. Of a large summary it holds the first
sequences: a browser takes long to open a page of hundreds of megabytes.
"""

from __future__ import annotations

import base64
from pathlib import Path

import numpy as np
from torch import Tensor

from farzi_hf.summary.store.card import Contents
from farzi_hf.summary.store.text import script_json

_SLOT = "__SUMMARY__"
SHOWN = 2000
"""The most sequences of a page."""


def render_viewer(contents: Contents) -> str:
    """The page of a summary, of its first `SHOWN` sequences. It has about 4/3 of their bytes, plus the vocabulary.

    Args:
        contents: of the artefact.
    """
    config, tensors = contents.config, contents.tensors
    # The page shows distributions: soft inputs, or else the labels.
    soft = "latents" in tensors
    latents, decoder = (
        tensors[name] for name in (("latents", "decoder") if soft else ("label_latents", "label_decoder"))
    )
    latents = latents[:SHOWN]
    sizes = {
        "num_sequences": len(latents),
        "all_sequences": config.num_sequences,
        "latent_dim": latents.shape[-1],
    }
    entropies = np.array(
        [
            [position["entropy" if soft else "label_entropy"] for position in sequence]
            for sequence in contents.decoded[:SHOWN]
        ]
    )
    data = {
        **{name: getattr(config, name) for name in ("sequence_length", "vocab_size")},
        **sizes,
        "tau": config.tau if soft else 1.0,
        "tokens": contents.vocabulary.names(config.vocab_size),
        "latents": _base64(latents),
        "decoder": _base64(decoder.T),  # transposed, so that the numbers of an entry are neighbours
        "entropy": _base64(entropies),
    }  # fmt: skip
    template = (Path(__file__).parent / "templates" / "viewer.html").read_text(encoding="utf-8")
    return template.replace(_SLOT, script_json(data))


def _base64(numbers: Tensor | np.ndarray) -> str:
    if isinstance(numbers, Tensor):
        numbers = numbers.detach().float().cpu().numpy()
    return base64.b64encode(np.ascontiguousarray(numbers, dtype="<f4").tobytes()).decode()
