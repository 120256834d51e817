"""What a kind of inputs with a kind of labels should say about itself, and the checks of it. The
test of a kind makes an `Example`, and calls `check_words`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from farzi_hf.data import Vocabulary
from farzi_hf.summary import FarziData

_OF_ALL = {"teachers, whose labels it has", "vocabulary (V)", "stored", "vocabulary hash (SHA-256)"}
"""Rows of the card's table of facts that do not depend on the kind."""


@dataclass(frozen=True)
class Example:
    """A summary of one kind of inputs with one kind of labels, and the words that are true of it."""

    inputs: str
    labels: str
    make: Callable[[], FarziData]
    """Makes the summary, with a tokenizer. The words hold for what it makes."""
    description: str
    """The card's title and the paragraph after it; {nbytes} and {numbers} stand for the bytes of
    the summary and the numbers of its teacher.
    """
    facts: Mapping[str, str]
    """All rows of the card's table of facts that depend on the kind: how each of them begins."""
    comments: Mapping[str, str]
    """On each table, in the code of the card."""
    shown: Mapping[str, str]
    """All that `farzi show` says of what the summary consists of: how each line begins."""
    commands: tuple[str, ...]
    """Of the card, without `farzi`."""
    has_torch_code: bool
    """Whether the card computes something with torch alone."""


def check_words(example: Example, folder: Path) -> None:
    """Makes the summary, saves it in `folder`, and compares all that it says of itself."""
    farzi = example.make()
    assert (farzi.config.inputs, farzi.config.labels) == (example.inputs, example.labels)
    metrics = {"licence": "mit"}  # so that rows may be shown
    farzi.save_pretrained(folder, metrics=metrics, show_rows=True)
    card = (folder / "README.md").read_text(encoding="utf-8")
    numbers = sum(x.numel() for name, x in farzi.tensors.items() if name.startswith("teacher."))
    description = example.description.format(nbytes=f"{farzi.nbytes:,}", numbers=f"{numbers:,}")
    first = card.split("\n---\n")[1].split("## How to use it")[0]
    assert " ".join(first.split()) == description
    table = card.split("<summary>All facts and figures</summary>")[1].split("\n\n")[1]
    facts = dict(re.findall(r"^\| ([^|]+?) \| ([^|]*?) \|$", table, flags=re.M))
    _check_beginnings({x: y for x, y in facts.items() if x not in {"---", *_OF_ALL}}, example.facts)
    loaded = re.findall(r"^# (.*)\n(\w+) = load_dataset\(", card, flags=re.M)
    assert {name: comment for comment, name in loaded} == example.comments
    assert tuple(re.findall(r"^farzi (\w.*)$", card, flags=re.M)) == example.commands
    assert ("PyTorch alone" in card) == example.has_torch_code
    inputs = farzi.forms.inputs.words(farzi.vocabulary)
    labels = farzi.forms.labels.words(inputs, farzi.vocabulary, farzi.nbytes)
    _check_beginnings(labels.short, example.shown)
    of_items = farzi.forms.inputs.words(Vocabulary())
    assert "token" not in of_items.rows + of_items.positions, "an item is called an item"


def _check_beginnings(said: Mapping[str, str], expected: Mapping[str, str]) -> None:
    assert said.keys() == expected.keys()
    assert {name: said[name][: len(start)] for name, start in expected.items()} == expected
