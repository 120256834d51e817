"""The words that a form says about itself, and about the summary that it is a part of. None of them
has a default: who leaves one out gets an error that names it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SHOWN = 500
"""Sequences of the page to browse: it should open at once."""


@dataclass(frozen=True)
class InputWords:
    """What is said of the inputs of one summary. No word has a default."""

    positions: str
    """What a sequence consists of: "soft tokens" of "4 sequences of 5 soft tokens"."""

    position: str
    """A sentence that tells what the input of one position is."""

    rows: str
    """The end of "Inputs are …": what rows a student reads, and how many there are."""

    short: str
    """The rows in a few words, for `farzi show`."""

    facts: Mapping[str, Any]
    """Rows of the card's table of facts, by name: how many rows there are, and what they are."""

    excerpt: str
    """A sentence before the first rows as text on the card: what it prints of them."""

    first_positions: str
    """A line before the card's table of positions."""

    first_row: str
    """The title of a figure of the first row."""

    numbers: int
    """How many numbers of one position alone are learnt."""

    figures: Sequence[tuple[str, float]]
    """Names and values in the head of the page to browse."""

    legend: str
    """What a box of that page shows."""


@dataclass(frozen=True)
class LabelWords:
    """What is said of a summary as a whole, which its labels decide. No word has a default."""

    tags: Sequence[str]
    """Of the dataset repository."""

    title: str
    """Of the card, with the name of the data behind it."""

    description: str
    """The paragraph below the title, in Markdown."""

    browse: str
    """A sentence on the page to browse, at the end of that paragraph."""

    training: str | None
    """How to train on the summary, in Markdown; None where `FarziData.collator` and the stock
    Trainer are the way, and the card has code for that.
    """

    origin: str
    """A sentence on how the labels were made, for what the card says of the privacy of stored ids.
    """

    results: str
    """What a row of the card's table of results is, and its intervals."""

    needs: str
    """A sentence, without its end, on what a student needs that trains on it."""

    reading: str
    """A sentence on what readers miss who see tokens alone."""

    size: str
    """What the bytes of the summary are, in the card's table."""

    short_size: str
    """The same for `farzi show`."""

    facts: Mapping[str, Any]
    """Rows of the card's table of facts, by name: what the labels are."""

    short: Mapping[str, str]
    """What the summary consists of, by name, for `farzi show`."""
