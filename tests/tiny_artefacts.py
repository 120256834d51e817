"""Tiny summaries and their artefacts."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from farzi_hf.summary import FarziData, FarziDataConfig
from farzi_hf.summary.origins import LEARNT
from farzi_hf.summary.store.folder import ArtefactFolder

WORDS = ["<pad>", "<unk>", "<s>", "</s>", "the", "cat", "a|b"]

INNER = {
    "optimizer": "adam",
    "lr": 0.01,
    "eps": 1e-4,
    "betas": [0.9, 0.999],
    "steps": 300,
    "synthetic_batch_size": 4,
}

METRICS = {
    "table": [
        {
            "method": "Farzi",
            "perplexity": 101.23456,
            "perplexity_std": 1.5,
            "perplexity_interval": [99.0, 104.5],
            "bytes": 300,
        },
        {"method": "random", "perplexity": 2827.3},
    ],
    "dataset": "the corpus",
    "data_bytes": 1000,
    "data_sequences": 50,
    "split": "official",
    "learner_parameters": 1234,
    "distillation_seconds": 1200.0,
    "student_seconds": 5.0,
    "full_data_seconds": 80.0,
    "full_data_steps": 4000,
    "licence": "other",
    "licence_text": "The corpus is its owner's.",
    "command": "accelerate launch recipes/ptb.py --config recipe.yaml",
}

RECIPE = {"seed": 0, "learner": {"model_type": "gpt2", "n_embd": 16, "embd_pdrop": 0.0}}


def tiny(**changes) -> FarziData:
    torch.manual_seed(0)
    sizes = {
        "num_sequences": 4,
        "sequence_length": 5,
        "latent_dim": 3,
        "vocab_size": len(WORDS),
        "latent_std": 1.0,
        "origin": LEARNT.name,
    }
    return FarziData(FarziDataConfig(**{**sizes, **changes}))


def word_tokenizer(words: Sequence[str] = WORDS) -> PreTrainedTokenizerFast:
    model = WordLevel({word: i for i, word in enumerate(words)}, unk_token="<unk>")
    return PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(model), pad_token="<pad>", unk_token="<unk>"
    )


def variant(number: int) -> FarziData:
    farzi = tiny(inner={"variant": number})
    torch.nn.init.constant_(farzi.latents, number)
    return farzi


def save_variant(number: int, folder: Path) -> None:
    """Even variants have a tokenizer and metrics, odd ones an item list: the sets of
    files differ.
    """
    metrics = {"variant": number} if number % 2 == 0 else None
    variant(number).save_pretrained(
        folder, word_tokenizer() if number % 2 == 0 else WORDS[::-1], metrics
    )


def variant_on_disk(folder: Path) -> int:
    """The number of the variant in `folder`, after asserting that every file is of that variant,
    and that loading changes nothing.
    """
    before = listing(folder)
    farzi = FarziData.from_pretrained(folder)
    number = farzi.config.inner["variant"]
    assert (farzi.latents == number).all()
    assert isinstance(farzi.processing_class, list) == (number % 2 == 1)
    assert farzi.results.metrics == ({"variant": number} if number % 2 == 0 else {})
    assert f"| variant | {number} |" in ArtefactFolder(folder).path("README.md").read_text()
    assert listing(folder) == before
    return number


def listing(folder: Path) -> dict[str, tuple]:
    """All that lies under `folder`, by its path: kind, size, time of the last change, and content
    of files.
    """

    def facts(path: Path) -> tuple:
        found = path.lstat()
        content = (
            path.read_bytes()
            if stat.S_ISREG(found.st_mode)
            else path.is_symlink() and os.readlink(path)
        )
        return stat.S_IFMT(found.st_mode), found.st_size, found.st_mtime_ns, content

    found = [
        Path(parent, name)
        for parent, folders, files in os.walk(folder)
        for name in (*folders, *files)
    ]
    return {str(path.relative_to(folder)): facts(path) for path in found}
