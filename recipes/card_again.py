"""Writes the cards of summaries again by the template of today, from what they say themselves. The
summary is not needed, and nothing is measured anew.

    python recipes/card_again.py model_cards/ptb_teacher model_cards/beauty_teacher

A folder has a card, `README.md`, and the `recipe.yaml` beside it. All figures, the verdict and the
rows that a card prints stay as they are; words, code and order are those of today. What a card
computes, such as the seconds that a training saves, it computes of figures as they are rounded
there. A remark below the title, a quotation, stays. A card that prints no rows loses the figure of
one. A card of today stays as it is, byte for byte.
"""

from __future__ import annotations

import ast
import html
import re
from argparse import ArgumentParser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from huggingface_hub import DatasetCard

from farzi_hf.cli.program import ends_in_one_line, run
from farzi_hf.common.text import Markdown, parse_mapping
from farzi_hf.data.vocabulary import ItemVocabulary, TokenVocabulary, Vocabulary
from farzi_hf.report.provenance import PROVENANCES
from farzi_hf.report.tables import save_text
from farzi_hf.summary import FarziDataConfig
from farzi_hf.summary.forms import INPUTS, forms_of
from farzi_hf.summary.initialization import INITIALIZATIONS, INPUT_SEQUENCES
from farzi_hf.summary.origins import FIGURE_OF_ROWS, shows_rows
from farzi_hf.summary.store.card import UNKNOWN, Excerpt, render_card
from farzi_hf.summary.store.contents import Contents
from farzi_hf.summary.store.folder import CARD, PLOTS, RECIPE
from farzi_hf.summary.store.tensor_file import STORAGES

STARTS = {"initialization": INITIALIZATIONS, "input_sequences": INPUT_SEQUENCES}
"""Tables of starts by the name of the setting that chooses one."""
SIZES = ("what one must keep to train", "all of its numbers")
"""What cards call the bytes of a summary."""
COMPUTED = (
    "distillation_seconds",
    "student_seconds",
    "full_data_seconds",
    "full_data_steps",
    "learner_parameters",
)
"""Figures that the template computes with. The others are text here."""


def main(argv: Sequence[str] | None = None) -> None:
    """Writes the card of each folder again."""
    for_each_folder("card_again.py", __doc__, write, argv)


def for_each_folder(
    script: str, description: str, work: Callable[[Path], None], argv: Sequence[str] | None
) -> None:
    """Does the work of a recipe in each folder of cards that its arguments name."""
    parser = ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of cards: model_cards/ptb_teacher")
    args = parser.parse_args(argv)
    with ends_in_one_line(script, OSError):
        for folder in args.folders:
            work(folder)


def write(folder: Path) -> None:
    """Writes the card of one folder again.

    Raises:
        ValueError: the folder lacks a card or a recipe, or the card lacks what it is made of.
    """
    for name in (CARD, RECIPE):
        if not (folder / name).is_file():
            raise ValueError(
                f"{folder} has no {name}; name a folder with the card and the recipe of a summary"
            )
    text = (folder / CARD).read_text(encoding="utf-8")
    recipe = parse_mapping((folder / RECIPE).read_bytes(), folder / RECIPE, "YAML")
    card = CardText(str(folder), text, recipe)
    save_text(card.again(), folder / CARD)
    if not card.shows_rows:
        (folder / PLOTS / FIGURE_OF_ROWS).unlink(missing_ok=True)
    print(f"{folder / CARD}: written again", flush=True)


class TokensOfCard(TokenVocabulary):
    """The tokens of a summary whose card alone is there.

    Args:
        ids: of special tokens, by the names of `special_ids`.
    """

    def __init__(self, ids: Mapping[str, int | None]) -> None:
        self.ids = ids

    def special_ids(self, names: Sequence[str]) -> dict[str, int | None]:
        return {name: self.ids.get(name) for name in names}


@dataclass(frozen=True, eq=False)
class ContentsOfCard(Contents):
    """A summary without its tensors, of which the bytes are known."""

    known_bytes: int = 0

    @property
    def nbytes(self) -> int:
        return self.known_bytes


class CardText:
    """A card that a template of this project has written, since 25 November 2026.

    Args:
        source: the folder, for errors.
        text: the card.
        recipe: the contents of `recipe.yaml`.
    """

    def __init__(self, source: str, text: str, recipe: Mapping[str, Any]) -> None:
        self.source = source
        self.text = text
        self.recipe = recipe
        self.header = DatasetCard(text).data

    def again(self) -> str:
        """The card by the template of today, with the remark of the old one."""
        card = render_card(
            self.contents,
            self.metrics,
            self.recipe,
            [plot for plot in self.plots if self.shows_rows or Path(plot).name != FIGURE_OF_ROWS],
            excerpt=self.excerpt,
        )
        if not self.remark:
            return card
        title = re.search(r"^# .*\n", card, flags=re.M)[0]
        return card.replace(title, f"{title}\n{self.remark}\n", 1)

    # -- parts of the text -------------------------------------------------------------------------

    def lacks(self, what: str) -> ValueError:
        """The error of a card without a part that each card of a summary has."""
        return ValueError(
            f"{self.source}/{CARD} has no {what}; only cards of summaries can be written again"
        )

    def between(self, begin: str, end: str) -> str:
        """The text after `begin` and before `end`. Raises ValueError without them."""
        _, found, rest = self.text.partition(begin)
        if not found or end not in rest:
            raise self.lacks(repr(begin.strip()))
        return rest.partition(end)[0]

    def said(self, name: str) -> str | None:
        """The text of a fact; None without it."""
        return html.unescape(self.facts[name]) if name in self.facts else None

    def fact(self, name: str) -> str:
        """The cell of one fact. Raises ValueError without it."""
        if name not in self.facts:
            raise self.lacks(f"row {name!r}")
        return self.facts[name]

    def folded(self, title: str) -> str:
        """The contents of a folded part; "" without it."""
        parts = self.text.split(f"<summary>{title}</summary>\n", 1)
        return parts[1].split("\n</details>")[0].strip("\n") if len(parts) > 1 else ""

    @cached_property
    def head(self) -> str:
        """All from the title to the first section."""
        return self.between("\n---\n", "\n## ")

    @cached_property
    def origin_part(self) -> str:
        """The section "Where it comes from", without the folded parts."""
        return self.between("\n## Where it comes from\n", "\n<details>")

    @cached_property
    def facts(self) -> dict[str, str]:
        """The cells of the two tables of facts, by name."""
        tables = self.origin_part + self.folded("All facts and figures").split("\n\n|", 1)[0]
        return pairs_of(tables)

    @cached_property
    def figures(self) -> dict[str, str]:
        """The cells of the table of figures."""
        return pairs_of(self.table_after("| figure | value |"))

    @cached_property
    def inner(self) -> dict[str, Any]:
        """How students are trained."""
        return {
            name: value_of(html.unescape(cell))
            for name, cell in pairs_of(self.table_after("| setting | value |")).items()
        }

    def table_after(self, head: str) -> str:
        """The lines of a table after its head; "" without it."""
        return self.text.split(f"{head}\n", 1)[-1].split("\n\n", 1)[0] if head in self.text else ""

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """The rows of the table of results, of cells as they are."""
        rows = [cells_of(line) for line in self.head.splitlines() if line.startswith("| ")]
        return [
            {name: Markdown(cell) for name, cell in zip(rows[0], row, strict=True)}
            for row in rows[2:]
        ]

    @cached_property
    def verdict(self) -> str:
        """Whether it is worth it; "" where the card says nothing."""
        answer = re.search(r"^\*\*(.+)\*\*$", self.head, flags=re.M)
        if answer is None:
            return ""
        lines = re.findall(r"^- .*$", self.head, flags=re.M)
        return html.unescape("\n".join([answer[1], *lines]))

    @cached_property
    def remark(self) -> str:
        """A quotation below the title, which somebody has written by hand; "" without one."""
        quoted = re.search(r"^> .*(?:\n>.*)*", self.head, flags=re.M)
        return quoted[0] if quoted else ""

    @cached_property
    def plots(self) -> list[str]:
        """The paths of the figures, the first one at the top."""
        return re.findall(r"^!\[(.*?)\]\(", self.text, flags=re.M)

    @cached_property
    def excerpt(self) -> Excerpt:
        """The rows that are printed."""
        says = self.folded("What it says")
        if "```" not in says:
            return Excerpt("", "")
        examples = re.search(r"^(`{3,})text\n(?:.*\n)*?\1$", says, flags=re.M)[0]
        return Excerpt(examples, says[says.index("\n| ") + 1 :])

    # -- the summary -------------------------------------------------------------------------------

    @cached_property
    def config(self) -> FarziDataConfig:
        """Of the summary."""
        recipe = self.recipe
        inputs, labels = recipe["inputs"], recipe["labels"]
        start = INPUTS[inputs].start
        label_dim = re.search(r"dimension \(e\) (\d+)", self.facts.get("labels", ""))
        return FarziDataConfig(
            num_sequences=recipe["num_sequences"],
            sequence_length=recipe["sequence_length"],
            latent_dim=recipe["latent_dim"],
            vocab_size=integer(self.fact("vocabulary (V)")),
            tau=recipe["tau"],
            inner=self.inner or None,
            inputs=inputs,
            labels=labels,
            label_dim=None if label_dim is None else int(label_dim[1]),
            teacher=self.teacher,
            seed=recipe["seed"],
            origin=STARTS[start][recipe[start]].origin.name if start in STARTS else None,
            storage=self.storage,
            vocabulary_hash=self.facts.get("vocabulary hash (SHA-256)", "").strip("`") or None,
        )

    @property
    def storage(self) -> str:
        """How the tensors are stored, by the words on it; one way needs none."""
        words = self.said("stored")
        names = [name for name, each in STORAGES.items() if each.description == words]
        if not names:
            raise ValueError(
                f"{self.source}/{CARD} calls its tensors 'stored': {words!r}, which no way is"
            )
        return names[0]

    @property
    def teacher(self) -> dict[str, Any] | None:
        """The config of the carried teacher: its integers as the card lists them, and what the
        recipe says beside them.
        """
        words = self.facts.get("the teacher")
        if words is None:
            return None
        kind, _, sizes = words.rstrip(")").partition(" (")
        integers = dict(size.split(" ") for size in sizes.split(", "))
        teacher = self.recipe.get("teacher") or self.recipe["learner"]
        return {
            "model_type": kind,
            **self.special_ids,
            **{name: int(value) for name, value in integers.items()},
            **{name: value for name, value in teacher.items() if name not in integers},
        }

    @property
    def special_ids(self) -> dict[str, int | None]:
        """Ids of special tokens, as the code of the card has them; items have none."""
        ids = re.findall(r"^    (\w+_token_id)=(\d+|None),$", self.text, flags=re.M)
        return {name: ast.literal_eval(value) for name, value in ids}

    @property
    def vocabulary(self) -> Vocabulary:
        """What the entries are, without their names."""
        is_of_tokens = set(TokenVocabulary.tags) <= set(self.header.tags)
        return TokensOfCard(self.special_ids) if is_of_tokens else ItemVocabulary([])

    @property
    def contents(self) -> Contents:
        """The summary as a card needs it."""
        nbytes = self.fact(next((name for name in SIZES if name in self.facts), SIZES[0]))
        return ContentsOfCard(
            forms=forms_of(self.config),
            tensors={},
            vocabulary=self.vocabulary,
            decoded=None,
            known_bytes=integer(nbytes.removesuffix(" bytes")),
        )

    @property
    def shows_rows(self) -> bool:
        """Whether the card of today prints rows."""
        return shows_rows(forms_of(self.config).inputs.origin, self.metrics)

    # -- its figures -------------------------------------------------------------------------------

    @cached_property
    def metrics(self) -> dict[str, Any]:
        """What `render_card` calls so."""
        dataset = self.said("distilled from")
        known = [each for each in PROVENANCES.values() if each["dataset"] == dataset]
        command = re.search(
            r"^(`{3,})bash\n((?:.*\n)*?)\1$", self.folded("Distil it again"), flags=re.M
        )
        facts = {
            "table": self.results,
            "verdict": self.verdict,
            "dataset": dataset,
            "split": self.said("split"),
            "command": command and command[2].rstrip("\n"),
            "language": self.header.language,
            "licence": self.header.license if self.header.license != UNKNOWN else None,
            "licence_text": self.licence_text,
            "memory": self.memory,
            **self.bytes_of_data,
            **(known[0] if known else {}),
        }
        figures = {
            name: number_of(cell) if name in COMPUTED else Markdown(cell)
            for name, cell in self.figures.items()
        }
        return {name: value for name, value in {**facts, **figures}.items() if value is not None}

    @property
    def bytes_of_data(self) -> dict[str, int | None]:
        """The sizes of the data."""
        cell = self.facts.get("the data", "")
        patterns = {
            "data_bytes": r"^([\d,]+) bytes",
            "data_bytes_flat": r"coded; ([\d,]+) in flat bits",
            "data_bytes_after_xz": r"([\d,]+) bytes after xz",
            "data_sequences": r"([\d,]+) sequences$",
        }
        matches = {name: re.search(pattern, cell) for name, pattern in patterns.items()}
        return {name: match and integer(match[1]) for name, match in matches.items()}

    @property
    def licence_text(self) -> str | None:
        """The first line below the facts; None where it is the template's own sentence."""
        first = re.search(r"^- (.*)$", self.origin_part, flags=re.M)[1]
        return None if first.startswith("The licence of the source ") else html.unescape(first)

    @property
    def memory(self) -> str | None:
        """What the carried teacher has memorised; None where the card says nothing."""
        lines = re.findall(r"^- (.*\bAUC of .*)$", self.origin_part, flags=re.M)
        return html.unescape(lines[0]) if lines else None


def cells_of(line: str) -> list[str]:
    """The cells of a line of a table."""
    return line.removeprefix("| ").removesuffix(" |").split(" | ")


def pairs_of(tables: str) -> dict[str, str]:
    """The second cell of each line of tables with two columns, by the first one."""
    found = dict(re.findall(r"^\| (.+?) \| (.*?) \|$", tables, flags=re.M))
    return {name: cell for name, cell in found.items() if name != "---"}


def integer(text: str) -> int:
    """An integer as cards write it: 1,234."""
    return int(text.replace(",", ""))


def number_of(text: str) -> int | float:
    """A number as cards write it: 1,234 or 5.678."""
    return float(text.replace(",", "")) if "." in text else integer(text)


def value_of(text: str) -> Any:
    """A value as Python prints it, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    run(main)
